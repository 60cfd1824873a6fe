// Cast: conversions between formats, for the pairs that the 950 has. Integers that do not fit saturate, a NaN becomes 0 in them.
// Narrower floats do so too, unless bit 48 of the control register is set: then infinities and NaNs stay. E4M3 and E5M2 saturate at
// their largest number either way.

#ifndef DEEPINFER_ASCEND_TWIN_CONVERT_H
#define DEEPINFER_ASCEND_TWIN_CONVERT_H

#include <limits>

#include "vector.h"

namespace di_twin {

// A float as a whole number.
inline double rounded(double x, RoundMode mode) {
  switch (mode) {
  case RoundMode::CAST_FLOOR: return std::floor(x);
  case RoundMode::CAST_CEIL: return std::ceil(x);
  case RoundMode::CAST_TRUNC: return std::trunc(x);
  case RoundMode::CAST_ROUND: return std::round(x);
  default: return std::nearbyint(x);
  }
}

template <class T> T saturated(double x) {
  if (x != x) return 0;
  constexpr double low = double(std::numeric_limits<T>::min());
  // The largest number of 64 bits is none of F64.
  if (x <= low) return std::numeric_limits<T>::min();
  if (x >= double(std::numeric_limits<T>::max())) return std::numeric_limits<T>::max();
  return T(x);
}

template <class T, class U> struct Conversion {
  RoundMode mode;
  bool infinities_stay;
  T operator()(U x) const {
    if constexpr (std::is_integral_v<U>) {
      if constexpr (std::is_integral_v<T>) {
        if constexpr (sizeof(T) > sizeof(U) && std::is_signed_v<T> >= std::is_signed_v<U>) return T(x);
        else return x < 0 && !std::is_signed_v<T> ? T(0)
                 : int64_t(x) > int64_t(std::numeric_limits<T>::max()) ? std::numeric_limits<T>::max()
                 : int64_t(x) < int64_t(std::numeric_limits<T>::min()) ? std::numeric_limits<T>::min()
                                                                       : T(x);
      } else if constexpr (std::is_same_v<T, half>) {
        return to_half(float(x), mode);
      } else {
        return to_float_rounded(int64_t(x));
      }
    } else {
      const float value = as_float(x);
      if constexpr (std::is_same_v<T, float> && std::is_same_v<U, float>) return float(rounded(value, mode));
      else if constexpr (std::is_same_v<T, float>) return value;
      else if constexpr (std::is_same_v<T, half>) return narrowed(to_half(value, mode), 0x7C00);
      else if constexpr (std::is_same_v<T, bfloat16_t>) return narrowed(mode == RoundMode::CAST_RINT ? to_nearest_bfloat16(value) : to_bfloat16(value, mode), 0x7F80);
      else if constexpr (std::is_same_v<T, fp8_e4m3fn_t>) return narrowed(to_e4m3(value, mode), 0x7F);
      else if constexpr (std::is_same_v<T, fp8_e5m2_t>) return narrowed(to_e5m2(value, mode), 0x7C);
      else return saturated<T>(rounded(double(value), mode));
    }
  }
  // `infinity` is the magnitude's code, or that of the NaN where there is none. Without it the largest number is the code before.
  T narrowed(T code, uint32_t infinity) const {
    constexpr uint32_t sign = sizeof(T) == 1 ? 0x80 : 0x8000;
    const uint32_t magnitude = code.bits & (sign - 1);
    if (infinities_stay || magnitude < infinity) return code;
    const bool is_nan = magnitude > infinity || infinity == 0x7F;
    code.bits = static_cast<decltype(code.bits)>(is_nan ? 0 : (code.bits & sign) | (infinity - 1));
    return code;
  }
  static float as_float(float x) { return x; }
  template <class W> static float as_float(W x) { return to_float(x); }
  // An integer as F32, by the mode.
  float to_float_rounded(int64_t x) const {
    const uint64_t magnitude = x < 0 ? 0 - uint64_t(x) : uint64_t(x);
    int dropped = 0;
    while (magnitude >> dropped >= uint64_t(1) << 24) ++dropped;
    if (dropped == 0) return float(x);
    const uint64_t kept = magnitude >> dropped, rest = magnitude & ((uint64_t(1) << dropped) - 1), half_way = uint64_t(1) << (dropped - 1);
    const uint64_t significand = kept + rounds_up(mode, x < 0, kept & 1, rest > half_way, rest == half_way, rest == 0);
    const float value = std::ldexp(float(significand), dropped);
    return x < 0 ? -value : value;
  }
};

// The pairs of Cast that have nothing to round by, and those that need a mode.
template <class T, class U> constexpr bool has_plain_cast() {
  if constexpr (is_any<U, half, bfloat16_t, fp8_e4m3fn_t, fp8_e5m2_t>()) return std::is_same_v<T, float>;
  else if constexpr (std::is_same_v<U, uint8_t>) return is_any<T, half, uint16_t, uint32_t>();
  else if constexpr (std::is_same_v<U, int8_t>) return is_any<T, half, int16_t, int32_t>();
  else if constexpr (std::is_same_v<U, uint16_t>) return is_any<T, uint8_t, uint32_t>();
  else if constexpr (std::is_same_v<U, int16_t>) return is_any<T, float, uint8_t, uint32_t, int32_t>();
  else if constexpr (std::is_same_v<U, uint32_t>) return is_any<T, uint8_t, uint16_t, int16_t>();
  else if constexpr (std::is_same_v<U, int32_t>) return is_any<T, int64_t, int16_t, uint8_t, uint16_t>();
  else return std::is_same_v<U, int64_t> && std::is_same_v<T, int32_t>;
}

template <class T, class U> constexpr bool has_rounding_cast() {
  if constexpr (std::is_same_v<U, float>) return is_any<T, float, half, bfloat16_t, int16_t, int32_t, int64_t, fp8_e4m3fn_t, fp8_e5m2_t>();
  else if constexpr (std::is_same_v<U, half>) return is_any<T, bfloat16_t, int8_t, uint8_t, int16_t, int32_t>();
  else if constexpr (std::is_same_v<U, bfloat16_t>) return is_any<T, half, int32_t>();
  else if constexpr (std::is_same_v<U, int16_t>) return std::is_same_v<T, half>;
  else return is_any<U, int32_t, int64_t>() && std::is_same_v<T, float>;
}

template <class T, class U> constexpr bool has_cast() { return has_plain_cast<T, U>() || has_rounding_cast<T, U>(); }

// The twin asks that the mode says what happens.
template <class T, class U> void check_mode(RoundMode mode) {
  if (has_plain_cast<T, U>() != (mode == RoundMode::CAST_NONE)) {
    wrong("block %u: Cast: this pair of formats %s", Core::now().block(), has_plain_cast<T, U>() ? "takes CAST_NONE" : "needs a mode to round by");
  }
}

} // namespace di_twin

namespace AscendC {

template <class T, class U> void Cast(const LocalTensor<T> &dst, const LocalTensor<U> &src, const RoundMode &mode, const uint32_t count) {
  static_assert(di_twin::has_cast<T, U>(), "Cast: the device has no such pair");
  di_twin::check_mode<T, U>(mode);
  di_twin::map("Cast", dst, src, count, di_twin::Conversion<T, U>{mode, di_twin::Core::now().infinities_stay()});
}

template <class T, class U, bool isSetMask = true, class M>
void Cast(const LocalTensor<T> &dst, const LocalTensor<U> &src, const RoundMode &mode, M mask, uint8_t repeats, const UnaryRepeatParams &p) {
  static_assert(di_twin::has_cast<T, U>(), "Cast: the device has no such pair");
  di_twin::check_mode<T, U>(mode);
  di_twin::map("Cast", dst, src, mask, repeats, p, di_twin::Conversion<T, U>{mode, di_twin::Core::now().infinities_stay()});
}

// To a whole number of the same format.
template <class T, RoundMode mode> void Truncate(const LocalTensor<T> &dst, const LocalTensor<T> &src, const uint32_t count) {
  static_assert(std::is_same_v<T, float>, "Truncate: float here");
  di_twin::map("Truncate", dst, src, count, [](float x) { return float(di_twin::rounded(x, mode)); });
}

// In the scalar pipe.
inline float ToFloat(const bfloat16_t &x) { return di_twin::to_float(x); }
inline bfloat16_t ToBfloat16(const float &x) { return di_twin::to_bfloat16(x); }

// The number of leading zeros, and of bits that are 1.
inline int64_t ScalarCountLeadingZero(uint64_t x) { return x == 0 ? 64 : __builtin_clzll(x); }
template <int bit> inline int64_t ScalarGetCountOfValue(uint64_t x) { return bit ? __builtin_popcountll(x) : 64 - __builtin_popcountll(x); }
// The lowest bit that is 1, or -1.
template <int bit> inline int64_t ScalarGetSFFValue(uint64_t x) {
  const uint64_t bits = bit ? x : ~x;
  return bits == 0 ? -1 : __builtin_ctzll(bits);
}

} // namespace AscendC

#endif
