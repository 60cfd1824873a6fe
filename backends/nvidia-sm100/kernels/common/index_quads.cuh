// Tables of indices, four neighbours of a row per thread. 2^`row_log2` threads of a block of 256 take quads of a row, the others those of the
// rows after it; a row of more quads has several blocks.
#pragma once

#include "copy.cuh"
#include "view.cuh"

constexpr int QUAD_THREADS = 256;

struct IndexQuad {
  int64_t row;
  int64_t column;
  // Indices that are there: 4, fewer at the end of a row, none beyond it.
  int count;
  bool is_row;
};

__device__ inline IndexQuad quad_of_thread(int64_t rows, int64_t columns, uint32_t row_log2) {
  const uint32_t width = 1u << row_log2, quads = uint32_t((columns + 3) / 4), pieces = max(1u, (quads + width - 1) >> row_log2);
  const int64_t row = (int64_t(blockIdx.x / pieces) * QUAD_THREADS + threadIdx.x) >> row_log2;
  const int64_t column = 4 * (int64_t(blockIdx.x % pieces) * width + (threadIdx.x & (width - 1)));
  return {row, column, row < rows ? int(max(int64_t(0), min(int64_t(4), columns - column))) : 0, row < rows};
}

__device__ inline void load_indices(const int32_t *from, int count, int32_t (&v)[4]) {
  if (count == 4 && is_on_16(from)) {
    const int4 four = *reinterpret_cast<const int4 *>(from);
    v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
    return;
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) v[j] = j < count ? from[j] : -1;
}

__device__ inline void store_indices(int32_t *to, int count, const int32_t (&v)[4]) {
  if (count == 4 && is_on_16(to)) {
    *reinterpret_cast<int4 *>(to) = make_int4(v[0], v[1], v[2], v[3]);
    return;
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) if (j < count) to[j] = v[j];
}
