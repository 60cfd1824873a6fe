// -infinity where a row's bit mask has no bit, in place.
//
// Bytes: a row that has a mask is read and written once; a word of the mask serves 32 tokens. A block has a run of pieces of up to 8192
// tokens of a row. Vector: the words of a mask are the bits that Select takes, so that MTE2 brings both, V selects and MTE3 takes the
// logits away; S reads which mask a row has. There is no sum.
#include "common/bits.h"
#include "common/faults.h"
#include "common/rows.h"
#include "common/tiling.h"

using namespace AscendC;

struct ApplyTokenMaskTiling {
  int64_t rows, columns, logit_stride, masks, mask_stride;
};
static_assert(sizeof(ApplyTokenMaskTiling) == 40, "as in src/ops/apply_token_mask.rs");

constexpr uint32_t OP = 29, MASK_INDEX = 1, PIECE = 8192;
enum Rule : uint32_t { BELOW, BEYOND };

class ApplyTokenMask {
public:
  __aicore__ inline void init(GM_ADDR logits, GM_ADDR mask_index, GM_ADDR masks, GM_ADDR faults) {
    logits_.SetGlobalBuffer(reinterpret_cast<__gm__ float *>(logits));
    mask_index_.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t *>(mask_index));
    masks_.SetGlobalBuffer(reinterpret_cast<__gm__ uint32_t *>(masks));
    faults_ = faults;
    pipe_.InitBuffer(in_, 2, PIECE * 4);
    pipe_.InitBuffer(words_, 2, PIECE / 8);
    pipe_.InitBuffer(out_, 2, PIECE * 4);
    pipe_.InitBuffer(fault_, 32);
  }

  __aicore__ inline void run(const ApplyTokenMaskTiling &t) {
    // Without columns an index can still be wrong: every row has a piece.
    const int64_t per_row = most(1, (t.columns + PIECE - 1) / PIECE);
    const Run run = run_of_block(t.rows * per_row);
    for (int64_t item = run.begin; item < run.end; ++item) {
      const int64_t row = item / per_row, at = (item - row * per_row) * PIECE;
      const int64_t mask = mask_index_.GetValue(row);
      if (mask < -1) refuse(BELOW);
      else if (mask >= t.masks) refuse(BEYOND);
      else if (mask >= 0 && t.columns > 0)
        apply(logits_[row * t.logit_stride + at], masks_[mask * t.mask_stride + at / 32], static_cast<uint32_t>(least(t.columns - at, PIECE)));
    }
  }

private:
  __aicore__ inline void apply(const GlobalTensor<float> &logits, const GlobalTensor<uint32_t> &mask, uint32_t count) {
    LocalTensor<float> before = in_.AllocTensor<float>();
    LocalTensor<uint32_t> words = words_.AllocTensor<uint32_t>();
    DataCopyPad(before, logits, DataCopyExtParams(1, count * 4, 0, 0, 0), DataCopyPadExtParams<float>());
    DataCopyPad(words, mask, DataCopyExtParams(1, (count + 31) / 32 * 4, 0, 0, 0), DataCopyPadExtParams<uint32_t>());
    in_.EnQue(before);
    words_.EnQue(words);
    before = in_.DeQue<float>();
    words = words_.DeQue<uint32_t>();
    LocalTensor<float> after = out_.AllocTensor<float>();
    Select(after, words, before, float_of(SIGN_BIT | INFINITY_BITS), SELMODE::VSEL_TENSOR_SCALAR_MODE, count);
    in_.FreeTensor(before);
    words_.FreeTensor(words);
    out_.EnQue(after);
    after = out_.DeQue<float>();
    DataCopyPad(logits, after, DataCopyExtParams(1, count * 4, 0, 0, 0));
    out_.FreeTensor(after);
  }

  __aicore__ inline void refuse(Rule rule) { report_fault(fault_.Get<int32_t>(), faults_, OP, MASK_INDEX, rule); }

  TPipe pipe_;
  TQue<TPosition::VECIN, 2> in_, words_;
  TQue<TPosition::VECOUT, 2> out_;
  TBuf<TPosition::VECOUT> fault_;
  GlobalTensor<float> logits_;
  GlobalTensor<int32_t> mask_index_;
  GlobalTensor<uint32_t> masks_;
  GM_ADDR faults_;
};

extern "C" __global__ __aicore__ void apply_token_mask(GM_ADDR logits, GM_ADDR mask_index, GM_ADDR masks, GM_ADDR faults, GM_ADDR tiling) {
  const ApplyTokenMaskTiling t = read_tiling<ApplyTokenMaskTiling>(tiling);
  ApplyTokenMask op;
  op.init(logits, mask_index, masks, faults);
  op.run(t);
}
