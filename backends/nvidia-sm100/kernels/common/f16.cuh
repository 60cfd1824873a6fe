// E4M3 and E2M1 codes as F16 operands, which cost less than BF16 ones, and when they give the same bits.
//
// The tensor cores multiply exactly, and add to a sum what fits beside its largest term. If operands are scaled by powers of two that all
// products of an element of the result have in common, and stay normal numbers, everything but that power is as it was. An E4M3 code is
// at least 2^-9 and at most 448, normal F16 is at least 2^-14 and less than 2^16: scale codes may lie F16_RANGE apart, of which the
// largest becomes 2^F16_TOP.
#pragma once

#include "segments.cuh"

constexpr int F16_TOP = 7, F16_RANGE = 12;

// Codes 0 and 1, and 2 and 3, of a word, exactly; NaN stays one.
__device__ inline void e4m3_to_f16(uint32_t codes, uint32_t &low, uint32_t &high) {
  asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %2;\ncvt.rn.f16x2.e4m3x2 %0, l;\ncvt.rn.f16x2.e4m3x2 %1, h;\n}" : "=r"(low), "=r"(high) : "r"(codes));
}

// Powers of two of four codes that `up` makes exponents, and products of a pair with one of them.
struct F16Powers {
  uint32_t pairs[2];
  F16Powers() = default;
  __device__ F16Powers(uint32_t codes, int up) {
    const uint32_t exponents = (codes + uint32_t(15 + up) * 0x01010101u) << 2;
    pairs[0] = __byte_perm(exponents, 0, 0x1404), pairs[1] = __byte_perm(exponents, 0, 0x3424);
  }
  __device__ uint32_t times(uint32_t a, int i) const {
    uint32_t product;
    if (i % 2 == 0) asm("{\n.reg .b16 l, h;\n.reg .b32 b;\nmov.b32 {l, h}, %2;\nmov.b32 b, {l, l};\nmul.rn.f16x2 %0, %1, b;\n}" : "=r"(product) : "r"(a), "r"(pairs[i / 2]));
    else asm("{\n.reg .b16 l, h;\n.reg .b32 b;\nmov.b32 {l, h}, %2;\nmov.b32 b, {h, h};\nmul.rn.f16x2 %0, %1, b;\n}" : "=r"(product) : "r"(a), "r"(pairs[i / 2]));
    return product;
  }
};
// What makes good the sum of two scale codes' distance from those of 2^0.
__device__ inline float f16_unscale(int codes) { return __uint_as_float(uint32_t(codes - 254 + 127) << 23); }

// Bits of a where the mask has ones, of b elsewhere, in one instruction.
__device__ inline uint32_t select_bits(uint32_t a, uint32_t b, uint32_t mask) {
  uint32_t bits;
  asm("lop3.b32 %0, %1, %2, %3, 0xE4;" : "=r"(bits) : "r"(a), "r"(b), "r"(mask));
  return bits;
}

// Eight E2M1 codes, times power `place` of four: pair i has elements i and i + 4. Their bits are put where they are a number too small by 2^14.
__device__ inline void e2m1_to_f16(uint32_t codes, const F16Powers &powers, int place, uint32_t (&pairs)[4]) {
  // With the sign at the end of each code, one product moves sign and magnitude to their places, and what goes elsewhere is cut off.
  const uint32_t low = codes >> 3, turned = select_bits(codes << 1, low, 0xEEEEEEEEu);
  pairs[0] = (turned & 0x000F000Fu) * 0x8100u & 0x8E008E00u;
  pairs[1] = (turned & 0x00F000F0u) * 0x0810u & 0x8E008E00u;
  pairs[2] = (turned & 0x0F000F00u) * 0x0081u & 0x8E008E00u;
  pairs[3] = (codes & 0x80008000u) | (low & 0x0E000E00u);
#pragma unroll
  for (int i = 0; i < 4; ++i) pairs[i] = powers.times(pairs[i], place);
}

// Whether rows of x under scale codes from `bottom` to `top`, at most `range` apart, and weights under such from `least` to `most`, all of
// them ordinary, are fit for it: no sum leaves the normal numbers of F32.
__device__ inline bool is_f16_enough(int top, int bottom, int range, int most, int least) {
  return top - bottom <= range && is_ordinary_x<FP8_ROW32>(bottom) && top < 255 && is_ordinary_x<FP8_ROW32>(top) && bottom + least >= 254 - 60 && top + most <= 254 + 60;
}

// Least and largest of scale codes.
struct CodeRange {
  // Of halves: the upper byte of the one counts, and all of the other.
  uint32_t least_odd = ~0u, most_odd = 0, least_even = 0x00FF00FFu, most_even = 0;
  __device__ void add(uint32_t four, uint32_t more) {
    const uint32_t even = four & 0x00FF00FFu, more_even = more & 0x00FF00FFu;
    least_odd = __vimin3_u16x2(least_odd, four, more), most_odd = __vimax3_u16x2(most_odd, four, more);
    least_even = __vimin3_u16x2(least_even, even, more_even), most_even = __vimax3_u16x2(most_even, even, more_even);
  }
  __device__ int low() const {
    const uint32_t both = __vminu2(least_even, least_odd >> 8 & 0x00FF00FFu);
    return int(min(both & 0xFFFFu, both >> 16));
  }
  __device__ int high() const {
    const uint32_t both = __vmaxu2(most_even, most_odd >> 8 & 0x00FF00FFu);
    return int(max(both & 0xFFFFu, both >> 16));
  }
};
// Of a quad of lanes together: the least and the largest.
__device__ inline int2 range_of_quad(const CodeRange &range) {
  uint32_t both = uint32_t(255 - range.low()) << 16 | uint32_t(range.high());
#pragma unroll
  for (int lanes = 1; lanes < 4; lanes *= 2) both = __vmaxu2(both, __shfl_xor_sync(0xFFFFFFFFu, both, lanes));
  return make_int2(255 - int(both >> 16), int(both & 0xFFFFu));
}
