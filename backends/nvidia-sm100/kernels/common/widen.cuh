// Codes of FP8 and FP4 as pairs of BF16 values. A pair is what stands 16 bits apart in a word of codes, which costs the fewest steps.
//
// The bits of a code are moved to where they are a BF16 number that is too small by a power of two; the product with the scale, which
// contains that power, is exact.
#pragma once

#include <cuda_bf16.h>

#include "values.cuh"

__device__ inline uint32_t multiply_pairs(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

// The factor for both elements of a pair that stand under scale code number `i` of a word, where the format is ordinary.
template <int F> __device__ inline uint32_t factor_of(uint32_t codes, int i) {
  const uint32_t twice = __byte_perm(codes, 0, 0x4040 | i << 8 | i);
  return twice * 128u + (F == FP4_ROW32 ? 126u : 120u) * 0x00800080u;
}

// Larger of the magnitudes of E4M3 codes, by their bits, in each half.
__device__ inline uint32_t largest_of(uint32_t a, uint32_t b, uint32_t c) { return __vimax3_u16x2(a, b, c); }

// Four E4M3 codes: elements 0 and 2, and 1 and 3. `largest` collects their magnitudes.
__device__ inline void widen_e4m3(uint32_t codes, uint32_t factor, uint32_t &even, uint32_t &odd, uint32_t &largest) {
  const uint32_t a = codes << 4 & 0x07F007F0u, b = codes >> 4 & 0x07F007F0u;
  largest = largest_of(a, b, largest);
  even = multiply_pairs(a | (codes << 8 & 0x80008000u), factor);
  odd = multiply_pairs(b | (codes & 0x80008000u), factor);
}
__device__ inline bool has_nan(uint32_t largest) { return (largest & 0xFFFFu) == 0x07F0u || largest >> 16 == 0x07F0u; }

// Eight E2M1 codes: pair i has elements i and i + 4.
__device__ inline void widen_e2m1(uint32_t codes, uint32_t factor, uint32_t (&pairs)[4]) {
  const uint32_t high = codes >> 8;
  // Sign and magnitude go to their places in one product, and what goes elsewhere is cut off.
  pairs[0] = (codes & 0x000F000Fu) * 0x1040u & 0x81C081C0u;
  pairs[1] = (codes & 0x00F000F0u) * 0x0104u & 0x81C081C0u;
  pairs[2] = (high & 0x000F000Fu) * 0x1040u & 0x81C081C0u;
  pairs[3] = (high & 0x00F000F0u) * 0x0104u & 0x81C081C0u;
#pragma unroll
  for (int i = 0; i < 4; ++i) pairs[i] = multiply_pairs(pairs[i], factor);
}
