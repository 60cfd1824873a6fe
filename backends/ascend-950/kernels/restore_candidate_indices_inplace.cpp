// Columns of a candidate-restricted score row to entries, in place.
//
// Bytes: a column read and an entry written; a candidate is read for each column. A block has a run of pieces of up to 2048 columns of
// a row. Scalar, as convert_kv_index is: look-ups behind a division. There is no sum.
#include "common/faults.h"
#include "common/index_piece.h"
#include "common/rows.h"
#include "common/tiling.h"

using namespace AscendC;

struct RestoreTiling {
  int64_t rows, columns, column_stride, candidates, candidate_stride;
  uint32_t block_size, reserved;
};
static_assert(sizeof(RestoreTiling) == 48, "as in src/ops/restore_candidate_indices_inplace.rs");

constexpr uint32_t OP = 18, CANDIDATES = 1;
// Entries are I32: the catalogue has no rule of its own for a block that lies beyond them.
constexpr uint32_t NO_RULE = 0x7E;

extern "C" __global__ __aicore__ void restore_candidate_indices_inplace(GM_ADDR columns, GM_ADDR candidates, GM_ADDR faults, GM_ADDR tiling) {
  const RestoreTiling t = read_tiling<RestoreTiling>(tiling);
  TPipe pipe;
  IndexPiece piece;
  TBuf<TPosition::VECOUT> fault;
  piece.init(pipe);
  pipe.InitBuffer(fault, 32);
  GlobalTensor<int32_t> list, blocks;
  list.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t *>(columns));
  blocks.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t *>(candidates));
  const int64_t per_row = (t.columns + IndexPiece::MOST - 1) / IndexPiece::MOST;
  const Run run = run_of_block(t.rows * per_row);
  const LocalTensor<int32_t> numbers = piece.numbers();
  for (int64_t item = run.begin; item < run.end; ++item) {
    const int64_t row = item / per_row, at = (item - row * per_row) * IndexPiece::MOST;
    const uint32_t count = static_cast<uint32_t>(least(t.columns - at, IndexPiece::MOST));
    piece.load(list[row * t.column_stride + at], count);
    for (uint32_t i = 0; i < count; ++i) {
      const int32_t column = numbers.GetValue(i);
      const uint32_t nth = static_cast<uint32_t>(column) / t.block_size;
      const int64_t block = column >= 0 && nth < t.candidates ? blocks.GetValue(row * t.candidate_stride + nth) : -1;
      const int64_t entry = block < 0 ? -1 : block * t.block_size + (static_cast<uint32_t>(column) - nth * t.block_size);
      if (entry > 0x7FFFFFFF) report_fault(fault.Get<int32_t>(), faults, OP, CANDIDATES, NO_RULE);
      numbers.SetValue(i, static_cast<int32_t>(entry));
    }
    piece.store(list[row * t.column_stride + at], count);
  }
}
