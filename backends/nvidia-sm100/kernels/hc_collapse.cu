// The weighted sum of the copies of the stream.
//
// Bytes: the copies once, one row written. A thread takes a channel of a row and adds its copies in order, in F64.
#include "common/values.cuh"

constexpr int THREADS = 256;

extern "C" __global__ void __launch_bounds__(THREADS) hc_collapse(View x, View pre, View out, uint32_t *) {
  const int64_t item = int64_t(blockIdx.x) * THREADS + threadIdx.x, columns = out.columns(), copies = x.shape[2];
  const int64_t row = item / columns, column = item % columns;
  if (row >= out.rows()) return;
  const float *weight = pre.row<float>(row);
  double sum = 0;
  for (int64_t c = 0; c < copies; ++c) sum += double(weight[c]) * double(load_float(x, row * copies + c, column));
  store_float(out, row, column, float(sum));
}
