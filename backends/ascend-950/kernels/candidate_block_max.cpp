// The best visible score of each block of entries; +infinity for the block of the newest one.
//
// Bytes: the visible scores once, a value out per block. A maximum has no order. A core has a run of pieces of up to 128 blocks of a
// row. Vector: MTE2 lays the entries of each block on a boundary of 32 bytes, V takes their maximum as integers in the order of the
// scores, so that NaN and infinities need no rule of the device. Blocks of more than 64 entries, and one that is visible in part, are
// taken one by one. S only writes single values and knows what is visible.
#include "common/ordered.h"
#include "common/rows.h"
#include "common/tiling.h"

using namespace AscendC;

struct CandidateBlockMaxTiling {
  int64_t rows, columns, score_stride, blocks, out_stride, block_size;
};
static_assert(sizeof(CandidateBlockMaxTiling) == 48, "as in src/ops/candidate_block_max.rs");

// Blocks of a piece, entries of a block that are taken beside others, entries of a larger one that are taken at a time.
constexpr uint32_t BLOCKS = 128, NARROW = 64, ENTRIES = BLOCKS * NARROW;

class CandidateBlockMax {
public:
  __aicore__ inline void init(GM_ADDR scores, GM_ADDR visible, GM_ADDR out) {
    scores_.SetGlobalBuffer(reinterpret_cast<__gm__ float *>(scores));
    visible_.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t *>(visible));
    out_.SetGlobalBuffer(reinterpret_cast<__gm__ float *>(out));
    pipe_.InitBuffer(in_, 2, ENTRIES * 4);
    pipe_.InitBuffer(results_, 2, BLOCKS * 4);
    pipe_.InitBuffer(keys_, ENTRIES * 4);
    pipe_.InitBuffer(scratch_, ENTRIES * 4);
    pipe_.InitBuffer(is_score_, ENTRIES / 8);
    pipe_.InitBuffer(best_, BLOCKS * 4);
    pipe_.InitBuffer(work_, 1024);
  }

  __aicore__ inline void run(const CandidateBlockMaxTiling &t) {
    const int64_t per_row = (t.blocks + BLOCKS - 1) / BLOCKS;
    const Run run = run_of_block(t.rows * per_row);
    for (int64_t item = run.begin; item < run.end; ++item) {
      const int64_t row = item / per_row, first = (item - row * per_row) * BLOCKS, count = least(t.blocks - first, BLOCKS);
      const int64_t sees = most(0, visible_.GetValue(row)), end = least(t.columns, sees);
      take(row * t.score_stride, first, count, sees, end, t);
      store(out_[row * t.out_stride + first], static_cast<uint32_t>(count));
    }
  }

private:
  // The best of the blocks first, first + 1, ... of a row, of which `end` entries count.
  __aicore__ inline void take(int64_t row, int64_t first, int64_t count, int64_t sees, int64_t end, const CandidateBlockMaxTiling &t) {
    const LocalTensor<int32_t> best = best_.Get<int32_t>();
    // The scores of the item before have been made of it.
    Duplicate(best, LOWEST_SCORE, static_cast<int32_t>(BLOCKS));
    // Blocks that are visible as a whole.
    const int64_t whole = t.block_size <= NARROW ? most(0, least(count, end / t.block_size - first)) : 0;
    if (whole > 0) take_many(scores_[row + first * t.block_size], static_cast<uint32_t>(whole), static_cast<uint32_t>(t.block_size));
    order<HardEvent::V_S>();
    for (int64_t i = whole; i < count && (first + i) * t.block_size < end; ++i) {
      const int64_t from = (first + i) * t.block_size;
      best.SetValue(static_cast<uint32_t>(i), largest_of(row + from, least(end - from, t.block_size)));
    }
    const int64_t newest = sees > 0 ? (sees - 1) / t.block_size - first : -1;
    if (newest >= 0 && newest < count) best.SetValue(static_cast<uint32_t>(newest), HIGHEST_SCORE);
    order<HardEvent::S_V>();
  }

  __aicore__ inline void take_many(const GlobalTensor<float> &from, uint32_t blocks, uint32_t size) {
    // Behind the entries of a block there is -infinity up to 32 bytes.
    const uint32_t lanes = (size + 7) / 8 * 8;
    LocalTensor<float> scores = in_.AllocTensor<float>();
    DataCopyPad(scores, from, DataCopyExtParams(static_cast<uint16_t>(blocks), size * 4, 0, 0, 0),
                DataCopyPadExtParams<float>(true, 0, static_cast<uint8_t>(lanes - size), float_of(SIGN_BIT | INFINITY_BITS)));
    in_.EnQue(scores);
    scores = in_.DeQue<float>();
    const LocalTensor<int32_t> keys = keys_of(scores, blocks * lanes);
    in_.FreeTensor(scores);
    WholeReduceMax(best_.Get<int32_t>(), keys, static_cast<int32_t>(lanes), static_cast<int32_t>(blocks), 1, 1, static_cast<int32_t>(lanes / 8),
                   ReduceOrder::ORDER_ONLY_VALUE);
  }

  // Of `count` neighbours. S waits for it.
  __aicore__ inline int32_t largest_of(int64_t at, int64_t count) {
    int32_t largest = LOWEST_SCORE;
    const LocalTensor<int32_t> result = work_.GetWithOffset<int32_t>(8, 0);
    for (int64_t done = 0; done < count; done += ENTRIES) {
      const uint32_t now = static_cast<uint32_t>(least(count - done, ENTRIES));
      LocalTensor<float> scores = in_.AllocTensor<float>();
      DataCopyPad(scores, scores_[at + done], DataCopyExtParams(1, now * 4, 0, 0, 0), DataCopyPadExtParams<float>());
      in_.EnQue(scores);
      scores = in_.DeQue<float>();
      const LocalTensor<int32_t> keys = keys_of(scores, now);
      in_.FreeTensor(scores);
      ReduceMax(result, keys, work_.GetWithOffset<int32_t>(128, 256), static_cast<int32_t>(now));
      order<HardEvent::V_S>();
      const int32_t key = result.GetValue(0);
      largest = largest < key ? key : largest;
    }
    return largest;
  }

  __aicore__ inline LocalTensor<int32_t> keys_of(const LocalTensor<float> &scores, uint32_t count) {
    const LocalTensor<int32_t> keys = keys_.Get<int32_t>();
    score_keys(keys, scores, is_score_.Get<uint8_t>(), scratch_.Get<int32_t>(), LOWEST_SCORE, count);
    return keys;
  }

  // Integers become scores again.
  __aicore__ inline void store(const GlobalTensor<float> &to, uint32_t count) {
    LocalTensor<float> result = results_.AllocTensor<float>();
    scores_of_keys(result, best_.Get<int32_t>(), scratch_.Get<int32_t>(), count);
    results_.EnQue(result);
    result = results_.DeQue<float>();
    DataCopyPad(to, result, DataCopyExtParams(1, count * 4, 0, 0, 0));
    results_.FreeTensor(result);
  }

  TPipe pipe_;
  TQue<TPosition::VECIN, 2> in_;
  TQue<TPosition::VECOUT, 2> results_;
  TBuf<TPosition::VECCALC> keys_, scratch_, is_score_, best_, work_;
  GlobalTensor<float> scores_, out_;
  GlobalTensor<int32_t> visible_;
};

extern "C" __global__ __aicore__ void candidate_block_max(GM_ADDR scores, GM_ADDR visible, GM_ADDR out, GM_ADDR tiling) {
  const CandidateBlockMaxTiling t = read_tiling<CandidateBlockMaxTiling>(tiling);
  CandidateBlockMax op;
  op.init(scores, visible, out);
  op.run(t);
}
