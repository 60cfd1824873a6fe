// out = x times the transposed weights, for each block of the diagonal.
//
// Bytes: the weights once as long as all rows fit a few tiles, x once per 32 outputs (from the caches), out once. Flops: 2 T N K,
// in F64. Blocks that share weights follow each other; the order of a sum is that of common/product.cuh.
#include "common/product.cuh"

constexpr int THREADS = 256;
constexpr int BLOCK_OUTPUTS = THREADS / 32 * OUTPUTS;

// `tiles` row tiles of a block of outputs are neighbours in the grid.
extern "C" __global__ void __launch_bounds__(THREADS) linear(View x, View weight, View out, uint32_t groups, int64_t tiles, uint32_t *) {
  const int64_t outputs = weight.shape[2] / groups, blocks = (outputs + BLOCK_OUTPUTS - 1) / BLOCK_OUTPUTS;
  const int64_t row = blockIdx.x % tiles * MOST_ROWS, block = blockIdx.x / tiles, group = block / blocks;
  const int64_t first = block % blocks * BLOCK_OUTPUTS + threadIdx.x / 32 * OUTPUTS;
  if (first >= outputs) return;
  const int64_t columns = weight.columns(), output = group * outputs + first;
  const int rows = int(min(int64_t(MOST_ROWS), out.shape[2] - row)), some = int(min(int64_t(OUTPUTS), outputs - first));
  multiply(matrix_of(x), matrix_of(weight), {row, group * columns, columns, output, output, rows, some}, out);
}
