// The last 2R channels of every vector turned in pairs, in place.
//
// Bytes: the turned channels read and written. Sine and cosine, in F64, are those of a row and a pair, whatever the head: where R is
// 32 a warp takes 16 heads of a row at once, a lane computes one turn and gets those of its four pairs from other lanes. Otherwise every
// pair of every head has a thread.
#include "common/octet.cuh"
#include "common/trigonometry.cuh"

constexpr int THREADS = 128;
constexpr int PAIRS = 32;
// Heads of a warp: four at a time, each with eight lanes.
constexpr int HEADS = 16, ROUNDS = 4;

__device__ inline float angle_of(const View &positions, const View &freqs, int64_t token, int64_t pair) {
  return __fmul_rn(__int2float_rn(positions.at<int32_t>()[token]), freqs.at<float>()[pair]);
}

// (a, b) turned, each rounded to F32.
__device__ inline void turn_pair(const Turn &turn, float &a, float &b) {
  const double x = a, y = b;
  a = float(x * turn.cosine - y * turn.sine);
  b = float(x * turn.sine + y * turn.cosine);
}

template <int X> __device__ void turn_heads(const View &x, const View &positions, const View &freqs, bool is_inverse, uint32_t share) {
  const int lane = threadIdx.x % 32, heads = int(x.shape[2]);
  const uint32_t item = warp_of_grid(), groups = (uint32_t(heads) + HEADS * share - 1) / (HEADS * share), token = item / groups;
  if (token >= x.shape[1]) return;
  const int first = int(item - token * groups) * HEADS * int(share) + lane / 8, end = min(first + HEADS * int(share), heads);
  unsigned char *at = x.data + (token * x.stride[1] + x.columns() - 2 * PAIRS + lane % 8 * 8) * octet_bytes<X>() / 8;
  const auto place = [&](int head) { return at + head * x.stride[2] * octet_bytes<X>() / 8; };
  Octet<X> octet[ROUNDS];
#pragma unroll
  for (int i = 0; i < ROUNDS; ++i) octet[i] = read_octet<X, true>(place(first + 4 * i), first + 4 * i < end ? 8 : 0);
  Turn mine = turn_of(angle_of(positions, freqs, token, lane));
  if (is_inverse) mine.sine = -mine.sine;
  Turn turn[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    turn[j].sine = __shfl_sync(0xFFFFFFFFu, mine.sine, lane % 8 * 4 + j);
    turn[j].cosine = __shfl_sync(0xFFFFFFFFu, mine.cosine, lane % 8 * 4 + j);
  }
#pragma unroll 1
  for (int head = first; head < end; head += HEADS) {
    if (head > first) {
#pragma unroll
      for (int i = 0; i < ROUNDS; ++i) octet[i] = read_octet<X, true>(place(head + 4 * i), head + 4 * i < end ? 8 : 0);
    }
#pragma unroll
    for (int i = 0; i < ROUNDS; ++i) {
      float v[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) v[j] = octet[i][j];
#pragma unroll
      for (int j = 0; j < 4; ++j) turn_pair(turn[j], v[2 * j], v[2 * j + 1]);
      write_octet<X, true>(place(head + 4 * i), head + 4 * i < end ? 8 : 0, octet_of<X>(v));
    }
  }
}

// A warp for `share` times 16 heads of a row; with 0, a thread for each pair.
extern "C" __global__ void __launch_bounds__(THREADS)
rope(View x, View positions, View freqs, uint32_t inverse, uint32_t share, uint32_t *) {
  const int64_t thread = int64_t(blockIdx.x) * THREADS + threadIdx.x;
  if (share != 0) {
    if (x.format == BF16) turn_heads<BF16>(x, positions, freqs, inverse != 0, share);
    else turn_heads<F32>(x, positions, freqs, inverse != 0, share);
    return;
  }
  const int64_t pairs = freqs.columns(), heads = x.shape[2], row = thread / pairs, pair = thread % pairs;
  if (row >= x.rows()) return;
  Turn turn = turn_of(angle_of(positions, freqs, row / heads, pair));
  if (inverse) turn.sine = -turn.sine;
  const int64_t column = x.columns() - 2 * (pairs - pair);
  float a = load_float(x, row, column), b = load_float(x, row, column + 1);
  turn_pair(turn, a, b);
  store_float(x, row, column, a);
  store_float(x, row, column + 1, b);
}
