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

class Shadow {
public:
  static constexpr uint32_t WORDS = BLOCK_BYTES / 4;
  // Above every number.
  static constexpr int32_t SPLIT = 0x7FFFFFFF;

  void clear() { std::fill(std::begin(blocks_), std::end(blocks_), 0); }

  uint32_t at(uint32_t word) const { return uint32_t(blocks_[word / WORDS] == SPLIT ? words_[word] : blocks_[word / WORDS]); }

  // Whether it is so for the words from `first` to before `end`; asked once of neighbours that agree.
  template <class F> bool all(uint32_t first, uint32_t end, const F &f) const {
    return by_blocks(first, end, [&](uint32_t begin, uint32_t stop) { return all_words(begin, stop, f); },
                     [&](uint32_t begin, uint32_t stop) { return all_blocks(begin, stop, f); });
  }

  // Whether no word has more than `most`.
  bool is_up_to(uint32_t first, uint32_t end, uint32_t most) const {
    const auto is_less = [most](uint32_t number) { return number <= most; };
    return by_blocks(first, end, [&](uint32_t begin, uint32_t stop) { return all_words(begin, stop, is_less); },
                     [&](uint32_t begin, uint32_t stop) { return is_any_above(begin, stop, int32_t(most)) ? all_blocks(begin, stop, is_less) : true; });
  }

  void set(uint32_t first, uint32_t end, uint32_t number) {
    by_blocks(first, end,
              [&](uint32_t begin, uint32_t stop) {
                split(begin / WORDS);
                std::fill(words_ + begin, words_ + stop, int32_t(number));
                return true;
              },
              [&](uint32_t begin, uint32_t stop) {
                std::fill(blocks_ + begin, blocks_ + stop, int32_t(number));
                return true;
              });
  }

  // To at least this number.
  void raise(uint32_t first, uint32_t end, uint32_t to) {
    const int32_t number = int32_t(to);
    by_blocks(first, end,
              [&](uint32_t begin, uint32_t stop) {
                if (blocks_[begin / WORDS] != SPLIT && blocks_[begin / WORDS] >= number) return true;
                split(begin / WORDS);
                for (uint32_t word = begin; word < stop; ++word) words_[word] = std::max(words_[word], number);
                return true;
              },
              [&](uint32_t begin, uint32_t stop) {
                if (is_any_above(begin, stop, number)) raise_blocks(begin, stop, number);
                else std::fill(blocks_ + begin, blocks_ + stop, number);
                return true;
              });
  }

private:
  // f(word, end) for what lies in a part of a block, g(block, end) for whole blocks, until one is false.
  template <class F, class G> static bool by_blocks(uint32_t first, uint32_t end, const F &f, const G &g) {
    uint32_t whole = (first + WORDS - 1) / WORDS;
    const uint32_t stop = end / WORDS;
    if (first % WORDS != 0 && !f(first, std::min(end, whole * WORDS))) return false;
    if (whole < stop && !g(whole, stop)) return false;
    return stop < whole || end % WORDS == 0 || f(stop * WORDS, end);
  }

  template <class F> bool all_words(uint32_t begin, uint32_t end, const F &f) const {
    if (blocks_[begin / WORDS] != SPLIT) return f(uint32_t(blocks_[begin / WORDS]));
    for (uint32_t word = begin; word < end; ++word) {
      if (!f(uint32_t(words_[word]))) return false;
    }
    return true;
  }

  template <class F> bool all_blocks(uint32_t begin, uint32_t end, const F &f) const {
    const int32_t first = blocks_[begin];
    int32_t difference = 0;
    for (uint32_t block = begin; block < end; ++block) difference |= blocks_[block] ^ first;
    if (difference == 0 && first != SPLIT) return f(uint32_t(first));
    int32_t before = SPLIT;
    for (uint32_t block = begin; block < end; ++block) {
      if (blocks_[block] == SPLIT) {
        if (!all_words(block * WORDS, (block + 1) * WORDS, f)) return false;
      } else if (blocks_[block] != before) {
        before = blocks_[block];
        if (!f(uint32_t(before))) return false;
      }
    }
    return true;
  }

  // Whether a block has more; one that is split counts as such.
  bool is_any_above(uint32_t begin, uint32_t end, int32_t most) const {
    int32_t signs = 0;
    for (uint32_t block = begin; block < end; ++block) signs |= most - blocks_[block];
    return signs < 0;
  }

  void raise_blocks(uint32_t begin, uint32_t end, int32_t number) {
    for (uint32_t block = begin; block < end; ++block) {
      if (blocks_[block] != SPLIT) {
        blocks_[block] = std::max(blocks_[block], number);
        continue;
      }
      int32_t *words = words_ + block * WORDS;
      const int32_t most = *std::max_element(words, words + WORDS);
      if (most <= number) blocks_[block] = number;
      else for (uint32_t word = 0; word < WORDS; ++word) words[word] = std::max(words[word], number);
    }
  }

  void split(uint32_t block) {
    if (blocks_[block] == SPLIT) return;
    std::fill_n(words_ + block * WORDS, WORDS, blocks_[block]);
    blocks_[block] = SPLIT;
  }

  int32_t blocks_[UB_BYTES / BLOCK_BYTES] = {}, words_[UB_BYTES / 4] = {};
};

} // namespace di_twin

#endif
