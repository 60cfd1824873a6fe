// A piece of a list of I32 numbers in the UB, for S: MTE2 brings it, S reads and changes it, MTE3 takes it away.
#pragma once

#include "sync.h"

class IndexPiece {
public:
  static constexpr uint32_t MOST = 2048;

  __aicore__ inline void init(AscendC::TPipe &pipe) { pipe.InitBuffer(room_, MOST * 4); }

  __aicore__ inline AscendC::LocalTensor<int32_t> numbers() { return room_.Get<int32_t>(); }

  // Behind it S sees `count` numbers.
  __aicore__ inline void load(const AscendC::GlobalTensor<int32_t> &from, uint32_t count) {
    // S has read what was here before, and has seen it taken away.
    order<AscendC::HardEvent::S_MTE2>();
    AscendC::DataCopyPad(numbers(), from, AscendC::DataCopyExtParams(1, count * 4, 0, 0, 0), AscendC::DataCopyPadExtParams<int32_t>());
    order<AscendC::HardEvent::MTE2_S>();
  }

  // Behind it S may write the numbers again.
  __aicore__ inline void store(const AscendC::GlobalTensor<int32_t> &to, uint32_t count) {
    order<AscendC::HardEvent::S_MTE3>();
    AscendC::DataCopyPad(to, numbers(), AscendC::DataCopyExtParams(1, count * 4, 0, 0, 0));
    order<AscendC::HardEvent::MTE3_S>();
  }

private:
  // The place from which MTE3 may take what MTE2 brought.
  AscendC::TBuf<AscendC::TPosition::VECIN> room_;
};
