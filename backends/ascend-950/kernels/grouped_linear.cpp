// Products of row ranges with one weight matrix each: what runs where the vendor's grouped products are not installed.
//
// Bytes: for each 32 rows of an expert its weights once, for each 32 outputs x once. The matrices stand behind the numbers in the tiling
// struct, up to 96 of them; a call with more experts is several launches. Where the rows of an expert begin only the device knows: S
// of every block reads all starts and counts the tiles of 32 rows and 32 outputs, of which the block has a run. Starts that are wrong
// are reported by the first block, and nobody writes. The order of a sum: common/products.h.
#include "common/faults.h"
#include "common/products.h"
#include "common/rows.h"

using namespace AscendC;

struct GroupedLinearTiling {
  int64_t rows, outputs, columns, x_stride, x_scale_stride, out_stride;
  int64_t experts, first, count; // of the call; of this launch
  int32_t x_format, out_format;
};
static_assert(sizeof(GroupedLinearTiling) == 80, "as in src/ops/grouped_linear.rs");

struct ExpertMatrix {
  uint64_t data, scale;
  int64_t stride, scale_stride;
  int32_t format, reserved;
};
static_assert(sizeof(ExpertMatrix) == 40, "as in src/ops/grouped_linear.rs");

// In the catalogue: the op, the argument expert_start, and its refusals.
constexpr uint32_t OP = 5, EXPERT_START = 1, FIRST_IS_NOT_ZERO = 0, BEYOND_ROWS = 1, DESCENDS = 2;
constexpr uint32_t NOTHING = 0xFFFFFFFFu;

// Which refusal the starts meet.
__aicore__ inline uint32_t what_is_wrong(GlobalTensor<int32_t> &starts, const GroupedLinearTiling &t) {
  int64_t last = starts.GetValue(0);
  if (last != 0) return FIRST_IS_NOT_ZERO;
  for (int64_t e = 1; e <= t.experts; ++e) {
    const int64_t start = starts.GetValue(e);
    if (start < last) return DESCENDS;
    if (start > t.rows) return BEYOND_ROWS;
    last = start;
  }
  return NOTHING;
}

extern "C" __global__ __aicore__ void grouped_linear(GM_ADDR x, GM_ADDR x_scale, GM_ADDR expert_start, GM_ADDR out, GM_ADDR faults, GM_ADDR tiling) {
  const GroupedLinearTiling t = read_tiling<GroupedLinearTiling>(tiling);
  constexpr int64_t TILE = Products::ROWS;
  TPipe pipe;
  const InfinitiesStay infinities_stay;
  Products products;
  TBuf<TPosition::VECOUT> fault_room;
  products.init(pipe);
  pipe.InitBuffer(fault_room, 32);
  GlobalTensor<int32_t> starts;
  starts.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t *>(expert_start));
  const uint32_t wrong = what_is_wrong(starts, t);
  if (wrong != NOTHING) {
    if (GetBlockIdx() == 0) report_fault(fault_room.Get<int32_t>(), faults, OP, EXPERT_START, wrong);
    return;
  }
  const Matrix rows = {x, x_scale, t.x_stride, t.x_scale_stride, t.x_format};
  const Results results = {out, t.out_stride, t.out_format};
  const int64_t tiles = (t.outputs + TILE - 1) / TILE;
  int64_t items = 0;
  for (int64_t e = t.first; e < t.first + t.count; ++e) items += (starts.GetValue(e + 1) - starts.GetValue(e) + TILE - 1) / TILE * tiles;
  const Run run = run_of_block(items);
  int64_t before = 0;
  for (int64_t e = t.first; e < t.first + t.count && before < run.end; ++e) {
    const int64_t begin = starts.GetValue(e), end = starts.GetValue(e + 1), batches = (end - begin + TILE - 1) / TILE;
    const int64_t from = most(run.begin, before), to = least(run.end, before + batches * tiles);
    if (from < to) {
      const ExpertMatrix m = read_tiling<ExpertMatrix>(tiling + sizeof(GroupedLinearTiling) + (e - t.first) * static_cast<int64_t>(sizeof(ExpertMatrix)));
      const Matrix weights = {reinterpret_cast<GM_ADDR>(m.data), reinterpret_cast<GM_ADDR>(m.scale), m.stride, m.scale_stride, m.format};
      for (int64_t item = from - before; item < to - before; ++item) {
        const int64_t row = begin + item % batches * TILE, output = item / batches * TILE;
        products.run(rows, row, 0, static_cast<uint32_t>(least(end - row, TILE)), weights, output, static_cast<uint32_t>(least(t.outputs - output, TILE)),
                     t.columns, results, output);
      }
    }
    before += batches * tiles;
  }
}
