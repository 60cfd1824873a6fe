// Products of rows with the rows of a matrix, a tile of 32 x 32 results at a time.
//
// Order of a sum: each 64 columns by the tree of WholeReduceSum, then these sums one after another in ascending order, for pieces of
// 128 columns, which are added in ascending order. It follows from the number of columns alone.
//
// A piece of 32 rows of weights is decoded once for up to 32 rows of x (common/tiles.h). Then V takes the rows of x one by one: each
// is multiplied with all rows of the piece, and reduced.
#pragma once

#include "tiles.h"

// One vector times all rows of a piece.
class RowProducts {
public:
  __aicore__ inline void init(AscendC::TPipe &pipe) {
    pipe.InitBuffer(products_, Tiles::ELEMENTS * 4);
    pipe.InitBuffer(sums_, Tiles::COLUMNS / LANES * Tiles::ROWS * 4);
  }

  // The products of `x` with `rows` rows of `piece`, over `columns` columns, are added to `totals`.
  __aicore__ inline void add(const AscendC::LocalTensor<float> &totals, const AscendC::LocalTensor<float> &piece, const AscendC::LocalTensor<float> &x,
                             uint32_t rows, uint32_t columns) {
    using namespace AscendC;
    constexpr uint8_t PITCH = Tiles::COLUMNS / 8;
    const LocalTensor<float> products = products_.Get<float>(), sums = sums_.Get<float>();
    const uint8_t repeats = static_cast<uint8_t>(rows);
    for (uint32_t at = 0; at < columns; at += LANES) {
      const uint64_t mask = static_cast<uint64_t>(least(columns - at, LANES));
      Mul(products[at], piece[at], x[at], mask, repeats, BinaryRepeatParams(1, 1, 1, PITCH, PITCH, 0));
    }
    vector_barrier();
    for (uint32_t part = 0; part * LANES < columns; ++part) {
      const int32_t mask = static_cast<int32_t>(least(columns - part * LANES, LANES));
      WholeReduceSum(sums[part * Tiles::ROWS], products[part * LANES], mask, repeats, 1, 1, PITCH);
    }
    vector_barrier();
    for (uint32_t part = 1; part * LANES < columns; ++part) {
      Add(sums, sums, sums[part * Tiles::ROWS], static_cast<int32_t>(rows));
      vector_barrier();
    }
    Add(totals, totals, sums, static_cast<int32_t>(rows));
  }

  // Room for a piece, for others while nothing is added.
  __aicore__ inline AscendC::LocalTensor<float> room() { return products_.Get<float>(); }

private:
  static constexpr uint32_t LANES = 64;

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
  }

  // Rows of x from `row` on, their columns from `x_column` on, times `outputs` rows of the weights from `output` on, to the same rows
  // of the results from `out_column` on. Up to 32 rows of each; of FP8_TILE32 the weights' lie in one row of tiles.
  __aicore__ inline void run(const Matrix &x, int64_t row, int64_t x_column, uint32_t rows, const Matrix &weights, int64_t output, uint32_t outputs,
                             int64_t columns, const Results &out, int64_t out_column) {
    using namespace AscendC;
    const LocalTensor<float> w = weights_.Get<float>(), of_x = rows_.Get<float>(), totals = totals_.Get<float>();
    vector_barrier();
    Duplicate(totals, 0.0f, static_cast<int32_t>(rows * ROWS));
    for (int64_t at = 0; at < columns; at += Tiles::COLUMNS) {
      const uint32_t count = static_cast<uint32_t>(least(columns - at, Tiles::COLUMNS));
      tiles_.load(w, weights, output, at, outputs, count);
      tiles_.load(of_x, x, row, x_column + at, rows, count);
      for (uint32_t i = 0; i < rows; ++i) products_.add(totals[i * ROWS], w, of_x[i * Tiles::COLUMNS], outputs, count);
    }
    vector_barrier();
    store_rows(out_, out, row, out_column, totals, rows, outputs, ROWS);
  }

private:
  Tiles tiles_;
  RowProducts products_;
  AscendC::TBuf<AscendC::TPosition::VECCALC> weights_, rows_, totals_;
  AscendC::TQue<AscendC::TPosition::VECOUT, 2> out_;
};
