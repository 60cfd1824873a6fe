// Rows of a table by index, converted between F32 and BF16 if asked; zeros for an index that names no row.
//
// Bytes: each row of the table read once per row of the index, each row of the result written once. A block has a run of the pairs of
// an index and a piece of 16384 bytes (copied) or 4096 columns (converted): MTE2 reads the piece, MTE3 writes it `repeat` times.
// S reads the indices.
#include "common/float_rows.h"
#include "common/rows.h"
#include "common/tiling.h"

using namespace AscendC;

struct GatherTiling {
  int64_t indices, table_rows, columns, repeat;
  int64_t table_stride, out_stride, repeat_stride; // of table rows, of an index and of a repeat of it in out
  int32_t table_format, out_format;
};
static_assert(sizeof(GatherTiling) == 64, "as in src/ops/gather.rs");

constexpr uint32_t COPIED_BYTES = 16384, CONVERTED_COLUMNS = 4096;

// The same format on both sides: T has its size, and no more of it matters.
template <class T> __aicore__ inline void copy_rows(GM_ADDR table, GM_ADDR index, GM_ADDR out, const GatherTiling &t) {
  constexpr int64_t PIECE = COPIED_BYTES / sizeof(T);
  TPipe pipe;
  // MTE2 fills what MTE3 empties.
  TQueBind<TPosition::VECIN, TPosition::VECOUT, 2> pieces;
  TBuf<TPosition::VECOUT> zeros;
  pipe.InitBuffer(pieces, 2, COPIED_BYTES);
  pipe.InitBuffer(zeros, COPIED_BYTES);
  GlobalTensor<T> from, to;
  GlobalTensor<int32_t> named;
  from.SetGlobalBuffer(reinterpret_cast<__gm__ T *>(table));
  to.SetGlobalBuffer(reinterpret_cast<__gm__ T *>(out));
  named.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t *>(index));
  Duplicate(zeros.Get<int32_t>(), 0, static_cast<int32_t>(COPIED_BYTES / 4));
  order<HardEvent::V_MTE3>();
  const int64_t per_row = (t.columns + PIECE - 1) / PIECE;
  const Run run = run_of_block(t.indices * per_row);
  for (int64_t item = run.begin; item < run.end; ++item) {
    const int64_t place = item / per_row, at = (item - place * per_row) * PIECE;
    const uint32_t count = static_cast<uint32_t>(least(t.columns - at, PIECE));
    const DataCopyExtParams bytes(1, count * static_cast<uint32_t>(sizeof(T)), 0, 0, 0);
    const int64_t row = named.GetValue(place);
    const bool is_row = row >= 0 && row < t.table_rows;
    LocalTensor<T> piece = zeros.Get<T>();
    if (is_row) {
      piece = pieces.AllocTensor<T>();
      DataCopyPad(piece, from[row * t.table_stride + at], bytes, DataCopyPadExtParams<T>());
      pieces.EnQue(piece);
      piece = pieces.DeQue<T>();
    }
    for (int64_t i = 0; i < t.repeat; ++i) DataCopyPad(to[place * t.out_stride + i * t.repeat_stride + at], piece, bytes);
    if (is_row) pieces.FreeTensor(piece);
  }
}

template <class X, class Y> __aicore__ inline void convert_rows(GM_ADDR table, GM_ADDR index, GM_ADDR out, const GatherTiling &t) {
  TPipe pipe;
  const InfinitiesStay infinities_stay;
  TQue<TPosition::VECIN, 2> in;
  TQue<TPosition::VECOUT, 2> results;
  TBuf<TPosition::VECCALC> values;
  pipe.InitBuffer(in, 2, piece_bytes(CONVERTED_COLUMNS));
  pipe.InitBuffer(results, 2, piece_bytes(CONVERTED_COLUMNS));
  pipe.InitBuffer(values, CONVERTED_COLUMNS * 4);
  GlobalTensor<X> from;
  GlobalTensor<Y> to;
  GlobalTensor<int32_t> named;
  from.SetGlobalBuffer(reinterpret_cast<__gm__ X *>(table));
  to.SetGlobalBuffer(reinterpret_cast<__gm__ Y *>(out));
  named.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t *>(index));
  const LocalTensor<float> wide = values.Get<float>();
  const int64_t per_row = (t.columns + CONVERTED_COLUMNS - 1) / CONVERTED_COLUMNS;
  const Run run = run_of_block(t.indices * per_row);
  for (int64_t item = run.begin; item < run.end; ++item) {
    const int64_t place = item / per_row, at = (item - place * per_row) * CONVERTED_COLUMNS;
    const uint32_t count = static_cast<uint32_t>(least(t.columns - at, CONVERTED_COLUMNS));
    const int64_t row = named.GetValue(place);
    if (row >= 0 && row < t.table_rows) {
      load_floats(in, wide, from[row * t.table_stride + at], count);
    } else {
      vector_barrier();
      Duplicate(wide, 0.0f, static_cast<int32_t>(whole_blocks(count)));
    }
    for (int64_t i = 0; i < t.repeat; ++i) store_floats(results, to[place * t.out_stride + i * t.repeat_stride + at], wide, count);
  }
}

extern "C" __global__ __aicore__ void gather(GM_ADDR table, GM_ADDR index, GM_ADDR out, GM_ADDR tiling) {
  const GatherTiling t = read_tiling<GatherTiling>(tiling);
  if (t.table_format != t.out_format) {
    if (t.out_format == F32) convert_rows<bfloat16_t, float>(table, index, out, t);
    else convert_rows<float, bfloat16_t>(table, index, out, t);
    return;
  }
  switch (t.out_format) {
  case U8: return copy_rows<uint8_t>(table, index, out, t);
  case BF16: return copy_rows<uint16_t>(table, index, out, t);
  case I64: return copy_rows<uint64_t>(table, index, out, t);
  default: return copy_rows<uint32_t>(table, index, out, t);
  }
}
