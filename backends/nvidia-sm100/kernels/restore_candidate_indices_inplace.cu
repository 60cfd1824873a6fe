// Columns of a candidate-restricted score row to entries, in place.
//
// Bytes: a column read and an entry written, and a candidate looked up. A thread takes a column.
#include "common/view.cuh"

constexpr int THREADS = 256;
constexpr uint32_t OP = 18, CANDIDATES = 1;
// Entries are I32: the catalogue has no rule of its own for a block that lies beyond them.
constexpr uint32_t NO_RULE = 0xFE;

extern "C" __global__ void __launch_bounds__(THREADS)
restore_candidate_indices_inplace(View columns, View candidates, uint32_t block_size, uint32_t *fault) {
  const int64_t item = int64_t(blockIdx.x) * THREADS + threadIdx.x, places = columns.columns();
  if (item >= columns.shape[2] * places) return;
  const int64_t row = item / places;
  int32_t *place = columns.at<int32_t>(row * columns.stride[2] + item % places);
  const int64_t column = *place, nth = column / block_size;
  int64_t entry = -1;
  if (column >= 0 && nth < candidates.columns()) {
    const int64_t block = candidates.at<int32_t>(row * candidates.stride[2])[nth];
    if (block >= 0) entry = block * block_size + column % block_size;
  }
  if (entry > 0x7FFFFFFF) return refuse(fault, OP, CANDIDATES, NO_RULE);
  *place = int32_t(entry);
}
