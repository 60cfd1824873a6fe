// Rows encoded into cache entries, and what a reader will see of them.
//
// Bytes: a row read, an entry written, with `rounded` a row written; and the slots of later rows. A warp takes a row, 128 columns
// at a time. Of several rows that name one slot the highest is stored: the block compares the slots of its rows with all later
// ones before it writes, T^2 / 2 comparisons in all, so that it needs no memory of who wrote last and no order among blocks.
#include "common/cache.cuh"

constexpr int THREADS = 256;
constexpr int ROWS = THREADS / 32;
constexpr uint32_t OP = 11, SLOTS = 1, BEYOND_CACHE = 3;

template <int C> __device__ void store_row(const View &kv, const View &rounded, int64_t row, bool is_stored, Entry entry) {
  constexpr int F = elements_of<C>();
  const int64_t dim = kv.columns();
  const bool is_wanted = !rounded.is_absent();
  const PlainRow from = plain_row(kv, row), seen = is_wanted ? plain_row(rounded, row) : PlainRow{};
  // All lanes go round as often: those beyond the row help with the exchange.
  for (int64_t begin = 0; begin < dim; begin += 128) {
    const int64_t column = begin + threadIdx.x % 32 * 4;
    float v[4];
    load_quad(from, column, v);
    if constexpr (F == F32 || F == BF16) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (column + j >= dim) break;
        const uint32_t bits = __float_as_uint(v[j]);
        if constexpr (F == F32) {
          if (is_stored) store_bytes<4>(entry.values + (column + j) * 4, bits);
        } else {
          // What is a BF16 value keeps its bits, also a NaN.
          const uint16_t narrow = (bits & 0xFFFF) == 0 ? uint16_t(bits >> 16) : f32_to_bf16(v[j]);
          if (is_stored) store_bytes<2>(entry.values + (column + j) * 2, narrow);
          v[j] = bf16_to_f32(narrow);
        }
      }
    } else {
      const Quad quad = encode<F>(v);
      if (is_stored && column < dim) {
        store_bytes<quad_bytes<F>()>(entry.values + column * quad_bytes<F>() / 4, quad.codes);
        if (column % group_of<F>() == 0) entry.scales[column / group_of<F>()] = quad.scale;
      }
      decode<F>(quad, v);
    }
    if (is_wanted) store_quad(seen, column, v);
  }
}

template <int C> __device__ void store_as(const View &kv, const View &cache, const View &rounded, int64_t row, int32_t slot, bool is_last,
                                          uint32_t entries) {
  const bool is_stored = slot >= 0 && is_last;
  const Entry entry = is_stored ? entry_of<C>(cache, slot, entries, kv.columns()) : Entry{};
  store_row<C>(kv, rounded, row, is_stored, entry);
}

extern "C" __global__ void __launch_bounds__(THREADS)
store_kv_cache(View kv, View slots, View cache, View rounded, uint32_t format, uint32_t entries, uint32_t *fault) {
  __shared__ int32_t mine[ROWS];
  __shared__ int is_overtaken[ROWS];
  const int64_t rows = kv.rows(), first = int64_t(blockIdx.x) * ROWS;
  if (threadIdx.x < ROWS) {
    mine[threadIdx.x] = first + threadIdx.x < rows ? slots.at<int32_t>()[first + threadIdx.x] : -1;
    is_overtaken[threadIdx.x] = 0;
  }
  __syncthreads();
  for (int64_t later = first + 1 + threadIdx.x; later < rows; later += THREADS) {
    const int32_t slot = slots.at<int32_t>()[later];
    if (slot < 0) continue;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) if (mine[r] == slot && first + r < later) is_overtaken[r] = 1;
  }
  __syncthreads();

  const int warp = threadIdx.x / 32;
  const int64_t row = first + warp;
  if (row >= rows) return;
  const int32_t slot = mine[warp];
  const bool is_last = !is_overtaken[warp];
  if (slot >= cache.rows() * entries) return refuse(fault, OP, SLOTS, BEYOND_CACHE);
  switch (format) {
  case CACHE_F32: return store_as<CACHE_F32>(kv, cache, rounded, row, slot, is_last, entries);
  case CACHE_BF16: return store_as<CACHE_BF16>(kv, cache, rounded, row, slot, is_last, entries);
  case CACHE_FP8: return store_as<CACHE_FP8>(kv, cache, rounded, row, slot, is_last, entries);
  case CACHE_FP4_ROW16: return store_as<CACHE_FP4_ROW16>(kv, cache, rounded, row, slot, is_last, entries);
  case CACHE_FP4_ROW32: return store_as<CACHE_FP4_ROW32>(kv, cache, rounded, row, slot, is_last, entries);
  }
}
