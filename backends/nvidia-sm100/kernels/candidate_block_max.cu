// The best visible score of each block of entries; +infinity for the block of the newest one.
//
// Bytes: the visible scores once, a value out per block. A maximum has no order.
#include "common/view.cuh"

constexpr int THREADS = 256;
// Quads of a thread, all under way at once, and columns of a block of threads.
constexpr int QUADS = 4;
constexpr int COLUMNS = THREADS * QUADS * 4;

__device__ inline float infinity() { return __uint_as_float(0x7F800000u); }

// Blocks of 4 to 128 entries, a power of two, in rows on a boundary of 16 bytes: 2^`lanes_log2` neighbouring lanes have one.
extern "C" __global__ void __launch_bounds__(THREADS)
candidate_block_max_quads(const __grid_constant__ View scores, const __grid_constant__ View visible, const __grid_constant__ View out,
                          uint32_t lanes_log2, uint32_t pieces, uint32_t *) {
  const uint32_t piece = blockIdx.x % pieces;
  const int64_t row = blockIdx.x / pieces, blocks = out.columns();
  const int64_t sees = max(0, *visible.at<int32_t>(row * visible.stride[3])), end = min(scores.columns(), sees);
  const int64_t newest = sees > 0 ? (sees - 1) / 4 >> lanes_log2 : -1;
  const float *s = scores.at<float>(row * scores.stride[2]);
  const int64_t first = int64_t(piece) * COLUMNS + 4 * threadIdx.x;
  float4 v[QUADS];
#pragma unroll
  for (int i = 0; i < QUADS; ++i) {
    const int64_t c = first + i * THREADS * 4;
    v[i] = make_float4(-infinity(), -infinity(), -infinity(), -infinity());
    if (c + 4 <= end) {
      v[i] = __ldcs(reinterpret_cast<const float4 *>(s + c));
    } else if (c < end) {
      v[i].x = s[c];
      if (c + 1 < end) v[i].y = s[c + 1];
      if (c + 2 < end) v[i].z = s[c + 2];
    }
  }
#pragma unroll
  for (int i = 0; i < QUADS; ++i) {
    // `fmaxf` passes over NaN.
    float best = fmaxf(fmaxf(fmaxf(-infinity(), v[i].x), v[i].y), fmaxf(v[i].z, v[i].w));
    for (uint32_t width = 1; width < 1u << lanes_log2; width *= 2) best = fmaxf(best, __shfl_xor_sync(0xFFFFFFFFu, best, width));
    const int64_t block = (first / 4 + i * THREADS) >> lanes_log2;
    if (block == newest) best = infinity();
    if (block < blocks && (threadIdx.x & ((1u << lanes_log2) - 1)) == 0) out.at<float>(row * out.stride[2])[block] = best;
  }
}

// Blocks of any size: a warp takes one.
extern "C" __global__ void __launch_bounds__(THREADS)
candidate_block_max(View scores, View visible, View out, uint32_t block_size, uint32_t *) {
  const int64_t blocks = out.columns(), item = (int64_t(blockIdx.x) * THREADS + threadIdx.x) / 32;
  if (item >= out.shape[2] * blocks) return;
  const int64_t row = item / blocks, block = item % blocks, first = block * block_size;
  const int64_t sees = max(0, *visible.at<int32_t>(row * visible.stride[3]));
  const int64_t end = min(min(scores.columns(), sees), first + block_size);
  const float *s = scores.at<float>(row * scores.stride[2]);
  float best = -infinity();
  for (int64_t c = first + threadIdx.x % 32; c < end; c += 32) best = fmaxf(best, s[c]);
  for (int width = 16; width > 0; width /= 2) best = fmaxf(best, __shfl_xor_sync(0xFFFFFFFFu, best, width));
  if (sees > 0 && (sees - 1) / block_size == block) best = infinity();
  if (threadIdx.x % 32 == 0) out.at<float>(row * out.stride[2])[block] = best;
}
