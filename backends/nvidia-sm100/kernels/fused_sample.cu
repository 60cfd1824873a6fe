// One token per row: the argmax of logit / temperature + noise over what min_p, top_k and top_p leave.
//
// Bytes: a row once for each pass, from the cache after the first. A block takes a row. Without filters there are two passes
// (the largest logit; the draw). A filter keeps the beginning of the list sorted by score, then id, without sorting it: four
// passes find the score at which the list is cut, eight bits of it at a time, by integer sums over a histogram, whose order
// does not matter. EXACT: integers, and F32 operations that round one after the other.
#include "common/sampling.cuh"
#include "common/view.cuh"

constexpr int THREADS = 1024;
constexpr uint32_t OP = 27;
enum Argument : uint32_t { LOGITS, INV_TEMPERATURE, SEED, POSITION, TOKEN, CHILD, MIN_P_LOG, TOP_K, TOP_P };
enum Rule : uint32_t {
  POSITION_NEGATIVE, INV_TEMPERATURE_NEGATIVE, INV_TEMPERATURE_NOT_FINITE, CHILD_NEGATIVE, MIN_P_ABOVE, MIN_P_NAN, TOP_K_NEGATIVE,
  TOP_P_LOW, TOP_P_HIGH, TOP_P_NAN
};

// Ordered as the floats are; both zeros are one.
__device__ inline uint32_t key_of(float v) {
  const uint32_t bits = v == 0 ? 0 : __float_as_uint(v);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ inline float value_of(uint32_t key) { return __uint_as_float(key & 0x80000000u ? key & 0x7FFFFFFFu : ~key); }

// Larger is better: by value, then by lower id.
__device__ inline uint64_t rank_of(float value, uint32_t id) { return uint64_t(key_of(value)) << 32 | (0xFFFFFFFFu - id); }

template <class T> __device__ inline T block_max(T value, T *scratch) {
  for (int width = 16; width > 0; width /= 2) {
    const T other = __shfl_xor_sync(0xFFFFFFFFu, value, width);
    value = other > value ? other : value;
  }
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  value = scratch[threadIdx.x % 32];
  for (int width = 16; width > 0; width /= 2) {
    const T other = __shfl_xor_sync(0xFFFFFFFFu, value, width);
    value = other > value ? other : value;
  }
  __syncthreads();
  return value;
}

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

struct Shared {
  uint64_t scratch[32];
  uint64_t mass[256];
  uint32_t count[256];
  uint64_t left, above;
  uint32_t digit;
};

// Walks a histogram from the highest digit to the one at which what is left is reached.
template <class T> __device__ inline uint32_t find_digit(Shared &s, const T *histogram) {
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
__device__ inline uint32_t kth_key(const Row &row, Shared &s, uint64_t k, uint64_t *rest, uint32_t *ties) {
  uint32_t prefix = 0;
  if (threadIdx.x == 0) s.left = k;
  for (int shift = 24; shift >= 0; shift -= 8) {
    if (threadIdx.x < 256) s.count[threadIdx.x] = 0;
    __syncthreads();
    for (int64_t v = threadIdx.x; v < row.columns; v += THREADS) {
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
__device__ inline uint32_t nth_id(const Row &row, Shared &s, uint32_t wanted, uint64_t n) {
  uint32_t prefix = 0;
  if (threadIdx.x == 0) s.left = n;
  for (int shift = 24; shift >= 0; shift -= 8) {
    if (threadIdx.x < 256) s.count[threadIdx.x] = 0;
    __syncthreads();
    for (int64_t v = threadIdx.x; v < row.columns; v += THREADS) {
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

__device__ inline void add_masses(const Row &row, Shared &s, const Masses &m, int shift, uint32_t prefix) {
  if (threadIdx.x < 256) s.mass[threadIdx.x] = 0;
  __syncthreads();
  const auto matches = [&](uint32_t key) { return shift == 24 || key >> (shift + 8) == prefix >> (shift + 8); };
  for (int64_t v = threadIdx.x; v < row.columns; v += THREADS) {
    uint32_t key;
    if (row.has(v, &key) && key > m.key && matches(key))
      atomicAdd(reinterpret_cast<unsigned long long *>(&s.mass[key >> shift & 255]), m.of(key));
  }
  if (threadIdx.x == 0 && matches(m.key))
    atomicAdd(reinterpret_cast<unsigned long long *>(&s.mass[m.key >> shift & 255]), m.rest * m.of(m.key));
  __syncthreads();
}

// Cuts the list where the weights reach the share.
__device__ inline void cut_by_mass(const Row &row, Shared &s, float largest, float share, uint32_t *key, uint64_t *rest) {
  const Masses m = {largest, *key, *rest};
  uint32_t prefix = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    add_masses(row, s, m, shift, prefix);
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

extern "C" __global__ void __launch_bounds__(THREADS)
fused_sample(View logits, View inv_temperature, View seed, View position, View token, View child, View min_p_log, View top_k,
             View top_p, uint32_t *fault) {
  __shared__ Shared s;
  const int64_t n = blockIdx.x;
  const auto float_of = [&](const View &x, float absent) { return x.is_absent() ? absent : *x.at<float>(n * x.stride[3]); };
  const auto int_of = [&](const View &x) { return x.is_absent() ? 0 : *x.at<int32_t>(n * x.stride[3]); };
  const float infinity = __uint_as_float(0x7F800000u);
  const float scale = float_of(inv_temperature, 0), ln_min_p = float_of(min_p_log, -infinity), share = float_of(top_p, 1);
  const int32_t at = int_of(position), number = int_of(child), most = int_of(top_k);
  const uint64_t key = *seed.at<uint64_t>(n * seed.stride[3]);

  uint32_t argument = 0, rule = 0;
  bool wrong = false;
  const auto check = [&](bool is_right, uint32_t a, uint32_t r) {
    if (!is_right && !wrong) argument = a, rule = r, wrong = true;
  };
  check(at >= 0, POSITION, POSITION_NEGATIVE);
  check(scale == scale && scale < infinity, INV_TEMPERATURE, INV_TEMPERATURE_NOT_FINITE);
  check(scale >= 0, INV_TEMPERATURE, INV_TEMPERATURE_NEGATIVE);
  check(number >= 0, CHILD, CHILD_NEGATIVE);
  check(ln_min_p == ln_min_p, MIN_P_LOG, MIN_P_NAN);
  check(ln_min_p <= 0, MIN_P_LOG, MIN_P_ABOVE);
  check(most >= 0, TOP_K, TOP_K_NEGATIVE);
  check(share == share, TOP_P, TOP_P_NAN);
  check(share > 0, TOP_P, TOP_P_LOW);
  check(share <= 1, TOP_P, TOP_P_HIGH);
  if (wrong) return refuse(fault, OP, argument, rule);

  // The largest logit, and whether there is one that cannot be drawn from.
  Row row = {logits.row<float>(n), logits.columns(), scale, -infinity};
  uint64_t best = 0;
  bool is_bad = false;
  for (int64_t v = threadIdx.x; v < row.columns; v += THREADS) {
    const float logit = row.logits[v];
    is_bad |= !(logit < infinity);
    if (logit > -infinity) best = max(best, rank_of(logit, uint32_t(v)));
  }
  is_bad = __syncthreads_or(is_bad);
  best = block_max(best, s.scratch);
  int32_t *out = token.at<int32_t>(n * token.stride[3]);
  if (is_bad || best == 0 || scale == 0) {
    if (threadIdx.x == 0) *out = is_bad || best == 0 ? -1 : int32_t(0xFFFFFFFFu - uint32_t(best));
    return;
  }

  // Scores grow with logits: the largest score is that of the largest logit.
  const float largest = __fmul_rn(value_of(uint32_t(best >> 32)), scale);
  row.bar = __fadd_rn(largest, ln_min_p);
  Cut cut = {0, 0xFFFFFFFFu};
  if (most > 0 || share < 1) {
    // How many min_p leaves.
    uint32_t mine = 0, key_of_v;
    for (int64_t v = threadIdx.x; v < row.columns; v += THREADS) mine += row.has(v, &key_of_v);
    if (threadIdx.x == 0) s.above = 0;
    __syncthreads();
    atomicAdd(reinterpret_cast<unsigned long long *>(&s.above), mine);
    __syncthreads();
    const uint64_t all = s.above;
    uint64_t rest = 0;
    uint32_t ties = 0;
    const bool is_cut = most > 0 && uint64_t(most) < all;
    if (is_cut) cut.key = kth_key(row, s, most, &rest, &ties);
    if (share < 1) {
      cut_by_mass(row, s, largest, share, &cut.key, &rest);
      ties = 0xFFFFFFFFu;
    }
    if ((is_cut || share < 1) && rest < ties) cut.last_id = nth_id(row, s, cut.key, rest);
  }

  // The draw. A score that the largest noise could not lift above what is there needs none.
  uint64_t drawn = 0;
  float reached = -infinity;
  for (int64_t block = threadIdx.x; block * 4 < row.columns; block += THREADS) {
    bool has_lanes = false;
    Lanes lanes;
    for (int lane = 0; lane < 4; ++lane) {
      const int64_t v = block * 4 + lane;
      uint32_t k;
      if (v >= row.columns || !row.has(v, &k) || k < cut.key || (k == cut.key && uint32_t(v) > cut.last_id)) continue;
      const float score = __fmul_rn(row.logits[v], scale);
      if (__fadd_rn(score, MOST_NOISE) < reached) continue;
      if (!has_lanes) lanes = philox(key, uint32_t(at), uint32_t(block), uint32_t(number)), has_lanes = true;
      const uint32_t word = lane == 0 ? lanes.word[0] : lane == 1 ? lanes.word[1] : lane == 2 ? lanes.word[2] : lanes.word[3];
      const float value = __fadd_rn(score, noise(word));
      reached = fmaxf(reached, value);
      drawn = max(drawn, rank_of(value, uint32_t(v)));
    }
  }
  drawn = block_max(drawn, s.scratch);
  if (threadIdx.x == 0) *out = int32_t(0xFFFFFFFFu - uint32_t(drawn));
}
