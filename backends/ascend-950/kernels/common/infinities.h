// Infinities and NaNs stay what they are in what a kernel converts. As a device is at first, a cast to BF16 makes the largest finite
// number of an infinity and of what rounds to one, and 0 of a NaN (bit 48 of the control register).
#pragma once

#include "kernel_operator.h"

// Lives behind the TPipe, whose constructor writes the register, and as long as the kernel does.
class InfinitiesStay {
public:
  __aicore__ inline InfinitiesStay() : before_(AscendC::GetCtrlSpr<48, 48>()) { AscendC::SetCtrlSpr<48, 48>(1); }
  // What the barrier reports is reported: the twin throws it.
  __aicore__ inline ~InfinitiesStay() noexcept(false) {
    // What V still has to do was meant as it stands.
    AscendC::PipeBarrier<PIPE_ALL>();
    AscendC::SetCtrlSpr<48, 48>(before_);
  }

private:
  int64_t before_;
};
