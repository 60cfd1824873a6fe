// Scores of cached index keys against the index queries of each row, in F64: F32 operands, and shapes that `index_scores.cu` does not take.
//
// Bytes: the keys that a row sees once per row (rows of a request follow each other and find them in L2), q once per 64
// columns, a score out. Flops: 2 per head, entry and channel, in F64. A block takes 64 columns of a row: tiles of 32 heads by
// 64 keys by 32 channels pass through shared memory. A thread adds the channels of its heads and keys in ascending order, then
// the heads of its eighth of each tile; the eighths are added in order. That order follows from the shapes alone.
#include "common/cache_read.cuh"

constexpr int THREADS = 256;
constexpr int KEYS = 64;
constexpr int HEADS = 32;
constexpr int CHANNELS = 32;
constexpr int PARTS = THREADS / 32;
constexpr int PART_HEADS = HEADS / PARTS;
constexpr uint32_t OP = 15;
// Places in the catalogue.
enum Argument : uint32_t { ROW_REQUEST = 6, BLOCK_TABLE = 7 };
enum Rule : uint32_t { REQUEST_WRONG = 2, PAGE_WRONG = 3 };

extern "C" __global__ void __launch_bounds__(THREADS, 2)
index_scores_wide(View q, View head_weight, View keys, View row_request, View block_table, View visible, View candidates, View out,
             int64_t dim, float scale, uint32_t format, uint32_t entries, uint32_t block_size, int64_t pieces, uint32_t *fault) {
  __shared__ double queries[CHANNELS][HEADS];
  __shared__ double channels[CHANNELS][KEYS + 1];
  __shared__ double parts[PARTS][KEYS];
  __shared__ Entry found[KEYS];
  const int64_t row = blockIdx.x / pieces, first = blockIdx.x % pieces * KEYS, columns = out.columns(), heads = head_weight.columns();
  const int lane = threadIdx.x % 32, part = threadIdx.x / 32;
  const int64_t sees = *visible.at<int32_t>(row * visible.stride[3]);
  const int64_t request = *row_request.at<int32_t>(row * row_request.stride[3]);
  float *scores = out.at<float>(row * out.stride[2]);
  if (sees > 0 && (request < 0 || request >= block_table.shape[2])) return refuse(fault, OP, ROW_REQUEST, REQUEST_WRONG);

  // The entry of each column; none has no address.
  bool is_wrong = false, is_scored = false;
  if (threadIdx.x < KEYS) {
    const int64_t column = first + threadIdx.x;
    int64_t entry = column;
    if (column < columns && !candidates.is_absent()) {
      const int64_t nth = column / block_size;
      const int64_t block = nth < candidates.columns() ? candidates.at<int32_t>(row * candidates.stride[2])[nth] : -1;
      entry = block < 0 ? -1 : block * block_size + column % block_size;
    }
    is_scored = column < columns && entry >= 0 && entry < sees;
    found[threadIdx.x] = {nullptr, nullptr};
    if (is_scored) {
      const int64_t nth = entry / entries;
      const int64_t page = nth < block_table.columns() ? block_table.at<int32_t>(request * block_table.stride[2])[nth] : -1;
      is_wrong = page < 0 || page >= keys.shape[2];
      if (is_wrong) refuse(fault, OP, BLOCK_TABLE, PAGE_WRONG);
      else found[threadIdx.x] = find_entry(keys, format, page * entries + entry % entries, entries, dim);
    }
  }
  if (__syncthreads_or(is_wrong)) return;
  double totals[2] = {};
  if (__syncthreads_or(is_scored)) {
    for (int64_t head = 0; head < heads; head += HEADS) {
      double sums[PART_HEADS][2] = {};
      for (int64_t channel = 0; channel < dim; channel += CHANNELS) {
        for (int i = threadIdx.x; i < HEADS * CHANNELS; i += THREADS) {
          const int h = i / CHANNELS, c = i % CHANNELS;
          const bool is_inside = head + h < heads && channel + c < dim;
          // Heads of q lie side by side.
          queries[c][h] = is_inside ? load_float(q, row, (head + h) * dim + channel + c) : 0.0f;
        }
        for (int i = threadIdx.x; i < KEYS * CHANNELS / 4; i += THREADS) {
          const int key = i / (CHANNELS / 4), c = i % (CHANNELS / 4) * 4;
          float v[4] = {};
          if (found[key].values != nullptr && channel + c < dim) read_entry(found[key], format, dim, channel + c, v);
#pragma unroll
          for (int j = 0; j < 4; ++j) channels[c + j][key] = v[j];
        }
        __syncthreads();
#pragma unroll 4
        for (int c = 0; c < CHANNELS; ++c) {
          const double a = channels[c][lane], b = channels[c][lane + 32];
#pragma unroll
          for (int h = 0; h < PART_HEADS; ++h) {
            const double x = queries[c][part * PART_HEADS + h];
            sums[h][0] = __fma_rn(x, a, sums[h][0]);
            sums[h][1] = __fma_rn(x, b, sums[h][1]);
          }
        }
        __syncthreads();
      }
#pragma unroll
      for (int h = 0; h < PART_HEADS; ++h) {
        const int64_t at = head + part * PART_HEADS + h;
        if (at >= heads) continue;
        const float scaled = __fmul_rn(load_float(head_weight, row, at), scale);
        const double weight = head_weight.format == BF16 ? bf16_to_f32(f32_to_bf16(scaled)) : scaled;
        // Not `fmax`, which would drop a NaN.
#pragma unroll
        for (int k = 0; k < 2; ++k) totals[k] += weight * (sums[h][k] <= 0 ? 0.0 : sums[h][k]);
      }
    }
  }
  parts[part][lane] = totals[0];
  parts[part][lane + 32] = totals[1];
  __syncthreads();
  if (threadIdx.x >= KEYS || first + threadIdx.x >= columns) return;
  double score = 0;
  for (int p = 0; p < PARTS; ++p) score += parts[p][threadIdx.x];
  scores[first + threadIdx.x] = is_scored ? float(score) : __uint_as_float(0xFF800000u);
}
