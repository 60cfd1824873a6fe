// Entries of a paged cache whose format only the call knows.
#pragma once

#include "cache.cuh"

// Entry `slot`, which exists.
__device__ inline Entry find_entry(const View &cache, uint32_t format, int64_t slot, int64_t entries, int64_t dim) {
  switch (format) {
  case CACHE_F32: return entry_of<CACHE_F32>(cache, slot, entries, dim);
  case CACHE_BF16: return entry_of<CACHE_BF16>(cache, slot, entries, dim);
  case CACHE_FP8: return entry_of<CACHE_FP8>(cache, slot, entries, dim);
  case CACHE_FP4_ROW16: return entry_of<CACHE_FP4_ROW16>(cache, slot, entries, dim);
  default: return entry_of<CACHE_FP4_ROW32>(cache, slot, entries, dim);
  }
}

template <int F> __device__ inline void read_coded(const Entry &entry, int64_t column, float (&v)[4]) {
  const uint32_t codes = load_bytes<quad_bytes<F>()>(entry.values + column * quad_bytes<F>() / 4);
  decode<F>(Quad{codes, entry.scales[column / group_of<F>()]}, v);
}

// Channels `column` to column + 3 of an entry, `column` a multiple of four; zeros beyond its `dim` channels.
__device__ inline void read_entry(const Entry &entry, uint32_t format, int64_t dim, int64_t column, float (&v)[4]) {
  switch (format) {
  case CACHE_FP8: return read_coded<FP8_ROW32>(entry, column, v);
  case CACHE_FP4_ROW16: return read_coded<FP4_ROW16>(entry, column, v);
  case CACHE_FP4_ROW32: return read_coded<FP4_ROW32>(entry, column, v);
  }
  // Entries of any size, in pages of any size: a value may lie at any address.
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (column + j >= dim) v[j] = 0.0f;
    else if (format == CACHE_F32) v[j] = __uint_as_float(load_bytes<4>(entry.values + (column + j) * 4));
    else v[j] = bf16_to_f32(uint16_t(load_bytes<2>(entry.values + (column + j) * 2)));
  }
}
