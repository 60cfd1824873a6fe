// Rows of an n-gram table side by side, decoded if the table is FP8; zeros for a number that names no row.
//
// Bytes: each row that is looked up read once, each value written once. A block has a run of lookups and takes as many at a time as
// 2048 columns hold, a row in pieces of 2048 if it is longer: MTE2 puts the rows one below the other, V converts all of them at once,
// MTE3 writes those that belong to one row of the result together. The few scales of an FP8 row come alone into blocks of 32 bytes; V
// gathers them. S reads the numbers.
#include "common/encode.h"
#include "common/float_rows.h"
#include "common/rows.h"
#include "common/tiling.h"

using namespace AscendC;

struct EngramGatherTiling {
  int64_t lookups, per_row, table_rows, columns;
  int64_t table_stride, scale_stride, rows_stride, out_stride;
  int32_t table_format, out_format;
};
static_assert(sizeof(EngramGatherTiling) == 72, "as in src/ops/engram_gather.rs");

// X is the table's type, an FP8 code being a byte; Y that of the result.
template <class X, class Y> class Lookup {
public:
  __aicore__ inline explicit Lookup(const EngramGatherTiling &t)
      : t_(t), pitch_((static_cast<uint32_t>(least(t.columns, PIECE)) + 31) / 32 * 32), most_(PIECE / pitch_) {}

  __aicore__ inline void init(GM_ADDR table, GM_ADDR scales, GM_ADDR rows, GM_ADDR out) {
    table_.SetGlobalBuffer(reinterpret_cast<__gm__ X *>(table));
    scales_.SetGlobalBuffer(reinterpret_cast<__gm__ uint8_t *>(scales));
    rows_.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t *>(rows));
    out_.SetGlobalBuffer(reinterpret_cast<__gm__ Y *>(out));
    pipe_.InitBuffer(raw_, 2, PIECE * sizeof(X));
    pipe_.InitBuffer(results_, 2, PIECE * sizeof(Y));
    pipe_.InitBuffer(values_, PIECE * 4);
    if constexpr (IS_CODED) {
      pipe_.InitBuffer(raw_scales_, 2, PIECE);
      pipe_.InitBuffer(wide_scales_, PIECE * 4);
      pipe_.InitBuffer(places_, GROUPS * 4);
      pipe_.InitBuffer(gathered_, GROUPS * 4);
      pipe_.InitBuffer(dense_scales_, GROUPS);
      coder_.init(pipe_);
      const LocalTensor<uint32_t> places = places_.template Get<uint32_t>();
      for (uint32_t i = 0; i < most_; ++i) {
        for (uint32_t g = 0; g < groups(); ++g) places.SetValue(i * groups() + g, (i * scale_pitch() + g) * 4);
      }
      order<HardEvent::S_V>();
    }
  }

  __aicore__ inline void run() {
    const Run run = run_of_block(t_.lookups);
    for (int64_t first = run.begin; first < run.end; first += most_) {
      const uint32_t lookups = static_cast<uint32_t>(least(run.end - first, most_));
      for (int64_t at = 0; at < t_.columns; at += PIECE) {
        const uint32_t count = static_cast<uint32_t>(least(t_.columns - at, PIECE));
        load(first, lookups, at, count);
        store(first, lookups, at, count);
      }
    }
  }

private:
  static constexpr bool IS_CODED = sizeof(X) == 1;
  static constexpr uint32_t PIECE = CODED_COLUMNS, GROUP = 32, GROUPS = PIECE / GROUP;

  // Scales of a row of the UB, and bytes that they fill.
  __aicore__ inline uint32_t groups() const { return pitch_ / GROUP; }
  __aicore__ inline uint32_t scale_pitch() const { return (groups() + 31) / 32 * 32; }

  // The pieces of some lookups as F32 in values_, `pitch_` elements from one to the next.
  __aicore__ inline void load(int64_t first, uint32_t lookups, int64_t at, uint32_t count) {
    const LocalTensor<float> values = values_.template Get<float>();
    const uint32_t all = lookups * pitch_;
    uint64_t missing = 0;
    LocalTensor<X> raw = raw_.template AllocTensor<X>();
    LocalTensor<uint8_t> scale;
    if constexpr (IS_CODED) scale = raw_scales_.template AllocTensor<uint8_t>();
    for (uint32_t i = 0; i < lookups; ++i) {
      const int64_t row = rows_.GetValue((first + i) / t_.per_row * t_.rows_stride + (first + i) % t_.per_row);
      if (row < 0 || row >= t_.table_rows) {
        missing |= uint64_t(1) << i;
        continue;
      }
      DataCopyPad(raw[i * pitch_], table_[row * t_.table_stride + at], DataCopyExtParams(1, count * static_cast<uint32_t>(sizeof(X)), 0, 0, 0),
                  DataCopyPadExtParams<X>());
      if constexpr (IS_CODED) {
        DataCopyPad(scale[i * scale_pitch()], scales_[row * t_.scale_stride + at / GROUP], DataCopyExtParams(1, (count + GROUP - 1) / GROUP, 0, 0, 0),
                    DataCopyPadExtParams<uint8_t>());
      }
    }
    raw_.EnQue(raw);
    raw = raw_.template DeQue<X>();
    vector_barrier();
    if constexpr (IS_CODED) {
      raw_scales_.EnQue(scale);
      scale = raw_scales_.template DeQue<uint8_t>();
      const LocalTensor<uint32_t> wide = wide_scales_.template Get<uint32_t>(), gathered = gathered_.template Get<uint32_t>();
      const LocalTensor<uint8_t> dense = dense_scales_.template Get<uint8_t>();
      Cast(wide, scale, RoundMode::CAST_NONE, lookups * scale_pitch());
      vector_barrier();
      Gather(gathered, wide, places_.template Get<uint32_t>(), 0, lookups * groups());
      vector_barrier();
      Cast(dense, gathered, RoundMode::CAST_NONE, lookups * groups());
      coder_.template decode<FP8_ROW32>(values, raw, dense, all);
      raw_scales_.FreeTensor(scale);
    } else if constexpr (sizeof(X) == 4) {
      DataCopy(values, raw, all);
    } else {
      Cast(values, raw, RoundMode::CAST_NONE, all);
    }
    vector_barrier();
    raw_.FreeTensor(raw);
    for (uint32_t i = 0; i < lookups; ++i) {
      if ((missing >> i & 1) != 0) Duplicate(values[i * pitch_], 0.0f, static_cast<int32_t>(pitch_));
    }
    vector_barrier();
  }

  __aicore__ inline void store(int64_t first, uint32_t lookups, int64_t at, uint32_t count) {
    const LocalTensor<float> values = values_.template Get<float>();
    LocalTensor<Y> result = results_.template AllocTensor<Y>();
    if constexpr (sizeof(Y) == 4) DataCopy(result, values, lookups * pitch_);
    else Cast(result, values, RoundMode::CAST_RINT, lookups * pitch_);
    results_.EnQue(result);
    result = results_.template DeQue<Y>();
    const uint32_t bytes = count * static_cast<uint32_t>(sizeof(Y)), pitch_bytes = pitch_ * static_cast<uint32_t>(sizeof(Y));
    const int64_t gap = (pitch_bytes - (bytes + 31) / 32 * 32) / 32;
    for (uint32_t i = 0; i < lookups;) {
      const int64_t row = (first + i) / t_.per_row, place = first + i - row * t_.per_row;
      const uint16_t together = static_cast<uint16_t>(least(lookups - i, t_.per_row - place));
      DataCopyPad(out_[row * t_.out_stride + place * t_.columns + at], result[i * pitch_],
                  DataCopyExtParams(together, bytes, gap, (t_.columns - count) * static_cast<int64_t>(sizeof(Y)), 0));
      i += together;
    }
    results_.FreeTensor(result);
  }

  const EngramGatherTiling t_;
  const uint32_t pitch_, most_;
  TPipe pipe_;
  InfinitiesStay infinities_stay_;
  Coder coder_;
  TQue<TPosition::VECIN, 2> raw_, raw_scales_;
  TQue<TPosition::VECOUT, 2> results_;
  TBuf<TPosition::VECCALC> values_, wide_scales_, places_, gathered_, dense_scales_;
  GlobalTensor<X> table_;
  GlobalTensor<Y> out_;
  GlobalTensor<uint8_t> scales_;
  GlobalTensor<int32_t> rows_;
};

template <class X, class Y> __aicore__ inline void look_up(GM_ADDR table, GM_ADDR scales, GM_ADDR rows, GM_ADDR out, const EngramGatherTiling &t) {
  Lookup<X, Y> lookup(t);
  lookup.init(table, scales, rows, out);
  lookup.run();
}

template <class X> __aicore__ inline void look_up_in(GM_ADDR table, GM_ADDR scales, GM_ADDR rows, GM_ADDR out, const EngramGatherTiling &t) {
  if (t.out_format == BF16) look_up<X, bfloat16_t>(table, scales, rows, out, t);
  else look_up<X, float>(table, scales, rows, out, t);
}

extern "C" __global__ __aicore__ void engram_gather(GM_ADDR table, GM_ADDR scales, GM_ADDR rows, GM_ADDR out, GM_ADDR tiling) {
  const EngramGatherTiling t = read_tiling<EngramGatherTiling>(tiling);
  switch (t.table_format) {
  case FP8_ROW32: return look_up_in<uint8_t>(table, scales, rows, out, t);
  case BF16: return look_up_in<bfloat16_t>(table, scales, rows, out, t);
  default: return look_up_in<float>(table, scales, rows, out, t);
  }
}
