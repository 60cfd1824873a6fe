// Rows to a scaled 8- or 4-bit format.
//
// Bytes: 2 or 4 read and about 1 or a half written per element. A warp takes 1024 columns of a row, eight to a lane four times over,
// all of which it reads before it begins; the largest magnitude of a group is found by exchange among the lanes that hold it. From
// BF16 to FP4, where the machine has no conversion, a lane takes sixteen columns twice.
#include "common/sixteen.cuh"

constexpr int THREADS = 128;
constexpr int OCTETS = 4;
constexpr int WARP_COLUMNS = OCTETS * 32 * 8;

template <int F, int X, bool IS_WHOLE> __device__ void quantize_piece(const View &x, const View &out, int64_t row, int first) {
  const int columns = int(x.columns()), column = first + threadIdx.x % 32 * 8;
  const unsigned char *from = matrix_row<X>(x, row);
  Octet<X> octet[OCTETS];
#pragma unroll
  for (int i = 0; i < OCTETS; ++i) {
    const int at = column + i * 256;
    octet[i] = read_octet<X, IS_WHOLE>(from + int64_t(at) * octet_bytes<X>() / 8, columns - at);
  }
  unsigned char *to = matrix_row<F>(out, row), *scales = matrix_scales(out, row);
#pragma unroll
  for (int i = 0; i < OCTETS; ++i) {
    const Coded<F> coded = encode_raw<F, X>(octet[i]);
    const int at = column + i * 256;
    // Columns are a multiple of the group: an octet is inside or outside.
    if (at >= columns) continue;
    write_codes<F>(to + int64_t(at) * octet_bytes<F>() / 8, coded);
    if (at % group_of<F>() == 0) scales[at / group_of<F>()] = coded.scale;
  }
}

// BF16 to FP4, on boundaries of 16 bytes.
template <int F> __device__ void quantize_narrow(const View &x, const View &out, int64_t row, int first) {
  constexpr int PARTS = OCTETS / 2;
  const int columns = int(x.columns()), column = first + threadIdx.x % 32 * 16;
  const unsigned char *from = matrix_row<BF16>(x, row) + 2 * int64_t(column);
  Sixteen part[PARTS];
#pragma unroll
  for (int i = 0; i < PARTS; ++i) {
    part[i] = {};
    const uint4 *at = reinterpret_cast<const uint4 *>(from + i * 1024);
    if (column + i * 512 < columns) part[i] = {at[0], at[1]};
  }
  unsigned char *to = matrix_row<F>(out, row), *scales = matrix_scales(out, row);
#pragma unroll
  for (int i = 0; i < PARTS; ++i) {
    const CodedSixteen<F> coded = encode_sixteen<F>(part[i], from + i * 1024);
    const int at = column + i * 512;
    if (at >= columns) continue;
    write_sixteen<F>(to + int64_t(at) / 2, coded);
    if (at % group_of<F>() == 0) scales[at / group_of<F>()] = coded.scale;
  }
}

template <int F> __device__ void quantize_as(const View &x, const View &out, int64_t row, int column) {
  if (x.format == BF16) {
    if (has_whole_octets<BF16>(x)) {
      if constexpr (F == FP8_ROW32) return quantize_piece<F, BF16, true>(x, out, row, column);
      else return quantize_narrow<F>(x, out, row, column);
    }
    return quantize_piece<F, BF16, false>(x, out, row, column);
  }
  if (has_whole_octets<F32>(x)) return quantize_piece<F, F32, true>(x, out, row, column);
  return quantize_piece<F, F32, false>(x, out, row, column);
}

// A warp for each 1024 columns of each row.
extern "C" __global__ void __launch_bounds__(THREADS) quantize(View x, View out, uint32_t *) {
  const uint32_t pieces = uint32_t((x.columns() + WARP_COLUMNS - 1) / WARP_COLUMNS), piece = warp_of_grid(), row = piece / pieces;
  const int column = int(piece - row * pieces) * WARP_COLUMNS;
  if (row >= x.shape[2]) return;
  switch (out.format) {
  case FP8_ROW32: return quantize_as<FP8_ROW32>(x, out, row, column);
  case FP4_ROW32: return quantize_as<FP4_ROW32>(x, out, row, column);
  case FP4_ROW16: return quantize_as<FP4_ROW16>(x, out, row, column);
  }
}
