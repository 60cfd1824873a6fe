// Rows rounded to a scaled 8- or 4-bit format, bit for bit.
//
// Bytes: a row read, its codes and scales written. A block has a run of the pairs of a row and a piece of 2048 columns; which piece a
// group is in does not show. MTE2 reads, V does everything (common/encode.h), MTE3 writes bytes at any address.
#include "common/coded_rows.h"
#include "common/float_rows.h"
#include "common/plain_bits.h"
#include "common/rows.h"

using namespace AscendC;

struct QuantizeTiling {
  int64_t rows, columns, x_stride, out_stride, scale_stride;
  int32_t x_format, out_format;
};
static_assert(sizeof(QuantizeTiling) == 48, "as in src/ops/quantize.rs");

// X is the type of the rows as bits: uint32_t for F32, uint16_t for BF16.
template <int32_t FORMAT, class X> __aicore__ inline void quantize_rows(GM_ADDR x, GM_ADDR codes, GM_ADDR scales, const QuantizeTiling &t) {
  constexpr int64_t PIECE = CODED_COLUMNS;
  TPipe pipe;
  TQue<TPosition::VECIN, 2> in;
  TBuf<TPosition::VECCALC> room;
  CodedRows coded;
  pipe.InitBuffer(in, 2, PIECE * sizeof(X));
  pipe.InitBuffer(room, PIECE * 4);
  coded.init(pipe);
  GlobalTensor<X> rows;
  rows.SetGlobalBuffer(reinterpret_cast<__gm__ X *>(x));
  const LocalTensor<uint32_t> values = room.Get<uint32_t>();
  const int64_t pieces = (t.columns + PIECE - 1) / PIECE;
  const Run run = run_of_block(t.rows * pieces);
  for (int64_t item = run.begin; item < run.end; ++item) {
    const int64_t row = item / pieces, at = item % pieces * PIECE;
    const uint32_t count = static_cast<uint32_t>(least(t.columns - at, PIECE));
    LocalTensor<X> raw = in.AllocTensor<X>();
    DataCopyPad(raw, rows[row * t.x_stride + at], DataCopyExtParams(1, count * static_cast<uint32_t>(sizeof(X)), 0, 0, 0), DataCopyPadExtParams<X>());
    in.EnQue(raw);
    raw = in.DeQue<X>();
    vector_barrier();
    // As bits: the sign of a NaN stays.
    if constexpr (sizeof(X) == 2) widen_bits(values, raw, count);
    else DataCopy(values, raw, whole_blocks(count));
    vector_barrier();
    in.FreeTensor(raw);
    coded.store<FORMAT>(codes + (row * t.out_stride + at) / Scaled<FORMAT>::CODES_PER_BYTE, scales + row * t.scale_stride + at / Scaled<FORMAT>::GROUP,
                        values.ReinterpretCast<float>(), count);
  }
}

template <int32_t FORMAT> __aicore__ inline void quantize_to(GM_ADDR x, GM_ADDR codes, GM_ADDR scales, const QuantizeTiling &t) {
  if (t.x_format == BF16) quantize_rows<FORMAT, uint16_t>(x, codes, scales, t);
  else quantize_rows<FORMAT, uint32_t>(x, codes, scales, t);
}

extern "C" __global__ __aicore__ void quantize(GM_ADDR x, GM_ADDR codes, GM_ADDR scales, GM_ADDR tiling) {
  const QuantizeTiling t = read_tiling<QuantizeTiling>(tiling);
  switch (t.out_format) {
  case FP8_ROW32: return quantize_to<FP8_ROW32>(x, codes, scales, t);
  case FP4_ROW32: return quantize_to<FP4_ROW32>(x, codes, scales, t);
  case FP4_ROW16: return quantize_to<FP4_ROW16>(x, codes, scales, t);
  }
}
