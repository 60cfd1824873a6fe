// Cache entries as operands of matrix instructions: pairs of BF16 values in registers, decoded with a few integer
// operations and two exact products a pair.
//
// An E2M1 or E4M3 code is put where BF16 has its exponent and mantissa, which makes it too small by a power of two, and is
// multiplied by that power; codes that are subnormal become right as well. The product with the scale has at most six
// significant bits, so that BF16 holds it.
#pragma once

#include <cstdint>

__device__ inline uint32_t pick(uint32_t a, uint32_t b, uint32_t bytes) { return __byte_perm(a, b, bytes); }

__device__ inline uint32_t multiply_pair(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

// The low half is `low`; to nearest even.
__device__ inline uint32_t round_pair(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

constexpr uint32_t SIGNS = 0x80008000u;
// 2^126 and 2^120 as pairs of BF16.
constexpr uint32_t FROM_E2M1 = 0x7E807E80u, FROM_E4M3 = 0x7B807B80u;

// Four E2M1 codes in each half: pair j has code j of both, times the pair of scales.
__device__ inline void unpack_e2m1(uint32_t codes, uint32_t scales, uint32_t (&pairs)[4]) {
  const uint32_t magnitudes[4] = {codes << 6, codes << 2, codes >> 2, codes >> 6};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const uint32_t placed = (magnitudes[j] & 0x01C001C0u) | (codes << (12 - 4 * j) & SIGNS);
    pairs[j] = multiply_pair(multiply_pair(placed, FROM_E2M1), scales);
  }
}

// An E4M3 code in the upper byte of each half, not yet multiplied by 2^120.
__device__ inline uint32_t place_e4m3(uint32_t codes) { return (codes >> 4 & 0x07F007F0u) | (codes & SIGNS); }

// Four E4M3 codes in each word: pair j has code j of both, times the pair of scales.
__device__ inline void unpack_e4m3(uint32_t low, uint32_t high, uint32_t scales, uint32_t (&pairs)[4]) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const uint32_t codes = pick(low, high, j | j << 4 | (4 + j) << 8 | (4 + j) << 12);
    pairs[j] = multiply_pair(multiply_pair(place_e4m3(codes), FROM_E4M3), scales);
  }
}

// Two E4M3 codes, the low bytes of their words, as a pair of scales.
__device__ inline uint32_t scales_e4m3(uint32_t low, uint32_t high) { return multiply_pair(place_e4m3(pick(low, high, 0x4400)), FROM_E4M3); }

// Two UE8M0 codes likewise: 2^(code - 127).
__device__ inline uint32_t scales_ue8m0(uint32_t low, uint32_t high) { return max(low << 7, 0x40u) | max(high << 7, 0x40u) << 16; }

// Bit 7 of each byte is set where it is a NaN of E4M3; other bits mean nothing.
__device__ inline uint32_t nans_of_e4m3(uint32_t codes) { return (codes & 0x7F7F7F7Fu) + 0x01010101u; }
