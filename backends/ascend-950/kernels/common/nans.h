// NaNs kept where Max, Min and reductions may drop them: what the device gives of a NaN and a number is not stated.
#pragma once

#include "bits.h"
#include "sync.h"

// All bits set where `from` is a NaN, else none. Behind it V sees them.
__aicore__ inline void nan_mask(const AscendC::LocalTensor<int32_t> &to, const AscendC::LocalTensor<float> &from, int32_t count) {
  vector_barrier();
  and_bits(to, from.ReinterpretCast<int32_t>(), MAGNITUDE_BITS, count);
  vector_barrier();
  // Into the sign, from beyond the infinity on.
  AscendC::Adds(to, to, static_cast<int32_t>(MAGNITUDE_BITS - INFINITY_BITS), count);
  vector_barrier();
  AscendC::ShiftRight(to, to, 31, count);
  vector_barrier();
}

// A NaN wherever the mask has bits. Behind it V sees them.
__aicore__ inline void put_nans(const AscendC::LocalTensor<float> &numbers, const AscendC::LocalTensor<int32_t> &mask, int32_t count) {
  vector_barrier();
  AscendC::Or(numbers.ReinterpretCast<int32_t>(), numbers.ReinterpretCast<int32_t>(), mask, count);
  vector_barrier();
}
