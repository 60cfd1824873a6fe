// Four neighbours of an F32 or BF16 row at a time, in one access where they lie on its boundary.
#pragma once

#include "values.cuh"

// A row of a plain floating-point tensor.
struct PlainRow {
  unsigned char *data;
  int64_t columns;
  bool is_f32;
};

__device__ inline PlainRow plain_row(const View &x, int64_t row) {
  const bool is_f32 = x.format == F32;
  return {x.data + x.row_begin(row) * (is_f32 ? 4 : 2), x.columns(), is_f32};
}

__device__ inline bool lies_on(const void *address, int bytes) { return reinterpret_cast<uintptr_t>(address) % bytes == 0; }

// Columns `column` to column + 3; zeros beyond the row.
__device__ inline void load_quad(const PlainRow &row, int64_t column, float (&v)[4]) {
  const unsigned char *from = row.data + column * (row.is_f32 ? 4 : 2);
  const bool is_whole = column + 4 <= row.columns;
  if (row.is_f32) {
    if (is_whole && lies_on(from, 16)) {
      const float4 four = *reinterpret_cast<const float4 *>(from);
      v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
      return;
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] = column + j < row.columns ? reinterpret_cast<const float *>(from)[j] : 0.0f;
    return;
  }
  if (is_whole && lies_on(from, 8)) {
    const uint2 four = *reinterpret_cast<const uint2 *>(from);
    v[0] = __uint_as_float(four.x << 16), v[1] = __uint_as_float(four.x & 0xFFFF0000u);
    v[2] = __uint_as_float(four.y << 16), v[3] = __uint_as_float(four.y & 0xFFFF0000u);
    return;
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) v[j] = column + j < row.columns ? bf16_to_f32(reinterpret_cast<const uint16_t *>(from)[j]) : 0.0f;
}

// Rounded to the format of the row; what lies beyond the row is left alone.
__device__ inline void store_quad(const PlainRow &row, int64_t column, const float (&v)[4]) {
  unsigned char *to = row.data + column * (row.is_f32 ? 4 : 2);
  const bool is_whole = column + 4 <= row.columns;
  if (row.is_f32) {
    if (is_whole && lies_on(to, 16)) {
      *reinterpret_cast<float4 *>(to) = make_float4(v[0], v[1], v[2], v[3]);
      return;
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) if (column + j < row.columns) reinterpret_cast<float *>(to)[j] = v[j];
    return;
  }
  uint16_t narrow[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) narrow[j] = f32_to_bf16(v[j]);
  if (is_whole && lies_on(to, 8)) {
    *reinterpret_cast<uint2 *>(to) = make_uint2(narrow[0] | uint32_t(narrow[1]) << 16, narrow[2] | uint32_t(narrow[3]) << 16);
    return;
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) if (column + j < row.columns) reinterpret_cast<uint16_t *>(to)[j] = narrow[j];
}
