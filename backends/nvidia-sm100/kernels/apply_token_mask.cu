// -infinity where a row's bit mask has no bit, in place.
//
// Bytes: a row that has a mask is written where it is banned; a word of the mask serves 32 tokens. A warp reads 64 words at once, and its
// lanes then write the quads of those 2048 tokens. A quad that is banned as a whole is not read; one that is banned in part is, since
// memory takes whole sectors faster than parts of them.
#include "common/view.cuh"

constexpr int THREADS = 256, WARP_TOKENS = 2048, BLOCK_TOKENS = THREADS / 32 * WARP_TOKENS;
constexpr uint32_t OP = 29, MASK_INDEX = 1, ALL = 0xFFFFFFFFu;
// Of -infinity.
constexpr uint32_t INFINITE_BITS = 0xFF800000u;
enum Rule : uint32_t { BELOW, BEYOND };

// `pieces` blocks take a row, which is the slow index.
extern "C" __global__ void __launch_bounds__(THREADS)
apply_token_mask(View logits, View mask_index, View masks, uint32_t pieces, uint32_t *fault) {
  const int64_t row = blockIdx.x / pieces, columns = logits.columns();
  const int64_t mask = *mask_index.at<int32_t>(row * mask_index.stride[3]);
  if (mask < -1) return refuse(fault, OP, MASK_INDEX, BELOW);
  if (mask >= masks.shape[2]) return refuse(fault, OP, MASK_INDEX, BEYOND);
  const int64_t first = int64_t(blockIdx.x % pieces) * BLOCK_TOKENS + threadIdx.x / 32 * WARP_TOKENS;
  if (mask < 0 || first >= columns) return;
  const int lane = threadIdx.x % 32;
  const uint32_t *words = masks.at<uint32_t>(mask * masks.stride[2]) + first / 32;
  // Beyond the row nothing is banned.
  const auto word_at = [&](int i) { return first + 32 * i < columns ? words[i] : ALL; };
  const uint32_t low = word_at(lane), high = word_at(lane + 32);
  float *l = logits.at<float>(row * logits.stride[2]) + first;
  const bool is_wide = reinterpret_cast<uintptr_t>(l) % 16 == 0;
#pragma unroll
  for (int j = 0; j < WARP_TOKENS / 128; ++j) {
    const uint32_t word = __shfl_sync(ALL, j < 8 ? low : high, 4 * j % 32 + lane / 8), bits = word >> (lane % 8 * 4) & 15;
    const int at = 128 * j + 4 * lane;
    if (bits == 0 && is_wide && first + at + 4 <= columns) {
      *reinterpret_cast<uint4 *>(l + at) = make_uint4(INFINITE_BITS, INFINITE_BITS, INFINITE_BITS, INFINITE_BITS);
    } else if (bits != 15 && is_wide && first + at + 4 <= columns) {
      uint4 four = *reinterpret_cast<const uint4 *>(l + at);
      four.x = bits & 1 ? four.x : INFINITE_BITS, four.y = bits & 2 ? four.y : INFINITE_BITS;
      four.z = bits & 4 ? four.z : INFINITE_BITS, four.w = bits & 8 ? four.w : INFINITE_BITS;
      *reinterpret_cast<uint4 *>(l + at) = four;
    } else if (bits != 15) {
#pragma unroll
      for (int i = 0; i < 4; ++i) if ((bits >> i & 1) == 0 && first + at + i < columns) reinterpret_cast<uint32_t *>(l)[at + i] = INFINITE_BITS;
    }
  }
}
