// Orders between two pipes for one place of a kernel: what the first has done before it is seen by what the second does behind.
#pragma once

#include "kernel_operator.h"

// order<HardEvent::V_S>(): S waits until V has done all that it was given.
template <AscendC::HardEvent event> __aicore__ inline void order() {
  // Of no namespace, in the vendor's headers too.
  const int32_t id = static_cast<int32_t>(GetTPipePtr()->FetchEventID(event));
  AscendC::SetFlag<event>(id);
  AscendC::WaitFlag<event>(id);
}

__aicore__ inline void vector_barrier() { AscendC::PipeBarrier<PIPE_V>(); }
