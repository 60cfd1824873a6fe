// The gated n-gram value added to every copy of the stream, in place.
//
// Bytes: x read and written, kv and the gains read; the second reading of x comes from the caches. A block takes a copy of a row
// whatever the batch. Its three sums are in F64 and in the order of common/reduce.cuh.
#include "common/reduce.cuh"
#include "common/values.cuh"

constexpr int THREADS = 256;

extern "C" __global__ void __launch_bounds__(THREADS)
engram_gate(View x, View kv, View q_weight, View k_weight, View image_mask, float eps, uint32_t *) {
  __shared__ double scratch[THREADS / 32];
  const int64_t copies = x.shape[2], columns = x.columns(), row = blockIdx.x / copies, copy = blockIdx.x % copies;
  double dot = 0, x_squares = 0, key_squares = 0;
  for (int64_t c = threadIdx.x; c < columns; c += THREADS) {
    const double v = load_float(x, row * copies + copy, c), key = load_float(kv, row, copy * columns + c);
    const double gain = double(load_float(q_weight, copy, c)) * double(load_float(k_weight, copy, c));
    dot += v * gain * key;
    x_squares += v * v;
    key_squares += key * key;
  }
  dot = block_sum<THREADS>(dot, scratch);
  x_squares = block_sum<THREADS>(x_squares, scratch);
  key_squares = block_sum<THREADS>(key_squares, scratch);
  const auto rstd = [&](double squares) { return 1.0 / sqrt(squares / double(columns) + double(eps)); };
  dot = dot * rstd(x_squares) * rstd(key_squares) / sqrt(double(columns));
  // The comparison lets a NaN through.
  const double magnitude = fabs(dot) < 1e-6 ? 1e-6 : fabs(dot);
  const bool is_image = !image_mask.is_absent() && image_mask.at<uint8_t>()[row] != 0;
  const double gate = is_image ? 0.0 : 1.0 / (1.0 + exp(-copysign(sqrt(magnitude), dot)));
  for (int64_t c = threadIdx.x; c < columns; c += THREADS) {
    const double v = load_float(x, row * copies + copy, c), value = load_float(kv, row, copies * columns + c);
    store_float(x, row * copies + copy, c, float(v + gate * value));
  }
}
