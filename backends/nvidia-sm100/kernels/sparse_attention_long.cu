// `sparse_attention` of BF16 queries of 512 channels with rounded probabilities, of rows whose entries fill more than ten chunks of
// 64, by the matrix units of Hopper, of tensors anywhere. Other rows are left to `sparse_attention_tiles.cu`.
//
// A cluster of four blocks takes a row and 64 of its heads, segment by segment of eight chunks: once for the maxima, and again for the
// rest. Entries are decoded straight into the registers that the matrix instructions read:
//   scores  S^T = K Q^T, 64 entries (a chunk) by 64 heads; a warpgroup takes every eighth chunk;
//   values  O^T = V^T P^T, 512 channels by 64 heads; each block and warpgroup takes some of the channels and all entries.
// Between them stands the exact maximum of all scores: what the contract rounds to BF16 is exp(s - m) under that maximum.
//
// Bytes: the listed entries three times, mostly out of the L2 cache; q and out once. Flops: 4 per head, entry and channel.
//
// Order. The entries of the window and the others fill chunks of 64 of their own, in the order of the lists. A score adds its
// 512 products in 32 steps of 16. A total adds, over chunks in order and four warps in order, 16 probabilities in a tree. A
// value adds the entries in steps of 16 in the order of the chunks.
#include "common/cache_read.cuh"
#include "common/cluster.cuh"
#include "common/fragments.cuh"
#include "common/order.cuh"
#include "common/view.cuh"

struct Source {
  View cache;
  View slots;
  uint32_t format;
  uint32_t entries;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr int DIM = 512, HEADS = 64, CHUNK = 64;
// Of a cluster, and of a block.
constexpr int BLOCKS = 4, WARPGROUPS = 2, THREADS = 128 * WARPGROUPS;
// Chunks that a row has more of, which fit into shared memory, and chunks of a segment.
constexpr int MOST_CHUNKS = 10, SEGMENT_CHUNKS = 8;
constexpr uint32_t OP = 19;
// Places in the catalogue.
enum Argument : uint32_t { WINDOW_SLOTS = 4, GLOBAL_SLOTS = 8 };
enum Rule : uint32_t { WINDOW_SLOT_BEYOND = 2, GLOBAL_SLOT_BEYOND = 5 };

// Dynamic shared memory.
constexpr int QUERIES = 0, QUERY_BYTES = HEADS * DIM * 2;
// Of each chunk the scores, as their threads hold them; later its probabilities and, from SUMS on, sums of them per warp.
constexpr int SCORES = QUERIES + QUERY_BYTES, SCORE_BYTES = CHUNK * HEADS * 4, SUMS = CHUNK * HEADS * 2;
// Slots.
constexpr int LIST = SCORES + MOST_CHUNKS * SCORE_BYTES;
constexpr int MAXIMA = LIST + MOST_CHUNKS * CHUNK * 4, TOTALS = MAXIMA + HEADS * 4;
constexpr int SHARED_BYTES = TOTALS + HEADS * 4;
static_assert(SHARED_BYTES == 232448, "all that a block can have");
constexpr uint32_t NO_ENTRY = 0xFFFFFFFFu;

extern __shared__ __align__(1024) unsigned char shared[];

__device__ inline uint32_t shared_address(const void *at) { return uint32_t(__cvta_generic_to_shared(at)); }
__device__ inline float &shared_float(int at) { return *reinterpret_cast<float *>(shared + at); }

// ---- matrix instructions ----

__device__ inline void fence_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> __device__ inline void await_products() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
// What threads stored is seen by the matrix instructions after this and a barrier.
__device__ inline void publish_to_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Rows of 128 bytes along K, swizzled, eight rows to a group of 1024 bytes.
__device__ inline uint64_t matrix_at(uint32_t address) { return uint64_t(address >> 4 & 0x3FFF) | 1ull << 16 | 64ull << 32 | 1ull << 62; }

template <int R> __device__ inline void pin(float (&d)[R]) {
#pragma unroll
  for (int i = 0; i < R; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Operands that are computed before this point.
template <int R> __device__ inline void pin(uint32_t (&a)[R]) {
#pragma unroll
  for (int i = 0; i < R; ++i) asm volatile("" : "+r"(a[i])::"memory");
}

#define D8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
// d (+)= a b: 64 rows by 64 columns over 16. A thread has of d and a the rows t / 4 and t / 4 + 8 of its warp's sixteen; of d
// the columns 2 (t % 4) + 8 j and the next; of a the columns 2 (t % 4), the next, and those eight further on.
__device__ inline void multiply(float (&d)[32], const uint32_t *a, uint64_t b, int add) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
               "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
               "{%32,%33,%34,%35}, %36, p, 1, 1, 0;\n}"
               : D8(0), D8(8), D8(16), D8(24)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
#undef D8

// ---- clusters ----

// Of the cluster's threads.
__device__ inline void sync_all() {
  cluster_arrive();
  cluster_wait();
}
// At the same place in every block.
__device__ inline void store_all(int at, uint32_t bits) {
#pragma unroll
  for (int rank = 0; rank < BLOCKS; ++rank) {
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\nst.shared::cluster.b32 [there], %2;\n}" ::"r"(shared_address(shared + at)), "r"(rank), "r"(bits)
                 : "memory");
  }
}

// Sixteen bytes from here to the same place in the other blocks.
__device__ inline void copy_to_others(int at) {
  const uint4 four = *reinterpret_cast<const uint4 *>(shared + at);
#pragma unroll
  for (uint32_t n = 1; n < BLOCKS; ++n) {
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\nst.shared::cluster.v4.b32 [there], {%2, %3, %4, %5};\n}" ::"r"(shared_address(shared + at)),
                 "r"((cluster_rank() + n) % BLOCKS), "r"(four.x), "r"(four.y), "r"(four.z), "r"(four.w)
                 : "memory");
  }
}

// ---- scores ----

// Bytes of an entry's values; its scales follow.
template <int F> __host__ __device__ constexpr int value_bytes() { return F == CACHE_BF16 ? DIM * 2 : F == CACHE_FP8 ? DIM : DIM / 2; }

// W words from any address.
template <int W> __device__ inline void load_words(const unsigned char *from, uint32_t *words) {
  // Words that hold a byte of them.
  const int behind = int(reinterpret_cast<uintptr_t>(from) % 4);
  const uint32_t *whole = reinterpret_cast<const uint32_t *>(from - behind);
  uint32_t low = __ldg(whole);
#pragma unroll
  for (int n = 0; n < W; ++n) {
    const uint32_t high = behind > 0 || n + 1 < W ? __ldg(whole + n + 1) : 0;
    words[n] = __funnelshift_r(low, high, 8 * behind);
    low = high;
  }
}

// An entry of the list.
template <int F> __device__ inline const unsigned char *entry_at(const Source &source, int place) {
  const uint32_t slot = *reinterpret_cast<const uint32_t *>(shared + LIST + place * 4);
  return slot == NO_ENTRY ? nullptr : entry_of<F>(source.cache, slot, source.entries, DIM).values;
}

// Sixteen bytes of values of two entries: STEPS times eight channels of 32 neighbours.
template <int F> struct Piece {
  static constexpr int STEPS = F == CACHE_BF16 ? 1 : F == CACHE_FP8 ? 2 : 4;
  uint32_t words[2][4];
  uint32_t scales[2];

  // Piece `piece` of a thread, of entries n and n + 8 of the list: part of channels 32 (4 i + t % 4) on, where 4 / STEPS pieces
  // make up an i.
  __device__ void load(const Source &source, int n, int piece) {
    constexpr int PARTS = 4 / STEPS;
    const int place = 4 * (piece / PARTS) + threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const unsigned char *entry = entry_at<F>(source, n + 8 * r);
      if (entry == nullptr) {
#pragma unroll
        for (int k = 0; k < 4; ++k) words[r][k] = 0;
        scales[r] = 0;
        continue;
      }
      load_words<4>(entry + (place * PARTS + piece % PARTS) * 16, words[r]);
      const unsigned char *scale = entry + value_bytes<F>();
      if constexpr (F == CACHE_FP8) scales[r] = __ldg(scale + place);
      else if constexpr (F == CACHE_FP4_ROW16) scales[r] = load_bytes<2>(scale + 2 * place);
    }
  }

  // The eight channels of step w, as the operands of two products: product h has channels 2 h, 2 h + 4, 2 h + 1, 2 h + 5.
  __device__ void decode(int w, uint32_t (&a)[8]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      uint32_t pairs[4];
      if constexpr (F == CACHE_FP4_ROW16) {
        const uint32_t both = scales_e4m3(scales[r], scales[r] >> 8);
        unpack_e2m1(words[r][w], w < 2 ? pick(both, 0, 0x1010) : pick(both, 0, 0x3232), pairs);
      } else if constexpr (F == CACHE_FP8) {
        unpack_e4m3(words[r][2 * w], words[r][2 * w + 1], scales_ue8m0(scales[r], scales[r]), pairs);
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) pairs[j] = pick(words[r][j / 2], words[r][2 + j / 2], j % 2 ? 0x7632 : 0x5410);
      }
      a[r] = pairs[0], a[2 + r] = pairs[1], a[4 + r] = pairs[2], a[6 + r] = pairs[3];
    }
  }

  // Bit 7 of a byte is set if a code is NaN.
  __device__ uint32_t nans() const {
    uint32_t found = 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if constexpr (F == CACHE_FP8) {
#pragma unroll
        for (int k = 0; k < 4; ++k) found |= nans_of_e4m3(words[r][k]);
        found |= scales[r] == 255 ? 0x80u : 0;
      } else if constexpr (F == CACHE_FP4_ROW16) {
        found |= nans_of_e4m3(scales[r]);
      }
    }
    return found & 0x80808080u;
  }
};

// Halves 2 N values of a lane: gives half of them to the lane that differs by `lanes`, and joins what that gives to the others;
// returns which half it kept.
template <int N, class Join> __device__ inline int exchange(float (&values)[16], int lanes, Join join) {
  const bool is_upper = (threadIdx.x & lanes) != 0;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const float kept = is_upper ? values[n + N] : values[n], given = is_upper ? values[n] : values[n + N];
    values[n] = join(kept, __shfl_xor_sync(0xFFFFFFFFu, given, lanes));
  }
  return is_upper;
}

// Joins, over the eight lanes of equal t % 4 and in a tree, values of heads 8 j + 2 (t % 4) + e at [2 j + e]. A lane gets those
// of two heads: it returns the first of them, the other is the next.
template <class Join> __device__ inline int join_lanes(float (&values)[16], Join join) {
  const int high = exchange<8>(values, 16, join), middle = exchange<4>(values, 8, join), low = exchange<2>(values, 4, join);
  return 8 * (4 * high + 2 * middle + low) + 2 * (int(threadIdx.x) % 4);
}

// Floats as integers of the same order, and back.
__device__ inline int ordered(int bits) { return bits ^ (bits >> 31 & 0x7FFFFFFF); }
__device__ inline int &maximum_of(int head) { return *reinterpret_cast<int *>(shared + MAXIMA + head * 4); }

// Scores of chunks `first`, `first` + step, ... below `end`, all of one format; `finds` the maximum of each head, or else keeps them.
// Returns bits if an entry has a NaN.
template <int F> __device__ uint32_t score(const Source &source, int first, int end, int step, float scale, bool finds) {
  // Pieces under way.
  constexpr int AHEAD = 2, STEPS = Piece<F>::STEPS;
  const int thread = threadIdx.x % 128, row = thread / 32 * 16 + thread % 32 / 4;
  const uint64_t queries = matrix_at(shared_address(shared + QUERIES));
  uint32_t nans = 0;
  if (first >= end) return nans;
  Piece<F> pieces[AHEAD];
#pragma unroll
  for (int i = 0; i < AHEAD; ++i) pieces[i].load(source, first * CHUNK + row, i);
#pragma unroll 1
  for (int chunk = first; chunk < end; chunk += step) {
    float sums[32];
#pragma unroll
    for (int n = 0; n < 32; ++n) sums[n] = 0.0f;
    uint32_t operands[2][8];
    pin(sums);
#pragma unroll
    for (int n = 0; n < 16; ++n) {
      const int number = n / STEPS;
      Piece<F> &piece = pieces[number % AHEAD];
      if (n % STEPS == 0) nans |= piece.nans();
      await_products<1>();
      uint32_t(&a)[8] = operands[n % 2];
      piece.decode(n % STEPS, a);
      if (n % STEPS == STEPS - 1) {
        const int next = number + AHEAD < 16 / STEPS ? chunk : chunk + step;
        if (next < end) piece.load(source, next * CHUNK + row, (number + AHEAD) % (16 / STEPS));
      }
      pin(a);
      fence_products();
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        // 64 channels, or four products, are a block of 8 KiB.
        const int product = 2 * n + h;
        multiply(sums, a + 4 * h, queries + (product / 4 * 8192 + product % 4 * 32) / 16, product > 0);
      }
      commit_products();
    }
    await_products<0>();
    pin(sums);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      // Entries that are not there count for nothing.
      const bool exists = *reinterpret_cast<const uint32_t *>(shared + LIST + (chunk * CHUNK + row + 8 * r) * 4) != NO_ENTRY;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float &s = sums[4 * j + 2 * r + e];
          s = exists ? __fmul_rn(s, scale) : __uint_as_float(0xFF800000u);
        }
      }
    }
    if (!finds) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        *reinterpret_cast<float4 *>(shared + SCORES + chunk * SCORE_BYTES + j * 2048 + thread * 16) =
            make_float4(sums[4 * j], sums[4 * j + 1], sums[4 * j + 2], sums[4 * j + 3]);
      }
    }
    if (finds) {
      float maxima[16];
#pragma unroll
      for (int n = 0; n < 16; ++n) maxima[n] = fmaxf(sums[n / 2 * 4 + n % 2], sums[n / 2 * 4 + 2 + n % 2]);
      const int head = join_lanes(maxima, [](float a, float b) { return fmaxf(a, b); });
      // A maximum is the same in any order.
#pragma unroll
      for (int e = 0; e < 2; ++e) atomicMax(&maximum_of(head + e), ordered(__float_as_int(maxima[e])));
    }
  }
  return nans;
}

// Turns the scores of chunk `chunk`, which this warpgroup has made, into probabilities in every block of the cluster. Entries
// n and n + 8 of sixteen are neighbours there.
__device__ void round_probabilities(int chunk) {
  const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
  const int base = SCORES + chunk * SCORE_BYTES;
  const auto sync_warpgroup = [] { asm volatile("bar.sync %0, 128;" ::"r"(1 + int(threadIdx.x) / 128) : "memory"); };
  float4 scores[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) scores[j] = *reinterpret_cast<const float4 *>(shared + base + j * 2048 + thread * 16);
  // The probabilities lie where other threads have their scores.
  sync_warpgroup();
  float sums[16];
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float2 maxima = *reinterpret_cast<const float2 *>(shared + MAXIMA + (8 * j + 2 * (lane % 4)) * 4);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      constexpr float LOG2_E = 1.4426950408889634f;
      const float m = e ? maxima.y : maxima.x;
      const float low = exp2f(__fmul_rn(__fsub_rn(e ? scores[j].y : scores[j].x, m), LOG2_E));
      const float high = exp2f(__fmul_rn(__fsub_rn(e ? scores[j].w : scores[j].z, m), LOG2_E));
      const int head = 8 * j + 2 * (lane % 4) + e;
      *reinterpret_cast<uint32_t *>(shared + base + head * 128 + ((32 * warp + 4 * (lane / 4)) ^ (head % 8) << 4)) = round_pair(low, high);
      sums[2 * j + e] = __fadd_rn(low, high);
    }
  }
  const int head = join_lanes(sums, [](float a, float b) { return __fadd_rn(a, b); });
  *reinterpret_cast<float2 *>(shared + base + SUMS + (warp * HEADS + head) * 4) = make_float2(sums[0], sums[1]);
  sync_warpgroup();
  for (int at = thread * 16; at < SUMS + 4 * HEADS * 4; at += 128 * 16) copy_to_others(base + at);
}

// ---- values ----

// Two neighbouring channels of four entries.
template <int F> struct Column {
  static constexpr int BYTES = value_bytes<F>() / 256;
  uint32_t words[4];
  uint32_t scales[4];

  // Of entries n, n + 8, n + 4 and n + 12 of the list.
  __device__ void load(const Source &source, int n, int channel) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const unsigned char *entry = entry_at<F>(source, n + (k % 2) * 8 + k / 2 * 4);
      if (entry == nullptr) {
        words[k] = 0;
        scales[k] = 0;
        continue;
      }
      const unsigned char *from = entry + channel * BYTES / 2;
      if constexpr (BYTES == 1) words[k] = __ldg(from);
      else if constexpr (BYTES == 2) words[k] = load_bytes<2>(from);
      else load_words<1>(from, words + k);
      if constexpr (F == CACHE_FP8) scales[k] = __ldg(entry + DIM + channel / 32);
      else if constexpr (F == CACHE_FP4_ROW16) scales[k] = __ldg(entry + DIM / 2 + channel / 16);
    }
  }

  // As an operand: rows are channels, neighbours two entries.
  __device__ void decode(uint32_t (&a)[4]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t x = words[2 * half], y = words[2 * half + 1];
      const uint32_t x_scale = scales[2 * half], y_scale = scales[2 * half + 1];
      uint32_t pairs[4];
      if constexpr (F == CACHE_FP4_ROW16) unpack_e2m1(pick(x, y, 0x5410), scales_e4m3(x_scale, y_scale), pairs);
      else if constexpr (F == CACHE_FP8) unpack_e4m3(x, y, scales_ue8m0(x_scale, y_scale), pairs);
      else pairs[0] = pick(x, y, 0x5410), pairs[1] = pick(x, y, 0x7632);
      a[2 * half] = pairs[0], a[2 * half + 1] = pairs[1];
    }
  }
};

// Adds chunks `first` to `end` - 1, all of one format, to 16 channels per warp from `channel` of this thread on.
template <int F> __device__ void add_values(float (&sums)[32], const Source &source, int first, int end, int channel) {
  // Columns under way: those of half a chunk.
  constexpr int AHEAD = 2;
  const int lane_entry = threadIdx.x % 4;
  if (first >= end) return;
  Column<F> columns[AHEAD];
#pragma unroll
  for (int s = 0; s < AHEAD; ++s) columns[s].load(source, first * CHUNK + s * 16 + lane_entry, channel);
  pin(sums);
#pragma unroll 1
  for (int chunk = first; chunk < end; ++chunk) {
    const uint64_t probabilities = matrix_at(shared_address(shared + SCORES + chunk * SCORE_BYTES));
    uint32_t operands[2][4];
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      Column<F> &column = columns[s % AHEAD];
      await_products<1>();
      column.decode(operands[s % 2]);
      if (chunk + (s + AHEAD) / 4 < end) column.load(source, chunk * CHUNK + (s + AHEAD) * 16 + lane_entry, channel);
      pin(operands[s % 2]);
      fence_products();
      multiply(sums, operands[s % 2], probabilities + s * 32 / 16, 1);
      commit_products();
    }
    // With products under way across the edge of the loop the compiler would serialise all of them.
    await_products<0>();
  }
  pin(sums);
}

// ---- the whole ----

// Chunks of the window, and of the other cache.
struct Lists {
  int window, global;
  bool is_wrong;
};

// Lists the entries of chunks `from` to `from` + MOST_CHUNKS - 1. By all threads; the list is not yet visible to others.
__device__ inline Lists list_entries(const Source &window, const Source &global, int64_t row, int from, uint32_t *fault) {
  int *scratch = reinterpret_cast<int *>(shared + TOTALS);
  uint32_t *list = reinterpret_cast<uint32_t *>(shared + LIST);
  const int thread = threadIdx.x;
  const auto slot_of = [&](const Source &source, int64_t k) {
    return k < source.slots.columns() ? __ldg(source.slots.at<int32_t>(row * source.slots.stride[2]) + k) : -1;
  };
  const int32_t ahead[2] = {slot_of(window, thread), slot_of(global, thread)};
  for (int n = thread; n < MOST_CHUNKS * CHUNK; n += THREADS) list[n] = NO_ENTRY;
  bool is_wrong = false;
  const auto part = [&](const Source &source, int32_t slot, int chunk, uint32_t argument, uint32_t rule) {
    const int64_t columns = source.slots.columns(), capacity = source.cache.shape[2] * source.entries;
    int count = 0;
    for (int64_t base = 0; base < columns; base += THREADS) {
      const int32_t next = slot_of(source, base + THREADS + thread);
      if (slot >= capacity) {
        refuse(fault, OP, argument, rule);
        is_wrong = true;
        slot = -1;
      }
      const Count found = count_block<THREADS>(slot >= 0, scratch);
      const int place = (chunk - from) * CHUNK + count + found.before;
      if (slot >= 0 && place >= 0 && place < MOST_CHUNKS * CHUNK) list[place] = uint32_t(slot);
      count += found.all;
      slot = next;
    }
    return (count + CHUNK - 1) / CHUNK;
  };
  Lists lists;
  lists.window = part(window, ahead[0], 0, WINDOW_SLOTS, WINDOW_SLOT_BEYOND);
  lists.global = part(global, ahead[1], lists.window, GLOBAL_SLOTS, GLOBAL_SLOT_BEYOND);
  lists.is_wrong = is_wrong;
  return lists;
}

// Queries of `heads` heads into shared memory, zeros for the others, in the order of channels that `Piece` has.
__device__ inline void load_queries(const View &q, int64_t row, int first, int heads) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  // A lane takes eight channels 8 (16 i + 4 c + w) of a head; lanes of a warp differ so that no two banks meet.
  const int c = lane % 4, low = lane / 4 % 2, head_low = lane / 8;
#pragma unroll 8
  for (int n = warp; n < 128; n += THREADS / 32) {
    const int i = n % 4, w = n / 4 % 2 * 2 + low, head = n / 8 * 4 + head_low;
    uint4 eight = make_uint4(0, 0, 0, 0);
    if (head < heads) {
      uint32_t words[4];
      load_words<4>(reinterpret_cast<const unsigned char *>(q.at<uint16_t>(row * q.stride[1] + (first + head) * q.stride[2]) + 8 * (16 * i + 4 * c + w)), words);
      eight = make_uint4(words[0], words[1], words[2], words[3]);
    }
    // Steps 8 i + 2 w and the next.
    const int block = 2 * i + w / 2, in_row = w % 2 * 64 + 4 * c;
    const int base = QUERIES + block * 8192 + head * 128, swizzle = head % 8 << 4;
    const auto put = [&](int at, uint32_t pair) { *reinterpret_cast<uint32_t *>(shared + base + ((in_row + at) ^ swizzle)) = pair; };
    put(0, pick(eight.x, eight.z, 0x5410));
    put(16, pick(eight.x, eight.z, 0x7632));
    put(32, pick(eight.y, eight.w, 0x5410));
    put(48, pick(eight.y, eight.w, 0x7632));
  }
}

__device__ void attend(const View &q, const Source &window, const Source &global, const View &sink, const View &out, float scale, uint32_t *fault) {
  const int rank = cluster_rank(), warpgroup = threadIdx.x / 128, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int groups = int(max(int64_t(1), (q.shape[2] + HEADS - 1) / HEADS));
  const int64_t row = blockIdx.x / BLOCKS / groups;
  const int first = int(blockIdx.x / BLOCKS % groups) * HEADS, heads = int(min(int64_t(HEADS), q.shape[2] - first));

  const Lists lists = list_entries(window, global, row, 0, fault);
  if (__syncthreads_or(lists.is_wrong)) return;
  const int chunks = lists.window + lists.global;
  if (chunks <= MOST_CHUNKS) return;
  const int own = rank * WARPGROUPS + warpgroup, step = BLOCKS * WARPGROUPS;
  const int channel = (rank * WARPGROUPS * 4 + warp) * 16 + lane / 4 * 2;
  load_queries(q, row, first, heads);
  if (threadIdx.x < HEADS) maximum_of(threadIdx.x) = ordered(int(0xFF800000u));
  publish_to_products();
  __syncthreads();

  float sums[32];
#pragma unroll
  for (int n = 0; n < 32; ++n) sums[n] = 0.0f;
  uint32_t nans = 0;
  float total = 0.0f;

  // The row is gone through twice: for the maxima, then for all the rest.
  const int segment = SEGMENT_CHUNKS, segments = (chunks + segment - 1) / segment;
#pragma unroll 1
  for (int turn = -segments; turn < segments; ++turn) {
    const bool is_first = turn < 0;
    const int from = (is_first ? turn + segments : turn) * segment, end = min(chunks, from + segment) - from;
    const int middle = min(max(lists.window - from, 0), end);
    __syncthreads();
    list_entries(window, global, row, from, fault);
    __syncthreads();
#pragma unroll 1
    for (int part = 0; part < 2; ++part) {
      const Source &source = part == 0 ? window : global;
      const int begin = part == 0 ? 0 : middle, limit = part == 0 ? middle : end;
      const int mine = begin + (own + step - begin % step) % step;
      switch (source.format) {
      case CACHE_BF16: nans |= score<CACHE_BF16>(source, mine, limit, step, scale, is_first); break;
      case CACHE_FP8: nans |= score<CACHE_FP8>(source, mine, limit, step, scale, is_first); break;
      case CACHE_FP4_ROW16: nans |= score<CACHE_FP4_ROW16>(source, mine, limit, step, scale, is_first); break;
      }
    }
    // The maxima of all blocks, after the last segment of the first time.
    if (turn == -1) {
      // A NaN in an entry makes every head of the row NaN, which is above infinity here.
      constexpr int NAN_BITS = 0x7FC00000;
      const bool is_nan = __syncthreads_or(nans != 0);
      int m = int(threadIdx.x) < HEADS && !is_nan ? maximum_of(threadIdx.x) : NAN_BITS;
      // No scores are there yet.
      sync_all();
      if (threadIdx.x < HEADS) store_all(SCORES + (rank * HEADS + int(threadIdx.x)) * 4, uint32_t(m));
      sync_all();
      if (threadIdx.x < HEADS) {
        for (int r = 0; r < BLOCKS; ++r) m = max(m, *reinterpret_cast<const int *>(shared + SCORES + (r * HEADS + int(threadIdx.x)) * 4));
      }
      if (threadIdx.x < HEADS) maximum_of(threadIdx.x) = ordered(m);
      __syncthreads();
    }
    if (is_first) continue;

#pragma unroll 1
    for (int chunk = own; chunk < end; chunk += step) round_probabilities(chunk);
    publish_to_products();
    sync_all();
    publish_to_products();
    if (threadIdx.x < HEADS) {
      for (int chunk = 0; chunk < end; ++chunk) {
        for (int w = 0; w < 4; ++w) total = __fadd_rn(total, shared_float(SCORES + chunk * SCORE_BYTES + SUMS + (w * HEADS + int(threadIdx.x)) * 4));
      }
    }
#pragma unroll 1
    for (int part = 0; part < 2; ++part) {
      const Source &source = part == 0 ? window : global;
      const int begin = part == 0 ? 0 : middle, limit = part == 0 ? middle : end;
      switch (source.format) {
      case CACHE_BF16: add_values<CACHE_BF16>(sums, source, begin, limit, channel); break;
      case CACHE_FP8: add_values<CACHE_FP8>(sums, source, begin, limit, channel); break;
      case CACHE_FP4_ROW16: add_values<CACHE_FP4_ROW16>(sums, source, begin, limit, channel); break;
      }
    }
    // Probabilities of the next segment come from every block.
    sync_all();
  }

  if (threadIdx.x < HEADS) {
    const float m = shared_float(MAXIMA + int(threadIdx.x) * 4);
    if (int(threadIdx.x) < heads) total = __fadd_rn(total, expf(__fsub_rn(sink.at<float>()[first + threadIdx.x], m)));
    shared_float(TOTALS + int(threadIdx.x) * 4) = __frcp_rn(total);
  }
  __syncthreads();
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int head = 8 * j + 2 * (lane % 4) + e;
      const float factor = shared_float(TOTALS + head * 4);
      if (head >= heads) continue;
      const uint32_t pair = round_pair(__fmul_rn(sums[4 * j + e], factor), __fmul_rn(sums[4 * j + 2 + e], factor));
      uint16_t *at = out.at<uint16_t>(row * out.stride[1] + (first + head) * out.stride[2] + channel);
      at[0] = uint16_t(pair), at[1] = uint16_t(pair >> 16);
    }
  }
}
#endif

extern "C" __global__ void __cluster_dims__(4) __launch_bounds__(256, 1) sparse_attention_long(
    const __grid_constant__ View q, const __grid_constant__ Source window, const __grid_constant__ Source global, const __grid_constant__ View sink,
    const __grid_constant__ View out, float scale, uint32_t *fault) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  attend(q, window, global, sink, out, scale, fault);
#endif
}
