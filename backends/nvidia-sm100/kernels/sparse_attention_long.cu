// `sparse_attention` of BF16 queries of 512 channels with rounded probabilities, by the matrix units of Hopper, of rows whose entries
// fill more chunks of 64 than `sparse_attention_tiles.cu` takes; it leaves the others to that kernel: which of the two takes a row follows
// from what the row lists. A block takes a row and 64 of its heads, and goes over its entries twice: first for the maximum of the scores,
// then for the scores again, their probabilities, and the values.
//
// The producers list entries as they go, and decode them to tiles of BF16: a ring of two chunks. The consumers take turns at the
// scores S = Q K^T of a chunk, 64 heads by 64 entries, and make probabilities of them; both add the values O = P V of every chunk, each
// for one half of the channels.
//
// Bytes: the listed entries (the second time out of the L2 cache), q and out once from memory. Flops: 6 per head, entry and channel.
// Shared memory, a chunk: 64 KiB written and 128 KiB read for the scores, and the same for them again, 8 KiB of probabilities written and
// 96 KiB read for the values.
#include "common/attention_tiles.cuh"

#if HAS_WGMMA

// Probabilities and sums of the last two chunks; the largest scores that each warpgroup of consumers has seen.
constexpr int PROBABILITIES = QUERIES + QUERY_BYTES, SUMS = PROBABILITIES + 2 * PROBABILITY_BYTES, MAXIMA = SUMS + 2 * HEADS * 4;
// Entries of each warp of producers, of three columns, for a round of listing.
constexpr int COUNTS = MAXIMA + 2 * HEADS * 4, SHARED_BYTES = COUNTS + PRODUCERS / 32 * 4;
static_assert(SHARED_BYTES == 218144, "as the host asks for");
constexpr int HAS_PROBABILITIES = OWN_WORDS;

__device__ inline int state(int at) { return *reinterpret_cast<const volatile int *>(shared + at); }

// ---- the list ----

// Counts the entries. By all threads.
template <bool IS_ALIGNED> __device__ inline Lists count_entries(const Source &window, const Source &global, int64_t row, bool &is_wrong, uint32_t *fault) {
  Lists lists = {};
  is_wrong = false;
  const auto count = [&](const Source &source, uint32_t argument, uint32_t rule) {
    int found = 0;
#pragma unroll 1
    for (int64_t first = 0; first < source.slots.columns(); first += THREADS) {
      found += __syncthreads_count(checked(source, slot_at(source, row, first + threadIdx.x), fault, argument, rule, is_wrong) >= 0);
    }
    return found;
  };
  lists.window = count(window, WINDOW_SLOTS, WINDOW_SLOT_BEYOND);
  lists.global = count(global, GLOBAL_SLOTS, GLOBAL_SLOT_BEYOND);
  lists.formats = formats_of<IS_ALIGNED>(window, global);
  return lists;
}

// ---- producers ----

__device__ inline void producers_sync() { asm volatile("bar.sync 1, 256;" ::: "memory"); }

// A row is listed in parts: 256 columns of the window, and once that ends 512 of the others.
constexpr int MOST_WINDOW = (CHUNK - 1 + PRODUCERS + CHUNK - 1) / CHUNK, MOST_GLOBAL = (CHUNK - 1 + 2 * PRODUCERS + CHUNK - 1) / CHUNK;
static_assert(MOST_WINDOW + MOST_GLOBAL <= LISTED_CHUNKS);

// What is listed lies in shared memory, and costs the producers no registers while they decode: the columns that come next; entries
// that did not fill a chunk, and where they lie in the list; the number of the part's first chunk, its chunks of both caches, and whether
// it is the last part.
constexpr int WINDOW_AT = HAS_PROBABILITIES + 2 * 8, GLOBAL_AT = WINDOW_AT + 4, KEPT = GLOBAL_AT + 4, KEPT_AT = KEPT + 4;
constexpr int NUMBER = KEPT_AT + 4, WINDOW_CHUNKS = NUMBER + 4, GLOBAL_CHUNKS = WINDOW_CHUNKS + 4, IS_END = GLOBAL_CHUNKS + 4;
// Of each warpgroup of consumers: what it does next.
constexpr int IS_FIRST = IS_END + 4;
static_assert(IS_FIRST + 8 <= NANS);

// Lists the next part. By all producers, who are done with the part before.
template <bool IS_ALIGNED> __device__ void list_part(const Source &window, const Source &global, int64_t row) {
  const int thread = thread_here() % PRODUCERS, lane = thread % 32, warp = thread / 32;
  const int window_at = state(WINDOW_AT), global_at = state(GLOBAL_AT), kept = state(KEPT), kept_at = state(KEPT_AT);
  const bool has_window = window_at < window.slots.columns(), ends_window = window_at + PRODUCERS >= window.slots.columns();
  const bool is_end = ends_window && global_at + 2 * PRODUCERS >= global.slots.columns();
  // Every slot has been looked at: what is not negative is there.
  int32_t slots[3] = {slot_at(window, row, window_at + thread), -1, -1};
  if (ends_window) slots[1] = slot_at(global, row, global_at + thread), slots[2] = slot_at(global, row, global_at + PRODUCERS + thread);
  const uint32_t left = thread < kept ? shared_word(LIST + (kept_at + thread) * 4) : NO_ENTRY;
  const int number = state(NUMBER) + state(WINDOW_CHUNKS) + state(GLOBAL_CHUNKS);
  uint32_t found[3];
#pragma unroll
  for (int n = 0; n < 3; ++n) found[n] = __ballot_sync(0xFFFFFFFFu, slots[n] >= 0);
  // Of the three in ten bits each.
  if (lane == 0) shared_word(COUNTS + warp * 4) = __popc(found[0]) | __popc(found[1]) << 10 | __popc(found[2]) << 20;
  producers_sync();
  uint32_t others, all;
  sum_counts<PRODUCERS / 32>(COUNTS, warp, others, all);
  const auto before = [&](int n) { return int(others >> 10 * n & 1023) + __popc(found[n] & ((1u << lane) - 1)); };
  const auto count = [&](int n) { return int(all >> 10 * n & 1023); };
  // The entries that were kept are of the cache whose columns come now.
  const int of_window = count(0) + (has_window ? kept : 0), of_global = count(1) + count(2) + (has_window ? 0 : kept);
  const int middle = (of_window + CHUNK - 1) / CHUNK * CHUNK, first_global = middle + (has_window ? 0 : kept);
  if (thread < kept) shared_word(LIST + thread * 4) = left;
  list<IS_ALIGNED>(window, kept + before(0), slots[0]);
  list<IS_ALIGNED>(global, first_global + before(1), slots[1]);
  list<IS_ALIGNED>(global, first_global + count(1) + before(2), slots[2]);
  // Only what ends its cache may leave a chunk open.
  const int window_chunks = ends_window ? middle / CHUNK : of_window / CHUNK;
  const int global_chunks = is_end ? (of_global + CHUNK - 1) / CHUNK : of_global / CHUNK;
  if (thread < CHUNK) {
    if (ends_window && of_window + thread < middle) shared_word(LIST + (of_window + thread) * 4) = NO_ENTRY;
    if (of_global + thread < global_chunks * CHUNK) shared_word(LIST + (middle + of_global + thread) * 4) = NO_ENTRY;
  }
  if (thread == 0) {
    shared_word(WINDOW_AT) = window_at + PRODUCERS;
    shared_word(GLOBAL_AT) = global_at + (ends_window ? 2 * PRODUCERS : 0);
    shared_word(KEPT) = ends_window ? of_global - min(of_global, global_chunks * CHUNK) : of_window - window_chunks * CHUNK;
    shared_word(KEPT_AT) = ends_window ? middle + global_chunks * CHUNK : window_chunks * CHUNK;
    shared_word(NUMBER) = number, shared_word(WINDOW_CHUNKS) = window_chunks, shared_word(GLOBAL_CHUNKS) = global_chunks;
    shared_word(IS_END) = is_end;
  }
  producers_sync();
}

// All chunks, twice.
template <bool IS_ALIGNED> __device__ void produce(const Source &window, const Source &global, int64_t row) {
  const int half = threadIdx.x / 128 - 2;
#pragma unroll 1
  for (int pass = 0; pass < 2; ++pass) {
    if (pass > 0) {
      producers_sync();
      if (threadIdx.x % PRODUCERS == 0) shared_word(WINDOW_AT) = shared_word(GLOBAL_AT) = shared_word(KEPT) = 0;
      producers_sync();
    }
    do {
      list_part<IS_ALIGNED>(window, global, row);
      fill_any<256, IS_ALIGNED>(window, state(NUMBER), 0, 1, state(WINDOW_CHUNKS), 256 * half, half, is_plain<IS_ALIGNED>(window, global));
      fill_any<256, IS_ALIGNED>(global, state(NUMBER) + state(WINDOW_CHUNKS), state(WINDOW_CHUNKS), 1, state(GLOBAL_CHUNKS), 256 * half, half, is_plain<IS_ALIGNED>(window, global));
    } while (state(IS_END) == 0);
  }
}

// ---- consumers ----

__device__ inline bool is_through(uint32_t barrier, uint32_t parity) {
  uint32_t is_done;
  asm volatile("{\n.reg .pred done;\nmbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\nselp.u32 %0, 1, 0, done;\n}" : "=r"(is_done) : "r"(barrier), "r"(parity) : "memory");
  return is_done != 0;
}

// Whether chunk `number`, which this warpgroup scores, is full before the probabilities of the one before it are there, whose
// barrier waits for `phase`: one thread looks, so that all do the same.
__device__ inline bool is_scored_first(int number, int phase) {
  const int warpgroup = number % 2, other = 1 - warpgroup;
  if (threadIdx.x % 128 == 0) {
    bool is_first = false;
    while (!is_first && !is_through(barrier_at(HAS_PROBABILITIES + other * 8), phase)) {
      is_first = is_through(barrier_at(FULL + warpgroup * 16), number / 2 & 1) && is_through(barrier_at(FULL + warpgroup * 16 + 8), number / 2 & 1);
    }
    shared_word(IS_FIRST + warpgroup * 4) = is_first;
  }
  warpgroup_sync(2 + warpgroup);
  return __shfl_sync(0xFFFFFFFFu, state(IS_FIRST + warpgroup * 4), 0) != 0;
}

template <bool IS_ALIGNED>
__device__ void consume(const View &q, const View &sink, const View &out, float scale, const Lists &lists, int64_t row, int first, int heads) {
  // The shuffle tells the compiler that it is the same for a warp.
  const int warpgroup = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0), thread = threadIdx.x % 128, lane = threadIdx.x % 32;
  const bool plain = lists.is_plain();
  const int chunks = lists.chunks();
  // Of the two heads of this thread the lower; the other is 8 further on.
  const int head = thread / 32 * 16 + lane / 4;
  {
    Queries queries;
    queries.load<IS_ALIGNED>(q, row, first, heads);
    queries.store(plain);
  }
  publish_stores();
  asm volatile("bar.sync 4, 256;" ::: "memory");

  // The maxima. A NaN in an entry makes every head of the row NaN.
  float m[2] = {__uint_as_float(0xFF800000u), __uint_as_float(0xFF800000u)};
#pragma unroll 1
  for (int number = warpgroup; number < chunks; number += 2) {
    float scores[32];
    multiply_queries<true>(scores, warpgroup * 2, number / 2 & 1, plain);
    wgmma_wait<0>();
    pin(scores);
    arrive_warp(barrier_at(EMPTY + (warpgroup * 2 + 1) * 8));
    finish_scores(scores, scale, lists.is_fp4(number), lists.entries(number));
#pragma unroll
    for (int n = 0; n < 32; ++n) m[n / 2 % 2] = maximum(m[n / 2 % 2], scores[n]);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    m[r] = maximum(m[r], __shfl_xor_sync(0xFFFFFFFFu, m[r], 1));
    m[r] = maximum(m[r], __shfl_xor_sync(0xFFFFFFFFu, m[r], 2));
    if (lane % 4 == 0) shared_float(MAXIMA + (warpgroup * HEADS + head + 8 * r) * 4) = m[r];
  }
  asm volatile("bar.sync 4, 256;" ::: "memory");
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    m[r] = maximum(m[r], shared_float(MAXIMA + ((1 - warpgroup) * HEADS + head + 8 * r) * 4));
    if (*reinterpret_cast<const volatile uint32_t *>(shared + NANS) != 0) m[r] = __uint_as_float(0x7FC00000u);
  }

  float values[2][64], total[2] = {};
  // Which time it is that probabilities are awaited in their place.
  const auto phase_of = [&](int number) { return (number - chunks) / 2 & 1; };
  // Adds the values of a chunk, as soon as its probabilities are there, and leaves its stage to the producers.
  const auto add_values = [&](int number) {
    const int place = number % 2, stage = place * 2 + warpgroup;
    barrier_wait(barrier_at(HAS_PROBABILITIES + place * 8), phase_of(number));
    barrier_wait(barrier_at(FULL + stage * 8), number / 2 & 1);
    if (plain) publish_stores();
#pragma unroll
    for (int r = 0; r < 2; ++r) total[r] = __fadd_rn(total[r], shared_float(SUMS + (place * HEADS + head + 8 * r) * 4));
    multiply_entries(values, PROBABILITIES + place * PROBABILITY_BYTES, STAGES + stage * STAGE_BYTES, number == chunks);
    await_entries(values);
    arrive_warp(barrier_at(EMPTY + stage * 8));
  };

  // The second time: chunks that this warpgroup scores, each behind one that the other scored. Values of that one go first, since its
  // stage is wanted for the chunk after the next; but while its probabilities are not there, the matrix units can make scores.
  const int end = 2 * chunks;
#pragma unroll 1
  for (int number = chunks + ((chunks ^ warpgroup) & 1);; number += 2) {
    bool is_first = false;
    if (number > chunks) {
      is_first = number < end && is_scored_first(number, phase_of(number - 1));
      if (!is_first) add_values(number - 1);
    }
    if (number >= end) break;
    float scores[32], sums[2];
    multiply_queries<false>(scores, warpgroup * 2, number / 2 & 1, plain);
    if (is_first) add_values(number - 1);
    wgmma_wait<0>();
    pin(scores);
    const bool is_fp4 = lists.is_fp4(number - chunks);
    finish_scores(scores, scale, is_fp4, lists.entries(number - chunks));
    round_probabilities<false>(scores, m, matrices_at(PROBABILITIES + warpgroup * PROBABILITY_BYTES, 128), is_fp4 ? FP4_FACTORS : ONES, sums);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sums[r] = __fadd_rn(sums[r], __shfl_xor_sync(0xFFFFFFFFu, sums[r], 1));
      sums[r] = __fadd_rn(sums[r], __shfl_xor_sync(0xFFFFFFFFu, sums[r], 2));
      if (lane % 4 == 0) shared_float(SUMS + (warpgroup * HEADS + head + 8 * r) * 4) = sums[r];
    }
    publish_stores();
    arrive_warp(barrier_at(HAS_PROBABILITIES + warpgroup * 8));
    add_values(number);
    if (number + 1 == end) break;
  }

  float factors[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) factors[r] = share_of(total[r], m[r], sink, first + head + 8 * r, head + 8 * r < heads);
  // A stage that only this warpgroup reads values of, and nobody scores any more.
  put_values<IS_ALIGNED>(values, factors, STAGES + warpgroup * STAGE_BYTES, plain, out, row, first, heads, warpgroup * 256);
}

// ---- the whole ----

// IS_ALIGNED: all entries and rows begin on boundaries of 16 bytes.
template <bool IS_ALIGNED>
__device__ void attend(const View &q, const Source &window, const Source &global, const View &sink, const View &out, float scale, uint32_t *fault) {
  const int groups = int(max(int64_t(1), (q.shape[2] + HEADS - 1) / HEADS));
  const int64_t row = blockIdx.x / groups;
  const int first = int(blockIdx.x % groups) * HEADS, heads = int(min(int64_t(HEADS), q.shape[2] - first));
  bool is_wrong;
  const Lists lists = count_entries<IS_ALIGNED>(window, global, row, is_wrong, fault);
  if (__syncthreads_or(is_wrong) || lists.chunks() <= SHORT_CHUNKS) return;
  if (threadIdx.x == 0) {
#pragma unroll
    for (int stage = 0; stage < 4; ++stage) barrier_init(barrier_at(FULL + stage * 8), fillers(lists.is_plain())), barrier_init(barrier_at(EMPTY + stage * 8), 4);
#pragma unroll
    for (int place = 0; place < 2; ++place) barrier_init(barrier_at(HAS_PROBABILITIES + place * 8), 4);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    shared_word(NANS) = 0;
  }
  if (threadIdx.x < 8) shared_word(WINDOW_AT + threadIdx.x * 4) = 0;
  __syncthreads();
  constexpr int PRODUCER_REGISTERS = 56;
  if (threadIdx.x < CONSUMERS) {
    more_registers<256 - PRODUCER_REGISTERS>();
    consume<IS_ALIGNED>(q, sink, out, scale, lists, row, first, heads);
  } else {
    fewer_registers<PRODUCER_REGISTERS>();
    produce<IS_ALIGNED>(window, global, row);
  }
}
#define ATTEND(IS_ALIGNED) attend<IS_ALIGNED>(q, window, global, sink, out, scale, fault)
#else
#define ATTEND(IS_ALIGNED)
#endif

#define KERNEL(NAME, IS_ALIGNED)                                                                                                                       \
  extern "C" __global__ void __launch_bounds__(512, 1) NAME(const __grid_constant__ View q, const __grid_constant__ Source window,                    \
                                                            const __grid_constant__ Source global, const __grid_constant__ View sink,                 \
                                                            const __grid_constant__ View out, float scale, uint32_t *fault) {                         \
    ATTEND(IS_ALIGNED);                                                                                                                                \
  }

KERNEL(sparse_attention_long, true)
// Tensors anywhere.
KERNEL(sparse_attention_long_any, false)
