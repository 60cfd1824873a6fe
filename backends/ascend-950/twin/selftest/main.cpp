// The self-test of the host twin: what its instructions do, that mistakes are noticed, and the kernels whose arithmetic needs a
// measurement. One line per check; the exit code is 0 if all are right. An argument is the number of values that rstd is measured
// over, 10000 without one.
//
// g++ -O2 -std=c++17 -ffp-contract=off -fno-strict-aliasing -I twin -I kernels twin/selftest/main.cpp twin/*.cpp

#include "kernels.h"
#include "mistakes.h"
#include "records.h"
#include "semantics.h"

int main(int count, char **arguments) {
  selftest::check_records();
  selftest::check_semantics();
  selftest::check_noise();
  selftest::check_mistakes();
  selftest::check_stores();
  selftest::check_rstd(count > 1 ? std::strtoull(arguments[1], nullptr, 10) : 10000);
  std::printf("%d failed\n", selftest::failures());
  return selftest::failures() == 0 ? 0 : 1;
}
