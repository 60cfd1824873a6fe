// The columns of the K largest scores, ascending: rows of up to 2^20 scores, K up to 2048.
//
// Bytes: the scores once, K indices out. A block of 256 threads takes a row of up to 16384 scores, a cluster of 1, 2, 4 or 8 blocks of 512
// threads a wider one, by its width alone; a block takes a range of columns in pieces, which its threads keep in registers, 64 scores each:
//  1. The largest score of each group of neighbours is found. The K-th largest of these is at most the K-th largest score: what is
//     below it is out. Some K to 2 K scores of the piece are left and go to a list in shared memory.
//  2. When every block has its list, each takes the scores of all lists into registers and finds the K-th largest, the threshold.
//  3. Of its own list a block marks what is above the threshold, and of what equals it the lowest columns, in a map of bits, whose
//     order is the order of the columns.
// A search counts the keys in equal parts of a range, 7 bits at a time; a count has no order, so neither has the result.
#include "common/cluster.cuh"
#include "common/copy.cuh"
#include "common/order.cuh"
#include "common/view.cuh"

// Scores of a thread at a time.
constexpr int SCORES = 64, WORDS = SCORES / 32;
constexpr int MOST_PIECES = 4;
constexpr int MOST_LISTED = 3072;
constexpr int BINS_LOG2 = 7, BINS = 1 << BINS_LOG2;
// Keys of the lowest score that can be chosen, and of none.
constexpr uint32_t LOWEST = 0x00800000u, NONE = 0;

struct Listed {
  uint32_t key, column;
};

template <int THREADS> struct Shared {
  Listed list[MOST_LISTED];
  uint32_t map[MOST_PIECES * THREADS * WORDS];
  uint32_t listed;
  // Bounds of the keys of the list.
  uint32_t low, high;
  // The three of each block of the cluster.
  uint32_t peers[8][3];
  // What a scan of bins found: the bin, keys in bins above it, keys in it.
  uint32_t found[3];
  // Two sets in turn.
  uint32_t bins[2][BINS];
  uint32_t counts[2][THREADS / 32][2];
};

// The score of a key.
__device__ inline float score_of(uint32_t key) { return __uint_as_float(key >> 31 ? key ^ 0x80000000u : ~key); }

// The highest score below that of a key: -0 is not below +0.
__device__ inline float score_below(uint32_t key) { return score_of(key == 0x80000000u ? key - 2 : key - 1); }

__device__ inline float minus_infinity() { return __uint_as_float(0xFF800000u); }

struct Pair {
  uint32_t a, b;
};

// What all threads of the block do together.
template <int THREADS> struct Block {
  static constexpr int WARPS = THREADS / 32;
  Shared<THREADS> &shared;
  int turn = 0, bins_turn = 0;

  __device__ explicit Block(Shared<THREADS> &s) : shared(s) {}

  // Sums over the block, in all threads.
  __device__ Pair sums(uint32_t a, uint32_t b) {
    const Pair all = exchange(__reduce_add_sync(0xFFFFFFFFu, a), __reduce_add_sync(0xFFFFFFFFu, b), 0, 0);
    return {__reduce_add_sync(0xFFFFFFFFu, all.a), __reduce_add_sync(0xFFFFFFFFu, all.b)};
  }

  // The lowest and the highest of the block, in all threads.
  __device__ Pair extremes(uint32_t low, uint32_t high) {
    const Pair all = exchange(__reduce_min_sync(0xFFFFFFFFu, low), __reduce_max_sync(0xFFFFFFFFu, high), 0xFFFFFFFFu, 0);
    return {__reduce_min_sync(0xFFFFFFFFu, all.a), __reduce_max_sync(0xFFFFFFFFu, all.b)};
  }

  // Counts over the threads before this one and over all.
  __device__ Pair scan(uint32_t mine) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t upto = mine;
#pragma unroll
    for (int width = 1; width < 32; width *= 2) {
      const uint32_t left = __shfl_up_sync(0xFFFFFFFFu, upto, width);
      if (lane >= width) upto += left;
    }
    const uint32_t of_warp = exchange(__shfl_sync(0xFFFFFFFFu, upto, 31), 0, 0, 0).a;
    const uint32_t before = __reduce_add_sync(0xFFFFFFFFu, lane < warp ? of_warp : 0);
    return {before + upto - mine, __reduce_add_sync(0xFFFFFFFFu, of_warp)};
  }

  // The bins that a search begins with are empty; others clear them for it, a barrier before.
  __device__ void clear_bins() {
    if (threadIdx.x < 2 * BINS) shared.bins[threadIdx.x / BINS][threadIdx.x % BINS] = 0;
  }

  struct Threshold {
    uint32_t key;
    // Keys above it, and equal to it; if it is exact.
    uint32_t above, equal;
  };

  // The largest key that at least `wanted` keys reach, of keys in `low` to `high`, of which there are as many, or one that at most `spare`
  // more reach. `visit` calls its argument with every key of the thread in that range, and may with others. Where exactly as many are
  // wanted as reach it, keys a little above it may count as equal.
  template <class F> __device__ Threshold search(uint32_t low, uint32_t high, uint32_t wanted, uint32_t spare, F visit) {
    uint32_t above = 0;
    for (;;) {
      const int bits = 32 - __clz(high - low), shift = max(0, bits - BINS_LOG2);
      uint32_t *bins = shared.bins[bins_turn];
      visit([&](uint32_t key) {
        // A key below the range is far above it here.
        if (key - low <= high - low) atomicAdd(&bins[(key - low) >> shift], 1u);
      });
      __syncthreads();
      if (threadIdx.x < 32) find_bin(bins, wanted - above);
      bins_turn ^= 1;
      __syncthreads();
      // Nobody counts in these before the next barrier but one.
      if (threadIdx.x < BINS) bins[threadIdx.x] = 0;
      const uint32_t bin = shared.found[0], higher = shared.found[1], in_bin = shared.found[2];
      above += higher;
      low += bin << shift;
      if (above + in_bin <= wanted + spare || shift == 0) return {low, above, in_bin};
      // Not beyond the range: a sum beyond 2^32 would take in the lowest keys.
      high = low + min(high - low, (1u << shift) - 1);
    }
  }

private:
  // By the first warp: the bin in which the `wanted`-th key from above is.
  __device__ void find_bin(const uint32_t *bins, uint32_t wanted) {
    constexpr int EACH = BINS / 32;
    const int lane = threadIdx.x, last = BINS - 1 - lane * EACH;
    uint32_t n[EACH], sum = 0;
#pragma unroll
    for (int i = 0; i < EACH; ++i) n[i] = bins[last - i], sum += n[i];
    uint32_t upto = sum;
#pragma unroll
    for (int width = 1; width < 32; width *= 2) {
      const uint32_t left = __shfl_up_sync(0xFFFFFFFFu, upto, width);
      if (lane >= width) upto += left;
    }
    uint32_t above = upto - sum;
    if (above >= wanted || upto < wanted) return;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      if (above < wanted && above + n[i] >= wanted) shared.found[0] = last - i, shared.found[1] = above, shared.found[2] = n[i];
      above += n[i];
    }
  }

  // Those of a warp per lane.
  __device__ Pair exchange(uint32_t a, uint32_t b, uint32_t no_a, uint32_t no_b) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    turn ^= 1;
    if (lane == 0) shared.counts[turn][warp][0] = a, shared.counts[turn][warp][1] = b;
    __syncthreads();
    const bool is_warp = lane < WARPS;
    return {is_warp ? shared.counts[turn][lane][0] : no_a, is_warp ? shared.counts[turn][lane][1] : no_b};
  }
};

// A range of columns: the rest of a column in it is larger the lower it is, and at least 1.
struct Range {
  uint32_t begin, width;

  __device__ uint32_t rest(uint32_t column) const { return begin + width - column; }
};

// The bound that the rests of the `wanted` lowest of the columns reach that `visit` names by their rests; there are as many.
template <class B, class F> __device__ inline uint32_t lowest_columns(B &block, const Range &range, uint32_t wanted, F visit) {
  if (wanted == 0) return range.width + 1;
  return block.search(1, range.width, wanted, 0, visit).key;
}

// The scores of a piece that begins at column `first`; -infinity beyond the row. Value 4 i + j of a thread is column
// first + 4 (THREADS i + thread) + j.
template <int THREADS> __device__ inline void load_piece(const float *row, uint32_t columns, uint32_t first, float (&v)[SCORES]) {
  const bool is_wide = is_on_16(row);
  if (is_wide && first + THREADS * SCORES <= columns) {
    const float4 *from = reinterpret_cast<const float4 *>(row + first) + threadIdx.x;
#pragma unroll
    for (int i = 0; i < SCORES / 4; ++i) {
      const float4 four = __ldg(from + i * THREADS);
      v[4 * i] = four.x, v[4 * i + 1] = four.y, v[4 * i + 2] = four.z, v[4 * i + 3] = four.w;
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < SCORES / 4; ++i) {
    const uint32_t c = first + 4 * (i * THREADS + threadIdx.x);
    if (is_wide && c + 4 <= columns) {
      const float4 four = *reinterpret_cast<const float4 *>(row + c);
      v[4 * i] = four.x, v[4 * i + 1] = four.y, v[4 * i + 2] = four.z, v[4 * i + 3] = four.w;
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) v[4 * i + j] = c + j < columns ? row[c + j] : minus_infinity();
    }
  }
}

template <int THREADS> __device__ inline uint32_t column_of(uint32_t first, int i) {
  return first + 4 * (i / 4 * THREADS + threadIdx.x) + i % 4;
}

// Scores of a piece that are chosen: bit 31 - i % 32 of word i / 32 is value i of the thread.
struct Chosen {
  uint32_t words[WORDS];

  // Of the next value.
  __device__ void add(int i, uint32_t top_bit) { words[i / 32] = __funnelshift_l(top_bit, i % 32 == 0 ? 0 : words[i / 32], 1); }
};

// Appends to the list, as far as it has room, the columns of what is chosen.
template <int THREADS> __device__ inline void append(Shared<THREADS> &shared, Chosen chosen, uint32_t first) {
  const int lane = threadIdx.x % 32;
  uint32_t mine = 0;
#pragma unroll
  for (int w = 0; w < WORDS; ++w) mine += __popc(chosen.words[w]);
  uint32_t upto = mine;
#pragma unroll
  for (int width = 1; width < 32; width *= 2) {
    const uint32_t left = __shfl_up_sync(0xFFFFFFFFu, upto, width);
    if (lane >= width) upto += left;
  }
  uint32_t base = 0;
  if (lane == 31) base = atomicAdd(&shared.listed, upto);
  uint32_t at = __shfl_sync(0xFFFFFFFFu, base, 31) + upto - mine;
  if (at + mine > MOST_LISTED) return;
#pragma unroll
  for (int w = 0; w < WORDS; ++w) {
    for (uint32_t word = chosen.words[w]; word != 0; ++at) {
      const int i = __clz(word);
      word ^= 0x80000000u >> i;
      shared.list[at].column = column_of<THREADS>(first, 32 * w + i);
    }
  }
}

// Adds to the list what may be among the K largest of a piece. `bound` is a key below which nothing is wanted.
template <int THREADS, int GROUPS>
__device__ inline void
list_piece(Block<THREADS> &block, const float *row, const float (&v)[SCORES], uint32_t first, uint32_t places, uint32_t bound) {
  Shared<THREADS> &shared = block.shared;
  // Comparisons and `fmaxf` pass over NaN.
  uint32_t largest[GROUPS];
  uint32_t low = 0xFFFFFFFFu, high = 0;
#pragma unroll
  for (int g = 0; g < GROUPS; ++g) {
    float best = minus_infinity();
#pragma unroll
    for (int i = 0; i < SCORES / GROUPS; ++i) best = fmaxf(best, v[g * (SCORES / GROUPS) + i]);
    largest[g] = order_of(best);
    low = min(low, largest[g]), high = max(high, largest[g]);
  }
  const Pair range = block.extremes(low, high);
  // Nobody appends before the next barrier.
  const uint32_t listed = shared.listed;
  if (range.b < bound) return;
  uint32_t key = max(range.a, bound);
  bool are_enough = true;
  if (range.a < bound) {
    uint32_t n = 0;
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) n += largest[g] >= bound;
    are_enough = block.sums(n, 0).a >= places;
  }
  // Of fewer than K groups all that reaches the bound is listed.
  if (are_enough) {
    key = block.search(key, range.b, places, places / 16, [&](auto count) {
#pragma unroll
      for (int g = 0; g < GROUPS; ++g) count(largest[g]);
    }).key;
  }
  // The sign of a difference says whether a score is above what is below the key: not of NaN, which has none.
  const float least = score_of(key), below = score_below(key);
  Chosen chosen;
#pragma unroll
  for (int i = 0; i < SCORES; ++i) chosen.add(i, __float_as_uint(__fsub_rn(below, v[i])));
  append(shared, chosen, first);
  __syncthreads();
  if (shared.listed > MOST_LISTED) {
    // Many equal scores, or far from evenly spread: the exact K of the piece.
    const auto t = block.search(key, range.b, places, 0, [&](auto count) {
#pragma unroll
      for (int i = 0; i < SCORES; ++i) {
        // Made anew at every level: there is no room for 32 keys beside the scores.
        float value = v[i];
        asm volatile("" : "+f"(value));
        if (value >= least) count(order_of(value));
      }
    });
    const float tie = score_of(t.key);
    const Range piece = {first, THREADS * SCORES};
    uint32_t cut = 0;
    if (t.above + t.equal > places) {
      cut = lowest_columns(block, piece, places - t.above, [&](auto count) {
#pragma unroll
        for (int i = 0; i < SCORES; ++i) if (v[i] == tie) count(piece.rest(column_of<THREADS>(first, i)));
      });
    }
    if (threadIdx.x == 0) shared.listed = listed;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < SCORES; ++i) {
      const bool is_chosen = v[i] > tie || (v[i] == tie && piece.rest(column_of<THREADS>(first, i)) >= cut);
      chosen.add(i, is_chosen ? 0x80000000u : 0);
    }
    append(shared, chosen, first);
    __syncthreads();
  }
  // A thread that has few scores finds them sooner in the cache than among its registers.
  for (uint32_t i = listed + threadIdx.x; i < shared.listed; i += THREADS) {
    shared.list[i].key = order_of(__ldg(&row[shared.list[i].column]));
  }
  if (threadIdx.x == 0) shared.low = min(shared.low, key), shared.high = max(shared.high, range.b);
}

// Leaves the K best of a list of more, and its bounds as they are then.
template <int THREADS> __device__ inline void prune(Block<THREADS> &block, uint32_t places, const Range &range) {
  Shared<THREADS> &shared = block.shared;
  constexpr int EACH = MOST_LISTED / THREADS;
  const uint32_t listed = shared.listed;
  Listed entries[EACH];
#pragma unroll
  for (int j = 0; j < EACH; ++j) {
    const uint32_t at = j * THREADS + threadIdx.x;
    entries[j] = at < listed ? shared.list[at] : Listed{NONE, 0};
  }
  const auto t = block.search(shared.low, shared.high, places, 0, [&](auto count) {
#pragma unroll
    for (int j = 0; j < EACH; ++j) count(entries[j].key);
  });
  uint32_t cut = 0;
  if (t.above + t.equal > places) {
    cut = lowest_columns(block, range, places - t.above, [&](auto count) {
#pragma unroll
      for (int j = 0; j < EACH; ++j) if (entries[j].key == t.key) count(range.rest(entries[j].column));
    });
  }
  if (threadIdx.x == 0) shared.listed = 0, shared.low = t.key;
  __syncthreads();
#pragma unroll
  for (int j = 0; j < EACH; ++j) {
    if (entries[j].key > t.key || (entries[j].key == t.key && range.rest(entries[j].column) >= cut)) {
      shared.list[atomicAdd(&shared.listed, 1u)] = entries[j];
    }
  }
  __syncthreads();
}

template <int THREADS, int BLOCKS, int GROUPS> __device__ inline void select(const View &scores, const View &out, uint32_t pieces) {
  __shared__ Shared<THREADS> shared;
  Block<THREADS> block(shared);
  constexpr uint32_t PIECE = THREADS * SCORES;
  const int64_t row = blockIdx.x / BLOCKS;
  const uint32_t rank = BLOCKS == 1 ? 0 : cluster_rank();
  const uint32_t columns = uint32_t(scores.columns()), places = uint32_t(out.columns());
  const float *s = scores.at<float>(row * scores.stride[2]);
  int32_t *to = out.at<int32_t>(row * out.stride[2]);
  const Range range = {rank * pieces * PIECE, pieces * PIECE};

  // Blocks write to each other only when all have begun.
  if (BLOCKS > 1) cluster_arrive();

  // 1. The list of this block.
  block.clear_bins();
  for (uint32_t w = threadIdx.x; w < pieces * THREADS * WORDS; w += THREADS) shared.map[w] = 0;
  if (threadIdx.x == 0) shared.listed = 0, shared.low = 0xFFFFFFFFu, shared.high = 0;
  uint32_t bound = LOWEST;
  for (uint32_t p = 0; p < pieces; ++p) {
    uint32_t first = range.begin + p * PIECE;
    // Columns are reckoned where they are used: 32 of them beside the scores have no room.
    asm volatile("" : "+r"(first));
    if (first >= columns) break;
    float v[SCORES];
    load_piece<THREADS>(s, columns, first, v);
    list_piece<THREADS, GROUPS>(block, s, v, first, places, bound);
    if (pieces == 1) break;
    __syncthreads();
    // What follows has higher columns: it must be above the K-th of now.
    const bool are_many = shared.listed > places;
    __syncthreads();
    if (are_many) prune(block, places, range);
    if (shared.listed == places) {
      uint32_t low = 0xFFFFFFFFu;
      for (uint32_t i = threadIdx.x; i < places; i += THREADS) low = min(low, shared.list[i].key);
      bound = max(bound, block.extremes(low, 0).a + 1);
    }
  }
  __syncthreads();
  if (BLOCKS > 1) {
    cluster_wait();
    if (threadIdx.x < 3 * BLOCKS) {
      const uint32_t which = threadIdx.x % 3;
      store_at_rank(&shared.peers[rank][which], threadIdx.x / 3, which == 0 ? shared.listed : which == 1 ? shared.low : shared.high);
    }
    cluster_arrive(), cluster_wait();
  }

  // 2. The keys of all lists, in the order of the blocks: `before` are of lower columns.
  const uint32_t listed = shared.listed;
  uint32_t all = 0, before = 0, lengths[BLOCKS], low = 0xFFFFFFFFu, high = 0;
#pragma unroll
  for (int r = 0; r < BLOCKS; ++r) {
    lengths[r] = BLOCKS == 1 ? listed : shared.peers[r][0];
    low = min(low, BLOCKS == 1 ? shared.low : shared.peers[r][1]);
    high = max(high, BLOCKS == 1 ? shared.high : shared.peers[r][2]);
    if (r < rank) before += lengths[r];
    all += lengths[r];
  }
  constexpr int KEYS = BLOCKS * MOST_LISTED / THREADS;
  uint32_t keys[KEYS];
#pragma unroll
  for (int j = 0; j < KEYS; ++j) {
    keys[j] = NONE;
    if (j * THREADS >= all) continue;
    uint32_t at = j * THREADS + threadIdx.x;
    if (at >= all) continue;
    uint32_t r = 0;
#pragma unroll
    for (int next = 0; next < BLOCKS - 1; ++next) {
      if (r == next && at >= lengths[next]) at -= lengths[next], ++r;
    }
    keys[j] = BLOCKS == 1 ? shared.list[at].key : load_of_rank(&shared.list[at].key, r);
  }
  if (BLOCKS > 1) cluster_arrive();

  // 3. Without a threshold all are chosen.
  uint32_t threshold = NONE, cut = 0, offset = before;
  if (all > places) {
    const auto t = block.search(low, high, places, 0, [&](auto count) {
#pragma unroll
      for (int j = 0; j < KEYS; ++j) if (j * THREADS < all) count(keys[j]);
    });
    threshold = t.key;
    // Above the threshold and equal to it, in the lists of lower columns.
    uint32_t above = 0, equal = 0;
#pragma unroll
    for (int j = 0; j < KEYS; ++j) {
      if (j * THREADS >= before) continue;
      if (j * THREADS + threadIdx.x < before) above += keys[j] > threshold, equal += keys[j] == threshold;
    }
    if (BLOCKS > 1) {
      const Pair counts = block.sums(above, equal);
      above = counts.a, equal = counts.b;
    }
    offset = above + min(equal, places - t.above);
    if (t.above + t.equal > places) {
      // Of the equal ones the lowest columns.
      const auto equals = [&](auto count) {
        for (uint32_t i = threadIdx.x; i < listed; i += THREADS) {
          if (shared.list[i].key == threshold) count(range.rest(shared.list[i].column));
        }
      };
      uint32_t own = 0;
      equals([&](uint32_t) { ++own; });
      own = block.sums(own, 0).a;
      const uint32_t rest = places - t.above - min(equal, places - t.above);
      if (own > rest) cut = lowest_columns(block, range, rest, equals);
    }
  }
  for (uint32_t i = threadIdx.x; i < listed; i += THREADS) {
    const Listed entry = shared.list[i];
    const uint32_t at = entry.column - range.begin;
    if (entry.key > threshold || (entry.key == threshold && range.rest(entry.column) >= cut)) atomicOr(&shared.map[at / 32], 1u << at % 32);
  }
  __syncthreads();
  for (uint32_t p = 0; p < pieces; ++p) {
    const uint32_t at = (p * THREADS + threadIdx.x) * WORDS;
    uint32_t marks[WORDS], mine = 0;
#pragma unroll
    for (int w = 0; w < WORDS; ++w) marks[w] = shared.map[at + w], mine += __popc(marks[w]);
    const Pair marked = block.scan(mine);
    int32_t *place = to + offset + marked.a;
#pragma unroll
    for (int w = 0; w < WORDS; ++w) {
      for (uint32_t word = marks[w]; word != 0; word &= word - 1) *place++ = int32_t(range.begin + (at + w) * 32 + __ffs(word) - 1);
    }
    offset += marked.b;
  }
  if (rank == 0) for (uint32_t k = all + threadIdx.x; k < places; k += THREADS) to[k] = -1;
  // Nobody leaves while another reads its list.
  if (BLOCKS > 1) cluster_wait();
}

#define TOPK_SELECT(THREADS, BLOCKS, GROUPS)                                                                                          \
  extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(THREADS, 512 / THREADS)                                 \
  topk_select_##THREADS##_##BLOCKS##_##GROUPS(const __grid_constant__ View scores, const __grid_constant__ View out, uint32_t pieces, \
                                              uint32_t *) {                                                                           \
    select<THREADS, BLOCKS, GROUPS>(scores, out, BLOCKS == 8 ? pieces : 1);                                                           \
  }
// By threads and blocks of a row and groups of a thread: at least twice as many groups of a block as places, 512 or 2048.
TOPK_SELECT(256, 1, 4)
TOPK_SELECT(512, 1, 2)
TOPK_SELECT(512, 2, 2)
TOPK_SELECT(512, 4, 2)
TOPK_SELECT(512, 8, 2)
TOPK_SELECT(256, 1, 16)
TOPK_SELECT(512, 1, 8)
TOPK_SELECT(512, 2, 8)
TOPK_SELECT(512, 4, 8)
TOPK_SELECT(512, 8, 8)
