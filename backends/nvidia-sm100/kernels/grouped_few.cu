// out = x times the transposed weights of the expert that the row belongs to: narrow operands.
//
// Bytes: the weights of every expert that has rows, once per 64 of them, as they are stored; x once per 128 outputs, from the caches;
// out once. Flops: 2 M O K, on the tensor cores. A block makes 128 outputs of an expert, for as many rows at a time as it has, up to 64.
// A row's sum has the order of common/segments.cuh, with one segment, wherever the row lies.
#include "common/few_rows.cuh"
#include "common/experts.cuh"

// Outputs of a block are 64 times it.
constexpr int TILES = 2;
template <int X, int W, int N> using Few = FewRows<X, W, N, TILES, 3, 8192>;

template <int X, int W, int N> __device__ void multiply_rows(const Matrix &x, const Matrix &w, const FewTile &t, unsigned char *memory, const View &out) {
  static_assert(sizeof(typename Few<X, W, N>::Shared) <= sizeof(typename Few<X, W, 64>::Shared));
  Few<X, W, N> few(x, w, t, *reinterpret_cast<typename Few<X, W, N>::Shared *>(memory));
  float sums[TILES][N / 2];
  few.multiply(sums, 1, 0);
  few.write(sums, 1, 0, out);
}

// The grid counts tiles of outputs by x and experts, from `first` on, by y. Experts whose weights have another format are passed over.
template <int X, int W>
__device__ void grouped_few(const View &x, const View &expert_start, const View &out, const Matrices &weights, int64_t first, uint32_t *fault) {
  extern __shared__ __align__(1024) unsigned char memory[];
  expect_memory(sizeof(typename Few<X, W, 64>::Shared));
  if (!are_starts_valid<FEW_THREADS>(expert_start, x, fault)) return;
  const Matrix &w = weights.of[blockIdx.y];
  if (w.format != W) return;
  const int64_t expert = first + blockIdx.y;
  FewTile t;
  t.row = expert_begin(expert_start, expert);
  const int end = expert_begin(expert_start, expert + 1);
  t.first = 0, t.output = blockIdx.x * 64 * TILES, t.outputs = min(64 * TILES, int(out.columns()) - t.output);
  if (t.outputs <= 0) return;
  t.x_column = t.begin = 0, t.columns = t.end = int(x.columns());
  const Matrix x_matrix = matrix_of(x);
  for (; t.row < end; t.row += t.rows) {
    t.rows = min(end - t.row, 64);
    if (t.rows <= 8) multiply_rows<X, W, 8>(x_matrix, w, t, memory, out);
    else if (t.rows <= 16) multiply_rows<X, W, 16>(x_matrix, w, t, memory, out);
    else if (t.rows <= 32) multiply_rows<X, W, 32>(x_matrix, w, t, memory, out);
    else multiply_rows<X, W, 64>(x_matrix, w, t, memory, out);
  }
}

#define KERNEL(NAME, X, W, BLOCKS)                                                                                                        \
  extern "C" __global__ void __launch_bounds__(FEW_THREADS, FEW_BLOCKS(BLOCKS))                                                           \
  NAME(const __grid_constant__ View x, const __grid_constant__ View expert_start, const __grid_constant__ View out,                       \
       const __grid_constant__ Matrices weights, int64_t first, uint32_t *fault) {                                                        \
    grouped_few<X, W>(x, expert_start, out, weights, first, fault);                                                                       \
  }

KERNEL(fp8_fp4, FP8_ROW32, FP4_ROW32, 3)
#ifndef ONLY_FP8
KERNEL(fp8_fp8, FP8_ROW32, FP8_TILE32, 2)
KERNEL(fp8_bf16, FP8_ROW32, BF16, 2)
KERNEL(bf16_fp4, BF16, FP4_ROW32, 2)
KERNEL(bf16_fp8, BF16, FP8_TILE32, 2)
KERNEL(bf16_bf16, BF16, BF16, 2)
#endif
