// The size of the machine, its pipes, and the faults that it reports.

#ifndef DEEPINFER_ASCEND_TWIN_MACHINE_H
#define DEEPINFER_ASCEND_TWIN_MACHINE_H

#include <cstdint>
#include <string>

namespace di_twin {

constexpr uint32_t UB_BYTES = 248 * 1024;
constexpr uint32_t BLOCK_BYTES = 32;
constexpr uint32_t REPEAT_BYTES = 256;
// Flags of each pair of pipes.
constexpr uint32_t FLAG_IDS = 8;
// Buffers of one TPipe, and those among them that queues synchronise.
constexpr uint32_t MOST_BUFFERS = 63, MOST_QUEUE_BUFFERS = 28;

// What a buffer is for: where MTE2 and MTE3 may copy to and from depends on it.
enum class Place : uint8_t { NONE, IN, OUT, CALC };

// Streams with a clock. S reads at once; its stores to the UB are seen by others only after a flag: they are counted apart.
enum Pipe : uint8_t { S, STORES, MTE2, V, MTE3, PIPES };
const char *name_of(Pipe pipe);

struct Fault {
  int code;
  std::string message;
};
[[noreturn]] void wrong(const char *format, ...) __attribute__((format(printf, 1, 2)));
[[noreturn]] void stuck(const char *format, ...) __attribute__((format(printf, 1, 2)));

struct Clock {
  uint32_t at[PIPES] = {};
  void join(const Clock &other) {
    for (int i = 0; i < PIPES; ++i) at[i] = at[i] < other.at[i] ? other.at[i] : at[i];
  }
};

} // namespace di_twin

#endif
