// Floats as integers in the order of their values, and counts of a block.
#pragma once

#include <cstdint>

// Ascends with the value; +0 and -0 are equal, NaN is below -infinity.
__device__ inline uint32_t order_of(float value) {
  if (isnan(value)) return 0;
  const uint32_t bits = __float_as_uint(__fadd_rn(value, 0.0f));
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// How many threads of the block before this one say yes, and how many in all.
struct Count {
  int before, all;
};

// By all of `T` threads; `scratch` has T / 32 places.
template <int T> __device__ inline Count count_block(bool yes, int *scratch) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t votes = __ballot_sync(0xFFFFFFFFu, yes);
  if (lane == 0) scratch[warp] = __popc(votes);
  __syncthreads();
  Count count = {__popc(votes & ((1u << lane) - 1)), 0};
  for (int w = 0; w < T / 32; ++w) {
    count.before += w < warp ? scratch[w] : 0;
    count.all += scratch[w];
  }
  __syncthreads();
  return count;
}
