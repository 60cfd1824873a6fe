// weight * x / sqrt(mean of squares + eps), row by row.
//
// Bytes: the row read and written; its second reading comes from the caches. A block takes a row whatever the batch.
#include "common/reduce.cuh"

constexpr int THREADS = 256;

extern "C" __global__ void __launch_bounds__(THREADS) rms_norm(View x, View weight, View out, float eps, uint32_t *) {
  __shared__ double scratch[THREADS / 32];
  const int64_t row = blockIdx.x, columns = x.columns();
  const double sum = square_sum<THREADS>(x, row, scratch);
  // Zeros stay zeros whatever eps is. Squares of finite values do not overflow F64: an infinite sum has an infinity or NaN in it.
  const bool is_finite = sum < __longlong_as_double(0x7FF0000000000000ll);
  double factor = sum == 0 ? 0.0 : 1.0 / sqrt(sum / double(columns) + double(eps));
  if (!is_finite) factor = __longlong_as_double(0x7FF8000000000000ll);
  for (int64_t c = threadIdx.x; c < columns; c += THREADS) {
    const double v = double(load_float(weight, 0, c)) * (double(load_float(x, row, c)) * factor);
    store_float(out, row, c, float(v));
  }
}
