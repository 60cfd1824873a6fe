// The pairs of the last channels of every vector turned, in place.
//
// Bytes: the turned channels read and written once, positions and frequencies read. A block has a run of the pieces of a token: 64
// pairs of 16 heads. The angle is one F32 product; cosines and sines are S's, in integers (common/turns.h), once per token and 64
// pairs of a block. V multiplies: x * cosine + neighbour * sine, where the sine of the first of a pair is negative; both products and
// their sum are rounded to F32.
#include "common/float_rows.h"
#include "common/rows.h"
#include "common/tiling.h"
#include "common/turns.h"

using namespace AscendC;

struct RopeTiling {
  int64_t tokens, heads, pairs, first;  // `first`: channels before the turned ones
  int64_t token_stride, head_stride;
  int32_t format, inverse;
};
static_assert(sizeof(RopeTiling) == 56, "as in src/ops/rope.rs");

template <class X> class Rope {
public:
  __aicore__ inline void init(GM_ADDR x, GM_ADDR positions, GM_ADDR freqs, const RopeTiling &t) {
    t_ = t;
    x_.SetGlobalBuffer(reinterpret_cast<__gm__ X *>(x));
    positions_.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t *>(positions));
    freqs_.SetGlobalBuffer(reinterpret_cast<__gm__ float *>(freqs));
    pipe_.InitBuffer(in_, 2, HEADS * CHANNELS * 4);
    pipe_.InitBuffer(out_, 2, HEADS * CHANNELS * 4);
    pipe_.InitBuffer(values_, HEADS * CHANNELS * 4);
    pipe_.InitBuffer(neighbours_, HEADS * CHANNELS * 4);
    pipe_.InitBuffer(places_, HEADS * CHANNELS * 4);
    pipe_.InitBuffer(turns_, 2 * CHANNELS * 4);
    // The other one of each pair, as an offset in bytes: (i + 1 - 2 (i mod 2)) * 4.
    const LocalTensor<int32_t> places = places_.template Get<int32_t>(), odd = neighbours_.template Get<int32_t>();
    const int32_t all = static_cast<int32_t>(most(1, least(t.heads, HEADS)) * pitch(least(t.pairs, PAIRS)));
    CreateVecIndex(places, 0, static_cast<uint32_t>(all));
    vector_barrier();
    and_bits(odd, places, 1, all);
    vector_barrier();
    Muls(odd, odd, -2, all);
    Adds(places, places, 1, all);
    vector_barrier();
    Add(places, places, odd, all);
    vector_barrier();
    ShiftLeft(places, places, 2, all);
    vector_barrier();
  }

  __aicore__ inline void run() {
    const int64_t groups = (t_.heads + HEADS - 1) / HEADS, pieces = (t_.pairs + PAIRS - 1) / PAIRS;
    const Run run = run_of_block(t_.tokens * pieces * groups);
    int64_t turned = -1;
    for (int64_t item = run.begin; item < run.end; ++item) {
      const int64_t group = item % groups, piece = item / groups % pieces, token = item / groups / pieces;
      const uint32_t pairs = static_cast<uint32_t>(least(t_.pairs - piece * PAIRS, PAIRS));
      if (item / groups != turned) make_turns(positions_.GetValue(token), piece * PAIRS, pairs);
      turned = item / groups;
      turn(token * t_.token_stride + group * HEADS * t_.head_stride + t_.first + 2 * piece * PAIRS,
           static_cast<uint32_t>(least(t_.heads - group * HEADS, HEADS)), 2 * pairs);
    }
  }

private:
  static constexpr int64_t HEADS = 16, PAIRS = 64;
  static constexpr uint32_t CHANNELS = 2 * PAIRS, LANES = 64;
  static constexpr int64_t MOST_GAP = 0x7FFFFFFF;

  // From head to head in the UB: whole blocks of either format.
  __aicore__ static inline uint32_t pitch(int64_t pairs) { return static_cast<uint32_t>((2 * pairs + 15) / 16 * 16); }

  // Cosines, each twice, and sines, the first of a pair with the other sign.
  __aicore__ inline void make_turns(int32_t position, int64_t first, uint32_t pairs) {
    const LocalTensor<float> cosines = turns_.template GetWithOffset<float>(CHANNELS, 0), sines = turns_.template GetWithOffset<float>(CHANNELS, CHANNELS * 4);
    // V has used the last ones.
    order<HardEvent::V_S>();
    for (uint32_t i = 0; i < pairs; ++i) {
      const Turn turn = turn_of(static_cast<float>(position) * freqs_.GetValue(first + i));
      const float sine = t_.inverse != 0 ? -turn.sine : turn.sine;
      cosines.SetValue(2 * i, turn.cosine);
      cosines.SetValue(2 * i + 1, turn.cosine);
      sines.SetValue(2 * i, -sine);
      sines.SetValue(2 * i + 1, sine);
    }
    order<HardEvent::S_V>();
  }

  __aicore__ inline void turn(int64_t begin, uint32_t heads, uint32_t channels) {
    const LocalTensor<float> cosines = turns_.template GetWithOffset<float>(CHANNELS, 0), sines = turns_.template GetWithOffset<float>(CHANNELS, CHANNELS * 4);
    const LocalTensor<float> values = values_.template Get<float>(), neighbours = neighbours_.template Get<float>();
    const uint32_t step = pitch(channels / 2), all = heads * step, bytes = channels * static_cast<uint32_t>(sizeof(X));
    const int64_t gap = t_.head_stride * static_cast<int64_t>(sizeof(X)) - bytes, blocks = (step * sizeof(X) - (bytes + 31) / 32 * 32) / 32;
    const bool is_near = gap >= 0 && gap <= MOST_GAP;
    LocalTensor<X> raw = in_.template AllocTensor<X>();
    if (is_near) {
      DataCopyPad(raw, x_[begin], DataCopyExtParams(static_cast<uint16_t>(heads), bytes, gap, blocks, 0), DataCopyPadExtParams<X>());
    } else {
      for (uint32_t h = 0; h < heads; ++h) {
        DataCopyPad(raw[h * step], x_[begin + h * t_.head_stride], DataCopyExtParams(1, bytes, 0, 0, 0), DataCopyPadExtParams<X>());
      }
    }
    in_.EnQue(raw);
    raw = in_.template DeQue<X>();
    vector_barrier();
    if constexpr (sizeof(X) == 4) DataCopy(values, raw, all);
    else Cast(values, raw, RoundMode::CAST_NONE, all);
    vector_barrier();
    in_.FreeTensor(raw);
    Gather(neighbours, values, places_.template Get<uint32_t>(), 0, all);
    vector_barrier();
    const uint8_t repeat = static_cast<uint8_t>(step / 8), repeats = static_cast<uint8_t>(heads);
    const BinaryRepeatParams by_head(1, 1, 1, repeat, repeat, 0);
    for (uint32_t at = 0; at < channels; at += LANES) {
      const uint64_t mask = static_cast<uint64_t>(least(channels - at, LANES));
      Mul(values[at], values[at], cosines[at], mask, repeats, by_head);
      Mul(neighbours[at], neighbours[at], sines[at], mask, repeats, by_head);
    }
    vector_barrier();
    Add(values, values, neighbours, static_cast<int32_t>(all));
    vector_barrier();
    LocalTensor<X> turned = out_.template AllocTensor<X>();
    if constexpr (sizeof(X) == 4) DataCopy(turned, values, all);
    else Cast(turned, values, RoundMode::CAST_RINT, all);
    out_.EnQue(turned);
    turned = out_.template DeQue<X>();
    if (is_near) {
      DataCopyPad(x_[begin], turned, DataCopyExtParams(static_cast<uint16_t>(heads), bytes, blocks, gap, 0));
    } else {
      for (uint32_t h = 0; h < heads; ++h) DataCopyPad(x_[begin + h * t_.head_stride], turned[h * step], DataCopyExtParams(1, bytes, 0, 0, 0));
    }
    out_.FreeTensor(turned);
  }

  RopeTiling t_;
  TPipe pipe_;
  InfinitiesStay infinities_stay_;
  TQue<TPosition::VECIN, 2> in_;
  TQue<TPosition::VECOUT, 2> out_;
  TBuf<TPosition::VECCALC> values_, neighbours_, places_, turns_;
  GlobalTensor<X> x_;
  GlobalTensor<int32_t> positions_;
  GlobalTensor<float> freqs_;
};

template <class X> __aicore__ inline void turn_all(GM_ADDR x, GM_ADDR positions, GM_ADDR freqs, const RopeTiling &t) {
  Rope<X> rope;
  rope.init(x, positions, freqs, t);
  rope.run();
}

extern "C" __global__ __aicore__ void rope(GM_ADDR x, GM_ADDR positions, GM_ADDR freqs, GM_ADDR tiling) {
  const RopeTiling t = read_tiling<RopeTiling>(tiling);
  if (t.format == BF16) turn_all<bfloat16_t>(x, positions, freqs, t);
  else turn_all<float>(x, positions, freqs, t);
}
