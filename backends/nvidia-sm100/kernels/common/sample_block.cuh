// One row drawn by one block, for any number of columns: passes over the row in memory, from the caches after the first.
//
// Without filters there are two passes (the largest logit; the draw). A filter keeps the beginning of the list sorted by score,
// then id, without sorting it: four passes find the score at which the list is cut, eight bits of it at a time, by integer sums
// over a histogram, whose order does not matter.
#pragma once

#include "sample_row.cuh"

// What is left of the list: scores above `key`, and of those at it the ids up to `last_id`.
struct Cut {
  uint32_t key, last_id;
};

struct Row {
  const float *logits;
  int64_t columns;
  float inv_temperature, bar;

  // Whether token v is a candidate that min_p leaves, and the key of its score.
  __device__ bool has(int64_t v, uint32_t *key) const {
    const float logit = logits[v];
    if (logit == __uint_as_float(0xFF800000u)) return false;
    const float score = __fmul_rn(logit, inv_temperature);
    *key = key_of(score);
    // Not `score >= bar`: the bar of two infinities is a NaN and drops nothing.
    return !(score < bar);
  }
};

// Shared memory of a block.
struct BlockScratch {
  uint64_t scratch[32];
  uint64_t mass[256];
  uint32_t count[256];
  uint64_t left, above;
  uint32_t digit;
};

// Walks a histogram from the highest digit to the one at which what is left is reached.
template <class N> __device__ inline uint32_t find_digit(BlockScratch &s, const N *histogram) {
  if (threadIdx.x == 0) {
    uint32_t digit = 255;
    while (digit > 0 && histogram[digit] < s.left) s.left -= histogram[digit--];
    s.digit = digit;
  }
  __syncthreads();
  return s.digit;
}

// The score of the k-th entry of the list, and in `rest` how many entries of that score belong to the first k. The list has
// at least k.
template <int T> __device__ uint32_t kth_key(const Row &row, BlockScratch &s, uint64_t k, uint64_t *rest, uint32_t *ties) {
  uint32_t prefix = 0;
  if (threadIdx.x == 0) s.left = k;
  for (int shift = 24; shift >= 0; shift -= 8) {
    if (threadIdx.x < 256) s.count[threadIdx.x] = 0;
    __syncthreads();
    for (int64_t v = threadIdx.x; v < row.columns; v += T) {
      uint32_t key;
      if (row.has(v, &key) && (shift == 24 || key >> (shift + 8) == prefix >> (shift + 8))) atomicAdd(&s.count[key >> shift & 255], 1u);
    }
    __syncthreads();
    prefix |= find_digit(s, s.count) << shift;
  }
  *rest = s.left;
  *ties = s.count[prefix & 255];
  __syncthreads();
  return prefix;
}

// The id of the n-th entry, by ascending id, of those with this score.
template <int T> __device__ uint32_t nth_id(const Row &row, BlockScratch &s, uint32_t wanted, uint64_t n) {
  uint32_t prefix = 0;
  if (threadIdx.x == 0) s.left = n;
  for (int shift = 24; shift >= 0; shift -= 8) {
    if (threadIdx.x < 256) s.count[threadIdx.x] = 0;
    __syncthreads();
    for (int64_t v = threadIdx.x; v < row.columns; v += T) {
      uint32_t key;
      // Lower ids come first: digits are counted from the other end.
      const uint32_t id = ~uint32_t(v);
      if (row.has(v, &key) && key == wanted && (shift == 24 || id >> (shift + 8) == prefix >> (shift + 8)))
        atomicAdd(&s.count[id >> shift & 255], 1u);
    }
    __syncthreads();
    prefix |= find_digit(s, s.count) << shift;
  }
  __syncthreads();
  return ~prefix;
}

// Sums the weights of the list as top_k has cut it: all scores above `key`, and `rest` entries at it.
struct Masses {
  float largest;
  uint32_t key;
  uint64_t rest;

  __device__ uint64_t of(uint32_t k) const { return weight(__fsub_rn(largest, value_of(k))); }
};

template <int T> __device__ void add_masses(const Row &row, BlockScratch &s, const Masses &m, int shift, uint32_t prefix) {
  if (threadIdx.x < 256) s.mass[threadIdx.x] = 0;
  __syncthreads();
  const auto matches = [&](uint32_t key) { return shift == 24 || key >> (shift + 8) == prefix >> (shift + 8); };
  for (int64_t v = threadIdx.x; v < row.columns; v += T) {
    uint32_t key;
    if (row.has(v, &key) && key > m.key && matches(key))
      atomicAdd(reinterpret_cast<unsigned long long *>(&s.mass[key >> shift & 255]), m.of(key));
  }
  if (threadIdx.x == 0 && matches(m.key))
    atomicAdd(reinterpret_cast<unsigned long long *>(&s.mass[m.key >> shift & 255]), m.rest * m.of(m.key));
  __syncthreads();
}

// Cuts the list where the weights reach the share.
template <int T> __device__ void cut_by_mass(const Row &row, BlockScratch &s, float largest, float share, uint32_t *key, uint64_t *rest) {
  const Masses m = {largest, *key, *rest};
  uint32_t prefix = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    add_masses<T>(row, s, m, shift, prefix);
    if (shift == 24 && threadIdx.x == 0) {
      uint64_t total = 0;
      for (int digit = 0; digit < 256; ++digit) total += s.mass[digit];
      s.left = mass_needed(total, share);
    }
    __syncthreads();
    prefix |= find_digit(s, s.mass) << shift;
  }
  // Entries of one score have one weight, which is not 0: the weights before it do not reach what is needed, and with it they do.
  const uint64_t each = m.of(prefix), entries = (s.left + each - 1) / each;
  *rest = prefix == *key && entries > *rest ? *rest : entries;
  *key = prefix;
  __syncthreads();
}

// The token of a row, written by one of the block's T threads.
template <int T> __device__ void sample_by_block(const float *logits, int64_t columns, const Draw &d, BlockScratch &s, int32_t *out) {
  // The largest logit, and whether there is one that cannot be drawn from.
  Row row = {logits, columns, d.scale, -INFINITE};
  uint64_t best = 0;
  bool is_bad = false;
  for (int64_t v = threadIdx.x; v < row.columns; v += T) {
    const float logit = row.logits[v];
    is_bad |= !(logit < INFINITE);
    if (logit > -INFINITE) best = max(best, rank_of(logit, uint32_t(v)));
  }
  is_bad = __syncthreads_or(is_bad);
  best = block_max<T>(best, s.scratch);
  if (is_bad || best == 0 || d.scale == 0) {
    if (threadIdx.x == 0) *out = is_bad || best == 0 ? -1 : int32_t(0xFFFFFFFFu - uint32_t(best));
    return;
  }

  // Scores grow with logits: the largest score is that of the largest logit.
  const float largest = __fmul_rn(value_of(uint32_t(best >> 32)), d.scale);
  row.bar = __fadd_rn(largest, d.min_p_log);
  Cut cut = {0, 0xFFFFFFFFu};
  if (d.top_k > 0 || d.top_p < 1) {
    // How many min_p leaves.
    uint32_t mine = 0, key_of_v;
    for (int64_t v = threadIdx.x; v < row.columns; v += T) mine += row.has(v, &key_of_v);
    if (threadIdx.x == 0) s.above = 0;
    __syncthreads();
    atomicAdd(reinterpret_cast<unsigned long long *>(&s.above), mine);
    __syncthreads();
    const uint64_t all = s.above;
    uint64_t rest = 0;
    uint32_t ties = 0;
    const bool is_cut = d.top_k > 0 && uint64_t(d.top_k) < all;
    if (is_cut) cut.key = kth_key<T>(row, s, d.top_k, &rest, &ties);
    if (d.top_p < 1) {
      cut_by_mass<T>(row, s, largest, d.top_p, &cut.key, &rest);
      ties = 0xFFFFFFFFu;
    }
    if ((is_cut || d.top_p < 1) && rest < ties) cut.last_id = nth_id<T>(row, s, cut.key, rest);
  }

  // The draw. A score that the largest noise could not lift above what is there needs none.
  uint64_t drawn = 0;
  float reached = -INFINITE;
  for (int64_t block = threadIdx.x; block * 4 < row.columns; block += T) {
    bool has_lanes = false;
    Lanes lanes;
    for (int lane = 0; lane < 4; ++lane) {
      const int64_t v = block * 4 + lane;
      uint32_t k;
      if (v >= row.columns || !row.has(v, &k) || k < cut.key || (k == cut.key && uint32_t(v) > cut.last_id)) continue;
      const float score = __fmul_rn(row.logits[v], d.scale);
      if (__fadd_rn(score, MOST_NOISE) < reached) continue;
      if (!has_lanes) lanes = d.lanes(uint32_t(block)), has_lanes = true;
      const float value = __fadd_rn(score, noise(word_of(lanes, lane)));
      reached = fmaxf(reached, value);
      drawn = max(drawn, rank_of(value, uint32_t(v)));
    }
  }
  drawn = block_max<T>(drawn, s.scratch);
  if (threadIdx.x == 0) *out = int32_t(0xFFFFFFFFu - uint32_t(drawn));
}
