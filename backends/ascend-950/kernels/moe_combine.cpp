// The expert outputs of each row and the shared expert's, added in F32.
//
// Bytes: K rows of y and the shared row read, one row written. A block has a run of pieces of up to 4096 columns of a row. Order of the
// sum: from +0, the rows of y in ascending order, the shared output last; every addition is one of V, rounded to nearest even, and so
// is the end. S looks for the next row in the list of K again and again, K being small; MTE2 and MTE3 move the rows.
#include "common/faults.h"
#include "common/float_rows.h"
#include "common/rows.h"
#include "common/tiling.h"

using namespace AscendC;

struct MoeCombineTiling {
  int64_t rows, columns, outputs, places; // outputs: rows of y
  int64_t y_stride, list_stride, shared_stride, out_stride;
  int32_t format, has_shared;
};
static_assert(sizeof(MoeCombineTiling) == 72, "as in src/ops/moe_combine.rs");

constexpr uint32_t OP = 23, ROW_OF = 1, NOT_BELOW = 0, PIECE = 4096;

template <class X> class MoeCombine {
public:
  __aicore__ inline void init(GM_ADDR y, GM_ADDR row_of, GM_ADDR shared, GM_ADDR out, GM_ADDR faults) {
    y_.SetGlobalBuffer(reinterpret_cast<__gm__ X *>(y));
    list_.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t *>(row_of));
    shared_.SetGlobalBuffer(reinterpret_cast<__gm__ X *>(shared));
    out_.SetGlobalBuffer(reinterpret_cast<__gm__ X *>(out));
    faults_ = faults;
    pipe_.InitBuffer(in_, 2, piece_bytes(PIECE));
    pipe_.InitBuffer(results_, 2, piece_bytes(PIECE));
    pipe_.InitBuffer(term_, PIECE * 4);
    pipe_.InitBuffer(sum_, PIECE * 4);
    pipe_.InitBuffer(fault_, 32);
  }

  __aicore__ inline void run(const MoeCombineTiling &t) {
    // Without columns a place can still be wrong: every row has a piece.
    const int64_t per_row = most(1, (t.columns + PIECE - 1) / PIECE);
    const Run run = run_of_block(t.rows * per_row);
    for (int64_t item = run.begin; item < run.end; ++item) {
      const int64_t row = item / per_row, at = (item - row * per_row) * PIECE;
      if (!is_right(row, t)) report_fault(fault_.Get<int32_t>(), faults_, OP, ROW_OF, NOT_BELOW);
      else if (t.columns > 0) combine(row, at, static_cast<uint32_t>(least(t.columns - at, PIECE)), t);
    }
  }

private:
  __aicore__ inline bool is_right(int64_t row, const MoeCombineTiling &t) {
    for (int64_t k = 0; k < t.places; ++k)
      if (list_.GetValue(row * t.list_stride + k) >= t.outputs) return false;
    return true;
  }

  __aicore__ inline void combine(int64_t row, int64_t at, uint32_t count, const MoeCombineTiling &t) {
    const LocalTensor<float> sum = sum_.Get<float>();
    vector_barrier();
    Duplicate(sum, 0.0f, static_cast<int32_t>(whole_blocks(count)));
    // A place with its index below it, so that a row that is named twice comes twice.
    int64_t latest = -1;
    while (true) {
      int64_t next = -1;
      for (int64_t k = 0; k < t.places; ++k) {
        const int64_t place = list_.GetValue(row * t.list_stride + k), key = place << 32 | k;
        if (place >= 0 && key > latest && (next < 0 || key < next)) next = key;
      }
      if (next < 0) break;
      latest = next;
      add(y_[(next >> 32) * t.y_stride + at], count);
    }
    if (t.has_shared != 0) add(shared_[row * t.shared_stride + at], count);
    store_floats(results_, out_[row * t.out_stride + at], sum, count);
  }

  // V is done with the sum before once it has loaded the term.
  __aicore__ inline void add(const GlobalTensor<X> &from, uint32_t count) {
    const LocalTensor<float> term = term_.Get<float>(), sum = sum_.Get<float>();
    load_floats(in_, term, from, count);
    Add(sum, sum, term, static_cast<int32_t>(count));
  }

  TPipe pipe_;
  InfinitiesStay infinities_stay_;
  TQue<TPosition::VECIN, 2> in_;
  TQue<TPosition::VECOUT, 2> results_;
  TBuf<TPosition::VECCALC> term_, sum_;
  TBuf<TPosition::VECOUT> fault_;
  GlobalTensor<X> y_, shared_, out_;
  GlobalTensor<int32_t> list_;
  GM_ADDR faults_;
};

template <class X>
__aicore__ inline void combine_as(GM_ADDR y, GM_ADDR row_of, GM_ADDR shared, GM_ADDR out, GM_ADDR faults, const MoeCombineTiling &t) {
  MoeCombine<X> op;
  op.init(y, row_of, shared, out, faults);
  op.run(t);
}

extern "C" __global__ __aicore__ void moe_combine(GM_ADDR y, GM_ADDR row_of, GM_ADDR shared, GM_ADDR out, GM_ADDR faults, GM_ADDR tiling) {
  const MoeCombineTiling t = read_tiling<MoeCombineTiling>(tiling);
  if (t.format == BF16) combine_as<bfloat16_t>(y, row_of, shared, out, faults, t);
  else combine_as<float>(y, row_of, shared, out, faults, t);
}
