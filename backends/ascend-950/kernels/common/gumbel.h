// Gumbel noise in integers, by S: SAMPLING.md of the numerics defines it, bit for bit. The table of logarithms comes with the launch.
#pragma once

#include "bits.h"
#include "wide.h"

struct Lanes {
  uint32_t word[4];
};

// Philox4x32-10 (Salmon, Moraes, Dror and Shaw, SC 2011): the lanes of tokens 4 * block to 4 * block + 3, domain 0.
__aicore__ inline Lanes philox(uint64_t seed, uint32_t position, uint32_t block, uint32_t child) {
  uint32_t a = position, b = block, c = 0, d = child, key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  for (int32_t round = 0; round < 10; ++round) {
    const uint64_t first = static_cast<uint64_t>(a) * 0xD2511F53u, second = static_cast<uint64_t>(c) * 0xCD9E8D57u;
    a = static_cast<uint32_t>(second >> 32) ^ b ^ key0;
    b = static_cast<uint32_t>(second);
    c = static_cast<uint32_t>(first >> 32) ^ d ^ key1;
    d = static_cast<uint32_t>(first);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return {{a, b, c, d}};
}

class Gumbel {
public:
  // 128 logarithms in global memory.
  __aicore__ inline void init(const __gm__ uint64_t *logarithms) { logarithms_ = logarithms; }

  // The noise of a uniform 32-bit integer: the exact fixed-point number, rounded once.
  __aicore__ inline float of(uint32_t lane) const {
    // 1 - v in units of 2^-33, then E with 64 fraction bits, then its logarithm, whose negative the noise is.
    const Wide survival = {0, (static_cast<uint64_t>(1) << 33) - 1 - 2 * static_cast<uint64_t>(lane)};
    bool is_negative;
    const Wide exponential = logarithm(survival, 33, is_negative);
    const Wide size = logarithm(exponential, 64, is_negative);
    return rounded(size, is_negative);
  }

private:
  static constexpr uint64_t LN2 = 0xB17217F7D1CF79ACull;

  // 2^64 / k, rounded down.
  static __aicore__ constexpr uint64_t inverse(uint64_t k) { return ~static_cast<uint64_t>(0) / k + (~static_cast<uint64_t>(0) % k == k - 1 ? 1 : 0); }

  // ln(m / 2^63) with 64 fraction bits, for 2^63 <= m < 2^64.
  __aicore__ inline uint64_t of_mantissa(uint64_t m) const {
    // The seven bits behind the leading one choose c, just above the inverse of the mantissa.
    const uint32_t i = static_cast<uint32_t>(m >> 56) & 127u, c = ((1u << 22) + 127 + i) / (128 + i);
    // m * c has 78 fraction bits; 64 are kept, and the integer part, which is 1, is dropped.
    const uint64_t z = multiply_high(m, c) << 50 | (m * c) >> 14;
    uint64_t series = inverse(8);
    series = inverse(7) - multiply_high(z, series);
    series = inverse(6) - multiply_high(z, series);
    series = inverse(5) - multiply_high(z, series);
    series = inverse(4) - multiply_high(z, series);
    series = inverse(3) - multiply_high(z, series);
    series = inverse(2) - multiply_high(z, series);
    return logarithms_[i] + (z - multiply_high(z, multiply_high(z, series)));
  }

  // |ln(x / 2^fraction)| with 64 fraction bits, for x that is not 0, and whether the logarithm is negative.
  __aicore__ inline Wide logarithm(Wide x, int64_t fraction, bool &is_negative) const {
    const int64_t zeros = leading_zeros(x), octaves = 127 - zeros - fraction;
    const uint64_t part = of_mantissa(shift_left(x, zeros).high);
    is_negative = octaves < 0;
    if (!is_negative) return add(product(LN2, static_cast<uint64_t>(octaves)), part);
    return subtract(product(LN2, static_cast<uint64_t>(-octaves)), part);
  }

  // A number with 64 fraction bits as F32, to nearest even.
  static __aicore__ inline float rounded(Wide size, bool is_positive) {
    if (size.high == 0 && size.low == 0) return 0.0f;
    const int64_t zeros = leading_zeros(size);
    const Wide leading = shift_left(size, zeros);
    // 24 bits stay; the last of the rest says whether anything is below it.
    const uint64_t rest = (leading.high << 24) | (leading.low != 0 ? 1u : 0u), half = static_cast<uint64_t>(1) << 63;
    uint32_t kept = static_cast<uint32_t>(leading.high >> 40);
    if (rest > half || (rest == half && (kept & 1) != 0)) ++kept;
    // The leading bit adds one to the exponent below; a carry adds another.
    const uint32_t bits = (static_cast<uint32_t>(63 - zeros + 126) << 23) + kept;
    return float_of(is_positive ? bits : bits | SIGN_BIT);
  }

  const __gm__ uint64_t *logarithms_;
};
