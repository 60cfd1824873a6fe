// BF16 and F32 as bits, by V: payloads of NaNs stay, whatever the device's casts do with them.
#pragma once

#include "bits.h"
#include "sync.h"

// Exactly. Behind it V sees the result.
__aicore__ inline void widen_bits(const AscendC::LocalTensor<uint32_t> &to, const AscendC::LocalTensor<uint16_t> &from, uint32_t count) {
  AscendC::Cast(to, from, AscendC::RoundMode::CAST_NONE, count);
  vector_barrier();
  AscendC::ShiftLeft(to, to, 16u, static_cast<int32_t>(count));
  vector_barrier();
}

// To nearest even. A NaN that BF16 holds keeps its bits, any other becomes a quiet one. `a` and `b` are scratch; all tensors lie apart.
__aicore__ inline void narrow_bits(const AscendC::LocalTensor<uint16_t> &to, const AscendC::LocalTensor<uint32_t> &from,
                                   const AscendC::LocalTensor<uint32_t> &a, const AscendC::LocalTensor<uint32_t> &b,
                                   const AscendC::LocalTensor<uint32_t> &c, uint32_t count) {
  using namespace AscendC;
  const int32_t n = static_cast<int32_t>(count);
  // c: 0x40 where it is a NaN with something in the lower half.
  Ands(a, from, MAGNITUDE_BITS, n);
  Ands(b, from, 0xFFFFu, n);
  vector_barrier();
  Mins(c, a, INFINITY_BITS + 1, n);
  Adds(b, b, 0xFFFFu, n);
  vector_barrier();
  Adds(c, c, SIGN_BIT - INFINITY_BITS - 1, n);
  ShiftRight(b, b, 16u, n);
  vector_barrier();
  ShiftRight(c, c, 31u, n);
  Mins(a, a, INFINITY_BITS, n);
  vector_barrier();
  And(c, c, b, n);
  vector_barrier();
  ShiftLeft(c, c, 6u, n);
  // a: by how much the upper half grows; that of an infinity or a NaN does not.
  ShiftRight(b, a, 16u, n);
  vector_barrier();
  Ands(b, b, 1u, n);
  Ands(a, a, 0xFFFFu, n);
  vector_barrier();
  Add(a, a, b, n);
  vector_barrier();
  ShiftRight(b, from, 16u, n);
  Adds(a, a, 0x7FFFu, n);
  vector_barrier();
  ShiftRight(a, a, 16u, n);
  vector_barrier();
  Add(a, a, b, n);
  vector_barrier();
  Or(a, a, c, n);
  vector_barrier();
  Cast(to, a, RoundMode::CAST_NONE, count);
  vector_barrier();
}
