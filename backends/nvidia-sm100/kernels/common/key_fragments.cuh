// Keys of a paged cache as bfloat16 operands in registers, and queries as the tile that they are multiplied with.
//
// Every value of an FP8, FP4 or BF16 row is a bfloat16 number, its scale included (but for E4M3 values below 2^-133): nothing is rounded.
// A sum over channels is taken in an order that suits the codes: lane t of four takes channels 32 t to 32 t + 31, which are the codes
// under one scale, in pairs of channels 8 w + i and 8 w + i + 4, pair 4 w + i.
#pragma once

#include "cache_read.cuh"
#include "key_products.cuh"

// Words of the codes of 32 channels; bytes of the values of a key and of its scales.
template <int C> __host__ __device__ constexpr int words_of() { return C == CACHE_BF16 ? 16 : C == CACHE_FP8 ? 8 : 4; }
template <int C> __host__ __device__ constexpr int value_bytes() { return 16 * words_of<C>(); }
template <int C> __host__ __device__ constexpr int scale_bytes() { return C == CACHE_BF16 ? 0 : C == CACHE_FP4_ROW16 ? 8 : 4; }

// The codes of 32 channels, and their scales, one or two, in the low bytes.
template <int C> struct Codes {
  uint32_t words[words_of<C>()];
  uint32_t scale;
};

// Those at an address, which is a multiple of 16 if `is_on_16`.
template <int C> __device__ inline void load_codes(const unsigned char *values, const unsigned char *scales, bool is_on_16, Codes<C> &codes) {
  constexpr int WORDS = words_of<C>();
  if (is_on_16) {
#pragma unroll
    for (int i = 0; i < WORDS / 4; ++i) {
      const uint4 four = __ldg(reinterpret_cast<const uint4 *>(values) + i);
      codes.words[4 * i] = four.x, codes.words[4 * i + 1] = four.y, codes.words[4 * i + 2] = four.z, codes.words[4 * i + 3] = four.w;
    }
  } else {
#pragma unroll
    for (int i = 0; i < WORDS; ++i) codes.words[i] = load_bytes<4>(values + 4 * i);
  }
  if constexpr (C == CACHE_FP4_ROW16) codes.scale = load_bytes<2>(scales);
  else if constexpr (C != CACHE_BF16) codes.scale = __ldg(scales);
}

__device__ inline uint32_t both(uint32_t half) { return half * 0x10001u; }

__device__ inline uint32_t multiply_pair(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

// Pair i of eight E2M1 codes in its places of two bfloat16 numbers: the values times 2^-126.
__device__ inline uint32_t place_e2m1(uint32_t word, int i) {
  const uint32_t from = i < 2 ? word : word >> 8;
  // The code moves to the sign and, once more, to the lowest exponent bits.
  return (i % 2 == 0 ? (from & 0x000F000Fu) * 0x1040u : (from & 0x00F000F0u) * 0x104u) & 0x81C081C0u;
}

// By whole warps.
template <int C> __device__ inline void widen(const Codes<C> &codes, uint32_t (&pairs)[PAIRS]) {
  if constexpr (C == CACHE_FP4_ROW32) {
    // 2^126 times the scale in one factor, or two beyond 2^127.
    const uint32_t code = codes.scale;
    const bool is_far = code > 128;
    const uint32_t factor = both(code == 255 ? 0x7FC0u : (is_far ? 254u : code + 126u) << 7);
#pragma unroll
    for (int p = 0; p < PAIRS; ++p) pairs[p] = multiply_pair(place_e2m1(codes.words[p / 4], p % 4), factor);
    if (__any_sync(0xFFFFFFFFu, is_far)) {
      const uint32_t rest = both(is_far && code != 255 ? (code - 1) << 7 : 0x3F80u);
#pragma unroll
      for (int p = 0; p < PAIRS; ++p) pairs[p] = multiply_pair(pairs[p], rest);
    }
  } else if constexpr (C == CACHE_FP4_ROW16) {
#pragma unroll
    for (int p = 0; p < PAIRS; ++p) {
      const uint32_t factor = both(__float_as_uint(e4m3_to_f32(codes.scale >> (p / 8 * 8) & 255)) >> 16);
      const uint32_t value = multiply_pair(place_e2m1(codes.words[p / 4], p % 4), both(253u << 7));
      pairs[p] = multiply_pair(value, factor);
    }
  } else if constexpr (C == CACHE_FP8) {
    const float scale = ue8m0_to_f32(codes.scale);
#pragma unroll
    for (int p = 0; p < PAIRS; ++p) {
      const uint32_t low = codes.words[p / 4 * 2] >> (p % 4 * 8) & 255, high = codes.words[p / 4 * 2 + 1] >> (p % 4 * 8) & 255;
      const uint32_t x = __float_as_uint(__fmul_rn(e4m3_to_f32(low), scale)), y = __float_as_uint(__fmul_rn(e4m3_to_f32(high), scale));
      pairs[p] = __byte_perm(x, y, 0x7632);
    }
  } else {
#pragma unroll
    for (int p = 0; p < PAIRS; ++p) {
      const int w = p / 4 * 4 + p % 4 / 2;
      pairs[p] = __byte_perm(codes.words[w], codes.words[w + 2], p % 2 == 0 ? 0x5410 : 0x7632);
    }
  }
}

// Writes the pairs of group `t` of row `row` into a tile with halves of `half` bytes. Lanes of a warp that have four groups of eight rows
// each write to all banks at once.
__device__ inline void store_pairs(unsigned char *tile, uint32_t half, uint32_t row, uint32_t t, const uint32_t (&pairs)[PAIRS]) {
#pragma unroll
  for (uint32_t p = 0; p < PAIRS; ++p) {
    *reinterpret_cast<uint32_t *>(tile + p / 8 * half + tile_byte(row, p % 8) + t * 4) = pairs[p];
  }
}
