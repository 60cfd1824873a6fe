// Sixteen neighbours of a BF16 row in a lane, encoded: half of a group of 32, or a group of 16. The codes have the bits of
// `encode.cuh`; beside it a scale is found once for sixteen elements, and elements are rounded two at a time.
#pragma once

#include "octet.cuh"

// Sixteen elements as they lie in memory.
struct Sixteen {
  uint4 low, high;

  // Elements 2i and 2i + 1.
  __device__ uint32_t pair(int i) const {
    const uint4 &four = i < 4 ? low : high;
    return i % 4 == 0 ? four.x : i % 4 == 1 ? four.y : i % 4 == 2 ? four.z : four.w;
  }
  __device__ float operator[](int i) const { return __uint_as_float(i % 2 ? pair(i / 2) & 0xFFFF0000u : pair(i / 2) << 16); }
};

// The codes of sixteen neighbours, the first in the low bits, and the scale of their group.
template <int F> struct CodedSixteen {
  static constexpr int WORDS = octet_bytes<F>() / 2;
  uint32_t word[WORDS];
  uint8_t scale;
};

// The larger magnitude of each half, with some sign; a NaN is above all.
__device__ inline uint32_t larger_pair_magnitude(uint32_t a, uint32_t b) {
  uint32_t pair;
  asm("max.NaN.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
  return pair;
}

// The largest magnitude of a group, of which a lane has sixteen, and its neighbour the rest if there are more. By whole warps.
template <int GROUP> __device__ inline float largest_of_group(const Sixteen &x) {
  uint32_t largest[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) largest[i] = larger_pair_magnitude(x.pair(i), x.pair(i + 4));
  uint32_t pair = larger_pair_magnitude(larger_pair_magnitude(largest[0], largest[1]), larger_pair_magnitude(largest[2], largest[3]));
  if constexpr (GROUP == 32) pair = larger_pair_magnitude(pair, __shfl_xor_sync(0xFFFFFFFFu, pair, 1));
  return larger_magnitude(__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000u));
}

// Two F32 values as E4M3, the first in the low half; beyond 448 it is 448, a NaN 0x7F.
__device__ inline uint32_t e4m3_pair(float low, float high) {
  uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
}

__device__ inline uint32_t product_of_pairs(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

// The bits of `a` where the mask has ones, those of `b` elsewhere, in one instruction.
__device__ inline uint32_t select_bits(uint32_t mask, uint32_t a, uint32_t b) {
  uint32_t bits;
  asm("lop3.b32 %0, %1, %2, %3, 0xCA;" : "=r"(bits) : "r"(mask), "r"(a), "r"(b));
  return bits;
}

// E2M1 codes of four pairs of quotients times 2^-14, the quotients no more than 6: elements i and i + 4 of eight in pair i. As halves
// they have the exponent and the fraction of their codes where halves have them, and what is below is rounded to nearest even. Halves
// are good enough: the eight bits of a BF16 element, and the four of a scale, lie on a tie or 2^-8 away from it.
__device__ inline uint32_t e2m1_codes(const uint32_t (&pair)[4]) {
  constexpr uint32_t CODE = 0x0E000E00u, NIBBLE = 0x1E001E00u;
  uint32_t nibble[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t rounded = pair[i] + 0x00FF00FFu + (pair[i] >> 9 & 0x00010001u);
    nibble[i] = select_bits(CODE, rounded, rounded >> 3);
  }
  const uint32_t near = select_bits(NIBBLE, nibble[1], nibble[0] >> 4), far = select_bits(NIBBLE, nibble[3], nibble[2] >> 4);
  return select_bits(0x00FF00FFu, near >> 5, far << 3);
}

__device__ inline uint32_t halves_of(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// Quotients times 2^-14.
__device__ inline uint32_t no_more_than_6(uint32_t pair) {
  constexpr uint32_t SIX = 0x0E000E00u;
  asm("min.f16x2 %0, %0, %1;" : "+r"(pair) : "r"(SIX));
  asm("max.f16x2 %0, %0, %1;" : "+r"(pair) : "r"(SIX | 0x80008000u));
  return pair;
}

// What a scale of NaN, or the largest E4M3 scale, leaves of element `x`.
template <int F> __device__ inline uint32_t special_code(float x, uint8_t scale) {
  const bool is_nan = scale == (F == FP4_ROW16 ? 0x7F : 255);
  if constexpr (F == FP8_ROW32) return 0x7F | (__float_as_uint(x) >> 24 & 0x80);
  else return is_nan ? 7 | (__float_as_uint(x) >> 28 & 8) : f32_to_e2m1(copysignf(__fdiv_rn(x, e4m3_to_f32(scale)), x));
}

// By whole warps: lane l holds the elements 16 l to 16 l + 15 of whole groups, which lie at `from`.
template <int F> __device__ inline CodedSixteen<F> encode_sixteen(const Sixteen &x, const unsigned char *from) {
  const float largest = largest_of_group<group_of<F>()>(x);
  CodedSixteen<F> coded;
  bool is_special;
  if constexpr (F == FP4_ROW16) {
    const uint32_t scale = e4m3_pair(__fmul_rn(at_least(largest, 6.0f / 512.0f), 1.0f / 6.0f), 0.0f) & 0x7F;
    float divisor, zero, inverse;
    uint32_t halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(uint16_t(scale)));
    widen_halves(halves, divisor, zero);
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(divisor));
    coded.scale = uint8_t(scale), is_special = scale >= 0x7E;
    const float factor = inverse * 0x1p-14f;
#pragma unroll
    for (int o = 0; o < 2; ++o) {
      uint32_t pair[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) pair[i] = halves_of(__fmul_rn(x[8 * o + i], factor), __fmul_rn(x[8 * o + i + 4], factor));
      // Scales of less than 2^-7 may be so much rounded that a quotient is 7 or more.
      if (scale < 4) {
#pragma unroll
        for (int i = 0; i < 4; ++i) pair[i] = no_more_than_6(pair[i]);
      }
      coded.word[o] = e2m1_codes(pair);
    }
  } else {
    const uint32_t scale = scale_code<F>(largest);
    coded.scale = uint8_t(scale), is_special = scale == 255;
    if constexpr (F == FP8_ROW32) {
      // The scale is at least 2^-22. A product that is no normal BF16 value is zero as a code, rounded or not.
      const uint32_t factor = (254 - scale) << 7, factors = factor | factor << 16;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t low = product_of_pairs(x.pair(2 * i), factors), high = product_of_pairs(x.pair(2 * i + 1), factors);
        coded.word[i] = e4m3_pair(__uint_as_float(low << 16), __uint_as_float(low & 0xFFFF0000u)) |
                        e4m3_pair(__uint_as_float(high << 16), __uint_as_float(high & 0xFFFF0000u)) << 16;
      }
    } else {
      // 2^-14 / scale; the scale is at least 2^-126, and beyond 2^112 the factor is subnormal.
      const float factor = __fmul_rn(ue8m0_to_f32(254 - scale), 0x1p-14f);
#pragma unroll
      for (int o = 0; o < 2; ++o) {
        uint32_t pair[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) pair[i] = halves_of(__fmul_rn(x[8 * o + i], factor), __fmul_rn(x[8 * o + i + 4], factor));
        coded.word[o] = e2m1_codes(pair);
      }
    }
  }
  if (is_special) {
    constexpr int BITS = octet_bytes<F>(), CODES = 32 / BITS;
    uint32_t word = 0;
#pragma unroll 1
    for (int j = 0; j < 16; ++j) {
      const float element = bf16_to_f32(reinterpret_cast<const uint16_t *>(from)[j]);
      word = word >> BITS | special_code<F>(element, coded.scale) << (32 - BITS);
#pragma unroll
      for (int w = 0; w < CodedSixteen<F>::WORDS; ++w) if (j == (w + 1) * CODES - 1) coded.word[w] = word;
    }
  }
  return coded;
}

// The codes at any address.
template <int F> __device__ inline void write_sixteen(unsigned char *to, const CodedSixteen<F> &coded) {
  if constexpr (F == FP8_ROW32) {
    if (lies_on(to, 16)) {
      *reinterpret_cast<uint4 *>(to) = make_uint4(coded.word[0], coded.word[1], coded.word[2], coded.word[3]);
      return;
    }
  } else {
    if (lies_on(to, 8)) {
      *reinterpret_cast<uint2 *>(to) = make_uint2(coded.word[0], coded.word[1]);
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < CodedSixteen<F>::WORDS; ++i) store_bytes<4>(to + 4 * i, coded.word[i]);
}

// Octet `o` of the two.
template <int F> __device__ inline Coded<F> octet_of(const CodedSixteen<F> &coded, int o) {
  Coded<F> octet;
  octet.scale = coded.scale;
#pragma unroll
  for (int i = 0; i < octet_bytes<F>() / 4; ++i) octet.word[i] = coded.word[o * (octet_bytes<F>() / 4) + i];
  return octet;
}
