// Integers of 64 and 128 bits, by S.
#pragma once

#include "kernel_operator.h"

// The upper half of a product.
__aicore__ inline uint64_t multiply_high(uint64_t a, uint64_t b) {
  const uint64_t a_low = a & 0xFFFFFFFFu, a_high = a >> 32, b_low = b & 0xFFFFFFFFu, b_high = b >> 32;
  const uint64_t low = a_low * b_low, cross = a_high * b_low + (low >> 32), other = a_low * b_high + (cross & 0xFFFFFFFFu);
  return a_high * b_high + (cross >> 32) + (other >> 32);
}

struct Wide {
  uint64_t high, low;
};

__aicore__ inline Wide add(Wide a, uint64_t b) { return {a.high + (a.low + b < b ? 1u : 0u), a.low + b}; }
__aicore__ inline Wide subtract(Wide a, uint64_t b) { return {a.high - (a.low < b ? 1u : 0u), a.low - b}; }
__aicore__ inline Wide product(uint64_t a, uint64_t b) { return {multiply_high(a, b), a * b}; }

// By 0 to 127 bits.
__aicore__ inline Wide shift_left(Wide a, int64_t by) {
  if (by == 0) return a;
  if (by >= 64) return {a.low << (by - 64), 0};
  return {a.high << by | a.low >> (64 - by), a.low << by};
}

// Of a number that is not 0.
__aicore__ inline int64_t leading_zeros(Wide a) {
  return a.high != 0 ? AscendC::ScalarCountLeadingZero(a.high) : 64 + AscendC::ScalarCountLeadingZero(a.low);
}
