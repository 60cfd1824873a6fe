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

// To nearest even. A NaN that BF16 holds keeps its bits, any other becomes a quiet one. `a`, `b` and `c` are scratch; all tensors lie
// apart. V sees the result behind a barrier.
__aicore__ inline void narrow_bits(const AscendC::LocalTensor<uint16_t> &to, const AscendC::LocalTensor<uint32_t> &from,
                                   const AscendC::LocalTensor<uint32_t> &a, const AscendC::LocalTensor<uint32_t> &b,
                                   const AscendC::LocalTensor<uint32_t> &c, uint32_t count) {
  using namespace AscendC;
  const int32_t n = static_cast<int32_t>(count);
  const LocalTensor<int32_t> x = a.ReinterpretCast<int32_t>(), y = b.ReinterpretCast<int32_t>(), z = c.ReinterpretCast<int32_t>();
  and_bits(a, from, MAGNITUDE_BITS, n);
  and_bits(b, from, 0xFFFFu, n);
  vector_barrier();
  // z: 1 for a NaN. y: 1 for something in the lower half.
  Mins(z, x, static_cast<int32_t>(INFINITY_BITS + 1), n);
  Adds(y, y, 0xFFFF, n);
  vector_barrier();
  Adds(z, z, -static_cast<int32_t>(INFINITY_BITS), n);
  ShiftRight(y, y, 16, n);
  vector_barrier();
  Maxs(z, z, 0, n);
  // x: by how much the upper half grows; that of an infinity or a NaN does not.
  Mins(x, x, static_cast<int32_t>(INFINITY_BITS), n);
  vector_barrier();
  And(z, z, y, n);
  vector_barrier();
  ShiftLeft(z, z, 6, n);
  ShiftRight(y, x, 16, n);
  vector_barrier();
  and_bits(b, b, 1u, n);
  and_bits(a, a, 0xFFFFu, n);
  vector_barrier();
  Add(x, x, y, n);
  vector_barrier();
  ShiftRight(b, from, 16u, n);
  Adds(x, x, 0x7FFF, n);
  vector_barrier();
  ShiftRight(x, x, 16, n);
  vector_barrier();
  Add(x, x, y, n);
  vector_barrier();
  Or(x, x, z, n);
  vector_barrier();
  Cast(to, a, RoundMode::CAST_NONE, count);
}
