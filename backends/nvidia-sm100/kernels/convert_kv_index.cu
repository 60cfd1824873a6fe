// Entry positions of a request to cache slots, through its page table.
//
// Bytes: a position read and a slot written; pages are looked up in a table that fits the caches. A thread takes four positions.
#include "common/index_quads.cuh"

constexpr uint32_t OP = 13;
// Places in the catalogue.
enum Argument : uint32_t { POSITIONS, ROW_REQUEST, BLOCK_TABLE };
enum Rule : uint32_t { NO_ENTRIES, REQUEST_NEGATIVE, REQUEST_ABOVE, POSITION_BEYOND, PAGE_NEGATIVE, NO_RULE = 0xFE };

// A row has at least one thread, which looks at its request. `entries_log2` is NO_POWER where a page has no power of two of them.
constexpr uint32_t NO_POWER = 32;

extern "C" __global__ void __launch_bounds__(QUAD_THREADS)
convert_kv_index(const __grid_constant__ View positions, const __grid_constant__ View row_request, const __grid_constant__ View block_table,
                 const __grid_constant__ View slots, uint32_t entries, uint32_t entries_log2, uint32_t row_log2, uint32_t *fault) {
  const IndexQuad quad = quad_of_thread(slots.shape[2], slots.columns(), row_log2);
  if (!quad.is_row) return;
  // Positions are under way while the request is looked at.
  int32_t v[4] = {-1, -1, -1, -1};
  if (quad.count > 0) load_indices(positions.at<int32_t>(quad.row * positions.stride[2] + quad.column), quad.count, v);
  const int32_t request = *row_request.at<int32_t>(quad.row * row_request.stride[3]);
  if (request < 0) return refuse(fault, OP, ROW_REQUEST, REQUEST_NEGATIVE);
  if (request >= block_table.shape[2]) return refuse(fault, OP, ROW_REQUEST, REQUEST_ABOVE);
  if (quad.count == 0) return;
  const int32_t *pages = block_table.at<int32_t>(request * block_table.stride[2]);
  const uint32_t table_columns = uint32_t(min(block_table.columns(), int64_t(0xFFFFFFFF)));
  uint32_t nth[4];
  int32_t page[4];
  bool is_beyond = false;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    nth[j] = entries_log2 == NO_POWER ? uint32_t(v[j]) / entries : uint32_t(v[j]) >> entries_log2;
    const bool is_inside = nth[j] < table_columns;
    is_beyond |= v[j] >= 0 && !is_inside;
    page[j] = v[j] >= 0 && is_inside ? pages[nth[j]] : 0;
  }
  if (is_beyond) return refuse(fault, OP, POSITIONS, POSITION_BEYOND);
  bool is_negative = false, is_above = false;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int64_t slot = int64_t(page[j]) * entries + (uint32_t(v[j]) - nth[j] * entries);
    is_negative |= page[j] < 0;
    is_above |= v[j] >= 0 && slot > 0x7FFFFFFF;
    v[j] = v[j] < 0 ? -1 : int32_t(slot);
  }
  if (is_negative) return refuse(fault, OP, BLOCK_TABLE, PAGE_NEGATIVE);
  // Slots are I32: the catalogue has no rule of its own for pages beyond them.
  if (is_above) return refuse(fault, OP, BLOCK_TABLE, NO_RULE);
  store_indices(slots.at<int32_t>(quad.row * slots.stride[2] + quad.column), quad.count, v);
}
