// weight * x / sqrt(mean of squares + eps), row by row.
//
// Bytes: the row read and written. A block takes a row at a time, some rows if there are many; a thread keeps its octet of the
// row in registers between the sum and the product, those beyond one it reads again.
//
// Order of the sum: thread t of T adds the squares of octets t, t + T, t + 2T, ... element by element; then a tree over the lanes of
// a warp, and one over the warps. T follows from the number of columns. In F64, where squares of finite values do not overflow. Its
// conversions run at an eighth of the rate of its products: a BF16 value becomes F64 by a shift and one exact product.
#include "common/exponential.cuh"
#include "common/moved.cuh"

constexpr int MOST_THREADS = 1024;
// Octets that a thread keeps.
constexpr int KEPT = 1;

// Adds the squares of an octet, one after the other.
template <int F> __device__ inline double add_squares(double sum, const Octet<F> &octet) {
  if constexpr (F == BF16) {
    if (largest_bits(octet) < 0x7F80) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const double low = moved_magnitude<false>(octet.word[i]) * moved_scale(), high = moved_magnitude<true>(octet.word[i]) * moved_scale();
        sum = __fma_rn(high, high, __fma_rn(low, low, sum));
      }
      return sum;
    }
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) sum = __fma_rn(double(octet[i]), double(octet[i]), sum);
  return sum;
}

// weight * (x * factor), rounded to F32.
template <int F, int W> __device__ inline void scale_octet(const Octet<F> &octet, const Octet<W> &weight, double factor, float (&v)[8]) {
  if constexpr (F == BF16) {
    if (largest_bits(octet) < 0x7F80) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t pair = octet.word[i];
        const double low = moved_magnitude<false>(pair) * moved_scale(), high = moved_magnitude<true>(pair) * moved_scale();
        v[2 * i] = float(double(weight[2 * i]) * (low * factor));
        v[2 * i + 1] = float(double(weight[2 * i + 1]) * (high * factor));
        v[2 * i] = __uint_as_float(__float_as_uint(v[2 * i]) ^ (pair << 16 & 0x80000000u));
        v[2 * i + 1] = __uint_as_float(__float_as_uint(v[2 * i + 1]) ^ (pair & 0x80000000u));
      }
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = float(double(weight[i]) * (double(octet[i]) * factor));
}

// The sum of every thread's value, in all threads. `scratch` has a place for each warp.
__device__ inline double sum_over_block(double value, double *scratch) {
  for (int width = 16; width > 0; width /= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, width);
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  if (warps == 1) return value;
  if (lane == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  value = lane < warps ? scratch[lane] : 0.0;
  for (int width = 16; width > 0; width /= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, width);
  return value;
}

// Rows `row` to `end` - 1.
template <int X, int W, bool IS_WHOLE> __device__ void normalise(const View &x, const View &weight, const View &out, float eps, int64_t row, int64_t end) {
  __shared__ double scratch[2][MOST_THREADS / 32];
  const int columns = int(x.columns()), step = int(blockDim.x) * 8, first = int(threadIdx.x) * 8;
  // Rows at odd addresses are read twice.
  constexpr int HELD = IS_WHOLE ? KEPT : 0;
  const auto read = [&](int64_t of, int column) {
    return read_octet<X, IS_WHOLE>(matrix_row<X>(x, of) + int64_t(column) * octet_bytes<X>() / 8, of < end ? columns - column : 0);
  };
  const auto read_weight = [&](int column) {
    return read_octet<W, IS_WHOLE>(weight.data + int64_t(column) * octet_bytes<W>() / 8, columns - column);
  };
  // The next row is under way while this one is summed, if registers allow it.
  constexpr bool IS_AHEAD = X == BF16;
  Octet<X> kept[KEPT], next[KEPT];
#pragma unroll
  for (int i = 0; i < HELD; ++i) next[i] = read(row, first + i * step);
  const double inverse_columns = close_inverse_of(double(columns));
#pragma unroll 1
  for (int turn = 0; row < end; ++row, turn ^= 1) {
#pragma unroll
    for (int i = 0; i < HELD; ++i) kept[i] = next[i];
    if constexpr (IS_AHEAD) {
#pragma unroll
      for (int i = 0; i < HELD; ++i) next[i] = read(row + 1, first + i * step);
    }
    double sum = 0;
#pragma unroll
    for (int i = 0; i < HELD; ++i) sum = add_squares<X>(sum, kept[i]);
    for (int column = first + HELD * step; column < columns; column += step) sum = add_squares<X>(sum, read(row, column));
    sum = sum_over_block(sum, scratch[turn]);

    // Zeros stay zeros whatever eps is. An infinite sum has an infinity or NaN in it.
    const bool is_finite = sum < __longlong_as_double(0x7FF0000000000000ll);
    // Squares of F32 values are normal numbers of F64. All threads compute the factor: it is a few steps.
    const double mean = sum * inverse_columns + double(eps);
    double factor = sum == 0 ? 0.0 : mean >= 0x1p1000 ? 0.0 : inverse_root_of(mean);
    if (!is_finite) factor = __longlong_as_double(0x7FF8000000000000ll);

    unsigned char *to = matrix_row<X>(out, row);
    const auto write_product = [&](int column, const Octet<X> &octet, const Octet<W> &gain) {
      float product[8];
      scale_octet<X, W>(octet, gain, factor, product);
      write_octet<X, IS_WHOLE>(to + int64_t(column) * octet_bytes<X>() / 8, columns - column, octet_of<X>(product));
    };
#pragma unroll
    for (int i = 0; i < HELD; ++i) write_product(first + i * step, kept[i], read_weight(first + i * step));
    for (int column = first + HELD * step; column < columns; column += step) write_product(column, read(row, column), read_weight(column));
    if constexpr (!IS_AHEAD) {
#pragma unroll
      for (int i = 0; i < HELD; ++i) next[i] = read(row + 1, first + i * step);
    }
  }
}

template <int X, int W> __device__ void normalise_as(const View &x, const View &weight, const View &out, float eps, int64_t row, int64_t end) {
  if (has_whole_octets<X>(x) && has_whole_octets<X>(out) && lies_on(weight.data, 16)) return normalise<X, W, true>(x, weight, out, eps, row, end);
  normalise<X, W, false>(x, weight, out, eps, row, end);
}

// On Hopper more blocks at once pay; the compiler needs more registers for Blackwell, where nothing was measured.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
#define MOST_REGISTERS
#else
#define MOST_REGISTERS __maxnreg__(48)
#endif

// A block for every `share` rows, of as many threads as an octet each covers a row with: a multiple of 32, at most 1024.
extern "C" __global__ void MOST_REGISTERS rms_norm(View x, View weight, View out, float eps, uint32_t share, uint32_t *) {
  const int64_t row = int64_t(blockIdx.x) * share, end = min(row + share, x.shape[2]);
  if (x.format == BF16) {
    if (weight.format == BF16) normalise_as<BF16, BF16>(x, weight, out, eps, row, end);
    else normalise_as<BF16, F32>(x, weight, out, eps, row, end);
  } else {
    if (weight.format == BF16) normalise_as<F32, BF16>(x, weight, out, eps, row, end);
    else normalise_as<F32, F32>(x, weight, out, eps, row, end);
  }
}
