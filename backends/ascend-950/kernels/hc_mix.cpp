// The mixing coefficients of a hyper-connection: two sigmoids, and a matrix balanced by Sinkhorn iterations.
//
// Bytes: a row of 2 C + C^2 numbers read and written; the time is that of 2 * iters dependent divisions. A block has a run of batches
// of eight rows, and all is done by V: MTE2 puts the rows one below the other, Gather turns them, so that an element of all eight rows
// is a block of 32 bytes, and the matrix C x C of such blocks. A sum over a row or a column then adds blocks in ascending order, eps
// first, and rows of the call never meet; Gather turns the results back. S does nothing but count.
//
// sigmoid(x) is exp(min(x, 0)) / (1 + exp(-|x|)), which has small results as small numbers. Everything is F32; exponentials are within
// an ulp, quotients exact to the half, and both keep denormals.
#include "common/division.h"
#include "common/rows.h"
#include "common/sync.h"
#include "common/tiling.h"

using namespace AscendC;

struct HcMixTiling {
  int64_t rows, mix_stride, pre_stride, post_stride;
  int64_t comb_stride, comb_copy_stride; // of a row, and of a row of its matrix
  uint32_t copies, iters;
  float eps;
  int32_t reserved;
};
static_assert(sizeof(HcMixTiling) == 64, "as in src/ops/hc_mix.rs");

static constexpr ExpConfig KEEPING = {ExpAlgo::PRECISION_1ULP_FTZ_FALSE};

class HcMix {
public:
  __aicore__ inline HcMix(const HcMixTiling &t) : t_(t), c_(static_cast<int32_t>(t.copies)), elements_(2 * c_ + c_ * c_), width_((c_ + 7) / 8 * 8) {}

  __aicore__ inline void init(GM_ADDR mix, GM_ADDR rstd, GM_ADDR base, GM_ADDR scale, GM_ADDR pre, GM_ADDR post, GM_ADDR comb) {
    mix_.SetGlobalBuffer(reinterpret_cast<__gm__ float *>(mix));
    rstd_.SetGlobalBuffer(reinterpret_cast<__gm__ float *>(rstd));
    base_.SetGlobalBuffer(reinterpret_cast<__gm__ float *>(base));
    scale_.SetGlobalBuffer(reinterpret_cast<__gm__ float *>(scale));
    pre_.SetGlobalBuffer(reinterpret_cast<__gm__ float *>(pre));
    post_.SetGlobalBuffer(reinterpret_cast<__gm__ float *>(post));
    comb_.SetGlobalBuffer(reinterpret_cast<__gm__ float *>(comb));
    const uint32_t turned = blocks() * 64 * 4;
    pipe_.InitBuffer(raw_, 2, ROWS * row_bytes());
    pipe_.InitBuffer(factors_, 2, ROWS * 4);
    pipe_.InitBuffer(results_, 2, static_cast<uint32_t>(ROWS * (2 + c_) * width_) * 4);
    pipe_.InitBuffer(values_, turned);
    pipe_.InitBuffer(scratch_, static_cast<uint32_t>(2 * c_) * 32);
    pipe_.InitBuffer(bias_, turned);
    pipe_.InitBuffer(bases_, 1, row_bytes());
    pipe_.InitBuffer(turn_, turned);
    pipe_.InitBuffer(back_, static_cast<uint32_t>(c_ * width_) * 4);
    pipe_.InitBuffer(sums_, static_cast<uint32_t>(c_) * 32);
  }

  __aicore__ inline void run() {
    prepare();
    const Run run = run_of_block((t_.rows + ROWS - 1) / ROWS);
    for (int64_t batch = run.begin; batch < run.end; ++batch) {
      const int64_t first = batch * ROWS;
      const uint16_t rows = static_cast<uint16_t>(least(t_.rows - first, ROWS));
      load(first, rows);
      sigmoids();
      balance();
      store(first, rows);
    }
  }

private:
  static constexpr int64_t ROWS = 8;
  // Groups of 64 numbers that the elements of a batch fill.
  __aicore__ inline uint32_t blocks() const { return static_cast<uint32_t>(elements_ + 7) / 8; }
  // Of a row in the UB.
  __aicore__ inline uint32_t row_bytes() const { return blocks() * 32; }

  // Where a number of a batch comes from and goes to, and the bias beside each.
  __aicore__ inline void prepare() {
    // Of element e of row r: byte r * row_bytes + 4 e.
    const LocalTensor<int32_t> turn = turn_.Get<int32_t>(), back = back_.Get<int32_t>(), index = sums_.Get<int32_t>();
    CreateVecIndex(index, int32_t(0), ROWS);
    vector_barrier();
    Muls(index, index, static_cast<int32_t>(row_bytes()), ROWS);
    vector_barrier();
    for (uint32_t e = 0; e < blocks() * 8; ++e) Adds(turn[e * 8], index, static_cast<int32_t>(e * 4), ROWS);
    // Of column j of row i of a matrix: byte 32 (i C + j), to which come 4 r. Behind the last column it is that one again.
    CreateVecIndex(back, int32_t(0), static_cast<uint32_t>(width_));
    vector_barrier();
    Mins(back, back, c_ - 1, width_);
    vector_barrier();
    Muls(back, back, int32_t(32), width_);
    vector_barrier();
    for (int32_t i = 1; i < c_; ++i) Adds(back[static_cast<uint32_t>(i * width_)], back, i * c_ * 32, width_);

    LocalTensor<float> row = bases_.AllocTensor<float>();
    DataCopyPad(row, base_, DataCopyExtParams(1, static_cast<uint32_t>(elements_) * 4, 0, 0, 0), DataCopyPadExtParams<float>());
    bases_.EnQue(row);
    row = bases_.DeQue<float>();
    Brcb(bias_.Get<float>(), row, static_cast<uint8_t>(blocks()), BrcbRepeatParams(1, 8));
    bases_.FreeTensor(row);
  }

  // mix * rstd * scale + base of a batch, turned, in values_. What is not a row has any value.
  __aicore__ inline void load(int64_t first, uint16_t rows) {
    const LocalTensor<float> x = values_.Get<float>();
    LocalTensor<float> raw = raw_.AllocTensor<float>(), factor = factors_.AllocTensor<float>();
    DataCopyPad(raw, mix_[first * t_.mix_stride],
                DataCopyExtParams(rows, static_cast<uint32_t>(elements_) * 4, (t_.mix_stride - elements_) * 4, 0, 0), DataCopyPadExtParams<float>());
    DataCopyPad(factor, rstd_[first], DataCopyExtParams(1, rows * 4u, 0, 0, 0), DataCopyPadExtParams<float>());
    raw_.EnQue(raw);
    factors_.EnQue(factor);
    raw = raw_.DeQue<float>();
    factor = factors_.DeQue<float>();
    vector_barrier();
    Gather(x, raw, turn_.Get<uint32_t>(), 0, blocks() * 64);
    vector_barrier();
    Mul(x, x, factor, uint64_t(64), static_cast<uint8_t>(blocks()), BinaryRepeatParams(1, 1, 0, 8, 8, 0));
    raw_.FreeTensor(raw);
    factors_.FreeTensor(factor);
    vector_barrier();
    const int32_t part = c_ * 8;
    Muls(x, x, scale_.GetValue(0), part);
    Muls(x[static_cast<uint32_t>(part)], x[static_cast<uint32_t>(part)], scale_.GetValue(1), part);
    Muls(matrix(0, 0), matrix(0, 0), scale_.GetValue(2), c_ * part);
    vector_barrier();
    Add(x, x, bias_.Get<float>(), elements_ * 8);
    vector_barrier();
  }

  __aicore__ inline void sigmoids() {
    const int32_t part = c_ * 8, both = 2 * part;
    const LocalTensor<float> x = values_.Get<float>(), e = scratch_.Get<float>(), post = x[static_cast<uint32_t>(part)];
    Abs(e, x, both);
    vector_barrier();
    Muls(e, e, -1.0f, both);
    Mins(x, x, 0.0f, both);
    vector_barrier();
    Exp<float, KEEPING>(e, e, both);
    Exp<float, KEEPING>(x, x, both);
    vector_barrier();
    Adds(e, e, 1.0f, both);
    vector_barrier();
    Div<float, EXACT_DIVISION>(x, x, e, both);
    vector_barrier();
    Adds(x, x, t_.eps, part);
    Muls(post, post, 2.0f, part);
  }

  // Row i, column j of the matrices of all rows.
  __aicore__ inline LocalTensor<float> matrix(int32_t i, int32_t j) { return values_.Get<float>()[static_cast<uint32_t>((2 + i) * c_ + j) * 8]; }

  // In sums_, of each row of a matrix: `first` plus its columns in ascending order.
  __aicore__ inline void sum_rows(float first) {
    const LocalTensor<float> sum = sums_.Get<float>();
    const uint8_t c = static_cast<uint8_t>(c_);
    Adds(sum, matrix(0, 0), first, ONE, c, UnaryRepeatParams(1, 1, 1, c));
    for (int32_t j = 1; j < c_; ++j) {
      vector_barrier();
      Add(sum, sum, matrix(0, j), ONE, c, BinaryRepeatParams(1, 1, 1, 1, 1, c));
    }
    vector_barrier();
  }

  __aicore__ inline void divide_rows() {
    const uint8_t c = static_cast<uint8_t>(c_);
    for (int32_t j = 0; j < c_; ++j) {
      Div<float, true, EXACT_DIVISION>(matrix(0, j), matrix(0, j), sums_.Get<float>(), ONE, c, BinaryRepeatParams(1, 1, 1, c, c, 1));
    }
    vector_barrier();
  }

  __aicore__ inline void divide_columns() {
    const LocalTensor<float> sum = sums_.Get<float>();
    const int32_t row = c_ * 8;
    Adds(sum, matrix(0, 0), t_.eps, row);
    for (int32_t i = 1; i < c_; ++i) {
      vector_barrier();
      Add(sum, sum, matrix(i, 0), row);
    }
    vector_barrier();
    for (int32_t i = 0; i < c_; ++i) Div<float, EXACT_DIVISION>(matrix(i, 0), matrix(i, 0), sum, row);
    vector_barrier();
  }

  __aicore__ inline void balance() {
    const LocalTensor<float> top = sums_.Get<float>();
    const uint8_t c = static_cast<uint8_t>(c_);
    // Whatever a maximum makes of a NaN, the exponentials keep it.
    Adds(top, matrix(0, 0), 0.0f, ONE, c, UnaryRepeatParams(1, 1, 1, c));
    for (int32_t j = 1; j < c_; ++j) {
      vector_barrier();
      Max(top, top, matrix(0, j), ONE, c, BinaryRepeatParams(1, 1, 1, 1, 1, c));
    }
    vector_barrier();
    for (int32_t j = 0; j < c_; ++j) Sub(matrix(0, j), matrix(0, j), top, ONE, c, BinaryRepeatParams(1, 1, 1, c, c, 1));
    vector_barrier();
    Exp<float, KEEPING>(matrix(0, 0), matrix(0, 0), c_ * c_ * 8);
    vector_barrier();
    sum_rows(0.0f);
    divide_rows();
    Adds(matrix(0, 0), matrix(0, 0), t_.eps, c_ * c_ * 8);
    vector_barrier();
    divide_columns();
    for (uint32_t k = 1; k < t_.iters; ++k) {
      sum_rows(t_.eps);
      divide_rows();
      divide_columns();
    }
  }

  __aicore__ inline void store(int64_t first, uint16_t rows) {
    const LocalTensor<uint32_t> back = back_.Get<uint32_t>();
    const uint32_t width = static_cast<uint32_t>(width_), bytes = static_cast<uint32_t>(c_) * 4, of_post = ROWS * width, of_comb = 2 * of_post;
    const LocalTensor<float> x = values_.Get<float>(), post = x[static_cast<uint32_t>(c_ * 8)];
    LocalTensor<float> result = results_.AllocTensor<float>();
    for (uint32_t r = 0; r < rows; ++r) {
      Gather(result[r * width], x, back, r * 4, width);
      Gather(result[of_post + r * width], post, back, r * 4, width);
      Gather(result[of_comb + r * width * static_cast<uint32_t>(c_)], matrix(0, 0), back, r * 4, width * static_cast<uint32_t>(c_));
    }
    results_.EnQue(result);
    result = results_.DeQue<float>();
    DataCopyPad(pre_[first * t_.pre_stride], result, DataCopyExtParams(rows, bytes, 0, (t_.pre_stride - c_) * 4, 0));
    DataCopyPad(post_[first * t_.post_stride], result[of_post], DataCopyExtParams(rows, bytes, 0, (t_.post_stride - c_) * 4, 0));
    for (uint32_t r = 0; r < rows; ++r) {
      DataCopyPad(comb_[(first + r) * t_.comb_stride], result[of_comb + r * width * static_cast<uint32_t>(c_)],
                  DataCopyExtParams(static_cast<uint16_t>(c_), bytes, 0, (t_.comb_copy_stride - c_) * 4, 0));
    }
    results_.FreeTensor(result);
  }

  static constexpr uint64_t ONE = 8;

  const HcMixTiling t_;
  const int32_t c_, elements_, width_;
  TPipe pipe_;
  TQue<TPosition::VECIN, 2> raw_, factors_;
  TQue<TPosition::VECIN, 1> bases_;
  TQue<TPosition::VECOUT, 2> results_;
  TBuf<TPosition::VECCALC> values_, scratch_, bias_, turn_, back_, sums_;
  GlobalTensor<float> mix_, rstd_, base_, scale_, pre_, post_, comb_;
};

extern "C" __global__ __aicore__ void hc_mix(GM_ADDR mix, GM_ADDR rstd, GM_ADDR base, GM_ADDR scale, GM_ADDR pre, GM_ADDR post, GM_ADDR comb,
                                             GM_ADDR tiling) {
  HcMix kernel(read_tiling<HcMixTiling>(tiling));
  kernel.init(mix, rstd, base, scale, pre, post, comb);
  kernel.run();
}
