// 1 / sqrt(mean of squares + eps) of each row.
//
// Bytes: the row, twice if it is longer than 4096 columns. A block has a run of rows and takes them 64 at a time: the squares row by
// row, the roots of all of them at once. The order of a sum follows from the number of columns; see common/inverse_root.h.
#include "common/inverse_root.h"
#include "common/rows.h"

using namespace AscendC;

struct RstdTiling {
  int64_t rows, columns, x_stride;
  float eps;
  int32_t format;
};
static_assert(sizeof(RstdTiling) == 32, "as in src/ops/rstd.rs");

template <class X> __aicore__ inline void inverse_roots(GM_ADDR x, GM_ADDR out, const RstdTiling &t) {
  TPipe pipe;
  InverseRoots roots;
  TQue<TPosition::VECOUT, 1> results;
  roots.init(pipe);
  pipe.InitBuffer(results, 1, InverseRoots::ROWS * 4);
  GlobalTensor<X> from;
  GlobalTensor<float> to;
  from.SetGlobalBuffer(reinterpret_cast<__gm__ X *>(x));
  to.SetGlobalBuffer(reinterpret_cast<__gm__ float *>(out));
  const Run run = run_of_block(t.rows);
  for (int64_t begin = run.begin; begin < run.end; begin += InverseRoots::ROWS) {
    const uint32_t rows = static_cast<uint32_t>(least(run.end - begin, InverseRoots::ROWS));
    for (uint32_t i = 0; i < rows; ++i) roots.add(i, from[(begin + i) * t.x_stride], t.columns, t.eps);
    roots.finish(rows);
    LocalTensor<float> result = results.AllocTensor<float>();
    Mul(result, roots.inverse(), roots.scale(), static_cast<int32_t>(rows));
    results.EnQue(result);
    result = results.DeQue<float>();
    DataCopyPad(to[begin], result, DataCopyExtParams(1, rows * 4, 0, 0, 0));
    results.FreeTensor(result);
    // S writes the next batch over what V has read.
    order<HardEvent::V_S>();
  }
}

extern "C" __global__ __aicore__ void rstd(GM_ADDR x, GM_ADDR out, GM_ADDR tiling) {
  const RstdTiling t = read_tiling<RstdTiling>(tiling);
  if (t.format == BF16) inverse_roots<bfloat16_t>(x, out, t);
  else inverse_roots<float>(x, out, t);
}
