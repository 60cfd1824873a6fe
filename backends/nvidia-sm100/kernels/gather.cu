// Rows of a table by index, converted between F32 and BF16 if asked; zeros for an index that names no row.
//
// Bytes: each row read and written once. A warp takes a piece of a row, which it has read whole before it writes: 2048 bytes where
// rows lie on 16 bytes on both sides, or 1024 columns to convert.
#include "common/octet.cuh"

constexpr int THREADS = 128;
constexpr int PARTS = 4;
// What the host divides a row into: bytes, or columns where the format changes.
constexpr int64_t WARP_BYTES = PARTS * 32 * 16, WARP_COLUMNS = PARTS * 32 * 8;

__device__ inline int size_of(int32_t format) { return format == I64 ? 8 : format == BF16 ? 2 : format == U8 ? 1 : 4; }

__device__ inline void copy_piece(unsigned char *to, const unsigned char *from, bool is_row, int bytes) {
  const int lane = threadIdx.x % 32;
  if (lies_on(to, 16) && (lies_on(from, 16) || !is_row) && bytes % 16 == 0) {
    uint4 part[PARTS];
#pragma unroll
    for (int i = 0; i < PARTS; ++i) {
      const int at = (i * 32 + lane) * 16;
      part[i] = is_row && at < bytes ? *reinterpret_cast<const uint4 *>(from + at) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < PARTS; ++i) {
      const int at = (i * 32 + lane) * 16;
      if (at < bytes) *reinterpret_cast<uint4 *>(to + at) = part[i];
    }
    return;
  }
  for (int i = lane; i < bytes; i += 32) to[i] = is_row ? from[i] : 0;
}

template <int F, int X, bool IS_WHOLE> __device__ void convert_piece(unsigned char *to, const unsigned char *from, bool is_row, int columns) {
  const int lane = threadIdx.x % 32;
  Octet<F> octet[PARTS];
#pragma unroll
  for (int i = 0; i < PARTS; ++i) {
    const int at = (i * 32 + lane) * 8;
    octet[i] = read_octet<F, IS_WHOLE>(from + at * octet_bytes<F>() / 8, is_row ? columns - at : 0);
  }
#pragma unroll
  for (int i = 0; i < PARTS; ++i) {
    const int at = (i * 32 + lane) * 8;
    float v[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = octet[i][j];
    write_octet<X, IS_WHOLE>(to + at * octet_bytes<X>() / 8, columns - at, octet_of<X>(v));
  }
}

// BF16 to F32 on boundaries of 16 bytes: four columns a lane, whose 16 bytes of F32 lie beside those of its neighbours. Of stores that
// leave gaps memory takes each sector twice.
__device__ inline void widen_piece(unsigned char *to, const unsigned char *from, bool is_row, int columns) {
  const int lane = threadIdx.x % 32;
  uint2 quad[2 * PARTS];
#pragma unroll
  for (int i = 0; i < 2 * PARTS; ++i) {
    const int at = (i * 32 + lane) * 4;
    quad[i] = is_row && at < columns ? *reinterpret_cast<const uint2 *>(from + 2 * at) : make_uint2(0, 0);
  }
#pragma unroll
  for (int i = 0; i < 2 * PARTS; ++i) {
    const int at = (i * 32 + lane) * 4;
    const uint4 wide = make_uint4(quad[i].x << 16, quad[i].x & 0xFFFF0000u, quad[i].y << 16, quad[i].y & 0xFFFF0000u);
    if (at < columns) *reinterpret_cast<uint4 *>(to + 4 * at) = wide;
  }
}

template <int F, int X>
__device__ void convert(const View &table, const View &out, unsigned char *to, const unsigned char *from, bool is_row, int columns) {
  if (!has_whole_octets<F>(table) || !has_whole_octets<X>(out)) return convert_piece<F, X, false>(to, from, is_row, columns);
  if constexpr (X == F32) widen_piece(to, from, is_row, columns);
  else convert_piece<F, X, true>(to, from, is_row, columns);
}

// A warp for each of `pieces` pieces of each row of `out`.
extern "C" __global__ void __launch_bounds__(THREADS)
gather(View table, View index, View out, uint32_t repeat, uint32_t pieces, uint32_t *) {
  const uint32_t item = warp_of_grid(), row = item / pieces, piece = item - row * pieces, source = row / repeat;
  if (source >= out.shape[1]) return;
  const int64_t named = *index.at<int32_t>(source * index.stride[3]);
  const bool is_row = named >= 0 && named < table.shape[2];
  const int64_t to_size = size_of(out.format), from_size = size_of(table.format);
  const bool is_copy = table.format == out.format;
  const int64_t first = int64_t(piece) * (is_copy ? WARP_BYTES / to_size : WARP_COLUMNS);
  unsigned char *to = out.data + (source * out.stride[1] + (row - source * repeat) * out.stride[2] + first) * to_size;
  const unsigned char *from = table.data + ((is_row ? named * table.stride[2] : 0) + first) * from_size;
  const int64_t left = out.columns() - first;
  if (is_copy) return copy_piece(to, from, is_row, int(min(left * to_size, WARP_BYTES)));
  if (out.format == F32) return convert<BF16, F32>(table, out, to, from, is_row, int(min(left, WARP_COLUMNS)));
  convert<F32, BF16>(table, out, to, from, is_row, int(min(left, WARP_COLUMNS)));
}
