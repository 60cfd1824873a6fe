// The mixing coefficients of a hyper-connection of four copies: two sigmoids, and a 4 x 4 matrix balanced by Sinkhorn iterations.
//
// Bytes: a row of 24 numbers read and written; the time is that of 2 * iters dependent reciprocals. A warp takes a row. Lane l < 24
// computes the logit of element l and its exponential in F64.
//
// The balanced matrix is diag(1 / u) A diag(1 / v), where A is the softmax plus eps. Dividing the rows by (their sums + eps) is
// u[i] <- sum_j A[i, j] / v[j] + eps u[i], and dividing the columns likewise: an iteration is two products of a matrix with a
// vector and eight reciprocals, and what rounding does to u is made good when u is next computed from v, so that errors do not pile up
// over the iterations. This part is F32, with all of A in the registers of every lane, so that no exchange stands between two steps.
// Sums are fused multiply-adds in ascending order, eps last. The host sends matrices here whose eps is large enough that no
// reciprocal overflows.
#include "common/view.cuh"

constexpr int COPIES = 4, ROWS = 4;
constexpr uint32_t ALL = 0xFFFFFFFFu;

// 1 / x to a few units in the last place, for x and 1 / x in the range of normal numbers.
__device__ inline float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The same to the last place or so.
__device__ inline float refined(float y, float x) { return __fmaf_rn(y, __fmaf_rn(-x, y, 1.0f), y); }

// The row or column sums of a matrix scaled by `factor` on the other side, and their inverses, two to a division: the unit for
// reciprocals takes eight cycles for each, and all four are waited for.
template <bool BY_ROWS, bool IS_REFINED>
__device__ inline void balance(const float (&a)[COPIES][COPIES], const float (&factor)[COPIES], float eps, float (&sums)[COPIES], float (&inverse)[COPIES]) {
#pragma unroll
  for (int i = 0; i < COPIES; ++i) {
    float sum = __fmul_rn(BY_ROWS ? a[i][0] : a[0][i], factor[0]);
#pragma unroll
    for (int j = 1; j < COPIES; ++j) sum = __fmaf_rn(BY_ROWS ? a[i][j] : a[j][i], factor[j], sum);
    sums[i] = __fmaf_rn(eps, sums[i], sum);
  }
#pragma unroll
  for (int i = 0; i < COPIES; i += 2) {
    const float both = reciprocal(__fmul_rn(sums[i], sums[i + 1]));
    inverse[i] = __fmul_rn(both, sums[i + 1]), inverse[i + 1] = __fmul_rn(both, sums[i]);
    if (IS_REFINED) inverse[i] = refined(inverse[i], sums[i]), inverse[i + 1] = refined(inverse[i + 1], sums[i + 1]);
  }
}

extern "C" __global__ void __launch_bounds__(32 * ROWS)
hc_mix_four(View mix, View rstd, View base, View scale, View pre, View post, View comb, uint32_t iters, float eps, uint32_t *) {
  const int64_t row = int64_t(blockIdx.x) * ROWS + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (row >= mix.shape[2]) return;
  // Lanes 0 to 3 are pre, 4 to 7 post, 8 to 23 the matrix by rows. Lanes 24 to 31 repeat the last one.
  const int element = min(lane, 23), part = element < 4 ? 0 : element < 8 ? 1 : 2;
  const double factor = rstd.at<float>()[row * rstd.stride[3]];
  const double logit = double(mix.at<float>(row * mix.stride[2])[element]) * factor * double(scale.at<float>()[part]) + double(base.at<float>()[element]);
  // The largest of a row of the matrix, which is four neighbours. The maximum drops a NaN, but the exponentials keep it.
  double largest = fmax(logit, __shfl_xor_sync(ALL, logit, 1));
  largest = fmax(largest, __shfl_xor_sync(ALL, largest, 2));
  const double power = exp(part == 2 ? logit - largest : -logit);
  double sum = power + __shfl_xor_sync(ALL, power, 1);
  sum += __shfl_xor_sync(ALL, sum, 2);
  const double quotient = (part == 2 ? power : 1.0) / (part == 2 ? sum : 1.0 + power);
  if (part == 0) pre.at<float>(row * pre.stride[2])[element] = float(quotient + double(eps));
  if (part == 1) post.at<float>(row * post.stride[2])[element - 4] = float(2.0 * quotient);

  const float mine = float(quotient + double(eps));
  float a[COPIES][COPIES];
#pragma unroll
  for (int e = 0; e < COPIES * COPIES; ++e) a[e / COPIES][e % COPIES] = __shfl_sync(ALL, mine, 8 + e);
  float u[COPIES], v[COPIES], by_u[COPIES], by_v[COPIES];
#pragma unroll
  for (int i = 0; i < COPIES; ++i) u[i] = v[i] = by_u[i] = 1;
  // The steps that the result is made of are refined; the others are made good by them.
  if (iters == 1) {
    balance<false, true>(a, by_u, eps, v, by_v);
  } else {
    balance<false, false>(a, by_u, eps, v, by_v);
    // Once an iteration leaves all sums as they were, the others would too.
    bool is_moving = true;
#pragma unroll 1
    for (uint32_t k = 2; k < iters && is_moving; ++k) {
      const float u_before[COPIES] = {u[0], u[1], u[2], u[3]}, v_before[COPIES] = {v[0], v[1], v[2], v[3]};
      balance<true, false>(a, by_v, eps, u, by_u);
      balance<false, false>(a, by_u, eps, v, by_v);
      is_moving = false;
#pragma unroll
      for (int i = 0; i < COPIES; ++i) is_moving |= u[i] != u_before[i] || v[i] != v_before[i];
    }
    balance<true, true>(a, by_v, eps, u, by_u);
    balance<false, true>(a, by_u, eps, v, by_v);
  }
  // A lane's factors, without an index into registers.
  float left = by_u[0], right = by_v[0];
#pragma unroll
  for (int i = 1; i < COPIES; ++i) {
    left = lane / COPIES - 2 == i ? by_u[i] : left;
    right = lane % COPIES == i ? by_v[i] : right;
  }
  if (lane >= 8 && lane < 24)
    comb.at<float>(row * comb.stride[1] + (lane / COPIES - 2) * comb.stride[2])[lane % COPIES] = __fmul_rn(__fmul_rn(left, mine), right);
}
