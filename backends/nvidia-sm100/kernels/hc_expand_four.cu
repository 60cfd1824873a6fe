// The four copies of the stream mixed with each other and with a sublayer's output, in place.
//
// Bytes: the copies read and written, y read. A thread takes four channels of a row at a time: it reads their copies, then adds post * y
// and the copies in order, those of an F32 stream in F64, those of a BF16 one in F32 (as hc_collapse.cu). The coefficients of the row stay in registers. hc_expand.cu has any number of copies.
#include "common/quad_access.cuh"

constexpr int THREADS = 256, COPIES = 4;

template <class A, class T> __device__ void expand(const View &x, const View &y, const View &post, const View &comb, uint32_t pieces) {
  const int64_t row = blockIdx.x / pieces, columns = x.columns();
  float added[COPIES], mixed[COPIES][COPIES];
#pragma unroll
  for (int j = 0; j < COPIES; ++j) added[j] = post.at<float>(row * post.stride[2])[j];
#pragma unroll
  for (int i = 0; i < COPIES; ++i) {
#pragma unroll
    for (int j = 0; j < COPIES; ++j) mixed[i][j] = comb.at<float>(row * comb.stride[1] + i * comb.stride[2])[j];
  }
  const auto copy = [&](int i) { return row_at(x, row * x.stride[1] + i * x.stride[2], columns); };
  const PlainRow output = row_at(y, row * y.stride[2], columns);
  for (int64_t column = (int64_t(blockIdx.x % pieces) * THREADS + threadIdx.x) * 4; column < columns; column += 4 * THREADS * int64_t(pieces)) {
    float v[COPIES][4], w[4];
    A::load(output, column, w);
#pragma unroll
    for (int i = 0; i < COPIES; ++i) A::load(copy(i), column, v[i]);
#pragma unroll
    for (int j = 0; j < COPIES; ++j) {
      float out[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        T sum = mul_of(T(added[j]), T(w[k]));
#pragma unroll
        for (int i = 0; i < COPIES; ++i) sum = fma_of(T(mixed[i][j]), T(v[i][k]), sum);
        out[k] = float(sum);
      }
      A::store(copy(j), column, out);
    }
  }
}

// `pieces` blocks take a row, which is the slow index.
extern "C" __global__ void __launch_bounds__(THREADS, 2) hc_expand_four(View x, View y, View post, View comb, uint32_t pieces, uint32_t *) {
  const bool is_wide = are_rows_wide(x) && are_rows_wide(y);
  if (x.format == F32) is_wide ? expand<WideF32, double>(x, y, post, comb, pieces) : expand<AnyQuad, double>(x, y, post, comb, pieces);
  else is_wide ? expand<WideBf16, float>(x, y, post, comb, pieces) : expand<AnyQuad, float>(x, y, post, comb, pieces);
}
