// Pieces of matrices and of cache entries in the UB as F32, whatever their format: element times scale, rounded to F32.
//
// A piece has up to 32 rows of up to 128 columns, 128 apart; what lies behind the columns of a row is undefined. MTE2 brings rows
// with their gaps. V looks codes up in a table of their values, 256 or 16 of them, and multiplies by the scales: four instructions over
// the whole piece for E4M3, seven for E2M1. A table knows NaN codes and scales, which arithmetic would have to treat apart; a block makes
// those that its formats have.
#pragma once

#include "bits.h"
#include "infinities.h"
#include "sync.h"
#include "tiling.h"

// A matrix in global memory; strides in elements.
struct Matrix {
  GM_ADDR data;
  GM_ADDR scale;
  int64_t stride, scale_stride;
  int32_t format;
};

// A paged cache; the stride is in bytes.
struct Cache {
  GM_ADDR data;
  int64_t page_stride, pages, dim;
  uint32_t entries; // in a page
  uint32_t format;

  __aicore__ inline bool has(int64_t slot) const { return slot < pages * entries; }
};

class Tiles {
public:
  static constexpr uint32_t ROWS = 32, COLUMNS = 128, ELEMENTS = ROWS * COLUMNS;

  __aicore__ inline void init(AscendC::TPipe &pipe) {
    pipe.InitBuffer(raw_, 2, ELEMENTS * 4);
    pipe.InitBuffer(scales_, 2, ROWS * 32);
    pipe.InitBuffer(tables_, 2 * 256 * 4 + 16 * 4);
    pipe.InitBuffer(codes_, ELEMENTS * 4);
    pipe.InitBuffer(pairs_, 2 * ELEMENTS);
    pipe.InitBuffer(factors_, ROWS * 32 * 4 + ROWS * 8 * 4);
    pipe.InitBuffer(spread_, ROWS * 8 * 32);
    has_ = 0;
  }

  // `columns` columns of `rows` rows; of a scaled format from a multiple of 32 columns on, and of FP8_TILE32 of one row of tiles.
  // Behind it V sees them.
  __aicore__ inline void load(const AscendC::LocalTensor<float> &to, const Matrix &m, int64_t row, int64_t column, uint32_t rows, uint32_t columns) {
    using namespace AscendC;
    make_tables(m.format);
    const int64_t bits = bits_of_element(m.format);
    LocalTensor<uint8_t> raw = raw_.AllocTensor<uint8_t>(), scales;
    copy_rows(raw, m.data + (row * m.stride + column) * bits / 8, m.stride * bits / 8, rows, static_cast<uint32_t>((columns * bits + 7) / 8),
              static_cast<uint32_t>(COLUMNS * bits / 8));
    const bool is_tiled = m.format == FP8_TILE32;
    const uint32_t scale_rows = is_tiled ? 1 : rows;
    if (is_scaled(m.format)) {
      scales = scales_.AllocTensor<uint8_t>();
      copy_rows(scales, m.scale + ((is_tiled ? row / 32 : row) * m.scale_stride + column / 32), m.scale_stride, scale_rows, (columns + 31) / 32, 32);
    }
    decode(to, raw, scales, m.format, rows, scale_rows, columns);
  }

  // `columns` channels of the entries in `rows` slots, from a multiple of 128 channels on. A row whose slot is negative is undefined.
  // Behind it V sees them.
  __aicore__ inline void load(const AscendC::LocalTensor<float> &to, const Cache &cache, const int64_t *slots, int64_t column, uint32_t rows,
                              uint32_t columns) {
    using namespace AscendC;
    const int32_t format = cache.format == CACHE_F32    ? F32
                           : cache.format == CACHE_BF16 ? BF16
                           : cache.format == CACHE_FP8  ? FP8_ROW32
                           : cache.format == CACHE_FP4_ROW16 ? FP4_ROW16
                                                             : FP4_ROW32;
    make_tables(format);
    const int64_t bits = bits_of_element(format), group = group_of(format);
    const int64_t value_bytes = cache.dim * bits / 8, scale_bytes = is_scaled(format) ? cache.dim / group : 0;
    LocalTensor<uint8_t> raw = raw_.AllocTensor<uint8_t>(), scales;
    if (is_scaled(format)) scales = scales_.AllocTensor<uint8_t>();
    for (uint32_t i = 0; i < rows; ++i) {
      if (slots[i] < 0) continue;
      const int64_t page = slots[i] / cache.entries, place = slots[i] % cache.entries, begin = page * cache.page_stride;
      // In the last format all values of a page stand before all scales.
      const bool is_apart = cache.format == CACHE_FP4_ROW32;
      const int64_t values_at = begin + place * (is_apart ? value_bytes : value_bytes + scale_bytes);
      const int64_t scales_at = is_apart ? begin + cache.entries * value_bytes + place * scale_bytes : values_at + value_bytes;
      const uint32_t pitch = static_cast<uint32_t>(COLUMNS * bits / 8);
      copy_rows(raw[i * pitch], cache.data + (values_at + column * bits / 8), 0, 1, static_cast<uint32_t>(columns * bits / 8), pitch);
      if (is_scaled(format)) copy_rows(scales[i * 32], cache.data + (scales_at + column / group), 0, 1, static_cast<uint32_t>(columns / group), 32);
    }
    decode(to, raw, scales, format, rows, rows, columns);
  }

private:
  enum Table : uint32_t { E4M3, UE8M0, E2M1 };
  template <class T> __aicore__ inline AscendC::LocalTensor<T> table(Table which) {
    return tables_.GetWithOffset<T>(which == E2M1 ? 16 : 256, which * 256 * 4);
  }

  __aicore__ static inline bool is_scaled(int32_t format) { return format != F32 && format != BF16; }
  __aicore__ static inline int64_t group_of(int32_t format) { return format == FP4_ROW16 ? 16 : 32; }
  __aicore__ static inline int64_t bits_of_element(int32_t format) {
    return format == F32 ? 32 : format == BF16 ? 16 : format == FP4_ROW16 || format == FP4_ROW32 ? 4 : 8;
  }

  // Those of a format that are not there yet. By V where it can be; S sets what does not follow the rule.
  __aicore__ inline void make_tables(int32_t format) {
    using namespace AscendC;
    if (!is_scaled(format)) return;
    const bool is_few = bits_of_element(format) == 4;
    const uint32_t of_codes = is_few ? 1u << E2M1 : 1u << E4M3, of_scales = format == FP4_ROW16 ? 1u << E4M3 : 1u << UE8M0;
    const uint32_t wanted = (of_codes | of_scales) & ~has_;
    if (wanted == 0) return;
    has_ |= wanted;
    const LocalTensor<int32_t> elements = table<int32_t>(E4M3), scales = table<int32_t>(UE8M0), few = table<int32_t>(E2M1);
    if (wanted >> E4M3 & 1) {
      // Sign, exponent and fraction where F32 has them, with another bias.
      CreateVecIndex(elements, 0, 256);
      vector_barrier();
      ShiftLeft(elements, elements, 24, 256);
      vector_barrier();
      ShiftRight(elements, elements, 4, 256);
      vector_barrier();
      and_bits(elements, elements, 0x87F00000u, 256);
      vector_barrier();
      Muls(elements.ReinterpretCast<float>(), elements.ReinterpretCast<float>(), power_of_two(120), 256);
    }
    if (wanted >> UE8M0 & 1) {
      CreateVecIndex(scales, 0, 256);
      vector_barrier();
      ShiftLeft(scales, scales, 23, 256);
    }
    order<HardEvent::V_S>();
    if (wanted >> E4M3 & 1) {
      elements.SetValue(0x7F, static_cast<int32_t>(NAN_BITS));
      elements.SetValue(0xFF, static_cast<int32_t>(NAN_BITS));
    }
    if (wanted >> UE8M0 & 1) {
      // 2^-127 is below the normal numbers.
      scales.SetValue(0, 0x00400000);
      scales.SetValue(255, static_cast<int32_t>(NAN_BITS));
    }
    if (wanted >> E2M1 & 1) {
      const float magnitude[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
      for (uint32_t i = 0; i < 16; ++i) few.SetValue(i, static_cast<int32_t>(bits_of(magnitude[i % 8]) | i / 8 << 31));
    }
    order<HardEvent::S_V>();
  }

  // Rows of `bytes` bytes, `pitch` apart in the UB.
  __aicore__ static inline void copy_rows(const AscendC::LocalTensor<uint8_t> &to, GM_ADDR from, int64_t stride, uint32_t rows, uint32_t bytes,
                                          uint32_t pitch) {
    using namespace AscendC;
    GlobalTensor<uint8_t> source;
    source.SetGlobalBuffer(reinterpret_cast<__gm__ uint8_t *>(from));
    const int64_t gap = stride - bytes, target_gap = (pitch - (bytes + 31) / 32 * 32) / 32;
    if (gap >= 0 && gap <= MOST_GAP) {
      DataCopyPad(to, source, DataCopyExtParams(static_cast<uint16_t>(rows), bytes, gap, target_gap, 0), DataCopyPadExtParams<uint8_t>());
      return;
    }
    // Rows far from each other, or all the same one.
    for (uint32_t i = 0; i < rows; ++i) {
      DataCopyPad(to[i * pitch], source[i * stride], DataCopyExtParams(1, bytes, 0, 0, 0), DataCopyPadExtParams<uint8_t>());
    }
  }

  // What MTE2 has been given to bring.
  __aicore__ inline void decode(const AscendC::LocalTensor<float> &to, AscendC::LocalTensor<uint8_t> &raw, AscendC::LocalTensor<uint8_t> &scales,
                                int32_t format, uint32_t rows, uint32_t scale_rows, uint32_t columns) {
    using namespace AscendC;
    const uint32_t n = rows * COLUMNS;
    raw_.EnQue(raw);
    raw = raw_.DeQue<uint8_t>();
    // What was in `to` has been used.
    vector_barrier();
    if (format == F32) DataCopy(to, raw.ReinterpretCast<float>(), n);
    else if (format == BF16) Cast(to, raw.ReinterpretCast<bfloat16_t>(), RoundMode::CAST_NONE, n);
    else if (bits_of_element(format) == 4) look_up_pairs(to, raw, n);
    else look_up(to, raw, table<float>(E4M3), n);
    vector_barrier();
    raw_.FreeTensor(raw);
    if (!is_scaled(format)) return;
    scales_.EnQue(scales);
    scales = scales_.DeQue<uint8_t>();
    multiply(to, scales, format, rows, scale_rows, columns);
    scales_.FreeTensor(scales);
  }

  __aicore__ inline void look_up(const AscendC::LocalTensor<float> &to, const AscendC::LocalTensor<uint8_t> &codes, const AscendC::LocalTensor<float> &values,
                                 uint32_t n) {
    using namespace AscendC;
    const LocalTensor<uint32_t> places = codes_.Get<uint32_t>();
    Cast(places, codes, RoundMode::CAST_NONE, n);
    vector_barrier();
    ShiftLeft(places, places, 2u, static_cast<int32_t>(n));
    vector_barrier();
    Gather(to, values, places, 0, n);
  }

  // Two codes to a byte, the lower half first: each times four, in a byte of its own.
  __aicore__ inline void look_up_pairs(const AscendC::LocalTensor<float> &to, const AscendC::LocalTensor<uint8_t> &codes, uint32_t n) {
    using namespace AscendC;
    const int32_t half = static_cast<int32_t>(n / 2);
    const LocalTensor<uint16_t> pair = pairs_.GetWithOffset<uint16_t>(ELEMENTS / 2, 0), upper = pairs_.GetWithOffset<uint16_t>(ELEMENTS / 2, ELEMENTS),
                                wide = codes_.GetWithOffset<uint16_t>(ELEMENTS / 2, 0);
    const LocalTensor<uint32_t> places = codes_.Get<uint32_t>();
    Cast(wide, codes, RoundMode::CAST_NONE, n / 2);
    vector_barrier();
    ShiftLeft(pair, wide, static_cast<uint16_t>(2), half);
    ShiftLeft(upper, wide, static_cast<uint16_t>(6), half);
    vector_barrier();
    Or(pair, pair, upper, half);
    vector_barrier();
    Ands(pair, pair, static_cast<uint16_t>(0x3C3C), half);
    vector_barrier();
    Cast(places, pair.ReinterpretCast<uint8_t>(), RoundMode::CAST_NONE, n);
    vector_barrier();
    Gather(to, table<float>(E2M1), places, 0, n);
  }

  // Times the scales, 32 bytes apart in a row: each of eight fills a block, and a group of columns is multiplied by one.
  __aicore__ inline void multiply(const AscendC::LocalTensor<float> &to, const AscendC::LocalTensor<uint8_t> &scales, int32_t format, uint32_t rows,
                                  uint32_t scale_rows, uint32_t columns) {
    using namespace AscendC;
    const LocalTensor<uint32_t> wide = factors_.GetWithOffset<uint32_t>(ROWS * 32, 0), eight = factors_.GetWithOffset<uint32_t>(ROWS * 8, ROWS * 32 * 4);
    const LocalTensor<int32_t> all = wide.ReinterpretCast<int32_t>();
    const LocalTensor<float> factor = factors_.GetWithOffset<float>(ROWS * 8, 0), spread = spread_.Get<float>();
    Cast(wide, scales, RoundMode::CAST_NONE, scale_rows * 32);
    vector_barrier();
    Adds(eight.ReinterpretCast<int32_t>(), all, int32_t(0), static_cast<uint64_t>(8), static_cast<uint8_t>(scale_rows), UnaryRepeatParams(1, 1, 1, 4));
    vector_barrier();
    ShiftLeft(eight, eight, 2u, static_cast<int32_t>(scale_rows * 8));
    vector_barrier();
    Gather(factor, table<float>(format == FP4_ROW16 ? E4M3 : UE8M0), eight, 0, scale_rows * 8);
    vector_barrier();
    Brcb(spread, factor, static_cast<uint8_t>(scale_rows), BrcbRepeatParams(1, 8));
    vector_barrier();
    const uint32_t group = static_cast<uint32_t>(group_of(format));
    const uint64_t mask = group;
    const BinaryRepeatParams by_row(1, 1, 0, COLUMNS / 8, COLUMNS / 8, scale_rows == 1 ? 0 : 8);
    for (uint32_t at = 0; at < columns; at += group) {
      Mul(to[at], to[at], spread[at / group * 8], mask, static_cast<uint8_t>(rows), by_row);
    }
    vector_barrier();
  }

  static constexpr int64_t MOST_GAP = 0x7FFFFFFF;

  AscendC::TQue<AscendC::TPosition::VECIN, 2> raw_, scales_;
  AscendC::TBuf<AscendC::TPosition::VECCALC> tables_, codes_, pairs_, factors_, spread_;
  uint32_t has_; // a bit for each table
};

// Where results go: `format` is F32 or BF16, the stride in elements.
struct Results {
  GM_ADDR data;
  int64_t stride;
  int32_t format;
};

// Rows of F32, `pitch` apart in the UB, rounded once. The queue's tensors have room for rows * pitch F32 numbers; V must be done with
// `from`, and may write there again behind the next barrier.
template <class Queue>
__aicore__ inline void store_rows(Queue &queue, const Results &out, int64_t row, int64_t column, const AscendC::LocalTensor<float> &from, uint32_t rows,
                                  uint32_t columns, uint32_t pitch) {
  using namespace AscendC;
  const uint32_t size = out.format == F32 ? 4 : 2, bytes = columns * size;
  LocalTensor<uint8_t> results = queue.template AllocTensor<uint8_t>();
  if (out.format == F32) DataCopy(results.ReinterpretCast<float>(), from, rows * pitch);
  else Cast(results.ReinterpretCast<bfloat16_t>(), from, RoundMode::CAST_RINT, rows * pitch);
  queue.EnQue(results);
  results = queue.template DeQue<uint8_t>();
  GlobalTensor<uint8_t> to;
  to.SetGlobalBuffer(reinterpret_cast<__gm__ uint8_t *>(out.data));
  const int64_t begin = (row * out.stride + column) * size, gap = out.stride * size - bytes;
  if (rows == 1 || gap > 0x7FFFFFFF) {
    for (uint32_t i = 0; i < rows; ++i) DataCopyPad(to[begin + i * out.stride * size], results[i * pitch * size], DataCopyExtParams(1, bytes, 0, 0, 0));
  } else {
    DataCopyPad(to[begin], results, DataCopyExtParams(static_cast<uint16_t>(rows), bytes, (pitch * size - (bytes + 31) / 32 * 32) / 32, gap, 0));
  }
  queue.FreeTensor(results);
}
