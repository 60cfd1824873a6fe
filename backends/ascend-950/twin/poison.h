// What freed and fresh bytes of the UB hold. Much of it is overwritten before anybody looks: a piece of 1024 bytes gets its poison
// when it is touched.

#ifndef DEEPINFER_ASCEND_TWIN_POISON_H
#define DEEPINFER_ASCEND_TWIN_POISON_H

#include <algorithm>

#include "machine.h"

namespace di_twin {

class Poison {
public:
  explicit Poison(unsigned char *ub) : ub_(ub) {}

  // Bytes of whole words.
  void put(uint32_t begin, uint32_t bytes, uint32_t word) {
    const uint32_t end = begin + bytes, first = (begin + PIECE - 1) / PIECE, last = end / PIECE;
    if (first >= last) return put_now(begin, end, word);
    put_now(begin, first * PIECE, word);
    put_now(last * PIECE, end, word);
    for (uint32_t piece = first; piece < last; ++piece) {
      is_due_[piece] = true;
      words_[piece] = word;
    }
  }

  // Before bytes are touched; those that are all overwritten need none.
  void settle(uint32_t begin, uint32_t end, bool is_overwritten) {
    for (uint32_t piece = begin / PIECE; piece * PIECE < end; ++piece) {
      if (!is_due_[piece]) continue;
      is_due_[piece] = false;
      if (is_overwritten && begin <= piece * PIECE && (piece + 1) * PIECE <= end) continue;
      fill(piece * PIECE, (piece + 1) * PIECE, words_[piece]);
    }
  }

private:
  static constexpr uint32_t PIECE = 1024;
  static_assert(UB_BYTES % PIECE == 0, "the UB is whole pieces");

  void put_now(uint32_t begin, uint32_t end, uint32_t word) {
    if (begin == end) return;
    settle(begin, end, false);
    fill(begin, end, word);
  }
  void fill(uint32_t begin, uint32_t end, uint32_t word) {
    uint32_t *words = reinterpret_cast<uint32_t *>(ub_);
    std::fill(words + begin / 4, words + end / 4, word);
  }

  unsigned char *ub_;
  bool is_due_[UB_BYTES / PIECE] = {};
  uint32_t words_[UB_BYTES / PIECE];
};

} // namespace di_twin

#endif
