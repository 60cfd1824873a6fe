// The last parameter of a kernel: a struct of plain numbers in global memory, read by S.
//
// Tensors appear in it by extents and strides in elements. Formats and cache formats have the catalogue's numbers.
#pragma once

#include "kernel_operator.h"

constexpr int32_t F32 = 0, BF16 = 1, I32 = 2, I64 = 3, U8 = 4, FP8_ROW32 = 5, FP8_TILE32 = 6, FP4_ROW32 = 7, FP4_ROW16 = 8;

constexpr uint32_t CACHE_F32 = 0, CACHE_BF16 = 1, CACHE_FP8 = 2, CACHE_FP4_ROW16 = 3, CACHE_FP4_ROW32 = 4;

// A word of a struct of whatever members.
typedef uint32_t __attribute__((may_alias)) AnyWord;

// A whole number of words, from an address that is a multiple of 4.
template <class T> __aicore__ inline T read_tiling(GM_ADDR tiling) {
  static_assert(sizeof(T) % 4 == 0, "a tiling struct of whole words");
  T value;
  AnyWord *to = reinterpret_cast<AnyWord *>(&value);
  const __gm__ AnyWord *from = reinterpret_cast<const __gm__ AnyWord *>(tiling);
  for (uint32_t i = 0; i < sizeof(T) / 4; ++i) to[i] = from[i];
  return value;
}

__aicore__ inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
__aicore__ inline int64_t most(int64_t a, int64_t b) { return a < b ? b : a; }
