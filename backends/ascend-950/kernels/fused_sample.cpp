// One token per row: the argmax of logit / temperature + noise over what min_p, top_k and top_p leave. EXACT: integers, and F32
// operations that round one after the other; bounds only decide what need not be computed.
//
// Bytes: a row of up to 28672 logits twice; a longer one once more for the draw and for each step of a search. A core has a run of rows.
// The candidates are a list, sorted by score, then by id, which nobody sorts: a filter keeps its beginning, so that it is known by the
// integer of a score and by how many of the tokens at that score stay (common/key_row.h).
// Vector: the integers of the scores; how many are at least a pivot, for top_k; for top_p the sum of all weights below a pivot, in
// lanes of 64 bits (`sum_smaller_probs`). The pivot is found by halving. Once few keys are left between its bounds they are listed
// and weighed once. Scalar: the draw. Noise is integer arithmetic of 128 bits, and most of a row needs none: V marks what could still win,
// four tokens share a call of the generator, and the leading zeros of a token's random integer bound its noise.
// Order of the sums: of integers it does not matter. Ids ascend, so that ties go to the lowest.
#include "common/faults.h"
#include "common/gumbel.h"
#include "common/key_row.h"
#include "common/rows.h"
#include "common/weights.h"

using namespace AscendC;

struct FusedSampleTiling {
  int64_t rows, columns, logit_stride;
  uint32_t given, reserved; // which of the optional arguments are there, by their bits
};
static_assert(sizeof(FusedSampleTiling) == 32, "as in src/ops/fused_sample.rs");
// What comes behind it with the launch: 128 logarithms and 256 powers.
constexpr uint32_t LOGARITHMS_AT = 32, POWERS_AT = LOGARITHMS_AT + 128 * 8;

constexpr uint32_t OP = 27;
// Places in the catalogue.
enum Argument : uint32_t { LOGITS, INV_TEMPERATURE, SEED, POSITION, TOKEN, CHILD, MIN_P_LOG, TOP_K, TOP_P };
enum Rule : uint32_t {
  POSITION_NEGATIVE, INV_TEMPERATURE_NEGATIVE, INV_TEMPERATURE_NOT_FINITE, CHILD_NEGATIVE, MIN_P_ABOVE, MIN_P_NAN, TOP_K_NEGATIVE,
  TOP_P_LOW, TOP_P_HIGH, TOP_P_NAN
};

// Above every noise: that of lane 0 is 22.87, and noise falls as the lane grows.
constexpr float MOST_NOISE = 22.9f;

// Above the noise of every lane with so many leading zeros: -ln(-ln(1 - v)) < -ln(v), and v is at least 2^-(zeros + 1).
__aicore__ inline float noise_bound(uint32_t lane) {
  return static_cast<float>(static_cast<int32_t>(ScalarCountLeadingZero(lane) - 31)) * 0.69315f;
}

// What a row is drawn by.
struct Draw {
  uint64_t seed;
  int32_t position, child, top_k;
  float scale, min_p_log, top_p;
};

// Of the kept keys below a pivot: the sum of their weights, and how many there are.
struct Smaller {
  uint64_t mass;
  int64_t count;
};

class FusedSample {
public:
  __aicore__ inline void init(GM_ADDR const (&a)[10], GM_ADDR tiling, const FusedSampleTiling &t) {
    given_ = t.given;
    columns_ = t.columns;
    logits_.SetGlobalBuffer(reinterpret_cast<__gm__ float *>(a[LOGITS]));
    inv_temperature_.SetGlobalBuffer(reinterpret_cast<__gm__ float *>(a[INV_TEMPERATURE]));
    seed_.SetGlobalBuffer(reinterpret_cast<__gm__ uint64_t *>(a[SEED]));
    position_.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t *>(a[POSITION]));
    token_.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t *>(a[TOKEN]));
    child_.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t *>(a[CHILD]));
    min_p_log_.SetGlobalBuffer(reinterpret_cast<__gm__ float *>(a[MIN_P_LOG]));
    top_k_.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t *>(a[TOP_K]));
    top_p_.SetGlobalBuffer(reinterpret_cast<__gm__ float *>(a[TOP_P]));
    faults_ = a[9];
    keys_.init(pipe_);
    weights_.init(pipe_, reinterpret_cast<const __gm__ uint32_t *>(tiling + POWERS_AT));
    gumbel_.init(reinterpret_cast<const __gm__ uint64_t *>(tiling + LOGARITHMS_AT));
    pipe_.InitBuffer(marks_, 2 * KeyRow::PIECE / 8);
    pipe_.InitBuffer(list_, LISTED * 4);
    pipe_.InitBuffer(list_weights_, LISTED * 8);
    pipe_.InitBuffer(sums_, 2 * LISTED * 8);
    pipe_.InitBuffer(fault_, 64);
  }

  __aicore__ inline void run(const FusedSampleTiling &t) {
    const Run run = run_of_block(t.rows);
    for (int64_t row = run.begin; row < run.end; ++row) {
      const Draw d = {seed_.GetValue(row),
                      position_.GetValue(row),
                      has(CHILD) ? child_.GetValue(row) : 0,
                      has(TOP_K) ? top_k_.GetValue(row) : 0,
                      inv_temperature_.GetValue(row),
                      has(MIN_P_LOG) ? min_p_log_.GetValue(row) : float_of(SIGN_BIT | INFINITY_BITS),
                      has(TOP_P) ? top_p_.GetValue(row) : 1.0f};
      if (is_right(d)) write(row, sample(logits_[row * t.logit_stride], d));
    }
  }

private:
  static constexpr uint32_t LISTED = Weights::LANES;
  static_assert(LISTED <= KeyRow::PIECE, "marks of a piece are room for those of a list");

  __aicore__ inline bool has(Argument argument) const { return (given_ >> argument & 1) != 0; }

  __aicore__ inline bool is_right(const Draw &d) {
    if (d.position < 0) return refuse(POSITION, POSITION_NEGATIVE);
    if ((bits_of(d.scale) & MAGNITUDE_BITS) >= INFINITY_BITS) return refuse(INV_TEMPERATURE, INV_TEMPERATURE_NOT_FINITE);
    if (d.scale < 0.0f) return refuse(INV_TEMPERATURE, INV_TEMPERATURE_NEGATIVE);
    if (d.child < 0) return refuse(CHILD, CHILD_NEGATIVE);
    if ((bits_of(d.min_p_log) & MAGNITUDE_BITS) > INFINITY_BITS) return refuse(MIN_P_LOG, MIN_P_NAN);
    if (d.min_p_log > 0.0f) return refuse(MIN_P_LOG, MIN_P_ABOVE);
    if (d.top_k < 0) return refuse(TOP_K, TOP_K_NEGATIVE);
    if ((bits_of(d.top_p) & MAGNITUDE_BITS) > INFINITY_BITS) return refuse(TOP_P, TOP_P_NAN);
    if (d.top_p <= 0.0f) return refuse(TOP_P, TOP_P_LOW);
    if (d.top_p > 1.0f) return refuse(TOP_P, TOP_P_HIGH);
    return true;
  }

  __aicore__ inline bool refuse(Argument argument, Rule rule) {
    report_fault(fault_.GetWithOffset<int32_t>(8, 0), faults_, OP, argument, rule);
    return false;
  }

  __aicore__ inline void write(int64_t row, int32_t token) {
    const LocalTensor<int32_t> room = fault_.GetWithOffset<int32_t>(8, 32);
    room.SetValue(0, token);
    order<HardEvent::S_MTE3>();
    DataCopyPad(token_[row], room, DataCopyExtParams(1, 4, 0, 0, 0));
    order<HardEvent::MTE3_S>();
  }

  __aicore__ inline int32_t sample(const GlobalTensor<float> &row, const Draw &d) {
    const KeyRange range = keys_.range(row, columns_);
    // A NaN or +infinity, or nothing but -infinity.
    if (range.lowest < LOWEST_SCORE || range.highest >= HIGHEST_SCORE || range.highest == LOWEST_SCORE) return -1;
    keys_.begin(row, columns_, d.scale == 0.0f ? 1.0f : d.scale);
    if (d.scale == 0.0f) return first_at(range.highest);
    // Scores grow with logits.
    largest_ = score_of_key(range.highest) * d.scale;
    highest_ = key_of_score(largest_);
    KeyCut cut = {NO_SCORE, 0};
    // A NaN of two infinities drops nothing.
    const float bar = largest_ + d.min_p_log;
    if ((bits_of(bar) & MAGNITUDE_BITS) <= INFINITY_BITS) cut.key = key_of_score(bar) - 1;
    if (d.top_k > 0 && keys_.count_at_least(cut.key + 1) > d.top_k) cut = keys_.cut_after(d.top_k, cut.key + 1, highest_);
    if (d.top_p < 1.0f) cut = cut_by_mass(cut, d.top_p);
    return draw(d, cut);
  }

  // The lowest id of a key.
  __aicore__ inline int32_t first_at(int32_t key) {
    int64_t one = 1;
    for (int64_t piece = 0; piece < keys_.pieces(); ++piece) {
      keys_.mark(piece, key);
      for (uint32_t word = 0; word < keys_.words(piece); ++word) {
        const uint64_t bits = keys_.first_ties(word, one);
        if (bits != 0) return static_cast<int32_t>(piece * KeyRow::PIECE + word * 64 + ScalarGetSFFValue<1>(bits));
      }
    }
    return -1;
  }

  // ---- top_p

  // The list, cut before, cut where its weights reach the share: at the largest key from which on they sum to what is needed.
  __aicore__ inline KeyCut cut_by_mass(KeyCut cut, float share) {
    cut_ = cut;
    tie_mass_ = cut.ties == 0 ? 0 : static_cast<uint64_t>(cut.ties) * weights_.of(largest_, score_of_key(cut.key));
    Bounds b = {cut.ties == 0 ? cut.key + static_cast<int64_t>(1) : cut.key, highest_ + static_cast<int64_t>(1), {0, 0}, {0, 0}};
    b.below_end = sum_smaller_probs(b.end);
    const uint64_t total = b.below_end.mass, needed = mass_needed(total, share);
    while (b.end - b.begin > 1 && b.below_end.count - b.below_begin.count > LISTED) {
      const int64_t middle = b.begin + (b.end - b.begin) / 2;
      b.narrow(middle, sum_smaller_probs(middle), total, needed);
    }
    if (b.end - b.begin > 1) search_list(b, total, needed);
    // What is above the key sums to less than is needed, and with it there is enough.
    const uint64_t above = total - b.below_end.mass, each = weights_.of(largest_, score_of_key(static_cast<int32_t>(b.begin)));
    return {static_cast<int32_t>(b.begin), static_cast<int64_t>((needed - above + each - 1) / each)};
  }

  // Between which keys the wanted one lies.
  struct Bounds {
    int64_t begin, end;
    Smaller below_begin, below_end;

    __aicore__ inline void narrow(int64_t pivot, Smaller below, uint64_t total, uint64_t needed) {
      if (total - below.mass >= needed) {
        begin = pivot;
        below_begin = below;
      } else {
        end = pivot;
        below_end = below;
      }
    }
  };

  // The sum of all weights of kept keys below a pivot, over the whole row: 1024 lanes of 64 bits, added piece by piece, then in halves.
  __aicore__ inline Smaller sum_smaller_probs(int64_t pivot) {
    const LocalTensor<uint64_t> sums = sums_.GetWithOffset<uint64_t>(LISTED, 0), some = sums_.GetWithOffset<uint64_t>(LISTED, LISTED * 8);
    const LocalTensor<uint8_t> above = marks_.GetWithOffset<uint8_t>(KeyRow::PIECE / 8, 0), below = marks_.GetWithOffset<uint8_t>(KeyRow::PIECE / 8, KeyRow::PIECE / 8);
    Smaller smaller = {0, 0};
    vector_barrier();
    Duplicate(sums, static_cast<uint64_t>(0), static_cast<int32_t>(LISTED));
    for (int64_t piece = 0; piece < keys_.pieces(); ++piece) {
      const LocalTensor<int32_t> keys = keys_.keys(piece);
      const uint32_t words = keys_.words(piece);
      smaller.count += mark_between(keys, cut_.key, pivot, words);
      for (uint32_t at = 0; at < words * 64; at += LISTED) {
        const uint32_t n = static_cast<uint32_t>(least(words * 64 - at, LISTED));
        weights_.of_keys(some, keys[at], largest_, above[at / 8], below[at / 8], n);
        Add(sums, sums, some, static_cast<int32_t>(n));
        vector_barrier();
      }
    }
    smaller.mass = folded(sums, LISTED);
    if (cut_.ties > 0 && pivot > cut_.key) {
      smaller.mass += tie_mass_;
      ++smaller.count;
    }
    return smaller;
  }

  // Marks the keys above one and below another, apart, and counts those that are both. Behind it S sees the marks.
  __aicore__ inline int64_t mark_between(const LocalTensor<int32_t> &keys, int64_t low, int64_t high, uint32_t words) {
    vector_barrier();
    Compares(marks_.GetWithOffset<uint8_t>(KeyRow::PIECE / 8, 0), keys, static_cast<int32_t>(low), CMPMODE::GT, words * 64);
    Compares(marks_.GetWithOffset<uint8_t>(KeyRow::PIECE / 8, KeyRow::PIECE / 8), keys, static_cast<int32_t>(high), CMPMODE::LT, words * 64);
    order<HardEvent::V_S>();
    int64_t count = 0;
    for (uint32_t word = 0; word < words; ++word) count += ScalarGetCountOfValue<1>(between(word));
    return count;
  }

  __aicore__ inline uint64_t between(uint32_t word) {
    const LocalTensor<uint64_t> marks = marks_.Get<uint64_t>();
    return marks.GetValue(word) & marks.GetValue(KeyRow::PIECE / 64 + word);
  }

  // The sum of `count` lanes, a power of two. They are used up.
  __aicore__ inline uint64_t folded(const LocalTensor<uint64_t> &sums, uint32_t count) {
    vector_barrier();
    while (count > 4) {
      count /= 2;
      Add(sums, sums, sums[count], static_cast<int32_t>(count));
      vector_barrier();
    }
    order<HardEvent::V_S>();
    return sums.GetValue(0) + sums.GetValue(1) + sums.GetValue(2) + sums.GetValue(3);
  }

  // Narrows the bounds down to one key, by the keys between them, which are listed and weighed once.
  __aicore__ inline void search_list(Bounds &b, uint64_t total, uint64_t needed) {
    const LocalTensor<int32_t> list = list_.Get<int32_t>();
    const LocalTensor<uint64_t> weights = list_weights_.Get<uint64_t>();
    const Smaller before = b.below_begin;
    const uint32_t listed = fill_list(b), lanes = (listed + 63) / 64 * 64;
    order<HardEvent::S_V>();
    // Nothing is left out: the marks of a list that is between two keys beyond all.
    mark_between(list, NO_SCORE, HIGHEST_SCORE + static_cast<int64_t>(1), lanes / 64);
    weights_.of_keys(weights, list, largest_, marks_.GetWithOffset<uint8_t>(KeyRow::PIECE / 8, 0),
                     marks_.GetWithOffset<uint8_t>(KeyRow::PIECE / 8, KeyRow::PIECE / 8), lanes);
    order<HardEvent::V_S>();
    const bool has_ties = cut_.ties > 0 && b.begin <= cut_.key;
    if (has_ties) weights.SetValue(0, tie_mass_);
    order<HardEvent::S_V>();
    while (b.end - b.begin > 1 && b.below_end.count - b.below_begin.count > 1) {
      const int64_t middle = b.begin + (b.end - b.begin) / 2;
      Smaller below = smaller_of_list(middle, lanes);
      below.mass += before.mass;
      below.count += before.count;
      b.narrow(middle, below, total, needed);
    }
    if (b.end - b.begin == 1) return;
    // The only key between the bounds.
    mark_between(list, b.begin - 1, b.end, lanes / 64);
    for (uint32_t word = 0; word < lanes / 64; ++word) {
      const uint64_t bits = between(word);
      if (bits != 0) b.begin = list.GetValue(word * 64 + static_cast<uint32_t>(ScalarGetSFFValue<1>(bits)));
    }
  }

  // Lists the kept keys within bounds, ties as one, and fills up to 64 with what is no score.
  __aicore__ inline uint32_t fill_list(const Bounds &b) {
    const LocalTensor<int32_t> list = list_.Get<int32_t>();
    uint32_t listed = 0;
    if (cut_.ties > 0 && b.begin <= cut_.key) list.SetValue(listed++, cut_.key);
    for (int64_t piece = 0; piece < keys_.pieces(); ++piece) {
      const LocalTensor<int32_t> keys = keys_.keys(piece);
      const uint32_t words = keys_.words(piece);
      mark_between(keys, most(cut_.key, b.begin - 1), b.end, words);
      for (uint32_t word = 0; word < words; ++word)
        for (uint64_t bits = between(word); bits != 0; bits &= bits - 1)
          list.SetValue(listed++, keys.GetValue(word * 64 + static_cast<uint32_t>(ScalarGetSFFValue<1>(bits))));
    }
    for (uint32_t i = listed; i % 64 != 0; ++i) list.SetValue(i, NO_SCORE);
    return listed;
  }

  // The same sum as sum_smaller_probs, of the list.
  __aicore__ inline Smaller smaller_of_list(int64_t pivot, uint32_t lanes) {
    const LocalTensor<uint64_t> sums = sums_.GetWithOffset<uint64_t>(LISTED, 0);
    const LocalTensor<float> ones = sums_.GetWithOffset<float>(LISTED, LISTED * 8);
    const int32_t n = static_cast<int32_t>(lanes);
    const int64_t count = mark_between(list_.Get<int32_t>(), NO_SCORE, pivot, lanes / 64);
    vector_barrier();
    Duplicate(ones, 1.0f, n);
    Duplicate(sums, static_cast<uint64_t>(0), static_cast<int32_t>(LISTED));
    vector_barrier();
    Select(ones, marks_.GetWithOffset<uint8_t>(KeyRow::PIECE / 8, KeyRow::PIECE / 8), ones, 0.0f, SELMODE::VSEL_TENSOR_SCALAR_MODE, lanes);
    vector_barrier();
    Cast(sums.ReinterpretCast<int64_t>(), ones, RoundMode::CAST_TRUNC, lanes);
    vector_barrier();
    Mul(sums, sums, list_weights_.Get<uint64_t>(), n);
    uint32_t width = 64;
    while (width < lanes) width *= 2;
    return {folded(sums, width), count};
  }

  // ---- the draw

  __aicore__ inline int32_t draw(const Draw &d, KeyCut cut) {
    float best = float_of(SIGN_BIT | INFINITY_BITS);
    int32_t token = -1;
    const LocalTensor<uint8_t> can_win = marks_.Get<uint8_t>();
    for (int64_t piece = 0; piece < keys_.pieces(); ++piece) {
      const LocalTensor<int32_t> keys = keys_.mark(piece, cut.key);
      // What no noise lifts up to the best of the pieces before. An infinite best stays what it is.
      const int32_t reach = token < 0 ? NO_SCORE : key_of_score(best - 23.0f);
      Compares(can_win, keys, reach, CMPMODE::GE, keys_.words(piece) * 64);
      order<HardEvent::V_S>();
      for (uint32_t word = 0; word < keys_.words(piece); ++word) {
        const uint64_t kept = keys_.above(word) | keys_.first_ties(word, cut.ties);
        draw_word(d, keys, word, static_cast<int32_t>(piece * KeyRow::PIECE), kept & can_win.ReinterpretCast<uint64_t>().GetValue(word), best, token);
      }
    }
    return token;
  }

  // 64 tokens of a piece, of which those with a bit take part.
  __aicore__ inline void draw_word(const Draw &d, const LocalTensor<int32_t> &keys, uint32_t word, int32_t first, uint64_t bits, float &best,
                                   int32_t &token) {
    while (bits != 0) {
      const uint32_t quad = static_cast<uint32_t>(ScalarGetSFFValue<1>(bits)) / 4, at = word * 64 + quad * 4;
      bool has_lanes = false;
      Lanes lanes = {{0, 0, 0, 0}};
      for (uint32_t i = 0; i < 4; ++i) {
        if ((bits >> (quad * 4 + i) & 1) == 0) continue;
        const float score = score_of_key(keys.GetValue(at + i));
        // Rounding is monotonic: what the bound does not lift above the best, the noise does not.
        if (token >= 0 && score + MOST_NOISE <= best) continue;
        if (!has_lanes) {
          lanes = philox(d.seed, static_cast<uint32_t>(d.position), (static_cast<uint32_t>(first) + at) / 4, static_cast<uint32_t>(d.child));
          has_lanes = true;
        }
        if (token >= 0 && score + noise_bound(lanes.word[i]) <= best) continue;
        const float value = score + gumbel_.of(lanes.word[i]);
        if (token < 0 || value > best) {
          best = value;
          token = first + static_cast<int32_t>(at + i);
        }
      }
      bits &= ~(static_cast<uint64_t>(15) << (quad * 4));
    }
  }

  TPipe pipe_;
  KeyRow keys_;
  Weights weights_;
  Gumbel gumbel_;
  TBuf<TPosition::VECCALC> marks_, list_, list_weights_, sums_;
  TBuf<TPosition::VECOUT> fault_;
  GlobalTensor<float> logits_, inv_temperature_, min_p_log_, top_p_;
  GlobalTensor<uint64_t> seed_;
  GlobalTensor<int32_t> position_, token_, child_, top_k_;
  GM_ADDR faults_;
  uint32_t given_;
  int64_t columns_;
  // Of the row: its largest score, and the key of that; what top_k has left, and what the tokens at its key weigh.
  float largest_;
  int32_t highest_;
  KeyCut cut_;
  uint64_t tie_mass_;
};

extern "C" __global__ __aicore__ void fused_sample(GM_ADDR logits, GM_ADDR inv_temperature, GM_ADDR seed, GM_ADDR position, GM_ADDR token,
                                                   GM_ADDR child, GM_ADDR min_p_log, GM_ADDR top_k, GM_ADDR top_p, GM_ADDR faults, GM_ADDR tiling) {
  const FusedSampleTiling t = read_tiling<FusedSampleTiling>(tiling);
  GM_ADDR const addresses[] = {logits, inv_temperature, seed, position, token, child, min_p_log, top_k, top_p, faults};
  FusedSample op;
  op.init(addresses, tiling, t);
  op.run(t);
}
