// The columns of the largest scores, ascending.
//
// Bytes: a row of up to 28672 scores once; a longer one once per step of the search. A core has a run of rows. Scores become integers in
// their order (common/ordered.h). Vector: the K-th largest of them is found by halving the range of the integers, where V counts how
// many are at least the middle (common/key_row.h), and V then marks, a bit per column, what is above it and what is equal. Scalar: S
// walks over the bits and writes the columns, so that of equal scores the lower columns come first. There is no sum of floats but
// that of ones, which is exact.
#include "common/key_row.h"
#include "common/rows.h"
#include "common/tiling.h"

using namespace AscendC;

struct TopkSelectTiling {
  int64_t rows, columns, score_stride, places, out_stride;
};
static_assert(sizeof(TopkSelectTiling) == 40, "as in src/ops/topk_select.rs");

// Columns that are written at a time.
constexpr uint32_t WRITTEN = 2048;

class TopkSelect {
public:
  __aicore__ inline void init(GM_ADDR scores, GM_ADDR out) {
    scores_.SetGlobalBuffer(reinterpret_cast<__gm__ float *>(scores));
    out_.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t *>(out));
    keys_.init(pipe_);
    pipe_.InitBuffer(written_, WRITTEN * 4);
  }

  __aicore__ inline void run(const TopkSelectTiling &t) {
    const Run run = run_of_block(t.rows);
    for (int64_t row = run.begin; row < run.end; ++row) {
      keys_.begin(scores_[row * t.score_stride], t.columns);
      // Keys above `cut.key` are chosen, and the first `cut.ties` of those at it.
      KeyCut cut = {NO_SCORE, 0};
      if (keys_.count_at_least(NO_SCORE + 1) > t.places) cut = keys_.cut_after(t.places, NO_SCORE + 1, HIGHEST_SCORE);
      write(out_[row * t.out_stride], t.places, cut);
    }
  }

private:
  __aicore__ inline void write(const GlobalTensor<int32_t> &to, int64_t places, KeyCut cut) {
    const LocalTensor<int32_t> written = written_.Get<int32_t>();
    int64_t done = 0;
    uint32_t here = 0;
    const auto emit = [&](int32_t column) {
      written.SetValue(here++, column);
      if (here < WRITTEN) return;
      store(to[done], here);
      done += here;
      here = 0;
    };
    for (int64_t piece = 0; piece < keys_.pieces() && done + here < places; ++piece) {
      keys_.mark(piece, cut.key);
      for (uint32_t word = 0; word < keys_.words(piece); ++word) {
        uint64_t bits = keys_.above(word) | keys_.first_ties(word, cut.ties);
        while (bits != 0) {
          emit(static_cast<int32_t>(piece * KeyRow::PIECE + word * 64 + ScalarGetSFFValue<1>(bits)));
          bits &= bits - 1;
        }
      }
    }
    while (done + here < places) emit(-1);
    if (here > 0) store(to[done], here);
  }

  // Behind it S may write the places again.
  __aicore__ inline void store(const GlobalTensor<int32_t> &to, uint32_t count) {
    order<HardEvent::S_MTE3>();
    DataCopyPad(to, written_.Get<int32_t>(), DataCopyExtParams(1, count * 4, 0, 0, 0));
    order<HardEvent::MTE3_S>();
  }

  TPipe pipe_;
  KeyRow keys_;
  TBuf<TPosition::VECOUT> written_;
  GlobalTensor<float> scores_;
  GlobalTensor<int32_t> out_;
};

extern "C" __global__ __aicore__ void topk_select(GM_ADDR scores, GM_ADDR out, GM_ADDR tiling) {
  const TopkSelectTiling t = read_tiling<TopkSelectTiling>(tiling);
  TopkSelect op;
  op.init(scores, out);
  op.run(t);
}
