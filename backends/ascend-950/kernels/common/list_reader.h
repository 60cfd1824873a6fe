// A list in global memory, read by S number by number: MTE2 brings 1024 at a time into the UB.
#pragma once

#include "sync.h"
#include "tiling.h"

template <class T> class ListReader {
public:
  __aicore__ inline void init(AscendC::TPipe &pipe, GM_ADDR list, int64_t count) {
    pipe.InitBuffer(room_, MOST * sizeof(T));
    list_.SetGlobalBuffer(reinterpret_cast<__gm__ T *>(list));
    count_ = count;
  }

  __aicore__ inline T at(int64_t index) {
    if (index < begin_ || index >= end_) load(index);
    return room_.template Get<T>().GetValue(static_cast<uint32_t>(index - begin_));
  }

private:
  static constexpr uint32_t MOST = 1024;

  __aicore__ inline void load(int64_t index) {
    begin_ = index;
    end_ = least(count_, index + MOST);
    // S has read what was here.
    order<AscendC::HardEvent::S_MTE2>();
    AscendC::DataCopyPad(room_.template Get<T>(), list_[begin_],
                         AscendC::DataCopyExtParams(1, static_cast<uint32_t>((end_ - begin_) * sizeof(T)), 0, 0, 0),
                         AscendC::DataCopyPadExtParams<T>());
    order<AscendC::HardEvent::MTE2_S>();
  }

  AscendC::TBuf<AscendC::TPosition::VECCALC> room_;
  AscendC::GlobalTensor<T> list_;
  int64_t count_ = 0, begin_ = 0, end_ = 0;
};
