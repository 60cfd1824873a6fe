// The best visible score of each block of entries; +infinity for the block of the newest one.
//
// Bytes: the visible scores once, a value out per block. A warp takes a block; a maximum has no order.
#include "common/view.cuh"

constexpr int THREADS = 256;

extern "C" __global__ void __launch_bounds__(THREADS)
candidate_block_max(View scores, View visible, View out, uint32_t block_size, uint32_t *) {
  const int64_t blocks = out.columns(), item = (int64_t(blockIdx.x) * THREADS + threadIdx.x) / 32;
  if (item >= out.shape[2] * blocks) return;
  const int64_t row = item / blocks, block = item % blocks, first = block * block_size;
  const int64_t sees = max(0, *visible.at<int32_t>(row * visible.stride[3]));
  const int64_t end = min(min(scores.columns(), sees), first + block_size);
  const float *s = scores.at<float>(row * scores.stride[2]);
  float best = __uint_as_float(0xFF800000u);
  // A comparison with NaN is false.
  for (int64_t c = first + threadIdx.x % 32; c < end; c += 32) best = s[c] > best ? s[c] : best;
  for (int width = 16; width > 0; width /= 2) best = fmaxf(best, __shfl_xor_sync(0xFFFFFFFFu, best, width));
  if (sees > 0 && (sees - 1) / block_size == block) best = __uint_as_float(0x7F800000u);
  if (threadIdx.x % 32 == 0) out.at<float>(row * out.stride[2])[block] = best;
}
