// A float's bits and a number from bits, in the scalar pipe.
#pragma once

#include "kernel_operator.h"

union FloatBits {
  float number;
  uint32_t bits;
};

__aicore__ inline uint32_t bits_of(float x) {
  FloatBits both;
  both.number = x;
  return both.bits;
}

__aicore__ inline float float_of(uint32_t bits) {
  FloatBits both;
  both.bits = bits;
  return both.number;
}

constexpr uint32_t INFINITY_BITS = 0x7F800000u, MAGNITUDE_BITS = 0x7FFFFFFFu, SIGN_BIT = 0x80000000u, NAN_BITS = 0x7FC00000u;

// 2^exponent for -126 <= exponent <= 127.
__aicore__ inline float power_of_two(int32_t exponent) { return float_of(static_cast<uint32_t>(exponent + 127) << 23); }

// Bits of 32-bit elements under one mask, by V: as pairs, for the device takes a scalar mask of 64 bits but not of 32. Of an odd
// number of elements one more is read and written.
template <class T>
__aicore__ inline void and_bits(const AscendC::LocalTensor<T> &to, const AscendC::LocalTensor<T> &from, uint32_t mask, int32_t count) {
  static_assert(sizeof(T) == 4, "elements of 32 bits");
  const uint64_t pair = static_cast<uint64_t>(mask) << 32 | mask;
  AscendC::Ands(to.template ReinterpretCast<uint64_t>(), from.template ReinterpretCast<uint64_t>(), pair, (count + 1) / 2);
}
