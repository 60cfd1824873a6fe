// Columns of a candidate-restricted score row to entries, in place.
//
// Bytes: a column read and an entry written; candidates are looked up in a row that fits the caches. A thread takes four columns.
#include "common/index_quads.cuh"

constexpr uint32_t OP = 18, CANDIDATES = 1;
// Entries are I32: the catalogue has no rule of its own for a block that lies beyond them.
constexpr uint32_t NO_RULE = 0xFE;

extern "C" __global__ void __launch_bounds__(QUAD_THREADS)
restore_candidate_indices_inplace(const __grid_constant__ View columns, const __grid_constant__ View candidates, uint32_t block_size,
                                  uint32_t row_log2, uint32_t *fault) {
  const IndexQuad quad = quad_of_thread(columns.shape[2], columns.columns(), row_log2);
  if (quad.count == 0) return;
  int32_t *place = columns.at<int32_t>(quad.row * columns.stride[2] + quad.column);
  const int32_t *blocks = candidates.at<int32_t>(quad.row * candidates.stride[2]);
  int32_t v[4];
  load_indices(place, quad.count, v);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const uint32_t nth = uint32_t(v[j]) / block_size;
    const int64_t block = v[j] >= 0 && nth < candidates.columns() ? blocks[nth] : -1;
    const int64_t entry = block < 0 ? -1 : block * block_size + (uint32_t(v[j]) - nth * block_size);
    if (entry > 0x7FFFFFFF) return refuse(fault, OP, CANDIDATES, NO_RULE);
    v[j] = int32_t(entry);
  }
  store_indices(place, quad.count, v);
}
