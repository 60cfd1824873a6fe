// One token per row: the argmax of logit / temperature + noise over what min_p, top_k and top_p leave.
//
// Bytes: a row once, and once or twice more if there is a top_p. A block takes a row; two fit a multiprocessor, so that 256 rows are all
// at work at once. EXACT: integers, and F32 operations that round one after the other; approximations only decide what need not be
// computed.
//
// The draw. Noise in integers takes some 250 instructions, so that it is computed for a few tokens of a row only. With v = (r + 1/2) /
// 2^32 of a token's random integer r, the noise is -ln(-ln(1 - v)), and v < -ln(1 - v) <= v + v^2 for v <= 1/2, so that
//   -ln v - v  <=  noise  <  -ln v,   and   noise > -3.14 for every v.
// Of four tokens that share a call of the generator, the largest score plus the -ln v of the smallest v is above each of their values,
// and the token of the smallest v and that of the largest score have values that are reached at least. A thread keeps the largest of
// both bounds over its quads. What is below the largest value that is surely reached in the row, by more than rounding, cannot win;
// the tokens of the other threads, a few of a thousand, are computed.
//
// Filters. A thread also keeps its largest logit, so that only threads with tokens above some score are looked at again: those above
// the bar of min_p; for top_k those from the band of the k-th largest of the threads' largest scores on, which is at most the k-th
// largest score: their tokens are gathered and sorted. top_p: the weights of all tokens are summed exactly, and also, cut to 15 bits, in
// bands of the distance to the largest score, 64 to a unit; those sums enclose the band in which the share is reached. The exact
// weight of what lies before it is summed, and its own tokens are gathered and sorted. What does not fit this (very many ties, scores
// that overflow, a large top_k) is drawn as common/sample_block.cuh says.
#include "common/sample_block.cuh"

constexpr int THREADS = 512, WARPS = THREADS / 32;
// Quads of logits that a thread has on their way.
constexpr int AHEAD = 4;
constexpr int BANDS = 2048, PER_UNIT = 64;
// Tokens that are sorted, some to a thread.
constexpr int EACH_LISTED = 4, MOST_LISTED = EACH_LISTED * THREADS;
constexpr int MOST_TOP_K = MOST_LISTED / 2;
// With more threads to look at again than these, the row is read as at first.
constexpr int MOST_CHOSEN = THREADS / 4;
constexpr uint32_t ALL = 0xFFFFFFFFu;
constexpr float LEAST_NOISE = -3.14f;

struct Memory {
  union {
    uint64_t list[MOST_LISTED];
    uint32_t bands[BANDS];
    BlockScratch scratch;
  };
  uint64_t sums[WARPS];
  uint32_t warps[WARPS];
  // Of the row; here it takes no register while it is not needed.
  float min_p_log;
  uint32_t chosen_count, listed, first_band, last_band;
  uint16_t chosen[THREADS];
};

// The largest of a block's 32-bit values, in all threads.
__device__ inline uint32_t largest_of(uint32_t value, Memory &m) {
  value = __reduce_max_sync(ALL, value);
  if (threadIdx.x % 32 == 0) m.warps[threadIdx.x / 32] = value;
  __syncthreads();
  value = __reduce_max_sync(ALL, m.warps[threadIdx.x % WARPS]);
  __syncthreads();
  return value;
}

// The same of 64 bits.
__device__ inline uint64_t largest_of(uint64_t value, Memory &m) {
  const auto in_warp = [](uint64_t v) {
    const uint32_t high = __reduce_max_sync(ALL, uint32_t(v >> 32));
    const uint32_t low = __reduce_max_sync(ALL, uint32_t(v >> 32) == high ? uint32_t(v) : 0);
    return uint64_t(high) << 32 | low;
  };
  value = in_warp(value);
  if (threadIdx.x % 32 == 0) m.sums[threadIdx.x / 32] = value;
  __syncthreads();
  value = in_warp(m.sums[threadIdx.x % WARPS]);
  __syncthreads();
  return value;
}

// The sum of the values of the threads before this one, and of all.
struct Prefix {
  uint64_t before, all;
};

__device__ inline Prefix prefix_of(uint64_t value, Memory &m) {
  const int lane = threadIdx.x % 32;
  uint64_t sum = value;
#pragma unroll
  for (int width = 1; width < 32; width *= 2) {
    const uint64_t other = __shfl_up_sync(ALL, sum, width);
    sum += lane >= width ? other : 0;
  }
  if (lane == 31) m.sums[threadIdx.x / 32] = sum;
  __syncthreads();
  Prefix p = {sum - value, 0};
#pragma unroll
  for (int w = 0; w < WARPS; ++w) {
    p.before += w < int(threadIdx.x / 32) ? m.sums[w] : 0;
    p.all += m.sums[w];
  }
  __syncthreads();
  return p;
}

__device__ inline float log2_near(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ inline float component(const float4 &q, int i) { return i == 0 ? q.x : i == 1 ? q.y : i == 2 ? q.z : q.w; }

// What is left of the candidates: scores from `bar` on whose distance to the largest one is below `edge`.
struct Kept {
  float largest, bar, edge;

  // Written so that the NaN of a bar or distance of infinities drops nothing.
  __device__ bool has(float score) const { return !(score < bar) && !(__fsub_rn(largest, score) >= edge); }
};

// A larger bound by what rounding of scores, bounds and values may be: relative to the value, and for logarithms of up to 23.
__device__ inline float below(float value) { return __fsub_rn(__fsub_rn(value, __fmul_rn(fabsf(value), 0x1p-19f)), 0x1p-12f); }

// A row: thread t has the quads t, t + THREADS, ...
struct Logits {
  const float *data;
  int64_t columns;
  // Quads, and how many of them can be read at once.
  int count, whole;

  __device__ Logits(const float *row, int64_t n)
      : data(row), columns(n), count(int((n + 3) / 4)), whole(reinterpret_cast<uintptr_t>(row) % 16 == 0 ? int(n / 4) : 0) {}

  __device__ float4 quad(int q) const {
    if (q < whole) return reinterpret_cast<const float4 *>(data)[q];
    // Beyond the row there is no candidate.
    const auto at = [&](int i) { return 4 * int64_t(q) + i < columns ? data[4 * int64_t(q) + i] : -INFINITE; };
    return make_float4(at(0), at(1), at(2), at(3));
  }

  // Calls f(number, logits) for the thread's quads.
  template <class F> __device__ void for_quads(F f) const {
    for (int first = threadIdx.x; first < count; first += AHEAD * THREADS) {
      float4 v[AHEAD];
      if (first + (AHEAD - 1) * THREADS < whole) {
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) v[i] = reinterpret_cast<const float4 *>(data)[first + i * THREADS];
      } else {
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) v[i] = quad(first + i * THREADS);
      }
#pragma unroll
      for (int i = 0; i < AHEAD; ++i) f(first + i * THREADS, v[i]);
    }
  }

  // The same for the quads of those threads that say yes, dealt out over the block: a warp takes a thread's, a lane a quad.
  template <class F> __device__ void for_chosen(Memory &m, bool yes, F f) const {
    __syncthreads();
    if (threadIdx.x == 0) m.chosen_count = 0;
    __syncthreads();
    if (yes) m.chosen[atomicAdd(&m.chosen_count, 1u)] = uint16_t(threadIdx.x);
    __syncthreads();
    for_same(m, yes, f);
  }

  // The same again, each quad by the thread that had it.
  template <class F> __device__ void for_same(const Memory &m, bool yes, F f) const {
    if (m.chosen_count > MOST_CHOSEN) {
      // One at a time: what is done with them takes longer than reading, and registers.
#pragma unroll 1
      for (int q = yes ? threadIdx.x : count; q < count; q += THREADS) f(q, quad(q));
      return;
    }
    for (uint32_t c = threadIdx.x / 32; c < m.chosen_count; c += WARPS)
      for (int q = m.chosen[c] + threadIdx.x % 32 * THREADS; q < count; q += 32 * THREADS) f(q, quad(q));
  }
};

// The bounds of the values of some quads, and which of them can win.
struct Bounds {
  float highest = -INFINITE, reached = -INFINITE;

  // Adds a quad, all of whose tokens with a score above -infinity are kept.
  __device__ void add(const Draw &d, int q, const float (&scores)[4]) {
    const Lanes lanes = d.lanes(q);
    float top = -INFINITE, at_least = -INFINITE;
    uint32_t least = ALL;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      top = fmaxf(top, scores[i]);
      at_least = lanes.word[i] < least ? scores[i] : at_least;
      least = min(least, lanes.word[i]);
    }
    const float lane = __fadd_rn(__uint2float_rn(least), 0.5f), rise = rise_of(lane);
    highest = fmaxf(highest, __fadd_rn(top, rise));
    reached = fmaxf(reached, __fadd_rn(top, LEAST_NOISE));
    const float low = __fadd_rn(at_least, __fmaf_rn(lane, -0x1p-32f, rise));
    if (least < 0x80000000u) reached = fmaxf(reached, low);
  }

  // About -ln(lane / 2^32), for lane = r + 1/2.
  static __device__ float rise_of(float lane) { return __fmaf_rn(log2_near(lane), -0.693147181f, 22.1807098f); }

  // The bound below which nothing in the block can win.
  __device__ float bound(Memory &m) const { return below(value_of(largest_of(key_of(reached), m))); }
};

// The best of a quad's tokens that are kept, by value and id, if it can be above the bound.
__device__ inline uint64_t best_of(const Draw &d, int q, const float (&scores)[4], float bound) {
  const Lanes lanes = d.lanes(q);
  uint64_t best = 0;
#pragma unroll 1
  for (int i = 0; i < 4; ++i) {
    const uint32_t word = word_of(lanes, i);
    const float score = i == 0 ? scores[0] : i == 1 ? scores[1] : i == 2 ? scores[2] : scores[3];
    if (!(score > -INFINITE) || __fadd_rn(score, Bounds::rise_of(__fadd_rn(__uint2float_rn(word), 0.5f))) < bound) continue;
    best = max(best, rank_of(__fadd_rn(score, noise(word)), 4 * q + i));
  }
  return best;
}

// The scores of a quad; -infinity for what is not kept.
template <bool IS_FILTERED> __device__ inline void scores_of(const float4 &logits, float scale, const Kept &kept, float (&scores)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    scores[i] = __fmul_rn(component(logits, i), scale);
    if (IS_FILTERED && !kept.has(scores[i])) scores[i] = -INFINITE;
  }
}

// The best of the tokens that are kept, in all threads; `yes` says whether this thread has any.
__device__ inline uint64_t draw_kept(Memory &m, const Logits &row, const Draw &d, const Kept &kept, bool yes) {
  Bounds bounds;
  float scores[4];
  row.for_chosen(m, yes, [&](int q, const float4 &logits) {
    scores_of<true>(logits, d.scale, kept, scores);
    bounds.add(d, q, scores);
  });
  const float bound = bounds.bound(m);
  uint64_t drawn = 0;
  // The same quads come to the same threads.
  if (bounds.highest > -INFINITE && bounds.highest >= bound) {
    row.for_same(m, yes, [&](int q, const float4 &logits) {
      scores_of<true>(logits, d.scale, kept, scores);
      drawn = max(drawn, best_of(d, q, scores, bound));
    });
  }
  return largest_of(drawn, m);
}

// Sorts the first `count` places of the list, descending; `count` is a power of two and what is not there is 0.
__device__ inline void sort_list(uint64_t *list, uint32_t count) {
  for (uint32_t size = 2; size <= count; size *= 2) {
    for (uint32_t step = size / 2; step > 0; step /= 2) {
      __syncthreads();
      for (uint32_t p = threadIdx.x; p < count / 2; p += THREADS) {
        const uint32_t low = p / step * 2 * step + p % step, high = low + step;
        const uint64_t a = list[low], b = list[high];
        if ((a < b) == ((low & size) == 0)) list[low] = b, list[high] = a;
      }
    }
  }
  __syncthreads();
}

// The best of the tokens of the list that stay: of its first `most`, those before which less than what is needed is summed. `base` is
// the weight of what comes before the list. Without a `needed` it follows from the list and the share.
__device__ uint64_t draw_of_list(Memory &m, const Draw &d, float largest, uint32_t listed, uint32_t most, uint64_t base, uint64_t needed) {
  uint32_t count = 2;
  while (count < listed) count *= 2;
  for (uint32_t i = listed + threadIdx.x; i < count; i += THREADS) m.list[i] = 0;
  sort_list(m.list, count);
  const uint32_t stay = min(listed, most), first = EACH_LISTED * threadIdx.x;
  uint64_t entry[EACH_LISTED] = {}, mass[EACH_LISTED] = {}, all = 0;
#pragma unroll
  for (int i = 0; i < EACH_LISTED; ++i) {
    if (first + i >= stay) continue;
    entry[i] = m.list[first + i];
    if (d.top_p < 1) all += mass[i] = weight(__fsub_rn(largest, value_of(uint32_t(entry[i] >> 32))));
  }
  Prefix p = {0, 0};
  if (d.top_p < 1) p = prefix_of(all, m);
  if (needed == 0 && d.top_p < 1) needed = mass_needed(p.all, d.top_p);
  uint64_t drawn = 0, before = base + p.before;
#pragma unroll
  for (int i = 0; i < EACH_LISTED; ++i) {
    if (first + i < stay && (d.top_p == 1 || before < needed)) {
      const uint32_t token = ~uint32_t(entry[i]);
      const float score = value_of(uint32_t(entry[i] >> 32));
      drawn = max(drawn, rank_of(__fadd_rn(score, noise(word_of(d.lanes(token / 4), token % 4))), token));
    }
    before += mass[i];
  }
  return largest_of(drawn, m);
}

// The band of a distance in units of 2^-27.
constexpr int BAND_SHIFT = 21;
static_assert(uint64_t(BANDS) << BAND_SHIFT == uint64_t(1) << 32 && PER_UNIT << BAND_SHIFT == 1 << 27);

__device__ inline uint32_t band_of(float distance) { return distance < 32.0f ? fixed_of(distance) >> BAND_SHIFT : BANDS - 1; }

// By how much the weights of a band are cut, to leave 15 bits of the largest: 2^46 e^(-band / 64) has at most 47 - floor(x) bits for x
// a little below band / 64 * log2(e). The smallest of the band then keeps at least 12.9 bits, or it is whole.
__device__ inline int cut_of(uint32_t band) { return max(0, 47 - 15 - int(band * 1477 >> 16)); }

// Finds the band up to which `count` of what was counted lies: the last one, for all that is further away, if there is less.
__device__ inline void find_count(Memory &m, uint32_t count) {
  constexpr int EACH = BANDS / THREADS;
  uint32_t here[EACH], all = 0;
#pragma unroll
  for (int i = 0; i < EACH; ++i) all += here[i] = m.bands[EACH * threadIdx.x + i];
  uint32_t sum = uint32_t(prefix_of(all, m).before), last = BANDS - 1;
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    sum += here[i];
    if (sum >= count) last = min(last, EACH * threadIdx.x + i);
  }
  last = BANDS - 1 - largest_of(BANDS - 1 - last, m);
  if (threadIdx.x == 0) m.first_band = 0, m.last_band = last;
}

// Finds the bands between which the weights reach the share: those before the first are kept, those after the last are not.
__device__ inline void find_bands(Memory &m, uint64_t needed) {
  constexpr int EACH = BANDS / THREADS;
  uint64_t mass[EACH], all = 0;
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    const uint32_t band = EACH * threadIdx.x + i;
    mass[i] = uint64_t(m.bands[band]) << cut_of(band);
    all += mass[i];
  }
  uint64_t sum = prefix_of(all, m).before;
  uint32_t first = BANDS - 1, last = BANDS - 1;
#pragma unroll
  for (int i = 0; i < EACH; ++i) {
    sum += mass[i];
    // What was cut is less than one part in 4096 of what was left.
    if (sum + (sum >> 12) >= needed) first = min(first, EACH * threadIdx.x + i);
    if (sum >= needed) last = min(last, EACH * threadIdx.x + i);
  }
  first = BANDS - 1 - largest_of(BANDS - 1 - first, m);
  last = BANDS - 1 - largest_of(BANDS - 1 - last, m);
  if (threadIdx.x == 0) m.first_band = first, m.last_band = last;
}

// Calls f(score, token) for the tokens of a quad that are kept.
template <class F> __device__ inline void for_kept(int q, const float4 &logits, float scale, const Kept &kept, F f) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float logit = component(logits, i), score = __fmul_rn(logit, scale);
    if (logit > -INFINITE && kept.has(score)) f(score, uint32_t(4 * q + i));
  }
}

// Gathers the tokens that are kept and whose distance is at least `from` in the list, as far as it has places.
__device__ inline void gather(Memory &m, int q, const float4 &logits, const Draw &d, const Kept &kept, float from) {
  for_kept(q, logits, d.scale, kept, [&](float score, uint32_t token) {
    if (__fsub_rn(kept.largest, score) < from) return;
    const uint32_t place = atomicAdd(&m.listed, 1u);
    if (place < MOST_LISTED) m.list[place] = rank_of(score, token);
  });
}

// The token of a row with top_k, as its rank, in all threads; `mine` is the thread's largest score, -infinity if it has none. False if
// there are too many.
__device__ inline bool draw_top_k(Memory &m, const Logits &row, const Draw &d, const Kept &kept, float mine, uint64_t &drawn) {
  // A thread's largest score counts as one.
  const bool has_any = mine > -INFINITE && kept.has(mine);
  if (has_any) atomicAdd(&m.bands[band_of(__fsub_rn(kept.largest, mine))], 1u);
  __syncthreads();
  find_count(m, uint32_t(d.top_k));
  __syncthreads();
  const float to = m.last_band == BANDS - 1 ? INFINITE : float(m.last_band + 1) * (1.0f / PER_UNIT);
  const Kept near = {kept.largest, kept.bar, to};
  row.for_chosen(m, has_any && near.has(mine), [&](int q, const float4 &logits) { gather(m, q, logits, d, near, 0); });
  __syncthreads();
  if (m.listed > MOST_LISTED) return false;
  drawn = draw_of_list(m, d, kept.largest, m.listed, d.top_k, 0, 0);
  return true;
}

// The same of a row with top_p and without top_k.
__device__ inline bool draw_top_p(Memory &m, const Logits &row, const Draw &d, const Kept &kept, float mine, uint64_t &drawn) {
  uint64_t weights = 0;
  row.for_quads([&](int q, const float4 &logits) {
    for_kept(q, logits, d.scale, kept, [&](float score, uint32_t) {
      const float distance = __fsub_rn(kept.largest, score);
      if (distance >= 32.0f) return;
      const uint32_t fixed = fixed_of(distance), band = fixed >> BAND_SHIFT;
      const uint64_t w = weight_of_fixed(fixed);
      weights += w;
      atomicAdd(&m.bands[band], uint32_t(w >> cut_of(band)));
    });
  });
  const uint64_t needed = mass_needed(prefix_of(weights, m).all, d.top_p);
  find_bands(m, needed);
  __syncthreads();
  const float from = float(m.first_band) * (1.0f / PER_UNIT);
  const Kept sure = {kept.largest, kept.bar, from};
  const Kept near = {kept.largest, kept.bar, m.last_band == BANDS - 1 ? INFINITE : float(m.last_band + 1) * (1.0f / PER_UNIT)};
  uint64_t before = 0;
  // The bands are read: their place is the list's now.
  row.for_chosen(m, mine > -INFINITE && near.has(mine), [&](int q, const float4 &logits) {
    for_kept(q, logits, d.scale, sure, [&](float score, uint32_t) { before += weight(__fsub_rn(kept.largest, score)); });
    gather(m, q, logits, d, near, from);
  });
  before = prefix_of(before, m).all;
  if (m.listed > MOST_LISTED) return false;
  drawn = draw_of_list(m, d, kept.largest, m.listed, ALL, before, needed);
  if (m.first_band > 0) drawn = max(drawn, draw_kept(m, row, d, sure, mine > -INFINITE && sure.has(mine)));
  return true;
}

// The lowest token of the largest logit, as its complement, in all threads.
__device__ inline uint32_t lowest_of(Memory &m, const Logits &row, uint32_t key, bool yes) {
  const float logit = value_of(key);
  uint32_t best = 0;
  row.for_chosen(m, yes, [&](int q, const float4 &logits) {
#pragma unroll
    for (int i = 0; i < 4; ++i) if (component(logits, i) == logit) best = max(best, ~uint32_t(4 * q + i));
  });
  return largest_of(best, m);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
fused_sample(View logits, View inv_temperature, View seed, View position, View token, View child, View min_p_log, View top_k,
             View top_p, uint32_t *fault) {
  __shared__ Memory m;
  const int64_t n = blockIdx.x;
  const Draw d = load_draw({logits, inv_temperature, seed, position, token, child, min_p_log, top_k, top_p}, n);
  if (!is_draw_right(d, fault)) return;
  const float *data = logits.at<float>(n * logits.stride[2]);
  const Logits row(data, logits.columns());
  // Where the token goes: worked out when it is there, so that it takes no registers until then.
  const auto out = [&] { return token.at<int32_t>(int64_t(blockIdx.x) * token.stride[3]); };
  for (int b = threadIdx.x; b < BANDS; b += THREADS) m.bands[b] = 0;
  if (threadIdx.x == 0) m.listed = 0, m.min_p_log = d.min_p_log;

  // The largest logit; a NaN or +infinity stays in it. Rows without filters are drawn in the same pass.
  float mine = -INFINITE;
  Bounds bounds;
  const auto look = [&](const float4 &v) {
#pragma unroll
    for (int i = 0; i < 4; ++i) asm("max.NaN.f32 %0, %0, %1;" : "+f"(mine) : "f"(component(v, i)));
  };
  const bool is_plain = d.scale > 0 && !d.has_filters();
  if (is_plain) {
    row.for_quads([&](int q, const float4 &v) {
      float scores[4];
      look(v);
      scores_of<false>(v, d.scale, {}, scores);
      bounds.add(d, q, scores);
    });
  } else {
    row.for_quads([&](int, const float4 &v) { look(v); });
  }
  const bool is_bad = __syncthreads_or(!(mine < INFINITE));
  const uint32_t key = largest_of(is_bad ? 0 : key_of(mine), m);
  const float largest = __fmul_rn(value_of(key), d.scale);
  uint64_t drawn = 0;
  if (is_bad || value_of(key) == -INFINITE) {
    if (threadIdx.x == 0) *out() = -1;
    return;
  }
  if (d.scale == 0) {
    drawn = lowest_of(m, row, key, key_of(mine) == key);
  } else {
    const float score = mine > -INFINITE ? __fmul_rn(mine, d.scale) : -INFINITE;
    const Kept kept = {largest, __fadd_rn(largest, m.min_p_log), INFINITE};
    bool is_drawn = fabsf(largest) < INFINITE && d.top_k <= MOST_TOP_K;
    if (is_drawn && is_plain) {
      const float bound = bounds.bound(m);
      row.for_chosen(m, bounds.highest > -INFINITE && bounds.highest >= bound, [&](int q, const float4 &v) {
        float scores[4];
        scores_of<false>(v, d.scale, {}, scores);
        drawn = max(drawn, best_of(d, q, scores, bound));
      });
      drawn = largest_of(drawn, m);
    } else if (is_drawn && d.top_k > 0) {
      is_drawn = draw_top_k(m, row, d, kept, score, drawn);
    } else if (is_drawn && d.top_p < 1) {
      is_drawn = draw_top_p(m, row, d, kept, score, drawn);
    } else if (is_drawn) {
      drawn = draw_kept(m, row, d, kept, score > -INFINITE && kept.has(score));
    }
    if (!is_drawn) {
      __syncthreads();
      Draw whole = d;
      whole.min_p_log = m.min_p_log;
      return sample_by_block<THREADS>(data, row.columns, whole, m.scratch, out());
    }
  }
  if (threadIdx.x == 0) *out() = int32_t(~uint32_t(drawn));
}
