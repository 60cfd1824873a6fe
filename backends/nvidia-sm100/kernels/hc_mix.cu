// The mixing coefficients of a hyper-connection: two sigmoids, and a matrix balanced by Sinkhorn iterations.
//
// Bytes: a row of 2 C + C^2 numbers read and written; the time is that of 2 * iters dependent divisions. A warp takes a row, a lane
// an element of the matrix, which stays in shared memory in F64. Every lane adds the row or column of its element in ascending
// order, so that all of a sum agree and no exchange orders them.
#include "common/view.cuh"

constexpr int THREADS = 32;

__device__ inline double sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }

// Shared memory: two matrices, one read while the other is written.
extern "C" __global__ void __launch_bounds__(THREADS)
hc_mix(View mix, View rstd, View base, View scale, View pre, View post, View comb, uint32_t copies, uint32_t iters, float eps, uint32_t *) {
  extern __shared__ double matrices[];
  const int c = int(copies), elements = c * c, lane = threadIdx.x;
  double *now = matrices, *next = matrices + elements;
  const int64_t row = blockIdx.x;
  const float *m = mix.row<float>(row), *b = base.at<float>(), *gain = scale.at<float>();
  const double factor = rstd.at<float>()[row], added = eps;
  const auto logit = [&](int i, int part) { return double(m[i]) * factor * double(gain[part]) + double(b[i]); };
  for (int i = lane; i < c; i += THREADS) {
    pre.row<float>(row)[i] = float(sigmoid(logit(i, 0)) + added);
    post.row<float>(row)[i] = float(2.0 * sigmoid(logit(c + i, 1)));
  }

  // From one matrix into the other, element by element.
  const auto step = [&](auto value) {
    for (int e = lane; e < elements; e += THREADS) next[e] = value(e / c, e % c);
    double *read = now;
    now = next, next = read;
    __syncwarp();
  };
  const auto row_sum = [&](int i) {
    double sum = 0;
    for (int j = 0; j < c; ++j) sum += now[i * c + j];
    return sum;
  };
  const auto column_sum = [&](int j) {
    double sum = 0;
    for (int i = 0; i < c; ++i) sum += now[i * c + j];
    return sum;
  };
  const auto by_columns = [&](int i, int j) { return now[i * c + j] / (column_sum(j) + added); };

  step([&](int i, int j) { return logit(2 * c + i * c + j, 2); });
  step([&](int i, int j) {
    // The maximum drops a NaN, but the exponentials keep it.
    double largest = __longlong_as_double(0xFFF0000000000000ll);
    for (int k = 0; k < c; ++k) largest = fmax(largest, now[i * c + k]);
    return exp(now[i * c + j] - largest);
  });
  step([&](int i, int j) { return now[i * c + j] / row_sum(i) + added; });
  step(by_columns);
  for (uint32_t k = 1; k < iters; ++k) {
    step([&](int i, int j) { return now[i * c + j] / (row_sum(i) + added); });
    step(by_columns);
  }
  for (int e = lane; e < elements; e += THREADS) comb.row<float>(row * c + e / c)[e % c] = float(now[e]);
}
