// The machine of the host twin: one vector core at a time, with its pipes, flags and unified buffer.
//
// A kernel is ordinary C++ that runs as the scalar pipe S. What it calls is put into the streams of MTE2 (GM to UB), V and
// MTE3 (UB to GM). A stepper picks from them by the seed: within a stream nothing is ordered but by barriers, flags order a
// stream against another. S goes on until it has to wait.
//
// Each access is also compared with those before it: what is ordered is known by clocks, one number per pipe, which travel with
// the flags. Two accesses to one byte, one of them a write, that nothing orders are an error whatever the seed made of them.

#ifndef DEEPINFER_ASCEND_TWIN_CORE_H
#define DEEPINFER_ASCEND_TWIN_CORE_H

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <new>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "global.h"
#include "launch.h"
#include "poison.h"
#include "shadow.h"

namespace di_twin {

// So many instructions wait at most before the stepper goes on by itself.
constexpr uint32_t MOST_PENDING = 1024;

// A block that takes more steps, which are instructions and accesses of S, is in a loop without an end. Those of the parity cases take
// 1.8 million at most; much more than this, and the numbers of instructions would not fit into a word of the shadow.
constexpr uint32_t MOST_STEPS = 1u << 26;

// Bytes of the UB that an instruction touches: `repeats` times `blocks` pieces of `bytes`.
struct Span {
  Span() {}
  Span(uint32_t first, uint32_t size, bool writes) : begin(first), bytes(size), is_write(writes), blocks(1), block_stride(0), repeats(1), repeat_stride(0) {}
  uint32_t begin, bytes;
  bool is_write, is_whole = false; // whole: all of it is written
  uint32_t blocks, block_stride, repeats, repeat_stride;

  // The same words with as few pieces as can be.
  void join() {
    if (blocks > 1 && block_stride == bytes) bytes *= blocks, blocks = 1;
    if (blocks == 1 && repeats > 1 && repeat_stride == bytes) bytes *= repeats, repeats = 1;
  }
  bool is_empty() const { return bytes == 0 || blocks == 0 || repeats == 0; }
  bool is_one_piece() const { return blocks == 1 && repeats == 1; }
  // Behind the last byte.
  uint32_t end() const {
    if (is_empty()) return begin;
    return begin + (repeats - 1) * repeat_stride + (blocks - 1) * block_stride + bytes;
  }
};

struct Instruction {
  enum Kind : uint8_t { RUN, BARRIER, SET, WAIT, POISON };
  static constexpr int SPANS = 6;
  static constexpr size_t PAYLOAD = 160;
  const char *name;
  Pipe pipe;
  Kind kind;
  uint8_t spans = 0;
  uint32_t number = 0; // place in its stream, from 1
  uint32_t flag = 0;
  Clock issued; // what S knew, and its time
  Span span[SPANS];
  GlobalSpan global;
  void (*run)(const void *payload) = nullptr;
  alignas(16) unsigned char payload[PAYLOAD];
};

// Sets that nobody has waited for yet, in their order, with what each tells the one who waits.
struct Flag {
  std::vector<Clock> sets;
  int ahead = 0; // sets less waits, as the kernel names them
};

// Instructions that wait in their order; at most as many as may wait in all.
class Line {
public:
  bool empty() const { return first_ == end_; }
  Instruction *front() const { return line_[first_ % ROOM]; }
  void pop() { ++first_; }
  void push(Instruction *instruction) { line_[end_++ % ROOM] = instruction; }

private:
  static constexpr uint32_t ROOM = 2 * MOST_PENDING;
  uint32_t first_ = 0, end_ = 0;
  Instruction *line_[ROOM];
};

// A piece of the UB that InitBuffer gave out.
struct Buffer {
  uint32_t begin, bytes;
  // Counts up when a tensor of it is freed: older tensors are dead.
  uint32_t generation = 0;
  bool is_queue = false, is_allocated = false, was_queued = false;
  Place place = Place::NONE;
  int queue = -1;
};

struct QueueState {
  Pipe producer, consumer;
  uint32_t first = 0, count = 0, depth = 0;
  bool is_initialised = false;
  std::deque<uint32_t> waiting; // buffers between EnQue and DeQue
  uint32_t next = 0;
};

class Random {
public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    return z ^ z >> 31;
  }
  uint32_t below(uint32_t n) { return uint32_t((next() >> 32) * n >> 32); }

private:
  uint64_t state_;
};

class Core {
public:
  // The one of this thread, always the same.
  [[gnu::const]] static Core &now();

  // One launch.
  int launch(const DiTwinLaunch &launch, std::string &message);

  // What the interface of Ascend C is made of.
  uint32_t block() const { return block_; }
  uint32_t blocks() const { return blocks_; }
  uint64_t seed() const { return seed_; }
  unsigned char *ub() { return ub_; }

  // An instruction to be filled and issued, before there is another.
  Instruction &fresh(const char *name, Pipe pipe) {
    if (fresh_ == nullptr) fresh_ = take();
    fresh_->name = name;
    fresh_->pipe = pipe;
    fresh_->spans = 0;
    fresh_->flag = 0;
    fresh_->global.count = 0;
    return *fresh_;
  }
  template <class F> void issue(Instruction &instruction, const F &f) {
    static_assert(sizeof(F) <= Instruction::PAYLOAD, "the closure of an instruction is too large");
    static_assert(std::is_trivially_destructible<F>::value && std::is_trivially_copyable<F>::value, "a closure of plain values");
    new (instruction.payload) F(f);
    instruction.kind = Instruction::RUN;
    // A copy, which nothing that it writes can be a part of.
    instruction.run = [](const void *payload) {
      const F copy = *static_cast<const F *>(payload);
      copy();
    };
    push(instruction);
  }
  void set_flag(Pipe from, uint32_t flag, const char *name);
  void wait_flag(Pipe pipe, uint32_t flag, const char *name);
  void barrier(Pipe pipe);
  void barrier_all();

  // The next access of S to the UB or to global memory.
  void scalar_ub(uint32_t begin, uint32_t bytes, bool is_write, const char *name);
  void scalar_global(uint64_t begin, uint32_t bytes, bool is_write, const char *name);

  uint32_t init_buffer(uint32_t bytes, Place place, bool is_queue, int queue);
  int new_queue(Pipe producer, Pipe consumer, uint32_t depth);
  QueueState &queue(int index) { return queues_.at(size_t(index)); }
  Buffer &buffer(uint32_t index) { return buffers_.at(index); }
  uint32_t allocate(int queue);
  void enqueue(int queue, uint32_t buffer);
  uint32_t dequeue(int queue);
  void free_tensor(int queue, uint32_t buffer, uint32_t generation);
  void end_pipe();

  // Each piece inside one live allocation, or an error that names the instruction.
  void check_global(const GlobalSpan &span, const char *name);
  void check_tensor(uint32_t buffer, uint32_t generation, uint32_t begin, uint64_t bytes, const char *name) const;

  uint32_t event_flag(uint32_t pair, uint32_t id, const char *name) const;
  uint32_t allocate_event(uint32_t pair);
  uint32_t fetch_event(uint32_t pair) const;
  void release_event(uint32_t pair, uint32_t id);

  uint32_t most_steps = MOST_STEPS;

  // Bit 48 of the control register: infinities and NaNs stay in casts to narrower floats. Not so as a launch begins.
  bool infinities_stay() const { return infinities_stay_; }
  void set_infinities_stay(bool value);
  int atomic = 0; // what MTE3 does with what is there: 0 overwrites, else adds, or takes the larger or smaller

private:
  struct Stream {
    std::vector<Instruction *> window; // what may start: no barrier or flag in between
    size_t first = 0;                  // of the window: those before it are done
    Line rest;
    uint32_t issued = 0;   // instructions so far
    uint32_t finished = 0; // all up to this one are done when the window is empty
    Clock known;
  };

  uint32_t tick();
  void push(Instruction &instruction);
  Instruction *take();
  void open_window(Stream &stream);
  Instruction *choose(Stream &stream);
  bool can_step(Pipe pipe);
  void step(Pipe pipe);
  bool step_any();
  void drain(const char *reason);
  void run_instruction(Instruction &instruction, Stream &stream);
  void compare(const Instruction &instruction, const Span &span, const Clock &known);
  [[noreturn]] void report(const Instruction &instruction, const Span &span, uint32_t first, uint32_t end, const Clock &known) const;
  void note(const Instruction &instruction, const Span &span);
  Region &region(uint64_t begin, uint64_t bytes, const char *name);
  void touch_global(const GlobalSpan &span, const Access &access, const Clock &known);
  void flush_reads();
  void poison(uint32_t begin, uint32_t bytes);
  void begin_block(uint32_t block);
  const char *writer_name(uint32_t word) const;
  void end_block();
  std::string waits() const;

  const DiTwinLaunch *launch_ = nullptr;
  uint64_t seed_ = 0;
  Random random_{0};
  uint32_t block_ = 0, blocks_ = 1;

  alignas(64) unsigned char ub_[UB_BYTES];
  Poison poison_{ub_};
  uint32_t used_ = 0; // bytes that InitBuffer gave out
  // For each word of the UB the pipe and number of the last write, and the numbers of the last reads by V, MTE3 and S.
  Shadow written_, read_by_[3];
  // Names of the instructions of the block, in the order of their streams, and the numbers before them, for messages.
  std::vector<const char *> names_[PIPES];
  Clock before_;

  Stream streams_[PIPES];
  Clock scalar_; // what S knows
  bool infinities_stay_ = false;
  uint32_t time_ = 0;
  uint32_t pending_ = 0;
  int order_ = 0;     // how the window is picked from
  uint32_t haste_ = 0; // of 8: how often others step while S goes on
  Pipe rank_[3] = {MTE2, V, MTE3};
  std::vector<Flag> flags_;
  std::vector<uint8_t> taken_; // event ids that were allocated
  std::vector<Buffer> buffers_;
  std::vector<QueueState> queues_;
  std::vector<std::unique_ptr<Instruction>> pool_;
  std::vector<Instruction *> free_;
  Instruction *fresh_ = nullptr;
  GlobalMemory global_;
  // What S reads of global memory and is not noted yet.
  struct {
    uint64_t begin = 0, end = 0;
    uint32_t time = 0;
  } reads_;
};

// Noise of an inexact instruction: a number that follows from the seed, the instruction and the bits that go in.
inline uint32_t noise(uint64_t seed, uint32_t instruction, uint32_t a, uint32_t b) {
  uint64_t z = seed * 0x9E3779B97F4A7C15ull + instruction;
  z = (z ^ (uint64_t(a) << 32 | b)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ z >> 29) * 0x94D049BB133111EBull;
  return uint32_t(z >> 40);
}

} // namespace di_twin

#endif
