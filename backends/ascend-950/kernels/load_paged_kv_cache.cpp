// Cache entries decoded into rows; zeros where a slot is negative.
//
// Bytes: an entry read, a row written, once each. A block has a run of pieces of 32 rows and 128 channels. S reads the slots and says
// where entries lie, MTE2 brings them, V decodes (common/tiles.h): element times scale, rounded to F32, then to the rows' format.
#include "common/faults.h"
#include "common/rows.h"
#include "common/tiles.h"

using namespace AscendC;

struct LoadPagedKvCacheTiling {
  int64_t rows, columns, page_stride, pages, out_stride;
  uint32_t entries, format;
  int32_t out_format, reserved;
};
static_assert(sizeof(LoadPagedKvCacheTiling) == 56, "as in src/ops/load_paged_kv_cache.rs");

// In the catalogue: the op, the argument slots, and its refusal of a slot beyond the cache.
constexpr uint32_t OP = 12, SLOTS = 1, BEYOND_CACHE = 3;

extern "C" __global__ __aicore__ void load_paged_kv_cache(GM_ADDR cache, GM_ADDR slots, GM_ADDR out, GM_ADDR faults, GM_ADDR tiling) {
  const LoadPagedKvCacheTiling t = read_tiling<LoadPagedKvCacheTiling>(tiling);
  constexpr int64_t ROWS = Tiles::ROWS, COLUMNS = Tiles::COLUMNS;
  TPipe pipe;
  const InfinitiesStay infinities_stay;
  Tiles tiles;
  TBuf<TPosition::VECCALC> values_room;
  TBuf<TPosition::VECOUT> fault_room;
  TQue<TPosition::VECOUT, 2> results;
  tiles.init(pipe);
  pipe.InitBuffer(values_room, Tiles::ELEMENTS * 4);
  pipe.InitBuffer(fault_room, 32);
  pipe.InitBuffer(results, 2, Tiles::ELEMENTS * 4);
  GlobalTensor<int32_t> named;
  named.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t *>(slots));
  const Cache pages = {cache, t.page_stride, t.pages, t.columns, t.entries, t.format};
  const Results to = {out, t.out_stride, t.out_format};
  const LocalTensor<float> values = values_room.Get<float>();
  // Without channels a slot can still be wrong.
  const int64_t pieces = most(1, (t.columns + COLUMNS - 1) / COLUMNS);
  const Run run = run_of_block((t.rows + ROWS - 1) / ROWS * pieces);
  for (int64_t item = run.begin; item < run.end; ++item) {
    const int64_t row = item / pieces * ROWS, at = item % pieces * COLUMNS;
    const uint32_t rows = static_cast<uint32_t>(least(t.rows - row, ROWS)), columns = static_cast<uint32_t>(least(t.columns - at, COLUMNS));
    int64_t slot[ROWS];
    for (uint32_t i = 0; i < rows; ++i) {
      slot[i] = named.GetValue(row + i);
      if (pages.has(slot[i])) continue;
      report_fault(fault_room.Get<int32_t>(), faults, OP, SLOTS, BEYOND_CACHE);
      slot[i] = -1;
    }
    if (columns == 0) continue;
    tiles.load(values, pages, slot, at, rows, columns);
    for (uint32_t i = 0; i < rows; ++i) {
      if (slot[i] < 0) Duplicate(values[i * COLUMNS], 0.0f, static_cast<int32_t>(COLUMNS));
    }
    vector_barrier();
    store_rows(results, to, row, at, values, rows, columns, static_cast<uint32_t>(COLUMNS));
  }
}
