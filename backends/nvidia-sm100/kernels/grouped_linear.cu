// out = x times the transposed weights of the expert that the row belongs to, where x or the weights are F32.
//
// Bytes: the weights of every expert that has rows, once per four rows (from L2 where rows are neighbours), x once per 32
// outputs, out once. Flops: 2 M O K, in F64. A row's sum has the order of common/product.cuh wherever the row lies.
#include "common/experts.cuh"
#include "common/product.cuh"

constexpr int THREADS = 256;
constexpr int BLOCK_OUTPUTS = THREADS / 32 * OUTPUTS;

// The weights of experts `first` to `first` + `count` - 1; `tiles` row tiles of a block of outputs are neighbours in the grid.
extern "C" __global__ void __launch_bounds__(THREADS)
grouped_linear(View x, View expert_start, View out, const __grid_constant__ Matrices weights, int64_t first, int64_t count,
               int64_t tiles, uint32_t *fault) {
  if (!are_starts_valid<THREADS>(expert_start, x, fault)) return;
  const int64_t experts = expert_start.shape[3] - 1;
  const auto start = [&](int64_t e) { return int64_t(expert_begin(expert_start, e)); };

  const int64_t output = blockIdx.x / tiles * BLOCK_OUTPUTS + threadIdx.x / 32 * OUTPUTS, outputs = out.columns();
  if (output >= outputs) return;
  const int some = int(min(int64_t(OUTPUTS), outputs - output));
  int64_t row = blockIdx.x % tiles * MOST_ROWS;
  const int64_t end = min(row + MOST_ROWS, start(experts));
  while (row < end) {
    // The last expert that begins at or before the row: those without rows begin where the next one does.
    int64_t expert = 0, beyond = experts;
    while (beyond - expert > 1) {
      const int64_t middle = (expert + beyond) / 2;
      if (start(middle) <= row) expert = middle;
      else beyond = middle;
    }
    const int64_t next = min(end, start(expert + 1));
    if (expert >= first && expert < first + count && (x.format == F32 || weights.of[expert - first].format == F32)) {
      multiply(matrix_of(x), weights.of[expert - first], {row, 0, x.columns(), output, output, int(next - row), some}, out);
    }
    row = next;
  }
}
