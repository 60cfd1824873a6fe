// Scores of cached index keys against the index queries of each row: what runs where the vendor's indexer is not installed.
//
// Bytes: a key of each column that is scored once per 32 heads, the queries once per 32 columns, a score per column. A block has a run
// of the pairs of a row and 32 columns. S finds the entries of the columns, MTE2 brings them, V decodes and multiplies.
//
// Order of a sum: over the channels as in common/products.h; the heads one after another in ascending order.
#include "common/faults.h"
#include "common/nans.h"
#include "common/products.h"
#include "common/rows.h"

using namespace AscendC;

struct IndexScoresTiling {
  int64_t rows, heads, dim, columns, candidates;
  int64_t q_stride, q_scale_stride, weight_stride, table_stride, candidate_stride, out_stride;
  int64_t page_stride, pages, requests, listed; // `listed`: pages of a request
  float scale;
  uint32_t format, entries, block_size, has_candidates;
  int32_t q_format, weight_format, reserved;
};
static_assert(sizeof(IndexScoresTiling) == 152, "as in src/ops/index_scores.rs");

// In the catalogue: the op, the arguments, and their refusals.
constexpr uint32_t OP = 15, ROW_REQUEST = 6, BLOCK_TABLE = 7, NO_REQUEST = 2, NO_PAGE = 3;
constexpr uint32_t MINUS_INFINITY_BITS = SIGN_BIT | INFINITY_BITS;

class IndexScores {
public:
  __aicore__ inline void init(GM_ADDR q, GM_ADDR q_scale, GM_ADDR weight, GM_ADDR keys, GM_ADDR requests, GM_ADDR table, GM_ADDR visible,
                              GM_ADDR candidates, GM_ADDR out, GM_ADDR faults, const IndexScoresTiling &t) {
    t_ = t;
    q_ = q;
    q_scale_ = q_scale;
    weight_ = weight;
    faults_ = faults;
    keys_ = {keys, t.page_stride, t.pages, t.dim, t.entries, t.format};
    requests_.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t *>(requests));
    table_.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t *>(table));
    visible_.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t *>(visible));
    candidates_.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t *>(candidates));
    out_.SetGlobalBuffer(reinterpret_cast<__gm__ float *>(out));
    tiles_.init(pipe_);
    products_.init(pipe_);
    pipe_.InitBuffer(entries_, Tiles::ELEMENTS * 4);
    pipe_.InitBuffer(queries_, Tiles::ELEMENTS * 4);
    pipe_.InitBuffer(heads_, TILE * TILE * 4);
    pipe_.InitBuffer(weights_, Tiles::COLUMNS * 4);
    pipe_.InitBuffer(scores_, TILE * 4);
    pipe_.InitBuffer(fault_room_, 32);
  }

  __aicore__ inline void run() {
    // Without columns a request can still be wrong.
    const int64_t pieces = most(1, (t_.columns + TILE - 1) / TILE);
    const Run run = run_of_block(t_.rows * pieces);
    for (int64_t item = run.begin; item < run.end; ++item) {
      const int64_t row = item / pieces, at = item % pieces * TILE;
      const uint32_t columns = static_cast<uint32_t>(least(t_.columns - at, TILE));
      int64_t slots[TILE];
      const bool is_any = find_entries(row, at, columns, slots);
      if (columns == 0) continue;
      const LocalTensor<float> scores = scores_.Get<float>();
      vector_barrier();
      Duplicate(scores, 0.0f, static_cast<int32_t>(TILE));
      vector_barrier();
      if (is_any) score(row, slots, columns);
      order<HardEvent::V_S>();
      for (uint32_t i = 0; i < columns; ++i) {
        if (slots[i] < 0) scores.SetValue(i, float_of(MINUS_INFINITY_BITS));
      }
      // S and V have both written.
      order<HardEvent::S_MTE3>();
      order<HardEvent::V_MTE3>();
      DataCopyPad(out_[row * t_.out_stride + at], scores, DataCopyExtParams(1, columns * 4, 0, 0, 0));
      order<HardEvent::MTE3_V>();
    }
  }

private:
  static constexpr int64_t TILE = Tiles::ROWS;

  // The slots of the entries of columns, -1 where a column has none; whether any has.
  __aicore__ inline bool find_entries(int64_t row, int64_t at, uint32_t columns, int64_t *slots) {
    const int64_t visible = visible_.GetValue(row);
    int64_t request = 0;
    if (visible > 0) {
      request = requests_.GetValue(row);
      if (request < 0 || request >= t_.requests) {
        report(ROW_REQUEST, NO_REQUEST);
        for (uint32_t i = 0; i < columns; ++i) slots[i] = -1;
        return false;
      }
    }
    bool is_any = false;
    for (uint32_t i = 0; i < columns; ++i) {
      slots[i] = -1;
      int64_t entry = at + i;
      if (t_.has_candidates != 0) {
        const int64_t place = entry / t_.block_size;
        const int64_t block = place < t_.candidates ? candidates_.GetValue(row * t_.candidate_stride + place) : -1;
        entry = block < 0 ? visible : block * t_.block_size + entry % t_.block_size;
      }
      if (entry >= visible) continue;
      const int64_t listed = entry / t_.entries;
      const int64_t page = listed < t_.listed ? table_.GetValue(request * t_.table_stride + listed) : -1;
      if (page < 0 || page >= t_.pages) {
        report(BLOCK_TABLE, NO_PAGE);
        continue;
      }
      slots[i] = page * t_.entries + entry % t_.entries;
      is_any = true;
    }
    return is_any;
  }

  __aicore__ inline void report(uint32_t argument, uint32_t rule) { report_fault(fault_room_.Get<int32_t>(), faults_, OP, argument, rule); }

  // scores_ of zeros becomes the sums.
  __aicore__ inline void score(int64_t row, const int64_t *slots, uint32_t columns) {
    const LocalTensor<float> scores = scores_.Get<float>(), heads = heads_.Get<float>(), entries = entries_.Get<float>(), queries = queries_.Get<float>(),
                             weights = weights_.Get<float>();
    // The heads of a row as the rows of a matrix.
    const int64_t bits = t_.q_format == F32 ? 32 : t_.q_format == BF16 ? 16 : 4;
    const Matrix q = {q_ + row * t_.q_stride * bits / 8, q_scale_ + row * t_.q_scale_stride, t_.dim, t_.dim / 32, t_.q_format};
    const Matrix head_weights = {weight_, weight_, t_.weight_stride, 0, t_.weight_format};
    for (int64_t first = 0; first < t_.heads; first += TILE) {
      const uint32_t count = static_cast<uint32_t>(least(t_.heads - first, TILE));
      const int32_t n = static_cast<int32_t>(count);
      tiles_.load(weights, head_weights, row, first, 1, count);
      Muls(weights, weights, t_.scale, n);
      vector_barrier();
      if (t_.weight_format == BF16) {
        const LocalTensor<bfloat16_t> narrow = products_.room().ReinterpretCast<bfloat16_t>();
        Cast(narrow, weights, RoundMode::CAST_RINT, count);
        vector_barrier();
        Cast(weights, narrow, RoundMode::CAST_NONE, count);
      }
      Duplicate(heads, 0.0f, static_cast<int32_t>(count * TILE));
      for (int64_t at = 0; at < t_.dim; at += Tiles::COLUMNS) {
        const uint32_t channels = static_cast<uint32_t>(least(t_.dim - at, Tiles::COLUMNS));
        tiles_.load(entries, keys_, slots, at, columns, channels);
        tiles_.load(queries, q, first, at, count, channels);
        products_.add(heads, entries, queries, count, columns, channels);
      }
      const LocalTensor<int32_t> is_nan = products_.room().ReinterpretCast<int32_t>();
      nan_mask(is_nan, heads, static_cast<int32_t>(count * TILE));
      Maxs(heads, heads, 0.0f, static_cast<int32_t>(count * TILE));
      put_nans(heads, is_nan, static_cast<int32_t>(count * TILE));
      order<HardEvent::V_S>();
      for (uint32_t h = 0; h < count; ++h) Muls(heads[h * TILE], heads[h * TILE], weights.GetValue(h), static_cast<int32_t>(TILE));
      vector_barrier();
      for (uint32_t h = 0; h < count; ++h) {
        Add(scores, scores, heads[h * TILE], static_cast<int32_t>(TILE));
        vector_barrier();
      }
      // V may write the weights again.
      order<HardEvent::S_V>();
    }
  }

  IndexScoresTiling t_;
  TPipe pipe_;
  InfinitiesStay infinities_stay_;
  Tiles tiles_;
  RowProducts<4> products_;
  TBuf<TPosition::VECCALC> entries_, queries_, heads_, weights_;
  TBuf<TPosition::VECOUT> scores_, fault_room_;
  Cache keys_;
  GM_ADDR q_;
  GM_ADDR q_scale_;
  GM_ADDR weight_;
  GM_ADDR faults_;
  GlobalTensor<int32_t> requests_, table_, visible_, candidates_;
  GlobalTensor<float> out_;
};

extern "C" __global__ __aicore__ void index_scores(GM_ADDR q, GM_ADDR q_scale, GM_ADDR weight, GM_ADDR keys, GM_ADDR requests, GM_ADDR table,
                                                   GM_ADDR visible, GM_ADDR candidates, GM_ADDR out, GM_ADDR faults, GM_ADDR tiling) {
  IndexScores scores;
  scores.init(q, q_scale, weight, keys, requests, table, visible, candidates, out, faults, read_tiling<IndexScoresTiling>(tiling));
  scores.run();
}
