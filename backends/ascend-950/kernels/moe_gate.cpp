// The experts of each row and their weights.
//
// Bytes: a row of logits read, the biases once per block, experts and weights written. A block has a run of rows. V computes the scores
// of a row; S chooses: it is index logic, and a list of few.
//
// Scores, with e = e^-|z| from common/exponential.h: 1 / (1 + e), times e where z is negative; the root of max(z, 0) + ln(1 + e), where
// what 1 + e drops is added to the logarithm, and e^(z / 2) below -30, where the root of a denormal would lose its digits; or e^(z - m)
// over the sum, where what z - m drops goes into the exponential. The sum over the experts is ReduceSum's tree; that of the chosen
// scores is S's, best first, with what each addition drops.
#include "common/encode.h"
#include "common/exponential.h"
#include "common/nans.h"
#include "common/rows.h"

using namespace AscendC;

struct MoeGateTiling {
  int64_t rows, experts, chosen, logits_stride, experts_stride, weights_stride;
  float route_scale;
  uint32_t scoring, normalize, has_bias_vl, has_mask, reserved;
};
static_assert(sizeof(MoeGateTiling) == 72, "as in src/ops/moe_gate.rs");

constexpr uint32_t MOST_EXPERTS = 2048, MOST_CHOSEN = 64;
constexpr uint32_t SOFTPLUS_ROOT = 0, SIGMOID = 1;

class Gate {
public:
  __aicore__ inline void init(GM_ADDR logits, GM_ADDR bias, GM_ADDR bias_vl, GM_ADDR mask, GM_ADDR experts, GM_ADDR weights, const MoeGateTiling &t) {
    t_ = t;
    logits_.SetGlobalBuffer(reinterpret_cast<__gm__ float *>(logits));
    mask_.SetGlobalBuffer(reinterpret_cast<__gm__ uint8_t *>(mask));
    experts_.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t *>(experts));
    weights_.SetGlobalBuffer(reinterpret_cast<__gm__ float *>(weights));
    pipe_.InitBuffer(room_, VECTORS * MOST_EXPERTS * 4);
    pipe_.InitBuffer(chosen_, 2 * MOST_CHOSEN * 4);
    pipe_.InitBuffer(work_, 512);
    GlobalTensor<float> from;
    const DataCopyExtParams bytes(1, static_cast<uint32_t>(t.experts) * 4, 0, 0, 0);
    from.SetGlobalBuffer(reinterpret_cast<__gm__ float *>(bias));
    DataCopyPad(vector(BIAS), from, bytes, DataCopyPadExtParams<float>());
    if (t.has_bias_vl != 0) {
      from.SetGlobalBuffer(reinterpret_cast<__gm__ float *>(bias_vl));
      DataCopyPad(vector(BIAS_VL), from, bytes, DataCopyPadExtParams<float>());
    }
  }

  __aicore__ inline void run() {
    const Run run = run_of_block(t_.rows);
    const int32_t n = static_cast<int32_t>(t_.experts);
    const LocalTensor<float> z = vector(Z), scores = vector(SCORES), biased = vector(BIASED);
    for (int64_t row = run.begin; row < run.end; ++row) {
      DataCopyPad(z, logits_[row * t_.logits_stride], DataCopyExtParams(1, static_cast<uint32_t>(t_.experts) * 4, 0, 0, 0), DataCopyPadExtParams<float>());
      order<HardEvent::MTE2_V>();
      if (t_.scoring == SOFTPLUS_ROOT) softplus_roots(n);
      else if (t_.scoring == SIGMOID) sigmoids(n);
      else softmax(n);
      nan_mask(bits(A), z, n);
      put_nans(scores, bits(A), n);
      const bool is_image = t_.has_bias_vl != 0 && t_.has_mask != 0 && mask_.GetValue(row) != 0;
      Add(biased, scores, vector(is_image ? BIAS_VL : BIAS), n);
      order<HardEvent::V_S>();
      choose(row);
      // The next row may come, and its results.
      order<HardEvent::V_MTE2>();
      order<HardEvent::MTE3_S>();
      order<HardEvent::S_V>();
    }
  }

private:
  enum Vector : uint32_t { BIAS, BIAS_VL, Z, SCORES, BIASED, NEAR, A, B, C, D, E, F, VECTORS };
  __aicore__ inline LocalTensor<float> vector(Vector which) { return room_.GetWithOffset<float>(MOST_EXPERTS, which * MOST_EXPERTS * 4); }
  __aicore__ inline LocalTensor<int32_t> bits(Vector which) { return vector(which).ReinterpretCast<int32_t>(); }

  // a where the bits of `mask` are set, else b, by bits; b is lost, and `mask` inverted.
  __aicore__ inline void blend(const LocalTensor<int32_t> &a, const LocalTensor<int32_t> &b, const LocalTensor<int32_t> &mask, int32_t n) {
    vector_barrier();
    And(a, a, mask, n);
    vector_barrier();
    Not(mask, mask, n);
    vector_barrier();
    And(b, b, mask, n);
    vector_barrier();
    Or(a, a, b, n);
    vector_barrier();
  }

  // NEAR and A are the parts of e^-|z|; E is 1 + e, F what that drops, D is e.
  __aicore__ inline void exponentials(int32_t n) {
    const LocalTensor<float> e = vector(D), sum = vector(E), low = vector(F);
    Abs(e, vector(Z), n);
    vector_barrier();
    Muls(e, e, -1.0f, n);
    exponential(vector(NEAR), bits(A), e, vector(B), n);
    two_factors(bits(B), bits(C), bits(A), n);
    Mul(e, vector(NEAR), vector(B), n);
    vector_barrier();
    Mul(e, e, vector(C), n);
    vector_barrier();
    Adds(sum, e, 1.0f, n);
    vector_barrier();
    Adds(low, sum, -1.0f, n);
    vector_barrier();
    Sub(low, e, low, n);
    vector_barrier();
  }

  __aicore__ inline void sigmoids(int32_t n) {
    const LocalTensor<float> near = vector(NEAR), scores = vector(SCORES);
    const LocalTensor<int32_t> is_negative = bits(B), power = bits(A);
    exponentials(n);
    ShiftRight(is_negative, bits(Z), 31, n);
    Duplicate(vector(C), 1.0f, n);
    vector_barrier();
    And(power, power, is_negative, n);
    blend(bits(NEAR), bits(C), is_negative, n);
    Div<float, EXACT_DIVISION>(scores, near, vector(E), n);
    two_factors(bits(B), bits(C), power, n);
    Mul(scores, scores, vector(B), n);
    vector_barrier();
    Mul(scores, scores, vector(C), n);
  }

  __aicore__ inline void softplus_roots(int32_t n) {
    const LocalTensor<float> scores = vector(SCORES), low = vector(F), near = vector(NEAR);
    exponentials(n);
    Div<float, EXACT_DIVISION>(low, low, vector(E), n);
    Ln(scores, vector(E), n);
    Maxs(vector(B), vector(Z), 0.0f, n);
    vector_barrier();
    Add(scores, scores, low, n);
    vector_barrier();
    Add(scores, scores, vector(B), n);
    vector_barrier();
    Sqrt<float, EXACT_ROOT>(scores, scores, n);
    // Far below zero it is e^(z / 2).
    Mins(vector(D), vector(Z), 0.0f, n);
    vector_barrier();
    Muls(vector(D), vector(D), 0.5f, n);
    exponential(near, bits(A), vector(D), vector(B), n);
    two_factors(bits(B), bits(C), bits(A), n);
    Mul(near, near, vector(B), n);
    Adds(vector(D), vector(Z), 30.0f, n);
    vector_barrier();
    Mul(near, near, vector(C), n);
    ShiftRight(bits(D), bits(D), 31, n);
    blend(bits(NEAR), bits(SCORES), bits(D), n);
    Adds(scores, near, 0.0f, n);
  }

  __aicore__ inline void softmax(int32_t n) {
    const LocalTensor<float> z = vector(Z), x = vector(D), rest = vector(E), near = vector(NEAR), scores = vector(SCORES);
    const LocalTensor<float> largest = work_.GetWithOffset<float>(8, 0), work = work_.GetWithOffset<float>(64, 256);
    // An infinity below a finite number is as good as a large number.
    nan_mask(bits(A), z, n);
    Maxs(z, z, -3.0e38f, n);
    put_nans(z, bits(A), n);
    ReduceMax(largest, z, work, n);
    order<HardEvent::V_S>();
    const float most = largest.GetValue(0);
    // x + rest = z - most, exactly: `most` is not below z.
    Adds(x, z, -most, n);
    vector_barrier();
    Adds(rest, x, most, n);
    vector_barrier();
    Sub(rest, z, rest, n);
    nan_mask(bits(F), x, n);
    exponential<true>(near, bits(A), x, vector(B), n, rest);
    two_factors(bits(B), bits(C), bits(A), n);
    Mul(scores, near, vector(B), n);
    vector_barrier();
    Mul(scores, scores, vector(C), n);
    // One NaN makes all scores of its row NaN, through their sum.
    put_nans(scores, bits(F), n);
    // Behind it S has waited for V.
    ReduceSum(largest, scores, work, n);
    Duplicate(vector(B), largest.GetValue(0), n);
    vector_barrier();
    Div<float, EXACT_DIVISION>(scores, scores, vector(B), n);
    // V may write there again.
    order<HardEvent::S_V>();
  }

  // The best of biased scores, best first, of equal ones the lower expert; a NaN is below everything.
  __aicore__ inline void choose(int64_t row) {
    const LocalTensor<float> scores = vector(SCORES), biased = vector(BIASED);
    const LocalTensor<int32_t> experts = chosen_.GetWithOffset<int32_t>(MOST_CHOSEN, 0);
    const LocalTensor<float> weights = chosen_.GetWithOffset<float>(MOST_CHOSEN, MOST_CHOSEN * 4);
    const int32_t k = static_cast<int32_t>(t_.chosen);
    float best[MOST_CHOSEN];
    int32_t expert[MOST_CHOSEN];
    int32_t found = 0;
    for (int32_t e = 0; e < static_cast<int32_t>(t_.experts); ++e) {
      const float value = biased.GetValue(static_cast<uint32_t>(e));
      if (found == k && !is_better(value, best[k - 1])) continue;
      // Behind all that are at least as good: those came first.
      int32_t place = found < k ? found++ : k - 1;
      for (; place > 0 && is_better(value, best[place - 1]); --place) {
        best[place] = best[place - 1];
        expert[place] = expert[place - 1];
      }
      best[place] = value;
      expert[place] = e;
    }
    float sum = 0.0f, dropped = 0.0f;
    for (int32_t i = 0; i < k; ++i) {
      const float score = scores.GetValue(static_cast<uint32_t>(expert[i])), more = sum + score;
      // The larger of the two loses nothing: what the other one lost. The first are not always the larger ones.
      dropped += sum >= score ? sum - more + score : score - more + sum;
      sum = more;
    }
    const bool is_normalised = t_.normalize != 0 && k > 1;
    const float divisor = sum + (dropped + 1e-20f);
    for (int32_t i = 0; i < k; ++i) {
      const float score = scores.GetValue(static_cast<uint32_t>(expert[i]));
      experts.SetValue(static_cast<uint32_t>(i), expert[i]);
      weights.SetValue(static_cast<uint32_t>(i), is_normalised ? score / divisor * t_.route_scale : score * t_.route_scale);
    }
    order<HardEvent::S_MTE3>();
    const DataCopyExtParams bytes(1, static_cast<uint32_t>(k) * 4, 0, 0, 0);
    DataCopyPad(experts_[row * t_.experts_stride], experts, bytes);
    DataCopyPad(weights_[row * t_.weights_stride], weights, bytes);
  }

  __aicore__ static inline bool is_better(float a, float b) { return a > b || (b != b && a == a); }

  MoeGateTiling t_;
  TPipe pipe_;
  TBuf<TPosition::VECCALC> room_, work_;
  TBuf<TPosition::VECOUT> chosen_;
  GlobalTensor<float> logits_, weights_;
  GlobalTensor<uint8_t> mask_;
  GlobalTensor<int32_t> experts_;
};

extern "C" __global__ __aicore__ void moe_gate(GM_ADDR logits, GM_ADDR bias, GM_ADDR bias_vl, GM_ADDR mask, GM_ADDR experts, GM_ADDR weights,
                                               GM_ADDR tiling) {
  Gate gate;
  gate.init(logits, bias, bias_vl, mask, experts, weights, read_tiling<MoeGateTiling>(tiling));
  gate.run();
}
