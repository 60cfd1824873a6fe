// out = x times the transposed weights, for many rows of narrow operands, on Hopper: the order of common/segments.cuh.
//
// 1. `linear_many_widen`: FP8 rows become BF16, and so do weights that the copy engine or the products do not take as they are.
// 2. `linear_many_bf16_N`, `linear_many_fp8_N`: the products, in tiles of N rows (common/product_many.cuh).
// 3. `linear_many_odd`: elements whose rows have scales that BF16 does not hold, one by one.
#include "common/exact.cuh"
#include "common/product_many.cuh"

// A block per row of x, then one per row of the weights, or per `weight_step` rows where only scales are looked at.
extern "C" __global__ void __launch_bounds__(128) linear_many_widen(const __grid_constant__ View x, const __grid_constant__ Widening of_x, const __grid_constant__ View weight,
                                                                   const __grid_constant__ Widening of_weight, int64_t x_rows, int64_t weight_step, uint32_t *) {
  if (blockIdx.x < x_rows) widen_row(x, of_x, blockIdx.x);
  else widen_row(weight, of_weight, (blockIdx.x - x_rows) * weight_step);
}

#if HAS_WGMMA
#define MULTIPLY(N, W) many::multiply<N, W>(weights, rows, results, p, out)
#else
#define MULTIPLY(N, W)
#endif
#define PRODUCT(NAME, N, W)                                                                                                               \
  extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(384, 1)                                                                                    \
  linear_many_##NAME##_##N(const __grid_constant__ TensorMap weights, const __grid_constant__ TensorMap rows,                             \
                           const __grid_constant__ TensorMap results, const __grid_constant__ ManyRows p,                                 \
                           const __grid_constant__ View out, uint32_t *) {                                                                \
    MULTIPLY(N, W);                                                                                                                       \
  }
PRODUCT(bf16, 64, BF16)
PRODUCT(bf16, 128, BF16)
PRODUCT(bf16, 160, BF16)
PRODUCT(bf16, 192, BF16)
PRODUCT(fp8, 64, FP8_TILE32)
PRODUCT(fp8, 128, FP8_TILE32)
PRODUCT(fp8, 160, FP8_TILE32)

template <int X> __device__ float odd_element(const Matrix &x, const Matrix &w, int64_t row, int64_t column, int64_t output, int64_t columns) {
  if (w.format == BF16) return exact_dot<X, BF16>(x, row, column, w, output, columns);
  if (w.format == FP8_TILE32) return exact_dot<X, FP8_TILE32>(x, row, column, w, output, columns);
  return exact_dot<X, FP4_ROW32>(x, row, column, w, output, columns);
}

// A block per some rows. Flags are those of `widen_row`, null where there are no scales.
extern "C" __global__ void __launch_bounds__(256)
  linear_many_odd(const __grid_constant__ View x, const __grid_constant__ View weight, const __grid_constant__ View out, const uint8_t *x_flags, const uint8_t *weight_flags, uint32_t groups, uint32_t *) {
  const int64_t outputs = weight.shape[2], columns = weight.columns(), shared = rows_of_scales(weight), flags = (outputs + shared - 1) / shared;
  bool is_odd = false;
  if (weight_flags != nullptr) for (int64_t i = threadIdx.x; i < flags; i += blockDim.x) is_odd |= weight_flags[i];
  const bool is_any_weight_odd = __syncthreads_or(is_odd);
  for (int64_t row = blockIdx.x; row < out.shape[2]; row += gridDim.x) {
    for (int64_t group = 0; group < groups; ++group) {
      const bool is_row_odd = x_flags != nullptr && x_flags[row * groups + group];
      if (!is_row_odd && !is_any_weight_odd) continue;
      const int64_t first = group * (outputs / groups);
      for (int64_t output = first + threadIdx.x; output < first + outputs / groups; output += blockDim.x) {
        if (!is_row_odd && !weight_flags[output / shared]) continue;
        const Matrix a = matrix_of(x), b = matrix_of(weight);
        store_float(out, row, output, x.format == BF16 ? odd_element<BF16>(a, b, row, group * columns, output, columns) : odd_element<FP8_ROW32>(a, b, row, group * columns, output, columns));
      }
    }
  }
}
