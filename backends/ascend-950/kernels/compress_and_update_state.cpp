// Groups of consecutive tokens pooled by the softmax of their gates, and the rings that keep the tokens of open groups.
//
// Bytes: score and latent of each member, a row written per group; then the latest rows of each request copied to its ring. The
// first kernel reads rings and the second writes them.
//
// compress: a block has a run of the pairs of a group and a piece of its channels, which is the shorter the more members there are. S
// finds the members, MTE2 reads them one below the other, V does the rest, channel by channel: the largest score, the exponentials of
// the differences to it, within an ulp, their sum and that of the products in the order of positions, and a quotient. All of it is
// F32. update_state: a block has a run of requests; MTE2 reads rows and MTE3 writes them. S checks what the host cannot see.
#include "common/division.h"
#include "common/faults.h"
#include "common/float_rows.h"
#include "common/requests.h"
#include "common/rows.h"
#include "common/tiling.h"

using namespace AscendC;

struct CompressTiling {
  int64_t rows, columns, requests, slots;
  int64_t latent_stride, score_stride;
  int64_t slot_stride, place_stride, latent_part; // of the state: of a slot, of a place of its ring, from score to latent
  int64_t ring;
  int64_t groups, ratio, piece, out_stride; // channels of a piece: a multiple of 8, and at most KEPT / ratio
  int32_t out_format, reserved;
};
static_assert(sizeof(CompressTiling) == 120, "as in src/ops/compress_and_update_state.rs");

constexpr uint32_t OP = 14;
// Places in the catalogue.
enum Argument : uint32_t { LATENT, SCORE, STATE, GROUP_ROW, POSITIONS, ROW_REQUEST, REQUEST_START, STATE_SLOT };
enum Rule : uint32_t { RATIO_LOW, RATIO_HIGH, SLOT_RANGE, START_END, START_ORDER, GROUP_RANGE, NOT_ITS_ROW, BEFORE_BEGINNING, SLOT_TAKEN };

static constexpr ExpConfig KEEPING = {ExpAlgo::PRECISION_1ULP_FTZ_FALSE};

// Elements of the scores of all members of a piece, and of one.
constexpr uint32_t KEPT = 16384, PIECE = 2048;

__aicore__ inline GlobalTensor<float> floats_at(GM_ADDR address) {
  GlobalTensor<float> tensor;
  tensor.SetGlobalBuffer(reinterpret_cast<__gm__ float *>(address));
  return tensor;
}

__aicore__ inline GlobalTensor<int32_t> ints_at(GM_ADDR address) {
  GlobalTensor<int32_t> tensor;
  tensor.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t *>(address));
  return tensor;
}

// Row of the ring that has a position: that of scores.
__aicore__ inline int64_t ring_row(const CompressTiling &t, int64_t slot, int64_t position) {
  return slot * t.slot_stride + position % t.ring * t.place_stride;
}

class Compress {
public:
  __aicore__ inline Compress(const CompressTiling &t, const Requests &requests) : t_(t), requests_(requests) {}

  __aicore__ inline void init(GM_ADDR latent, GM_ADDR score, GM_ADDR state, GM_ADDR group_row, GM_ADDR positions, GM_ADDR row_request,
                              GM_ADDR faults) {
    latent_ = floats_at(latent);
    score_ = floats_at(score);
    state_ = floats_at(state);
    group_row_ = ints_at(group_row);
    positions_ = ints_at(positions);
    row_request_ = ints_at(row_request);
    faults_ = faults;
    pipe_.InitBuffer(scores_, KEPT * 4);
    pipe_.InitBuffer(latents_, KEPT * 4);
    pipe_.InitBuffer(top_, PIECE * 4);
    pipe_.InitBuffer(weights_, PIECE * 4);
    pipe_.InitBuffer(results_, 2, piece_bytes(PIECE));
    pipe_.InitBuffer(room_, 32);
  }

  template <class Y> __aicore__ inline void run(GM_ADDR out) {
    GlobalTensor<Y> to;
    to.SetGlobalBuffer(reinterpret_cast<__gm__ Y *>(out));
    // Without channels a group can still be wrong.
    const int64_t per_group = most((t_.columns + t_.piece - 1) / t_.piece, 1);
    const Run run = run_of_block(t_.groups * per_group);
    for (int64_t item = run.begin; item < run.end; ++item) {
      const int64_t group = item / per_group, at = (item - group * per_group) * t_.piece, last = group_row_.GetValue(group);
      if (last < 0 || last >= t_.rows) {
        report(GROUP_ROW, GROUP_RANGE);
        continue;
      }
      const int64_t q = row_request_.GetValue(last);
      if (q < 0 || q >= requests_.count() || last < requests_.start(q) || last >= requests_.start(q + 1)) {
        // If the starts are wrong, this is their fault, which the other kernel finds.
        if (requests_.are_starts_right()) report(ROW_REQUEST, NOT_ITS_ROW);
        continue;
      }
      if (!requests_.is_sound(q)) continue;
      if (positions_.GetValue(last) + int64_t(1) < t_.ratio) {
        report(GROUP_ROW, BEFORE_BEGINNING);
        continue;
      }
      const uint32_t count = static_cast<uint32_t>(least(t_.columns - at, t_.piece));
      if (count == 0) continue;
      load(q, last, at, count);
      pool(count);
      store_floats(results_, to[group * t_.out_stride + at], latents_.Get<float>(), count);
    }
  }

private:
  __aicore__ inline void report(uint32_t argument, uint32_t rule) { report_fault(room_.Get<int32_t>(), faults_, OP, argument, rule); }

  // Scores and latents of the members of the group that ends with a row, in the order of positions.
  __aicore__ inline void load(int64_t q, int64_t last, int64_t at, uint32_t count) {
    const LocalTensor<float> scores = scores_.Get<float>(), latents = latents_.Get<float>();
    const DataCopyExtParams bytes(1, count * 4, 0, 0, 0);
    const int64_t begin = positions_.GetValue(last) + int64_t(1) - t_.ratio, slot = requests_.slot(q);
    // Positions ascend within a request: a member of this call is one of the latest `ratio` rows, and mostly that many rows back.
    const int64_t earliest = most(requests_.start(q), last + 1 - t_.ratio);
    // V has used the group before.
    order<HardEvent::V_MTE2>();
    for (int64_t k = 0; k < t_.ratio; ++k) {
      int64_t row = last + 1 - t_.ratio + k;
      if (row < earliest || positions_.GetValue(row) != begin + k) {
        row = last;
        while (row >= earliest && positions_.GetValue(row) != begin + k) --row;
      }
      const uint32_t place = static_cast<uint32_t>(k * t_.piece);
      if (row >= earliest) {
        DataCopyPad(scores[place], score_[row * t_.score_stride + at], bytes, DataCopyPadExtParams<float>());
        DataCopyPad(latents[place], latent_[row * t_.latent_stride + at], bytes, DataCopyPadExtParams<float>());
      } else {
        const int64_t kept = ring_row(t_, slot, begin + k) + at;
        DataCopyPad(scores[place], state_[kept], bytes, DataCopyPadExtParams<float>());
        DataCopyPad(latents[place], state_[kept + t_.latent_part], bytes, DataCopyPadExtParams<float>());
      }
    }
    order<HardEvent::MTE2_V>();
  }

  // The pooled channels, at the place of the first member's latents.
  __aicore__ inline void pool(uint32_t count) {
    const LocalTensor<float> scores = scores_.Get<float>(), latents = latents_.Get<float>(), top = top_.Get<float>(), weights = weights_.Get<float>();
    const int32_t n = static_cast<int32_t>(count), all = static_cast<int32_t>((t_.ratio - 1) * t_.piece) + n;
    const auto place = [&](int64_t k) { return static_cast<uint32_t>(k * t_.piece); };
    vector_barrier();
    // Whatever a maximum makes of a NaN, the exponentials keep it.
    Max(top, scores, scores[place(1)], n);
    for (int64_t k = 2; k < t_.ratio; ++k) {
      vector_barrier();
      Max(top, top, scores[place(k)], n);
    }
    vector_barrier();
    for (int64_t k = 0; k < t_.ratio; ++k) Sub(scores[place(k)], scores[place(k)], top, n);
    vector_barrier();
    Exp<float, KEEPING>(scores, scores, all);
    vector_barrier();
    Mul(latents, latents, scores, all);
    Add(weights, scores, scores[place(1)], n);
    vector_barrier();
    Add(latents, latents, latents[place(1)], n);
    for (int64_t k = 2; k < t_.ratio; ++k) {
      vector_barrier();
      Add(weights, weights, scores[place(k)], n);
      Add(latents, latents, latents[place(k)], n);
    }
    vector_barrier();
    Div<float, EXACT_DIVISION>(latents, latents, weights, n);
  }

  const CompressTiling t_;
  const Requests requests_;
  TPipe pipe_;
  InfinitiesStay infinities_stay_;
  TBuf<TPosition::VECCALC> scores_, latents_, top_, weights_;
  TBuf<TPosition::VECOUT> room_;
  TQue<TPosition::VECOUT, 2> results_;
  GlobalTensor<float> latent_, score_, state_;
  GlobalTensor<int32_t> group_row_, positions_, row_request_;
  GM_ADDR faults_;
};

extern "C" __global__ __aicore__ void compress(GM_ADDR latent, GM_ADDR score, GM_ADDR state, GM_ADDR group_row, GM_ADDR positions,
                                               GM_ADDR row_request, GM_ADDR request_start, GM_ADDR state_slot, GM_ADDR out, GM_ADDR faults,
                                               GM_ADDR tiling) {
  const CompressTiling t = read_tiling<CompressTiling>(tiling);
  Compress kernel(t, Requests(request_start, state_slot, t.requests, t.rows, t.slots));
  kernel.init(latent, score, state, group_row, positions, row_request, faults);
  if (t.out_format == BF16) kernel.run<bfloat16_t>(out);
  else kernel.run<float>(out);
}

class UpdateState {
public:
  __aicore__ inline UpdateState(const CompressTiling &t, const Requests &requests) : t_(t), requests_(requests) {}

  __aicore__ inline void init(GM_ADDR latent, GM_ADDR score, GM_ADDR state, GM_ADDR positions, GM_ADDR faults) {
    latent_ = floats_at(latent);
    score_ = floats_at(score);
    state_ = floats_at(state);
    positions_ = ints_at(positions);
    faults_ = faults;
    pipe_.InitBuffer(pieces_, 2, COPIED * 4);
    pipe_.InitBuffer(room_, 32);
  }

  __aicore__ inline void run() {
    // One more place than requests: the last start is the end.
    const Run run = run_of_block(requests_.count() + 1);
    for (int64_t q = run.begin; q < run.end; ++q) {
      if (requests_.is_out_of_order(q)) report(REQUEST_START, START_ORDER);
      else if (requests_.is_wrong_end(q)) report(REQUEST_START, START_END);
      else if (q == requests_.count()) continue;
      else if (!requests_.is_slot(q)) report(STATE_SLOT, SLOT_RANGE);
      else if (!requests_.is_sound(q)) continue;
      else if (requests_.is_slot_taken(q)) report(STATE_SLOT, SLOT_TAKEN);
      else keep(q);
    }
  }

private:
  static constexpr int64_t COPIED = 8192;

  __aicore__ inline void report(uint32_t argument, uint32_t rule) { report_fault(room_.Get<int32_t>(), faults_, OP, argument, rule); }

  // The latest rows of a request, in ascending order: of two with one place the later stays.
  __aicore__ inline void keep(int64_t q) {
    const int64_t end = requests_.start(q + 1);
    for (int64_t row = most(requests_.start(q), end - t_.ring); row < end; ++row) {
      const int64_t position = positions_.GetValue(row);
      if (position < 0) {
        report(POSITIONS, BEFORE_BEGINNING);
        continue;
      }
      const int64_t to = ring_row(t_, requests_.slot(q), position);
      PipeBarrier<PIPE_MTE3>();
      copy(state_[to], score_[row * t_.score_stride]);
      copy(state_[to + t_.latent_part], latent_[row * t_.latent_stride]);
    }
  }

  __aicore__ inline void copy(const GlobalTensor<float> &to, const GlobalTensor<float> &from) {
    for (int64_t at = 0; at < t_.columns; at += COPIED) {
      const DataCopyExtParams bytes(1, static_cast<uint32_t>(least(t_.columns - at, COPIED)) * 4, 0, 0, 0);
      LocalTensor<float> piece = pieces_.AllocTensor<float>();
      DataCopyPad(piece, from[at], bytes, DataCopyPadExtParams<float>());
      pieces_.EnQue(piece);
      piece = pieces_.DeQue<float>();
      DataCopyPad(to[at], piece, bytes);
      pieces_.FreeTensor(piece);
    }
  }

  const CompressTiling t_;
  const Requests requests_;
  TPipe pipe_;
  // MTE2 fills what MTE3 empties.
  TQueBind<TPosition::VECIN, TPosition::VECOUT, 2> pieces_;
  TBuf<TPosition::VECOUT> room_;
  GlobalTensor<float> latent_, score_, state_;
  GlobalTensor<int32_t> positions_;
  GM_ADDR faults_;
};

extern "C" __global__ __aicore__ void update_state(GM_ADDR latent, GM_ADDR score, GM_ADDR state, GM_ADDR positions, GM_ADDR request_start,
                                                   GM_ADDR state_slot, GM_ADDR faults, GM_ADDR tiling) {
  const CompressTiling t = read_tiling<CompressTiling>(tiling);
  UpdateState kernel(t, Requests(request_start, state_slot, t.requests, t.rows, t.slots));
  kernel.init(latent, score, state, positions, faults);
  kernel.run();
}
