// Narrow operands as BF16 rows in scratch memory, and which of their rows BF16 does not hold.
//
// Bytes: the operand once, twice its elements out. An element times its scale is exact in BF16 where the scale is ordinary.
#pragma once

#include "segments.cuh"
#include "values.cuh"

// Which column of a run of 32 stands at each place of it.
enum ColumnOrder : int32_t {
  // As it is.
  NATURAL = 0,
  // Of each sixteen, places 2i, 2i + 1, 2i + 8, 2i + 9 have columns 4i, 4i + 2, 4i + 1, 4i + 3: what `widen_e4m3` makes of four codes.
  BY_FOUR = 1,
  // The sixteen columns {0, 1, 4, 5} of each eight, then the sixteen {2, 3, 6, 7}, which are the sets of products with FP4 weights.
  // Of each, places 2i, 2i + 1, 2i + 8, 2i + 9 have columns 8i, 8i + 4, 8i + 1, 8i + 5 (and two further on): what `widen_e2m1` makes.
  BY_EIGHT = 2,
};

__device__ inline int column_at(int order, int place) {
  if (order == BY_FOUR) return place / 16 * 16 + place % 8 / 2 * 4 + place % 2 * 2 + place / 8 % 2;
  if (order == BY_EIGHT) return place % 8 / 2 * 8 + place / 16 * 2 + place / 8 % 2 + place % 2 * 4;
  return place;
}

// What becomes of an operand. `to` is null if it stays as it is, `flags` if it has no scales.
struct Widening {
  uint16_t *to;
  // Per row of scales and group: whether one among the columns of the group is not ordinary.
  uint8_t *flags;
  // Columns of a group, and places for them: a multiple of 32, zeros behind the last column.
  int64_t columns, places;
  // Groups side by side in a row.
  int32_t groups;
  int32_t order;
};

// Two values, rounded; the first in the low half.
__device__ inline uint32_t pack_bf16(float low, float high) {
  uint32_t two;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
  return two;
}

// Four FP8 elements times their scale.
__device__ inline void widen_four(uint32_t four, float scale, uint32_t &low, uint32_t &high) {
  uint32_t a, b;
  asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %2;\ncvt.rn.f16x2.e4m3x2 %0, l;\ncvt.rn.f16x2.e4m3x2 %1, h;\n}" : "=r"(a), "=r"(b) : "r"(four));
  float v[4];
  asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %2;\ncvt.f32.f16 %0, l;\ncvt.f32.f16 %1, h;\n}" : "=f"(v[0]), "=f"(v[1]) : "r"(a));
  asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %2;\ncvt.f32.f16 %0, l;\ncvt.f32.f16 %1, h;\n}" : "=f"(v[2]), "=f"(v[3]) : "r"(b));
  low = pack_bf16(__fmul_rn(v[0], scale), __fmul_rn(v[1], scale)), high = pack_bf16(__fmul_rn(v[2], scale), __fmul_rn(v[3], scale));
}

// Rows that share their scales.
__device__ inline int64_t rows_of_scales(const View &x) { return x.format == FP8_TILE32 ? 32 : 1; }

__device__ inline uint16_t widened(const View &x, int64_t row, int64_t column) {
  const int64_t at = row * x.stride[2] + column;
  if (x.format == BF16) return reinterpret_cast<const uint16_t *>(x.data)[at];
  const float scale = ue8m0_to_f32(x.scale[row / rows_of_scales(x) * x.scale_stride[2] + column / 32]);
  const float element = x.format == FP4_ROW32 ? e2m1_to_f32(x.data[at / 2] >> at % 2 * 4 & 15) : e4m3_to_f32(x.data[at]);
  return f32_to_bf16(__fmul_rn(element, scale));
}

// Sixteen places from `place` on, behind column `first`, as the order has them: of FP8 and BF16 rows on natural boundaries.
__device__ inline void widen_sixteen(const View &x, int order, int64_t row, int64_t first, int64_t place, const unsigned char *from, uint32_t (&words)[8]) {
  const uint4 *units = reinterpret_cast<const uint4 *>(from);
  const int set = int(place / 16 % 2);
  if (x.format == BF16) {
    if (order != BY_EIGHT) {
      const uint4 low = units[0], high = units[1];
      const uint32_t pairs[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int i = 0; i < 8; ++i) words[i] = order == NATURAL ? pairs[i] : __byte_perm(pairs[i % 4 * 2], pairs[i % 4 * 2 + 1], i < 4 ? 0x5410 : 0x7632);
      return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4 eight = units[i - 2 * set];
      const uint32_t first = set == 0 ? eight.x : eight.y, second = set == 0 ? eight.z : eight.w;
      words[i] = __byte_perm(first, second, 0x5410), words[i + 4] = __byte_perm(first, second, 0x7632);
    }
    return;
  }
  const float scale = ue8m0_to_f32(x.scale[row / rows_of_scales(x) * x.scale_stride[2] + (first + place) / 32]);
  if (order != BY_EIGHT) {
    const uint4 codes = units[0];
    const uint32_t fours[4] = {codes.x, codes.y, codes.z, codes.w};
    // Even columns and odd ones, where the order wants them so.
    uint32_t low[4], high[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) widen_four(order == NATURAL ? fours[i] : __byte_perm(fours[i], 0, 0x3120), scale, low[i], high[i]);
#pragma unroll
    for (int i = 0; i < 8; ++i) words[i] = order == NATURAL ? (i % 2 == 0 ? low[i / 2] : high[i / 2]) : i < 4 ? low[i % 4] : high[i % 4];
    return;
  }
  const uint4 low = units[-set], high = units[1 - set];
  const uint32_t fours[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) widen_four(__byte_perm(fours[2 * i], fours[2 * i + 1], set == 0 ? 0x5140 : 0x7362), scale, words[i], words[i + 4]);
}

// The same, of any row.
__device__ inline void widen_each(const View &x, const Widening &w, int64_t row, int64_t group, int64_t place, uint32_t (&words)[8]) {
#pragma unroll 1
  for (int i = 0; i < 8; ++i) {
    uint32_t pair = 0;
    for (int j = 0; j < 2; ++j) {
      const int64_t column = place / 32 * 32 + column_at(w.order, int(place % 32) + i * 2 + j);
      if (column < w.columns) pair |= uint32_t(widened(x, row, group * w.columns + column)) << 16 * j;
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) if (j == i) words[j] = pair;
  }
}

__device__ inline bool is_ordinary(int format, uint8_t code) {
  if (format == FP8_ROW32) return is_ordinary_x<FP8_ROW32>(code);
  return format == FP8_TILE32 ? is_ordinary_weight<FP8_TILE32>(code) : is_ordinary_weight<FP4_ROW32>(code);
}

// By a whole block: a row of the operand, and its scales if they begin with it.
__device__ inline void widen_row(const View &x, const Widening &w, int64_t row) {
  for (int64_t group = 0; group < w.groups; ++group) {
    if (w.to != nullptr) {
      uint16_t *to = w.to + (row * w.groups + group) * w.places;
      const int bytes = x.format == BF16 ? 2 : 1;
      const unsigned char *from = x.data + (row * x.stride[2] + group * w.columns) * bytes;
      const bool is_even = x.format != FP4_ROW32 && reinterpret_cast<uintptr_t>(from) % 16 == 0 && (x.format == BF16 || group * w.columns % 32 == 0);
      for (int64_t place = threadIdx.x * 16; place < w.places; place += blockDim.x * 16) {
        uint32_t words[8];
        if (is_even && place / 32 * 32 + 32 <= w.columns) widen_sixteen(x, w.order, row, group * w.columns, place, from + place * bytes, words);
        else widen_each(x, w, row, group, place, words);
        uint4 *units = reinterpret_cast<uint4 *>(to + place);
        units[0] = make_uint4(words[0], words[1], words[2], words[3]), units[1] = make_uint4(words[4], words[5], words[6], words[7]);
      }
    }
    const int64_t shared = rows_of_scales(x);
    if (w.flags == nullptr || row % shared != 0) continue;
    const uint8_t *scales = x.scale + row / shared * x.scale_stride[2];
    bool is_odd = false;
    for (int64_t at = group * w.columns / 32 + threadIdx.x; at * 32 < (group + 1) * w.columns; at += blockDim.x) is_odd |= !is_ordinary(x.format, scales[at]);
    is_odd = __syncthreads_or(is_odd);
    if (threadIdx.x == 0) w.flags[row / shared * w.groups + group] = is_odd;
  }
}
