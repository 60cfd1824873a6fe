// e^x by V, as a number near 1 and a power of two, so that nothing becomes a denormal on the way.
//
// x = k ln 2 + r with |r| <= 0.35: k ln 2 is taken off in two steps, the first exact; the device's Exp of r is within an ulp, and the
// rest adds a quarter of one.
#pragma once

#include "bits.h"
#include "sync.h"

// `near` gets e^r and `power` k, for -LARGEST_ARGUMENT <= x; below, it is e^-LARGEST_ARGUMENT, a zero once it is scaled. x above that
// has no meaning, and a NaN becomes any number. `x` is lost, `scratch` lies apart. With HAS_REST the number is x + rest, where rest is small beside x.
constexpr float LARGEST_ARGUMENT = 174.0f;
template <bool HAS_REST = false>
__aicore__ inline void exponential(const AscendC::LocalTensor<float> &near, const AscendC::LocalTensor<int32_t> &power,
                                   const AscendC::LocalTensor<float> &x, const AscendC::LocalTensor<float> &scratch, int32_t count,
                                   const AscendC::LocalTensor<float> &rest = AscendC::LocalTensor<float>()) {
  using namespace AscendC;
  const uint32_t n = static_cast<uint32_t>(count);
  vector_barrier();
  Maxs(x, x, -LARGEST_ARGUMENT, count);
  vector_barrier();
  Muls(scratch, x, 1.4426950408889634f, count);
  vector_barrier();
  Cast(power, scratch, RoundMode::CAST_RINT, n);
  vector_barrier();
  Cast(scratch, power, RoundMode::CAST_RINT, n);
  vector_barrier();
  // 9 bits of ln 2, and the rest of it.
  Muls(near, scratch, -0.693359375f, count);
  vector_barrier();
  Muls(scratch, scratch, 2.12194440e-4f, count);
  Add(near, near, x, count);
  vector_barrier();
  if constexpr (HAS_REST) {
    Add(scratch, scratch, rest, count);
    vector_barrier();
  }
  Add(near, near, scratch, count);
  vector_barrier();
  Exp(near, near, count);
  vector_barrier();
}

// 2^power in two factors, which are normal numbers for -252 <= power <= 254: `first` and `second`, neither of them `power`. What came
// before in V is done.
__aicore__ inline void two_factors(const AscendC::LocalTensor<int32_t> &first, const AscendC::LocalTensor<int32_t> &second,
                                   const AscendC::LocalTensor<int32_t> &power, int32_t count) {
  using namespace AscendC;
  Maxs(first, power, -126, count);
  vector_barrier();
  Mins(first, first, 127, count);
  vector_barrier();
  Sub(second, power, first, count);
  vector_barrier();
  Adds(first, first, 127, count);
  Adds(second, second, 127, count);
  vector_barrier();
  ShiftLeft(first, first, 23, count);
  ShiftLeft(second, second, 23, count);
  vector_barrier();
}
