// The last 2R channels of every vector turned in pairs, in place.
//
// Bytes: the turned channels read and written. A thread takes a pair of a head; it computes the sine and cosine in F64 by itself,
// about 50 operations for the 8 or 16 bytes that it moves.
#include "common/trigonometry.cuh"
#include "common/values.cuh"

constexpr int THREADS = 256;

extern "C" __global__ void __launch_bounds__(THREADS) rope(View x, View positions, View freqs, uint32_t inverse, uint32_t *) {
  const int64_t item = int64_t(blockIdx.x) * THREADS + threadIdx.x, pairs = freqs.columns(), heads = x.shape[2];
  const int64_t row = item / pairs, pair = item % pairs;
  if (row >= x.rows()) return;
  const float position = __int2float_rn(positions.at<int32_t>()[row / heads]);
  Turn turn = turn_of(__fmul_rn(position, freqs.at<float>()[pair]));
  if (inverse) turn.sine = -turn.sine;
  const int64_t column = x.columns() - 2 * (pairs - pair);
  const double a = load_float(x, row, column), b = load_float(x, row, column + 1);
  store_float(x, row, column, float(a * turn.cosine - b * turn.sine));
  store_float(x, row, column + 1, float(a * turn.sine + b * turn.cosine));
}
