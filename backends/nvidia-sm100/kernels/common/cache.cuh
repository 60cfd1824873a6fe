// Entries of a paged cache: where they lie. Entry `slot` is in page slot / entries, at place slot % entries.
#pragma once

#include "encode.cuh"

// Layouts by their numbers in the catalogue.
enum CacheFormat : uint32_t { CACHE_F32 = 0, CACHE_BF16 = 1, CACHE_FP8 = 2, CACHE_FP4_ROW16 = 3, CACHE_FP4_ROW32 = 4 };

// The format whose elements and scales an entry has; a plain one is its own.
template <int C> __host__ __device__ constexpr int elements_of() {
  return C == CACHE_F32 ? F32 : C == CACHE_BF16 ? BF16 : C == CACHE_FP8 ? FP8_ROW32 : C == CACHE_FP4_ROW16 ? FP4_ROW16 : FP4_ROW32;
}

// Addresses of the values and of the scales of an entry.
struct Entry {
  unsigned char *values;
  unsigned char *scales;
};

// Entry `slot`, which exists, of pages with `entries` entries of `dim` channels. Both numbers have 32 bits: one short division.
template <int C> __device__ inline Entry entry_of(const View &cache, uint32_t slot, uint32_t entries, int64_t dim) {
  constexpr int F = elements_of<C>();
  const int64_t values = F == F32 ? dim * 4 : F == BF16 ? dim * 2 : F == FP8_ROW32 ? dim : dim / 2;
  const int64_t scales = F == F32 || F == BF16 ? 0 : dim / group_of<F>();
  const uint32_t number = slot / entries;
  const int64_t place = slot - number * entries;
  unsigned char *page = cache.data + number * cache.stride[2];
  // With this format all values of a page stand before all scales.
  if (C == CACHE_FP4_ROW32) return {page + place * values, page + entries * values + place * scales};
  unsigned char *entry = page + place * (values + scales);
  return {entry, entry + values};
}
