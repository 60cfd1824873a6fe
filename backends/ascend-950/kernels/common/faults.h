// How a kernel says that a value is wrong: src/faults.rs reads it when the host waits for the stream.
//
// The word holds the op's id in the low 16 bits, the place of the argument in the catalogue in the next byte, and the place of the
// rule among the op's refusals plus one in the last, as the other backends have it. Blocks may find several at once: the largest
// stays, whatever their order. MTE3 takes the larger of two numbers in one piece; scalar stores of two blocks would be a race.
#pragma once

#include "sync.h"

// `room`: 32 bytes of the UB that nobody else uses.
__aicore__ inline void report_fault(const AscendC::LocalTensor<int32_t> &room, GM_ADDR faults, uint32_t op, uint32_t argument, uint32_t rule) {
  AscendC::GlobalTensor<int32_t> word;
  word.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t *>(faults));
  room.SetValue(0, static_cast<int32_t>(op | argument << 16 | (rule + 1) << 24));
  order<AscendC::HardEvent::S_MTE3>();
  AscendC::SetAtomicMax<int32_t>();
  AscendC::DataCopyPad(word, room, AscendC::DataCopyExtParams(1, 4, 0, 0, 0));
  AscendC::SetAtomicNone();
  // S may write the room again.
  order<AscendC::HardEvent::MTE3_S>();
}
