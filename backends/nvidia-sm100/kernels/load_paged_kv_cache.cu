// Cache entries decoded into rows; zeros for a negative slot.
//
// Bytes: an entry read and a row written. Some lanes of a warp take ROWS rows, two octets of each at a time. Two rows at once
// gained 2 % with many rows and cost 25 % with few.
#include "common/cache.cuh"
#include "common/octet.cuh"

constexpr int THREADS = 64;
constexpr int ROWS = 1;
constexpr uint32_t OP = 12, SLOTS = 1, BEYOND_CACHE = 3;

// Channels `column` to column + 7 of a plain entry, which may lie at any address.
template <int F> __device__ inline Octet<F> read_plain(const Entry &entry, int column, int dim) {
  const unsigned char *from = entry.values + int64_t(column) * octet_bytes<F>() / 8;
  if (lies_on(from, 16) && column + 8 <= dim) return read_octet<F, true>(from, 8);
  Octet<F> octet = {};
#pragma unroll
  for (int i = 0; i < octet_bytes<F>() / 2; ++i) {
    constexpr int HALVES = octet_bytes<F>() / 16;
    if (column + i / HALVES < dim) octet.word[i / 2] |= load_bytes<2>(from + 2 * i) << i % 2 * 16;
  }
  return octet;
}

// A row of `out` and its entry: none for a negative slot, and no row either for one that is refused.
struct Row {
  unsigned char *to;
  Entry entry;
  bool is_stored;
};

// Two octets of each row; those of no entry are zeros.
template <int C, int X, bool IS_WHOLE> __device__ void load_coded(const Row (&rows)[ROWS], int dim, int lanes, int lane) {
  constexpr int F = elements_of<C>();
#pragma unroll 1
  for (int column = 8 * lane; column < dim; column += 16 * lanes) {
    Coded<F> coded[ROWS][2] = {};
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      if (!rows[r].is_stored) continue;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int at = column + 8 * lanes * i;
        if (at >= dim) continue;
        coded[r][i] = read_codes<F>(rows[r].entry.values + int64_t(at) * octet_bytes<F>() / 8, rows[r].entry.scales[at / group_of<F>()]);
      }
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
      if (rows[r].to == nullptr) continue;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int at = column + 8 * lanes * i;
        float v[8];
        decode_octet<F>(coded[r][i], v);
        write_octet<X, IS_WHOLE>(rows[r].to + int64_t(at) * octet_bytes<X>() / 8, dim - at, octet_of<X>(v));
      }
    }
  }
}

template <int F, int X, bool IS_WHOLE> __device__ void load_plain(const Row &row, int dim, int lanes, int lane) {
  if (row.to == nullptr) return;
  for (int column = 8 * lane; column < dim; column += 8 * lanes) {
    const Octet<F> octet = row.is_stored ? read_plain<F>(row.entry, column, dim) : Octet<F>{};
    float v[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = octet[j];
    write_octet<X, IS_WHOLE>(row.to + int64_t(column) * octet_bytes<X>() / 8, dim - column, octet_of<X>(v));
  }
}

template <int C, int X, bool IS_WHOLE>
__device__ void load_rows(const View &cache, const View &slots, const View &out, uint32_t entries, uint32_t lanes_log2, uint32_t *fault) {
  constexpr int F = elements_of<C>();
  const int lanes = 1 << lanes_log2, lane = threadIdx.x & (lanes - 1), dim = int(out.columns());
  const int64_t first = ((int64_t(blockIdx.x) * THREADS + threadIdx.x) >> lanes_log2) * ROWS;
  Row rows[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    const bool is_row = first + r < out.shape[2];
    const int32_t slot = is_row ? slots.at<int32_t>()[first + r] : -1;
    const bool is_wrong = slot >= 0 && slot >= cache.shape[2] * entries;
    if (is_wrong) refuse(fault, OP, SLOTS, BEYOND_CACHE);
    rows[r].is_stored = slot >= 0 && !is_wrong;
    rows[r].entry = rows[r].is_stored ? entry_of<C>(cache, slot, entries, dim) : Entry{};
    rows[r].to = is_row && !is_wrong ? matrix_row<X>(out, first + r) : nullptr;
  }
  if constexpr (F == F32 || F == BF16) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) load_plain<F, X, IS_WHOLE>(rows[r], dim, lanes, lane);
  } else {
    load_coded<C, X, IS_WHOLE>(rows, dim, lanes, lane);
  }
}

template <int C>
__device__ void load_as(const View &cache, const View &slots, const View &out, uint32_t entries, uint32_t lanes_log2, uint32_t *fault) {
  if (out.format == BF16) {
    if (has_whole_octets<BF16>(out)) return load_rows<C, BF16, true>(cache, slots, out, entries, lanes_log2, fault);
    return load_rows<C, BF16, false>(cache, slots, out, entries, lanes_log2, fault);
  }
  if (has_whole_octets<F32>(out)) return load_rows<C, F32, true>(cache, slots, out, entries, lanes_log2, fault);
  return load_rows<C, F32, false>(cache, slots, out, entries, lanes_log2, fault);
}

// 2^lanes_log2 lanes for every ROWS rows, 4 to 32.
extern "C" __global__ void __launch_bounds__(THREADS)
load_paged_kv_cache(View cache, View slots, View out, uint32_t format, uint32_t entries, uint32_t lanes_log2, uint32_t *fault) {
  switch (format) {
  case CACHE_F32: return load_as<CACHE_F32>(cache, slots, out, entries, lanes_log2, fault);
  case CACHE_BF16: return load_as<CACHE_BF16>(cache, slots, out, entries, lanes_log2, fault);
  case CACHE_FP8: return load_as<CACHE_FP8>(cache, slots, out, entries, lanes_log2, fault);
  case CACHE_FP4_ROW16: return load_as<CACHE_FP4_ROW16>(cache, slots, out, entries, lanes_log2, fault);
  case CACHE_FP4_ROW32: return load_as<CACHE_FP4_ROW32>(cache, slots, out, entries, lanes_log2, fault);
  }
}
