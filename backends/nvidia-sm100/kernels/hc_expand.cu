// The stream's copies mixed with each other and with a sublayer's output, in place.
//
// Bytes: the copies read and written, y read. A thread takes a channel of a row: it keeps the copies of its channel in shared
// memory, where no other thread looks, since any number of them may come; then it adds post * y and the copies in order, in F64.
#include "common/values.cuh"

extern "C" __global__ void hc_expand(View x, View y, View post, View comb, uint32_t *) {
  extern __shared__ float kept[];
  const int64_t item = int64_t(blockIdx.x) * blockDim.x + threadIdx.x, columns = x.columns(), copies = x.shape[2];
  const int64_t row = item / columns, column = item % columns;
  if (row >= y.rows()) return;
  const double added = load_float(y, row, column);
  for (int64_t i = 0; i < copies; ++i) kept[i * blockDim.x + threadIdx.x] = load_float(x, row * copies + i, column);
  for (int64_t j = 0; j < copies; ++j) {
    double sum = double(post.row<float>(row)[j]) * added;
    for (int64_t i = 0; i < copies; ++i) {
      sum += double(comb.row<float>(row * copies + i)[j]) * double(kept[i * blockDim.x + threadIdx.x]);
    }
    store_float(x, row * copies + j, column, float(sum));
  }
}
