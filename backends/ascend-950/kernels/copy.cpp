// Bytes from one place of the device to another: the boundary's copy where an address is no multiple of 64, which the runtime's own
// does not take.
//
// Bytes: each read and written once. A block has a run of pieces of 32768 bytes: MTE2 reads, MTE3 writes. The places do not overlap.
#include "common/rows.h"
#include "common/tiling.h"

using namespace AscendC;

struct CopyTiling {
  int64_t bytes;
};
static_assert(sizeof(CopyTiling) == 8, "as in src/plain.rs");

constexpr int64_t PIECE = 32768;

extern "C" __global__ __aicore__ void copy(GM_ADDR from, GM_ADDR to, GM_ADDR tiling) {
  const CopyTiling t = read_tiling<CopyTiling>(tiling);
  TPipe pipe;
  TQueBind<TPosition::VECIN, TPosition::VECOUT, 2> pieces;
  pipe.InitBuffer(pieces, 2, PIECE);
  GlobalTensor<uint8_t> source, target;
  source.SetGlobalBuffer(reinterpret_cast<__gm__ uint8_t *>(from));
  target.SetGlobalBuffer(reinterpret_cast<__gm__ uint8_t *>(to));
  const Run run = run_of_block((t.bytes + PIECE - 1) / PIECE);
  for (int64_t i = run.begin; i < run.end; ++i) {
    const DataCopyExtParams bytes(1, static_cast<uint32_t>(least(t.bytes - i * PIECE, PIECE)), 0, 0, 0);
    LocalTensor<uint8_t> piece = pieces.AllocTensor<uint8_t>();
    DataCopyPad(piece, source[i * PIECE], bytes, DataCopyPadExtParams<uint8_t>());
    pieces.EnQue(piece);
    piece = pieces.DeQue<uint8_t>();
    DataCopyPad(target[i * PIECE], piece, bytes);
    pieces.FreeTensor(piece);
  }
}
