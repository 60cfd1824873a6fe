// Products of rows with transposed weights: a warp makes a tile of a few rows by four outputs.
//
// Lane l adds, in F64, the products of columns 4l to 4l + 3, then of those 128 further on, and so forth; the 32 sums of an
// element are added in a tree over neighbours. That order follows from the number of columns alone: neither the rows of the
// tile nor those of the call enter it. A product of two F32 values is exact in F64.
#pragma once

#include "exact.cuh"

constexpr int OUTPUTS = 4;
constexpr int MOST_ROWS = 4;

// A matrix of a known format, from some column on.
template <int F> struct Operand {
  Matrix matrix;
  int64_t column;
  // Whether four columns lie side by side on their natural boundary and under one scale, in every row.
  bool is_wide;

  __device__ Operand(const Matrix &m, int64_t first_column) : matrix(m), column(first_column) {
    is_wide = (reinterpret_cast<uintptr_t>(m.data) * 2) % bits_of<F>() == 0 && m.stride % 4 == 0 && column % 4 == 0;
  }

  // Columns k to k + 3; zeros beyond `columns`.
  __device__ void load(int64_t row, int64_t k, int64_t columns, float (&v)[4]) const {
    const int64_t at = column + k;
    if (!is_wide || k + 4 > columns) {
#pragma unroll
      for (int j = 0; j < 4; ++j) v[j] = k + j < columns ? element_of<F>(matrix, row, at + j) : 0.0f;
      return;
    }
    const unsigned char *from = matrix.data + (row * matrix.stride + at) * bits_of<F>() / 8;
    if constexpr (F == F32) {
      const float4 four = *reinterpret_cast<const float4 *>(from);
      v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
    } else if constexpr (F == BF16) {
      const uint2 four = *reinterpret_cast<const uint2 *>(from);
      v[0] = __uint_as_float(four.x << 16), v[1] = __uint_as_float(four.x & 0xFFFF0000u);
      v[2] = __uint_as_float(four.y << 16), v[3] = __uint_as_float(four.y & 0xFFFF0000u);
    } else if constexpr (F == FP4_ROW32) {
      const uint32_t four = *reinterpret_cast<const uint16_t *>(from);
      const float factor = scale_of<F>(matrix, row, at);
#pragma unroll
      for (int j = 0; j < 4; ++j) v[j] = __fmul_rn(e2m1_to_f32(four >> 4 * j & 15), factor);
    } else {
      const uint32_t four = *reinterpret_cast<const uint32_t *>(from);
      const float factor = scale_of<F>(matrix, row, at);
#pragma unroll
      for (int j = 0; j < 4; ++j) v[j] = __fmul_rn(e4m3_to_f32(four >> 8 * j & 255), factor);
    }
  }
};

// What a warp computes: rows of x, from a column on, times rows of the weights.
struct Tile {
  int64_t row, x_column, columns, output, out_column;
  int rows, outputs;
};

template <int X, int W, int R> __device__ void multiply_as(const Matrix &x_matrix, const Matrix &w_matrix, const Tile &t, const View &out) {
  const Operand<X> x(x_matrix, t.x_column);
  const Operand<W> w(w_matrix, 0);
  const int lane = threadIdx.x % 32;
  double sums[R][OUTPUTS] = {};
  for (int64_t k = 4 * lane; k < t.columns; k += 128) {
    float a[R][4], b[OUTPUTS][4];
    // Rows beyond the tile repeat its last one.
#pragma unroll
    for (int c = 0; c < OUTPUTS; ++c) w.load(t.output + min(c, t.outputs - 1), k, t.columns, b[c]);
#pragma unroll
    for (int r = 0; r < R; ++r) x.load(t.row + min(r, t.rows - 1), k, t.columns, a[r]);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int r = 0; r < R; ++r) {
#pragma unroll
        for (int c = 0; c < OUTPUTS; ++c) sums[r][c] = __fma_rn(double(a[r][j]), double(b[c][j]), sums[r][c]);
      }
    }
  }
  double mine = 0;
#pragma unroll
  for (int r = 0; r < R; ++r) {
#pragma unroll
    for (int c = 0; c < OUTPUTS; ++c) {
      double sum = sums[r][c];
      for (int width = 16; width > 0; width /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, width);
      if (lane == r * OUTPUTS + c) mine = sum;
    }
  }
  const int r = lane / OUTPUTS, c = lane % OUTPUTS;
  if (r < t.rows && c < t.outputs) store_float(out, t.row + r, t.out_column + c, float(mine));
}

template <int X, int W> __device__ void multiply_rows(const Matrix &x, const Matrix &w, const Tile &t, const View &out) {
  if (t.rows == 1) multiply_as<X, W, 1>(x, w, t, out);
  else multiply_as<X, W, MOST_ROWS>(x, w, t, out);
}

template <int X> __device__ void multiply_by(const Matrix &x, const Matrix &w, const Tile &t, const View &out) {
  switch (w.format) {
  case F32: return multiply_rows<X, F32>(x, w, t, out);
  case BF16: return multiply_rows<X, BF16>(x, w, t, out);
  case FP8_TILE32: return multiply_rows<X, FP8_TILE32>(x, w, t, out);
  case FP4_ROW32: return multiply_rows<X, FP4_ROW32>(x, w, t, out);
  }
}

// By a whole warp; 1 to MOST_ROWS rows and 1 to OUTPUTS outputs.
__device__ inline void multiply(const Matrix &x, const Matrix &w, const Tile &t, const View &out) {
  switch (x.format) {
  case F32: return multiply_by<F32>(x, w, t, out);
  case BF16: return multiply_by<BF16>(x, w, t, out);
  case FP8_ROW32: return multiply_by<FP8_ROW32>(x, w, t, out);
  }
}
