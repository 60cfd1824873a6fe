// Entry positions of a request to cache slots, through its page table.
//
// Bytes: a position read and a slot written; pages are looked up in a table that fits the caches. A thread takes four positions.
#include "common/index_quads.cuh"

constexpr uint32_t OP = 13;
// Places in the catalogue.
enum Argument : uint32_t { POSITIONS, ROW_REQUEST, BLOCK_TABLE };
enum Rule : uint32_t { NO_ENTRIES, REQUEST_NEGATIVE, REQUEST_ABOVE, POSITION_BEYOND, PAGE_NEGATIVE, NO_RULE = 0xFE };

// A row has at least one thread, which looks at its request.
extern "C" __global__ void __launch_bounds__(QUAD_THREADS)
convert_kv_index(const __grid_constant__ View positions, const __grid_constant__ View row_request, const __grid_constant__ View block_table,
                 const __grid_constant__ View slots, uint32_t entries, uint32_t row_log2, uint32_t *fault) {
  const IndexQuad quad = quad_of_thread(slots.shape[2], slots.columns(), row_log2);
  if (!quad.is_row) return;
  const int64_t request = *row_request.at<int32_t>(quad.row * row_request.stride[3]);
  if (request < 0) return refuse(fault, OP, ROW_REQUEST, REQUEST_NEGATIVE);
  if (request >= block_table.shape[2]) return refuse(fault, OP, ROW_REQUEST, REQUEST_ABOVE);
  if (quad.count == 0) return;
  const int32_t *pages = block_table.at<int32_t>(request * block_table.stride[2]);
  int32_t v[4];
  load_indices(positions.at<int32_t>(quad.row * positions.stride[2] + quad.column), quad.count, v);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    int64_t slot = -1;
    if (v[j] >= 0) {
      const uint32_t nth = uint32_t(v[j]) / entries;
      if (nth >= block_table.columns()) return refuse(fault, OP, POSITIONS, POSITION_BEYOND);
      const int64_t page = pages[nth];
      if (page < 0) return refuse(fault, OP, BLOCK_TABLE, PAGE_NEGATIVE);
      slot = page * entries + (uint32_t(v[j]) - nth * entries);
      // Slots are I32: the catalogue has no rule of its own for pages beyond them.
      if (slot > 0x7FFFFFFF) return refuse(fault, OP, BLOCK_TABLE, NO_RULE);
    }
    v[j] = int32_t(slot);
  }
  store_indices(slots.at<int32_t>(quad.row * slots.stride[2] + quad.column), quad.count, v);
}
