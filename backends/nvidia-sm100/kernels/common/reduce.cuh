// Sums of a block in an order that the length alone decides: thread t adds the elements t, t + T, t + 2T, ... of its row in
// ascending order; the T sums are then added in a tree over neighbours. In F64, whose rate here is half that of F32: a product
// of two F32 values is exact, and the result has the error of one rounding for all practical lengths.
#pragma once

#include "values.cuh"

// The sum of every thread's value, in all threads. `T` threads, a power of two from 32 to 1024; `scratch` has T / 32 places.
template <int T> __device__ inline double block_sum(double value, double *scratch) {
  for (int width = 16; width > 0; width /= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, width);
  if constexpr (T > 32) {
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
    __syncthreads();
    value = 0;
    if (threadIdx.x < 32) {
      value = threadIdx.x < T / 32 ? scratch[threadIdx.x] : 0.0;
      for (int width = 16; width > 0; width /= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, width);
      if (threadIdx.x == 0) scratch[0] = value;
    }
    __syncthreads();
    value = scratch[0];
    __syncthreads();
  }
  return value;
}

// The sum of the squares of a row, in all threads.
template <int T> __device__ inline double square_sum(const View &x, int64_t row, double *scratch) {
  double sum = 0;
  for (int64_t c = threadIdx.x; c < x.columns(); c += T) {
    const double v = load_float(x, row, c);
    sum += v * v;
  }
  return block_sum<T>(sum, scratch);
}
