// Entry positions of a request to cache slots, through its page table.
//
// Bytes: a position read and a slot written; a page is read from the table for each position. A block has a run of pieces of up to
// 2048 positions of a row. Scalar: each number is a look-up behind a division, and a wrong one has to be named; the vector pipe has
// nothing to do. There is no sum.
#include "common/faults.h"
#include "common/index_piece.h"
#include "common/rows.h"
#include "common/tiling.h"

using namespace AscendC;

struct ConvertKvIndexTiling {
  int64_t rows, columns, position_stride, slot_stride;
  int64_t requests, pages, table_stride;
  uint32_t entries, reserved;
};
static_assert(sizeof(ConvertKvIndexTiling) == 64, "as in src/ops/convert_kv_index.rs");

constexpr uint32_t OP = 13;
// Places in the catalogue.
enum Argument : uint32_t { POSITIONS, ROW_REQUEST, BLOCK_TABLE };
enum Rule : uint32_t { NO_ENTRIES, REQUEST_NEGATIVE, REQUEST_ABOVE, POSITION_BEYOND, PAGE_NEGATIVE, NO_RULE = 0x7E };

class ConvertKvIndex {
public:
  __aicore__ inline void init(GM_ADDR positions, GM_ADDR row_request, GM_ADDR block_table, GM_ADDR slots, GM_ADDR faults) {
    positions_.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t *>(positions));
    row_request_.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t *>(row_request));
    block_table_.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t *>(block_table));
    slots_.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t *>(slots));
    faults_ = faults;
    piece_.init(pipe_);
    pipe_.InitBuffer(fault_, 32);
  }

  __aicore__ inline void run(const ConvertKvIndexTiling &t) {
    // Without positions a request can still be wrong: every row has a piece.
    const int64_t per_row = most(1, (t.columns + IndexPiece::MOST - 1) / IndexPiece::MOST);
    const Run run = run_of_block(t.rows * per_row);
    for (int64_t item = run.begin; item < run.end; ++item) {
      const int64_t row = item / per_row, at = (item - row * per_row) * IndexPiece::MOST;
      const int64_t request = row_request_.GetValue(row);
      if (request < 0) {
        refuse(ROW_REQUEST, REQUEST_NEGATIVE);
      } else if (request >= t.requests) {
        refuse(ROW_REQUEST, REQUEST_ABOVE);
      } else if (t.columns > 0) {
        const uint32_t count = static_cast<uint32_t>(least(t.columns - at, IndexPiece::MOST));
        piece_.load(positions_[row * t.position_stride + at], count);
        convert(request * t.table_stride, count, t);
        piece_.store(slots_[row * t.slot_stride + at], count);
      }
    }
  }

private:
  // Positions become slots. `table` is where the pages of the request begin.
  __aicore__ inline void convert(int64_t table, uint32_t count, const ConvertKvIndexTiling &t) {
    const LocalTensor<int32_t> numbers = piece_.numbers();
    for (uint32_t i = 0; i < count; ++i) {
      const int32_t position = numbers.GetValue(i);
      int64_t slot = -1;
      if (position >= 0) {
        const uint32_t nth = static_cast<uint32_t>(position) / t.entries;
        if (nth >= t.pages) {
          refuse(POSITIONS, POSITION_BEYOND);
        } else {
          const int64_t page = block_table_.GetValue(table + nth);
          slot = page * t.entries + (static_cast<uint32_t>(position) - nth * t.entries);
          if (page < 0) refuse(BLOCK_TABLE, PAGE_NEGATIVE);
          // Slots are I32: the catalogue has no rule of its own for pages beyond them.
          else if (slot > 0x7FFFFFFF) refuse(BLOCK_TABLE, NO_RULE);
        }
      }
      numbers.SetValue(i, static_cast<int32_t>(slot));
    }
  }

  __aicore__ inline void refuse(Argument argument, Rule rule) { report_fault(fault_.Get<int32_t>(), faults_, OP, argument, rule); }

  TPipe pipe_;
  IndexPiece piece_;
  TBuf<TPosition::VECOUT> fault_;
  GlobalTensor<int32_t> positions_, row_request_, block_table_, slots_;
  GM_ADDR faults_;
};

extern "C" __global__ __aicore__ void convert_kv_index(GM_ADDR positions, GM_ADDR row_request, GM_ADDR block_table, GM_ADDR slots, GM_ADDR faults,
                                                       GM_ADDR tiling) {
  const ConvertKvIndexTiling t = read_tiling<ConvertKvIndexTiling>(tiling);
  ConvertKvIndex op;
  op.init(positions, row_request, block_table, slots, faults);
  op.run(t);
}
