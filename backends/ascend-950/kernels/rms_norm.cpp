// weight * x / sqrt(mean of squares + eps), row by row.
//
// Bytes: the row twice, three times if it is longer than 4096 columns, the weights once per row, the result once. A block has a run
// of rows and takes them 64 at a time: first the inverse roots of all (common/inverse_root.h), then the products, in pieces of 4096
// columns: x times the row's scale, a power of two, times the inverse root, times the weight, each product rounded to F32.
#include "common/inverse_root.h"
#include "common/rows.h"

using namespace AscendC;

struct RmsNormTiling {
  int64_t rows, columns, x_stride, out_stride;
  float eps;
  int32_t format, weight_format, reserved;
};
static_assert(sizeof(RmsNormTiling) == 48, "as in src/ops/rms_norm.rs");

template <class X, class W> class RmsNorm {
public:
  __aicore__ inline void init(GM_ADDR x, GM_ADDR weight, GM_ADDR out) {
    x_.SetGlobalBuffer(reinterpret_cast<__gm__ X *>(x));
    weight_.SetGlobalBuffer(reinterpret_cast<__gm__ W *>(weight));
    out_.SetGlobalBuffer(reinterpret_cast<__gm__ X *>(out));
    roots_.init(pipe_);
    pipe_.InitBuffer(rows_, 2, piece_bytes(PIECE));
    pipe_.InitBuffer(results_, 2, piece_bytes(PIECE));
    pipe_.InitBuffer(values_, PIECE * 4);
    pipe_.InitBuffer(gains_, PIECE * 4);
  }

  __aicore__ inline void run(const RmsNormTiling &t) {
    const Run run = run_of_block(t.rows);
    for (int64_t begin = run.begin; begin < run.end; begin += InverseRoots::ROWS) {
      const uint32_t rows = static_cast<uint32_t>(least(run.end - begin, InverseRoots::ROWS));
      for (uint32_t i = 0; i < rows; ++i) roots_.add(i, x_[(begin + i) * t.x_stride], t.columns, t.eps);
      roots_.finish(rows);
      for (uint32_t i = 0; i < rows; ++i) {
        const float scale = roots_.scale().GetValue(i), inverse = roots_.inverse().GetValue(i);
        // Zeros stay zeros, though their inverse root may be infinite.
        const bool is_zero = scale == float_of(INFINITY_BITS);
        write_row(x_[(begin + i) * t.x_stride], out_[(begin + i) * t.out_stride], t.columns,
                  roots_.is_spoilt(i) ? float_of(NAN_BITS) : is_zero ? 1.0f : scale, inverse);
      }
    }
  }

private:
  static constexpr uint32_t PIECE = InverseRoots::PIECE;

  __aicore__ inline void write_row(const GlobalTensor<X> &from, const GlobalTensor<X> &to, int64_t columns, float scale, float inverse) {
    const LocalTensor<float> values = values_.template Get<float>(), gains = gains_.template Get<float>();
    for (int64_t at = 0; at < columns; at += PIECE) {
      const int32_t count = static_cast<int32_t>(least(columns - at, PIECE));
      load_floats(rows_, values, from[at], count);
      load_floats(rows_, gains, weight_[at], count);
      Muls(values, values, scale, count);
      vector_barrier();
      Muls(values, values, inverse, count);
      vector_barrier();
      Mul(values, values, gains, count);
      store_floats(results_, to[at], values, count);
    }
  }

  TPipe pipe_;
  InfinitiesStay infinities_stay_;
  InverseRoots roots_;
  TQue<TPosition::VECIN, 2> rows_;
  TQue<TPosition::VECOUT, 2> results_;
  TBuf<TPosition::VECCALC> values_, gains_;
  GlobalTensor<X> x_, out_;
  GlobalTensor<W> weight_;
};

template <class X, class W> __aicore__ inline void normalise(GM_ADDR x, GM_ADDR weight, GM_ADDR out, const RmsNormTiling &t) {
  RmsNorm<X, W> norm;
  norm.init(x, weight, out);
  norm.run(t);
}

extern "C" __global__ __aicore__ void rms_norm(GM_ADDR x, GM_ADDR weight, GM_ADDR out, GM_ADDR tiling) {
  const RmsNormTiling t = read_tiling<RmsNormTiling>(tiling);
  if (t.format == BF16) {
    if (t.weight_format == BF16) normalise<bfloat16_t, bfloat16_t>(x, weight, out, t);
    else normalise<bfloat16_t, float>(x, weight, out, t);
  } else {
    if (t.weight_format == BF16) normalise<float, bfloat16_t>(x, weight, out, t);
    else normalise<float, float>(x, weight, out, t);
  }
}
