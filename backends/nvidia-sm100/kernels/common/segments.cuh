// The order of a sum of products of narrow operands, which every kernel for them keeps: few rows or many, any tile.
//
// Narrow are x in BF16 or FP8 with weights in BF16, FP8 or FP4. Both enter as BF16, which holds an element times its scale exactly.
// 1. The columns are cut into segments. How many follows from their number alone.
// 2. Within a segment the tensor cores add sixteen columns after sixteen, from zero, in F32. Behind the last column are zeros. Those
//    sixteen are neighbours, except where weights are FP4: there the two products of 32 neighbours take, of each eight, columns
//    {0, 1, 4, 5} and {2, 3, 6, 7}.
// 3. The segments are added in F32, in ascending order, to the first one.
//
// An element that has codes BF16 does not hold in its row of x or of the weights (`is_ordinary`) is the sum of `exact_dot` instead.
#pragma once

#include "values.cuh"

// Segments begin at multiples of it.
constexpr int SEGMENT_STEP = 128;

// Columns of a segment, of all but the last; 0 if there are none.
__host__ __device__ constexpr int64_t segment_columns(int64_t columns) {
  const int64_t most = columns >= 2048 ? 8 : columns >= 1024 ? 4 : columns >= 512 ? 2 : 1;
  return (columns + most * SEGMENT_STEP - 1) / (most * SEGMENT_STEP) * SEGMENT_STEP;
}

// Segments of `linear` that have columns. `grouped_linear` has one segment, whatever its columns.
__host__ __device__ constexpr int64_t segments_of(int64_t columns) {
  const int64_t each = segment_columns(columns);
  return each == 0 ? 1 : (columns + each - 1) / each;
}

// Whether elements under this scale are ordinary. NaN (255) is so for x: it makes its whole row NaN on any path.
template <int F> __host__ __device__ constexpr bool is_ordinary_x(int code) { return F != FP8_ROW32 || code == 255 || (code >= 3 && code <= 246); }
template <int F> __host__ __device__ constexpr bool is_ordinary_weight(int code) {
  return F == FP8_TILE32 ? code >= 32 && code <= 134 : F == FP4_ROW32 ? code >= 32 && code <= 128 : true;
}
