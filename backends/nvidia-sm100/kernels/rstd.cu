// 1 / sqrt(mean of squares + eps) of each row.
//
// Bytes: the row once. A block takes a row whatever the batch, so that its bits do not depend on it.
#include "common/reduce.cuh"

constexpr int THREADS = 256;

extern "C" __global__ void __launch_bounds__(THREADS) rstd(View x, View out, float eps, uint32_t *) {
  __shared__ double scratch[THREADS / 32];
  const int64_t row = blockIdx.x, columns = x.columns();
  const double sum = square_sum<THREADS>(x, row, scratch);
  if (threadIdx.x == 0) out.at<float>()[row * out.stride[3]] = float(1.0 / sqrt(sum / double(columns) + double(eps)));
}
