// out = x times the transposed weights of the expert that the row belongs to: FP8 by FP4, whole panels of columns.
//
// Bytes: the weights of every expert that has rows, once per 16 of them, as they are stored; x once per 32 outputs, from the caches; out
// once. Flops: 2 M O K, on the tensor cores. A row's sum has the order of common/segments.cuh, with one segment, wherever the row lies.
#include "common/experts.cuh"
#include "common/few_codes.cuh"

constexpr int WARPS = 8, THREADS = WARPS * 32;

// By a warp.
template <class Few, int N8> __device__ __forceinline__ void multiply_rows(const Matrix &x, const Matrix &w, const CodeTile &t, unsigned char *memory, const View &out) {
  Few few(x, w, t, memory);
  few.begin();
  float sums[Few::OUTPUTS / 16][N8][4] = {};
  const bool is_f16 = few.look_at_scales();
  if (is_f16) few.multiply(sums);
  else few.multiply_any(sums);
  few.finish(sums, is_f16);
  __syncwarp();
  constexpr int AT_ONCE = 32 / Few::OUTPUTS;
  const int lane = threadIdx.x % Few::OUTPUTS, output = t.output + lane;
#pragma unroll 1
  for (int n = threadIdx.x % 32 / Few::OUTPUTS; n < t.rows; n += AT_ONCE) {
    float sum = reinterpret_cast<const float *>(memory)[n * Few::PITCH + lane];
    if (__float_as_uint(sum) == ODD_SUM) sum = exact_dot<FP8_ROW32, FP4_ROW32>(x, t.row + n, 0, w, output, t.panels * Few::PANEL);
    store_float(out, t.row + n, output, sum);
  }
  // The next rows' weights come to where the sums are.
  __syncwarp();
}

// The grid counts blocks of outputs by x and experts, from `first` on, by y. Experts whose weights have another format are passed over.
template <class Few, int N8>
__device__ void grouped_few_fp4(const View &x, const View &expert_start, const View &out, const Matrices &weights, int64_t first, uint32_t *fault) {
  extern __shared__ __align__(1024) unsigned char memory[];
  expect_memory(WARPS * Few::BYTES);
  if (!are_starts_valid<THREADS>(expert_start, x, fault)) return;
  const Matrix &w = weights.of[blockIdx.y];
  if (w.format != FP4_ROW32) return;
  const int64_t expert = first + blockIdx.y;
  const int warp = threadIdx.x / 32, end = expert_begin(expert_start, expert + 1);
  CodeTile t;
  t.row = expert_begin(expert_start, expert);
  t.output = (blockIdx.x * WARPS + warp) * Few::OUTPUTS, t.outputs = Few::OUTPUTS;
  t.x_column = t.begin = 0, t.panels = int(x.columns()) / Few::PANEL;
  if (t.output >= out.columns()) return;
  const Matrix x_matrix = matrix_of(x);
#pragma unroll 1
  for (; t.row < end; t.row += t.rows) {
    t.rows = min(end - t.row, N8 * 8);
    multiply_rows<Few, N8>(x_matrix, w, t, memory + warp * Few::BYTES, out);
  }
}

// Two stages and two blocks on a multiprocessor leave the most of the L1 for x and scales.
#define KERNEL(NAME, N8)                                                                                                                  \
  extern "C" __global__ void __launch_bounds__(THREADS, 2)                                                                                \
  NAME(const __grid_constant__ View x, const __grid_constant__ View expert_start, const __grid_constant__ View out,                       \
       const __grid_constant__ Matrices weights, int64_t first, uint32_t *fault) {                                                        \
    grouped_few_fp4<FewCodes<FP4_ROW32, 2, N8, 2>, N8>(x, expert_start, out, weights, first, fault);                                      \
  }
KERNEL(grouped_few_fp4_8, 1)
KERNEL(grouped_few_fp4_16, 2)
