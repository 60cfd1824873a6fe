// The gated n-gram value added to every copy of the stream, in place.
//
// Bytes: a copy of a row and its key read twice, thrice if they are longer than 4096 columns, the copy once more with the value where
// it is written; the gains once per copy. A block has a run of the pairs of a row and a copy and takes them 32 at a time: first the
// inverse roots of the copies and of the keys (common/inverse_root.h), with each the dot product, then the gates of all at once, then
// the sums. MTE2 reads pieces of 4096 columns, V computes, MTE3 writes; S joins the pieces of a sum and reads the mask.
//
// Dot product: (x scale) * (q k) * (key scale), each product rounded to F32, the scales being powers of two, so that no square and no
// product overflows before the sum does; a piece by ReduceSum, pieces in ascending order; then times both inverse roots and D^-1/2.
#include "common/inverse_root.h"
#include "common/rows.h"

using namespace AscendC;

struct EngramGateTiling {
  int64_t rows, copies, columns;
  int64_t x_stride, copy_stride, kv_stride, q_stride, k_stride;
  float eps, inverse_root_of_columns;
  int32_t format, q_format, k_format, has_mask;
};
static_assert(sizeof(EngramGateTiling) == 88, "as in src/ops/engram_gate.rs");

class Gate {
public:
  __aicore__ inline explicit Gate(const EngramGateTiling &t) : t_(t) {}

  __aicore__ inline void init(GM_ADDR x, GM_ADDR kv, GM_ADDR q_weight, GM_ADDR k_weight, GM_ADDR image_mask) {
    x_ = x;
    kv_ = kv;
    q_weight_ = q_weight;
    k_weight_ = k_weight;
    mask_.SetGlobalBuffer(reinterpret_cast<__gm__ uint8_t *>(image_mask));
    roots_.init(pipe_);
    pipe_.InitBuffer(in_, 2, piece_bytes(PIECE));
    pipe_.InitBuffer(results_, 1, piece_bytes(PIECE));
    pipe_.InitBuffer(products_, PIECE * 4);
    pipe_.InitBuffer(factors_, PIECE * 4);
    pipe_.InitBuffer(work_, 512);
    pipe_.InitBuffer(small_, VECTORS * PAIRS * 4);
  }

  template <class X> __aicore__ inline void run() {
    const Run run = run_of_block(t_.rows * t_.copies);
    for (int64_t begin = run.begin; begin < run.end; begin += PAIRS) {
      const uint32_t pairs = static_cast<uint32_t>(least(run.end - begin, PAIRS));
      float dots[PAIRS];
      for (uint32_t i = 0; i < pairs; ++i) {
        roots_.add(i, stream<X>(begin + i), t_.columns, t_.eps);
        roots_.add(pairs + i, key<X>(begin + i), t_.columns, t_.eps);
        dots[i] = dot<X>(begin + i, roots_.scale().GetValue(i), roots_.scale().GetValue(pairs + i));
      }
      roots_.finish(2 * pairs);
      gates(dots, pairs);
      for (uint32_t i = 0; i < pairs; ++i) {
        const bool is_image = t_.has_mask != 0 && mask_.GetValue((begin + i) / t_.copies) != 0;
        add_value<X>(begin + i, is_image ? 0.0f : vector(GATE).GetValue(i));
      }
    }
  }

private:
  static constexpr uint32_t PIECE = InverseRoots::PIECE, PAIRS = InverseRoots::ROWS / 2;
  enum Vector : uint32_t { ROOT, SIGN, GATE, ONE, VECTORS };
  __aicore__ inline LocalTensor<float> vector(Vector which) { return small_.GetWithOffset<float>(PAIRS, which * PAIRS * 4); }

  template <class X> __aicore__ inline GlobalTensor<X> at(GM_ADDR address, int64_t element) const {
    GlobalTensor<X> tensor;
    tensor.SetGlobalBuffer(reinterpret_cast<__gm__ X *>(address) + element);
    return tensor;
  }
  // Of pair number `pair`: its copy of the stream, its key, and the value of its row.
  template <class X> __aicore__ inline GlobalTensor<X> stream(int64_t pair) const {
    return at<X>(x_, pair / t_.copies * t_.x_stride + pair % t_.copies * t_.copy_stride);
  }
  template <class X> __aicore__ inline GlobalTensor<X> key(int64_t pair) const {
    return at<X>(kv_, pair / t_.copies * t_.kv_stride + pair % t_.copies * t_.columns);
  }
  template <class X> __aicore__ inline GlobalTensor<X> value(int64_t pair) const {
    return at<X>(kv_, pair / t_.copies * t_.kv_stride + t_.copies * t_.columns);
  }

  // Elements of a weight in factors_.
  __aicore__ inline void load_gain(const LocalTensor<float> &to, GM_ADDR weight, int32_t format, int64_t element, uint32_t count) {
    if (format == BF16) load_floats(in_, to, at<bfloat16_t>(weight, element), count);
    else load_floats(in_, to, at<float>(weight, element), count);
  }

  template <class X> __aicore__ inline float dot(int64_t pair, float x_scale, float key_scale) {
    const LocalTensor<float> product = products_.Get<float>(), factor = factors_.Get<float>(), sum = work_.GetWithOffset<float>(8, 0);
    const int64_t copy = pair % t_.copies;
    float total = 0.0f;
    for (int64_t begin = 0; begin < t_.columns; begin += PIECE) {
      const uint32_t count = static_cast<uint32_t>(least(t_.columns - begin, PIECE));
      const int32_t n = static_cast<int32_t>(count);
      load_gain(product, q_weight_, t_.q_format, copy * t_.q_stride + begin, count);
      load_gain(factor, k_weight_, t_.k_format, copy * t_.k_stride + begin, count);
      Mul(product, product, factor, n);
      load_floats(in_, factor, stream<X>(pair)[begin], count);
      Muls(factor, factor, x_scale, n);
      vector_barrier();
      Mul(product, product, factor, n);
      load_floats(in_, factor, key<X>(pair)[begin], count);
      Muls(factor, factor, key_scale, n);
      vector_barrier();
      Mul(product, product, factor, n);
      vector_barrier();
      // Behind it S has waited for V.
      ReduceSum(sum, product, work_.GetWithOffset<float>(64, 256), n);
      total += sum.GetValue(0);
    }
    return total;
  }

  // sigmoid(copysign(sqrt(max(|dot|, 1e-6)), dot)) of each pair.
  __aicore__ inline void gates(const float *dots, uint32_t pairs) {
    const LocalTensor<float> root = vector(ROOT), sign = vector(SIGN), gate = vector(GATE), one = vector(ONE);
    const int32_t n = static_cast<int32_t>(pairs);
    for (uint32_t i = 0; i < pairs; ++i) {
      const float dot = dots[i] * roots_.inverse().GetValue(i) * roots_.inverse().GetValue(pairs + i) * t_.inverse_root_of_columns;
      const float magnitude = float_of(bits_of(dot) & MAGNITUDE_BITS);
      // The comparison lets a NaN through.
      root.SetValue(i, magnitude < 1e-6f ? 1e-6f : magnitude);
      sign.SetValue(i, (bits_of(dot) & SIGN_BIT) != 0 ? 1.0f : -1.0f);
    }
    order<HardEvent::S_V>();
    Duplicate(one, 1.0f, n);
    Sqrt(root, root, n);
    vector_barrier();
    Mul(root, root, sign, n);
    vector_barrier();
    Exp(root, root, n);
    vector_barrier();
    Adds(root, root, 1.0f, n);
    vector_barrier();
    Div(gate, one, root, n);
    order<HardEvent::V_S>();
  }

  template <class X> __aicore__ inline void add_value(int64_t pair, float gate) {
    const LocalTensor<float> sum = products_.Get<float>(), factor = factors_.Get<float>();
    for (int64_t begin = 0; begin < t_.columns; begin += PIECE) {
      const uint32_t count = static_cast<uint32_t>(least(t_.columns - begin, PIECE));
      const int32_t n = static_cast<int32_t>(count);
      load_floats(in_, sum, stream<X>(pair)[begin], count);
      load_floats(in_, factor, value<X>(pair)[begin], count);
      Muls(factor, factor, gate, n);
      vector_barrier();
      Add(sum, sum, factor, n);
      store_floats(results_, stream<X>(pair)[begin], sum, count);
    }
  }

  const EngramGateTiling t_;
  TPipe pipe_;
  InfinitiesStay infinities_stay_;
  InverseRoots roots_;
  TQue<TPosition::VECIN, 2> in_;
  TQue<TPosition::VECOUT, 1> results_;
  TBuf<TPosition::VECCALC> products_, factors_, work_, small_;
  GM_ADDR x_;
  GM_ADDR kv_;
  GM_ADDR q_weight_;
  GM_ADDR k_weight_;
  GlobalTensor<uint8_t> mask_;
};

extern "C" __global__ __aicore__ void engram_gate(GM_ADDR x, GM_ADDR kv, GM_ADDR q_weight, GM_ADDR k_weight, GM_ADDR image_mask, GM_ADDR tiling) {
  const EngramGateTiling t = read_tiling<EngramGateTiling>(tiling);
  Gate gate(t);
  gate.init(x, kv, q_weight, k_weight, image_mask);
  if (t.format == BF16) gate.run<bfloat16_t>();
  else gate.run<float>();
}
