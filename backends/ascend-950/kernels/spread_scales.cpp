// Scales of rows or tiles as the vendor's products want them: a whole row of scales for each row of the matrix.
//
// Bytes: a row of scales read for each row of the matrix, and written. A block has a run of the matrix's rows; MTE2 reads pieces of
// 16384 scales, MTE3 writes them.
#include "common/rows.h"
#include "common/tiling.h"

using namespace AscendC;

struct SpreadScalesTiling {
  int64_t rows, columns; // of the result
  int64_t stride;        // from one row of scales to the next
  int64_t times;         // how many rows of the matrix have one row of scales
};
static_assert(sizeof(SpreadScalesTiling) == 32, "as in src/vendor/linear.rs");

constexpr int64_t PIECE = 16384;

extern "C" __global__ __aicore__ void spread_scales(GM_ADDR scales, GM_ADDR out, GM_ADDR tiling) {
  const SpreadScalesTiling t = read_tiling<SpreadScalesTiling>(tiling);
  TPipe pipe;
  TQueBind<TPosition::VECIN, TPosition::VECOUT, 2> pieces;
  pipe.InitBuffer(pieces, 2, PIECE);
  GlobalTensor<uint8_t> from, to;
  from.SetGlobalBuffer(reinterpret_cast<__gm__ uint8_t *>(scales));
  to.SetGlobalBuffer(reinterpret_cast<__gm__ uint8_t *>(out));
  const Run run = run_of_block(t.rows);
  for (int64_t row = run.begin; row < run.end; ++row) {
    for (int64_t at = 0; at < t.columns; at += PIECE) {
      const DataCopyExtParams bytes(1, static_cast<uint32_t>(least(t.columns - at, PIECE)), 0, 0, 0);
      LocalTensor<uint8_t> piece = pieces.AllocTensor<uint8_t>();
      DataCopyPad(piece, from[row / t.times * t.stride + at], bytes, DataCopyPadExtParams<uint8_t>());
      pieces.EnQue(piece);
      piece = pieces.DeQue<uint8_t>();
      DataCopyPad(to[row * t.columns + at], piece, bytes);
      pieces.FreeTensor(piece);
    }
  }
}
