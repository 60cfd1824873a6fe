// The gated activation of an expert, with its route weight.
//
// Bytes: gate and up read once, out written once. A warp takes `share` times 256 columns of a row, eight to a lane, and reads two octets
// ahead of the one that it computes.
//
// Per element about 16 F64 operations, in the time of whose five bytes the machine does 20: so that nothing may be wasted, BF16 values
// become F64 without a conversion. The result is rounded to F32, then as `mid` and the format of `out` say; no element depends on
// another but through the scale of its group.
#include "common/exponential.cuh"
#include "common/moved.cuh"

constexpr int THREADS = 128;
// Columns of a warp at a time.
constexpr int STEP = 32 * 8;
// Beyond this gate, a BF16 value, an exponential is no normal F64.
constexpr float MOST_GATE = 704.0f;

// gate * sigmoid(gate) * up. `gate` and `up` are magnitudes, `up` with the row's weight; `gate` is moved, `steep` is the same but at
// most MOST_GATE.
__device__ inline double activation(double steep, double gate, bool is_negative, double up) {
  const double exponential = exp_minus(steep, 0x1p896), inverse = inverse_of(1.0 + exponential);
  const int high = __double2hiint(exponential), low = __double2loint(exponential);
  // Above the line stands e^-|gate| for a negative gate, else 1; moved back on the way.
  constexpr int MOVE = 896 << 20;
  const double above = __hiloint2double(is_negative ? high + MOVE : (1023 << 20) + MOVE, is_negative ? low : 0);
  return above * inverse * gate * up;
}

__device__ inline float with_sign(double magnitude, uint32_t sign) {
  return __uint_as_float(__float_as_uint(float(magnitude)) ^ (sign & 0x80000000u));
}

// A limit that lets NaN through.
__device__ inline float at_most(float x, float limit) { return x > limit ? limit : x; }

// Any gate and up. `weight` is that of the row, times 2^896.
__device__ inline float activate(float gate, float up, double weight, float limit) {
  gate = at_most(gate, limit);
  up = up < -limit ? -limit : at_most(up, limit);
  // The limit of the function there would be 0, but its value is infinity by infinity.
  if (__float_as_uint(gate) == 0xFF800000u) gate = __uint_as_float(0x7FC00000u);
  const double moved = fabs(double(gate)) * (1.0 / moved_scale()), steep = double(fminf(fabsf(gate), MOST_GATE)) * (1.0 / moved_scale());
  const double h = activation(steep, moved, gate < 0, fabs(double(up)) * (1.0 / moved_scale()) * weight);
  return with_sign(h, __float_as_uint(gate) ^ __float_as_uint(up));
}

__device__ inline uint32_t smaller_pair(uint32_t a, uint32_t b) {
  uint32_t pair;
  asm("min.bf16x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
  return pair;
}
__device__ inline uint32_t larger_pair(uint32_t a, uint32_t b) {
  uint32_t pair;
  asm("max.bf16x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
  return pair;
}

// An octet of results. BF16 values that the exponential takes as they are, with a limit that is one too, go in pairs.
template <int X> __device__ inline void activate_octet(const Octet<X> &gate, const Octet<X> &up, double weight, float limit, float (&h)[8]) {
  if constexpr (X == BF16) {
    const uint32_t bits = __float_as_uint(limit);
    if (largest_bits(gate) < (__float_as_uint(MOST_GATE) >> 16) && largest_bits(up) < 0x7F80 && (bits & 0xFFFF) == 0) {
      const uint32_t most = __byte_perm(bits, 0, 0x3232), least = most ^ 0x80008000u;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t g = smaller_pair(gate.word[i], most), u = larger_pair(smaller_pair(up.word[i], most), least), signs = g ^ u;
        const double g0 = moved_magnitude<false>(g), g1 = moved_magnitude<true>(g);
        h[2 * i] = with_sign(activation(g0, g0, g & 0x8000u, moved_magnitude<false>(u) * weight), signs << 16);
        h[2 * i + 1] = with_sign(activation(g1, g1, g & 0x80000000u, moved_magnitude<true>(u) * weight), signs);
      }
      return;
    }
  }
#pragma unroll 1
  for (int j = 0; j < 8; ++j) {
    float g, u;
#pragma unroll
    for (int i = 0; i < 8; ++i) if (i == j) g = gate[i], u = up[i];
    const float result = activate(g, u, weight, limit);
#pragma unroll
    for (int i = 0; i < 8; ++i) if (i == j) h[i] = result;
  }
}

// A piece of a row.
struct Piece {
  int64_t row;
  int begin, end;
  double weight;
  float limit;
  bool is_narrow;
};

template <int X, int F, bool IS_WHOLE> __device__ void activate_piece(const View &gate, const View &up, const View &out, const Piece &piece) {
  const int columns = int(out.columns()), lane_column = threadIdx.x % 32 * 8;
  const unsigned char *gates = matrix_row<X>(gate, piece.row), *ups = matrix_row<X>(up, piece.row);
  const auto read = [&](const unsigned char *from, int begin) {
    const int at = begin + lane_column;
    return read_octet<X, IS_WHOLE>(from + int64_t(at) * octet_bytes<X>() / 8, begin < piece.end ? columns - at : 0);
  };
  Octet<X> near_gate = read(gates, piece.begin), near_up = read(ups, piece.begin);
  Octet<X> far_gate = read(gates, piece.begin + STEP), far_up = read(ups, piece.begin + STEP);
#pragma unroll 1
  for (int begin = piece.begin; begin < piece.end; begin += STEP) {
    const Octet<X> g = near_gate, u = near_up;
    near_gate = far_gate, near_up = far_up;
    far_gate = read(gates, begin + 2 * STEP), far_up = read(ups, begin + 2 * STEP);
    float h[8];
    activate_octet<X>(g, u, piece.weight, piece.limit, h);
    const int at = begin + lane_column;
    if constexpr (F == FP8_ROW32) {
      if (piece.is_narrow) {
        const Octet<BF16> narrowed = octet_of<BF16>(h);
#pragma unroll
        for (int j = 0; j < 8; ++j) h[j] = narrowed[j];
      }
      // Lanes beyond the row take part in the exchange, but share no group with the others.
      const Coded<F> coded = encode_octet<F>(h);
      if (at >= columns) continue;
      write_codes<F>(matrix_row<F>(out, piece.row) + at, coded);
      if (at % 32 == 0) matrix_scales(out, piece.row)[at / 32] = coded.scale;
    } else {
      const Octet<BF16> narrowed = octet_of<BF16>(h);
      unsigned char *to = matrix_row<F>(out, piece.row) + int64_t(at) * octet_bytes<F>() / 8;
      if constexpr (F == F32) {
        if (piece.is_narrow) {
#pragma unroll
          for (int j = 0; j < 8; ++j) h[j] = narrowed[j];
        }
        write_octet<F, IS_WHOLE>(to, columns - at, octet_of<F32>(h));
      } else {
        // Rounded once or twice, the result is the same.
        write_octet<F, IS_WHOLE>(to, columns - at, narrowed);
      }
    }
  }
}

template <int X, int F> __device__ void activate_to(const View &gate, const View &up, const View &out, const Piece &piece) {
  if (has_whole_octets<X>(gate) && has_whole_octets<X>(up) && (F == FP8_ROW32 || has_whole_octets<F>(out))) {
    return activate_piece<X, F, true>(gate, up, out, piece);
  }
  activate_piece<X, F, false>(gate, up, out, piece);
}

template <int X> __device__ void activate_as(const View &gate, const View &up, const View &out, const Piece &piece) {
  switch (out.format) {
  case F32: return activate_to<X, F32>(gate, up, out, piece);
  case BF16: return activate_to<X, BF16>(gate, up, out, piece);
  case FP8_ROW32: return activate_to<X, FP8_ROW32>(gate, up, out, piece);
  }
}

// A warp for each of `pieces` pieces of each row. `limit` is infinite where there is none.
extern "C" __global__ void __launch_bounds__(THREADS, 5)
swiglu_quantize(View gate, View up, View row_weight, View out, float limit, uint32_t mid, uint32_t share, uint32_t pieces, uint32_t *) {
  const uint32_t number = warp_of_grid(), row = number / pieces;
  if (row >= out.shape[2]) return;
  const int begin = int((number - row * pieces) * share) * STEP, end = min(begin + int(share) * STEP, int(out.columns()));
  const double weight = (row_weight.is_absent() ? 1.0 : double(row_weight.at<float>()[row])) * moved_scale();
  const Piece piece = {row, begin, end, weight, limit, mid != 0};
  if (gate.format == BF16) activate_as<BF16>(gate, up, out, piece);
  else activate_as<F32>(gate, up, out, piece);
}
