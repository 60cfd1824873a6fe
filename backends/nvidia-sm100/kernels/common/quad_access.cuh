// Four neighbours of a plain row at a time, for rows that are alike: the format and whether every quad lies whole on its boundary are
// known when the code is compiled, so that several reads are on their way at once.
#pragma once

#include "quad.cuh"

// F32 rows of whole quads.
struct WideF32 {
  static __device__ void load(const PlainRow &row, int64_t column, float (&v)[4]) {
    const float4 four = *reinterpret_cast<const float4 *>(row.data + column * 4);
    v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
  }
  static __device__ void store(const PlainRow &row, int64_t column, const float (&v)[4]) {
    *reinterpret_cast<float4 *>(row.data + column * 4) = make_float4(v[0], v[1], v[2], v[3]);
  }
};

// BF16 rows of whole quads.
struct WideBf16 {
  static __device__ void load(const PlainRow &row, int64_t column, float (&v)[4]) {
    const uint2 four = *reinterpret_cast<const uint2 *>(row.data + column * 2);
    v[0] = __uint_as_float(four.x << 16), v[1] = __uint_as_float(four.x & 0xFFFF0000u);
    v[2] = __uint_as_float(four.y << 16), v[3] = __uint_as_float(four.y & 0xFFFF0000u);
  }
  static __device__ void store(const PlainRow &row, int64_t column, const float (&v)[4]) {
    uint32_t n[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) n[j] = f32_to_bf16(v[j]);
    *reinterpret_cast<uint2 *>(row.data + column * 2) = make_uint2(n[0] | n[1] << 16, n[2] | n[3] << 16);
  }
};

// Any rows.
struct AnyQuad {
  static __device__ void load(const PlainRow &row, int64_t column, float (&v)[4]) { load_quad(row, column, v); }
  static __device__ void store(const PlainRow &row, int64_t column, const float (&v)[4]) { store_quad(row, column, v); }
};

// Products and sums of either width, each rounded once.
__device__ inline float mul_of(float a, float b) { return __fmul_rn(a, b); }
__device__ inline double mul_of(double a, double b) { return __dmul_rn(a, b); }
__device__ inline float fma_of(float a, float b, float c) { return __fmaf_rn(a, b, c); }
__device__ inline double fma_of(double a, double b, double c) { return __fma_rn(a, b, c); }

// Whether the rows of a tensor of rank 2 or 3 are wide.
__device__ inline bool are_rows_wide(const View &x) {
  const int bytes = x.format == F32 ? 4 : 2;
  return lies_on(x.data, 4 * bytes) && x.columns() % 4 == 0 && x.stride[1] % 4 == 0 && x.stride[2] % 4 == 0;
}

// Row `begin` elements into a tensor, of `columns`.
__device__ inline PlainRow row_at(const View &x, int64_t begin, int64_t columns) {
  return {x.data + begin * (x.format == F32 ? 4 : 2), columns, x.format == F32};
}
