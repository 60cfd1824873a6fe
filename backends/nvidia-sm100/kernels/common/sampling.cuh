// Gumbel noise and weights in integers. The definition, with vectors, is plugin-api/numerics/SAMPLING.md.
#pragma once

#include <cstdint>

#include "fixed_tables.cuh"

// Above every noise: that of lane 0 is 22.87, and noise falls as the lane grows.
constexpr float MOST_NOISE = 22.9f;

struct Lanes {
  uint32_t word[4];
};

// Philox4x32-10 (Salmon, Moraes, Dror and Shaw, SC 2011): the lanes of tokens 4 * block to 4 * block + 3, domain 0.
__device__ inline Lanes philox(uint64_t seed, uint32_t position, uint32_t block, uint32_t child) {
  uint32_t a = position, b = block, c = 0, d = child, key0 = uint32_t(seed), key1 = uint32_t(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t high0 = __umulhi(a, 0xD2511F53u), low0 = a * 0xD2511F53u;
    const uint32_t high1 = __umulhi(c, 0xCD9E8D57u), low1 = c * 0xCD9E8D57u;
    a = high1 ^ b ^ key0;
    b = low1;
    c = high0 ^ d ^ key1;
    d = low0;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return {{a, b, c, d}};
}

// 2^64 / k, rounded down.
__device__ constexpr uint64_t inverse(unsigned k) { return ~uint64_t(0) / k + (~uint64_t(0) % k == k - 1); }

// ln(m / 2^63) with 64 fraction bits, for 2^63 <= m < 2^64.
__device__ inline uint64_t ln_mantissa(uint64_t m) {
  // The seven bits after the leading one choose c, just above the inverse of the mantissa.
  const uint32_t i = uint32_t(m >> 56) & 127, c = ((1u << 22) + 127 + i) / (128 + i);
  // m * c has 78 fraction bits; 64 are kept, and the integer part, which is 1, is dropped.
  const uint64_t z = __umul64hi(m, c) << 50 | (m * c) >> 14;
  uint64_t series = inverse(8);
#pragma unroll
  for (unsigned k = 7; k >= 2; --k) series = inverse(k) - __umul64hi(z, series);
  return LN_TABLE[i] + (z - __umul64hi(z, __umul64hi(z, series)));
}

// A number of 128 bits.
struct Wide {
  uint64_t high, low;
};

// -ln(x / 2^fraction_bits) with 64 fraction bits, where that is not negative: 0 < x <= 2^fraction_bits.
__device__ inline Wide minus_ln(uint64_t x, int fraction_bits) {
  constexpr uint64_t LN2 = 0xB17217F7D1CF79ACull;
  const int zeros = __clzll(x), octaves = fraction_bits - (63 - zeros);
  const uint64_t part = ln_mantissa(x << zeros);
  const Wide whole = {__umul64hi(LN2, octaves), LN2 * octaves};
  return {whole.high - (whole.low < part), whole.low - part};
}

// The noise of a uniform 32-bit integer: the exact fixed-point number, rounded once.
__device__ inline float noise(uint32_t lane) {
  const Wide exponential = minus_ln((uint64_t(1) << 33) - 1 - 2 * uint64_t(lane), 33);
  // ln(E) of E = exponential / 2^64, which is below 2^5: the leading 64 bits of E, and where its leading one is.
  constexpr uint64_t LN2 = 0xB17217F7D1CF79ACull;
  const int zeros = exponential.high ? __clzll(exponential.high) : 64 + __clzll(exponential.low);
  const uint64_t mantissa = zeros >= 64 ? exponential.low << (zeros - 64)
                            : zeros == 0 ? exponential.high
                                         : exponential.high << zeros | exponential.low >> (64 - zeros);
  const uint64_t part = ln_mantissa(mantissa);
  // ln(E) = exponent * ln 2 + part; the noise is its negative.
  const int exponent = 63 - zeros;
  const bool is_negative = exponent >= 0;
  const uint64_t octaves = is_negative ? exponent : -exponent;
  Wide size = {__umul64hi(LN2, octaves), LN2 * octaves};
  if (is_negative) {
    size.low += part;
    size.high += size.low < part;
  } else {
    size.high -= size.low < part;
    size.low -= part;
  }
  // Rounded to nearest even from 64 leading bits, whose last says whether anything was cut.
  const int shift = size.high ? 64 - __clzll(size.high) : 0;
  uint64_t leading = shift ? (shift == 64 ? size.high : size.high << (64 - shift) | size.low >> shift) : size.low;
  if (shift && (shift == 64 ? size.low : size.low << (64 - shift))) leading |= 1;
  const float rounded = ldexpf(__ull2float_rn(leading), shift - 64);
  return is_negative ? -rounded : rounded;
}

// x in units of 2^-27, for x < 32; a NaN or negative x counts as 0.
__device__ inline uint32_t fixed_of(float x) { return x > 0 ? __float2uint_rz(__fmul_rn(x, 0x1p27f)) : 0u; }

// 2^46 e^-x, as an integer.
__device__ inline uint64_t weight_of_fixed(uint32_t x) {
  const uint64_t y = uint64_t(x) * 0xB8AA3B29ull;
  const uint64_t t = y >> 18 & 0xFFFFFFFFull, r = t * 0xB17217F8ull >> 32;
  const uint64_t series = 0x80000000ull - (r * 0x2AAAAAAAull >> 40);
  const uint64_t fall = r - (r * (r * series >> 32) >> 40);
  const uint64_t factor = POWER_TABLE[y >> 50 & 255];
  return ((factor << 15) - (factor * fall >> 25)) >> (y >> 58);
}

__device__ inline uint64_t weight(float x) { return x >= 32.0f ? 0 : weight_of_fixed(fixed_of(x)); }

// ceil(total * share), exactly, for 0 < share < 1 and total up to 2^63.
__device__ inline uint64_t mass_needed(uint64_t total, float share) {
  const uint32_t bits = __float_as_uint(share), exponent = bits >> 23 ? bits >> 23 : 1;
  const uint64_t mantissa = bits >> 23 ? (bits & 0x7FFFFFu) | 0x800000u : bits;
  // The product has at most 87 bits and is to be shifted by 24 to 149.
  const int shift = 150 - int(exponent);
  if (shift > 87) return 1;
  const uint64_t high = __umul64hi(total, mantissa), low = total * mantissa;
  if (shift >= 64) {
    const int rest = shift - 64;
    const bool is_cut = low != 0 || (rest > 0 && (high << (64 - rest)) != 0);
    return (high >> rest) + is_cut;
  }
  return (high << (64 - shift) | low >> shift) + ((low << (64 - shift)) != 0);
}
