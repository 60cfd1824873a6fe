// The experts of each row and their weights.
//
// Bytes: the logits once, K experts and weights out. A block takes a row. Scores are F64, rounded to F32 before the bias is
// added; each of K rounds finds the best expert below the one before. A softmax sums as common/reduce.cuh does; the sum of the
// chosen scores begins with the best.
#include "common/order.cuh"
#include "common/reduce.cuh"
#include "common/view.cuh"

constexpr int THREADS = 256;
// Scores beyond these are computed again in each round.
constexpr int MOST_KEPT = 8192;
enum Scoring : uint32_t { ROOT_OF_SOFTPLUS, SIGMOID, SOFTMAX };

// The largest value of the block, in all threads.
template <class T, class Larger> __device__ inline T block_largest(T value, T *scratch, Larger larger) {
  for (int width = 16; width > 0; width /= 2) value = larger(value, __shfl_xor_sync(0xFFFFFFFFu, value, width));
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  value = scratch[0];
  for (int warp = 1; warp < THREADS / 32; ++warp) value = larger(value, scratch[warp]);
  __syncthreads();
  return value;
}

extern "C" __global__ void __launch_bounds__(THREADS)
moe_gate(View logits, View bias, View bias_vl, View image_mask, View experts, View weights, uint32_t scoring, uint32_t normalize,
         float route_scale, uint32_t *) {
  __shared__ float kept[MOST_KEPT];
  __shared__ double scratch[THREADS / 32];
  __shared__ unsigned long long ranks[THREADS / 32];
  const int64_t row = blockIdx.x, count = logits.columns(), chosen = experts.columns();
  const float *z = logits.at<float>(row * logits.stride[2]);
  const bool is_image = !image_mask.is_absent() && *image_mask.at<uint8_t>(row * image_mask.stride[3]) != 0;
  const float *added = is_image && !bias_vl.is_absent() ? bias_vl.at<float>() : bias.at<float>();

  double largest = __longlong_as_double(0xFFF0000000000000ll), sum = 0;
  if (scoring == SOFTMAX) {
    // `fmax` drops a NaN, but the exponentials keep it.
    for (int64_t e = threadIdx.x; e < count; e += THREADS) largest = fmax(largest, double(z[e]));
    largest = block_largest(largest, scratch, [](double a, double b) { return fmax(a, b); });
    for (int64_t e = threadIdx.x; e < count; e += THREADS) sum += exp(double(z[e]) - largest);
    sum = block_sum<THREADS>(sum, scratch);
  }
  const auto compute = [&](int64_t e) {
    const double x = z[e];
    if (scoring == ROOT_OF_SOFTPLUS) return float(sqrt(x > 20.0 ? x : log1p(exp(x))));
    if (scoring == SIGMOID) return float(1.0 / (1.0 + exp(-x)));
    return float(exp(x - largest) / sum);
  };
  const bool are_kept = count <= MOST_KEPT;
  const auto score = [&](int64_t e) { return are_kept ? kept[e] : compute(e); };
  if (are_kept) {
    for (int64_t e = threadIdx.x; e < count; e += THREADS) kept[e] = compute(e);
  }
  __syncthreads();

  int32_t *names = experts.at<int32_t>(row * experts.stride[2]);
  double total = 0;
  unsigned long long last = ~0ull;
  for (int64_t k = 0; k < chosen; ++k) {
    unsigned long long best = 0;
    for (int64_t e = threadIdx.x; e < count; e += THREADS) {
      const float biased = __fadd_rn(score(e), added[e]);
      // Of equal values the lower expert ranks higher; no rank is 0.
      const unsigned long long rank = (unsigned long long)(order_of(biased)) << 32 | (0xFFFFFFFFu - uint32_t(e));
      if (rank < last) best = max(best, rank);
    }
    last = block_largest(best, ranks, [](unsigned long long a, unsigned long long b) { return max(a, b); });
    const uint32_t e = 0xFFFFFFFFu - uint32_t(last);
    total += score(e);
    if (threadIdx.x == 0) names[k] = int32_t(e);
  }
  __syncthreads();
  const double divisor = normalize != 0 && chosen > 1 ? total + 1e-20 : 1.0;
  for (int64_t k = threadIdx.x; k < chosen; k += THREADS) {
    weights.at<float>(row * weights.stride[2])[k] = float(double(route_scale) * double(score(names[k])) / divisor);
  }
}
