// BF16 to F64 without a conversion, whose rate is an eighth of a product's: the bits are moved to where F64 has them. The value that
// stands there then is 2^896 times too small, exactly, also if it is a subnormal; a product makes up for it. Infinities and NaN are
// not for it.
#pragma once

#include "octet.cuh"

// 2^896.
__device__ inline double moved_scale() { return __hiloint2double((1023 + 896) << 20, 0); }

// The magnitude of a half of a pair, moved.
template <bool IS_HIGH> __device__ inline double moved_magnitude(uint32_t pair) {
  return __hiloint2double(int(IS_HIGH ? (pair & 0x7FFF0000u) >> 3 : (pair & 0x7FFFu) << 13), 0);
}

// The largest magnitude of an octet, as the bits of a BF16 value.
__device__ inline uint32_t largest_bits(const Octet<BF16> &octet) {
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) largest = __vmaxu2(largest, octet.word[i] & 0x7FFF7FFFu);
  return max(largest & 0xFFFFu, largest >> 16);
}
