// Bytes with a pattern of four: the boundary's fill, where the runtime's own sets every byte alike.
//
// Bytes: each written once. A block has a run of pieces of 32768 bytes: V makes one piece, MTE3 writes it to every place. Pieces begin
// at multiples of the pattern.
#include "common/rows.h"
#include "common/sync.h"
#include "common/tiling.h"

using namespace AscendC;

struct FillTiling {
  int64_t bytes;
  int32_t pattern, reserved;
};
static_assert(sizeof(FillTiling) == 16, "as in src/plain.rs");

constexpr int64_t PIECE = 32768;

extern "C" __global__ __aicore__ void fill(GM_ADDR to, GM_ADDR tiling) {
  const FillTiling t = read_tiling<FillTiling>(tiling);
  TPipe pipe;
  TBuf<TPosition::VECOUT> room;
  pipe.InitBuffer(room, PIECE);
  GlobalTensor<uint8_t> target;
  target.SetGlobalBuffer(reinterpret_cast<__gm__ uint8_t *>(to));
  Duplicate(room.Get<int32_t>(), t.pattern, static_cast<int32_t>(PIECE / 4));
  order<HardEvent::V_MTE3>();
  const Run run = run_of_block((t.bytes + PIECE - 1) / PIECE);
  for (int64_t piece = run.begin; piece < run.end; ++piece) {
    const uint32_t bytes = static_cast<uint32_t>(least(t.bytes - piece * PIECE, PIECE));
    DataCopyPad(target[piece * PIECE], room.Get<uint8_t>(), DataCopyExtParams(1, bytes, 0, 0, 0));
  }
}
