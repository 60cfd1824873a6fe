// Products of rows with the rows of a matrix, a tile of 32 x 32 results at a time.
//
// Order of a sum: each 64 columns by the tree of WholeReduceSum, then these sums one after another in ascending order, for pieces of
// 128 columns, which are added in ascending order. It follows from the number of columns alone.
//
// A piece of 32 rows of weights is decoded once for up to 32 rows of x (common/tiles.h). Then V multiplies all rows of the piece with
// several rows of x, one after another, and reduces the products of all of them at once.
#pragma once

#include "tiles.h"

// Vectors times all rows of a piece; room for the products of AT_ONCE vectors of 128 columns.
template <uint32_t AT_ONCE> class RowProducts {
public:
  __aicore__ inline void init(AscendC::TPipe &pipe) {
    pipe.InitBuffer(products_, AT_ONCE * Tiles::ELEMENTS * 4);
    pipe.InitBuffer(sums_, AT_ONCE * PARTS * Tiles::ROWS * 4);
  }

  // The products of `count` vectors, which lie 128 apart, with `rows` rows of `piece`, over `columns` columns, are added to as many rows
  // of `totals`, which lie 32 apart.
  __aicore__ inline void add(const AscendC::LocalTensor<float> &totals, const AscendC::LocalTensor<float> &piece, const AscendC::LocalTensor<float> &x,
                             uint32_t count, uint32_t rows, uint32_t columns) {
    const uint32_t parts = (columns + LANES - 1) / LANES;
    // The sums of a vector begin at whole blocks.
    const uint32_t at_once = rows % 8 != 0 ? 1 : static_cast<uint32_t>(least(AT_ONCE * PARTS / parts, MOST_REPEATS / rows));
    for (uint32_t first = 0; first < count; first += at_once) {
      add_some(totals[first * Tiles::ROWS], piece, x[first * Tiles::COLUMNS], static_cast<uint32_t>(least(count - first, at_once)), rows, columns);
    }
  }

  // Room for as many pieces, for others while nothing is added.
  __aicore__ inline AscendC::LocalTensor<float> room() { return products_.template Get<float>(); }

private:
  static constexpr uint32_t LANES = 64, PARTS = Tiles::COLUMNS / LANES, MOST_REPEATS = 255;

  __aicore__ inline void add_some(const AscendC::LocalTensor<float> &totals, const AscendC::LocalTensor<float> &piece,
                                  const AscendC::LocalTensor<float> &x, uint32_t count, uint32_t rows, uint32_t columns) {
    using namespace AscendC;
    constexpr uint8_t PITCH = Tiles::COLUMNS / 8, PACKED = LANES / 8;
    const LocalTensor<float> products = products_.template Get<float>(), sums = sums_.template Get<float>();
    // Parts of 64 columns, in them vectors, in them rows.
    const uint32_t all = count * rows;
    for (uint32_t at = 0; at < columns; at += LANES) {
      const uint64_t mask = static_cast<uint64_t>(least(columns - at, LANES));
      for (uint32_t i = 0; i < count; ++i) {
        Mul(products[at * all + i * rows * LANES], piece[at], x[i * Tiles::COLUMNS + at], mask, static_cast<uint8_t>(rows),
            BinaryRepeatParams(1, 1, 1, PACKED, PITCH, 0));
      }
    }
    vector_barrier();
    for (uint32_t part = 0; part * LANES < columns; ++part) {
      const int32_t mask = static_cast<int32_t>(least(columns - part * LANES, LANES));
      WholeReduceSum(sums[part * AT_ONCE * Tiles::ROWS], products[part * LANES * all], mask, static_cast<int32_t>(all), 1, 1, PACKED);
    }
    vector_barrier();
    for (uint32_t part = 1; part * LANES < columns; ++part) {
      Add(sums, sums, sums[part * AT_ONCE * Tiles::ROWS], static_cast<int32_t>(all));
      vector_barrier();
    }
    const uint64_t mask = rows;
    Add(totals, totals, sums, mask, static_cast<uint8_t>(count), BinaryRepeatParams(1, 1, 1, Tiles::ROWS / 8, Tiles::ROWS / 8, static_cast<uint8_t>(rows / 8)));
  }

  AscendC::TBuf<AscendC::TPosition::VECCALC> products_, sums_;
};

class Products {
public:
  static constexpr uint32_t ROWS = Tiles::ROWS;

  __aicore__ inline void init(AscendC::TPipe &pipe) {
    tiles_.init(pipe);
    products_.init(pipe);
    pipe.InitBuffer(weights_, Tiles::ELEMENTS * 4);
    pipe.InitBuffer(rows_, Tiles::ELEMENTS * 4);
    pipe.InitBuffer(totals_, ROWS * ROWS * 4);
    pipe.InitBuffer(out_, 2, ROWS * ROWS * 4);
    held_rows_ = 0;
  }

  // Rows of x from `row` on, their columns from `x_column` on, times `outputs` rows of the weights from `output` on, to the same rows
  // of the results from `out_column` on. Up to 32 rows of each; of FP8_TILE32 the weights' lie in one row of tiles. All calls are of one x
  // and of as many columns: few rows are decoded once for the calls that follow each other.
  __aicore__ inline void run(const Matrix &x, int64_t row, int64_t x_column, uint32_t rows, const Matrix &weights, int64_t output, uint32_t outputs,
                             int64_t columns, const Results &out, int64_t out_column) {
    using namespace AscendC;
    const LocalTensor<float> w = weights_.Get<float>(), of_x = rows_.Get<float>(), totals = totals_.Get<float>();
    const bool is_all = rows * ((columns + Tiles::COLUMNS - 1) / Tiles::COLUMNS) <= ROWS;
    const bool is_held = is_all && held_rows_ == rows && held_row_ == row && held_column_ == x_column;
    held_rows_ = is_all ? rows : 0;
    held_row_ = row;
    held_column_ = x_column;
    vector_barrier();
    Duplicate(totals, 0.0f, static_cast<int32_t>(rows * ROWS));
    for (int64_t at = 0; at < columns; at += Tiles::COLUMNS) {
      const uint32_t count = static_cast<uint32_t>(least(columns - at, Tiles::COLUMNS));
      const LocalTensor<float> piece = of_x[is_all ? static_cast<uint32_t>(at) * rows : 0];
      tiles_.load(w, weights, output, at, outputs, count);
      if (!is_held) tiles_.load(piece, x, row, x_column + at, rows, count);
      products_.add(totals, w, piece, rows, outputs, count);
    }
    vector_barrier();
    store_rows(out_, out, row, out_column, totals, rows, outputs, ROWS);
  }

private:
  Tiles tiles_;
  RowProducts<4> products_;
  AscendC::TBuf<AscendC::TPosition::VECCALC> weights_, rows_, totals_;
  AscendC::TQue<AscendC::TPosition::VECOUT, 2> out_;
  // Which of x is in rows_; no rows if not all of their columns are.
  uint32_t held_rows_;
  int64_t held_row_, held_column_;
};
