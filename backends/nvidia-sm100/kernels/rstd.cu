// 1 / sqrt(mean of squares + eps) of each row.
//
// Bytes: the row once. A block takes a row whatever the batch, so that its bits do not depend on it: a larger block where there are
// many columns, so that a row alone is soon read. Thread t adds, in F64, the squares of columns 4t to 4t + 3, then of those 4 T
// further on, and so forth; the sums of the T threads are added in a tree over neighbours. A square is exact in F64.
#include "common/quad.cuh"
#include "common/reduce.cuh"

// Quads of a row that a thread has on their way at once.
constexpr int AHEAD = 5;

__device__ inline double add_squares(double sum, const float (&v)[4]) {
#pragma unroll
  for (int j = 0; j < 4; ++j) sum = __fma_rn(double(v[j]), double(v[j]), sum);
  return sum;
}

// Rows of whole quads, each on its boundary.
template <int T, class Q> __device__ double squares_of_quads(const PlainRow &row, double sum) {
  const Q *quads = reinterpret_cast<const Q *>(row.data);
  const int64_t count = row.columns / 4;
  for (int64_t first = threadIdx.x; first < count; first += AHEAD * T) {
    Q four[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) four[i] = first + i * T < count ? quads[first + i * T] : Q{};
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      if constexpr (sizeof(Q) == 16) {
        sum = add_squares(sum, {four[i].x, four[i].y, four[i].z, four[i].w});
      } else {
        sum = add_squares(sum, {__uint_as_float(four[i].x << 16), __uint_as_float(four[i].x & 0xFFFF0000u),
                                __uint_as_float(four[i].y << 16), __uint_as_float(four[i].y & 0xFFFF0000u)});
      }
    }
  }
  return sum;
}

template <int T> __device__ void inverse_root(const View &x, const View &out, float eps) {
  __shared__ double scratch[T / 32];
  const int64_t row = blockIdx.x, columns = x.columns();
  const bool is_f32 = x.format == F32;
  const PlainRow from = {x.data + row * x.stride[2] * (is_f32 ? 4 : 2), columns, is_f32};
  double sum = 0;
  if (columns % 4 == 0 && lies_on(from.data, is_f32 ? 16 : 8)) {
    sum = is_f32 ? squares_of_quads<T, float4>(from, sum) : squares_of_quads<T, uint2>(from, sum);
  } else {
    for (int64_t c = 4 * int64_t(threadIdx.x); c < columns; c += 4 * T) {
      float v[4];
      load_quad(from, c, v);
      sum = add_squares(sum, v);
    }
  }
  sum = block_sum<T>(sum, scratch);
  if (threadIdx.x == 0) out.at<float>()[row * out.stride[3]] = float(1.0 / sqrt(sum / double(columns) + double(eps)));
}

extern "C" __global__ void __launch_bounds__(256) rstd_short(View x, View out, float eps, uint32_t *) { inverse_root<256>(x, out, eps); }

extern "C" __global__ void __launch_bounds__(1024) rstd_long(View x, View out, float eps, uint32_t *) { inverse_root<1024>(x, out, eps); }
