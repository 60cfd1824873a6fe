// The kernels whose arithmetic or bytes are compared here; the others are compared by the parity tests of the crate.
#pragma once

#include "harness.h"

#include "../../kernels/rstd.cpp"

namespace selftest {

// rstd of single columns of any exponent, also denormals: the square of a number is its sum. Against the exact result, and within one
// ulp of what the contract gives: gamma(3) / 2 for the mean square.
inline void check_rstd(uint64_t count) {
  constexpr uint64_t ROWS = 4096;
  double worst = 0, worst_beyond = 0;
  uint64_t done = 0, exact = 0;
  std::string message;
  std::mt19937_64 random(7);
  for (uint64_t seed = 0; done < count && message.empty(); seed = (seed + 1) % SEEDS, done += ROWS) {
    Memory memory;
    std::vector<float> values(ROWS);
    for (uint64_t i = 0; i < ROWS; ++i) {
      uint32_t bits;
      // One in eight is denormal.
      do bits = uint32_t(random()) & (i % 8 == 0 ? 0x807FFFFFu : 0xFFFFFFFFu);
      while ((bits & 0x7FFFFFFFu) >= 0x7F800000u || (bits & 0x7FFFFFFFu) == 0);
      values[i] = di_twin::float_of(bits);
    }
    const float eps = 0.0f;
    RstdTiling tiling = {int64_t(ROWS), 1, 1, eps, F32};
    float *out = memory.allocate<float>(ROWS);
    const Outcome outcome = launch(memory, rstd, 2, seed, memory.hold(values), out, &tiling);
    if (outcome.code != 0) message = outcome.message;
    for (uint64_t i = 0; i < ROWS && message.empty(); ++i) {
      const double want = 1.0 / std::sqrt(double(values[i]) * double(values[i]) + double(eps));
      const double off = ulps(out[i], want);
      worst = std::max(worst, off);
      exact += off <= 0.5;
      const double gamma = 3 * 0x1p-24 / 2;
      worst_beyond = std::max(worst_beyond, off - gamma * 0x1p24);
    }
  }
  char detail[160];
  std::snprintf(detail, sizeof detail, "%llu values, at most %.4f ulp off, %.2f %% rounded right", (unsigned long long)done, worst, 100.0 * double(exact) / double(done));
  check("rstd is within an ulp and its bound", message.empty() && worst_beyond <= 1.0, message.empty() ? detail : message);
}

} // namespace selftest
