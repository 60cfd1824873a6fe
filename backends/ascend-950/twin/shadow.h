// A number for each word of the UB: what was last done to it, and when.
//
// Nearly all instructions touch whole blocks of 32 bytes. A block whose eight words agree is one number; it is split into words where
// a part of it is touched, and becomes one again when all of it is. That is a matter of time alone: what is asked of a word is
// answered for the word.

#ifndef DEEPINFER_ASCEND_TWIN_SHADOW_H
#define DEEPINFER_ASCEND_TWIN_SHADOW_H

#include <algorithm>
#include <cstdint>

#include "machine.h"

namespace di_twin {

// Numbers from `low` to `high`.
struct Range {
  int32_t low, high;
};

// So many pieces of whole blocks.
struct BlockPieces {
  uint32_t first, blocks, count, step;
};

class Shadow {
public:
  static constexpr uint32_t WORDS = BLOCK_BYTES / 4;

  void clear() { std::fill(std::begin(blocks_), std::end(blocks_), 0); }

  // From here on it is told where anything is raised.
  void begin() { first_ = UB_BYTES, end_ = 0; }
  bool may_have(uint32_t begin_byte, uint32_t end_byte) const { return begin_byte < end_ && first_ < end_byte; }

  uint32_t at(uint32_t word) const { return uint32_t(blocks_[word / WORDS] == SPLIT ? words_[word] : blocks_[word / WORDS]); }

  // Whether all blocks are one number each, and in a range: quickly. `false` says nothing of the words.
  bool is_within(const BlockPieces &pieces, const Range &range) const {
    return each(pieces, [&](auto n, uint32_t first, uint32_t count) { return is_within<n()>(blocks_ + first, count, range); });
  }

  // Whether it is so for the words from `first` to before `end`.
  template <class F> bool all(uint32_t first, uint32_t end, const F &f) const {
    uint32_t before = uint32_t(SPLIT);
    for (uint32_t word = first; word < end;) {
      const bool is_split = blocks_[word / WORDS] == SPLIT;
      const uint32_t number = at(word);
      // Neighbours mostly agree.
      if (number != before && !f(number)) return false;
      before = number;
      word += is_split ? 1 : WORDS - word % WORDS;
    }
    return true;
  }

  void set(const BlockPieces &pieces, uint32_t number) {
    each(pieces, [&](auto n, uint32_t first, uint32_t count) { return fill<n()>(blocks_ + first, count, int32_t(number)); });
  }
  void set(uint32_t first, uint32_t end, uint32_t number) {
    by_blocks(first, end, [&](uint32_t block, uint32_t begin, uint32_t stop) {
      if (stop - begin == WORDS) {
        blocks_[block] = int32_t(number);
        return;
      }
      split(block);
      std::fill(words_ + begin, words_ + stop, int32_t(number));
    });
  }

  // To at least this number.
  void raise(const BlockPieces &pieces, uint32_t number) {
    widen(pieces.first * BLOCK_BYTES, (pieces.first + (pieces.count - 1) * pieces.step + pieces.blocks) * BLOCK_BYTES);
    if (is_within(pieces, {0, int32_t(number)})) return set(pieces, number);
    for (uint32_t i = 0; i < pieces.count; ++i) {
      const uint32_t first = (pieces.first + i * pieces.step) * WORDS;
      raise(first, first + pieces.blocks * WORDS, number);
    }
  }
  void raise(uint32_t first, uint32_t end, uint32_t to) {
    const int32_t number = int32_t(to);
    widen(first * 4, end * 4);
    by_blocks(first, end, [&](uint32_t block, uint32_t begin, uint32_t stop) {
      int32_t *words = words_ + begin;
      if (blocks_[block] != SPLIT && blocks_[block] >= number) return;
      if (stop - begin == WORDS && (blocks_[block] != SPLIT || *std::max_element(words, words + WORDS) <= number)) {
        blocks_[block] = number;
        return;
      }
      split(block);
      for (uint32_t word = 0; word < stop - begin; ++word) words[word] = std::max(words[word], number);
    });
  }

private:
  // Above every number.
  static constexpr int32_t SPLIT = 0x7FFFFFFF;

  template <uint32_t value> struct Number {
    constexpr uint32_t operator()() const { return value; }
  };

  // f(number, first, count) for each piece until it is false. The usual pieces, parts of a repeat of 256 bytes, are told as numbers; of
  // all others the number is 0.
  template <class F> static bool each(const BlockPieces &pieces, const F &f) {
    const auto run = [&](auto n) {
      for (uint32_t i = 0; i < pieces.count; ++i) {
        if (!f(n, pieces.first + i * pieces.step, pieces.blocks)) return false;
      }
      return true;
    };
    switch (pieces.blocks) {
    case 1: return run(Number<1>());
    case 4: return run(Number<4>());
    case 8: return run(Number<8>());
    default: return run(Number<0>());
    }
  }

  template <uint32_t usual> static bool is_within(const int32_t *blocks, uint32_t count, const Range &range) {
    const uint32_t n = usual > 0 ? usual : count;
    const int32_t low = range.low, high = range.high;
    int32_t signs = 0;
    if (low == 0) {
#pragma GCC unroll 4
      for (uint32_t i = 0; i < n; ++i) signs |= high - blocks[i];
    } else {
#pragma GCC unroll 4
      for (uint32_t i = 0; i < n; ++i) signs |= (blocks[i] - low) | (high - blocks[i]);
    }
    return signs >= 0;
  }

  template <uint32_t usual> static bool fill(int32_t *blocks, uint32_t count, int32_t number) {
    const uint32_t n = usual > 0 ? usual : count;
    for (uint32_t i = 0; i < n; ++i) blocks[i] = number;
    return true;
  }

  // f(block, word, end) for each block that has words of these.
  template <class F> static void by_blocks(uint32_t first, uint32_t end, const F &f) {
    for (uint32_t word = first; word < end;) {
      const uint32_t block = word / WORDS, stop = std::min(end, (block + 1) * WORDS);
      f(block, word, stop);
      word = stop;
    }
  }

  void widen(uint32_t begin_byte, uint32_t end_byte) {
    first_ = std::min(first_, begin_byte);
    end_ = std::max(end_, end_byte);
  }

  void split(uint32_t block) {
    if (blocks_[block] == SPLIT) return;
    std::fill_n(words_ + block * WORDS, WORDS, blocks_[block]);
    blocks_[block] = SPLIT;
  }

  uint32_t first_ = UB_BYTES, end_ = 0; // bytes around all that was raised
  int32_t blocks_[UB_BYTES / BLOCK_BYTES] = {}, words_[UB_BYTES / 4] = {};
};

} // namespace di_twin

#endif
