// Cache entries decoded into rows; zeros for a negative slot.
//
// Bytes: an entry read and a row written. A warp takes a row, four columns to a lane.
#include "common/cache.cuh"

constexpr int THREADS = 256;
constexpr uint32_t OP = 12, SLOTS = 1, BEYOND_CACHE = 3;

template <int C> __device__ void load_row(const View &cache, const View &out, int64_t row, int64_t slot, uint32_t entries) {
  constexpr int F = elements_of<C>();
  const int64_t dim = out.columns();
  const PlainRow to = plain_row(out, row);
  const Entry entry = entry_of<C>(cache, slot, entries, dim);
  for (int64_t column = threadIdx.x % 32 * 4; column < dim; column += 128) {
    float v[4];
    if constexpr (F == F32 || F == BF16) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (column + j >= dim) v[j] = 0.0f;
        else if constexpr (F == F32) v[j] = __uint_as_float(load_bytes<4>(entry.values + (column + j) * 4));
        else v[j] = bf16_to_f32(uint16_t(load_bytes<2>(entry.values + (column + j) * 2)));
      }
    } else {
      const uint32_t codes = load_bytes<quad_bytes<F>()>(entry.values + column * quad_bytes<F>() / 4);
      decode<F>(Quad{codes, entry.scales[column / group_of<F>()]}, v);
    }
    store_quad(to, column, v);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
load_paged_kv_cache(View cache, View slots, View out, uint32_t format, uint32_t entries, uint32_t *fault) {
  const int64_t row = (int64_t(blockIdx.x) * THREADS + threadIdx.x) / 32;
  if (row >= out.rows()) return;
  const int64_t slot = slots.at<int32_t>()[row];
  if (slot >= cache.rows() * entries) return refuse(fault, OP, SLOTS, BEYOND_CACHE);
  if (slot < 0) {
    const PlainRow to = plain_row(out, row);
    for (int64_t column = threadIdx.x % 32 * 4; column < to.columns; column += 128) store_quad(to, column, {0.0f, 0.0f, 0.0f, 0.0f});
    return;
  }
  switch (format) {
  case CACHE_F32: return load_row<CACHE_F32>(cache, out, row, slot, entries);
  case CACHE_BF16: return load_row<CACHE_BF16>(cache, out, row, slot, entries);
  case CACHE_FP8: return load_row<CACHE_FP8>(cache, out, row, slot, entries);
  case CACHE_FP4_ROW16: return load_row<CACHE_FP4_ROW16>(cache, out, row, slot, entries);
  case CACHE_FP4_ROW32: return load_row<CACHE_FP4_ROW32>(cache, out, row, slot, entries);
  }
}
