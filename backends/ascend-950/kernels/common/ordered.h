// Scores as integers in the order of their values, by V: both zeros are 0, and what is no score (NaN, and -infinity) is one number that
// the caller chooses. Comparing integers leaves nothing to how the device treats a NaN.
#pragma once

#include "bits.h"
#include "sync.h"

// The keys of the infinities, and one below all.
constexpr int32_t LOWEST_SCORE = -0x7F800000, HIGHEST_SCORE = 0x7F800000, NO_SCORE = -0x7FFFFFFF - 1;

// Keys of any bits: a magnitude with its sign as a number. `bits` may be `keys`; `scratch` lies apart.
__aicore__ inline void order_keys(const AscendC::LocalTensor<int32_t> &keys, const AscendC::LocalTensor<int32_t> &bits,
                                  const AscendC::LocalTensor<int32_t> &scratch, uint32_t count) {
  using namespace AscendC;
  const int32_t n = static_cast<int32_t>(count);
  // scratch: the magnitude where it is negative, else 0.
  ShiftRight(scratch, bits, 31, n);
  vector_barrier();
  Ands(keys, bits, static_cast<int32_t>(MAGNITUDE_BITS), n);
  vector_barrier();
  And(scratch, scratch, keys, n);
  vector_barrier();
  Sub(keys, keys, scratch, n);
  vector_barrier();
  Sub(keys, keys, scratch, n);
  vector_barrier();
}

// Where `scores` is above -infinity its key, else `none`. `is_score` gets a bit per element; `scratch` and `keys` lie apart from all.
// What came before in V is done; behind it V sees the keys.
__aicore__ inline void score_keys(const AscendC::LocalTensor<int32_t> &keys, const AscendC::LocalTensor<float> &scores,
                                  const AscendC::LocalTensor<uint8_t> &is_score, const AscendC::LocalTensor<int32_t> &scratch, int32_t none,
                                  uint32_t count) {
  using namespace AscendC;
  order_keys(keys, scores.ReinterpretCast<int32_t>(), scratch, count);
  // Scores are neighbours: counted from the lowest finite one, all else is beyond the highest.
  const LocalTensor<uint32_t> place = scratch.ReinterpretCast<uint32_t>();
  Adds(place, keys.ReinterpretCast<uint32_t>(), 0x7F7FFFFFu, static_cast<int32_t>(count));
  vector_barrier();
  Compares(is_score, place, 0xFEFFFFFFu, CMPMODE::LE, count);
  vector_barrier();
  Select(keys.ReinterpretCast<float>(), is_score, keys.ReinterpretCast<float>(), float_of(static_cast<uint32_t>(none)),
         SELMODE::VSEL_TENSOR_SCALAR_MODE, count);
  vector_barrier();
}

// The way back; of the zeros it is +0. Tensors lie apart. Behind it V sees the scores.
__aicore__ inline void scores_of_keys(const AscendC::LocalTensor<float> &scores, const AscendC::LocalTensor<int32_t> &keys,
                                      const AscendC::LocalTensor<int32_t> &scratch, uint32_t count) {
  using namespace AscendC;
  const int32_t n = static_cast<int32_t>(count);
  vector_barrier();
  Abs(scratch, keys, n);
  Ands(scores.ReinterpretCast<int32_t>(), keys, static_cast<int32_t>(SIGN_BIT), n);
  vector_barrier();
  Or(scores.ReinterpretCast<int32_t>(), scores.ReinterpretCast<int32_t>(), scratch, n);
  vector_barrier();
}

// The same of one number, by S.
__aicore__ inline float score_of_key(int32_t key) {
  return float_of(key < 0 ? SIGN_BIT | static_cast<uint32_t>(-key) : static_cast<uint32_t>(key));
}
__aicore__ inline int32_t key_of_score(float score) {
  const uint32_t bits = bits_of(score), magnitude = bits & MAGNITUDE_BITS;
  return bits & SIGN_BIT ? -static_cast<int32_t>(magnitude) : static_cast<int32_t>(magnitude);
}
