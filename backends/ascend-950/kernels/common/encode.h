// F32 to scaled formats and back, by V: the rules of `quantize`, bit for bit. Everything is done with integers and with F32
// operations that are exact or rounded to nearest even; nothing depends on how the device's own casts treat a NaN.
//
// A row is encoded in pieces of up to 2048 columns that are whole groups. Of a small float a code counts steps below the smallest
// normal number and is the upper bits of F32 above it; both parts are computed of a clamped magnitude and added, so that no element
// is selected: code = steps(min(x, normal)) + upper(max(x, normal)) - steps(normal).
#pragma once

#include "bits.h"
#include "division.h"
#include "sync.h"
#include "tiling.h"

// What the scaled formats have.
template <int32_t FORMAT> struct Scaled;
template <> struct Scaled<FP8_ROW32> {
  static constexpr uint32_t GROUP = 32, CODES_PER_BYTE = 1, FRACTION = 3;
  static constexpr int32_t BIAS = 7, NORMAL_CODE = 8;
  static constexpr float NORMAL = 0.015625f, STEP = 0.001953125f, ROUNDER = 16384.0f, RECIPROCAL = 1.0f / 448.0f;
  // 448, 1e-4.
  static constexpr uint32_t LARGEST_BITS = 0x43E00000u, FLOOR_BITS = 0x38D1B717u, ROUNDER_BITS = 0x46800000u;
  static constexpr uint32_t SIGN_SHIFT = 24;
};
template <> struct Scaled<FP4_ROW32> {
  static constexpr uint32_t GROUP = 32, CODES_PER_BYTE = 2, FRACTION = 1;
  static constexpr int32_t BIAS = 1, NORMAL_CODE = 2;
  static constexpr float NORMAL = 1.0f, STEP = 0.5f, ROUNDER = 4194304.0f, RECIPROCAL = 1.0f / 6.0f;
  // 6, 6 * 2^-126.
  static constexpr uint32_t LARGEST_BITS = 0x40C00000u, FLOOR_BITS = 0x01C00000u, ROUNDER_BITS = 0x4A800000u;
  static constexpr uint32_t SIGN_SHIFT = 28;
};
template <> struct Scaled<FP4_ROW16> : Scaled<FP4_ROW32> {
  // The floor is 6 * 2^-9.
  static constexpr uint32_t GROUP = 16, FLOOR_BITS = 0x3C400000u;
};

constexpr uint32_t CODED_COLUMNS = 2048;
__aicore__ constexpr int32_t signed_bits(uint32_t bits) { return static_cast<int32_t>(bits); }

class Coder {
public:
  __aicore__ inline void init(AscendC::TPipe &pipe) {
    pipe.InitBuffer(wide_, 4 * CODED_COLUMNS * 4);
    pipe.InitBuffer(groups_, 4 * GROUPS * 4);
    pipe.InitBuffer(spread_, GROUPS * 32);
  }

  // `count` columns in whole groups: codes one after another, two to a byte in FP4, and one scale per group. Before it V must be done
  // with whatever it puts into `values`; behind it V sees the results.
  template <int32_t FORMAT>
  __aicore__ inline void encode(const AscendC::LocalTensor<uint8_t> &codes, const AscendC::LocalTensor<uint8_t> &scales,
                                const AscendC::LocalTensor<float> &values, uint32_t count) {
    using namespace AscendC;
    using Format = Scaled<FORMAT>;
    constexpr uint8_t GROUP_BLOCKS = Format::GROUP / 8;
    const int32_t n = static_cast<int32_t>(count), groups = n / static_cast<int32_t>(Format::GROUP);
    const LocalTensor<int32_t> a = wide<int32_t>(0), scale = group<int32_t>(0);
    const LocalTensor<float> scaled = wide<float>(3), factor = group<float>(1), spread = spread_.Get<float>();
    and_bits(a, values.ReinterpretCast<int32_t>(), MAGNITUDE_BITS, n);
    vector_barrier();
    // Magnitudes are ordered as their bits are, a NaN above all.
    WholeReduceMax(scale, a, static_cast<int32_t>(Format::GROUP), groups, 1, 1, GROUP_BLOCKS, ReduceOrder::ORDER_ONLY_VALUE);
    vector_barrier();
    Maxs(scale, scale, signed_bits(Format::FLOOR_BITS), groups);
    vector_barrier();
    Muls(scale.ReinterpretCast<float>(), scale.ReinterpretCast<float>(), Format::RECIPROCAL, groups);
    vector_barrier();
    if constexpr (FORMAT == FP4_ROW16) {
      // The scale is an E4M3 number itself.
      small_codes<FP8_ROW32>(scale, scale.ReinterpretCast<float>(), group<int32_t>(2), group<int32_t>(3), groups, NAN_ONLY);
      const LocalTensor<int32_t> copy = wide<int32_t>(1);
      Adds(copy, scale, 0, groups);
      vector_barrier();
      small_values<FP8_ROW32>(factor, copy, group<int32_t>(2), groups);
    } else {
      // The exponent of the next power of two; beyond F32 it is 255, a NaN.
      and_bits(scale, scale, MAGNITUDE_BITS, groups);
      vector_barrier();
      Mins(scale, scale, signed_bits(INFINITY_BITS), groups);
      vector_barrier();
      Adds(scale, scale, 0x7FFFFF, groups);
      vector_barrier();
      ShiftRight(scale, scale, 23, groups);
      vector_barrier();
      // Its reciprocal is exact; that of the NaN comes out as an infinity, which no other group makes.
      const LocalTensor<int32_t> exponent = factor.ReinterpretCast<int32_t>();
      Muls(exponent, scale, -1, groups);
      vector_barrier();
      Adds(exponent, exponent, 254, groups);
      vector_barrier();
      ShiftLeft(exponent, exponent, 23, groups);
      vector_barrier();
    }
    spread_factors(factor, groups);
    const BinaryRepeatParams by_group(1, 1, 0, GROUP_BLOCKS, GROUP_BLOCKS, 1);
    const uint64_t mask = Format::GROUP;
    if constexpr (FORMAT == FP4_ROW16) {
      Div<float, true, EXACT_DIVISION>(scaled, values, spread, mask, static_cast<uint8_t>(groups), by_group);
    } else {
      Mul(scaled, values, spread, mask, static_cast<uint8_t>(groups), by_group);
    }
    vector_barrier();
    small_codes<FORMAT>(a, scaled, wide<int32_t>(1), wide<int32_t>(2), n, NAN_OR_INFINITY);
    // The sign is the element's, also that of a NaN.
    const LocalTensor<uint32_t> sign = wide<uint32_t>(1), code = a.ReinterpretCast<uint32_t>();
    and_bits(sign, values.ReinterpretCast<uint32_t>(), SIGN_BIT, n);
    vector_barrier();
    ShiftRight(sign, sign, Format::SIGN_SHIFT, n);
    vector_barrier();
    Or(code, code, sign, n);
    vector_barrier();
    if constexpr (Format::CODES_PER_BYTE == 2) {
      // Neighbours lie in the halves of a word: the odd one goes above the even one.
      const LocalTensor<uint32_t> pair = wide<uint32_t>(2);
      Cast(pair.ReinterpretCast<uint16_t>(), code, RoundMode::CAST_NONE, count);
      vector_barrier();
      ShiftRight(sign, pair, 12u, n / 2);
      vector_barrier();
      Or(pair, pair, sign, n / 2);
      vector_barrier();
      and_bits(pair, pair, 0xFFu, n / 2);
      vector_barrier();
      Cast(codes, pair, RoundMode::CAST_NONE, count / 2);
    } else {
      Cast(codes, code, RoundMode::CAST_NONE, count);
    }
    Cast(scales, scale, RoundMode::CAST_NONE, static_cast<uint32_t>(groups));
    vector_barrier();
  }

  // What a reader of the codes sees: element times scale, rounded to F32.
  template <int32_t FORMAT>
  __aicore__ inline void decode(const AscendC::LocalTensor<float> &values, const AscendC::LocalTensor<uint8_t> &codes,
                                const AscendC::LocalTensor<uint8_t> &scales, uint32_t count) {
    using namespace AscendC;
    using Format = Scaled<FORMAT>;
    constexpr uint8_t GROUP_BLOCKS = Format::GROUP / 8;
    const int32_t n = static_cast<int32_t>(count), groups = n / static_cast<int32_t>(Format::GROUP);
    const LocalTensor<int32_t> code = wide<int32_t>(0), scale = group<int32_t>(0), rest = group<int32_t>(2);
    const LocalTensor<float> element = wide<float>(3), factor = group<float>(1);
    vector_barrier();
    if constexpr (Format::CODES_PER_BYTE == 2) {
      const LocalTensor<uint16_t> pair = wide<uint16_t>(1), upper = wide<uint16_t>(2);
      Cast(pair, codes, RoundMode::CAST_NONE, count / 2);
      vector_barrier();
      ShiftLeft(upper, pair, static_cast<uint16_t>(4), n / 2);
      vector_barrier();
      Or(pair, pair, upper, n / 2);
      vector_barrier();
      Ands(pair, pair, static_cast<uint16_t>(0x0F0F), n / 2);
      vector_barrier();
      Cast(code.ReinterpretCast<uint32_t>(), pair.ReinterpretCast<uint8_t>(), RoundMode::CAST_NONE, count);
    } else {
      Cast(code.ReinterpretCast<uint32_t>(), codes, RoundMode::CAST_NONE, count);
    }
    Cast(scale.ReinterpretCast<uint32_t>(), scales, RoundMode::CAST_NONE, static_cast<uint32_t>(groups));
    vector_barrier();
    if constexpr (FORMAT == FP4_ROW16) {
      small_values<FP8_ROW32>(factor, scale, rest, groups);
    } else {
      const LocalTensor<int32_t> bits = factor.ReinterpretCast<int32_t>();
      ShiftLeft(bits, scale, 23, groups);
      // 0 is 2^-127, below the normal numbers; 255 is NaN.
      Mins(rest, scale, 1, groups);
      vector_barrier();
      Muls(rest, rest, -1, groups);
      vector_barrier();
      Adds(rest, rest, 1, groups);
      Adds(scale, scale, 1, groups);
      vector_barrier();
      ShiftRight(scale, scale, 8, groups);
      vector_barrier();
      Or(rest, rest, scale, groups);
      vector_barrier();
      ShiftLeft(rest, rest, 22, groups);
      vector_barrier();
      Or(bits, bits, rest, groups);
      vector_barrier();
    }
    spread_factors(factor, groups);
    small_values<FORMAT>(element, code, wide<int32_t>(1), n);
    Mul(values, element, spread_.Get<float>(), static_cast<uint64_t>(Format::GROUP), static_cast<uint8_t>(groups),
        BinaryRepeatParams(1, 1, 0, GROUP_BLOCKS, GROUP_BLOCKS, 1));
    vector_barrier();
  }

private:
  static constexpr uint32_t GROUPS = CODED_COLUMNS / 16;
  // From which magnitude on a code is the format's NaN.
  static constexpr uint32_t NAN_ONLY = INFINITY_BITS + 1, NAN_OR_INFINITY = INFINITY_BITS;

  template <class T> __aicore__ inline AscendC::LocalTensor<T> wide(uint32_t which) {
    return wide_.GetWithOffset<T>(CODED_COLUMNS * 4 / sizeof(T), which * CODED_COLUMNS * 4);
  }
  template <class T> __aicore__ inline AscendC::LocalTensor<T> group(uint32_t which) {
    return groups_.GetWithOffset<T>(GROUPS, which * GROUPS * 4);
  }

  // Each factor eight times, in a block of its own.
  __aicore__ inline void spread_factors(const AscendC::LocalTensor<float> &factor, int32_t groups) {
    AscendC::Brcb(spread_.Get<float>(), factor, static_cast<uint8_t>((groups + 7) / 8), AscendC::BrcbRepeatParams(1, 8));
    vector_barrier();
  }

  // Codes of magnitudes, without sign; from `nan_from` on the NaN of E4M3. `codes` may be the bits of `values`.
  template <int32_t FORMAT>
  __aicore__ inline void small_codes(const AscendC::LocalTensor<int32_t> &codes, const AscendC::LocalTensor<float> &values,
                                     const AscendC::LocalTensor<int32_t> &b, const AscendC::LocalTensor<int32_t> &c, int32_t n, uint32_t nan_from) {
    using namespace AscendC;
    using Format = Scaled<FORMAT>;
    constexpr int32_t SHIFT = 23 - static_cast<int32_t>(Format::FRACTION);
    and_bits(codes, values.ReinterpretCast<int32_t>(), MAGNITUDE_BITS, n);
    vector_barrier();
    if constexpr (FORMAT == FP8_ROW32) {
      // 1 where it is as large as that, else 0.
      Mins(c, codes, signed_bits(nan_from), n);
      vector_barrier();
      Adds(c, c, 1 - signed_bits(nan_from), n);
      vector_barrier();
      Maxs(c, c, 0, n);
    }
    Mins(codes, codes, signed_bits(Format::LARGEST_BITS), n);
    vector_barrier();
    // Steps below the smallest normal number: its last place is that of F32 at ROUNDER.
    const LocalTensor<float> steps = b.ReinterpretCast<float>();
    Mins(steps, codes.ReinterpretCast<float>(), Format::NORMAL, n);
    vector_barrier();
    Adds(steps, steps, Format::ROUNDER, n);
    Maxs(codes.ReinterpretCast<float>(), codes.ReinterpretCast<float>(), Format::NORMAL, n);
    vector_barrier();
    Adds(b, b, -signed_bits(Format::ROUNDER_BITS) - ((127 - Format::BIAS) << Format::FRACTION) - Format::NORMAL_CODE, n);
    vector_barrier();
    if constexpr (FORMAT == FP8_ROW32) {
      Add(b, b, c, n);
      vector_barrier();
    }
    // The upper bits, rounded to nearest even.
    ShiftRight(c, codes, SHIFT, n);
    vector_barrier();
    and_bits(c, c, 1, n);
    Adds(codes, codes, (1 << (SHIFT - 1)) - 1, n);
    vector_barrier();
    Add(codes, codes, c, n);
    vector_barrier();
    ShiftRight(codes, codes, SHIFT, n);
    vector_barrier();
    Add(codes, codes, b, n);
    vector_barrier();
  }

  // Values of codes, with their signs. `codes` is lost.
  template <int32_t FORMAT>
  __aicore__ inline void small_values(const AscendC::LocalTensor<float> &values, const AscendC::LocalTensor<int32_t> &codes,
                                      const AscendC::LocalTensor<int32_t> &b, int32_t n) {
    using namespace AscendC;
    using Format = Scaled<FORMAT>;
    constexpr int32_t SHIFT = 23 - static_cast<int32_t>(Format::FRACTION);
    constexpr uint32_t MAGNITUDE = FORMAT == FP8_ROW32 ? 0x7F : 7;
    const LocalTensor<int32_t> bits = values.ReinterpretCast<int32_t>();
    and_bits(b, codes, MAGNITUDE, n);
    vector_barrier();
    Mins(bits, b, Format::NORMAL_CODE, n);
    vector_barrier();
    // Steps below the smallest normal number; less that number, which the other part has too much.
    Cast(values, bits, RoundMode::CAST_RINT, static_cast<uint32_t>(n));
    vector_barrier();
    Muls(values, values, Format::STEP, n);
    vector_barrier();
    Adds(values, values, -Format::NORMAL, n);
    Maxs(b, b, Format::NORMAL_CODE, n);
    vector_barrier();
    const LocalTensor<int32_t> upper = FORMAT == FP8_ROW32 ? wide_or_group(n) : b;
    if constexpr (FORMAT == FP8_ROW32) {
      ShiftLeft(upper, b, SHIFT, n);
      vector_barrier();
      // 1 for the NaN code.
      Adds(b, b, 1, n);
      vector_barrier();
      ShiftRight(b, b, 7, n);
      vector_barrier();
      Muls(b, b, signed_bits(NAN_BITS), n);
    } else {
      ShiftLeft(upper, b, SHIFT, n);
    }
    vector_barrier();
    Adds(upper, upper, (127 - Format::BIAS) << 23, n);
    vector_barrier();
    Add(values, values, upper.ReinterpretCast<float>(), n);
    vector_barrier();
    if constexpr (FORMAT == FP8_ROW32) Or(bits, bits, b, n);
    // The sign, also of a zero.
    ShiftRight(codes, codes, FORMAT == FP8_ROW32 ? 7 : 3, n);
    vector_barrier();
    ShiftLeft(codes, codes, 31, n);
    vector_barrier();
    Or(bits, bits, codes, n);
    vector_barrier();
  }

  // Room for one more vector of this length.
  __aicore__ inline AscendC::LocalTensor<int32_t> wide_or_group(int32_t n) {
    return n > static_cast<int32_t>(GROUPS) ? wide<int32_t>(2) : group<int32_t>(3);
  }

  AscendC::TBuf<AscendC::TPosition::VECCALC> wide_, groups_, spread_;
};
