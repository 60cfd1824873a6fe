// What the kernels of `sparse_attention` for the matrix units of Hopper have in common: entries of 512 channels that become tiles of
// BF16 in shared memory, queries of 64 heads, probabilities, and the way of the values out.
//
// Two warpgroups, the consumers, multiply; two more, the producers, each fill one half of the channels of every tile. A tile is a
// chunk of 64 entries. Entries of the window and the others fill chunks of their own, in the order of the lists. A score adds its
// products in steps of 16 channels, a value adds the entries in steps of 16, in the order of the chunks. A total adds per chunk, in
// each of four lanes, eight pairs of neighbours 8 apart, then the lanes in a tree, then the chunks in order. What the contract rounds to
// BF16 is exp(s - m) under the exact maximum of all scores, so that values come after a first look at every entry.
#pragma once

#include "cache_read.cuh"
#include "fragments.cuh"
#include "view.cuh"
#include "wgmma_transposed.cuh"

struct Source {
  View cache;
  View slots;
  uint32_t format;
  uint32_t entries;
};

#if HAS_WGMMA

constexpr int DIM = 512, HEADS = 64, CHUNK = 64;
// Chunks of a row that `sparse_attention_tiles.cu` takes at most: their scores fit into registers. `sparse_attention_long.cu` takes more.
constexpr int SHORT_CHUNKS = 10;
constexpr int CONSUMERS = 256, PRODUCERS = 256, THREADS = CONSUMERS + PRODUCERS;
constexpr uint32_t OP = 19;
// Places in the catalogue.
enum Argument : uint32_t { WINDOW_SLOTS = 4, GLOBAL_SLOTS = 8 };
enum Rule : uint32_t { WINDOW_SLOT_BEYOND = 2, GLOBAL_SLOT_BEYOND = 5 };

// Dynamic shared memory. A stage has half of the channels of a chunk; its number in the ring is even for the lower half. A box is 64
// channels of a chunk: rows of 128 bytes, swizzled. Channels of eight lie in the order 0, 4, 1, 5, 2, 6, 3, 7, which decoding gives.
constexpr int STAGES = 0, STAGE_BYTES = CHUNK * DIM, BOX_BYTES = CHUNK * 128;
// Barriers: a stage is full, a stage is empty; then room for those of a kernel and its words.
constexpr int FULL = STAGES + 4 * STAGE_BYTES, EMPTY = FULL + 4 * 8, OWN_WORDS = EMPTY + 4 * 8;
// Whether an entry has a NaN.
constexpr int NANS = OWN_WORDS + 128;
// Entries as distances from their cache in units of 16 bytes; as slots where not all lies on that boundary.
constexpr int LIST = FULL + 256, LISTED_CHUNKS = 15;
constexpr int QUERIES = FULL + 4096, QUERY_BYTES = HEADS * DIM * 2, PROBABILITY_BYTES = HEADS * CHUNK * 2;
static_assert(NANS + 4 <= LIST && LIST + LISTED_CHUNKS * CHUNK * 4 <= QUERIES && QUERIES % 1024 == 0);
constexpr uint32_t NO_ENTRY = 0xFFFFFFFFu;

extern __shared__ __align__(1024) unsigned char shared[];

__device__ inline float &shared_float(int at) { return *reinterpret_cast<float *>(shared + at); }
__device__ inline uint32_t &shared_word(int at) { return *reinterpret_cast<uint32_t *>(shared + at); }
__device__ inline uint32_t barrier_at(int at) { return shared_address(shared + at); }
__device__ inline void arrive(uint32_t barrier) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory"); }
// One arrival of this warp, for what all of its lanes did.
__device__ inline void arrive_warp(uint32_t barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) arrive(barrier);
}

// NaN if one of them is.
__device__ inline float maximum(float a, float b) {
  float m;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(a), "f"(b));
  return m;
}

// ---- the list ----

// Whether all entries are BF16, which can be copied; channels then lie in the tiles in their own order.
template <bool IS_ALIGNED> __device__ inline bool is_plain(const Source &window, const Source &global) {
  return IS_ALIGNED && window.format == CACHE_BF16 && (global.format == CACHE_BF16 || global.slots.columns() == 0);
}

__device__ inline int32_t slot_at(const Source &source, int64_t row, int64_t column) {
  return column < source.slots.columns() ? __ldg(source.slots.at<int32_t>(row * source.slots.stride[2]) + column) : -1;
}

// A slot that is not there is refused, and counts as none.
__device__ inline int32_t checked(const Source &source, int32_t slot, uint32_t *fault, uint32_t argument, uint32_t rule, bool &is_wrong) {
  if (slot < source.cache.shape[2] * source.entries) return slot;
  refuse(fault, OP, argument, rule);
  is_wrong = true;
  return -1;
}

template <bool IS_ALIGNED> __device__ inline void list(const Source &source, int place, int32_t slot) {
  const uint32_t units = source.format == CACHE_BF16 ? 64 : source.format == CACHE_FP8 ? 33 : 18;
  const uint32_t page = uint32_t(slot) / source.entries;
  if (slot >= 0) shared_word(LIST + place * 4) = IS_ALIGNED ? page * uint32_t(source.cache.stride[2] / 16) + (uint32_t(slot) - page * source.entries) * units : uint32_t(slot);
}

// Sums over the words that W warps have written at `at`: of those before `warp`, and of all.
template <int W> __device__ inline void sum_counts(int at, int warp, uint32_t &before, uint32_t &all) {
  before = all = 0;
#pragma unroll
  for (int k = 0; k < W; ++k) {
    const uint32_t counts = shared_word(at + k * 4);
    before += k < warp ? counts : 0;
    all += counts;
  }
}

// Entries of the window and of the other cache, and what follows from them.
struct Lists {
  int window, global;
  // Bits: the window is FP4, the others are FP4, all entries are BF16.
  int formats;
  __device__ bool is_plain() const { return (formats & 4) != 0; }
  __device__ bool is_fp4(int chunk) const { return (formats >> (chunk < window_chunks() ? 0 : 1) & 1) != 0; }
  __device__ int window_chunks() const { return (window + CHUNK - 1) / CHUNK; }
  __device__ int chunks() const { return window_chunks() + (global + CHUNK - 1) / CHUNK; }
  // Of a chunk.
  __device__ int entries(int chunk) const { return min(CHUNK, chunk < window_chunks() ? window - chunk * CHUNK : global - (chunk - window_chunks()) * CHUNK); }
};

// What follows from the formats, as `Lists` has it.
template <bool IS_ALIGNED> __device__ inline int formats_of(const Source &window, const Source &global) {
  return (window.format == CACHE_FP4_ROW16 ? 1 : 0) | (global.format == CACHE_FP4_ROW16 ? 2 : 0) | (is_plain<IS_ALIGNED>(window, global) ? 4 : 0);
}

// ---- producers: entries to tiles ----

// FP4 entries lie in the tiles as 2^-16 of what they are, which saves a product a pair: scores and probabilities make up for it.
constexpr float FP4_FACTOR = 65536.0f;
// As pairs of BF16: 2^16, 1, and the 2^110 that is left of 2^126.
constexpr uint32_t FP4_FACTORS = 0x47804780u, ONES = 0x3F803F80u, FP4_SCALES = 0x76807680u;

// Four E2M1 codes in each half: pair j has code j of both, times the pair of scales, times 2^-126.
__device__ inline void unpack_small_e2m1(uint32_t codes, uint32_t scales, uint32_t (&pairs)[4]) {
  const uint32_t magnitudes[4] = {codes << 6, codes << 2, codes >> 2, codes >> 6};
#pragma unroll
  for (int j = 0; j < 4; ++j) pairs[j] = multiply_pair((magnitudes[j] & 0x01C001C0u) | (codes << (12 - 4 * j) & SIGNS), scales);
}

// Bytes of an entry's values; its scales follow.
template <int F> __host__ __device__ constexpr int value_bytes() { return F == CACHE_BF16 ? DIM * 2 : F == CACHE_FP8 ? DIM : DIM / 2; }

// Four words from memory: at once, or one by one from any address.
template <bool IS_ALIGNED> __device__ inline void load_words(const unsigned char *from, uint32_t (&words)[4]) {
  if constexpr (IS_ALIGNED) {
    const uint4 four = __ldg(reinterpret_cast<const uint4 *>(from));
    words[0] = four.x, words[1] = four.y, words[2] = four.z, words[3] = four.w;
  } else {
    // Words that hold a byte of them.
    const int behind = int(reinterpret_cast<uintptr_t>(from) % 4);
    const uint32_t *whole = reinterpret_cast<const uint32_t *>(from - behind);
    uint32_t low = __ldg(whole);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const uint32_t high = behind > 0 || n < 3 ? __ldg(whole + n + 1) : 0;
      words[n] = __funnelshift_r(low, high, 8 * behind);
      low = high;
    }
  }
}

// Eight BF16 channels in the order of the tiles, and back.
__device__ inline void to_tile(const uint32_t (&words)[4], uint32_t (&pairs)[4]) {
#pragma unroll
  for (int j = 0; j < 4; ++j) pairs[j] = pick(words[j / 2], words[2 + j / 2], j % 2 ? 0x7632 : 0x5410);
}
__device__ inline uint4 from_tile(uint4 t) {
  return make_uint4(pick(t.x, t.y, 0x5410), pick(t.z, t.w, 0x5410), pick(t.x, t.y, 0x7632), pick(t.z, t.w, 0x7632));
}

// 32 bytes of values of an entry, and their scales.
template <int F, bool IS_ALIGNED> struct Part {
  static constexpr int CHANNELS = F == CACHE_BF16 ? 16 : F == CACHE_FP8 ? 32 : 64;
  uint32_t low[4], high[4];
  uint32_t scales;

  // Channels `channel` on of the entry at this place of the list. `cache` is where the cache begins, kept in registers.
  __device__ void load(const Source &source, const unsigned char *cache, int place, int channel) {
    const uint32_t listed = shared_word(LIST + place * 4);
    if (listed == NO_ENTRY) {
#pragma unroll
      for (int k = 0; k < 4; ++k) low[k] = high[k] = 0;
      scales = 0;
      return;
    }
    const unsigned char *entry = IS_ALIGNED ? cache + uint64_t(listed) * 16 : entry_of<F>(source.cache, listed, source.entries, DIM).values;
    const unsigned char *values = entry + channel / CHANNELS * 32;
    load_words<IS_ALIGNED>(values, low);
    load_words<IS_ALIGNED>(values + 16, high);
    const unsigned char *scale = entry + value_bytes<F>();
    if constexpr (F == CACHE_FP8) scales = __ldg(scale + channel / 32);
    else if constexpr (F == CACHE_FP4_ROW16) scales = IS_ALIGNED ? __ldg(reinterpret_cast<const uint32_t *>(scale + channel / 16)) : load_bytes<4>(scale + channel / 16);
  }

  // To a row of a box: `at` is the address of its piece of sixteen bytes, from which the others differ in bits.
  __device__ void store(uint32_t at) const {
    const auto put = [&](int piece, const uint32_t(&pairs)[4]) {
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at ^ piece * 16), "r"(pairs[0]), "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3]) : "memory");
    };
    uint32_t pairs[4];
    if constexpr (F == CACHE_BF16) {
      to_tile(low, pairs);
      put(0, pairs);
      to_tile(high, pairs);
      put(1, pairs);
    } else if constexpr (F == CACHE_FP8) {
      const uint32_t both = scales_ue8m0(scales, scales);
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const uint32_t(&words)[4] = w < 2 ? low : high;
        unpack_e4m3(words[w % 2 * 2], words[w % 2 * 2 + 1], both, pairs);
        put(w, pairs);
      }
    } else {
#pragma unroll
      for (int w = 0; w < 8; w += 4) {
        const uint32_t both = multiply_pair(scales_e4m3(scales >> 4 * w, scales >> (4 * w + 8)), FP4_SCALES);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          unpack_small_e2m1((w == 0 ? low : high)[k], pick(both, 0, k < 2 ? 0x1010 : 0x3232), pairs);
          put(w + k, pairs);
        }
      }
    }
  }

  // Bit 7 of a byte is set if a code is NaN. A NaN of BF16 makes the scores so.
  __device__ uint32_t nans() const {
    uint32_t found = 0;
    if constexpr (F == CACHE_FP8) {
#pragma unroll
      for (int k = 0; k < 4; ++k) found |= nans_of_e4m3(low[k]) | nans_of_e4m3(high[k]);
      found |= scales == 255 ? 0x80u : 0;
    } else if constexpr (F == CACHE_FP4_ROW16) {
      found = nans_of_e4m3(scales);
    }
    return found & 0x80808080u;
  }
};

// The thread's number, read where it is asked for: what follows from it is not computed ahead and kept in registers.
__device__ inline int thread_here() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

// Fills stages of one parity with N channels from `channel` on of `count` chunks, `step` apart, all of one format. `number` counts the
// chunks that were filled before. By a warpgroup.
template <int F, int N, bool IS_ALIGNED> __device__ void fill(const Source &source, int number, int chunk, int step, int count, int channel, int half) {
  using Own = Part<F, IS_ALIGNED>;
  // A warp takes eight entries by four parts of each, or fewer parts of more entries, and then the next parts, and the next entries.
  constexpr int WIDTH = N / Own::CHANNELS, ACROSS = WIDTH < 4 ? WIDTH : 4, ROWS = 32 / ACROSS, TURNS = WIDTH / ACROSS;
  // Of a chunk; fewer than one if there is not a part for each thread.
  constexpr int PARTS = CHUNK * WIDTH / 128, BATCHES = PARTS < 1 ? 1 : PARTS;
  constexpr int PER_BOX = 64 / Own::CHANNELS, PIECES = Own::CHANNELS / 8;
  const int thread = thread_here(), lane = thread % 32, warp = thread / 32 % 4;
  const unsigned char *const cache = source.cache.data;
  const int part = lane / 8 % ACROSS, entry = warp * (BATCHES / TURNS) * ROWS + lane / 8 / ACROSS * 8 + lane % 8;
  const bool has_part = PARTS >= 1 || entry < CHUNK;
  const int own_channel = channel + part * Own::CHANNELS;
  const uint32_t own_row = barrier_at(STAGES + half * STAGE_BYTES + part / PER_BOX * BOX_BYTES + entry * 128 + ((part % PER_BOX * PIECES) ^ lane % 8) * 16);
  static_assert(ACROSS % PER_BOX == 0 || TURNS == 1, "turns are whole boxes apart");
  Own parts[2];
  const auto load = [&](Own &own, int place, int turn) {
    if (has_part) own.load(source, cache, place + entry + turn / TURNS * ROWS, own_channel + turn % TURNS * ACROSS * Own::CHANNELS);
  };
  if (count <= 0) return;
  load(parts[0], chunk * CHUNK, 0);
#pragma unroll 1
  for (int end = number + count; number < end; ++number) {
    const uint32_t row = own_row + number % 2 * 2 * STAGE_BYTES;
#pragma unroll
    for (int turn = 0; turn < BATCHES; ++turn) {
      if (turn + 1 < BATCHES) {
        load(parts[(turn + 1) % 2], chunk * CHUNK, turn + 1);
      } else if (number + 1 < end) {
        chunk += step;
        load(parts[BATCHES == 1 ? 1 : 0], chunk * CHUNK, 0);
      }
      if (turn == 0) barrier_wait(barrier_at(EMPTY) + (number % 2 * 2 + half) * 8, (number / 2 & 1) ^ 1);
      const Own &own = parts[turn % 2];
      if (has_part && own.nans() != 0) shared_word(NANS) = 1;
      if (has_part) own.store(row + turn % TURNS * ACROSS / PER_BOX * BOX_BYTES + turn / TURNS * ROWS * 128);
    }
    if (BATCHES == 1) parts[0] = parts[1];
    publish_stores();
    arrive_warp(barrier_at(FULL) + (number % 2 * 2 + half) * 8);
  }
}

// The same for BF16 entries that need no other order, by copies that run on their own and arrive for every thread.
template <int N> __device__ void copy(const Source &source, int number, int chunk, int step, int count, int channel, int half) {
  constexpr int ACROSS = N / 8;
  const int at = thread_here() % 128, unit = at % ACROSS;
  const unsigned char *const from = source.cache.data + (channel + unit * 8) * 2;
  const uint32_t to = barrier_at(STAGES + half * STAGE_BYTES + unit / 8 * BOX_BYTES);
#pragma unroll 1
  for (const int end = number + count; number < end; ++number, chunk += step) {
    const uint32_t stage = number % 2 * 2 + half, tile = to + number % 2 * 2 * STAGE_BYTES;
    barrier_wait(barrier_at(EMPTY) + stage * 8, (number / 2 & 1) ^ 1);
#pragma unroll 4
    for (int entry = at / ACROSS; entry < CHUNK; entry += 128 / ACROSS) {
      const uint32_t listed = shared_word(LIST + (chunk * CHUNK + entry) * 4), bytes = listed == NO_ENTRY ? 0 : 16;
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(tile + entry * 128 + (unit % 8 ^ entry % 8) * 16), "l"(from + uint64_t(bytes == 0 ? 0 : listed) * 16), "r"(bytes)
                   : "memory");
    }
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier_at(FULL) + stage * 8) : "memory");
  }
}

// Arrivals that fill a stage.
__device__ inline uint32_t fillers(bool is_plain) { return is_plain ? 128 : 4; }

template <int N, bool IS_ALIGNED> __device__ inline void fill_any(const Source &source, int number, int chunk, int step, int count, int channel, int half, bool is_plain) {
  if (is_plain) return copy<N>(source, number, chunk, step, count, channel, half);
  switch (source.format) {
  case CACHE_BF16: return fill<CACHE_BF16, N, IS_ALIGNED>(source, number, chunk, step, count, channel, half);
  case CACHE_FP8: return fill<CACHE_FP8, N, IS_ALIGNED>(source, number, chunk, step, count, channel, half);
  case CACHE_FP4_ROW16: return fill<CACHE_FP4_ROW16, N, IS_ALIGNED>(source, number, chunk, step, count, channel, half);
  }
}

// ---- consumers ----

// Queries of `heads` heads, zeros for the others; a thread of 256 has sixteen pieces of eight channels, a warp half of a head.
struct Queries {
  uint32_t words[16][4];

  template <bool IS_ALIGNED> __device__ void load(const View &q, int64_t row, int first, int heads) {
#pragma unroll
    for (int n = 0; n < 16; ++n) {
      const int head = n * 4 + threadIdx.x / 64, piece = threadIdx.x % 64;
#pragma unroll
      for (int k = 0; k < 4; ++k) words[n][k] = 0;
      if (head < heads) {
        load_words<IS_ALIGNED>(reinterpret_cast<const unsigned char *>(q.at<uint16_t>(row * q.stride[1] + (first + head) * q.stride[2]) + 8 * piece), words[n]);
      }
    }
  }
  // Into shared memory, in their own order or in that of the tiles.
  __device__ void store(bool is_plain) const {
#pragma unroll
    for (int n = 0; n < 16; ++n) {
      const int head = n * 4 + threadIdx.x / 64, piece = threadIdx.x % 64;
      uint32_t pairs[4];
      to_tile(words[n], pairs);
#pragma unroll
      for (int k = 0; k < 4; ++k) pairs[k] = is_plain ? words[n][k] : pairs[k];
      *reinterpret_cast<uint4 *>(shared + QUERIES + piece / 8 * BOX_BYTES + head * 128 + ((piece % 8) ^ (head % 8)) * 16) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    }
  }
};

// Four matrices of eight rows by sixteen bytes, as the products have them: two of rows, two of columns. A lane has the address of a row.
__device__ inline void store_matrices(uint32_t at, const uint32_t (&m)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(m[0]), "r"(m[1]), "r"(m[2]), "r"(m[3]) : "memory");
}
// Its address for columns 0 to 15 of its warp's sixteen rows; others differ from it in bits of the number of eight columns.
__device__ inline uint32_t matrices_at(int base, int pitch) {
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane % 16;
  return barrier_at(base + row * pitch + ((lane / 16) ^ row % 8) * 16);
}

// Scores of a chunk, 64 heads by 64 entries: the products of the queries with the tile of stages `stage` and the next, as soon as they
// are full. Committed, not awaited. FREES leaves the lower half to the producers; the upper one is the caller's to leave.
template <bool FREES> __device__ inline void multiply_queries(float (&scores)[32], int stage, int phase, bool is_plain) {
  // A loop, so that it is little code.
  uint64_t a = swizzled(barrier_at(QUERIES)), b = swizzled(barrier_at(STAGES + stage * STAGE_BYTES));
  pin(scores);
#pragma unroll 1
  for (int box = 0; box < 8; ++box) {
    if (box % 4 == 0) {
      barrier_wait(barrier_at(FULL + (stage + box / 4) * 8), phase);
      if (is_plain) publish_stores();
    }
    wgmma_fence();
#pragma unroll
    for (int n = 0; n < 4; ++n) wgmma(scores, a + n * 32 / 16, b + n * 32 / 16, box + n);
    wgmma_commit();
    a += BOX_BYTES / 16, b += BOX_BYTES / 16;
    if (FREES && box == 4) {
      wgmma_wait<1>();
      arrive_warp(barrier_at(EMPTY + stage * 8));
    }
  }
}

// Products become scores; entries beyond the chunk's count for nothing.
__device__ inline void finish_scores(float (&scores)[32], float scale, bool is_fp4, int entries) {
  // Exact unless the factor overflows, and then so do the scores.
  const float factor = __fmul_rn(is_fp4 ? FP4_FACTOR : 1.0f, scale);
#pragma unroll
  for (int n = 0; n < 32; ++n) scores[n] = __fmul_rn(scores[n], factor);
  if (entries < CHUNK) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < 32; ++n) scores[n] = n / 4 * 8 + lane % 4 * 2 + n % 2 < entries ? scores[n] : __uint_as_float(0xFF800000u);
  }
}

// Adds the values of a chunk: its probabilities, and channels of its tile from `tile` on, in P parts: one instruction for 256 of them
// would need more registers than a thread has before `setmaxnreg`. `is_first` replaces what was there.
template <int P, int N> __device__ inline void multiply_entries(float (&values)[P][N], int probabilities, int tile, bool is_first) {
  const uint64_t a = swizzled(barrier_at(probabilities)), b = swizzled_transposed(barrier_at(tile), BOX_BYTES);
#pragma unroll
  for (int part = 0; part < P; ++part) pin(values[part]);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int part = 0; part < P; ++part) wgmma_transposed(values[part], a + k * 32 / 16, b + (k * 2048 + part * 2 * BOX_BYTES) / 16, k > 0 || !is_first);
  }
  wgmma_commit();
}
template <int P, int N> __device__ inline void await_entries(float (&values)[P][N]) {
  wgmma_wait<0>();
#pragma unroll
  for (int part = 0; part < P; ++part) pin(values[part]);
}

// The scores of a chunk, of two heads of this thread, as probabilities under the maxima m, rounded, to `base`; their sums. Where no
// argument is below -86, the exponential needs no care for small results.
template <bool IS_NEAR> __device__ inline void round_probabilities(const float (&scores)[32], const float (&m)[2], uint32_t place, uint32_t factors, float (&sums)[2]) {
  constexpr float LOG2_E = 1.4426950408889634f;
  const auto power = [](float x) {
    if constexpr (!IS_NEAR) return exp2f(x);
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  };
  const float shift[2] = {-__fmul_rn(m[0], LOG2_E), -__fmul_rn(m[1], LOG2_E)};
  sums[0] = sums[1] = 0.0f;
#pragma unroll
  for (int j = 0; j < 8; j += 2) {
    uint32_t pairs[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int r = n % 2, from = 4 * (j + n / 2) + 2 * r;
      const float low = power(__fmaf_rn(scores[from], LOG2_E, shift[r])), high = power(__fmaf_rn(scores[from + 1], LOG2_E, shift[r]));
      sums[r] = __fadd_rn(sums[r], __fadd_rn(low, high));
      pairs[n] = multiply_pair(round_pair(low, high), factors);
    }
    store_matrices(place ^ j * 16, pairs);
  }
}

// One over a total under the maximum m, and the sink.
__device__ inline float share_of(float total, float m, const View &sink, int head, bool has_head) {
  if (has_head) total = __fadd_rn(total, expf(__fsub_rn(sink.at<float>()[head], m)));
  return __frcp_rn(total);
}

// Channels from `channel` on of all heads, times a factor for each of two heads, to memory. Through `board`, shared memory that only
// this warpgroup uses.
template <bool IS_ALIGNED, int P, int M>
__device__ inline void put_values(const float (&values)[P][M], const float (&factors)[2], int board, bool is_plain, const View &out, int64_t row, int first, int heads, int channel) {
  constexpr int N = P * M * 2;
  const int warpgroup = threadIdx.x / 128, thread = threadIdx.x % 128;
  const uint32_t place = matrices_at(board, 2 * N);
#pragma unroll
  for (int j = 0; j < N / 8; j += 2) {
    uint32_t pairs[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int r = n % 2, from = (j + n / 2) * 4 + 2 * r;
      pairs[n] = round_pair(__fmul_rn(values[from / M][from % M], factors[r]), __fmul_rn(values[from / M][from % M + 1], factors[r]));
    }
    store_matrices((place ^ j % 8 * 16) + j / 8 * 128, pairs);
  }
  warpgroup_sync(2 + warpgroup);
#pragma unroll
  for (int n = 0; n < N / 16; ++n) {
    const int at = n * 128 + thread, to = at / (N / 8), piece = at % (N / 8);
    uint4 eight = *reinterpret_cast<const uint4 *>(shared + board + to * (2 * N) + (piece ^ to % 8) * 16);
    if (!is_plain) eight = from_tile(eight);
    if (to >= heads) continue;
    uint16_t *const place = out.at<uint16_t>(row * out.stride[1] + (first + to) * out.stride[2] + channel + 8 * piece);
    if constexpr (IS_ALIGNED) {
      *reinterpret_cast<uint4 *>(place) = eight;
    } else {
      const uint32_t words[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
      for (int k = 0; k < 8; ++k) place[k] = uint16_t(words[k / 2] >> k % 2 * 16);
    }
  }
}

#endif
