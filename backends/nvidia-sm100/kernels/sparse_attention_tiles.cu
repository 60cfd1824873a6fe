// `sparse_attention` of BF16 queries of 512 channels with rounded probabilities, of rows whose entries fill at most ten chunks of 64,
// by the matrix units of Hopper. A row with more of them is left to `sparse_attention_long.cu`: which kernel takes it follows from what
// it lists, not from how wide the lists of its batch are.
//
// A cluster of 1, 2 or 4 blocks takes a row and 64 of its heads. In a block two warpgroups decode entries to BF16 tiles in shared
// memory, and two multiply out of them:
//   scores  S = Q K^T, 64 heads by 64 entries (a chunk), which stay in registers; a warpgroup takes every second chunk of its block,
//           a block every C-th chunk of the row;
//   values  O = P V, 64 heads by channels; each block and warpgroup takes some of the channels and all entries.
// Between them stands the exact maximum of all scores: what the contract rounds to BF16 is exp(s - m) under that maximum. So every
// entry is decoded twice, the second time out of the L2 cache.
//
// Bytes: the listed entries, q and out once from memory. Flops: 4 per head, entry and channel. Shared memory, a chunk: 64 KiB written
// and 128 KiB read for the scores, 64 KiB written and 80 KiB read for the values. Code runs once for a row, so a short one counts as
// much as a quick one.
//
// Order. The entries of the window and the others fill chunks of 64 of their own, in the order of the lists. A score adds its products
// in steps of 16 channels, a value adds the entries in steps of 16, in the order of the chunks. A total adds per chunk, in each of four
// lanes, eight pairs of neighbours 8 apart, then the lanes in a tree, then the chunks in order. Who does what does not enter: any size
// of cluster gives the same bits.
#include "common/cache_read.cuh"
#include "common/fragments.cuh"
#include "common/view.cuh"
#include "common/wgmma_transposed.cuh"

struct Source {
  View cache;
  View slots;
  uint32_t format;
  uint32_t entries;
};

#if HAS_WGMMA

constexpr int DIM = 512, HEADS = 64, CHUNK = 64;
// Chunks whose scores fit into the registers.
constexpr int MOST_CHUNKS = 10;
constexpr int THREADS = 512;
constexpr uint32_t OP = 19;
// Places in the catalogue.
enum Argument : uint32_t { WINDOW_SLOTS = 4, GLOBAL_SLOTS = 8 };
enum Rule : uint32_t { WINDOW_SLOT_BEYOND = 2, GLOBAL_SLOT_BEYOND = 5 };

// Dynamic shared memory. A stage has half of the channels of a chunk; its number in the ring is even for the lower half. A box is 64
// channels of a chunk: rows of 128 bytes, swizzled. Channels of eight lie in the order 0, 4, 1, 5, 2, 6, 3, 7, which decoding gives.
constexpr int STAGES = 0, STAGE_BYTES = CHUNK * DIM, BOX_BYTES = CHUNK * 128;
// The queries, and after the last score the probabilities of each chunk.
constexpr int QUERIES = STAGES + 4 * STAGE_BYTES, PROBABILITIES = QUERIES, PROBABILITY_BYTES = HEADS * CHUNK * 2;
// Entries as distances from their cache in units of 16 bytes; as slots where not all lies on that boundary.
constexpr int LIST = PROBABILITIES + MOST_CHUNKS * PROBABILITY_BYTES;
// Of each chunk and head the sum of the probabilities; of each warpgroup of the cluster and each head its maximum.
constexpr int SUMS = LIST + MOST_CHUNKS * CHUNK * 4, MAXIMA = SUMS + MOST_CHUNKS * HEADS * 4;
// Whether an entry has a NaN; chunks of the window, and all, where they cost the producers no registers.
constexpr int NANS = MAXIMA + 8 * HEADS * 4, WINDOW_CHUNKS = NANS + 4, CHUNKS = NANS + 8;
constexpr int FULL = NANS + 16, EMPTY = FULL + 4 * 8, HAS_MAXIMA = EMPTY + 4 * 8, HAS_PROBABILITIES = HAS_MAXIMA + 8;
constexpr int SHARED_BYTES = HAS_PROBABILITIES + 8;
static_assert(SHARED_BYTES == 220256, "as the host asks for");
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

// ---- clusters ----

// At the same place in every block.
template <int C> __device__ inline void store_all(int at, uint32_t bits) {
  if constexpr (C == 1) {
    shared_word(at) = bits;
  } else {
#pragma unroll
    for (int rank = 0; rank < C; ++rank) {
      asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\nst.shared::cluster.b32 [there], %2;\n}" ::"r"(barrier_at(at)), "r"(rank), "r"(bits) : "memory");
    }
  }
}

// Sixteen bytes from here to the same place in the other blocks.
template <int C> __device__ inline void copy_to_others(int at, int own) {
  const uint4 four = *reinterpret_cast<const uint4 *>(shared + at);
#pragma unroll
  for (int n = 1; n < C; ++n) {
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\nst.shared::cluster.v4.b32 [there], {%2, %3, %4, %5};\n}" ::"r"(barrier_at(at)), "r"((own + n) % C),
                 "r"(four.x), "r"(four.y), "r"(four.z), "r"(four.w)
                 : "memory");
  }
}

// What was stored in shared memory, also in that of other blocks, is seen by the matrix instructions after a barrier.
template <int C> __device__ inline void publish_to_cluster() {
  if constexpr (C == 1) publish_stores();
  else asm volatile("fence.proxy.async.shared::cluster;" ::: "memory");
}

// The consumers of all blocks of the cluster meet; a barrier serves once.
template <int C> __device__ inline void meet(int at) {
  const int lane = threadIdx.x % 32;
  __syncwarp();
  if constexpr (C == 1) {
    if (lane == 0) arrive(barrier_at(at));
    barrier_wait(barrier_at(at), 0);
  } else {
    if (lane < C) {
      asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\nmbarrier.arrive.release.cluster.shared::cluster.b64 _, [there];\n}" ::"r"(barrier_at(at)), "r"(lane)
                   : "memory");
    }
    asm volatile("{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], 0;\n@done bra DONE;\nbra AGAIN;\nDONE:\n}" ::"r"(barrier_at(at))
                 : "memory");
  }
}

// ---- the list ----

// Whether all entries are BF16, which can be copied; channels then lie in the tiles in their own order.
template <bool IS_ALIGNED> __device__ inline bool is_plain(const Source &window, const Source &global) {
  return IS_ALIGNED && window.format == CACHE_BF16 && (global.format == CACHE_BF16 || global.slots.columns() == 0);
}

// Entries of the window and of the other cache, and what follows from them.
struct Lists {
  int window, global;
  bool is_wrong;
  // Bits: the window is FP4, the others are FP4, all entries are BF16.
  int formats;
  __device__ bool is_plain() const { return (formats & 4) != 0; }
  __device__ bool is_fp4(int chunk) const { return (formats >> (chunk < window_chunks() ? 0 : 1) & 1) != 0; }
  __device__ int window_chunks() const { return (window + CHUNK - 1) / CHUNK; }
  __device__ int chunks() const { return window_chunks() + (global + CHUNK - 1) / CHUNK; }
  // Of a chunk.
  __device__ int entries(int chunk) const { return min(CHUNK, chunk < window_chunks() ? window - chunk * CHUNK : global - (chunk - window_chunks()) * CHUNK); }
};

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

// Lists the entries. By all threads; the list is not yet visible to others.
template <bool IS_ALIGNED> __device__ inline Lists list_entries(const Source &window, const Source &global, int64_t row, uint32_t *fault) {
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const auto slot_of = [&](const Source &source, int64_t k) {
    return k < source.slots.columns() ? __ldg(source.slots.at<int32_t>(row * source.slots.stride[2]) + k) : -1;
  };
  bool is_wrong = false;
  const auto check = [&](const Source &source, int32_t slot, uint32_t argument, uint32_t rule) {
    if (slot < source.cache.shape[2] * source.entries) return slot;
    refuse(fault, OP, argument, rule);
    is_wrong = true;
    return -1;
  };
  const auto put = [&](const Source &source, int place, int32_t slot) {
    const uint32_t entry_units = source.format == CACHE_BF16 ? 64 : source.format == CACHE_FP8 ? 33 : 18;
    const uint32_t page = uint32_t(slot) / source.entries;
    if (slot >= 0 && place < MOST_CHUNKS * CHUNK) shared_word(LIST + place * 4) = IS_ALIGNED ? page * uint32_t(source.cache.stride[2] / 16) + (uint32_t(slot) - page * source.entries) * entry_units : uint32_t(slot);
  };
  Lists lists = {};
  // One round lists both caches if they have no more columns than that.
  const int window_rounds = int((window.slots.columns() + THREADS - 1) / THREADS), global_rounds = int((global.slots.columns() + THREADS - 1) / THREADS);
  const int rounds = window_rounds <= 1 && global_rounds <= 1 ? 1 : window_rounds + global_rounds;
  int32_t of_window = slot_of(window, thread), of_global = slot_of(global, thread);
  for (int n = thread; n < MOST_CHUNKS * CHUNK; n += THREADS) shared_word(LIST + n * 4) = NO_ENTRY;
#pragma unroll 1
  for (int round = 0; round < rounds; ++round) {
    // In more: the window, part by part, then the others.
    if (rounds > 1) {
      const int of_others = round - window_rounds;
      of_window = of_others < 0 ? slot_of(window, int64_t(round) * THREADS + thread) : -1;
      of_global = of_others < 0 ? -1 : slot_of(global, int64_t(of_others) * THREADS + thread);
    }
    of_window = check(window, of_window, WINDOW_SLOTS, WINDOW_SLOT_BEYOND);
    of_global = check(global, of_global, GLOBAL_SLOTS, GLOBAL_SLOT_BEYOND);
    const uint32_t w = __ballot_sync(0xFFFFFFFFu, of_window >= 0), g = __ballot_sync(0xFFFFFFFFu, of_global >= 0), before = (1u << lane) - 1;
    // Counts of both in the halves of a word.
    if (round > 0) __syncthreads();
    if (lane == 0) shared_word(SUMS + warp * 4) = __popc(w) | __popc(g) << 16;
    __syncthreads();
    uint32_t others = 0, all = 0;
#pragma unroll
    for (int k = 0; k < THREADS / 32; ++k) {
      const uint32_t counts = shared_word(SUMS + k * 4);
      others += k < warp ? counts : 0;
      all += counts;
    }
    put(window, lists.window + int(others & 0xFFFF) + __popc(w & before), of_window);
    lists.window += int(all & 0xFFFF);
    put(global, lists.window_chunks() * CHUNK + lists.global + int(others >> 16) + __popc(g & before), of_global);
    lists.global += int(all >> 16);
  }
  lists.is_wrong = is_wrong;
  lists.formats = (window.format == CACHE_FP4_ROW16 ? 1 : 0) | (global.format == CACHE_FP4_ROW16 ? 2 : 0) | (is_plain<IS_ALIGNED>(window, global) ? 4 : 0);
  return lists;
}

// ---- producers: entries to tiles ----

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

template <int N, bool IS_ALIGNED> __device__ inline void fill_any(const Source &source, int number, int chunk, int step, int count, int channel, int half, bool is_plain) {
  if (is_plain) return copy<N>(source, number, chunk, step, count, channel, half);
  switch (source.format) {
  case CACHE_BF16: return fill<CACHE_BF16, N, IS_ALIGNED>(source, number, chunk, step, count, channel, half);
  case CACHE_FP8: return fill<CACHE_FP8, N, IS_ALIGNED>(source, number, chunk, step, count, channel, half);
  case CACHE_FP4_ROW16: return fill<CACHE_FP4_ROW16, N, IS_ALIGNED>(source, number, chunk, step, count, channel, half);
  }
}

// Of n chunks those of this block.
template <int C> __device__ inline int own_chunks(int n, int rank) { return (n - rank + C - 1) / C; }

template <int C, bool IS_ALIGNED> __device__ void produce(const Source &window, const Source &global) {
  const int half = threadIdx.x / 128 - 2;
  const auto count_at = [](int at) { return int(*reinterpret_cast<const volatile uint32_t *>(shared + at)); };
  if constexpr (C == 1) {
    // The same code for the scores and for the values.
#pragma unroll 1
    for (int turn = 0; turn < 2; ++turn) {
      {
        const int middle = count_at(WINDOW_CHUNKS), number = turn * count_at(CHUNKS);
        fill_any<256, IS_ALIGNED>(window, number, 0, 1, middle, 256 * half, half, is_plain<IS_ALIGNED>(window, global));
      }
      {
        const int middle = count_at(WINDOW_CHUNKS), chunks = count_at(CHUNKS), number = turn * chunks + middle;
        fill_any<256, IS_ALIGNED>(global, number, middle, 1, chunks - middle, 256 * half, half, is_plain<IS_ALIGNED>(window, global));
      }
    }
  } else {
    const int rank = int(block_of_cluster());
    {
      const int own_middle = own_chunks<C>(count_at(WINDOW_CHUNKS), rank);
      fill_any<256, IS_ALIGNED>(window, 0, rank, C, own_middle, 256 * half, half, is_plain<IS_ALIGNED>(window, global));
    }
    {
      const int own_middle = own_chunks<C>(count_at(WINDOW_CHUNKS), rank), own = own_chunks<C>(count_at(CHUNKS), rank);
      fill_any<256, IS_ALIGNED>(global, own_middle, own_middle * C + rank, C, own - own_middle, 256 * half, half, is_plain<IS_ALIGNED>(window, global));
    }
    {
      const int own = own_chunks<C>(count_at(CHUNKS), rank);
      fill_any<256 / C, IS_ALIGNED>(window, own, 0, 1, count_at(WINDOW_CHUNKS), (2 * rank + half) * (256 / C), half, is_plain<IS_ALIGNED>(window, global));
    }
    {
      const int middle = count_at(WINDOW_CHUNKS), chunks = count_at(CHUNKS), own = own_chunks<C>(chunks, rank);
      fill_any<256 / C, IS_ALIGNED>(global, own + middle, middle, 1, chunks - middle, (2 * rank + half) * (256 / C), half, is_plain<IS_ALIGNED>(window, global));
    }
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

template <int C, bool IS_ALIGNED>
__device__ void consume(const Queries &q, const View &sink, const View &out, float scale, const Lists &lists, int rank, int64_t row, int first, int heads) {
  // Chunks of a warpgroup; channels of it.
  constexpr int OWN = (MOST_CHUNKS + 2 * C - 1) / (2 * C), N = 256 / C;
  const int warpgroup = threadIdx.x / 128, thread = threadIdx.x % 128, lane = threadIdx.x % 32;
  const int chunks = lists.chunks(), own = own_chunks<C>(chunks, rank);
  // Of the two heads of this thread the lower; the other is 8 further on.
  const int head = thread / 32 * 16 + lane / 4;
  q.store(lists.is_plain());
  publish_stores();
  asm volatile("bar.sync 1, 256;" ::: "memory");

  float scores[OWN][32], m[2] = {__uint_as_float(0xFF800000u), __uint_as_float(0xFF800000u)}, least[2] = {3.0e38f, 3.0e38f};
  const uint64_t queries = swizzled(barrier_at(QUERIES));
#pragma unroll
  for (int k = 0; k < OWN; ++k) {
    const int number = 2 * k + warpgroup, chunk = number * C + rank;
    if (number >= own) continue;
    float(&s)[32] = scores[k];
    // A loop, so that all chunks' products are little code.
    uint64_t a = queries, b = swizzled(barrier_at(STAGES + number % 2 * 2 * STAGE_BYTES));
    pin(s);
#pragma unroll 1
    for (int box = 0; box < 8; ++box) {
      if (box % 4 == 0) {
        barrier_wait(barrier_at(FULL + (number % 2 * 2 + box / 4) * 8), number / 2 & 1);
        if (lists.is_plain()) publish_stores();
      }
      wgmma_fence();
#pragma unroll
      for (int n = 0; n < 4; ++n) wgmma(s, a + n * 32 / 16, b + n * 32 / 16, box + n);
      wgmma_commit();
      a += BOX_BYTES / 16, b += BOX_BYTES / 16;
      if (box == 4) {
        wgmma_wait<1>();
        arrive_warp(barrier_at(EMPTY + number % 2 * 2 * 8));
      }
    }
    wgmma_wait<0>();
    pin(s);
    arrive_warp(barrier_at(EMPTY + (number % 2 * 2 + 1) * 8));
    // Exact unless the factor overflows, and then so do the scores.
    const float factor = __fmul_rn(lists.is_fp4(chunk) ? FP4_FACTOR : 1.0f, scale);
    const int entries = lists.entries(chunk);
#pragma unroll
    for (int n = 0; n < 32; ++n) s[n] = __fmul_rn(s[n], factor);
    if (entries < CHUNK) {
      // Entries that are not there count for nothing.
#pragma unroll
      for (int n = 0; n < 32; ++n) s[n] = n / 4 * 8 + lane % 4 * 2 + n % 2 < entries ? s[n] : __uint_as_float(0xFF800000u);
    } else {
#pragma unroll
      for (int n = 0; n < 32; ++n) least[n / 2 % 2] = fminf(least[n / 2 % 2], s[n]);
    }
#pragma unroll
    for (int n = 0; n < 32; ++n) m[n / 2 % 2] = maximum(m[n / 2 % 2], s[n]);
  }

  // The maxima of all. A NaN in an entry makes every head of the row NaN.
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    m[r] = maximum(m[r], __shfl_xor_sync(0xFFFFFFFFu, m[r], 1));
    m[r] = maximum(m[r], __shfl_xor_sync(0xFFFFFFFFu, m[r], 2));
    if (*reinterpret_cast<const volatile uint32_t *>(shared + NANS) != 0) m[r] = __uint_as_float(0x7FC00000u);
    if (lane % 4 == 0) store_all<C>(MAXIMA + ((2 * rank + warpgroup) * HEADS + head + 8 * r) * 4, __float_as_uint(m[r]));
  }
  meet<C>(HAS_MAXIMA);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int n = 0; n < 2 * C; ++n) m[r] = maximum(m[r], shared_float(MAXIMA + (n * HEADS + head + 8 * r) * 4));
  }

  const bool is_near = __all_sync(0xFFFFFFFFu, least[0] - m[0] > -86.0f && least[1] - m[1] > -86.0f);
#pragma unroll
  for (int k = 0; k < OWN; ++k) {
    const int number = 2 * k + warpgroup, chunk = number * C + rank;
    if (number >= own) continue;
    const int base = PROBABILITIES + chunk * PROBABILITY_BYTES;
    const uint32_t place = matrices_at(base, 128);
    const uint32_t factors = lists.is_fp4(chunk) ? FP4_FACTORS : ONES;
    float sums[2];
    if (is_near && lists.entries(chunk) == CHUNK) round_probabilities<true>(scores[k], m, place, factors, sums);
    else round_probabilities<false>(scores[k], m, place, factors, sums);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sums[r] = __fadd_rn(sums[r], __shfl_xor_sync(0xFFFFFFFFu, sums[r], 1));
      sums[r] = __fadd_rn(sums[r], __shfl_xor_sync(0xFFFFFFFFu, sums[r], 2));
      if (lane % 4 == 0) store_all<C>(SUMS + (chunk * HEADS + head + 8 * r) * 4, __float_as_uint(sums[r]));
    }
    if constexpr (C > 1) {
      // A warp's sixteen heads.
      __syncwarp();
#pragma unroll
      for (int n = 0; n < 4; ++n) copy_to_others<C>(base + thread / 32 * 2048 + n * 512 + lane * 16, rank);
    }
  }
  publish_to_cluster<C>();
  meet<C>(HAS_PROBABILITIES);
  if constexpr (C > 1) publish_to_cluster<C>();

  // In parts of at most 128 channels.
  constexpr int PART = N < 128 ? N : 128;
  float values[N / PART][PART / 2];
#pragma unroll 1
  for (int n = 0; n < chunks; ++n) {
    const int number = own + n, stage = number % 2 * 2 + warpgroup;
    const uint64_t tile = swizzled_transposed(barrier_at(STAGES + stage * STAGE_BYTES), BOX_BYTES), probabilities = swizzled(barrier_at(PROBABILITIES + n * PROBABILITY_BYTES));
    barrier_wait(barrier_at(FULL + stage * 8), number / 2 & 1);
    if (lists.is_plain()) publish_stores();
#pragma unroll
    for (int part = 0; part < N / PART; ++part) pin(values[part]);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int part = 0; part < N / PART; ++part) {
        wgmma_transposed(values[part], probabilities + k * 32 / 16, tile + (k * 2048 + part * 2 * BOX_BYTES) / 16, n + k);
      }
    }
    wgmma_commit();
    wgmma_wait<0>();
#pragma unroll
    for (int part = 0; part < N / PART; ++part) pin(values[part]);
    arrive_warp(barrier_at(EMPTY + stage * 8));
  }

  // What is multiplied by one over the total goes through a stage that only this warpgroup has read.
  const int board = STAGES + warpgroup * STAGE_BYTES;
  float factors[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float total = 0.0f;
    for (int chunk = 0; chunk < chunks; ++chunk) total = __fadd_rn(total, shared_float(SUMS + (chunk * HEADS + head + 8 * r) * 4));
    if (head + 8 * r < heads) total = __fadd_rn(total, expf(__fsub_rn(sink.at<float>()[first + head + 8 * r], m[r])));
    factors[r] = __frcp_rn(total);
  }
  const uint32_t place = matrices_at(board, 2 * N);
#pragma unroll
  for (int j = 0; j < N / 8; j += 2) {
    uint32_t pairs[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int r = n % 2, column = j + n / 2, from = column % (PART / 8) * 4 + 2 * r;
      pairs[n] = round_pair(__fmul_rn(values[column / (PART / 8)][from], factors[r]), __fmul_rn(values[column / (PART / 8)][from + 1], factors[r]));
    }
    store_matrices((place ^ j % 8 * 16) + j / 8 * 128, pairs);
  }
  warpgroup_sync(2 + warpgroup);
#pragma unroll
  for (int n = 0; n < N / 16; ++n) {
    const int at = n * 128 + thread, to = at / (N / 8), piece = at % (N / 8);
    uint4 eight = *reinterpret_cast<const uint4 *>(shared + board + to * (2 * N) + (piece ^ to % 8) * 16);
    if (!lists.is_plain()) eight = from_tile(eight);
    if (to >= heads) continue;
    uint16_t *const place = out.at<uint16_t>(row * out.stride[1] + (first + to) * out.stride[2] + (2 * rank + warpgroup) * N + 8 * piece);
    if constexpr (IS_ALIGNED) {
      *reinterpret_cast<uint4 *>(place) = eight;
    } else {
      const uint32_t words[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
      for (int k = 0; k < 8; ++k) place[k] = uint16_t(words[k / 2] >> k % 2 * 16);
    }
  }
}

// ---- the whole ----

// Asks for the listed entries of this block's chunks ahead of their use.
template <int C> __device__ inline void prefetch_entries(const Source &source, int first, int end, int rank) {
  const uint32_t bytes = source.format == CACHE_BF16 ? 1024 : source.format == CACHE_FP8 ? 528 : 288;
  for (int n = first * CHUNK + threadIdx.x; n < end * CHUNK; n += THREADS) {
    const uint32_t listed = shared_word(LIST + n * 4);
    if (listed == NO_ENTRY || n / CHUNK % C != rank) continue;
    const unsigned char *entry = source.cache.data + uint64_t(listed) * 16;
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(entry), "r"(bytes) : "memory");
  }
}

// By clusters of C blocks. IS_ALIGNED: all entries and rows begin on boundaries of 16 bytes.
template <int C, bool IS_ALIGNED>
__device__ void attend(const View &q, const Source &window, const Source &global, const View &sink, const View &out, float scale, uint32_t *fault) {
  const int rank = C == 1 ? 0 : int(block_of_cluster());
  const int groups = int(max(int64_t(1), (q.shape[2] + HEADS - 1) / HEADS));
  const int64_t row = blockIdx.x / C / groups;
  const int first = int(blockIdx.x / C % groups) * HEADS, heads = int(min(int64_t(HEADS), q.shape[2] - first));
  // The queries are asked for first.
  Queries queries;
  if (threadIdx.x < 256) queries.load<IS_ALIGNED>(q, row, first, heads);
  if (threadIdx.x == 0) {
#pragma unroll
    for (int stage = 0; stage < 4; ++stage) barrier_init(barrier_at(FULL + stage * 8), is_plain<IS_ALIGNED>(window, global) ? 128 : 4), barrier_init(barrier_at(EMPTY + stage * 8), 4);
    barrier_init(barrier_at(HAS_MAXIMA), 8 * C), barrier_init(barrier_at(HAS_PROBABILITIES), 8 * C);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    shared_word(NANS) = 0;
  }
  Lists lists = list_entries<IS_ALIGNED>(window, global, row, fault);
  if (threadIdx.x == 0) shared_word(WINDOW_CHUNKS) = lists.window_chunks(), shared_word(CHUNKS) = lists.chunks();
  if (__syncthreads_or(lists.is_wrong)) return;
  // `sparse_attention_long.cu` takes such a row.
  if (lists.chunks() > MOST_CHUNKS) return;
  if (lists.chunks() == 0) {
    for (int n = threadIdx.x; n < heads * DIM; n += THREADS) out.at<uint16_t>(row * out.stride[1] + (first + n / DIM) * out.stride[2])[n % DIM] = 0;
    return;
  }
  if (IS_ALIGNED) {
    prefetch_entries<C>(window, 0, lists.window_chunks(), rank);
    prefetch_entries<C>(global, lists.window_chunks(), lists.chunks(), rank);
  }
  if constexpr (C > 1) cluster_sync();
  // A block of a larger cluster keeps fewer scores, and leaves more registers to its producers; a consumer and a producer have 256.
  constexpr int PRODUCER_REGISTERS = C == 1 ? 56 : C == 2 ? 88 : 104;
  if (threadIdx.x < 256) {
    more_registers<256 - PRODUCER_REGISTERS>();
    consume<C, IS_ALIGNED>(queries, sink, out, scale, lists, rank, row, first, heads);
  } else {
    fewer_registers<PRODUCER_REGISTERS>();
    produce<C, IS_ALIGNED>(window, global);
  }
}
#endif

#if HAS_WGMMA
#define ATTEND(...) attend<__VA_ARGS__>(q, window, global, sink, out, scale, fault)
#else
#define ATTEND(...)
#endif
#define KERNEL(NAME, C, IS_ALIGNED)                                                                                                                     \
  extern "C" __global__ void __cluster_dims__(C) __launch_bounds__(512, 1) NAME(                                                                        \
      const __grid_constant__ View q, const __grid_constant__ Source window, const __grid_constant__ Source global, const __grid_constant__ View sink, \
      const __grid_constant__ View out, float scale, uint32_t *fault) {                                                                                \
    ATTEND(C, IS_ALIGNED);                                                                                                                             \
  }

KERNEL(sparse_attention_tiles_1, 1, true)
KERNEL(sparse_attention_tiles_2, 2, true)
KERNEL(sparse_attention_tiles_4, 4, true)
// Tensors anywhere.
KERNEL(sparse_attention_tiles_any, 1, false)
