// The scaled formats by their definition, one element at a time: what kernels are compared with.
#pragma once

#include "harness.h"

namespace selftest {

inline uint8_t reference_e4m3(float x) {
  const uint32_t bits = di_twin::bits_of(x), magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return uint8_t((bits >> 24 & 0x80) | 0x7F);
  const double value = std::fabs(double(x));
  int best = 0;
  double distance = 1e300;
  for (int code = 0; code < 0x7F; ++code) {
    const double here = std::fabs(double(di_twin::to_float(fp8_e4m3fn_t{uint8_t(code)})) - std::min(value, 448.0));
    if (here < distance || (here == distance && code % 2 == 0)) distance = here, best = code;
  }
  return uint8_t((bits >> 24 & 0x80) | uint32_t(best));
}

inline float reference_e2m1_value(uint32_t code) {
  static const float values[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  return code & 8 ? -values[code & 7] : values[code & 7];
}

inline uint8_t reference_e2m1(float x) {
  const double value = x != x ? 6.0 : std::min(std::fabs(double(x)), 6.0);
  uint32_t best = 0;
  for (uint32_t code = 1; code < 8; ++code) {
    const double here = std::fabs(double(reference_e2m1_value(code)) - value), there = std::fabs(double(reference_e2m1_value(best)) - value);
    if (here < there || (here == there && code % 2 == 0)) best = code;
  }
  return uint8_t((di_twin::bits_of(x) >> 28 & 8) | best);
}

inline float reference_ue8m0(uint8_t code) { return di_twin::float_of(code == 255 ? 0x7FC00000u : code == 0 ? 0x00400000u : uint32_t(code) << 23); }

// One group: codes one per byte, the scale, and what a reader sees.
inline void reference_group(int32_t format, const float *x, uint32_t group, uint8_t *codes, uint8_t &scale, float *seen) {
  uint32_t largest = 0;
  for (uint32_t i = 0; i < group; ++i) largest = std::max(largest, di_twin::bits_of(x[i]) & 0x7FFFFFFFu);
  const float amax = di_twin::float_of(largest);
  const float floor = format == FP8_ROW32 ? 1e-4f : format == FP4_ROW32 ? 6.0f * 0x1p-126f : 6.0f / 512.0f;
  const float wanted = (amax < floor ? floor : amax) * (format == FP8_ROW32 ? 1.0f / 448.0f : 1.0f / 6.0f);
  const uint32_t bits = di_twin::bits_of(wanted) & 0x7FFFFFFFu;
  scale = format == FP4_ROW16 ? uint8_t(reference_e4m3(wanted) & 0x7F) : uint8_t(std::min((bits >> 23) + ((bits & 0x7FFFFFu) != 0), 255u));
  const float divisor = format == FP4_ROW16 ? di_twin::to_float(fp8_e4m3fn_t{scale}) : reference_ue8m0(scale);
  for (uint32_t i = 0; i < group; ++i) {
    const float quotient = std::copysign(x[i] / divisor, x[i]);
    codes[i] = format == FP8_ROW32 ? reference_e4m3(quotient) : reference_e2m1(quotient);
    seen[i] = (format == FP8_ROW32 ? di_twin::to_float(fp8_e4m3fn_t{codes[i]}) : reference_e2m1_value(codes[i])) * divisor;
  }
}

} // namespace selftest
