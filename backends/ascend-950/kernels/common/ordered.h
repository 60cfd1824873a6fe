// Scores as integers in the order of their values, by V: both zeros are 0, and what is no score (NaN, and -infinity) is one number that
// the caller chooses. Comparing integers leaves nothing to how the device treats a NaN.
#pragma once

#include "bits.h"
#include "sync.h"

// The keys of the infinities, and one below all.
constexpr int32_t LOWEST_SCORE = -0x7F800000, HIGHEST_SCORE = 0x7F800000, NO_SCORE = -0x7FFFFFFF - 1;

// Keys of any bits: a magnitude with its sign as a number. Tensors lie apart. What came before in V is done; behind it V sees the keys.
__aicore__ inline void order_keys(const AscendC::LocalTensor<int32_t> &keys, const AscendC::LocalTensor<int32_t> &bits,
                                  const AscendC::LocalTensor<int32_t> &scratch, uint32_t count) {
  using namespace AscendC;
  const int32_t n = static_cast<int32_t>(count);
  // scratch: the magnitude where it is negative, else 0.
  ShiftRight(scratch, bits, 31, n);
  and_bits(keys, bits, MAGNITUDE_BITS, n);
  vector_barrier();
  And(scratch, scratch, keys, n);
  vector_barrier();
  Sub(keys, keys, scratch, n);
  vector_barrier();
  Sub(keys, keys, scratch, n);
  vector_barrier();
}

// Where `scores` is above -infinity its key, else `none`, which is at most LOWEST_SCORE. `mark` has room for a bit per element; all
// tensors lie apart. `keys` has room for whole repeats of 64. What came before in V is done; behind it V sees the keys.
__aicore__ inline void score_keys(const AscendC::LocalTensor<int32_t> &keys, const AscendC::LocalTensor<float> &scores,
                                  const AscendC::LocalTensor<uint8_t> &mark, const AscendC::LocalTensor<int32_t> &scratch, int32_t none,
                                  uint32_t count) {
  using namespace AscendC;
  const LocalTensor<float> selected = keys.ReinterpretCast<float>();
  const float other = float_of(static_cast<uint32_t>(none));
  order_keys(keys, scores.ReinterpretCast<int32_t>(), scratch, count);
  // A comparison is of whole repeats; nobody looks at the marks beyond the end.
  const uint32_t compared = (count + 63) / 64 * 64;
  // A NaN is beyond the infinities, on either side.
  Compares(mark, keys, LOWEST_SCORE, CMPMODE::GT, compared);
  vector_barrier();
  Select(selected, mark, selected, other, SELMODE::VSEL_TENSOR_SCALAR_MODE, count);
  vector_barrier();
  Compares(mark, keys, HIGHEST_SCORE, CMPMODE::LE, compared);
  vector_barrier();
  Select(selected, mark, selected, other, SELMODE::VSEL_TENSOR_SCALAR_MODE, count);
  vector_barrier();
}

// The way back; of the zeros it is +0. Tensors lie apart. What came before in V is done; behind it V sees the scores.
__aicore__ inline void scores_of_keys(const AscendC::LocalTensor<float> &scores, const AscendC::LocalTensor<int32_t> &keys,
                                      const AscendC::LocalTensor<int32_t> &scratch, uint32_t count) {
  using namespace AscendC;
  const int32_t n = static_cast<int32_t>(count);
  Abs(scratch, keys, n);
  and_bits(scores.ReinterpretCast<int32_t>(), keys, SIGN_BIT, n);
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
