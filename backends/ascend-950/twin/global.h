// What was done to global memory in a launch, to tell accesses that nothing orders.
//
// Most of what a launch reads it never writes. In an allocation that nobody has written, reads are only listed; what they say of each
// byte is made up when the first write comes.

#ifndef DEEPINFER_ASCEND_TWIN_GLOBAL_H
#define DEEPINFER_ASCEND_TWIN_GLOBAL_H

#include <algorithm>
#include <map>
#include <memory>
#include <memory_resource>
#include <vector>

#include "machine.h"

namespace di_twin {

// Bytes of global memory: `count` pieces.
struct GlobalSpan {
  uint64_t begin = 0, bytes = 0;
  bool is_write = false, is_atomic = false;
  uint32_t count = 0;
  int64_t stride = 0;
  // Where the i-th begins.
  uint64_t piece(uint32_t i) const { return begin + uint64_t(int64_t(i) * stride); }
};

// Who touches it.
struct Access {
  Pipe pipe;
  uint32_t number, block;
  const char *name;
};

// What was last done to bytes of global memory.
struct GlobalState {
  uint64_t end = 0;
  int64_t writer_block = -1, reader_block = -1; // -2: several blocks
  Pipe writer = S;
  bool is_atomic = false;
  uint32_t written = 0;
  uint32_t read[PIPES] = {};
};

// An allocation.
class Region {
public:
  void begin_launch(uint64_t begin, uint64_t end);
  bool has(uint64_t begin, uint64_t bytes) const { return begin >= begin_ && begin < end_ && bytes <= end_ - begin; }
  uint64_t begin() const { return begin_; }

  // An access that S makes at once, or that an instruction makes, and what it knows of the others.
  void touch(const GlobalSpan &span, const Access &access, const Clock &known);
  // A read, compared and not kept.
  void compare_read(uint64_t begin, uint64_t bytes, const Access &access, const Clock &known);

private:
  struct Read {
    GlobalSpan span;
    Access access;
  };
  using States = std::pmr::map<uint64_t, GlobalState>;

  void make_up();
  void touch_piece(uint64_t begin, const GlobalSpan &span, const Access &access, const Clock &known);
  States::iterator cut(uint64_t at);
  States::iterator cut(States::iterator around, uint64_t at);

  uint64_t begin_ = 0, end_ = 0;
  bool is_written_ = false;
  std::vector<Read> reads_;
  // States are never taken away one by one.
  std::pmr::monotonic_buffer_resource room_;
  States states_{&room_};
};

// The allocations that a launch has touched.
class GlobalMemory {
public:
  void begin_launch() { count_ = 0; }
  // The one that has these bytes, or null.
  Region *find(uint64_t begin, uint64_t bytes) {
    if (count_ == 0) return nullptr;
    if (!regions_[last_]->has(begin, bytes)) {
      const auto end = regions_.begin() + std::ptrdiff_t(count_);
      const auto next = std::upper_bound(regions_.begin(), end, begin, [](uint64_t at, const auto &region) { return at < region->begin(); });
      if (next == regions_.begin()) return nullptr;
      last_ = size_t(next - regions_.begin()) - 1;
    }
    return regions_[last_]->has(begin, bytes) ? regions_[last_].get() : nullptr;
  }
  // The one that has all pieces, as nearly always, and what lies between them.
  Region *find(const GlobalSpan &span) {
    const uint64_t last = span.piece(span.count - 1);
    return span.stride >= 0 && last >= span.begin ? find(span.begin, last + span.bytes - span.begin) : nullptr;
  }
  Region &add(uint64_t begin, uint64_t end) {
    if (regions_.size() == count_) regions_.emplace_back(new Region);
    regions_[count_]->begin_launch(begin, end);
    size_t at = count_++;
    for (; at > 0 && regions_[at - 1]->begin() > begin; --at) std::swap(regions_[at - 1], regions_[at]);
    last_ = at;
    return *regions_[at];
  }

private:
  // The first `count_` are those of this launch, by their addresses; room for the others is kept.
  std::vector<std::unique_ptr<Region>> regions_;
  size_t count_ = 0, last_ = 0;
};

} // namespace di_twin

#endif
