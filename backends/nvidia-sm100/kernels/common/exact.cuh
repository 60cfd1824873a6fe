// Operands of a product by element, in any format, and the sum that takes no account of speed.
#pragma once

#include "values.cuh"

template <int F> __host__ __device__ constexpr int bits_of() { return F == F32 ? 32 : F == BF16 ? 16 : F == FP4_ROW32 ? 4 : 8; }

// A matrix, as far as products care.
struct Matrix {
  const unsigned char *data;
  const unsigned char *scale;
  int64_t stride;
  int64_t scale_stride;
  int32_t format;
};

__device__ inline Matrix matrix_of(const View &x) { return {x.data, x.scale, x.stride[2], x.scale_stride[2], x.format}; }

template <int F> __device__ inline float scale_of(const Matrix &m, int64_t row, int64_t column) {
  return ue8m0_to_f32(m.scale[(F == FP8_TILE32 ? row / 32 : row) * m.scale_stride + column / 32]);
}

template <int F> __device__ inline float element_of(const Matrix &m, int64_t row, int64_t column) {
  const int64_t i = row * m.stride + column;
  if constexpr (F == F32) return reinterpret_cast<const float *>(m.data)[i];
  else if constexpr (F == BF16) return bf16_to_f32(reinterpret_cast<const uint16_t *>(m.data)[i]);
  else if constexpr (F == FP4_ROW32) return __fmul_rn(e2m1_to_f32(m.data[i / 2] >> (i % 2 * 4) & 15), scale_of<F>(m, row, column));
  else return __fmul_rn(e4m3_to_f32(m.data[i]), scale_of<F>(m, row, column));
}

// A row of x, from a column on, times a row of the weights: one chain in F64, in ascending order.
template <int X, int W>
__device__ __forceinline__ float exact_dot(const Matrix &x, int64_t row, int64_t column, const Matrix &w, int64_t output, int64_t columns) {
  double sum = 0;
  for (int64_t k = 0; k < columns; ++k) sum = __fma_rn(double(element_of<X>(x, row, column + k)), double(element_of<W>(w, output, k)), sum);
  return float(sum);
}
