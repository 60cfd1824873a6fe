// Scalar types of Ascend C that a host compiler lacks, and their exact conversions. A value of these types is only bits:
// arithmetic is done in F32, as the vector unit's casts do it.

#ifndef DEEPINFER_ASCEND_TWIN_TYPES_H
#define DEEPINFER_ASCEND_TWIN_TYPES_H

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace di_twin {

template <class To, class From> inline To bits_as(const From &from) {
  static_assert(sizeof(To) == sizeof(From), "bits of another size");
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

inline uint32_t bits_of(float x) { return bits_as<uint32_t>(x); }
inline float float_of(uint32_t bits) { return bits_as<float>(bits); }

} // namespace di_twin

struct half {
  uint16_t bits;
};
struct bfloat16_t {
  uint16_t bits;
};
struct fp8_e4m3fn_t {
  uint8_t bits;
};
struct fp8_e5m2_t {
  uint8_t bits;
};
struct fp8_e8m0_t {
  uint8_t bits;
};

namespace AscendC {

// How a conversion rounds.
enum class RoundMode {
  CAST_NONE = 0, // exact, or as CAST_RINT where the result does not fit
  CAST_RINT,     // to nearest, ties to even
  CAST_FLOOR,
  CAST_CEIL,
  CAST_ROUND, // to nearest, ties away from zero
  CAST_TRUNC,
  CAST_ODD, // to the neighbour whose last bit is 1, unless exact
  CAST_HYBRID,
  CAST_EVEN,
};

} // namespace AscendC

namespace di_twin {

using AscendC::RoundMode;

// Of a magnitude that is cut off: whether the kept part grows by one in its last place.
inline bool rounds_up(RoundMode mode, bool is_negative, bool is_odd, bool is_above_half, bool is_half, bool is_exact) {
  if (is_exact) return false;
  switch (mode) {
  case RoundMode::CAST_FLOOR: return is_negative;
  case RoundMode::CAST_CEIL: return !is_negative;
  case RoundMode::CAST_TRUNC: return false;
  case RoundMode::CAST_ROUND: return is_above_half || is_half;
  case RoundMode::CAST_ODD: return !is_odd;
  default: return is_above_half || (is_half && is_odd);
  }
}

// The upper bits of a binary32 number, `dropped` of them cut off.
inline uint32_t cut_float(uint32_t bits, int dropped, RoundMode mode) {
  const uint32_t magnitude = bits & 0x7FFFFFFFu, rest = magnitude & ((1u << dropped) - 1), half = 1u << (dropped - 1);
  const uint32_t kept = magnitude >> dropped;
  return kept + rounds_up(mode, bits >> 31, kept & 1, rest > half, rest == half, rest == 0);
}

inline float to_float(bfloat16_t x) { return float_of(uint32_t(x.bits) << 16); }

inline bfloat16_t to_bfloat16(float x, RoundMode mode = RoundMode::CAST_RINT) {
  const uint32_t bits = bits_of(x);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return {uint16_t(0x7FC0)};
  return {uint16_t((bits >> 16 & 0x8000u) | cut_float(bits, 16, mode))};
}

// The same to nearest, ties to even, without a branch.
inline bfloat16_t to_nearest_bfloat16(float x) {
  const uint32_t bits = bits_of(x), rounded = (bits + 0x7FFFu + (bits >> 16 & 1)) >> 16;
  return {uint16_t((bits & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FC0u : rounded)};
}

inline float to_float(half x) {
  const uint32_t sign = uint32_t(x.bits & 0x8000u) << 16, exponent = x.bits >> 10 & 31, fraction = x.bits & 0x3FFu;
  if (exponent == 31) return float_of(sign | 0x7F800000u | fraction << 13);
  if (exponent == 0) {
    const float value = float(fraction) * 0x1p-24f;
    return sign ? -value : value;
  }
  return float_of(sign | (exponent + 112) << 23 | fraction << 13);
}

// A magnitude with `fraction` bits of fraction and a smallest normal exponent, as the exponent and fraction bits of a
// small format; beyond its largest code the caller clamps.
inline uint32_t small_float(uint32_t bits, int fraction, int bias, RoundMode mode) {
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  const int exponent = int(magnitude >> 23) - 127;
  if (exponent >= 1 - bias) {
    const uint32_t cut = cut_float(bits, 23 - fraction, mode);
    return cut - (uint32_t(127 - bias) << fraction);
  }
  // Below the smallest normal number a code counts steps.
  const uint64_t significand = magnitude >> 23 ? (magnitude & 0x7FFFFFu) | 0x800000u : magnitude & 0x7FFFFFu;
  const int scale = (magnitude >> 23 ? exponent : -126) - 23; // value = significand * 2^scale
  const int dropped = (1 - bias - fraction) - scale;
  if (dropped > 40) return rounds_up(mode, bits >> 31, false, false, false, significand == 0);
  const uint64_t kept = significand >> dropped, rest = significand & ((uint64_t(1) << dropped) - 1), half = uint64_t(1) << (dropped - 1);
  return uint32_t(kept) + rounds_up(mode, bits >> 31, kept & 1, rest > half, rest == half, rest == 0);
}

inline half to_half(float x, RoundMode mode = RoundMode::CAST_RINT) {
  const uint32_t bits = bits_of(x), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return {uint16_t(0x7E00)};
  if (magnitude == 0x7F800000u) return {uint16_t(sign | 0x7C00)};
  const uint32_t code = small_float(bits, 10, 15, mode);
  return {uint16_t(sign | (code > 0x7C00 ? 0x7C00 : code))};
}

inline float to_float(fp8_e4m3fn_t x) {
  const uint32_t sign = uint32_t(x.bits & 0x80u) << 24, exponent = x.bits >> 3 & 15, fraction = x.bits & 7;
  if ((x.bits & 0x7F) == 0x7F) return float_of(sign | 0x7FC00000u);
  if (exponent == 0) {
    const float value = float(fraction) * 0x1p-9f;
    return sign ? -value : value;
  }
  return float_of(sign | (exponent + 120) << 23 | fraction << 20);
}

// Saturating: beyond 448 it is 448.
inline fp8_e4m3fn_t to_e4m3(float x, RoundMode mode = RoundMode::CAST_RINT) {
  const uint32_t bits = bits_of(x), sign = bits >> 24 & 0x80u, magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return {uint8_t(sign | 0x7F)};
  if (magnitude >= bits_of(480.0f)) return {uint8_t(sign | 0x7E)};
  const uint32_t code = small_float(bits, 3, 7, mode);
  return {uint8_t(sign | (code > 0x7E ? 0x7E : code))};
}

inline float to_float(fp8_e5m2_t x) { return to_float(half{uint16_t(x.bits << 8)}); }

inline fp8_e5m2_t to_e5m2(float x, RoundMode mode = RoundMode::CAST_RINT) {
  const uint32_t bits = bits_of(x), sign = bits >> 24 & 0x80u, magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return {uint8_t(sign | 0x7F)};
  if (magnitude == 0x7F800000u) return {uint8_t(sign | 0x7B)};
  const uint32_t code = small_float(bits, 2, 15, mode);
  return {uint8_t(sign | (code > 0x7B ? 0x7B : code))};
}

} // namespace di_twin

#endif
