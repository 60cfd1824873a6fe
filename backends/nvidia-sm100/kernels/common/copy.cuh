// Copies by a warp.
#pragma once

#include <cstdint>

__device__ inline bool is_on_16(const void *address) { return (reinterpret_cast<uintptr_t>(address) & 15) == 0; }

// Pieces of 16 bytes where both sides lie on such a boundary.
__device__ inline void warp_copy(unsigned char *to, const unsigned char *from, int64_t bytes) {
  const int lane = threadIdx.x % 32;
  const int64_t pieces = is_on_16(to) && is_on_16(from) ? bytes / 16 : 0;
  for (int64_t i = lane; i < pieces; i += 32) reinterpret_cast<uint4 *>(to)[i] = reinterpret_cast<const uint4 *>(from)[i];
  for (int64_t i = pieces * 16 + lane; i < bytes; i += 32) to[i] = from[i];
}
