// Where the rows of each expert end, as the vendor's grouped products want it: I64, without the first start.
//
// Bytes: a start read for each expert, an end written. One block: S looks at all starts, at most 128 of them. Starts that are wrong are
// reported, and no expert has a row then, so that nobody writes.
#include "common/faults.h"
#include "common/tiling.h"

using namespace AscendC;

struct ExpertEndsTiling {
  int64_t experts, rows, reserved[2];
};
static_assert(sizeof(ExpertEndsTiling) == 32, "as in src/vendor/grouped_linear.rs");

constexpr uint32_t MOST_EXPERTS = 128;
// In the catalogue: the op, the argument expert_start, and its refusals.
constexpr uint32_t OP = 5, EXPERT_START = 1, FIRST_IS_NOT_ZERO = 0, BEYOND_ROWS = 1, DESCENDS = 2;
constexpr uint32_t NOTHING = 0xFFFFFFFFu;

extern "C" __global__ __aicore__ void expert_ends(GM_ADDR expert_start, GM_ADDR ends, GM_ADDR faults, GM_ADDR tiling) {
  const ExpertEndsTiling t = read_tiling<ExpertEndsTiling>(tiling);
  TPipe pipe;
  TBuf<TPosition::VECOUT> room, fault_room;
  pipe.InitBuffer(room, MOST_EXPERTS * 8);
  pipe.InitBuffer(fault_room, 32);
  GlobalTensor<int32_t> starts, to;
  starts.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t *>(expert_start));
  to.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t *>(ends));
  // The halves of each number.
  const LocalTensor<int32_t> halves = room.Get<int32_t>();
  const uint32_t experts = static_cast<uint32_t>(t.experts);
  int64_t last = starts.GetValue(0);
  uint32_t wrong = last == 0 ? NOTHING : FIRST_IS_NOT_ZERO;
  for (uint32_t e = 0; e < experts && wrong == NOTHING; ++e) {
    const int64_t end = starts.GetValue(e + 1);
    if (end < last) wrong = DESCENDS;
    else if (end > t.rows) wrong = BEYOND_ROWS;
    halves.SetValue(2 * e, static_cast<int32_t>(end));
    halves.SetValue(2 * e + 1, 0);
    last = end;
  }
  if (wrong != NOTHING) {
    for (uint32_t i = 0; i < 2 * experts; ++i) halves.SetValue(i, 0);
    report_fault(fault_room.Get<int32_t>(), faults, OP, EXPERT_START, wrong);
  }
  order<HardEvent::S_MTE3>();
  DataCopyPad(to, halves, DataCopyExtParams(1, experts * 8, 0, 0, 0));
}
