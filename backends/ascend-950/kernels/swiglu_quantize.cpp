// The gated activation of an expert: g / (1 + e^-g) * u * w with g = min(gate, limit) and u = clamp(up), rounded to mid and to out.
//
// Bytes: gate and up read, out written, each once. A block has a run of the pairs of a row and a piece of 1024 columns.
//
// V does everything. With e = e^-|g| it is g u w / (1 + e), times e where g is negative. The exponential is off by little more than an
// ulp (common/exponential.h); what remains of the four ulps in units of roundoff that the contract has would not hold five more
// roundings, so that products keep what they drop (common/two_float.h) and the quotient is corrected by its rest. A negative g's power
// of two comes last: numbers near the denormals lose nothing before. Where the correction is no number (beyond F32), the plain
// quotient stands.
#include "common/coded_rows.h"
#include "common/exponential.h"
#include "common/float_rows.h"
#include "common/nans.h"
#include "common/rows.h"
#include "common/two_float.h"

using namespace AscendC;

struct SwigluQuantizeTiling {
  int64_t rows, columns, gate_stride, up_stride, out_stride, scale_stride;
  float limit; // infinite without one
  int32_t in_format, out_format, mid, has_weight, reserved;
};
static_assert(sizeof(SwigluQuantizeTiling) == 72, "as in src/ops/swiglu_quantize.rs");

template <class X> class Swiglu {
public:
  __aicore__ inline void init(GM_ADDR gate, GM_ADDR up, GM_ADDR weight, GM_ADDR out, GM_ADDR scales, const SwigluQuantizeTiling &t) {
    t_ = t;
    out_address_ = out;
    scale_address_ = scales;
    gate_.SetGlobalBuffer(reinterpret_cast<__gm__ X *>(gate));
    up_.SetGlobalBuffer(reinterpret_cast<__gm__ X *>(up));
    weight_.SetGlobalBuffer(reinterpret_cast<__gm__ float *>(weight));
    pipe_.InitBuffer(in_, 2, PIECE * 4);
    pipe_.InitBuffer(out_, 2, PIECE * 4);
    pipe_.InitBuffer(room_, VECTORS * PIECE * 4);
    if (t.out_format == FP8_ROW32) coded_.init(pipe_);
  }

  __aicore__ inline void run() {
    const int64_t pieces = (t_.columns + PIECE - 1) / PIECE;
    const Run run = run_of_block(t_.rows * pieces);
    const LocalTensor<float> h = vector(H);
    for (int64_t item = run.begin; item < run.end; ++item) {
      const int64_t row = item / pieces, at = item % pieces * PIECE;
      const uint32_t count = static_cast<uint32_t>(least(t_.columns - at, PIECE));
      load_floats(in_, vector(GATE), gate_[row * t_.gate_stride + at], count);
      load_floats(in_, vector(UP), up_[row * t_.up_stride + at], count);
      activate(t_.has_weight != 0 ? weight_.GetValue(row) : 1.0f, static_cast<int32_t>(count));
      if (t_.mid != 0) {
        const LocalTensor<bfloat16_t> narrow = vector(A).template ReinterpretCast<bfloat16_t>();
        Cast(narrow, h, RoundMode::CAST_RINT, count);
        vector_barrier();
        Cast(h, narrow, RoundMode::CAST_NONE, count);
        vector_barrier();
      }
      const int64_t place = row * t_.out_stride + at;
      if (t_.out_format == FP8_ROW32) {
        coded_.template store<FP8_ROW32>(out_address_ + place, scale_address_ + (row * t_.scale_stride + at / 32), h, count);
      } else if (t_.out_format == BF16) {
        store<bfloat16_t>(place, h, count);
      } else {
        store<float>(place, h, count);
      }
    }
  }

private:
  static constexpr int64_t PIECE = 1024;
  enum Vector : uint32_t { GATE, UP, H, NEAR, S, S_LOW, ONE, P, P_LOW, A, B, C, D, E, F, G, VECTORS };
  __aicore__ inline LocalTensor<float> vector(Vector which) { return room_.template GetWithOffset<float>(PIECE, which * PIECE * 4); }
  __aicore__ inline LocalTensor<int32_t> bits(Vector which) { return vector(which).template ReinterpretCast<int32_t>(); }

  template <class Y> __aicore__ inline void store(int64_t place, const LocalTensor<float> &h, uint32_t count) {
    GlobalTensor<Y> to;
    to.SetGlobalBuffer(reinterpret_cast<__gm__ Y *>(out_address_));
    store_floats(out_, to[place], h, count);
  }

  // a where the bits of `mask` are set, else b, by bits; b is lost.
  __aicore__ inline void blend(const LocalTensor<int32_t> &a, const LocalTensor<int32_t> &b, const LocalTensor<int32_t> &mask,
                               const LocalTensor<int32_t> &inverse, int32_t n) {
    vector_barrier();
    And(a, a, mask, n);
    And(b, b, inverse, n);
    vector_barrier();
    Or(a, a, b, n);
    vector_barrier();
  }

  // (p, p_low) = (p, p_low) * b, of which p_low * b is rounded. NEAR, A to G are scratch but for what b is.
  __aicore__ inline void multiply(const LocalTensor<float> &b, int32_t n) {
    const LocalTensor<float> p = vector(P), p_low = vector(P_LOW), product = vector(A), low = vector(B);
    vector_barrier();
    const Halves left = {p, vector(C), vector(D)};
    split(left.high, left.low, p, n);
    const Halves right = {b, vector(E), vector(F)};
    split(right.high, right.low, b, n);
    exact_product(product, low, left, right, vector(G), n);
    Mul(p_low, p_low, b, n);
    vector_barrier();
    Add(p_low, p_low, low, n);
    Adds(p, product, 0.0f, n);
    vector_barrier();
  }

  // H of GATE and UP.
  __aicore__ inline void activate(float weight, int32_t n) {
    const LocalTensor<float> g = vector(GATE), u = vector(UP), h = vector(H), near = vector(NEAR), s = vector(S), s_low = vector(S_LOW), one = vector(ONE),
                             p = vector(P), p_low = vector(P_LOW);
    nan_mask(bits(A), g, n);
    nan_mask(bits(B), u, n);
    Mins(g, g, t_.limit, n);
    Mins(u, u, t_.limit, n);
    Duplicate(one, 1.0f, n);
    vector_barrier();
    Maxs(u, u, -t_.limit, n);
    put_nans(g, bits(A), n);
    put_nans(u, bits(B), n);
    Abs(h, g, n);
    vector_barrier();
    Muls(h, h, -1.0f, n);
    // e^-|g| = near * 2^A.
    exponential(near, bits(A), h, vector(B), n);
    two_factors(bits(B), bits(C), bits(A), n);
    Mul(h, near, vector(B), n);
    vector_barrier();
    Mul(h, h, vector(C), n);
    vector_barrier();
    // s + s_low = 1 + e exactly: e is at most 1.
    Add(s, h, one, n);
    vector_barrier();
    Sub(s_low, s, one, n);
    vector_barrier();
    Sub(s_low, h, s_low, n);
    // Where g is negative, what stands above is e, in its parts; else 1.
    const LocalTensor<int32_t> is_negative = bits(D), is_other = bits(E), power = bits(H);
    ShiftRight(is_negative, g.template ReinterpretCast<int32_t>(), 31, n);
    vector_barrier();
    Not(is_other, is_negative, n);
    And(power, bits(A), is_negative, n);
    Adds(vector(F), one, 0.0f, n);
    blend(bits(NEAR), bits(F), is_negative, is_other, n);
    // The products.
    Adds(p, g, 0.0f, n);
    Duplicate(p_low, 0.0f, n);
    multiply(u, n);
    Duplicate(g, weight, n);
    multiply(g, n);
    multiply(near, n);
    // The quotient, and its rest over the divisor.
    const LocalTensor<float> quotient = near;
    Div<float, EXACT_DIVISION>(quotient, p, s, n);
    vector_barrier();
    const Halves left = {quotient, vector(C), vector(D)};
    split(left.high, left.low, quotient, n);
    const Halves right = {s, vector(E), vector(F)};
    split(right.high, right.low, s, n);
    exact_product(vector(A), vector(B), left, right, vector(G), n);
    Sub(p, p, vector(A), n);
    Mul(s_low, s_low, quotient, n);
    vector_barrier();
    Sub(p, p, vector(B), n);
    vector_barrier();
    Add(p, p, p_low, n);
    vector_barrier();
    Sub(p, p, s_low, n);
    vector_barrier();
    Div<float, EXACT_DIVISION>(p, p, s, n);
    vector_barrier();
    Add(p, p, quotient, n);
    // All bits set where that is a NaN.
    const LocalTensor<int32_t> is_nan = bits(A), is_number = bits(B);
    nan_mask(is_nan, p, n);
    Not(is_number, is_nan, n);
    blend(bits(NEAR), bits(P), is_nan, is_number, n);
    two_factors(bits(A), bits(B), power, n);
    Mul(near, near, vector(A), n);
    vector_barrier();
    Mul(h, near, vector(B), n);
    vector_barrier();
  }

  SwigluQuantizeTiling t_;
  TPipe pipe_;
  InfinitiesStay infinities_stay_;
  CodedRows coded_;
  TQue<TPosition::VECIN, 2> in_;
  TQue<TPosition::VECOUT, 2> out_;
  TBuf<TPosition::VECCALC> room_;
  GlobalTensor<X> gate_, up_;
  GlobalTensor<float> weight_;
  GM_ADDR out_address_;
  GM_ADDR scale_address_;
};

template <class X>
__aicore__ inline void activate_rows(GM_ADDR gate, GM_ADDR up, GM_ADDR weight, GM_ADDR out, GM_ADDR scales, const SwigluQuantizeTiling &t) {
  Swiglu<X> swiglu;
  swiglu.init(gate, up, weight, out, scales, t);
  swiglu.run();
}

extern "C" __global__ __aicore__ void swiglu_quantize(GM_ADDR gate, GM_ADDR up, GM_ADDR weight, GM_ADDR out, GM_ADDR scales, GM_ADDR tiling) {
  const SwigluQuantizeTiling t = read_tiling<SwigluQuantizeTiling>(tiling);
  if (t.in_format == BF16) activate_rows<bfloat16_t>(gate, up, weight, out, scales, t);
  else activate_rows<float>(gate, up, weight, out, scales, t);
}
