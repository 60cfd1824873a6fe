// Attention of each row over listed cache entries, with a sink: what runs where the vendor's sparse attention is not installed.
//
// Bytes: per row and eight heads the listed entries twice, the queries and the result once. A block has a run of the pairs of a row and
// its heads. S reads the lists and says where entries lie, MTE2 brings them, V decodes (common/tiles.h) and computes.
//
// The list is cut into groups of up to 32 entries of one cache, without the negative slots, in its order. The first pass finds the
// largest score of each head: probabilities are rounded, so that the largest must be known before. The second computes the scores
// again, with the same bits, and adds probabilities and weighted entries.
//
// Order of the sums: of a score as in common/products.h; of a group's probabilities and weighted entries a tree of halves; groups in
// their order. It follows from the list alone.
#include "common/encode.h"
#include "common/faults.h"
#include "common/products.h"
#include "common/rows.h"

using namespace AscendC;

struct AttentionSource {
  int64_t slot_stride, listed, page_stride, pages;
  uint32_t entries, format;
};

struct SparseAttentionTiling {
  AttentionSource window, global;
  int64_t rows, heads, dim, q_row_stride, q_stride, out_row_stride, out_stride;
  int64_t heads_at_once;
  float scale;
  int32_t q_format, rounds, entries_at_once;
};
static_assert(sizeof(SparseAttentionTiling) == 160, "as in src/ops/sparse_attention.rs");

// In the catalogue: the op, the arguments, and their refusals.
constexpr uint32_t OP = 19, WINDOW_SLOTS = 4, GLOBAL_SLOTS = 8, BEYOND_WINDOW = 2, BEYOND_GLOBAL = 5;
static constexpr ExpConfig WITH_DENORMALS = {ExpAlgo::PRECISION_1ULP_FTZ_FALSE};

class Attention {
public:
  __aicore__ inline void init(GM_ADDR q, GM_ADDR window, GM_ADDR window_slots, GM_ADDR global, GM_ADDR global_slots, GM_ADDR sink, GM_ADDR out,
                              GM_ADDR faults, const SparseAttentionTiling &t) {
    t_ = t;
    q_ = q;
    out_ = out;
    faults_ = faults;
    caches_[0] = {window, t.window.page_stride, t.window.pages, t.dim, t.window.entries, t.window.format};
    caches_[1] = {global, t.global.page_stride, t.global.pages, t.dim, t.global.entries, t.global.format};
    slots_[0].SetGlobalBuffer(reinterpret_cast<__gm__ int32_t *>(window_slots));
    slots_[1].SetGlobalBuffer(reinterpret_cast<__gm__ int32_t *>(global_slots));
    sink_.SetGlobalBuffer(reinterpret_cast<__gm__ float *>(sink));
    tiles_.init(pipe_);
    products_.init(pipe_);
    pipe_.InitBuffer(entries_, MOST_FLOATS * 4);
    pipe_.InitBuffer(queries_, MOST_FLOATS / 2 * 4);
    pipe_.InitBuffer(totals_, MOST_FLOATS / 2 * 4);
    pipe_.InitBuffer(scores_, HEADS * GROUP * 4);
    pipe_.InitBuffer(spread_, MOST_WEIGHTED * GROUP * 32);
    pipe_.InitBuffer(small_, VECTORS * 32);
    pipe_.InitBuffer(fault_room_, 32);
    pipe_.InitBuffer(results_, 2, HEADS * Tiles::COLUMNS * 4);
  }

  __aicore__ inline void run() {
    // Without heads a slot can still be wrong.
    const int64_t pieces = most(1, (t_.heads + t_.heads_at_once - 1) / t_.heads_at_once);
    const Run run = run_of_block(t_.rows * pieces);
    for (int64_t item = run.begin; item < run.end; ++item) {
      const int64_t row = item / pieces, head = item % pieces * t_.heads_at_once;
      attend(row, head, static_cast<uint32_t>(most(0, least(t_.heads - head, t_.heads_at_once))));
    }
  }

private:
  static constexpr uint32_t HEADS = 8, GROUP = Tiles::ROWS, COLUMNS = Tiles::COLUMNS, LANES = 64;
  // Pieces of products, and heads whose weighted entries they have room for.
  static constexpr uint32_t PIECES = 2, MOST_WEIGHTED = PIECES * COLUMNS / LANES;
  // Numbers of a group of entries; half as many are those of the heads.
  static constexpr uint32_t MOST_FLOATS = 16384;
  // One number per head.
  enum Small : uint32_t { LARGEST, SUM, OF_GROUP, SINK, VECTORS };
  __aicore__ inline LocalTensor<float> small(Small which) { return small_.GetWithOffset<float>(HEADS, which * 32); }
  __aicore__ inline uint32_t pieces() const { return static_cast<uint32_t>((t_.dim + COLUMNS - 1) / COLUMNS); }
  __aicore__ inline uint32_t columns_of(uint32_t piece) const { return static_cast<uint32_t>(least(t_.dim - piece * COLUMNS, COLUMNS)); }

  __aicore__ inline void attend(int64_t row, int64_t head, uint32_t heads) {
    const int32_t all = static_cast<int32_t>(pieces() * heads * COLUMNS);
    const LocalTensor<float> totals = totals_.Get<float>(), largest = small(LARGEST), sum = small(SUM), of_sink = small(SINK);
    const int64_t size = t_.q_format == F32 ? 4 : 2;
    if (all > 0) {
      const Matrix q = {q_ + row * t_.q_row_stride * size, q_, t_.q_stride, 0, t_.q_format};
      for (uint32_t p = 0; p < pieces(); ++p) tiles_.load(queries_.Get<float>()[p * heads * COLUMNS], q, head, p * COLUMNS, heads, columns_of(p));
      vector_barrier();
      Duplicate(largest, float_of(SIGN_BIT | INFINITY_BITS), static_cast<int32_t>(HEADS));
      Duplicate(sum, 0.0f, static_cast<int32_t>(HEADS));
      Duplicate(of_sink, 0.0f, static_cast<int32_t>(HEADS));
      Duplicate(totals, 0.0f, all);
      order<HardEvent::V_MTE2>();
      DataCopyPad(of_sink, sink_[head], DataCopyExtParams(1, heads * 4, 0, 0, 0), DataCopyPadExtParams<float>());
      order<HardEvent::MTE2_V>();
    }
    const bool is_any = pass(row, heads, true);
    if (all == 0) return;
    if (is_any) {
      pass(row, heads, false);
      // The sink's share, and the quotients.
      Sub(of_sink, of_sink, largest, static_cast<int32_t>(HEADS));
      vector_barrier();
      Exp<float, WITH_DENORMALS>(of_sink, of_sink, static_cast<int32_t>(HEADS));
      vector_barrier();
      Add(sum, sum, of_sink, static_cast<int32_t>(HEADS));
      vector_barrier();
      const LocalTensor<float> spread = spread_.Get<float>();
      Brcb(spread, sum, 1, BrcbRepeatParams(1, 8));
      vector_barrier();
      for (uint32_t at = 0; at < pieces() * COLUMNS; at += LANES) {
        const LocalTensor<float> part = totals[at / COLUMNS * heads * COLUMNS + at % COLUMNS];
        Div<float, true, EXACT_DIVISION>(part, part, spread, static_cast<uint64_t>(LANES), static_cast<uint8_t>(heads),
                                         BinaryRepeatParams(1, 1, 0, COLUMNS / 8, COLUMNS / 8, 1));
      }
    }
    vector_barrier();
    const Results out = {out_ + row * t_.out_row_stride * size, t_.out_stride, t_.q_format};
    for (uint32_t p = 0; p < pieces(); ++p) store_rows(results_, out, head, p * COLUMNS, totals[p * heads * COLUMNS], heads, columns_of(p), COLUMNS);
  }

  // Takes the entries of a row, group by group; whether there is any. The first pass reports slots beyond their cache, which then are
  // no entries.
  __aicore__ inline bool pass(int64_t row, uint32_t heads, bool is_first) {
    bool is_any = false;
    for (uint32_t source = 0; source < 2; ++source) {
      const AttentionSource &of = source == 0 ? t_.window : t_.global;
      int64_t group[GROUP];
      uint32_t count = 0;
      for (int64_t i = 0; i < of.listed; ++i) {
        const int64_t slot = slots_[source].GetValue(row * of.slot_stride + i);
        if (slot < 0) continue;
        if (!caches_[source].has(slot)) {
          if (is_first) report_fault(fault_room_.Get<int32_t>(), faults_, OP, source == 0 ? WINDOW_SLOTS : GLOBAL_SLOTS, source == 0 ? BEYOND_WINDOW : BEYOND_GLOBAL);
          continue;
        }
        is_any = true;
        group[count++] = slot;
        if (count < static_cast<uint32_t>(t_.entries_at_once)) continue;
        take(caches_[source], group, count, heads, is_first);
        count = 0;
      }
      if (count > 0) take(caches_[source], group, count, heads, is_first);
    }
    return is_any;
  }

  __aicore__ inline void take(const Cache &cache, const int64_t *group, uint32_t count, uint32_t heads, bool is_first) {
    if (heads == 0 || t_.dim == 0) return;
    const LocalTensor<float> entries = entries_.Get<float>(), queries = queries_.Get<float>(), scores = scores_.Get<float>();
    const uint32_t step = static_cast<uint32_t>(t_.entries_at_once) * COLUMNS;
    const int32_t all = static_cast<int32_t>(heads * GROUP);
    vector_barrier();
    Duplicate(scores, 0.0f, all);
    for (uint32_t p = 0; p < pieces(); ++p) {
      tiles_.load(entries[p * step], cache, group, p * COLUMNS, count, columns_of(p));
      products_.add(scores, entries[p * step], queries[p * heads * COLUMNS], heads, count, columns_of(p));
    }
    vector_barrier();
    Muls(scores, scores, t_.scale, all);
    vector_barrier();
    if (is_first) find_largest(count, heads);
    else add(count, heads, step);
  }

  __aicore__ inline void find_largest(uint32_t count, uint32_t heads) {
    const LocalTensor<float> largest = small(LARGEST), of_group = small(OF_GROUP);
    WholeReduceMax(of_group, scores_.Get<float>(), static_cast<int32_t>(count), static_cast<int32_t>(heads), 1, 1, static_cast<int32_t>(GROUP / 8),
                   ReduceOrder::ORDER_ONLY_VALUE);
    vector_barrier();
    Max(largest, largest, of_group, static_cast<int32_t>(heads));
    vector_barrier();
  }

  // Scores become probabilities; their sums and the weighted entries are added.
  __aicore__ inline void add(uint32_t count, uint32_t heads, uint32_t step) {
    const LocalTensor<float> scores = scores_.Get<float>(), spread = spread_.Get<float>(), of_group = small(OF_GROUP), sum = small(SUM);
    const uint8_t rows = static_cast<uint8_t>(heads);
    const uint64_t mask = count;
    const int32_t all = static_cast<int32_t>(heads * GROUP);
    Brcb(spread, small(LARGEST), 1, BrcbRepeatParams(1, 8));
    vector_barrier();
    Sub(scores, scores, spread, mask, rows, BinaryRepeatParams(1, 1, 0, GROUP / 8, GROUP / 8, 1));
    vector_barrier();
    Exp<float, WITH_DENORMALS>(scores, scores, all);
    vector_barrier();
    WholeReduceSum(of_group, scores, static_cast<int32_t>(count), static_cast<int32_t>(heads), 1, 1, static_cast<int32_t>(GROUP / 8));
    vector_barrier();
    Add(sum, sum, of_group, static_cast<int32_t>(heads));
    if (t_.rounds != 0) {
      const LocalTensor<bfloat16_t> narrow = products_.room().ReinterpretCast<bfloat16_t>();
      Cast(narrow, scores, RoundMode::CAST_RINT, static_cast<uint32_t>(all));
      vector_barrier();
      Cast(scores, narrow, RoundMode::CAST_NONE, static_cast<uint32_t>(all));
    }
    vector_barrier();
    const uint32_t width = t_.dim > LANES ? COLUMNS : LANES, at_once = PIECES * Tiles::ELEMENTS / (GROUP * width);
    for (uint32_t first = 0; first < heads; first += at_once) add_weighted(first, static_cast<uint32_t>(least(heads - first, at_once)), width, count, heads, step);
  }

  // Of some heads: their entries times their probabilities lie entry by entry, `width` columns for each head, and are added in a tree.
  __aicore__ inline void add_weighted(uint32_t first, uint32_t n, uint32_t width, uint32_t count, uint32_t heads, uint32_t step) {
    const LocalTensor<float> scores = scores_.Get<float>(), spread = spread_.Get<float>(), weighted = products_.room(), entries = entries_.Get<float>(),
                             totals = totals_.Get<float>();
    constexpr uint8_t PITCH = COLUMNS / 8;
    const uint64_t lanes = LANES;
    for (uint32_t i = 0; i < n; ++i) {
      Brcb(spread[i * GROUP * 8], scores[(first + i) * GROUP], static_cast<uint8_t>(GROUP / 8), BrcbRepeatParams(1, 8));
    }
    vector_barrier();
    for (uint32_t p = 0; p < pieces(); ++p) {
      for (uint32_t i = 0; i < n; ++i) {
        for (uint32_t at = 0; at < columns_of(p); at += LANES) {
          Mul(weighted[i * width + at], entries[p * step + at], spread[i * GROUP * 8], lanes, static_cast<uint8_t>(count),
              BinaryRepeatParams(1, 1, 0, static_cast<uint8_t>(n * width / 8), PITCH, 1));
        }
      }
      vector_barrier();
      for (uint32_t left = count; left > 1;) {
        const uint32_t half = left / 2;
        Add(weighted, weighted, weighted[(left - half) * n * width], static_cast<int32_t>(half * n * width));
        vector_barrier();
        left -= half;
      }
      for (uint32_t at = 0; at < columns_of(p); at += LANES) {
        const LocalTensor<float> to = totals[(p * heads + first) * COLUMNS + at];
        Add(to, to, weighted[at], lanes, static_cast<uint8_t>(n), BinaryRepeatParams(1, 1, 1, PITCH, PITCH, static_cast<uint8_t>(width / 8)));
      }
      vector_barrier();
    }
  }

  SparseAttentionTiling t_;
  TPipe pipe_;
  InfinitiesStay infinities_stay_;
  Tiles tiles_;
  RowProducts<PIECES> products_;
  TBuf<TPosition::VECCALC> entries_, queries_, totals_, scores_, spread_, small_;
  TBuf<TPosition::VECOUT> fault_room_;
  TQue<TPosition::VECOUT, 2> results_;
  Cache caches_[2];
  GM_ADDR q_;
  GM_ADDR out_;
  GM_ADDR faults_;
  GlobalTensor<int32_t> slots_[2];
  GlobalTensor<float> sink_;
};

extern "C" __global__ __aicore__ void sparse_attention(GM_ADDR q, GM_ADDR window, GM_ADDR window_slots, GM_ADDR global, GM_ADDR global_slots,
                                                       GM_ADDR sink, GM_ADDR out, GM_ADDR faults, GM_ADDR tiling) {
  Attention attention;
  attention.init(q, window, window_slots, global, global_slots, sink, out, faults, read_tiling<SparseAttentionTiling>(tiling));
  attention.run();
}
