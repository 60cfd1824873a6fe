// Rows of a table by index, converted between F32 and BF16 if asked; zeros for an index that names no row.
//
// Bytes: each row read and written once. Rows that lie on 16 bytes on both sides go in pieces of 16.
#include "common/values.cuh"

constexpr int THREADS = 256;

__device__ inline bool is_aligned(const void *address) { return (reinterpret_cast<uintptr_t>(address) & 15) == 0; }

__device__ inline int size_of(int32_t format) { return format == I64 ? 8 : format == BF16 ? 2 : format == U8 ? 1 : 4; }

// A warp for each row of `out`.
extern "C" __global__ void __launch_bounds__(THREADS)
gather(View table, View index, View out, uint32_t repeat, uint32_t *) {
  const int64_t row = (int64_t(blockIdx.x) * THREADS + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if (row >= out.rows()) return;
  const int64_t named = *index.at<int32_t>((row / repeat) * index.stride[3]);
  const bool is_row = named >= 0 && named < table.shape[2];
  const int64_t columns = out.columns();
  if (table.format != out.format) {
    for (int64_t c = lane; c < columns; c += 32) store_float(out, row, c, is_row ? load_float(table, named, c) : 0.0f);
    return;
  }
  const int size = size_of(out.format);
  unsigned char *to = out.data + out.row_begin(row) * size;
  const unsigned char *from = table.data + (is_row ? table.row_begin(named) * size : 0);
  const int64_t bytes = columns * size, pieces = is_aligned(to) && is_aligned(from) ? bytes / 16 : 0;
  for (int64_t i = lane; i < pieces; i += 32) {
    reinterpret_cast<uint4 *>(to)[i] = is_row ? reinterpret_cast<const uint4 *>(from)[i] : make_uint4(0, 0, 0, 0);
  }
  for (int64_t i = pieces * 16 + lane; i < bytes; i += 32) to[i] = is_row ? from[i] : 0;
}
