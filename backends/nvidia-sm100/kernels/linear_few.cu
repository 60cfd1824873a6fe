// out = x times the transposed weights, for each block of the diagonal: narrow operands, few rows.
//
// Bytes: the weights once for each 64 rows, as they are stored; x once per 128 outputs, from the caches; out once. Flops: 2 T N K, on
// the tensor cores. A cluster makes a tile of 128 outputs: each of its blocks takes a segment of the columns, and they add their sums
// through each other's shared memory. The order of a sum is that of common/segments.cuh.
#include "common/few_rows.cuh"

// The grid counts tiles of outputs by x, segments of `segment` columns by y, which are a cluster, and tiles of rows of a group by z.
template <class Few>
__device__ void linear_few(const View &x, const View &weight, const View &out, int32_t outputs, int32_t segment, int32_t row_tiles) {
  extern __shared__ __align__(1024) unsigned char memory[];
  expect_memory(sizeof(typename Few::Shared));
  constexpr int N = Few::ROWS;
  const int segments = gridDim.y, rank = blockIdx.y, group = row_tiles == int(gridDim.z) ? 0 : blockIdx.z / row_tiles;
  const int begin = group * outputs, aligned = Few::IS_TILED ? begin / 32 * 32 : begin;
  FewTile t;
  t.row = (blockIdx.z - group * row_tiles) * N, t.rows = min(N, int(out.shape[2]) - t.row);
  t.columns = int(weight.columns()), t.x_column = group * t.columns, t.begin = rank * segment, t.end = min(t.columns, t.begin + segment);
  t.output = aligned + blockIdx.x * Few::OUTPUTS, t.first = max(begin - t.output, 0), t.outputs = min(Few::OUTPUTS, begin + outputs - t.output);
  // The whole cluster has none.
  if (t.outputs <= 0) return;
  const Matrix x_matrix = matrix_of(x), w_matrix = matrix_of(weight);
  Few few(x_matrix, w_matrix, t, *reinterpret_cast<typename Few::Shared *>(memory));
  float sums[Few::OUTPUTS / 64][N / 2];
  few.multiply(sums, segments, rank);
  few.write(sums, segments, rank, out);
}

// `BLOCKS` share a multiprocessor: as many as make up for each other's waiting.
#define KERNEL(NAME, X, W, N, BLOCKS, TILES, STAGES, X_BYTES)                                                                             \
  extern "C" __global__ void __launch_bounds__(FEW_THREADS, FEW_BLOCKS(BLOCKS))                                                           \
  NAME(const __grid_constant__ View x, const __grid_constant__ View weight, const __grid_constant__ View out, int32_t outputs,            \
       int32_t segment, int32_t row_tiles, uint32_t *) {                                                                                  \
    linear_few<FewRows<X, W, N, TILES, STAGES, X_BYTES>>(x, weight, out, outputs, segment, row_tiles);                                    \
  }
#define ROWS(NAME, X, W)                                                                                                                  \
  KERNEL(NAME##_8, X, W, 8, 3, 2, 3, 8192)                                                                                                \
  KERNEL(NAME##_16, X, W, 16, 3, 2, 3, 8192)                                                                                              \
  KERNEL(NAME##_32, X, W, 32, 3, 2, 3, 8192)                                                                                              \
  KERNEL(NAME##_64, X, W, 64, 2, 2, 3, 8192)

#ifndef ONLY_FP8
ROWS(bf16_bf16, BF16, BF16)
ROWS(bf16_fp8, BF16, FP8_TILE32)
ROWS(bf16_fp4, BF16, FP4_ROW32)
ROWS(fp8_bf16, FP8_ROW32, BF16)
ROWS(fp8_fp4, FP8_ROW32, FP4_ROW32)
#endif
ROWS(fp8_fp8, FP8_ROW32, FP8_TILE32)
