// Weights of scores by their distance to the largest one: 2^46 e^-distance as integers, which SAMPLING.md of the numerics defines, bit for
// bit. Sums of integers have no order. By V for many, in lanes of 64 bits, and by S for one. The table of powers comes with the launch.
#pragma once

#include "ordered.h"
#include "wide.h"

class Weights {
public:
  // Scores that are taken at a time.
  static constexpr uint32_t LANES = 1024;

  // 256 powers in global memory.
  __aicore__ inline void init(AscendC::TPipe &pipe, const __gm__ uint32_t *powers) {
    powers_ = powers;
    pipe.InitBuffer(table_, POWERS * 4);
    pipe.InitBuffer(distance_, 2 * LANES * 4);
    pipe.InitBuffer(is_near_, LANES / 8);
    pipe.InitBuffer(wide_, 4 * LANES * 8);
    const AscendC::LocalTensor<uint32_t> table = table_.Get<uint32_t>();
    for (uint32_t i = 0; i < POWERS; ++i) table.SetValue(i, powers[i]);
    order<AscendC::HardEvent::S_V>();
  }

  // The weight of one score.
  __aicore__ inline uint64_t of(float largest, float score) const {
    const float distance = largest - score;
    // Two infinities have no distance.
    if (!(distance > 0.0f)) return of_fixed(0);
    return distance >= FAR ? 0 : of_fixed(static_cast<uint64_t>(static_cast<int64_t>(distance * TO_FIXED)));
  }

  // The weights of the scores of `count` keys where both marks have a bit, else 0, in `to`. `largest` is the largest score. What came
  // before in V is done; behind it V sees them.
  __aicore__ inline void of_keys(const AscendC::LocalTensor<uint64_t> &to, const AscendC::LocalTensor<int32_t> &keys, float largest,
                                 const AscendC::LocalTensor<uint8_t> &mark, const AscendC::LocalTensor<uint8_t> &other, uint32_t count) {
    using namespace AscendC;
    const int32_t n = static_cast<int32_t>(count);
    const LocalTensor<float> distance = distance_.GetWithOffset<float>(LANES, 0);
    const LocalTensor<int32_t> scratch = distance_.GetWithOffset<int32_t>(LANES, LANES * 4);
    const LocalTensor<uint8_t> is_near = is_near_.Get<uint8_t>();
    scores_of_keys(distance, keys, scratch, count);
    Muls(distance, distance, -1.0f, n);
    vector_barrier();
    Adds(distance, distance, largest, n);
    vector_barrier();
    // Two infinities have no distance: their NaN is not above 0.
    Compares(is_near, distance, 0.0f, CMPMODE::GT, count);
    vector_barrier();
    Select(distance, is_near, distance, 0.0f, SELMODE::VSEL_TENSOR_SCALAR_MODE, count);
    vector_barrier();
    // A weight of 32 is 0.
    Mins(distance, distance, FAR, n);
    vector_barrier();
    Select(distance, mark, distance, FAR, SELMODE::VSEL_TENSOR_SCALAR_MODE, count);
    vector_barrier();
    Select(distance, other, distance, FAR, SELMODE::VSEL_TENSOR_SCALAR_MODE, count);
    vector_barrier();
    Muls(distance, distance, TO_FIXED, n);
    vector_barrier();
    Cast(wide(0).ReinterpretCast<int64_t>(), distance, RoundMode::CAST_TRUNC, count);
    vector_barrier();
    of_fixed(to, n);
  }

private:
  static constexpr uint32_t POWERS = 256;
  static constexpr float FAR = 32.0f, TO_FIXED = 134217728.0f;
  static constexpr uint64_t LOG2E = 0xB8AA3B29u, LN2 = 0xB17217F8u, SIXTH = 0x2AAAAAAAu, HALF = 0x80000000u, LOW = 0xFFFFFFFFu;

  __aicore__ inline AscendC::LocalTensor<uint64_t> wide(uint32_t which) { return wide_.GetWithOffset<uint64_t>(LANES, which * LANES * 8); }

  __aicore__ inline uint64_t of_fixed(uint64_t x) const {
    const uint64_t y = x * LOG2E, r = (y >> 18 & LOW) * LN2 >> 32;
    const uint64_t series = HALF - (r * SIXTH >> 40), fall = r - (r * (r * series >> 32) >> 40);
    const uint64_t factor = powers_[y >> 50 & 255];
    return ((factor << 15) - (factor * fall >> 25)) >> (y >> 58);
  }

  // The same of many, which lie in the first wide tensor.
  __aicore__ inline void of_fixed(const AscendC::LocalTensor<uint64_t> &to, int32_t n) {
    using namespace AscendC;
    const LocalTensor<uint64_t> y = wide(0), r = wide(1), a = wide(2), factor = wide(3);
    Muls(y, y, LOG2E, n);
    vector_barrier();
    look_up(factor, y, n);
    ShiftRight(r, y, static_cast<uint64_t>(18), n);
    vector_barrier();
    Ands(r, r, LOW, n);
    vector_barrier();
    scaled(r, r, LN2, 32, n);
    // 1/2 - r/6, then r - r^2 times that.
    scaled(a, r, SIXTH, 40, n);
    negated(a, HALF, n);
    scaled(a, a, r, 32, n);
    scaled(a, a, r, 40, n);
    Sub(r, r, a, n);
    vector_barrier();
    scaled(a, factor, r, 25, n);
    ShiftLeft(factor, factor, static_cast<uint64_t>(15), n);
    vector_barrier();
    Sub(to, factor, a, n);
    vector_barrier();
    // To the right by the octaves, up to 46.
    ShiftRight(a, y, static_cast<uint64_t>(58), n);
    vector_barrier();
    ShiftRight(to, to, a.ReinterpretCast<int64_t>(), n);
    vector_barrier();
  }

  // to = a * b >> by.
  __aicore__ inline void scaled(const AscendC::LocalTensor<uint64_t> &to, const AscendC::LocalTensor<uint64_t> &a, uint64_t b, uint64_t by, int32_t n) {
    AscendC::Muls(to, a, b, n);
    vector_barrier();
    AscendC::ShiftRight(to, to, by, n);
    vector_barrier();
  }
  __aicore__ inline void scaled(const AscendC::LocalTensor<uint64_t> &to, const AscendC::LocalTensor<uint64_t> &a,
                                const AscendC::LocalTensor<uint64_t> &b, uint64_t by, int32_t n) {
    AscendC::Mul(to, a, b, n);
    vector_barrier();
    AscendC::ShiftRight(to, to, by, n);
    vector_barrier();
  }

  // a = from - a.
  __aicore__ inline void negated(const AscendC::LocalTensor<uint64_t> &a, uint64_t from, int32_t n) {
    AscendC::Muls(a, a, ~static_cast<uint64_t>(0), n);
    vector_barrier();
    AscendC::Adds(a, a, from, n);
    vector_barrier();
  }

  // The powers that the eight bits of y below the octaves name.
  __aicore__ inline void look_up(const AscendC::LocalTensor<uint64_t> &to, const AscendC::LocalTensor<uint64_t> &y, int32_t n) {
    using namespace AscendC;
    const uint32_t count = static_cast<uint32_t>(n);
    const LocalTensor<uint32_t> offset = distance_.GetWithOffset<uint32_t>(LANES, 0), found = distance_.GetWithOffset<uint32_t>(LANES, LANES * 4);
    // Offsets are in bytes.
    ShiftRight(to, y, static_cast<uint64_t>(48), n);
    vector_barrier();
    Ands(to, to, static_cast<uint64_t>(0x3FC), n);
    vector_barrier();
    Cast(offset.ReinterpretCast<int32_t>(), to.ReinterpretCast<int64_t>(), RoundMode::CAST_NONE, count);
    vector_barrier();
    Gather(found, table_.Get<uint32_t>(), offset, 0, count);
    vector_barrier();
    // The largest is 2^31, which a signed number has below 0.
    Cast(to.ReinterpretCast<int64_t>(), found.ReinterpretCast<int32_t>(), RoundMode::CAST_NONE, count);
    vector_barrier();
    Ands(to, to, LOW, n);
    vector_barrier();
  }

  const __gm__ uint32_t *powers_;
  AscendC::TBuf<AscendC::TPosition::VECCALC> table_, distance_, is_near_, wide_;
};

// ceil(total * share), exactly, for 0 < share < 1 and total up to 2^63.
__aicore__ inline uint64_t mass_needed(uint64_t total, float share) {
  const uint32_t bits = bits_of(share), exponent = bits >> 23 != 0 ? bits >> 23 : 1;
  const uint64_t mantissa = bits >> 23 != 0 ? (bits & 0x7FFFFFu) | 0x800000u : bits;
  // The product has at most 87 bits and goes to the right by 24 to 149.
  const int64_t shift = 150 - static_cast<int64_t>(exponent);
  if (shift > 87) return 1;
  const Wide all = product(total, mantissa), kept = shift_left(all, 128 - shift);
  const uint64_t whole = shift >= 64 ? all.high >> (shift - 64) : all.high << (64 - shift) | all.low >> shift;
  return whole + (kept.high != 0 || kept.low != 0 ? 1 : 0);
}
