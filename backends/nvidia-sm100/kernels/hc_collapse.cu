// The weighted sum of the copies of the stream.
//
// Bytes: the copies once, one row written. A thread takes four channels of a row at a time and adds its copies in order: those of an
// F32 stream in F64; those of a BF16 one, whose result keeps 8 bits, in F32, since conversions would take longer than the memory.
#include "common/quad_access.cuh"

constexpr int THREADS = 256;

// Adds COPIES copies from `first` on, which are read at once.
template <class A, class T, int COPIES>
__device__ inline void add_copies(const View &x, const float *weight, int64_t row, int64_t first, int64_t column, T (&sums)[4]) {
  float v[COPIES][4];
#pragma unroll
  for (int c = 0; c < COPIES; ++c) A::load(row_at(x, row * x.stride[1] + (first + c) * x.stride[2], x.columns()), column, v[c]);
#pragma unroll
  for (int c = 0; c < COPIES; ++c) {
    const T w = weight[first + c];
#pragma unroll
    for (int j = 0; j < 4; ++j) sums[j] = fma_of(w, T(v[c][j]), sums[j]);
  }
}

template <class A, class T> __device__ void collapse(const View &x, const View &pre, const View &out, uint32_t pieces) {
  const int64_t row = blockIdx.x / pieces, columns = out.columns(), copies = x.shape[2];
  const float *weight = pre.at<float>(row * pre.stride[2]);
  const PlainRow to = row_at(out, row * out.stride[2], columns);
  for (int64_t column = (int64_t(blockIdx.x % pieces) * THREADS + threadIdx.x) * 4; column < columns; column += 4 * THREADS * int64_t(pieces)) {
    T sums[4] = {};
    int64_t c = 0;
    for (; c + 4 <= copies; c += 4) add_copies<A, T, 4>(x, weight, row, c, column, sums);
    for (; c < copies; ++c) add_copies<A, T, 1>(x, weight, row, c, column, sums);
    A::store(to, column, {float(sums[0]), float(sums[1]), float(sums[2]), float(sums[3])});
  }
}

// `pieces` blocks take a row, which is the slow index.
extern "C" __global__ void __launch_bounds__(THREADS, 4) hc_collapse(View x, View pre, View out, uint32_t pieces, uint32_t *) {
  const bool is_wide = are_rows_wide(x) && are_rows_wide(out);
  if (x.format == F32) is_wide ? collapse<WideF32, double>(x, pre, out, pieces) : collapse<AnyQuad, double>(x, pre, out, pieces);
  else is_wide ? collapse<WideBf16, float>(x, pre, out, pieces) : collapse<AnyQuad, float>(x, pre, out, pieces);
}
