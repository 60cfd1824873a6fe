// Rows of an n-gram table side by side; zeros for a row outside the table.
//
// Bytes: each looked-up row with its scales, and its values written. A warp takes a looked-up row.
#include "common/values.cuh"

constexpr int THREADS = 256;

extern "C" __global__ void __launch_bounds__(THREADS) engram_gather(View table, View rows, View out, uint32_t *) {
  const int64_t item = (int64_t(blockIdx.x) * THREADS + threadIdx.x) / 32, lookups = rows.columns(), columns = table.columns();
  const int64_t row = item / lookups, lookup = item % lookups;
  if (row >= out.rows()) return;
  const int64_t named = rows.row<int32_t>(row)[lookup];
  const bool is_row = named >= 0 && named < table.rows();
  for (int64_t c = threadIdx.x % 32; c < columns; c += 32) {
    store_float(out, row, lookup * columns + c, is_row ? load_float(table, named, c) : 0.0f);
  }
}
