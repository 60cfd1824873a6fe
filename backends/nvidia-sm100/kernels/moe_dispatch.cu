// Rows copied to their experts, by a counting sort that keeps the order of rows.
//
// Bytes: each row read once and written once per expert, the pairs read a few times. There is no order to choose: integers are
// counted, and places follow from the list alone.
//
// With few pairs every pair has a block, which counts the pairs before it and copies the row. With many the time must not grow with
// their square: `moe_dispatch_count` ranks the pairs of a chunk among those of the same expert and leaves how many each expert has,
// `moe_dispatch_place` adds what comes before, and `moe_dispatch_copy` moves the rows. The counts stand in `row_weight` meanwhile.
#include "common/copy.cuh"
#include "common/octet.cuh"

constexpr int THREADS = 1024;
constexpr int WARPS = THREADS / 32;
constexpr int FEW_THREADS = 128;
// Pieces of 16 bytes of its row that a thread holds meanwhile.
constexpr int FEW_PARTS = 5;
constexpr int COPY_THREADS = 128;
// What a warp copies of a row at once, in bytes.
constexpr int PARTS = 4;
constexpr int64_t WARP_BYTES = PARTS * 32 * 16;
// Experts that are counted in one go.
constexpr int WINDOW = 512;
constexpr uint32_t OP = 21, EXPERTS = 1;
enum Rule : uint32_t { NOT_BELOW };

// The experts of all pairs, numbered row by row.
struct Pairs {
  const int32_t *expert;
  int64_t stride;
  uint32_t k, count;

  __device__ explicit Pairs(const View &experts)
      : expert(experts.at<int32_t>()), stride(experts.stride[2]), k(uint32_t(experts.columns())), count(uint32_t(experts.shape[2]) * k) {}

  __device__ int64_t at(uint32_t pair) const { return stride == k ? pair : int64_t(pair / k) * stride + pair % k; }
  __device__ int32_t operator[](uint32_t pair) const { return expert[at(pair)]; }
};

__device__ inline int size_of(int32_t format) { return format == F32 ? 4 : format == BF16 ? 2 : 1; }

// A block for each pair, and one more for what has none.
extern "C" __global__ void __launch_bounds__(FEW_THREADS)
moe_dispatch_few(View x, View experts, View weights, View out, View row_weight, View expert_start, View row_of, uint32_t *fault) {
  __shared__ int before, previous, wrong;
  __shared__ bool is_first;
  const Pairs pairs(experts);
  const Pairs places(row_of);
  const int32_t count = int32_t(expert_start.shape[3]) - 1;
  const uint32_t pair = blockIdx.x;
  // The row is under way while its place is looked for.
  const int size = size_of(x.format);
  const int64_t row = pair < pairs.count ? pair / pairs.k : 0, bytes = pair < pairs.count ? x.columns() * size : 0;
  const unsigned char *from = x.data + row * x.stride[2] * size;
  const bool is_wide = lies_on(from, 16) && lies_on(out.data, 16) && out.stride[2] * size % 16 == 0 && bytes % 16 == 0;
  uint4 part[FEW_PARTS];
#pragma unroll
  for (int i = 0; i < FEW_PARTS; ++i) {
    const int64_t at = (i * FEW_THREADS + threadIdx.x) * 16;
    part[i] = is_wide && at < bytes ? *reinterpret_cast<const uint4 *>(from + at) : make_uint4(0, 0, 0, 0);
  }
  // The last block stands behind all experts.
  const int32_t mine = pair < pairs.count ? pairs[pair] : count;
  if (threadIdx.x == 0) before = 0, previous = -1, wrong = 0, is_first = true;
  __syncthreads();
  int below = 0, highest = -1;
  bool is_wrong = false, has_earlier = false;
  const auto look_at = [&](uint32_t other, int32_t expert) {
    is_wrong |= expert >= count;
    if (expert < 0) return;
    const bool is_earlier = expert == mine && other < pair;
    below += expert < mine || is_earlier;
    has_earlier |= is_earlier;
    if (expert < mine) highest = max(highest, expert);
  };
  const bool is_plain = pairs.stride == pairs.k && lies_on(pairs.expert, 16);
  const uint32_t fours = is_plain ? pairs.count / 4 : 0;
#pragma unroll 4
  for (uint32_t i = threadIdx.x; i < fours; i += FEW_THREADS) {
    const int4 four = reinterpret_cast<const int4 *>(pairs.expert)[i];
    look_at(4 * i, four.x), look_at(4 * i + 1, four.y), look_at(4 * i + 2, four.z), look_at(4 * i + 3, four.w);
  }
  for (uint32_t other = 4 * fours + threadIdx.x; other < pairs.count; other += FEW_THREADS) look_at(other, pairs[other]);
  below = __reduce_add_sync(0xFFFFFFFFu, below);
  highest = __reduce_max_sync(0xFFFFFFFFu, highest);
  if (threadIdx.x % 32 == 0) {
    atomicAdd(&before, below);
    atomicMax(&previous, highest);
  }
  if (has_earlier) is_first = false;
  if (is_wrong) wrong = 1, refuse(fault, OP, EXPERTS, NOT_BELOW);
  __syncthreads();

  const int m = before;
  // Nothing is said about the rows of a call that is refused.
  const bool is_placed = mine >= 0 && mine < count && !wrong;
  if (pair < pairs.count && threadIdx.x == 0) {
    row_of.at<int32_t>()[places.at(pair)] = is_placed ? m : -1;
    if (is_placed) row_weight.at<float>()[m] = weights.at<float>()[pair / pairs.k * weights.stride[2] + pair % pairs.k];
  }
  if (wrong || mine < 0) return;
  // The first pair of an expert also writes where the experts begin that have no rows before it.
  if (is_first) {
    for (int e = previous + 1 + threadIdx.x; e <= mine; e += FEW_THREADS) expert_start.at<int32_t>()[e] = m;
  }
  if (pair == pairs.count) {
    for (uint32_t i = m + threadIdx.x; i < pairs.count; i += FEW_THREADS) row_weight.at<float>()[i] = 0.0f;
    return;
  }
  unsigned char *to = out.data + m * out.stride[2] * size;
  if (is_wide) {
#pragma unroll
    for (int i = 0; i < FEW_PARTS; ++i) {
      const int64_t at = (i * FEW_THREADS + threadIdx.x) * 16;
      if (at < bytes) *reinterpret_cast<uint4 *>(to + at) = part[i];
    }
  }
  // What is left of a long row, or a row at any address: each warp takes a part.
  const int64_t done = is_wide ? min(bytes, int64_t(FEW_PARTS) * FEW_THREADS * 16) : 0, share = (bytes - done + 511) / 512 * 128;
  const int64_t begin = done + threadIdx.x / 32 * share;
  if (begin < bytes) warp_copy(to + begin, from + begin, min(share, bytes - begin));
  if (x.format == FP8_ROW32 && threadIdx.x < 32) {
    warp_copy(matrix_scales(out, m), matrix_scales(x, row), (x.columns() + 31) / 32);
  }
}

// The pairs of a chunk of a kernel of `THREADS` threads, one per thread and round.
__device__ inline uint32_t pair_of(uint32_t rounds, uint32_t round) { return (blockIdx.x * rounds + round) * THREADS + threadIdx.x; }

// A block for each chunk of `rounds` * 1024 pairs: the rank of each among the pairs of its expert in the chunk goes to `row_of`, and
// how many each expert has to `counts`, a row for each chunk.
extern "C" __global__ void __launch_bounds__(THREADS)
moe_dispatch_count(View experts, View row_of, View counts, int32_t count, uint32_t rounds, uint32_t *fault) {
  // Pairs of an expert: in each warp, later in the warps before it; and in the rounds before.
  __shared__ uint16_t seen[WARPS][WINDOW];
  __shared__ uint32_t before[WINDOW];
  const Pairs pairs(experts), places(row_of);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  bool is_wrong = false;
  // Without experts a window is looked through all the same.
  for (int32_t window = 0; window == 0 || window < count; window += WINDOW) {
    uint32_t total = 0;
    for (uint32_t round = 0; round < rounds; ++round) {
      for (int i = threadIdx.x; i < WARPS * WINDOW / 2; i += THREADS) reinterpret_cast<uint32_t *>(seen)[i] = 0;
      __syncthreads();
      const uint32_t pair = pair_of(rounds, round);
      const int32_t expert = pair < pairs.count ? pairs[pair] : -1, e = expert - window;
      is_wrong |= expert >= count;
      const bool is_counted = expert >= window && expert < count && e < WINDOW;
      const uint32_t equals = __match_any_sync(0xFFFFFFFFu, is_counted ? e : -1);
      const int rank = __popc(equals & ((1u << lane) - 1));
      if (is_counted && rank == 0) seen[warp][e] = uint16_t(__popc(equals));
      __syncthreads();
      if (threadIdx.x < WINDOW) {
        before[threadIdx.x] = total;
        uint32_t sum = 0;
#pragma unroll 8
        for (int w = 0; w < WARPS; ++w) {
          const uint32_t here = seen[w][threadIdx.x];
          seen[w][threadIdx.x] = uint16_t(sum);
          sum += here;
        }
        total += sum;
      }
      __syncthreads();
      if (is_counted) row_of.at<int32_t>()[places.at(pair)] = int32_t(before[e] + seen[warp][e]) + rank;
      else if (pair < pairs.count && (expert < 0 || expert >= count)) row_of.at<int32_t>()[places.at(pair)] = -1;
      __syncthreads();
    }
    const int32_t e = window + int32_t(threadIdx.x);
    if (threadIdx.x < WINDOW && e < count) counts.at<uint32_t>()[int64_t(blockIdx.x) * count + e] = total;
  }
  if (is_wrong) refuse(fault, OP, EXPERTS, NOT_BELOW);
}

// A block for each chunk: adds to the ranks the pairs of lower experts, and those of the same expert in earlier chunks.
extern "C" __global__ void __launch_bounds__(THREADS)
moe_dispatch_place(View experts, View row_of, View counts, View expert_start, int32_t count, uint32_t rounds, uint32_t *) {
  __shared__ uint32_t offset[WINDOW], half[2][WINDOW], warp_total[WINDOW / 32];
  const Pairs pairs(experts), places(row_of);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t lower = 0;
  for (int32_t window = 0; window < count; window += WINDOW) {
    // Half of the threads sum the even chunks, half the odd ones.
    const int32_t e = window + int32_t(threadIdx.x % WINDOW);
    uint32_t all = 0, earlier = 0;
    if (e < count) {
#pragma unroll 8
      for (uint32_t chunk = threadIdx.x / WINDOW; chunk < gridDim.x; chunk += THREADS / WINDOW) {
        const uint32_t here = counts.at<uint32_t>()[int64_t(chunk) * count + e];
        all += here;
        earlier += chunk < blockIdx.x ? here : 0;
      }
    }
    if (threadIdx.x >= WINDOW) half[0][e - window] = all, half[1][e - window] = earlier;
    __syncthreads();
    uint32_t inclusive = 0;
    if (threadIdx.x < WINDOW) {
      all += half[0][threadIdx.x], earlier += half[1][threadIdx.x];
      inclusive = all;
      for (int width = 1; width < 32; width *= 2) {
        const uint32_t other = __shfl_up_sync(0xFFFFFFFFu, inclusive, width);
        if (lane >= width) inclusive += other;
      }
      if (lane == 31) warp_total[warp] = inclusive;
    }
    __syncthreads();
    uint32_t window_total = 0, begin = lower;
    for (int w = 0; w < WINDOW / 32; ++w) {
      if (w < warp) begin += warp_total[w];
      window_total += warp_total[w];
    }
    if (threadIdx.x < WINDOW) {
      begin += inclusive - all;
      offset[threadIdx.x] = begin + earlier;
      if (blockIdx.x == 0 && e < count) expert_start.at<int32_t>()[e] = int32_t(begin);
    }
    lower += window_total;
    __syncthreads();
    for (uint32_t round = 0; round < rounds; ++round) {
      const uint32_t pair = pair_of(rounds, round);
      const int32_t expert = pair < pairs.count ? pairs[pair] : -1;
      if (expert >= window && expert < count && expert - window < WINDOW) {
        row_of.at<int32_t>()[places.at(pair)] += int32_t(offset[expert - window]);
      }
    }
    __syncthreads();
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) expert_start.at<int32_t>()[count] = int32_t(lower);
}

// A warp for each of `pieces` pieces of each row, which it writes as often as the row has experts. Rows lie on whole bytes: no format
// of them is packed.
extern "C" __global__ void __launch_bounds__(COPY_THREADS)
moe_dispatch_copy(View x, View weights, View row_of, View expert_start, View out, View row_weight, uint32_t pieces, uint32_t *) {
  const int64_t thread = int64_t(blockIdx.x) * COPY_THREADS + threadIdx.x;
  const uint32_t item = warp_of_grid(), row = item / pieces, piece = item - row * pieces;
  const int lane = threadIdx.x % 32;
  const int64_t count = *expert_start.at<int32_t>(expert_start.shape[3] - 1);
  for (int64_t m = thread; m < row_weight.shape[3]; m += int64_t(gridDim.x) * COPY_THREADS) {
    if (m >= count) row_weight.at<float>()[m] = 0.0f;
  }
  if (row >= x.shape[2]) return;
  const int size = size_of(x.format), k = int(row_of.columns());
  const int64_t first = int64_t(piece) * WARP_BYTES, bytes = min(x.columns() * size - first, WARP_BYTES);
  const unsigned char *from = x.data + row * x.stride[2] * size + first;
  const bool is_wide = lies_on(from, 16) && lies_on(out.data, 16) && out.stride[2] * size % 16 == 0 && bytes % 16 == 0;
  uint4 part[PARTS];
#pragma unroll
  for (int i = 0; i < PARTS; ++i) {
    const int at = (i * 32 + lane) * 16;
    part[i] = is_wide && at < bytes ? *reinterpret_cast<const uint4 *>(from + at) : make_uint4(0, 0, 0, 0);
  }
  for (int begin = 0; begin < k; begin += 32) {
    const int32_t mine = begin + lane < k ? row_of.at<int32_t>(row * row_of.stride[2])[begin + lane] : -1;
    if (piece == 0 && mine >= 0) row_weight.at<float>()[mine] = weights.at<float>(row * weights.stride[2])[begin + lane];
    for (int j = 0; j < min(32, k - begin); ++j) {
      const int64_t m = __shfl_sync(0xFFFFFFFFu, mine, j);
      if (m < 0) continue;
      unsigned char *to = out.data + m * out.stride[2] * size + first;
      if (is_wide) {
#pragma unroll
        for (int i = 0; i < PARTS; ++i) {
          const int at = (i * 32 + lane) * 16;
          if (at < bytes) *reinterpret_cast<uint4 *>(to + at) = part[i];
        }
      } else {
        warp_copy(to, from, bytes);
      }
      if (piece == 0 && x.format == FP8_ROW32) {
        warp_copy(matrix_scales(out, m), matrix_scales(x, row), (x.columns() + 31) / 32);
      }
    }
  }
}
