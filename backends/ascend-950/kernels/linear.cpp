// Rows times a transposed matrix, optionally block-diagonal: what runs where the vendor's matrix products are not installed.
//
// Bytes: for each 32 rows of x the weights once, for each 32 outputs x once. A block has a run of tiles of 32 rows and 32 outputs; tiles
// of outputs begin at multiples of 32 rows of the weights, as those of their scales do, and end where a group ends. The order of a
// sum: common/products.h. V does the arithmetic, S the places.
#include "common/products.h"
#include "common/rows.h"

using namespace AscendC;

struct LinearTiling {
  int64_t rows, outputs, columns; // of a group
  int64_t x_stride, x_scale_stride, weight_stride, weight_scale_stride, out_stride;
  int64_t groups;
  int32_t x_format, weight_format, out_format, reserved;
};
static_assert(sizeof(LinearTiling) == 88, "as in src/ops/linear.rs");

extern "C" __global__ __aicore__ void linear(GM_ADDR x, GM_ADDR x_scale, GM_ADDR weight, GM_ADDR weight_scale, GM_ADDR out, GM_ADDR tiling) {
  const LinearTiling t = read_tiling<LinearTiling>(tiling);
  constexpr int64_t TILE = Products::ROWS;
  TPipe pipe;
  const InfinitiesStay infinities_stay;
  Products products;
  products.init(pipe);
  const Matrix rows = {x, x_scale, t.x_stride, t.x_scale_stride, t.x_format};
  const Matrix weights = {weight, weight_scale, t.weight_stride, t.weight_scale_stride, t.weight_format};
  const Results results = {out, t.out_stride, t.out_format};
  // A group that begins inside a tile may touch one more.
  const int64_t tiles = (t.outputs + TILE - 1) / TILE + (t.groups > 1 ? 1 : 0), batches = (t.rows + TILE - 1) / TILE;
  const Run run = run_of_block(t.groups * tiles * batches);
  for (int64_t item = run.begin; item < run.end; ++item) {
    const int64_t row = item % batches * TILE, tile = item / batches % tiles, group = item / batches / tiles;
    const int64_t first = group * t.outputs, aligned = (first / TILE + tile) * TILE;
    const int64_t begin = most(first, aligned), end = least(first + t.outputs, aligned + TILE);
    if (begin >= end) continue;
    products.run(rows, row, group * t.columns, static_cast<uint32_t>(least(t.rows - row, TILE)), weights, begin, static_cast<uint32_t>(end - begin),
                 t.columns, results, begin);
  }
}
