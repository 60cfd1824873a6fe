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
// Who does what does not enter the order of the sums: any size of cluster gives the same bits.
#include "common/attention_tiles.cuh"

#if HAS_WGMMA

static_assert(SHORT_CHUNKS <= LISTED_CHUNKS);
constexpr int HAS_MAXIMA = OWN_WORDS, HAS_PROBABILITIES = HAS_MAXIMA + 8;
// Chunks of the window, and all, where they cost the producers no registers.
constexpr int WINDOW_CHUNKS = HAS_PROBABILITIES + 8, CHUNKS = WINDOW_CHUNKS + 4;
// The probabilities of each chunk, in the place of the queries after the last score; of each chunk and head the sum of the
// probabilities; of each warpgroup of the cluster and each head its maximum.
constexpr int PROBABILITIES = QUERIES, SUMS = PROBABILITIES + SHORT_CHUNKS * PROBABILITY_BYTES, MAXIMA = SUMS + SHORT_CHUNKS * HEADS * 4;
constexpr int SHARED_BYTES = MAXIMA + 8 * HEADS * 4;
static_assert(SHARED_BYTES == 221696, "as the host asks for");

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

// Lists the entries. By all threads; the list is not yet visible to others.
template <bool IS_ALIGNED> __device__ inline Lists list_entries(const Source &window, const Source &global, int64_t row, bool &is_wrong, uint32_t *fault) {
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  is_wrong = false;
  const auto check = [&](const Source &source, int32_t slot, uint32_t argument, uint32_t rule) { return checked(source, slot, fault, argument, rule, is_wrong); };
  const auto put = [&](const Source &source, int place, int32_t slot) {
    if (place < SHORT_CHUNKS * CHUNK) list<IS_ALIGNED>(source, place, slot);
  };
  Lists lists = {};
  // One round lists both caches if they have no more columns than that.
  const int window_rounds = int((window.slots.columns() + THREADS - 1) / THREADS), global_rounds = int((global.slots.columns() + THREADS - 1) / THREADS);
  const int rounds = window_rounds <= 1 && global_rounds <= 1 ? 1 : window_rounds + global_rounds;
  int32_t of_window = slot_at(window, row, thread), of_global = slot_at(global, row, thread);
  for (int n = thread; n < SHORT_CHUNKS * CHUNK; n += THREADS) shared_word(LIST + n * 4) = NO_ENTRY;
#pragma unroll 1
  for (int round = 0; round < rounds; ++round) {
    // In more: the window, part by part, then the others.
    if (rounds > 1) {
      const int of_others = round - window_rounds;
      of_window = of_others < 0 ? slot_at(window, row, int64_t(round) * THREADS + thread) : -1;
      of_global = of_others < 0 ? -1 : slot_at(global, row, int64_t(of_others) * THREADS + thread);
    }
    of_window = check(window, of_window, WINDOW_SLOTS, WINDOW_SLOT_BEYOND);
    of_global = check(global, of_global, GLOBAL_SLOTS, GLOBAL_SLOT_BEYOND);
    const uint32_t w = __ballot_sync(0xFFFFFFFFu, of_window >= 0), g = __ballot_sync(0xFFFFFFFFu, of_global >= 0), before = (1u << lane) - 1;
    // Counts of both in the halves of a word.
    if (round > 0) __syncthreads();
    if (lane == 0) shared_word(SUMS + warp * 4) = __popc(w) | __popc(g) << 16;
    __syncthreads();
    uint32_t others, all;
    sum_counts<THREADS / 32>(SUMS, warp, others, all);
    put(window, lists.window + int(others & 0xFFFF) + __popc(w & before), of_window);
    lists.window += int(all & 0xFFFF);
    put(global, lists.window_chunks() * CHUNK + lists.global + int(others >> 16) + __popc(g & before), of_global);
    lists.global += int(all >> 16);
  }
  lists.formats = formats_of<IS_ALIGNED>(window, global);
  return lists;
}

// ---- producers ----

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

template <int C, bool IS_ALIGNED>
__device__ void consume(const Queries &q, const View &sink, const View &out, float scale, const Lists &lists, int rank, int64_t row, int first, int heads) {
  // Chunks of a warpgroup; channels of it.
  constexpr int OWN = (SHORT_CHUNKS + 2 * C - 1) / (2 * C), N = 256 / C;
  const int warpgroup = threadIdx.x / 128, thread = threadIdx.x % 128, lane = threadIdx.x % 32;
  const int chunks = lists.chunks(), own = own_chunks<C>(chunks, rank);
  // Of the two heads of this thread the lower; the other is 8 further on.
  const int head = thread / 32 * 16 + lane / 4;
  q.store(lists.is_plain());
  publish_stores();
  asm volatile("bar.sync 1, 256;" ::: "memory");

  float scores[OWN][32], m[2] = {__uint_as_float(0xFF800000u), __uint_as_float(0xFF800000u)}, least[2] = {3.0e38f, 3.0e38f};
#pragma unroll
  for (int k = 0; k < OWN; ++k) {
    const int number = 2 * k + warpgroup, chunk = number * C + rank;
    if (number >= own) continue;
    float(&s)[32] = scores[k];
    multiply_queries<true>(s, number % 2 * 2, number / 2 & 1, lists.is_plain());
    wgmma_wait<0>();
    pin(s);
    arrive_warp(barrier_at(EMPTY + (number % 2 * 2 + 1) * 8));
    const int entries = lists.entries(chunk);
    finish_scores(s, scale, lists.is_fp4(chunk), entries);
    if (entries == CHUNK) {
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
    barrier_wait(barrier_at(FULL + stage * 8), number / 2 & 1);
    if (lists.is_plain()) publish_stores();
    multiply_entries(values, PROBABILITIES + n * PROBABILITY_BYTES, STAGES + stage * STAGE_BYTES, n == 0);
    await_entries(values);
    arrive_warp(barrier_at(EMPTY + stage * 8));
  }

  float factors[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float total = 0.0f;
    for (int chunk = 0; chunk < chunks; ++chunk) total = __fadd_rn(total, shared_float(SUMS + (chunk * HEADS + head + 8 * r) * 4));
    factors[r] = share_of(total, m[r], sink, first + head + 8 * r, head + 8 * r < heads);
  }
  // A stage that only this warpgroup has read.
  put_values<IS_ALIGNED>(values, factors, STAGES + warpgroup * STAGE_BYTES, lists.is_plain(), out, row, first, heads, (2 * rank + warpgroup) * N);
}

// ---- the whole ----

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
    for (int stage = 0; stage < 4; ++stage) barrier_init(barrier_at(FULL + stage * 8), fillers(is_plain<IS_ALIGNED>(window, global))), barrier_init(barrier_at(EMPTY + stage * 8), 4);
    barrier_init(barrier_at(HAS_MAXIMA), 8 * C), barrier_init(barrier_at(HAS_PROBABILITIES), 8 * C);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    shared_word(NANS) = 0;
  }
  bool is_wrong;
  Lists lists = list_entries<IS_ALIGNED>(window, global, row, is_wrong, fault);
  if (threadIdx.x == 0) shared_word(WINDOW_CHUNKS) = lists.window_chunks(), shared_word(CHUNKS) = lists.chunks();
  if (__syncthreads_or(is_wrong)) return;
  // `sparse_attention_long.cu` takes such a row.
  if (lists.chunks() > SHORT_CHUNKS) return;
  if (lists.chunks() == 0) {
    for (int n = threadIdx.x; n < heads * DIM; n += THREADS) out.at<uint16_t>(row * out.stride[1] + (first + n / DIM) * out.stride[2])[n % DIM] = 0;
    return;
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
