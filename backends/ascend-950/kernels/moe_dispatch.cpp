// Rows copied to their experts, sorted by expert, then by row and place.
//
// Bytes: each row read and written once per expert; the list of experts once per expert of a block and once more. There is no order to
// choose: places follow from the list alone. A block has a run of experts, with one more item behind the last for the pairs that have none.
// Where its first expert begins is how many pairs have a lower one, so that no block waits for another. Vector: V marks, a bit per
// pair, those of an expert, and those below it. Scalar: S counts bits, and walks over them for the places. MTE2 and MTE3 move rows;
// places and weights of up to 32 pairs are written at a time.
#include "common/faults.h"
#include "common/rows.h"
#include "common/tiling.h"

using namespace AscendC;

struct MoeDispatchTiling {
  int64_t rows, places, experts; // K places in each row
  int64_t expert_stride, weight_stride, row_of_stride;
  // Of a row of x and of out, in bytes, and the same of its scales.
  int64_t bytes, x_stride, out_stride;
  int64_t scale_bytes, x_scale_stride, out_scale_stride;
};
static_assert(sizeof(MoeDispatchTiling) == 96, "as in src/ops/moe_dispatch.rs");

constexpr uint32_t OP = 21, EXPERTS = 1, NOT_BELOW = 0;
// Pairs that are looked at at a time, pairs whose places are written at a time, bytes of a row and of zeros that are moved at a time.
constexpr uint32_t PAIRS = 2048, BATCH = 32, COPIED = 16384, ZEROS = 4096;

class MoeDispatch {
public:
  __aicore__ inline void init(GM_ADDR x, GM_ADDR x_scale, GM_ADDR experts, GM_ADDR weights, GM_ADDR out, GM_ADDR out_scale, GM_ADDR row_weight,
                              GM_ADDR expert_start, GM_ADDR row_of, GM_ADDR faults) {
    x_.SetGlobalBuffer(x);
    x_scale_.SetGlobalBuffer(x_scale);
    out_.SetGlobalBuffer(out);
    out_scale_.SetGlobalBuffer(out_scale);
    experts_.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t *>(experts));
    weights_.SetGlobalBuffer(reinterpret_cast<__gm__ float *>(weights));
    row_weight_.SetGlobalBuffer(reinterpret_cast<__gm__ float *>(row_weight));
    expert_start_.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t *>(expert_start));
    row_of_.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t *>(row_of));
    faults_ = faults;
    pipe_.InitBuffer(pairs_, 1, PAIRS * 4);
    pipe_.InitBuffer(copied_, 2, COPIED);
    pipe_.InitBuffer(marks_, PAIRS / 8);
    pipe_.InitBuffer(numbers_, BATCH * 32);
    pipe_.InitBuffer(batch_weights_, BATCH * 4);
    pipe_.InitBuffer(zeros_, ZEROS);
    pipe_.InitBuffer(fault_, 32);
  }

  __aicore__ inline void run(const MoeDispatchTiling &t) {
    const Run run = run_of_block(t.experts + 1);
    if (run.begin == run.end) return;
    begin_list(t);
    int64_t m = count_below(run.begin, t) - count_below(0, t);
    for (int64_t expert = run.begin; expert < run.end; ++expert) {
      write_number(expert_start_[expert], m);
      if (expert == t.experts) finish(m, t);
      else m = place(static_cast<int32_t>(expert), m, t);
    }
  }

private:
  // The list in pieces: whole rows of it, or a part of one. Rows lie on 32 bytes in the UB; what is between them names no expert.
  __aicore__ inline void begin_list(const MoeDispatchTiling &t) {
    slots_ = (t.places + 7) / 8 * 8;
    const bool is_whole = slots_ <= PAIRS;
    rows_per_piece_ = is_whole && slots_ > 0 ? PAIRS / slots_ : 1;
    pieces_per_row_ = is_whole ? 1 : (t.places + PAIRS - 1) / PAIRS;
    pieces_ = t.places == 0 ? 0 : is_whole ? (t.rows + rows_per_piece_ - 1) / rows_per_piece_ : t.rows * pieces_per_row_;
  }

  // Marks the pairs of a piece whose expert compares so; returns the number of words of 64 marks. Behind it S sees them.
  __aicore__ inline uint32_t mark(int64_t piece, CMPMODE mode, int32_t expert, const MoeDispatchTiling &t) {
    first_row_ = piece / pieces_per_row_ * rows_per_piece_;
    first_place_ = piece % pieces_per_row_ * PAIRS;
    rows_ = least(t.rows - first_row_, rows_per_piece_);
    columns_ = least(t.places - first_place_, PAIRS);
    const uint32_t columns = static_cast<uint32_t>(columns_), width = (columns + 7) / 8 * 8, count = static_cast<uint32_t>(rows_) * width;
    const uint32_t words = (count + 63) / 64;
    width_ = width;
    LocalTensor<int32_t> pairs = pairs_.AllocTensor<int32_t>();
    DataCopyPad(pairs, experts_[first_row_ * t.expert_stride + first_place_],
                DataCopyExtParams(static_cast<uint16_t>(rows_), columns * 4, (t.expert_stride - columns_) * 4, 0, 0),
                DataCopyPadExtParams<int32_t>(true, 0, static_cast<uint8_t>(width - columns), -1));
    pairs_.EnQue(pairs);
    pairs = pairs_.DeQue<int32_t>();
    if (count < words * 64) Duplicate(pairs[count], -1, static_cast<int32_t>(words * 64 - count));
    vector_barrier();
    Compares(marks_.Get<uint8_t>(), pairs, expert, mode, words * 64);
    pairs_.FreeTensor(pairs);
    order<HardEvent::V_S>();
    return words;
  }

  __aicore__ inline int64_t count(CMPMODE mode, int64_t expert, const MoeDispatchTiling &t) {
    int64_t all = 0;
    for (int64_t piece = 0; piece < pieces_; ++piece) {
      const uint32_t words = mark(piece, mode, static_cast<int32_t>(expert), t);
      for (uint32_t i = 0; i < words; ++i) all += ScalarGetCountOfValue<1>(marks_.Get<uint64_t>().GetValue(i));
    }
    return all;
  }
  // Those that are no pairs are among them, whatever the expert.
  __aicore__ inline int64_t count_below(int64_t expert, const MoeDispatchTiling &t) { return count(CMPMODE::LT, expert, t); }

  // Calls f(row, place) for the pairs whose expert compares so, in their order.
  template <class F> __aicore__ inline void for_pairs(CMPMODE mode, int32_t expert, const MoeDispatchTiling &t, const F &f) {
    for (int64_t piece = 0; piece < pieces_; ++piece) {
      const uint32_t words = mark(piece, mode, expert, t);
      for (uint32_t i = 0; i < words; ++i) {
        uint64_t bits = marks_.Get<uint64_t>().GetValue(i);
        for (; bits != 0; bits &= bits - 1) {
          const int64_t at = i * 64 + ScalarGetSFFValue<1>(bits), row = at / width_, column = at - row * width_;
          if (row < rows_ && column < columns_) f(first_row_ + row, first_place_ + column);
        }
      }
    }
  }

  // The pairs of an expert, from row m of out on; returns the row behind them.
  __aicore__ inline int64_t place(int32_t expert, int64_t m, const MoeDispatchTiling &t) {
    for_pairs(CMPMODE::EQ, expert, t, [&](int64_t row, int64_t k) {
      numbers_.Get<int32_t>().SetValue(batched_ * 8, static_cast<int32_t>(m));
      batch_weights_.Get<float>().SetValue(batched_, weights_.GetValue(row * t.weight_stride + k));
      targets_[batched_++] = row * t.row_of_stride + k;
      ++m;
      if (batched_ == BATCH) write_batch(m - BATCH, true);
      copy(out_[(m - 1) * t.out_stride], x_[row * t.x_stride], t.bytes);
      copy(out_scale_[(m - 1) * t.out_scale_stride], x_scale_[row * t.x_scale_stride], t.scale_bytes);
    });
    write_batch(m - batched_, true);
    return m;
  }

  // The pairs without an expert, and the weights that are none: m pairs have one.
  __aicore__ inline void finish(int64_t m, const MoeDispatchTiling &t) {
    for_pairs(CMPMODE::LT, 0, t, [&](int64_t row, int64_t k) {
      numbers_.Get<int32_t>().SetValue(batched_ * 8, -1);
      targets_[batched_++] = row * t.row_of_stride + k;
      if (batched_ == BATCH) write_batch(0, false);
    });
    write_batch(0, false);
    Duplicate(zeros_.Get<float>(), 0.0f, static_cast<int32_t>(ZEROS / 4));
    order<HardEvent::V_MTE3>();
    const int64_t pairs = t.rows * t.places;
    for (int64_t at = m; at < pairs; at += ZEROS / 4) {
      const uint32_t bytes = static_cast<uint32_t>(least(pairs - at, ZEROS / 4)) * 4;
      DataCopyPad(row_weight_[at], zeros_.Get<float>(), DataCopyExtParams(1, bytes, 0, 0, 0));
    }
    if (count(CMPMODE::GE, t.experts, t) > 0) report_fault(fault_.Get<int32_t>(), faults_, OP, EXPERTS, NOT_BELOW);
  }

  // Numbers go to their places in row_of, and weights to row_weight from m on. Behind it S may fill the next batch.
  __aicore__ inline void write_batch(int64_t m, bool has_weights) {
    if (batched_ == 0) return;
    order<HardEvent::S_MTE3>();
    for (uint32_t i = 0; i < batched_; ++i) DataCopyPad(row_of_[targets_[i]], numbers_.Get<int32_t>()[i * 8], DataCopyExtParams(1, 4, 0, 0, 0));
    if (has_weights) DataCopyPad(row_weight_[m], batch_weights_.Get<float>(), DataCopyExtParams(1, batched_ * 4, 0, 0, 0));
    order<HardEvent::MTE3_S>();
    batched_ = 0;
  }

  // While no batch is open.
  __aicore__ inline void write_number(const GlobalTensor<int32_t> &to, int64_t number) {
    numbers_.Get<int32_t>().SetValue(0, static_cast<int32_t>(number));
    order<HardEvent::S_MTE3>();
    DataCopyPad(to, numbers_.Get<int32_t>(), DataCopyExtParams(1, 4, 0, 0, 0));
    order<HardEvent::MTE3_S>();
  }

  __aicore__ inline void copy(const GlobalTensor<uint8_t> &to, const GlobalTensor<uint8_t> &from, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += COPIED) {
      const DataCopyExtParams now(1, static_cast<uint32_t>(least(bytes - at, COPIED)), 0, 0, 0);
      LocalTensor<uint8_t> piece = copied_.AllocTensor<uint8_t>();
      DataCopyPad(piece, from[at], now, DataCopyPadExtParams<uint8_t>());
      copied_.EnQue(piece);
      piece = copied_.DeQue<uint8_t>();
      DataCopyPad(to[at], piece, now);
      copied_.FreeTensor(piece);
    }
  }

  TPipe pipe_;
  TQue<TPosition::VECIN, 1> pairs_;
  // MTE2 fills what MTE3 empties.
  TQueBind<TPosition::VECIN, TPosition::VECOUT, 2> copied_;
  // Numbers lie 32 bytes apart: each is a copy of its own.
  TBuf<TPosition::VECCALC> marks_;
  TBuf<TPosition::VECOUT> numbers_, batch_weights_, zeros_, fault_;
  GlobalTensor<uint8_t> x_, x_scale_, out_, out_scale_;
  GlobalTensor<int32_t> experts_, expert_start_, row_of_;
  GlobalTensor<float> weights_, row_weight_;
  GM_ADDR faults_;
  int64_t slots_, rows_per_piece_, pieces_per_row_, pieces_;
  // Of the piece that is marked.
  int64_t first_row_, first_place_, rows_, columns_, width_;
  int64_t targets_[BATCH];
  uint32_t batched_ = 0;
};

extern "C" __global__ __aicore__ void moe_dispatch(GM_ADDR x, GM_ADDR x_scale, GM_ADDR experts, GM_ADDR weights, GM_ADDR out, GM_ADDR out_scale,
                                                   GM_ADDR row_weight, GM_ADDR expert_start, GM_ADDR row_of, GM_ADDR faults, GM_ADDR tiling) {
  const MoeDispatchTiling t = read_tiling<MoeDispatchTiling>(tiling);
  MoeDispatch op;
  op.init(x, x_scale, experts, weights, out, out_scale, row_weight, expert_start, row_of, faults);
  op.run(t);
}
