// What the twin keeps of accesses in as few numbers as it can, against the same word by word and byte by byte.
#pragma once

#include "harness.h"

namespace selftest {

using di_twin::Access;
using di_twin::BlockPieces;
using di_twin::Clock;
using di_twin::GlobalSpan;
using di_twin::Pipe;
using di_twin::Random;
using di_twin::Region;
using di_twin::Shadow;

// Random pieces, many of them whole blocks and at the ends of others.
inline void check_shadow() {
  constexpr uint32_t WORDS = di_twin::UB_BYTES / 4, AREA = 200;
  const std::unique_ptr<Shadow> shadow(new Shadow);
  std::vector<uint32_t> plain(WORDS, 0);
  Random random(1);
  bool is_right = true;
  uint32_t quick = 0;
  shadow->begin();
  is_right = is_right && !shadow->may_have(0, di_twin::UB_BYTES);
  for (uint32_t turn = 1; turn <= 200000 && is_right; ++turn) {
    const uint32_t grain = random.below(2) ? 1 : Shadow::WORDS;
    const uint32_t first = random.below(AREA) / grain * grain, end = first + (1 + random.below(AREA)) / grain * grain + (grain == 1);
    const uint32_t number = random.below(3) ? turn : random.below(turn + 1);
    const BlockPieces pieces = {first / Shadow::WORDS, (end - first) / Shadow::WORDS, 1 + random.below(3), random.below(12)};
    const auto each = [&](const auto &f) {
      for (uint32_t i = 0; i < pieces.count && grain > 1; ++i) {
        for (uint32_t word = 0; word < pieces.blocks * grain; ++word) f(plain[(pieces.first + i * pieces.step) * grain + word]);
      }
      for (uint32_t word = first; word < end && grain == 1; ++word) f(plain[word]);
    };
    switch (random.below(4)) {
    case 0:
      if (grain > 1) shadow->set(pieces, number);
      else shadow->set(first, end, number);
      each([&](uint32_t &word) { word = number; });
      break;
    case 1:
      if (grain > 1) shadow->raise(pieces, number);
      else shadow->raise(first, end, number);
      each([&](uint32_t &word) {
        word = std::max(word, number);
        const uint32_t at = uint32_t(&word - plain.data()) * 4;
        is_right = is_right && shadow->may_have(at, at + 4);
      });
      break;
    case 2: {
      const uint32_t low = random.below(2) ? 0 : number;
      bool is_so = true;
      each([&](uint32_t word) { is_so = is_so && word >= low && word <= turn; });
      quick += shadow->is_within(pieces, {int32_t(low), int32_t(turn)});
      is_right = is_so || grain == 1 || !shadow->is_within(pieces, {int32_t(low), int32_t(turn)});
      break;
    }
    default: {
      const auto is_even = [](uint32_t each) { return each % 2 == 0; };
      is_right = shadow->all(first, end, is_even) == std::all_of(plain.begin() + first, plain.begin() + end, is_even);
    }
    }
    for (uint32_t word = 0; word < 3 * AREA && is_right && turn % 64 == 0; ++word) is_right = shadow->at(word) == plain[word];
  }
  check("a shadow of blocks says what one of words does", is_right && quick > 1000, std::to_string(quick) + " quick answers");
}

// What is known of a byte, access by access.
struct PlainByte {
  int64_t writer_block = -1;
  Pipe writer = di_twin::S;
  uint32_t written = 0;
  bool is_atomic = false;
  std::vector<Access> readers;

  bool touch(const GlobalSpan &span, const Access &access, const Clock &known) {
    const bool is_alone = span.is_write && span.is_atomic && is_atomic;
    if (writer_block >= 0 && !is_alone && (writer_block != int64_t(access.block) || written > known.at[writer])) return false;
    if (!span.is_write) return readers.push_back(access), true;
    for (const Access &reader : readers) {
      if (reader.block != access.block || reader.number > known.at[reader.pipe]) return false;
    }
    writer_block = access.block;
    writer = access.pipe;
    written = access.number;
    is_atomic = span.is_atomic;
    return true;
  }
};

// Random launches up to their first mistake, which both find in the same access.
inline void check_region() {
  constexpr uint32_t BYTES = 64;
  Random random(2);
  Region region;
  uint32_t mistakes = 0, differences = 0;
  for (uint32_t launch = 0; launch < 20000; ++launch) {
    region.begin_launch(1000, 1000 + BYTES);
    std::vector<PlainByte> plain(BYTES);
    uint32_t number = 0, block = 0;
    const uint32_t writes = random.below(8);
    for (int turn = 0; turn < 40; ++turn) {
      if (random.below(16) == 0) ++block;
      GlobalSpan span;
      span.bytes = 1 + random.below(8);
      span.count = 1 + random.below(3);
      span.stride = int64_t(span.bytes + random.below(4));
      const uint64_t all = uint64_t(span.count - 1) * uint64_t(span.stride) + span.bytes;
      span.begin = 1000 + random.below(uint32_t(BYTES - all + 1));
      span.is_write = random.below(8) < writes;
      span.is_atomic = span.is_write && random.below(2);
      const Access access = {span.is_write ? di_twin::MTE3 : di_twin::MTE2, ++number, block, "an access"};
      Clock known;
      for (uint32_t &at : known.at) at = random.below(4) ? number : random.below(number);
      bool is_fine = true, is_wanted = true;
      try {
        region.touch(span, access, known);
      } catch (const di_twin::Fault &) {
        is_fine = false;
      }
      for (uint32_t i = 0; i < span.count; ++i) {
        for (uint64_t byte = 0; byte < span.bytes; ++byte) is_wanted = is_wanted && plain[span.piece(i) - 1000 + byte].touch(span, access, known);
      }
      differences += is_fine != is_wanted;
      mistakes += !is_wanted;
      if (!is_fine || !is_wanted) break;
    }
  }
  check("a region says what its bytes do", differences == 0 && mistakes > 1000, std::to_string(mistakes) + " mistakes");
}

inline void check_records() {
  check_shadow();
  check_region();
}

} // namespace selftest
