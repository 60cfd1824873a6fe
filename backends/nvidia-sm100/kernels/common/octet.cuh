// Eight neighbours of a row at a time: 16 bytes of BF16, 32 of F32, 8 of E4M3, 4 of E2M1. The conversions are the machine's own or
// exact steps, with the bits of `encode.cuh`.
#pragma once

#include "encode.cuh"

// Bytes of eight elements.
template <int F> __host__ __device__ constexpr int octet_bytes() { return F == F32 ? 32 : F == BF16 ? 16 : F == FP8_ROW32 ? 8 : 4; }

// Where row `row` of a matrix begins, and its scales: a tensor of at most two dimensions needs no division.
template <int F> __device__ inline unsigned char *matrix_row(const View &x, int64_t row) {
  return x.data + row * x.stride[2] * octet_bytes<F>() / 8;
}
__device__ inline unsigned char *matrix_scales(const View &x, int64_t row) { return x.scale + row * x.scale_stride[2]; }

// The number of this thread's warp in the grid. The host refuses grids of more warps than 32 bits count.
__device__ inline uint32_t warp_of_grid() { return (blockIdx.x * blockDim.x + threadIdx.x) / 32; }

// Eight F32 or BF16 elements as they lie in memory.
template <int F> struct Octet {
  uint32_t word[octet_bytes<F>() / 4];

  __device__ float operator[](int i) const {
    if constexpr (F == F32) return __uint_as_float(word[i]);
    else return __uint_as_float(i % 2 ? word[i / 2] & 0xFFFF0000u : word[i / 2] << 16);
  }
};

// Whether octets of all rows lie on `bytes` and none is cut off by the end of a row. The same in all threads.
template <int F> __device__ inline bool has_whole_octets(const View &x, int bytes = 16) {
  constexpr int EIGHT = octet_bytes<F>();
  bool is_whole = reinterpret_cast<uintptr_t>(x.data) % bytes == 0 && x.columns() % 8 == 0;
#pragma unroll
  for (int d = 0; d < 3; ++d) is_whole = is_whole && x.stride[d] * EIGHT / 8 % bytes == 0 && x.stride[d] * EIGHT % 8 == 0;
  return is_whole;
}

// The octet at `from`; zeros for what is not among the `count` elements from there on. `IS_WHOLE` says that there are eight, on a
// boundary of 16 bytes, or none.
template <int F, bool IS_WHOLE> __device__ inline Octet<F> read_octet(const unsigned char *from, int count) {
  Octet<F> octet = {};
  if constexpr (IS_WHOLE) {
    if (count > 0) {
#pragma unroll
      for (int i = 0; i < octet_bytes<F>() / 16; ++i) {
        const uint4 four = reinterpret_cast<const uint4 *>(from)[i];
        octet.word[4 * i] = four.x, octet.word[4 * i + 1] = four.y, octet.word[4 * i + 2] = four.z, octet.word[4 * i + 3] = four.w;
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (i >= count) break;
      if constexpr (F == F32) octet.word[i] = reinterpret_cast<const uint32_t *>(from)[i];
      else octet.word[i / 2] |= uint32_t(reinterpret_cast<const uint16_t *>(from)[i]) << i % 2 * 16;
    }
  }
  return octet;
}

// Two F32 values as BF16, the first in the low half; to nearest even.
__device__ inline uint32_t narrow(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// The octet of eight values, each rounded once.
template <int F> __device__ inline Octet<F> octet_of(const float (&v)[8]) {
  Octet<F> octet;
#pragma unroll
  for (int i = 0; i < octet_bytes<F>() / 4; ++i) {
    if constexpr (F == F32) octet.word[i] = __float_as_uint(v[i]);
    else octet.word[i] = narrow(v[2 * i], v[2 * i + 1]);
  }
  return octet;
}

// As many of its elements as there are from `to` on.
template <int F, bool IS_WHOLE> __device__ inline void write_octet(unsigned char *to, int count, const Octet<F> &octet) {
  if constexpr (IS_WHOLE) {
    if (count > 0) {
#pragma unroll
      for (int i = 0; i < octet_bytes<F>() / 16; ++i) {
        reinterpret_cast<uint4 *>(to)[i] = make_uint4(octet.word[4 * i], octet.word[4 * i + 1], octet.word[4 * i + 2], octet.word[4 * i + 3]);
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (i >= count) break;
      if constexpr (F == F32) reinterpret_cast<uint32_t *>(to)[i] = octet.word[i];
      else reinterpret_cast<uint16_t *>(to)[i] = uint16_t(octet.word[i / 2] >> i % 2 * 16);
    }
  }
}

// The codes of eight neighbours, the first in the low bits, and their scale.
template <int F> struct Coded {
  uint32_t word[octet_bytes<F>() / 4];
  uint8_t scale;
};

// The larger of two magnitudes; a NaN is above all.
__device__ inline float larger_magnitude(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(fabsf(a)), "f"(fabsf(b)));
  return larger;
}

// a * b + c, no less than 0 and no more than 1.
__device__ inline float saturated(float a, float b, float c) {
  float result;
  asm("fma.rn.sat.f32 %0, %1, %2, %3;" : "=f"(result) : "f"(a), "f"(b), "f"(c));
  return result;
}

// An E2M1 code, in the low four bits: to nearest, ties to the even code; above 6 it is 6. Codes count steps of 1/2 up to 2, of 1 up
// to 4, and of 2 up to 6: each part is rounded by an addition to a number whose last place is 1.
__device__ inline uint32_t code_of_magnitude(float magnitude, uint32_t sign) {
  const float base = __uint_as_float(0x4B000000u | (sign >> 28 & 8));
  float code = __fmaf_rn(4.0f, saturated(magnitude, 0.5f, 0.0f), base);
  code = __fmaf_rn(2.0f, saturated(magnitude, 0.5f, -1.0f), code);
  return __float_as_uint(__fadd_rn(saturated(magnitude, 0.5f, -2.0f), code));
}

// Eight codes, each in the low four bits of a word, packed.
__device__ inline uint32_t pack_codes(const uint32_t (&code)[8]) {
  uint32_t pair[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) pair[i] = (code[2 * i] & 15) | code[2 * i + 1] << 4;
  return __byte_perm(__byte_perm(pair[0], pair[1], 0x0040), __byte_perm(pair[2], pair[3], 0x0040), 0x5410);
}

// By all lanes of a warp: lane l holds the elements 8l to 8l + 7 of whole groups. Lanes whose elements lie beyond the row take
// part with zeros; they share no group with the others.
template <int F> __device__ inline Coded<F> encode_octet(const float (&v)[8]) {
  float largest = 0.0f;
#pragma unroll
  for (int j = 0; j < 8; ++j) largest = larger_magnitude(largest, v[j]);
#pragma unroll
  for (int width = group_of<F>() / 16; width > 0; width /= 2) {
    largest = larger_magnitude(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, width));
  }
  Coded<F> coded = {{}, scale_code<F>(largest)};
  if constexpr (F == FP4_ROW16) {
    const float scale = e4m3_to_f32(coded.scale), inverse = __frcp_rn(scale);
    uint32_t code[8];
    if (coded.scale >= 0x7E) {
      // Infinities, NaNs, and what is as large.
#pragma unroll
      for (int j = 0; j < 8; ++j) code[j] = f32_to_e2m1(copysignf(__fdiv_rn(v[j], scale), v[j]));
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        // The quotient, rounded once: a scale has four bits, so that no quotient lies halfway between two F32 values.
        const float magnitude = fabsf(v[j]), near = __fmul_rn(magnitude, inverse);
        const float quotient = __fmaf_rn(__fmaf_rn(-near, scale, magnitude), inverse, near);
        code[j] = code_of_magnitude(quotient, __float_as_uint(v[j]));
      }
    }
    coded.word[0] = pack_codes(code);
    return coded;
  }
  // The reciprocal of a power of two is exact: the product has the bits of the quotient.
  const float factor = ue8m0_to_f32(coded.scale == 255 ? 255 : 254 - coded.scale);
  uint32_t signs = 0;
  if (coded.scale == 255) {
#pragma unroll
    for (int j = 0; j < 8; ++j) signs |= (__float_as_uint(v[j]) >> 31) << (F == FP8_ROW32 ? j : 4 * j + 3);
  }
  if constexpr (F == FP8_ROW32) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint16_t pair;
      asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(__fmul_rn(v[2 * i + 1], factor)), "f"(__fmul_rn(v[2 * i], factor)));
      coded.word[i / 2] |= uint32_t(pair) << i % 2 * 16;
    }
    // The sign of a NaN is the element's.
    if (coded.scale == 255) {
#pragma unroll
      for (int j = 0; j < 8; ++j) coded.word[j / 4] = (coded.word[j / 4] & ~(0x80u << j % 4 * 8)) | (signs >> j & 1) << (j % 4 * 8 + 7);
    }
  } else {
    uint32_t code[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) code[j] = code_of_magnitude(__fmul_rn(fabsf(v[j]), factor), __float_as_uint(v[j]));
    coded.word[0] = coded.scale == 255 ? 0x77777777u | signs : pack_codes(code);
  }
  return coded;
}

// d = a * b + c of two halves at once; and the same, no less than 0 and no more than 1.
__device__ inline uint32_t fma_pair(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
__device__ inline uint32_t saturated_pair(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.sat.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

// E2M1 codes of two quotients, each in the low four bits of its half, as `code_of_magnitude` finds them. As halves the quotients of
// BF16 elements are good enough: their eight bits, and the four of a scale, lie on a tie or 2^-8 away from it.
__device__ inline uint32_t code_pair(float low, float high) {
  constexpr uint32_t HALF = 0x38003800u, MINUS_1 = 0xBC00BC00u, MINUS_2 = 0xC000C000u, TWO = 0x40004000u, FOUR = 0x44004400u;
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  const uint32_t magnitude = pair & 0x7FFF7FFFu;
  // 1024, whose last place is 1, and 8 above it for a negative element.
  uint32_t code = (pair >> 12 & 0x00080008u) | 0x64006400u;
  code = fma_pair(FOUR, saturated_pair(magnitude, HALF, 0), code);
  code = fma_pair(TWO, saturated_pair(magnitude, HALF, MINUS_1), code);
  return fma_pair(0x3C003C00u, saturated_pair(magnitude, HALF, MINUS_2), code) & 0x000F000Fu;
}

// The larger of each half of two pairs of magnitudes; a NaN is above all.
__device__ inline uint32_t larger_of_pairs(uint32_t a, uint32_t b) {
  uint32_t pair;
  asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
  return pair;
}

// `encode_octet` of an octet as it was read.
template <int F, int X> __device__ inline Coded<F> encode_raw(const Octet<X> &octet) {
  if constexpr (X == BF16 && F != FP8_ROW32) {
    uint32_t magnitude[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) magnitude[i] = octet.word[i] & 0x7FFF7FFFu;
    uint32_t largest = larger_of_pairs(larger_of_pairs(magnitude[0], magnitude[1]), larger_of_pairs(magnitude[2], magnitude[3]));
#pragma unroll
    for (int width = group_of<F>() / 16; width > 0; width /= 2) {
      largest = larger_of_pairs(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, width));
    }
    Coded<F> coded = {{}, scale_code<F>(larger_magnitude(__uint_as_float(largest << 16), __uint_as_float(largest & 0xFFFF0000u)))};
    const float factor = F == FP4_ROW16 ? __frcp_rn(e4m3_to_f32(coded.scale)) : ue8m0_to_f32(254 - coded.scale);
    uint32_t pair[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) pair[i] = code_pair(__fmul_rn(octet[2 * i], factor), __fmul_rn(octet[2 * i + 1], factor));
    // Codes 0 to 3 of a pair of pairs stand in bytes 0, 2, 1, 3.
    const uint32_t near = pair[0] | pair[1] << 8, far = pair[2] | pair[3] << 8;
    coded.word[0] = __byte_perm(near | near >> 12, far | far >> 12, 0x5410);
    // What infinities and NaN leave has its own rules.
    if (coded.scale >= (F == FP4_ROW16 ? 0x7E : 255)) {
      const float scale = F == FP4_ROW16 ? e4m3_to_f32(coded.scale) : __uint_as_float(0x7FC00000u);
      coded.word[0] = 0;
#pragma unroll
      for (int j = 0; j < 8; ++j) coded.word[0] |= f32_to_e2m1(copysignf(__fdiv_rn(octet[j], scale), octet[j])) << 4 * j;
    }
    return coded;
  } else {
    float v[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = octet[j];
    return encode_octet<F>(v);
  }
}

// Two halves of a word as F32.
__device__ inline void widen_halves(uint32_t pair, float &low, float &high) {
  asm("{ .reg .b16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b; }" : "=f"(low), "=f"(high) : "r"(pair));
}

// What a reader of the codes sees. The elements are exact as halves.
template <int F> __device__ inline void decode_octet(const Coded<F> &coded, float (&v)[8]) {
  const float scale = F == FP4_ROW16 ? e4m3_to_f32(coded.scale) : ue8m0_to_f32(coded.scale);
  if constexpr (F == FP8_ROW32) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t pair;
      asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(uint16_t(coded.word[i / 2] >> i % 2 * 16)));
      widen_halves(pair, v[2 * i], v[2 * i + 1]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // Codes i and i + 4: exponent and fraction where a half has them, 2^-14 times too small.
      const uint32_t two = coded.word[0] >> 4 * i;
      uint32_t pair = (two & 0x00070007u) << 9 | (two & 0x00080008u) << 12;
      asm("mul.rn.f16x2 %0, %0, %1;" : "+r"(pair) : "r"(0x74007400u));
      widen_halves(pair, v[i], v[i + 4]);
    }
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) v[j] = __fmul_rn(v[j], scale);
}

// The codes at any address.
template <int F> __device__ inline Coded<F> read_codes(const unsigned char *from, uint8_t scale) {
  if constexpr (F == FP8_ROW32) {
    if (reinterpret_cast<uintptr_t>(from) % 8 == 0) {
      const uint2 codes = *reinterpret_cast<const uint2 *>(from);
      return {{codes.x, codes.y}, scale};
    }
    return {{load_bytes<4>(from), load_bytes<4>(from + 4)}, scale};
  } else {
    return {{load_bytes<4>(from)}, scale};
  }
}

template <int F> __device__ inline void write_codes(unsigned char *to, const Coded<F> &coded) {
  if constexpr (F == FP8_ROW32) {
    if (reinterpret_cast<uintptr_t>(to) % 8 == 0) {
      *reinterpret_cast<uint2 *>(to) = make_uint2(coded.word[0], coded.word[1]);
      return;
    }
    store_bytes<4>(to, coded.word[0]);
    store_bytes<4>(to + 4, coded.word[1]);
  } else {
    store_bytes<4>(to, coded.word[0]);
  }
}
