// out = x times the transposed weights, for each block of the diagonal: FP8 by FP8, few rows, whole tiles of scales.
//
// Bytes: the weights once; x once per 16 to 48 outputs, from the L2; out once. Flops: 2 T N K, on the tensor cores. Each warp of a block
// takes a segment of the columns, and all add their sums through shared memory, in the order of common/segments.cuh.
#include "common/few_codes.cuh"

constexpr int WARPS = 8, THREADS = WARPS * 32;

// The grid counts blocks of outputs by x, groups by y. Of the 2^`shift` warps of a tile of outputs each has a segment, or none.
template <class Few, int N8> __device__ void linear_few_fp8(const View &x, const View &weight, const View &out, int outputs, int segment, int segments, int shift) {
  extern __shared__ __align__(1024) unsigned char memory[];
  expect_memory(WARPS * Few::BYTES);
  const int warp = threadIdx.x / 32, rank = warp & ((1 << shift) - 1), tiles = WARPS >> shift;
  const int first = blockIdx.x * tiles * Few::OUTPUTS, begin = blockIdx.y * outputs, columns = int(weight.columns());
  CodeTile t;
  t.row = 0, t.rows = int(out.shape[2]);
  t.x_column = blockIdx.y * columns, t.begin = rank * segment, t.panels = min(segment, columns - t.begin) / Few::PANEL;
  t.output = begin + first + (warp >> shift) * Few::OUTPUTS, t.outputs = min(Few::OUTPUTS, begin + outputs - t.output);
  const Matrix x_matrix = matrix_of(x), w_matrix = matrix_of(weight);
  if (rank < segments && t.output < begin + outputs) {
    Few few(x_matrix, w_matrix, t, memory + warp * Few::BYTES);
    few.begin();
    float sums[Few::OUTPUTS / 16][N8][4] = {};
    const bool is_f16 = few.look_at_scales();
    if (is_f16) few.multiply(sums);
    else few.multiply_any(sums);
    few.finish(sums, is_f16);
  }
  __syncthreads();
#pragma unroll 1
  for (int e = threadIdx.x; e < tiles * N8 * 8 * Few::OUTPUTS; e += THREADS) {
    const int o = e % Few::OUTPUTS, n = e / Few::OUTPUTS % (N8 * 8), of = e / (Few::OUTPUTS * N8 * 8), output = begin + first + of * Few::OUTPUTS + o;
    if (n >= t.rows || output >= begin + outputs) continue;
    const unsigned char *from = memory + (of << shift) * Few::BYTES + (n * Few::PITCH + o) * sizeof(float);
    float sum = 0;
    bool is_odd = false;
#pragma unroll
    for (int s = 0; s < WARPS; ++s) {
      if (s >= segments) break;
      const float part = *reinterpret_cast<const float *>(from + s * Few::BYTES);
      is_odd |= __float_as_uint(part) == ODD_SUM;
      sum = s == 0 ? part : __fadd_rn(sum, part);
    }
    if (is_odd) sum = exact_dot<FP8_ROW32, FP8_TILE32>(x_matrix, n, t.x_column, w_matrix, output, columns);
    store_float(out, n, output, sum);
  }
}

// Times sixteen outputs of a warp, eight rows; `BLOCKS` share a multiprocessor.
#define KERNEL(NAME, M16, N8, BLOCKS)                                                                                                     \
  extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)                                                                           \
  NAME(const __grid_constant__ View x, const __grid_constant__ View weight, const __grid_constant__ View out, int32_t outputs,            \
       int32_t segment, int32_t segments, int32_t shift, uint32_t *) {                                                                    \
    linear_few_fp8<FewCodes<FP8_TILE32, M16, N8, 2>, N8>(x, weight, out, outputs, segment, segments, shift);                              \
  }
KERNEL(linear_few_fp8_8, 1, 1, 3)
KERNEL(linear_few_fp8_16, 2, 2, 2)
KERNEL(linear_few_fp8_32, 3, 4, 1)
KERNEL(linear_few_fp8_64, 3, 8, 1)
