// A row of scores as integers in their order (ordered.h), and the search for the place where its sorted list is cut.
//
// The list is sorted by score, descending, then by column; what is no score is not in it. A row of up to 28672 columns is read once and
// stays in the UB; a longer one is read again for each pass. Pieces end at a multiple of 64 columns: what is beyond the row is no score.
#pragma once

#include "float_rows.h"
#include "ordered.h"
#include "tiling.h"

// What stays of a list: the keys above `key`, and the first `ties` of those at it.
struct KeyCut {
  int32_t key;
  int64_t ties;
};

struct KeyRange {
  int32_t lowest, highest;
};

class KeyRow {
public:
  static constexpr uint32_t PIECE = 4096, KEPT_PIECES = 7;

  __aicore__ inline void init(AscendC::TPipe &pipe) {
    pipe.InitBuffer(in_, 1, PIECE * 4);
    pipe.InitBuffer(keys_, KEPT_PIECES * PIECE * 4);
    pipe.InitBuffer(scratch_, PIECE * 4);
    pipe.InitBuffer(ones_, PIECE * 4);
    pipe.InitBuffer(marks_, 2 * PIECE / 8);
    pipe.InitBuffer(work_, 1024);
    AscendC::Duplicate(ones_.Get<float>(), 1.0f, static_cast<int32_t>(PIECE));
  }

  // The lowest and the highest key of all that is in a row, NaN and infinities too.
  __aicore__ inline KeyRange range(const AscendC::GlobalTensor<float> &row, int64_t columns) {
    using namespace AscendC;
    const LocalTensor<int32_t> bits = scratch_.Get<int32_t>(), keys = keys_.GetWithOffset<int32_t>(PIECE, 0), sign = keys_.GetWithOffset<int32_t>(PIECE, PIECE * 4);
    const LocalTensor<int32_t> highest = work_.GetWithOffset<int32_t>(8, 0), lowest = work_.GetWithOffset<int32_t>(8, 32);
    KeyRange range = {HIGHEST_SCORE, LOWEST_SCORE};
    for (int64_t at = 0; at < columns; at += PIECE) {
      const int32_t n = static_cast<int32_t>(least(columns - at, PIECE));
      load_floats(in_, bits.ReinterpretCast<float>(), row[at], static_cast<uint32_t>(n));
      order_keys(keys, bits, sign, static_cast<uint32_t>(n));
      ReduceMax(highest, keys, work_.GetWithOffset<int32_t>(64, 256), n);
      ReduceMin(lowest, keys, work_.GetWithOffset<int32_t>(64, 512), n);
      order<HardEvent::V_S>();
      range.highest = static_cast<int32_t>(most(range.highest, highest.GetValue(0)));
      range.lowest = static_cast<int32_t>(least(range.lowest, lowest.GetValue(0)));
    }
    return range;
  }

  // Scores are `scores`.
  __aicore__ inline void begin(const AscendC::GlobalTensor<float> &scores, int64_t columns) { begin(scores, columns, 1.0f); }
  // Scores are the logits above -infinity, times `scale`.
  __aicore__ inline void begin(const AscendC::GlobalTensor<float> &logits, int64_t columns, float scale) {
    row_ = logits;
    columns_ = columns;
    scale_ = scale;
    is_kept_ = pieces() <= KEPT_PIECES;
    if (!is_kept_) return;
    for (int64_t piece = 0; piece < pieces(); ++piece) load(piece, keys_.GetWithOffset<int32_t>(PIECE, static_cast<uint32_t>(piece) * PIECE * 4));
  }

  __aicore__ inline int64_t pieces() const { return (columns_ + PIECE - 1) / PIECE; }
  // Columns of a piece, and words of 64 columns.
  __aicore__ inline uint32_t columns(int64_t piece) const { return static_cast<uint32_t>(least(columns_ - piece * PIECE, PIECE)); }
  __aicore__ inline uint32_t words(int64_t piece) const { return (columns(piece) + 63) / 64; }

  // The keys of a piece, until the next call.
  __aicore__ inline AscendC::LocalTensor<int32_t> keys(int64_t piece) {
    const uint32_t place = is_kept_ ? static_cast<uint32_t>(piece) : 0;
    const AscendC::LocalTensor<int32_t> keys = keys_.GetWithOffset<int32_t>(PIECE, place * PIECE * 4);
    if (!is_kept_) load(piece, keys);
    return keys;
  }

  // How many keys are at least `pivot`.
  __aicore__ inline int64_t count_at_least(int32_t pivot) {
    using namespace AscendC;
    const LocalTensor<float> counted = scratch_.Get<float>(), sum = work_.GetWithOffset<float>(8, 0);
    const LocalTensor<uint8_t> marks = marks_.Get<uint8_t>();
    int64_t count = 0;
    for (int64_t piece = 0; piece < pieces(); ++piece) {
      const LocalTensor<int32_t> all = keys(piece);
      const int32_t n = static_cast<int32_t>(words(piece) * 64);
      Compares(marks, all, pivot, CMPMODE::GE, static_cast<uint32_t>(n));
      vector_barrier();
      Select(counted, marks, ones_.Get<float>(), 0.0f, SELMODE::VSEL_TENSOR_SCALAR_MODE, static_cast<uint32_t>(n));
      vector_barrier();
      // Behind it S has waited for V.
      ReduceSum(sum, counted, work_.GetWithOffset<float>(128, 256), n);
      count += static_cast<int64_t>(sum.GetValue(0));
    }
    return count;
  }

  // The cut behind the first `places` of the list, which has more; all its keys are from `low` to `high`.
  __aicore__ inline KeyCut cut_after(int64_t places, int32_t low, int32_t high) {
    // At least `low` are more than that many, at least `end` fewer.
    int64_t begin = low, end = static_cast<int64_t>(high) + 1, above = 0;
    while (end - begin > 1) {
      const int64_t middle = begin + (end - begin) / 2, count = count_at_least(static_cast<int32_t>(middle));
      if (count == places) return {static_cast<int32_t>(middle - 1), 0};
      if (count > places) {
        begin = middle;
      } else {
        end = middle;
        above = count;
      }
    }
    return {static_cast<int32_t>(begin), places - above};
  }

  // Marks which keys of a piece are above `key` and which are equal to it. Behind it S sees the marks and the keys, which it returns.
  __aicore__ inline AscendC::LocalTensor<int32_t> mark(int64_t piece, int32_t key) {
    using namespace AscendC;
    const LocalTensor<int32_t> all = keys(piece);
    const uint32_t n = words(piece) * 64;
    Compares(marks_.GetWithOffset<uint8_t>(PIECE / 8, 0), all, key, CMPMODE::GT, n);
    Compares(marks_.GetWithOffset<uint8_t>(PIECE / 8, PIECE / 8), all, key, CMPMODE::EQ, n);
    order<HardEvent::V_S>();
    return all;
  }

  // 64 columns that are marked as above.
  __aicore__ inline uint64_t above(uint32_t word) { return marks_.GetWithOffset<uint64_t>(PIECE / 64, 0).GetValue(word); }

  // Those of 64 columns that are equal, as far as `left` goes, which is what is left behind them.
  __aicore__ inline uint64_t first_ties(uint32_t word, int64_t &left) {
    if (left == 0) return 0;
    uint64_t equal = marks_.GetWithOffset<uint64_t>(PIECE / 64, PIECE / 8).GetValue(word), rest = equal;
    int64_t count = AscendC::ScalarGetCountOfValue<1>(equal);
    if (count > left) {
      // The lowest columns stay.
      for (int64_t i = 0; i < left; ++i) rest &= rest - 1;
      equal &= ~rest;
      count = left;
    }
    left -= count;
    return equal;
  }

private:
  __aicore__ inline void load(int64_t piece, const AscendC::LocalTensor<int32_t> &keys) {
    using namespace AscendC;
    const uint32_t count = columns(piece), lanes = words(piece) * 64, aligned = (count + 7) / 8 * 8;
    const float none = float_of(SIGN_BIT | INFINITY_BITS);
    LocalTensor<float> scores = in_.AllocTensor<float>();
    DataCopyPad(scores, row_[piece * PIECE], DataCopyExtParams(1, count * 4, 0, 0, 0),
                DataCopyPadExtParams<float>(true, 0, static_cast<uint8_t>(aligned - count), none));
    in_.EnQue(scores);
    scores = in_.DeQue<float>();
    if (aligned < lanes) Duplicate(scores[aligned], none, static_cast<int32_t>(lanes - aligned));
    vector_barrier();
    const LocalTensor<uint8_t> marks = marks_.Get<uint8_t>();
    const LocalTensor<int32_t> scratch = scratch_.Get<int32_t>();
    score_keys(keys, scores, marks, scratch, NO_SCORE, lanes);
    if (scale_ != 1.0f) {
      // A product may overflow: what is a score stays one.
      Compares(marks, keys, NO_SCORE, CMPMODE::GT, lanes);
      Muls(scores, scores, scale_, static_cast<int32_t>(lanes));
      vector_barrier();
      order_keys(keys, scores.ReinterpretCast<int32_t>(), scratch, lanes);
      Select(keys.ReinterpretCast<float>(), marks, keys.ReinterpretCast<float>(), float_of(static_cast<uint32_t>(NO_SCORE)),
             SELMODE::VSEL_TENSOR_SCALAR_MODE, lanes);
      vector_barrier();
    }
    in_.FreeTensor(scores);
  }

  AscendC::TQue<AscendC::TPosition::VECIN, 1> in_;
  AscendC::TBuf<AscendC::TPosition::VECCALC> keys_, scratch_, ones_, marks_, work_;
  AscendC::GlobalTensor<float> row_;
  int64_t columns_ = 0;
  float scale_ = 1.0f;
  bool is_kept_ = false;
};
