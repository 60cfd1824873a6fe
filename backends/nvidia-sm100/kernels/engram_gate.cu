// The gated n-gram value added to every copy of the stream, in place.
//
// Bytes: x read and written, kv and the gains read; the second reading of x comes from the caches. A block takes a copy of a row
// whatever the batch. Thread t adds, in F64, columns 4t to 4t + 3, then those 4 THREADS further on, and so forth; the threads' sums
// are added in a tree over neighbours. Everything is F64 until the result is rounded.
#include "common/quad_access.cuh"
#include "common/reduce.cuh"

constexpr int THREADS = 256;

// `A` is how rows of x and kv are read, G how those of the gains are.
template <class A, class G>
__device__ void add_gated(const View &x, const View &kv, const View &q_weight, const View &k_weight, const View &image_mask, float eps) {
  __shared__ double scratch[THREADS / 32];
  const uint32_t copies = uint32_t(x.shape[2]);
  const int64_t columns = x.columns(), row = blockIdx.x / copies, copy = blockIdx.x % copies;
  const PlainRow stream = row_at(x, row * x.stride[1] + copy * x.stride[2], columns), keys = row_at(kv, row * kv.stride[2] + copy * columns, columns);
  const PlainRow values = row_at(kv, row * kv.stride[2] + copies * columns, columns);
  const PlainRow q_gains = row_at(q_weight, copy * q_weight.stride[2], columns), k_gains = row_at(k_weight, copy * k_weight.stride[2], columns);
  double dot = 0, x_squares = 0, key_squares = 0;
#pragma unroll 2
  for (int64_t c = 4 * int64_t(threadIdx.x); c < columns; c += 4 * THREADS) {
    float v[4], key[4], q_gain[4], k_gain[4];
    A::load(stream, c, v);
    A::load(keys, c, key);
    G::load(q_gains, c, q_gain);
    G::load(k_gains, c, k_gain);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const double wide = v[j], wide_key = key[j];
      dot = __fma_rn(wide * (double(q_gain[j]) * double(k_gain[j])), wide_key, dot);
      x_squares = __fma_rn(wide, wide, x_squares);
      key_squares = __fma_rn(wide_key, wide_key, key_squares);
    }
  }
  dot = block_sum<THREADS>(dot, scratch);
  x_squares = block_sum<THREADS>(x_squares, scratch);
  key_squares = block_sum<THREADS>(key_squares, scratch);
  const auto rstd = [&](double squares) { return 1.0 / sqrt(squares / double(columns) + double(eps)); };
  dot = dot * rstd(x_squares) * rstd(key_squares) / sqrt(double(columns));
  // The comparison lets a NaN through.
  const double magnitude = fabs(dot) < 1e-6 ? 1e-6 : fabs(dot);
  const bool is_image = !image_mask.is_absent() && image_mask.at<uint8_t>()[row * image_mask.stride[3]] != 0;
  const double gate = is_image ? 0.0 : 1.0 / (1.0 + exp(-copysign(sqrt(magnitude), dot)));
#pragma unroll 2
  for (int64_t c = 4 * int64_t(threadIdx.x); c < columns; c += 4 * THREADS) {
    float v[4], value[4];
    A::load(stream, c, v);
    A::load(values, c, value);
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] = float(__fma_rn(gate, double(value[j]), double(v[j])));
    A::store(stream, c, v);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
engram_gate(View x, View kv, View q_weight, View k_weight, View image_mask, float eps, uint32_t *) {
  const bool are_gains_wide = are_rows_wide(q_weight) && are_rows_wide(k_weight) && q_weight.format == BF16 && k_weight.format == BF16;
  // Keys are pieces of a row of kv: with whole quads of x they are whole too.
  const bool is_wide = are_gains_wide && are_rows_wide(x) && are_rows_wide(kv);
  if (!is_wide) add_gated<AnyQuad, AnyQuad>(x, kv, q_weight, k_weight, image_mask, eps);
  else if (x.format == F32) add_gated<WideF32, WideBf16>(x, kv, q_weight, k_weight, image_mask, eps);
  else add_gated<WideBf16, WideBf16>(x, kv, q_weight, k_weight, image_mask, eps);
}
