// Rows to a scaled 8- or 4-bit format.
//
// Bytes: 2 or 4 read and about 1 or a half written per element. A warp takes 128 columns of a row, four to a lane; the largest
// magnitude of a group is found by exchange among the lanes that hold it, so that x is read once.
#include "common/encode.cuh"

constexpr int THREADS = 256;

template <int F> __device__ void quantize_piece(const View &x, const View &out, int64_t row, int64_t column) {
  const bool is_inside = column < x.columns();
  float v[4] = {};
  if (is_inside) load_quad(plain_row(x, row), column, v);
  const Quad quad = encode<F>(v);
  if (!is_inside) return;
  const int64_t at = out.row_begin(row) + column;
  store_bytes<quad_bytes<F>()>(out.data + at * quad_bytes<F>() / 4, quad.codes);
  if (column % group_of<F>() == 0) out.scale[out.scale_row_begin(row) + column / group_of<F>()] = quad.scale;
}

// A warp for each 128 columns of each row.
extern "C" __global__ void __launch_bounds__(THREADS) quantize(View x, View out, uint32_t *) {
  const int64_t pieces = (x.columns() + 127) / 128, piece = (int64_t(blockIdx.x) * THREADS + threadIdx.x) / 32;
  const int64_t row = piece / pieces, column = piece % pieces * 128 + threadIdx.x % 32 * 4;
  if (row >= x.rows()) return;
  switch (out.format) {
  case FP8_ROW32: return quantize_piece<FP8_ROW32>(x, out, row, column);
  case FP4_ROW32: return quantize_piece<FP4_ROW32>(x, out, row, column);
  case FP4_ROW16: return quantize_piece<FP4_ROW16>(x, out, row, column);
  }
}
