// weight * x / sqrt(mean of squares + eps), row by row.
//
// Bytes: the row read and written, once. Flops: a multiply-add and two products an element. A block of four warps takes rows one after the
// other, the next ones on their way to its shared memory; a warp takes some short rows at once.
//
// Order of the sum: place t of 128 adds the sums of octets t, t + 128, ..., each summed element by element; lane l adds places l, l + 32,
// l + 64 and l + 96, and a tree adds the lanes. In F32 as long as the mean square is far from the ends of F32. A row for which it is not,
// an infinity or NaN among them, is summed again in the same order in F64, where squares of finite values neither overflow nor vanish.
#include "common/exponential.cuh"
#include "common/octet.cuh"

constexpr int WARPS = 4, THREADS = 32 * WARPS;
// Columns of an octet for each lane of a warp, and for each place.
constexpr int WARP_STEP = 32 * 8, STEP = THREADS * 8;
// Octets that a thread of a block keeps of a row: up to 5120 columns of BF16. Rows on their way.
template <int F> constexpr int KEPT = F == BF16 ? 5 : 2;
constexpr int AHEAD = 4, PIECES = 5;

// A mean square that F32 is good for. Its inverse root is kept times 2^43: so no product of it with an element is subnormal, and the
// weight makes up for it.
constexpr double LEAST_MEAN = 0x1p-40, MOST_MEAN = 0x1p40;
constexpr float MOVE = 0x1p43f;

template <class Sum, int F> __device__ inline Sum squares_of(const Octet<F> &octet) {
  Sum sum = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if constexpr (sizeof(Sum) == 4) sum = __fmaf_rn(octet[i], octet[i], sum);
    else sum = __fma_rn(double(octet[i]), double(octet[i]), sum);
  }
  return sum;
}

template <class Sum> __device__ inline Sum sum_over_lanes(Sum value) {
#pragma unroll
  for (int width = 16; width > 0; width /= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, width);
  return value;
}

// weight * 2^-43, and whether that is exact whatever the weights are: of zeros it is not said.
template <int W> __device__ inline bool move_gains(const Octet<W> &weight, float (&gain)[8]) {
  float least = __uint_as_float(0x7F800000u);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    gain[i] = __fmul_rn(weight[i], 1.0f / MOVE);
    least = fminf(least, fabsf(gain[i]));
  }
  return least >= 0x1p-126f;
}

struct Factor {
  double exact;
  // Whether F32 is good enough.
  bool is_moved;

  __device__ float moved() const { return __fmul_rn(float(exact), MOVE); }
};

// A row of the call.
template <int X, int W, bool IS_WHOLE> struct Row {
  const unsigned char *from, *weight;
  unsigned char *to;
  int columns;
  bool is_row;

  __device__ Row(const View &x, const View &gain, const View &out, int64_t row)
      : from(matrix_row<X>(x, row)), weight(gain.data), to(matrix_row<X>(out, row)), columns(int(x.columns())), is_row(row < x.shape[2]) {}

  __device__ Octet<X> read(int column) const {
    return read_octet<X, IS_WHOLE>(from + int64_t(column) * octet_bytes<X>() / 8, is_row ? columns - column : 0);
  }
  __device__ Octet<W> gain(int column) const {
    return read_octet<W, IS_WHOLE>(weight + int64_t(column) * octet_bytes<W>() / 8, columns - column);
  }
  __device__ void write(int column, const float (&v)[8]) const {
    write_octet<X, IS_WHOLE>(to + int64_t(column) * octet_bytes<X>() / 8, columns - column, octet_of<X>(v));
  }

  // weight * (x * factor), rounded to F32 after each product.
  __device__ void scale(int column, const Octet<X> &octet, const float (&moved_gain)[8], float moved_factor) const {
    float v[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = __fmul_rn(__fmul_rn(octet[i], moved_factor), moved_gain[i]);
    write(column, v);
  }

  // The same of every `step`th octet, but for those whose bits are set in `done`; in F64 where the factor or the weights ask for it.
  __device__ void scale_rest(int first, int step, const Factor &factor, uint32_t done) const {
    const float moved_factor = factor.moved();
#pragma unroll 1
    for (int column = first; column < columns; column += step, done >>= 1) {
      if (done & 1) continue;
      const Octet<W> weights = gain(column);
      const Octet<X> octet = read(column);
      float v[8];
      if (move_gains<W>(weights, v) && factor.is_moved) {
        scale(column, octet, v, moved_factor);
        continue;
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] = float(double(weights[i]) * (double(octet[i]) * factor.exact));
      write(column, v);
    }
  }

  template <class Sum> __device__ Sum add_squares(Sum sum, int first, int step) const {
#pragma unroll 1
    for (int column = first; column < columns; column += step) sum += squares_of<Sum, X>(read(column));
    return sum;
  }
};

// The factor of a row whose squares `sums` adds, in F32 or in F64. By whole warps.
template <class Sums> __device__ inline Factor factor_of(const Sums &sums, int columns, float eps) {
  const double inverse_columns = close_inverse_of(double(columns)), mean = double(sums(0.0f)) * inverse_columns + double(eps);
  if (mean >= LEAST_MEAN && mean <= MOST_MEAN) return {inverse_root_of(mean), true};
  // Zeros stay zeros whatever eps is. An infinite sum has an infinity or NaN in it. Squares of F32 values are normal numbers of F64.
  const double sum = sums(0.0), wide = sum * inverse_columns + double(eps);
  if (!(sum < __longlong_as_double(0x7FF0000000000000ll))) return {__longlong_as_double(0x7FF8000000000000ll), false};
  return {sum == 0 || wide >= 0x1p1000 ? 0.0 : inverse_root_of(wide), false};
}

// What the threads of a block have in shared memory: their sums, of two rows in turn, and what is on its way to each.
struct Shared {
  float narrow[2][THREADS];
  double wide[2][THREADS];
  uint4 pieces[AHEAD][PIECES][THREADS];

  __device__ float *places(float, int turn) { return narrow[turn]; }
  __device__ double *places(double, int turn) { return wide[turn]; }
};

__device__ inline void copy_16(uint4 *to, const unsigned char *from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(uint32_t(__cvta_generic_to_shared(to))), "l"(from) : "memory");
}

// Rows by a block, each `gridDim`th one; the weights stay. A thread reads what it has copied itself.
template <int X, int W> __device__ void by_block(const View &x, const View &weight, const View &out, float eps, Shared &shared) {
  using R = Row<X, W, true>;
  constexpr int COUNT = KEPT<X>, EACH = octet_bytes<X>() / 16;
  static_assert(COUNT * EACH <= PIECES);
  const int first = int(threadIdx.x) * 8, columns = int(x.columns());
  const auto ask = [&](int64_t number, int place) {
    if (number < x.shape[2]) {
      const unsigned char *from = matrix_row<X>(x, number);
#pragma unroll
      for (int p = 0; p < COUNT * EACH; ++p) {
        const int column = first + p / EACH * STEP;
        if (column < columns) copy_16(&shared.pieces[place][p][threadIdx.x], from + column * octet_bytes<X>() / 8 + p % EACH * 16);
      }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
#pragma unroll 1
  for (int i = 0; i < AHEAD - 1; ++i) ask(blockIdx.x + int64_t(i) * gridDim.x, i);
  float gain[COUNT][8];
  uint32_t narrow = 0;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) narrow |= uint32_t(move_gains<W>(R(x, weight, out, 0).gain(first + i * STEP), gain[i])) << i;
  int turn = 0, place = 0;
#pragma unroll 1
  for (int64_t number = blockIdx.x; number < x.shape[2]; number += gridDim.x, turn ^= 1) {
    ask(number + int64_t(AHEAD - 1) * gridDim.x, (place + AHEAD - 1) % AHEAD);
    asm volatile("cp.async.wait_group %0;" ::"n"(AHEAD - 1) : "memory");
    const R row(x, weight, out, number);
    Octet<X> kept[COUNT] = {};
#pragma unroll
    for (int p = 0; p < COUNT * EACH; ++p) {
      if (first + p / EACH * STEP >= columns) continue;
      const uint4 four = shared.pieces[place][p][threadIdx.x];
      uint32_t *word = kept[p / EACH].word + p % EACH * 4;
      word[0] = four.x, word[1] = four.y, word[2] = four.z, word[3] = four.w;
    }
    place = (place + 1) % AHEAD;
    const auto sums = [&](auto sum) {
      auto *places = shared.places(sum, turn);
      if constexpr (sizeof(sum) == 4) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) sum += squares_of<float, X>(kept[i]);
        places[threadIdx.x] = row.add_squares(sum, first + COUNT * STEP, STEP);
      } else {
        places[threadIdx.x] = row.add_squares(sum, first, STEP);
      }
      __syncthreads();
      sum = 0;
#pragma unroll
      for (int v = 0; v < WARPS; ++v) sum += places[32 * v + threadIdx.x % 32];
      return sum_over_lanes(sum);
    };
    const Factor factor = factor_of(sums, columns, eps);
    uint32_t done = 0;
    if (factor.is_moved) {
      const float moved = factor.moved();
#pragma unroll
      for (int i = 0; i < COUNT; ++i) if (narrow >> i & 1 && first + i * STEP < columns) row.scale(first + i * STEP, kept[i], gain[i], moved);
      done = narrow;
    }
    if (done != (1u << COUNT) - 1 || first + COUNT * STEP < columns) row.scale_rest(first, STEP, factor, done);
  }
}

// Some rows by a warp, which keeps them: OCTETS octets of each a lane.
template <int X, int W, bool IS_WHOLE, int OCTETS, int ROWS>
__device__ void by_warp(const View &x, const View &weight, const View &out, float eps) {
  using R = Row<X, W, IS_WHOLE>;
  const int64_t number = int64_t(warp_of_grid()) * ROWS;
  const int first = threadIdx.x % 32 * 8, columns = int(x.columns());
  Octet<X> kept[ROWS][OCTETS];
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
#pragma unroll
    for (int v = 0; v < OCTETS; ++v) kept[r][v] = R(x, weight, out, number + r).read(first + v * WARP_STEP);
  }
  float gain[OCTETS][8];
  uint32_t narrow = 0;
#pragma unroll
  for (int v = 0; v < OCTETS; ++v) narrow |= uint32_t(move_gains<W>(R(x, weight, out, 0).gain(first + v * WARP_STEP), gain[v])) << v;
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    const R row(x, weight, out, number + r);
    if (!row.is_row) return;
    const auto sums = [&](auto sum) {
      using Sum = decltype(sum);
#pragma unroll
      for (int v = 0; v < WARPS && v < OCTETS; ++v) {
        Sum place = 0;
#pragma unroll
        for (int k = v; k < OCTETS; k += WARPS) place += squares_of<Sum, X>(kept[r][k]);
        sum += place;
      }
      return sum_over_lanes(sum);
    };
    const Factor factor = factor_of(sums, columns, eps);
    uint32_t done = 0;
    if (factor.is_moved) {
      const float moved = factor.moved();
#pragma unroll
      for (int v = 0; v < OCTETS; ++v) {
        const int column = first + v * WARP_STEP;
        if (narrow >> v & 1 && column < columns) row.scale(column, kept[r][v], gain[v], moved);
      }
      done = narrow;
    }
    if (done != (1u << OCTETS) - 1) row.scale_rest(first, WARP_STEP, factor, done);
  }
}

// How rows are taken. Rows that lie anywhere are not copied ahead.
struct ByBlock {
  Shared *shared;
  template <int X, int W, bool IS_WHOLE> __device__ void run(const View &x, const View &weight, const View &out, float eps) const {
    if constexpr (IS_WHOLE) {
      by_block<X, W>(x, weight, out, eps, *shared);
    } else {
#pragma unroll 1
      for (int64_t number = blockIdx.x, turn = 0; number < x.shape[2]; number += gridDim.x, turn ^= 1) {
        const Row<X, W, false> row(x, weight, out, number);
        const int first = int(threadIdx.x) * 8;
        const auto sums = [&](auto sum) {
          auto *places = shared->places(sum, int(turn));
          places[threadIdx.x] = row.add_squares(sum, first, STEP);
          __syncthreads();
          for (int v = 0; v < WARPS; ++v) sum += places[32 * v + threadIdx.x % 32];
          return sum_over_lanes(sum);
        };
        row.scale_rest(first, STEP, factor_of(sums, row.columns, eps), 0);
      }
    }
  }
};
template <int OCTETS, int ROWS> struct ByWarp {
  template <int X, int W, bool IS_WHOLE> __device__ void run(const View &x, const View &weight, const View &out, float eps) const {
    by_warp<X, W, IS_WHOLE, OCTETS, X == BF16 || ROWS == 1 ? ROWS : ROWS / 2>(x, weight, out, eps);
  }
};

template <class By, int X, int W> __device__ void normalise(const By &by, const View &x, const View &weight, const View &out, float eps) {
  const bool is_whole = has_whole_octets<X>(x) && has_whole_octets<X>(out) && lies_on(weight.data, 16);
  if (is_whole) by.template run<X, W, true>(x, weight, out, eps);
  else by.template run<X, W, false>(x, weight, out, eps);
}

template <class By> __device__ void normalise_as(const By &by, const View &x, const View &weight, const View &out, float eps) {
  if (x.format == BF16) {
    if (weight.format == BF16) normalise<By, BF16, BF16>(by, x, weight, out, eps);
    else normalise<By, BF16, F32>(by, x, weight, out, eps);
  } else {
    if (weight.format == BF16) normalise<By, F32, BF16>(by, x, weight, out, eps);
    else normalise<By, F32, F32>(by, x, weight, out, eps);
  }
}

// Any number of blocks.
extern "C" __global__ void __launch_bounds__(THREADS, 4) rms_norm(View x, View weight, View out, float eps, uint32_t *) {
  __shared__ Shared shared;
  normalise_as(ByBlock{&shared}, x, weight, out, eps);
}

// Rows of at most 512 columns: a warp for each four of BF16, or two of F32.
extern "C" __global__ void __launch_bounds__(THREADS, 5) rms_norm_512(View x, View weight, View out, float eps, uint32_t *) {
  normalise_as(ByWarp<2, 4>(), x, weight, out, eps);
}

// Of at most 1280: a warp for each.
extern "C" __global__ void __launch_bounds__(THREADS, 4) rms_norm_1280(View x, View weight, View out, float eps, uint32_t *) {
  normalise_as(ByWarp<5, 1>(), x, weight, out, eps);
}
