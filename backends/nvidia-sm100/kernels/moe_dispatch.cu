// Rows copied to their experts, by a counting sort that keeps the order of rows.
//
// Bytes: each row read once per expert and written as often; every expert's block reads the list of pairs twice, from L2.
// There is no order to choose: integers are counted, and places follow from the list alone.
#include "common/copy.cuh"
#include "common/order.cuh"
#include "common/view.cuh"

constexpr int THREADS = 1024;
constexpr int COPY_THREADS = 256;
constexpr uint32_t OP = 21, EXPERTS = 1;
enum Rule : uint32_t { NOT_BELOW };

// A block for each expert, and one more for the pairs without.
extern "C" __global__ void __launch_bounds__(THREADS)
moe_dispatch_sort(View experts, View weights, View row_weight, View expert_start, View row_of, uint32_t *fault) {
  __shared__ int scratch[THREADS / 32];
  const uint32_t k = uint32_t(experts.columns()), pairs = uint32_t(experts.rows()) * k;
  const int32_t count = int32_t(expert_start.shape[3]) - 1, mine = blockIdx.x;
  const auto expert_of = [&](uint32_t pair) { return experts.row<int32_t>(pair / k)[pair % k]; };
  int below = 0;
  bool is_wrong = false;
  for (uint32_t pair = threadIdx.x; pair < pairs; pair += THREADS) {
    const int32_t expert = expert_of(pair);
    below += expert >= 0 && expert < mine;
    is_wrong |= expert >= count;
  }
  if (is_wrong) refuse(fault, OP, EXPERTS, NOT_BELOW);
  const bool is_refused = __syncthreads_or(is_wrong);
  for (int width = 16; width > 0; width /= 2) below += __shfl_xor_sync(0xFFFFFFFFu, below, width);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = below;
  __syncthreads();
  int place = 0;
  for (int warp = 0; warp < THREADS / 32; ++warp) place += scratch[warp];
  __syncthreads();

  const bool is_extra = mine == count;
  if (is_refused) {
    // The copy that follows then finds no rows.
    if (is_extra) {
      for (uint32_t pair = threadIdx.x; pair < pairs; pair += THREADS) row_of.row<int32_t>(pair / k)[pair % k] = -1;
    }
    return;
  }
  if (threadIdx.x == 0) expert_start.at<int32_t>()[mine] = place;
  if (is_extra) {
    for (uint32_t m = place + threadIdx.x; m < pairs; m += THREADS) row_weight.at<float>()[m] = 0.0f;
  }
  for (uint32_t first = 0; first < pairs; first += THREADS) {
    const uint32_t pair = first + threadIdx.x;
    const int32_t expert = pair < pairs ? expert_of(pair) : count;
    if (is_extra) {
      if (expert < 0) row_of.row<int32_t>(pair / k)[pair % k] = -1;
      continue;
    }
    const Count found = count_block<THREADS>(expert == mine, scratch);
    if (expert == mine) {
      const int m = place + found.before;
      row_of.row<int32_t>(pair / k)[pair % k] = m;
      row_weight.at<float>()[m] = weights.row<float>(pair / k)[pair % k];
    }
    place += found.all;
  }
}

// A warp for each pair. Rows lie on whole bytes: no format of them is packed.
extern "C" __global__ void __launch_bounds__(COPY_THREADS) moe_dispatch_copy(View x, View row_of, View out, uint32_t *) {
  const int64_t pair = (int64_t(blockIdx.x) * COPY_THREADS + threadIdx.x) / 32, k = row_of.columns();
  if (pair >= row_of.rows() * k) return;
  const int64_t row = pair / k, m = row_of.row<int32_t>(row)[pair % k], columns = x.columns();
  if (m < 0) return;
  const int size = x.format == F32 ? 4 : x.format == BF16 ? 2 : 1;
  warp_copy(out.data + out.row_begin(m) * size, x.data + x.row_begin(row) * size, columns * size);
  if (x.format == FP8_ROW32) {
    warp_copy(out.scale + out.scale_row_begin(m), x.scale + x.scale_row_begin(row), (columns + 31) / 32);
  }
}
