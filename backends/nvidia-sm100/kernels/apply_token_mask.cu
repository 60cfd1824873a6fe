// -infinity where a row's bit mask has no bit, in place.
//
// Bytes: a row that has a mask is written where it is banned, and not read; a word of the mask serves 32 tokens.
#include "common/view.cuh"

constexpr int THREADS = 256;
constexpr uint32_t OP = 29, MASK_INDEX = 1;
enum Rule : uint32_t { BELOW, BEYOND };

// Blocks of 256 tokens of a row, which is the slow index.
extern "C" __global__ void __launch_bounds__(THREADS)
apply_token_mask(View logits, View mask_index, View masks, uint32_t *fault) {
  const int64_t columns = logits.columns(), pieces = columns > 0 ? (columns + THREADS - 1) / THREADS : 1;
  const int64_t row = blockIdx.x / pieces, v = blockIdx.x % pieces * THREADS + threadIdx.x;
  const int64_t mask = *mask_index.at<int32_t>(row * mask_index.stride[3]);
  if (mask < -1) return refuse(fault, OP, MASK_INDEX, BELOW);
  if (mask >= masks.shape[2]) return refuse(fault, OP, MASK_INDEX, BEYOND);
  if (mask < 0 || v >= columns) return;
  const uint32_t word = masks.row<uint32_t>(mask)[v / 32];
  if ((word >> (v % 32) & 1) == 0) logits.row<float>(row)[v] = __uint_as_float(0xFF800000u);
}
