// The expert outputs of each row and the shared expert's, added in F32: from +0, the rows of `y` in ascending order, the
// shared output last.
//
// Bytes: K rows of y and the shared row read, one row written. A block takes 1024 columns of a row and sorts its K places
// once; a thread adds one column at a time.
#include "common/values.cuh"

constexpr int THREADS = 256;
constexpr int BLOCK_COLUMNS = 1024;
constexpr int MOST_PLACES = 4096;
constexpr uint32_t OP = 23, ROW_OF = 1;
enum Rule : uint32_t { NOT_BELOW };

extern "C" __global__ void __launch_bounds__(THREADS)
moe_combine(View y, View row_of, View shared, View out, int64_t pieces, uint32_t *fault) {
  __shared__ int32_t sorted[MOST_PLACES];
  const int64_t row = blockIdx.x / pieces, first = blockIdx.x % pieces * BLOCK_COLUMNS, columns = out.columns();
  const int32_t *places = row_of.row<int32_t>(row);
  const int count = int(row_of.columns());
  bool is_wrong = false;
  int valid = 0;
  for (int k = threadIdx.x; k < count; k += THREADS) {
    const int32_t place = places[k];
    is_wrong |= place >= y.shape[2];
    if (place < 0) continue;
    int rank = 0;
    for (int other = 0; other < count; ++other) {
      const int32_t against = places[other];
      rank += against >= 0 && (against < place || (against == place && other < k));
    }
    sorted[rank] = place;
    ++valid;
  }
  if (is_wrong) refuse(fault, OP, ROW_OF, NOT_BELOW);
  if (__syncthreads_or(is_wrong)) return;
  // The list has no holes: its length is how many places are not negative.
  __shared__ int terms;
  if (threadIdx.x == 0) terms = 0;
  __syncthreads();
  if (valid > 0) atomicAdd(&terms, valid);
  __syncthreads();
  const int added = terms;

  const int64_t end = min(columns, first + BLOCK_COLUMNS);
  for (int64_t c = first + threadIdx.x; c < end; c += THREADS) {
    float sum = 0.0f;
    for (int i = 0; i < added; ++i) sum = __fadd_rn(sum, load_float(y, sorted[i], c));
    if (!shared.is_absent()) sum = __fadd_rn(sum, load_float(shared, row, c));
    store_float(out, row, c, sum);
  }
}
