// Pieces of F32 or BF16 rows: from global memory into the UB as F32, and back, rounded once to nearest even. Any number of elements
// at any address of an element.
#pragma once

#include "infinities.h"
#include "sync.h"

// What a queue needs for `count` elements of a piece, whatever their format.
__aicore__ constexpr uint32_t piece_bytes(uint32_t count) { return (count * 4 + 31) / 32 * 32; }

// Elements up to the end of a block of 32 bytes of F32: what DataCopy inside the UB moves.
__aicore__ constexpr uint32_t whole_blocks(uint32_t count) { return (count + 7) / 8 * 8; }

// `to` has room for whole_blocks(count) elements. Behind it V sees them.
template <class X, class Queue>
__aicore__ inline void load_floats(Queue &queue, const AscendC::LocalTensor<float> &to, const AscendC::GlobalTensor<X> &from, uint32_t count) {
  AscendC::LocalTensor<X> raw = queue.template AllocTensor<X>();
  AscendC::DataCopyPad(raw, from, AscendC::DataCopyExtParams(1, count * static_cast<uint32_t>(sizeof(X)), 0, 0, 0),
                       AscendC::DataCopyPadExtParams<X>());
  queue.EnQue(raw);
  raw = queue.template DeQue<X>();
  // What was in `to` before has been used.
  vector_barrier();
  if constexpr (sizeof(X) == 4) AscendC::DataCopy(to, raw, whole_blocks(count));
  else AscendC::Cast(to, raw, AscendC::RoundMode::CAST_NONE, count);
  vector_barrier();
  queue.FreeTensor(raw);
}

// What V has put into `from` before goes to global memory.
template <class X, class Queue>
__aicore__ inline void store_floats(Queue &queue, const AscendC::GlobalTensor<X> &to, const AscendC::LocalTensor<float> &from, uint32_t count) {
  AscendC::LocalTensor<X> raw = queue.template AllocTensor<X>();
  vector_barrier();
  if constexpr (sizeof(X) == 4) AscendC::DataCopy(raw, from, whole_blocks(count));
  else AscendC::Cast(raw, from, AscendC::RoundMode::CAST_RINT, count);
  queue.EnQue(raw);
  raw = queue.template DeQue<X>();
  AscendC::DataCopyPad(to, raw, AscendC::DataCopyExtParams(1, count * static_cast<uint32_t>(sizeof(X)), 0, 0, 0));
  queue.FreeTensor(raw);
}
