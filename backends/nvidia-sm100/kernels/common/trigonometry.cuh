// Sine and cosine of F32 angles of any size, in F64 with an error below 2^-45, without the arrays in local memory of the library's.
#pragma once

#include <cstdint>

struct Turn {
  double sine, cosine;
};

// The first 224 bits of 2 / pi behind its point.
__constant__ const uint32_t TWO_OVER_PI[7] = {0xA2F9836Eu, 0x4E441529u, 0xFC2757D1u, 0xF534DDC0u, 0xDB629599u, 0x3C439041u, 0xFE5163ABu};

// Of |r| <= pi/4: the series up to r^17 and r^16, each term a fraction of the one before it.
__device__ inline Turn turn_of_small(double r) {
  const double square = r * r;
  double sine = 1, cosine = 1;
#pragma unroll
  for (int n = 16; n >= 2; n -= 2) {
    sine = __fma_rn(-square * (1.0 / (n * (n + 1))), sine, 1.0);
    cosine = __fma_rn(-square * (1.0 / (n * (n - 1))), cosine, 1.0);
  }
  return {r * sine, cosine};
}

// An angle in quarters of a turn, modulo 4, for |angle| = mantissa * 2^exponent of at least 2^31: `exponent` is 8 to 104. Bits of
// 2 / pi whose product with the angle is a multiple of 4 are left out; of the others 96 are enough for 24 bits of mantissa.
__device__ inline double quarters_of_large(uint32_t mantissa, int exponent, uint32_t &quadrant) {
  const int skipped = exponent - 2, word = skipped / 32, shift = skipped % 32;
  uint32_t window[3];
#pragma unroll
  for (int i = 0; i < 3; ++i) window[i] = __funnelshift_l(TWO_OVER_PI[word + i + 1], TWO_OVER_PI[word + i], shift);
  // The product modulo 2^96, in which 2^94 is a quarter.
  const uint64_t low = uint64_t(window[2]) * mantissa;
  const uint64_t middle = uint64_t(window[1]) * mantissa + (low >> 32);
  const uint32_t high = window[0] * mantissa + uint32_t(middle >> 32);
  const uint64_t top = uint64_t(high) << 32 | uint32_t(middle);
  // To the nearest quarter: what is left is between -1/2 and 1/2.
  quadrant = uint32_t((top + (uint64_t(1) << 61)) >> 62) & 3;
  return __ll2double_rn(int64_t(top << 2)) * 0x1p-64;
}

// NaN for an infinity and for NaN.
__device__ inline Turn turn_of(float angle) {
  const uint32_t bits = __float_as_uint(angle) & 0x7FFFFFFFu;
  const double size = __uint_as_float(bits);
  constexpr double HALF_PI = 0x1.921fb54442d18p+0, HALF_PI_REST = 0x1.1a62633145c07p-54;
  uint32_t quadrant;
  double r;
  if (size < 0x1p31) {
    const double quarters = rint(size * (1.0 / HALF_PI));
    quadrant = uint32_t(__double2ll_rn(quarters)) & 3;
    r = __fma_rn(-quarters, HALF_PI_REST, __fma_rn(-quarters, HALF_PI, size));
  } else {
    const uint32_t field = bits >> 23;
    if (field == 255) return {double(angle - angle), double(angle - angle)};
    r = quarters_of_large((bits & 0x7FFFFFu) | 0x800000u, int(field) - 150, quadrant) * HALF_PI;
  }
  const Turn small = turn_of_small(r);
  const double sine = quadrant & 1 ? small.cosine : small.sine, cosine = quadrant & 1 ? small.sine : small.cosine;
  const bool is_sine_negative = (quadrant & 2) != 0, is_cosine_negative = quadrant == 1 || quadrant == 2;
  return {copysign(1.0, double(angle)) * (is_sine_negative ? -sine : sine), is_cosine_negative ? -cosine : cosine};
}
