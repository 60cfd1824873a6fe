// What the self-test of the host twin runs kernels with: device memory, launches and checks, one printed line for each.
#pragma once

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernel_operator.h"

namespace selftest {

constexpr uint64_t SEEDS = 6;

inline int &failures() {
  static int count = 0;
  return count;
}

inline void check(const std::string &name, bool is_right, const std::string &detail = "") {
  std::printf("%s %s%s%s\n", is_right ? "ok    " : "FAILED", name.c_str(), detail.empty() ? "" : ": ", detail.c_str());
  failures() += !is_right;
}

// Device memory: pieces, each an allocation of its own.
class Memory {
public:
  template <class T> T *allocate(size_t count) {
    // Never empty, at a multiple of 64.
    const size_t bytes = (count * sizeof(T) + 63) / 64 * 64 + 64;
    void *data = std::aligned_alloc(64, bytes);
    std::memset(data, 0xEE, bytes);
    pieces_.push_back({reinterpret_cast<uint64_t>(data), count * sizeof(T)});
    return static_cast<T *>(data);
  }
  template <class T> T *hold(const std::vector<T> &values) {
    T *data = allocate<T>(values.size());
    std::memcpy(static_cast<void *>(data), values.data(), values.size() * sizeof(T));
    return data;
  }
  ~Memory() {
    for (const auto &piece : pieces_) std::free(reinterpret_cast<void *>(piece.first));
  }
  static int find(void *self, uint64_t address, uint64_t *begin, uint64_t *bytes) {
    for (const auto &piece : static_cast<Memory *>(self)->pieces_) {
      if (address < piece.first || address >= piece.first + piece.second) continue;
      *begin = piece.first;
      *bytes = piece.second;
      return 1;
    }
    return 0;
  }

private:
  std::vector<std::pair<uint64_t, uint64_t>> pieces_;
};

struct Outcome {
  int code;
  std::string message;
};

template <class Kernel, class... Args> Outcome launch(Memory &memory, Kernel *kernel, uint32_t blocks, uint64_t seed, Args *...args) {
  const uint64_t addresses[] = {reinterpret_cast<uint64_t>(args)...};
  char message[512] = "";
  DiTwinLaunch launch = {};
  launch.struct_size = sizeof launch;
  launch.kernel = reinterpret_cast<void *>(kernel);
  launch.blocks = blocks;
  launch.arg_count = sizeof...(args);
  launch.args = addresses;
  launch.seed = seed;
  launch.find = &Memory::find;
  launch.context = &memory;
  launch.message = message;
  launch.message_bytes = sizeof message;
  const int code = di_twin_launch(&launch);
  return {code, message};
}

// How many representable numbers lie between; huge where one of them is no number.
inline double ulps(float got, double want) {
  if (want != want || got != got) return (want != want) == (got != got) ? 0.0 : 1e30;
  const float nearest = float(want);
  if (std::isinf(nearest) || std::isinf(got)) return nearest == got ? 0.0 : 1e30;
  const float magnitude = std::fabs(nearest);
  const double unit = double(std::nextafter(magnitude, std::numeric_limits<float>::infinity())) - double(magnitude);
  return std::fabs(double(got) - want) / unit;
}

} // namespace selftest
