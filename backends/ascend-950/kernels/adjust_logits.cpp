// Biases, then penalties for tokens that have occurred, in place.
//
// Bytes: the lists of a row twice, and of the row those pieces of 2048 logits that the lists name, read and written once. A block has a
// run of rows. Scalar: the lists name single logits, each with its own numbers, and every value of a list has to be checked; S does
// so and then changes the logits of a piece in the UB, between MTE2 and MTE3. Order: of each logit the bias first, then the penalties; F32
// operations of S, each rounded to nearest even, none contracted. The vector pipe has nothing to do.
#include "common/bits.h"
#include "common/faults.h"
#include "common/index_piece.h"
#include "common/list_reader.h"
#include "common/rows.h"

using namespace AscendC;

struct AdjustLogitsTiling {
  int64_t rows, columns, logit_stride, bias_range_stride, biases, seen_range_stride, seen; // biases, seen: entries of all lists
};
static_assert(sizeof(AdjustLogitsTiling) == 56, "as in src/ops/adjust_logits.rs");

constexpr uint32_t OP = 28;
// Places in the catalogue.
enum Argument : uint32_t {
  LOGITS, BIAS_RANGE, BIAS_TOKEN, BIAS_VALUE, REPETITION, INV_REPETITION, FREQUENCY, PRESENCE, SEEN_RANGE, SEEN_TOKEN, SEEN_COUNT
};
enum Rule : uint32_t {
  BIAS_BEGIN_NEGATIVE, BIAS_END_ABOVE, SEEN_RANGE_WRONG, BIAS_TOKEN_RANGE, SEEN_TOKEN_RANGE, BIAS_TOKEN_ORDER, SEEN_TOKEN_ORDER,
  SEEN_COUNT_NEGATIVE, BIAS_VALUE_WRONG, REPETITION_WRONG, INV_REPETITION_WRONG, FREQUENCY_WRONG, PRESENCE_WRONG
};

__aicore__ inline bool is_finite(float v) { return (bits_of(v) & MAGNITUDE_BITS) < INFINITY_BITS; }
__aicore__ inline bool is_factor(float v) { return is_finite(v) && v > 0.0f; }

// Places in the flat lists.
struct Range {
  int64_t begin, end;
};

struct Penalties {
  float repetition, inv_repetition, frequency, presence;
};

class AdjustLogits {
public:
  // Addresses in the order of the kernel.
  __aicore__ inline void init(GM_ADDR const (&a)[12], const AdjustLogitsTiling &t) {
    logits_.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t *>(a[LOGITS]));
    bias_range_.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t *>(a[BIAS_RANGE]));
    seen_range_.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t *>(a[SEEN_RANGE]));
    repetition_.SetGlobalBuffer(reinterpret_cast<__gm__ float *>(a[REPETITION]));
    inv_repetition_.SetGlobalBuffer(reinterpret_cast<__gm__ float *>(a[INV_REPETITION]));
    frequency_.SetGlobalBuffer(reinterpret_cast<__gm__ float *>(a[FREQUENCY]));
    presence_.SetGlobalBuffer(reinterpret_cast<__gm__ float *>(a[PRESENCE]));
    faults_ = a[11];
    bias_token_.init(pipe_, a[BIAS_TOKEN], t.biases);
    bias_value_.init(pipe_, a[BIAS_VALUE], t.biases);
    seen_token_.init(pipe_, a[SEEN_TOKEN], t.seen);
    seen_count_.init(pipe_, a[SEEN_COUNT], t.seen);
    piece_.init(pipe_);
    pipe_.InitBuffer(fault_, 32);
  }

  __aicore__ inline void run(const AdjustLogitsTiling &t) {
    const Run run = run_of_block(t.rows);
    for (int64_t row = run.begin; row < run.end; ++row) {
      const Range biases = range_of(bias_range_, row * t.bias_range_stride), seen = range_of(seen_range_, row * t.seen_range_stride);
      const Penalties p = {repetition_.GetValue(row), inv_repetition_.GetValue(row), frequency_.GetValue(row), presence_.GetValue(row)};
      if (is_right(biases, seen, p, t)) adjust(logits_[row * t.logit_stride], biases, seen, p, t.columns);
    }
  }

private:
  __aicore__ inline Range range_of(const GlobalTensor<int32_t> &range, int64_t at) { return {range.GetValue(at), range.GetValue(at + 1)}; }

  // Whether nothing is wrong with a row, of which nothing is changed before that is known.
  __aicore__ inline bool is_right(Range biases, Range seen, const Penalties &p, const AdjustLogitsTiling &t) {
    if (biases.begin < 0) return refuse(BIAS_RANGE, BIAS_BEGIN_NEGATIVE);
    if (biases.begin > biases.end || biases.end > t.biases) return refuse(BIAS_RANGE, BIAS_END_ABOVE);
    if (seen.begin < 0 || seen.begin > seen.end || seen.end > t.seen) return refuse(SEEN_RANGE, SEEN_RANGE_WRONG);
    if (!is_factor(p.repetition)) return refuse(REPETITION, REPETITION_WRONG);
    if (!is_factor(p.inv_repetition)) return refuse(INV_REPETITION, INV_REPETITION_WRONG);
    if (!is_finite(p.frequency)) return refuse(FREQUENCY, FREQUENCY_WRONG);
    if (!is_finite(p.presence)) return refuse(PRESENCE, PRESENCE_WRONG);
    int64_t before = -1;
    for (int64_t i = biases.begin; i < biases.end; ++i) {
      const int64_t token = bias_token_.at(i);
      const uint32_t value = bits_of(bias_value_.at(i));
      if (token < 0 || token >= t.columns) return refuse(BIAS_TOKEN, BIAS_TOKEN_RANGE);
      if (token <= before) return refuse(BIAS_TOKEN, BIAS_TOKEN_ORDER);
      // Only -infinity is allowed of what is not finite.
      if ((value & MAGNITUDE_BITS) >= INFINITY_BITS && value != (SIGN_BIT | INFINITY_BITS)) return refuse(BIAS_VALUE, BIAS_VALUE_WRONG);
      before = token;
    }
    before = -1;
    for (int64_t i = seen.begin; i < seen.end; ++i) {
      const int64_t token = seen_token_.at(i);
      if (token < 0 || token >= t.columns) return refuse(SEEN_TOKEN, SEEN_TOKEN_RANGE);
      if (token <= before) return refuse(SEEN_TOKEN, SEEN_TOKEN_ORDER);
      if (seen_count_.at(i) < 0) return refuse(SEEN_COUNT, SEEN_COUNT_NEGATIVE);
      before = token;
    }
    return true;
  }

  __aicore__ inline bool refuse(Argument argument, Rule rule) {
    report_fault(fault_.Get<int32_t>(), faults_, OP, argument, rule);
    return false;
  }

  // Both lists ascend: the next piece is that of the lower token.
  __aicore__ inline void adjust(const GlobalTensor<int32_t> &logits, Range biases, Range seen, const Penalties &p, int64_t columns) {
    const LocalTensor<int32_t> bits = piece_.numbers();
    while (biases.begin < biases.end || seen.begin < seen.end) {
      const int64_t bias = biases.begin < biases.end ? bias_token_.at(biases.begin) : columns;
      const int64_t token = seen.begin < seen.end ? least(bias, seen_token_.at(seen.begin)) : bias;
      const int64_t first = token / IndexPiece::MOST * IndexPiece::MOST, end = least(columns, first + IndexPiece::MOST);
      const uint32_t count = static_cast<uint32_t>(end - first);
      piece_.load(logits[first], count);
      for (; biases.begin < biases.end && bias_token_.at(biases.begin) < end; ++biases.begin) {
        const uint32_t at = static_cast<uint32_t>(bias_token_.at(biases.begin) - first);
        const float logit = float_of(static_cast<uint32_t>(bits.GetValue(at)));
        bits.SetValue(at, static_cast<int32_t>(bits_of(logit + bias_value_.at(biases.begin))));
      }
      for (; seen.begin < seen.end && seen_token_.at(seen.begin) < end; ++seen.begin) {
        const uint32_t at = static_cast<uint32_t>(seen_token_.at(seen.begin) - first);
        const float logit = float_of(static_cast<uint32_t>(bits.GetValue(at)));
        bits.SetValue(at, static_cast<int32_t>(bits_of(penalised(logit, seen_count_.at(seen.begin), p))));
      }
      piece_.store(logits[first], count);
    }
  }

  __aicore__ inline float penalised(float logit, int32_t count, const Penalties &p) {
    const float scaled = logit * (logit > 0.0f ? p.inv_repetition : p.repetition);
    if (count <= 0) return scaled;
    const float counted = p.frequency * static_cast<float>(count);
    const float penalty = counted + p.presence;
    return scaled - penalty;
  }

  TPipe pipe_;
  IndexPiece piece_;
  ListReader<int32_t> bias_token_, seen_token_, seen_count_;
  ListReader<float> bias_value_;
  TBuf<TPosition::VECOUT> fault_;
  GlobalTensor<int32_t> logits_, bias_range_, seen_range_;
  GlobalTensor<float> repetition_, inv_repetition_, frequency_, presence_;
  GM_ADDR faults_;
};

extern "C" __global__ __aicore__ void adjust_logits(GM_ADDR logits, GM_ADDR bias_range, GM_ADDR bias_token, GM_ADDR bias_value, GM_ADDR repetition,
                                                    GM_ADDR inv_repetition, GM_ADDR frequency, GM_ADDR presence, GM_ADDR seen_range,
                                                    GM_ADDR seen_token, GM_ADDR seen_count, GM_ADDR faults, GM_ADDR tiling) {
  const AdjustLogitsTiling t = read_tiling<AdjustLogitsTiling>(tiling);
  GM_ADDR const addresses[] = {logits,   bias_range, bias_token, bias_value, repetition, inv_repetition,
                               frequency, presence,   seen_range, seen_token, seen_count, faults};
  AdjustLogits op;
  op.init(addresses, t);
  op.run(t);
}
