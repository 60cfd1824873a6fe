// Products of F32 numbers with what their rounding drops, element by element: a * b = product + low, exactly, as long as neither
// overflows nor comes near the denormals. There is no fused multiplication that the device promises; Dekker's way needs none.
#pragma once

#include "sync.h"

// a = high + low, each with at most 12 significant bits. `high` and `low` are neither `a` nor each other.
__aicore__ inline void split(const AscendC::LocalTensor<float> &high, const AscendC::LocalTensor<float> &low, const AscendC::LocalTensor<float> &a,
                             int32_t count) {
  AscendC::Muls(high, a, 4097.0f, count);
  vector_barrier();
  AscendC::Sub(low, high, a, count);
  vector_barrier();
  AscendC::Sub(high, high, low, count);
  vector_barrier();
  AscendC::Sub(low, a, high, count);
  vector_barrier();
}

// A number and its two halves.
struct Halves {
  AscendC::LocalTensor<float> whole, high, low;
};

// All six tensors and `scratch` apart from each other; a and b may be one. Behind it V sees the product, and `low` behind a barrier.
__aicore__ inline void exact_product(const AscendC::LocalTensor<float> &product, const AscendC::LocalTensor<float> &low, const Halves &a,
                                     const Halves &b, const AscendC::LocalTensor<float> &scratch, int32_t count) {
  AscendC::Mul(product, a.whole, b.whole, count);
  AscendC::Mul(low, a.high, b.high, count);
  AscendC::Mul(scratch, a.high, b.low, count);
  vector_barrier();
  AscendC::Sub(low, low, product, count);
  vector_barrier();
  AscendC::Add(low, low, scratch, count);
  vector_barrier();
  AscendC::Mul(scratch, a.low, b.high, count);
  vector_barrier();
  AscendC::Add(low, low, scratch, count);
  vector_barrier();
  AscendC::Mul(scratch, a.low, b.low, count);
  vector_barrier();
  AscendC::Add(low, low, scratch, count);
}
