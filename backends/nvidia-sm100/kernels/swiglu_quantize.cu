// The gated activation of an expert, with its route weight.
//
// Bytes: gate and up read once, out written once. A warp takes 128 columns of a row, four to a lane. The activation is F64,
// rounded to F32, then as `mid` and the format of `out` say; no element depends on another but through the scale of its group.
#include "common/encode.cuh"

constexpr int THREADS = 256;

// A limit that lets NaN through.
__device__ inline double at_most(double x, double limit) { return x > limit ? limit : x; }

__device__ inline double swiglu(double gate, double up, double limit) {
  const double g = at_most(gate, limit), exponential = exp(-fabs(g));
  const double u = up < -limit ? -limit : at_most(up, limit);
  return g * ((g < 0 ? exponential : 1.0) / (1.0 + exponential)) * u;
}

// A warp for each 128 columns of each row. `limit` is infinite where there is none.
extern "C" __global__ void __launch_bounds__(THREADS)
swiglu_quantize(View gate, View up, View row_weight, View out, float limit, uint32_t mid, uint32_t *) {
  const int64_t pieces = (out.columns() + 127) / 128, piece = (int64_t(blockIdx.x) * THREADS + threadIdx.x) / 32;
  const int64_t row = piece / pieces, column = piece % pieces * 128 + threadIdx.x % 32 * 4;
  if (row >= out.rows()) return;
  const bool is_inside = column < out.columns();
  const double weight = row_weight.is_absent() ? 1.0 : double(row_weight.at<float>()[row]);
  float g[4] = {}, u[4] = {}, h[4] = {};
  if (is_inside) {
    load_quad(plain_row(gate, row), column, g);
    load_quad(plain_row(up, row), column, u);
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    // Lanes beyond the row keep zeros.
    if (column + j >= out.columns()) continue;
    h[j] = float(swiglu(g[j], u[j], limit) * weight);
    if (mid != 0) h[j] = bf16_to_f32(f32_to_bf16(h[j]));
  }
  if (out.format != FP8_ROW32) {
    if (is_inside) store_quad(plain_row(out, row), column, h);
    return;
  }
  const Quad quad = encode<FP8_ROW32>(h);
  if (!is_inside) return;
  store_bytes<4>(out.data + out.row_begin(row) + column, quad.codes);
  if (column % 32 == 0) out.scale[out.scale_row_begin(row) + column / 32] = quad.scale;
}
