// A sublayer's output added to the stream and the copies mixed with each other, in place.
//
// Bytes: the copies read and written, y read. A block has a run of the pairs of a row and a piece of its channels, which is the
// shorter the more copies there are: MTE2 reads all copies of the piece before MTE3 writes one, and they stay in the UB as F32. For
// each copy V adds post * y, then the copies in ascending order, in F32, rounded once. Channels do not meet. S reads the weights.
#include "common/float_rows.h"
#include "common/rows.h"
#include "common/tiling.h"

using namespace AscendC;

struct HcExpandTiling {
  int64_t rows, copies, columns, piece; // channels of a piece: a multiple of 8, and at most KEPT / copies
  int64_t x_stride, copy_stride, y_stride, post_stride;
  int64_t comb_stride, comb_copy_stride; // of a row, and of a copy that is read
  int32_t format, reserved;
};
static_assert(sizeof(HcExpandTiling) == 88, "as in src/ops/hc_expand.rs");

// Elements of all copies of a piece, and of one.
constexpr uint32_t KEPT = 32768, PIECE = 4096;

template <class X> __aicore__ inline void expand(GM_ADDR x, GM_ADDR y, GM_ADDR post, GM_ADDR comb, const HcExpandTiling &t) {
  TPipe pipe;
  const InfinitiesStay infinities_stay;
  TQue<TPosition::VECIN, 1> in;
  TQue<TPosition::VECOUT, 2> results;
  TBuf<TPosition::VECCALC> kept, added, sums;
  pipe.InitBuffer(in, 1, piece_bytes(PIECE));
  pipe.InitBuffer(results, 2, piece_bytes(PIECE));
  pipe.InitBuffer(kept, KEPT * 4);
  pipe.InitBuffer(added, PIECE * 4);
  pipe.InitBuffer(sums, PIECE * 4);
  GlobalTensor<X> stream, output;
  GlobalTensor<float> gains, matrix;
  stream.SetGlobalBuffer(reinterpret_cast<__gm__ X *>(x));
  output.SetGlobalBuffer(reinterpret_cast<__gm__ X *>(y));
  gains.SetGlobalBuffer(reinterpret_cast<__gm__ float *>(post));
  matrix.SetGlobalBuffer(reinterpret_cast<__gm__ float *>(comb));
  const LocalTensor<float> copies = kept.Get<float>(), addend = added.Get<float>(), sum = sums.Get<float>();
  const int64_t per_row = (t.columns + t.piece - 1) / t.piece;
  const Run run = run_of_block(t.rows * per_row);
  for (int64_t item = run.begin; item < run.end; ++item) {
    const int64_t row = item / per_row, at = (item - row * per_row) * t.piece;
    const uint32_t count = static_cast<uint32_t>(least(t.columns - at, t.piece));
    const int32_t n = static_cast<int32_t>(count);
    load_floats(in, addend, output[row * t.y_stride + at], count);
    for (int64_t i = 0; i < t.copies; ++i) {
      load_floats(in, copies[static_cast<uint32_t>(i * t.piece)], stream[row * t.x_stride + i * t.copy_stride + at], count);
    }
    for (int64_t j = 0; j < t.copies; ++j) {
      Muls(sum, addend, gains.GetValue(row * t.post_stride + j), n);
      for (int64_t i = 0; i < t.copies; ++i) {
        vector_barrier();
        Axpy(sum, copies[static_cast<uint32_t>(i * t.piece)], matrix.GetValue(row * t.comb_stride + i * t.comb_copy_stride + j), n);
      }
      store_floats(results, stream[row * t.x_stride + j * t.copy_stride + at], sum, count);
      // The next sum begins where this one was read.
      vector_barrier();
    }
  }
}

extern "C" __global__ __aicore__ void hc_expand(GM_ADDR x, GM_ADDR y, GM_ADDR post, GM_ADDR comb, GM_ADDR tiling) {
  const HcExpandTiling t = read_tiling<HcExpandTiling>(tiling);
  if (t.format == BF16) expand<bfloat16_t>(x, y, post, comb, t);
  else expand<float>(x, y, post, comb, t);
}
