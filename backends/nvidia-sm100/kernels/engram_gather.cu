// Rows of an n-gram table side by side; zeros for a row outside the table.
//
// Bytes: each looked-up row with its scales, and its values written. Some lanes of a warp take a looked-up row; a thread asks for its
// octets of four rows before it writes the first. The table may lie in pinned host memory, where only the number of requests under
// way counts.
#include "common/octet.cuh"

constexpr int THREADS = 128;
constexpr int LOOKUPS = 4;

// A place in the list of lookups, and where its values go.
struct Lookup {
  uint32_t row, column;

  __device__ Lookup(const View &rows, uint32_t number) : row(number / uint32_t(rows.columns())), column(number - row * uint32_t(rows.columns())) {}

  __device__ int64_t place(const View &out, int64_t columns) const { return row * out.stride[2] + column * columns; }
  __device__ void advance(const View &rows) {
    if (++column == rows.columns()) column = 0, ++row;
  }
};

// Octets lie on their boundaries, and none is cut off by the end of a row.
template <int X>
__device__ void gather_coded(const View &table, const View &rows, const View &out, const int32_t (&named)[LOOKUPS], uint32_t first, int there,
                             int lane, int lanes) {
  const int columns = int(table.columns());
  for (int column = 8 * lane; column < columns; column += 8 * lanes) {
    Coded<FP8_ROW32> coded[LOOKUPS] = {};
#pragma unroll
    for (int i = 0; i < LOOKUPS; ++i) {
      if (named[i] < 0) continue;
      const uint2 codes = *reinterpret_cast<const uint2 *>(matrix_row<FP8_ROW32>(table, named[i]) + column);
      coded[i] = {{codes.x, codes.y}, matrix_scales(table, named[i])[column / 32]};
    }
    Lookup lookup(rows, first);
#pragma unroll
    for (int i = 0; i < LOOKUPS; ++i, lookup.advance(rows)) {
      if (i >= there) break;
      float v[8];
      decode_octet<FP8_ROW32>(coded[i], v);
      write_octet<X, true>(out.data + (lookup.place(out, columns) + column) * octet_bytes<X>() / 8, 8, octet_of<X>(v));
    }
  }
}

template <int X>
__device__ void gather_any(const View &table, const View &rows, const View &out, uint32_t first, int there, int lane, int lanes) {
  Lookup lookup(rows, first);
  for (int i = 0; i < there; ++i, lookup.advance(rows)) {
    const int64_t named = rows.at<int32_t>(lookup.row * rows.stride[2])[lookup.column], place = lookup.place(out, table.columns());
    for (int64_t column = lane; column < table.columns(); column += lanes) {
      const float value = named < 0 || named >= table.shape[2] ? 0.0f : load_float(table, named, column);
      if constexpr (X == F32) out.at<float>(place)[column] = value;
      else out.at<uint16_t>(place)[column] = uint16_t(narrow(value, 0.0f));
    }
  }
}

// The compiler keeps fewer registers than it needs for Blackwell, unless it is told how many blocks are wanted.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
#define BOUNDS __launch_bounds__(THREADS, 4)
#else
#define BOUNDS __launch_bounds__(THREADS)
#endif

// 2^lanes_log2 lanes for every four lookups.
extern "C" __global__ void BOUNDS engram_gather(View table, View rows, View out, uint32_t lanes_log2, uint32_t *) {
  const int lanes = 1 << lanes_log2, lane = threadIdx.x & (lanes - 1);
  const uint32_t first = ((blockIdx.x * THREADS + threadIdx.x) >> lanes_log2) * LOOKUPS, all = uint32_t(rows.shape[2] * rows.columns());
  if (first >= all) return;
  const int there = int(min(all - first, uint32_t(LOOKUPS)));
  const bool is_bf16 = out.format == BF16;
  if (table.format == FP8_ROW32 && has_whole_octets<FP8_ROW32>(table, 8) && (is_bf16 ? has_whole_octets<BF16>(out) : has_whole_octets<F32>(out))) {
    int32_t named[LOOKUPS];
    Lookup lookup(rows, first);
#pragma unroll
    for (int i = 0; i < LOOKUPS; ++i, lookup.advance(rows)) {
      named[i] = i < there ? rows.at<int32_t>(lookup.row * rows.stride[2])[lookup.column] : -1;
      if (named[i] >= table.shape[2]) named[i] = -1;
    }
    if (is_bf16) gather_coded<BF16>(table, rows, out, named, first, there, lane, lanes);
    else gather_coded<F32>(table, rows, out, named, first, there, lane, lanes);
    return;
  }
  if (is_bf16) gather_any<BF16>(table, rows, out, first, there, lane, lanes);
  else gather_any<F32>(table, rows, out, first, there, lane, lanes);
}
