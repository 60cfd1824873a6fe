// Entry positions of a request to cache slots, through its page table.
//
// Bytes: a position read and a slot written, and a page looked up. A thread takes a position.
#include "common/view.cuh"

constexpr int THREADS = 256;
constexpr uint32_t OP = 13;
// Places in the catalogue.
enum Argument : uint32_t { POSITIONS, ROW_REQUEST, BLOCK_TABLE };
enum Rule : uint32_t { NO_ENTRIES, REQUEST_NEGATIVE, REQUEST_ABOVE, POSITION_BEYOND, PAGE_NEGATIVE, NO_RULE = 0xFE };

// A row has at least one thread, which looks at its request.
extern "C" __global__ void __launch_bounds__(THREADS)
convert_kv_index(View positions, View row_request, View block_table, View slots, uint32_t entries, uint32_t *fault) {
  const int64_t item = int64_t(blockIdx.x) * THREADS + threadIdx.x, columns = slots.columns(), width = max(columns, int64_t(1));
  const int64_t row = item / width, column = item % width;
  if (row >= slots.shape[2]) return;
  const int64_t request = *row_request.at<int32_t>(row * row_request.stride[3]);
  if (request < 0) return refuse(fault, OP, ROW_REQUEST, REQUEST_NEGATIVE);
  if (request >= block_table.shape[2]) return refuse(fault, OP, ROW_REQUEST, REQUEST_ABOVE);
  if (column >= columns) return;
  const int64_t position = positions.at<int32_t>(row * positions.stride[2])[column];
  int64_t slot = -1;
  if (position >= 0) {
    if (position / entries >= block_table.columns()) return refuse(fault, OP, POSITIONS, POSITION_BEYOND);
    const int64_t page = block_table.at<int32_t>(request * block_table.stride[2])[position / entries];
    if (page < 0) return refuse(fault, OP, BLOCK_TABLE, PAGE_NEGATIVE);
    slot = page * entries + position % entries;
    // Slots are I32: the catalogue has no rule of its own for pages beyond them.
    if (slot > 0x7FFFFFFF) return refuse(fault, OP, BLOCK_TABLE, NO_RULE);
  }
  slots.at<int32_t>(row * slots.stride[2])[column] = int32_t(slot);
}
