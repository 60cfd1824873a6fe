// The weighted sum of the copies of the stream.
//
// Bytes: the copies once, one row written. A block has a run of the pairs of a row and a piece of 4096 channels: MTE2 reads a copy of
// the piece after the other, V adds them in order, copy 0 first, in F32, MTE3 writes the sum, rounded once. Channels do not meet. S
// reads the weights, one per copy.
#include "common/float_rows.h"
#include "common/rows.h"
#include "common/tiling.h"

using namespace AscendC;

struct HcCollapseTiling {
  int64_t rows, copies, columns;
  int64_t x_stride, copy_stride, pre_stride, out_stride;
  int32_t format, reserved;
};
static_assert(sizeof(HcCollapseTiling) == 64, "as in src/ops/hc_collapse.rs");

template <class X> __aicore__ inline void collapse(GM_ADDR x, GM_ADDR pre, GM_ADDR out, const HcCollapseTiling &t) {
  constexpr int64_t PIECE = 4096;
  TPipe pipe;
  const InfinitiesStay infinities_stay;
  TQue<TPosition::VECIN, 2> in;
  TQue<TPosition::VECOUT, 2> results;
  TBuf<TPosition::VECCALC> values, sums;
  pipe.InitBuffer(in, 2, piece_bytes(PIECE));
  pipe.InitBuffer(results, 2, piece_bytes(PIECE));
  pipe.InitBuffer(values, PIECE * 4);
  pipe.InitBuffer(sums, PIECE * 4);
  GlobalTensor<X> from, to;
  GlobalTensor<float> weights;
  from.SetGlobalBuffer(reinterpret_cast<__gm__ X *>(x));
  to.SetGlobalBuffer(reinterpret_cast<__gm__ X *>(out));
  weights.SetGlobalBuffer(reinterpret_cast<__gm__ float *>(pre));
  const LocalTensor<float> value = values.Get<float>(), sum = sums.Get<float>();
  const int64_t per_row = (t.columns + PIECE - 1) / PIECE;
  const Run run = run_of_block(t.rows * per_row);
  for (int64_t item = run.begin; item < run.end; ++item) {
    const int64_t row = item / per_row, at = (item - row * per_row) * PIECE;
    const uint32_t count = static_cast<uint32_t>(least(t.columns - at, PIECE));
    const int32_t n = static_cast<int32_t>(count);
    vector_barrier();
    // Without a copy the sum is 0.
    Duplicate(sum, 0.0f, n);
    for (int64_t copy = 0; copy < t.copies; ++copy) {
      load_floats(in, value, from[row * t.x_stride + copy * t.copy_stride + at], count);
      const float weight = weights.GetValue(row * t.pre_stride + copy);
      if (copy == 0) Muls(sum, value, weight, n);
      else Axpy(sum, value, weight, n);
    }
    store_floats(results, to[row * t.out_stride + at], sum, count);
  }
}

extern "C" __global__ __aicore__ void hc_collapse(GM_ADDR x, GM_ADDR pre, GM_ADDR out, GM_ADDR tiling) {
  const HcCollapseTiling t = read_tiling<HcCollapseTiling>(tiling);
  if (t.format == BF16) collapse<bfloat16_t>(x, pre, out, t);
  else collapse<float>(x, pre, out, t);
}
