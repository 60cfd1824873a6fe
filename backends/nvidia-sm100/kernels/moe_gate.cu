// The experts of each row and their weights.
//
// Bytes: the logits once, K experts and weights out. Scores are F64, rounded to F32 before the bias is added; of equal values the
// lower expert is better; the sum of the chosen scores begins with the best.
//
// An F64 score costs more than reading its logit a hundred times over, and only K of a row count. `moe_gate` gives a warp a few rows:
// it finds all scores roughly, with a bound on the error, and the K-th largest of what the lanes have at most: no expert that lies
// further below than twice the bound can be chosen. The few others of all its rows are computed in F64 at once, a lane for each. What
// such a bound does not hold for (NaN, large numbers) or does not narrow down goes to the general way, a warp for a row, which is that
// of a softmax too, whose sum is of all scores: lane l adds those of experts l, l + 32, ...; then a tree over the lanes.
#include "common/order.cuh"
#include "common/octet.cuh"

constexpr int THREADS = 128;
constexpr int WARPS = THREADS / 32;
// Experts of a row that are weighed roughly, and how many of them a lane has.
constexpr int MOST_SHARES = 16;
// Choices of a row that lanes hold.
constexpr int MOST_CHOSEN = 32;
// Rows of a warp at the most.
constexpr int MOST_ROWS = 4;
enum Scoring : uint32_t { ROOT_OF_SOFTPLUS, SIGMOID, SOFTMAX };

// Logits and biases of at most this magnitude: a rough score with its bias is then within ROUGH_ERROR of the true one. The softplus
// has an error of 2^-20, and so its root one of 2^-10 at the most; the sum is rounded to 2^-11.
constexpr float MOST_MAGNITUDE = 1e4f, ROUGH_ERROR = 0.002f;

struct Gate {
  View logits, bias, bias_vl, image_mask, experts, weights;
  uint32_t scoring;
  bool is_normalised;
  float route_scale;

  __device__ const float *logit(int64_t row) const { return logits.at<float>(row * logits.stride[2]); }
  __device__ const float *added(int64_t row) const {
    const bool is_image = !image_mask.is_absent() && *image_mask.at<uint8_t>(row * image_mask.stride[3]) != 0;
    return is_image && !bias_vl.is_absent() ? bias_vl.at<float>() : bias.at<float>();
  }
  __device__ int32_t *expert(int64_t row) const { return experts.at<int32_t>(row * experts.stride[2]); }

  // Without softmax.
  __device__ float score(double x) const {
    if (scoring == ROOT_OF_SOFTPLUS) return float(sqrt(x > 20.0 ? x : log1p(exp(x))));
    return float(1.0 / (1.0 + exp(-x)));
  }

  __device__ float rough_score(float x) const {
    float e, s;
    if (scoring == ROOT_OF_SOFTPLUS) {
      asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(fabsf(x) * -1.44269504f));
      asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(1.0f + e));
      asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(__fmaf_rn(s, 0.693147181f, fmaxf(x, 0.0f))));
    } else {
      asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x * -1.44269504f));
      asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(1.0f + e));
    }
    return s;
  }

  __device__ float weight(float s, double total) const {
    const double divisor = is_normalised && experts.columns() > 1 ? total + 1e-20 : 1.0;
    return float(double(route_scale) * double(s) / divisor);
  }
};

// Ranks are ordered as biased scores are; of equal ones the lower expert ranks higher. No rank is 0.
__device__ inline uint64_t rank_of(float biased, uint32_t expert) { return uint64_t(order_of(biased)) << 32 | (0xFFFFFFFFu - expert); }

__device__ inline uint64_t largest_of_warp(uint64_t value) {
  for (int width = 16; width > 0; width /= 2) value = max(value, __shfl_xor_sync(0xFFFFFFFFu, value, width));
  return value;
}

// Any row: in each of K rounds the best expert below the one before.
__device__ void choose_any(const Gate &gate, int64_t row) {
  __shared__ float kept[WARPS][32 * MOST_SHARES];
  const int lane = threadIdx.x % 32;
  const int count = int(gate.logits.columns()), chosen = int(gate.experts.columns());
  const float *z = gate.logit(row), *added = gate.added(row);
  double largest = __longlong_as_double(0xFFF0000000000000ll), sum = 0;
  if (gate.scoring == SOFTMAX) {
    // `fmax` drops a NaN, but the exponentials keep it.
    for (int e = lane; e < count; e += 32) largest = fmax(largest, double(z[e]));
    for (int width = 16; width > 0; width /= 2) largest = fmax(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, width));
    for (int e = lane; e < count; e += 32) sum += exp(double(z[e]) - largest);
    for (int width = 16; width > 0; width /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, width);
  }
  const auto compute = [&](int e) { return gate.scoring == SOFTMAX ? float(exp(double(z[e]) - largest) / sum) : gate.score(z[e]); };
  // The scores of more experts than these are computed again in each round.
  const bool are_kept = count <= 32 * MOST_SHARES;
  float *mine = kept[threadIdx.x / 32];
  __syncwarp();
  if (are_kept) for (int e = lane; e < count; e += 32) mine[e] = compute(e);
  __syncwarp();
  const auto score = [&](int e) { return are_kept ? mine[e] : compute(e); };
  double total = 0;
  uint64_t last = ~uint64_t(0);
  for (int k = 0; k < chosen; ++k) {
    uint64_t best = 0;
    for (int e = lane; e < count; e += 32) {
      const uint64_t rank = rank_of(__fadd_rn(score(e), added[e]), e);
      if (rank < last) best = max(best, rank);
    }
    last = largest_of_warp(best);
    const uint32_t e = 0xFFFFFFFFu - uint32_t(last);
    total += score(e);
    if (lane == 0) gate.expert(row)[k] = int32_t(e);
  }
  __syncwarp();
  for (int k = lane; k < chosen; k += 32) {
    gate.weights.at<float>(row * gate.weights.stride[2])[k] = gate.weight(score(gate.expert(row)[k]), total);
  }
}

// An expert that may be chosen; those of a row follow each other.
struct Candidate {
  uint64_t rank;
  uint32_t expert;
  uint16_t row;
  uint8_t begin, end;
};

// Those of up to MOST_ROWS rows, at most one for each lane.
struct Candidates {
  Candidate *list;
  float (*scores)[MOST_CHOSEN];
  int count;

  // Puts the choices of rows `first` + number in order and writes them. A lane for each candidate.
  __device__ void settle(const Gate &gate, int64_t first) {
    __syncwarp();
    const int lane = threadIdx.x % 32, chosen = int(gate.experts.columns());
    const bool is_one = lane < count;
    const Candidate mine = is_one ? list[lane] : Candidate{};
    const uint32_t e = mine.expert;
    const int64_t row = first + mine.row;
    float score = 0;
    uint64_t rank = 0;
    if (is_one) {
      score = gate.score(gate.logit(row)[e]);
      rank = rank_of(__fadd_rn(score, gate.added(row)[e]), e);
      list[lane].rank = rank;
    }
    __syncwarp();
    int place = 0;
    for (int other = mine.begin; other < mine.end; ++other) place += list[other].rank > rank;
    const bool is_chosen = is_one && place < chosen;
    if (is_chosen) scores[mine.row][place] = score;
    __syncwarp();
    if (is_chosen) {
      double total = 0;
      for (int k = 0; k < chosen; ++k) total += scores[mine.row][k];
      gate.expert(row)[place] = int32_t(e);
      gate.weights.at<float>(row * gate.weights.stride[2])[place] = gate.weight(score, total);
    }
    __syncwarp();
    count = 0;
  }
};

// Rows that are left for the general way, a bit for each.
template <int SHARES> __device__ uint32_t choose(const Gate &gate, int64_t begin, int64_t end) {
  __shared__ Candidate list[WARPS][32];
  __shared__ float scores[WARPS][MOST_ROWS][MOST_CHOSEN];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int count = int(gate.logits.columns()), chosen = int(gate.experts.columns());
  Candidates candidates = {list[warp], scores[warp], 0};
  const float lowest = __uint_as_float(0xFF800000u);
  uint32_t left = 0;
  // The logits of the next row are under way while those of this one are looked at. Most rows have the same biases.
  float next[SHARES], bias[SHARES];
  const float *latest = nullptr;
  const auto read = [&](float (&to)[SHARES], const float *from) {
#pragma unroll
    for (int i = 0; i < SHARES; ++i) to[i] = lane + 32 * i < count ? from[lane + 32 * i] : 0.0f;
  };
  if (begin < end) read(next, gate.logit(begin));
  for (int64_t row = begin; row < end; ++row) {
    const float *added = gate.added(row);
    float value[SHARES], largest = lowest;
#pragma unroll
    for (int i = 0; i < SHARES; ++i) value[i] = next[i];
    if (row + 1 < end) read(next, gate.logit(row + 1));
    if (added != latest) read(bias, added), latest = added;
    float magnitude = 0;
#pragma unroll
    for (int i = 0; i < SHARES; ++i) {
      magnitude = larger_magnitude(magnitude, larger_magnitude(value[i], bias[i]));
      value[i] = lane + 32 * i < count ? gate.rough_score(value[i]) + bias[i] : lowest;
      largest = fmaxf(largest, value[i]);
    }
    // A NaN is not below anything.
    if (!__all_sync(0xFFFFFFFFu, magnitude <= MOST_MAGNITUDE)) {
      left |= 1u << int(row - begin);
      continue;
    }
    // At least K experts have no less than the K-th largest of the lanes' largest values, if there are as many lanes with experts.
    uint32_t key = order_of(largest), threshold = 0;
    for (int k = 0; k < chosen; ++k) {
      threshold = __reduce_max_sync(0xFFFFFFFFu, key);
      if (key == threshold) key = 0;
    }
    const float bound = __uint_as_float(threshold >> 31 ? threshold ^ 0x80000000u : ~threshold) - 2.0f * ROUGH_ERROR;
    uint32_t shares = 0;
#pragma unroll
    for (int i = 0; i < SHARES; ++i) shares |= uint32_t(value[i] >= bound) << i;
    const int mine = __popc(shares);
    int before = mine;
    for (int width = 1; width < 32; width *= 2) {
      const int other = __shfl_up_sync(0xFFFFFFFFu, before, width);
      if (lane >= width) before += other;
    }
    const int all = __shfl_sync(0xFFFFFFFFu, before, 31);
    before -= mine;
    if (threshold <= order_of(lowest) || all > 32) {
      left |= 1u << int(row - begin);
      continue;
    }
    if (candidates.count + all > 32) candidates.settle(gate, begin);
    for (int at = candidates.count + before; shares != 0; shares &= shares - 1, ++at) {
      candidates.list[at] = {0, uint32_t(lane + 32 * (__ffs(shares) - 1)), uint16_t(row - begin), uint8_t(candidates.count),
                             uint8_t(candidates.count + all)};
    }
    candidates.count += all;
  }
  if (candidates.count > 0) candidates.settle(gate, begin);
  return left;
}

// A warp for every `share` rows, at most MOST_ROWS.
extern "C" __global__ void __launch_bounds__(THREADS)
moe_gate(View logits, View bias, View bias_vl, View image_mask, View experts, View weights, uint32_t scoring, uint32_t normalize,
         float route_scale, uint32_t share, uint32_t *) {
  const Gate gate = {logits, bias, bias_vl, image_mask, experts, weights, scoring, normalize != 0, route_scale};
  const int64_t begin = int64_t(warp_of_grid()) * share, end = min(begin + share, experts.shape[2]);
  const int64_t count = logits.columns();
  uint32_t left = (1u << MOST_ROWS) - 1;
  if (scoring != SOFTMAX && experts.columns() <= MOST_CHOSEN && count <= 32 * MOST_SHARES) {
    left = count <= 128   ? choose<4>(gate, begin, end)
           : count <= 256 ? choose<8>(gate, begin, end)
           : count <= 384 ? choose<12>(gate, begin, end)
                          : choose<MOST_SHARES>(gate, begin, end);
  }
  for (int64_t row = begin; row < end; ++row) if (left >> (row - begin) & 1) choose_any(gate, row);
}
