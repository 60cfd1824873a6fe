// Scores of cached index keys against the index queries of each row, on the tensor cores: up to 32 heads of 128 channels, queries
// and keys of BF16, FP8 or FP4.
//
// Flops: 256 per head and entry. Bytes: the keys that a row sees, 68 each as FP4, for up to eight rows of a request at once; a
// score out. Of 2048 rows with 16384 keys 275 GFLOP: 0.36 ms at 757 TFLOP/s. Of 64 rows with 65536 keys of their own 302 MB: 71 us.
//
// A block takes columns of a row, or of up to eight rows, whose queries lie in shared memory as the second operand. Its warpgroups take
// tiles of 64 columns in turn: codes go from the cache to registers, are widened there and are the first operand. The sum over channels
// is that of the tensor core, 16 channels a step. Then a lane adds, from zero, its heads 8 j + 2 t and 8 j + 2 t + 1 for ascending j
// with a rounding each, and of the four lanes t of a key (0 + 1) + (2 + 3). Shapes and operands alone decide that order.
#include "common/key_fragments.cuh"

constexpr int THREADS = 256;
constexpr int GROUPS = THREADS / 128;
constexpr int KEYS = 64;
constexpr int HEADS = 32;
constexpr int DIM = 128;
constexpr int MOST_ROWS = 8;
// Rows whose products a warp takes at once: their sums stay in registers.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr int TOGETHER = 8;
#else
constexpr int TOGETHER = 2;
#endif
constexpr uint32_t OP = 15;
// Places in the catalogue.
enum Argument : uint32_t { ROW_REQUEST = 6, BLOCK_TABLE = 7 };
enum Rule : uint32_t { REQUEST_WRONG = 2, PAGE_WRONG = 3 };

struct Arguments {
  View q, head_weight, keys, row_request, block_table, visible, candidates, out;
  float scale;
  uint32_t entries, entries_log2, block_size, block_log2, columns_of_block;
  uint32_t *fault;
};

// Of a block of ROWS rows. The host asks for as much, and for what the alignment takes.
template <int ROWS> struct Shared {
  static constexpr uint32_t HALF = ROWS * HEADS * ROW_BYTES;
  alignas(1024) unsigned char tile[2 * HALF];
  float weights[ROWS][HEADS];
  int64_t request[ROWS];
  // At most 2^31 - 1.
  int64_t sees[ROWS];
};

// max(0, x) that keeps a NaN.
__device__ inline float relu(float x) {
  float y;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(y) : "f"(x));
  return y;
}

// 32 channels of a query, from element `first` of q and scale `scale` on.
template <int C> __device__ inline void load_query(const View &q, int64_t first, int64_t scale, Codes<C> &codes) {
  if (C == CACHE_BF16) {
    const unsigned char *from = q.data + first * 2;
    load_codes<C>(from, nullptr, reinterpret_cast<uintptr_t>(from) % 16 == 0, codes);
  } else if (first % 2 == 0) {
    const unsigned char *from = q.data + first / 2;
    load_codes<C>(from, q.scale + scale, reinterpret_cast<uintptr_t>(from) % 16 == 0, codes);
  } else {
    codes.scale = q.scale[scale];
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      codes.words[w] = 0;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int64_t at = first + 8 * w + j;
        codes.words[w] |= uint32_t(q.data[at / 2] >> (at % 2 * 4) & 15) << 4 * j;
      }
    }
  }
}

// Queries of `rows` rows from `row` on, of the codes C; zeros beyond.
template <int C, int ROWS> __device__ inline void stage_queries(const Arguments &a, Shared<ROWS> &shared, int64_t row, int rows) {
  constexpr int GROUPS_OF_DIM = DIM / 32, ITEMS = ROWS * HEADS * GROUPS_OF_DIM;
  // Of BF16 a thread holds four times as much.
  constexpr int AT_ONCE = ITEMS <= THREADS || C == CACHE_BF16 ? 1 : 4;
  const int heads = int(a.head_weight.columns());
#pragma unroll 1
  for (int first = threadIdx.x; first < ITEMS; first += AT_ONCE * THREADS) {
    Codes<C> codes[AT_ONCE] = {};
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const int at = (first + i * THREADS) / GROUPS_OF_DIM, t = threadIdx.x % GROUPS_OF_DIM, r = at / HEADS, head = at % HEADS;
      if (r < rows && head < heads) {
        const int64_t column = head * DIM + t * 32;
        load_query<C>(a.q, (row + r) * a.q.stride[2] + column, (row + r) * a.q.scale_stride[2] + column / 32, codes[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const int at = (first + i * THREADS) / GROUPS_OF_DIM, t = threadIdx.x % GROUPS_OF_DIM;
      uint32_t pairs[PAIRS];
      widen(codes[i], pairs);
      store_pairs(shared.tile, Shared<ROWS>::HALF, at, t, pairs);
    }
  }
}

// Queries and weights of `rows` rows from `row` on; zeros beyond.
template <int ROWS> __device__ inline void stage(const Arguments &a, Shared<ROWS> &shared, int64_t row, int rows) {
  const int r = threadIdx.x / HEADS, head = threadIdx.x % HEADS;
  float weight = 0;
  if (r < rows && head < a.head_weight.columns()) {
    weight = __fmul_rn(load_float(a.head_weight, row + r, head), a.scale);
    if (a.head_weight.format == BF16) weight = bf16_to_f32(f32_to_bf16(weight));
  }
  if (a.q.format == BF16) stage_queries<CACHE_BF16>(a, shared, row, rows);
  else stage_queries<CACHE_FP4_ROW32>(a, shared, row, rows);
  static_assert(ROWS * HEADS <= THREADS, "a thread has a weight");
  if (r < ROWS) shared.weights[r][head] = weight;
}

// Where the keys of a row's columns are. An entry is found in steps, each of which waits for a word of the one before: the candidate
// block, the page, the codes. They are taken for different tiles at a time.
template <int C> struct Finder {
  static constexpr uint32_t NONE = 0xFFFFFFFFu;
  // All values of a page stand before all scales, or those of an entry.
  static constexpr bool IS_SPLIT = C == CACHE_FP4_ROW32;
  static constexpr uint32_t VALUES = value_bytes<C>(), SCALES = scale_bytes<C>(), ENTRY = VALUES + (IS_SPLIT ? 0 : SCALES);

  const Arguments &a;
  const int32_t *blocks, *pages;
  // Of group t of the first entry of the first page.
  const unsigned char *values, *scales;
  uint32_t page_bytes, block_count, page_count, pool_pages;
  // Columns and entries that are not seen.
  uint32_t end, limit;
  bool is_on_16;

  __device__ Finder(const Arguments &arguments, int64_t row, int64_t request, uint32_t sees, uint32_t columns_end, int t) : a(arguments) {
    blocks = a.candidates.is_absent() ? nullptr : a.candidates.at<int32_t>(row * a.candidates.stride[2]);
    pages = a.block_table.at<int32_t>(request * a.block_table.stride[2]);
    values = a.keys.data + t * (VALUES / 4);
    scales = a.keys.data + (IS_SPLIT ? uint64_t(a.entries) * VALUES : VALUES) + t * (SCALES / 4);
    page_bytes = uint32_t(a.keys.stride[2]);
    block_count = uint32_t(a.candidates.columns());
    page_count = uint32_t(a.block_table.columns());
    pool_pages = uint32_t(min(a.keys.shape[2], int64_t(0x7FFFFFFF)));
    end = columns_end;
    limit = blocks == nullptr ? min(sees, end) : sees;
    is_on_16 = ENTRY % 16 == 0 && (reinterpret_cast<uintptr_t>(a.keys.data) | page_bytes) % 16 == 0;
  }

  // The candidate block of a column below `end`, or -1.
  __device__ int32_t block(uint32_t column) const {
    const uint32_t nth = a.block_log2 < 32 ? column >> a.block_log2 : column / a.block_size;
    return column < end && nth < block_count ? __ldg(blocks + nth) : -1;
  }

  // The entry of a column, if it is seen.
  __device__ uint32_t entry(uint32_t column, int32_t block) const {
    if (blocks == nullptr) return column < limit ? column : NONE;
    const uint32_t in_block = a.block_log2 < 32 ? column & (a.block_size - 1) : column % a.block_size;
    const uint64_t e = uint64_t(uint32_t(block)) * a.block_size + in_block;
    return block >= 0 && e < limit ? uint32_t(e) : NONE;
  }

  // Its page, -1 where the table ends, and its place there.
  __device__ int32_t page(uint32_t entry, uint32_t &place) const {
    const uint32_t nth = a.entries_log2 < 32 ? entry >> a.entries_log2 : entry / a.entries;
    place = entry - nth * a.entries;
    return entry != NONE && nth < page_count ? __ldg(pages + nth) : -1;
  }

  // The codes of an entry; what was there before if it is none.
  __device__ void codes(uint32_t entry, int32_t page, uint32_t place, Codes<C> &into) const {
    if (entry == NONE) return;
    if (uint32_t(page) >= pool_pages) return refuse(a.fault, OP, BLOCK_TABLE, PAGE_WRONG);
    const uint64_t begin = uint64_t(uint32_t(page)) * page_bytes;
    const unsigned char *from = values + begin + uint64_t(place) * ENTRY;
    load_codes<C>(from, scales + begin + uint64_t(place) * (IS_SPLIT ? SCALES : ENTRY), is_on_16, into);
  }
};

// Scores of rows `first` to first + count - 1 of the block's ALL rows, which have one request, in its columns. Products are of ROWS rows
// from `base` on. Codes are fetched AHEAD tiles before they are used.
template <int C, int ROWS, bool IS_FULL, int AHEAD, int ALL>
__device__ inline void score_rows(const Arguments &a, Shared<ALL> &shared, int64_t row, int base, int first, int count,
                                  uint32_t begin, uint32_t end) {
  constexpr int N = ROWS * HEADS;
  constexpr uint32_t STRIDE = GROUPS * KEYS;
  // Only long products are worth an order.
  constexpr bool IS_IN_TURN = ROWS == 8;
  const int lane = threadIdx.x % 32, t = lane % 4, group = threadIdx.x / 128;
  const uint32_t heads = uint32_t(a.head_weight.columns());
  int64_t sees = 0;
  for (int r = first; r < first + count; ++r) sees = max(sees, shared.sees[r]);
  const uint32_t tile = uint32_t(__cvta_generic_to_shared(shared.tile)) + base * HEADS * ROW_BYTES;
  const Finder<C> finder(a, row + first, shared.request[first], uint32_t(sees), end, t);

  // The keys of this lane are those of columns `mine` and mine + 8 of a tile.
  const uint32_t mine = begin + group * KEYS + threadIdx.x / 32 % 4 * 16 + lane / 4;
  Codes<C> codes[AHEAD][2] = {};
  uint32_t entries[AHEAD][2], next[2], places[2];
  int32_t blocks[2] = {0, 0}, pages[2];
  const auto find_blocks = [&](uint32_t c) {
    if (finder.blocks == nullptr) return;
#pragma unroll
    for (int k = 0; k < 2; ++k) blocks[k] = finder.block(c + 8 * k);
  };
  const auto find_pages = [&](uint32_t c) {
#pragma unroll
    for (int k = 0; k < 2; ++k) next[k] = finder.entry(c + 8 * k, blocks[k]), pages[k] = finder.page(next[k], places[k]);
  };
  find_blocks(mine);
  find_pages(mine);
#pragma unroll
  for (int s = 0; s < AHEAD; ++s) {
#pragma unroll
    for (int k = 0; k < 2; ++k) entries[s][k] = next[k], finder.codes(next[k], pages[k], places[k], codes[s][k]);
    find_blocks(mine + (s + 1) * STRIDE);
    find_pages(mine + (s + 1) * STRIDE);
  }
  find_blocks(mine + (AHEAD + 1) * STRIDE);
  // Both warpgroups take as many turns.
#pragma unroll 1
  for (uint32_t passed = 0; begin + passed < end; passed += AHEAD * STRIDE) {
#pragma unroll
    for (int s = 0; s < AHEAD; ++s) {
      const uint32_t at = mine + passed + s * STRIDE;
      uint32_t x[PAIRS], y[PAIRS];
      widen(codes[s][0], x);
      widen(codes[s][1], y);
      const uint32_t entry[2] = {entries[s][0], entries[s][1]};
      float d[N / 2];
      if (IS_IN_TURN) take_turn(group);
      start_products<N>(d, x, y, tile, Shared<ALL>::HALF);
#pragma unroll
      for (int k = 0; k < 2; ++k) entries[s][k] = next[k], finder.codes(next[k], pages[k], places[k], codes[s][k]);
      find_pages(at + (AHEAD + 1) * STRIDE);
      find_blocks(at + (AHEAD + 2) * STRIDE);
      if (IS_IN_TURN) {
        nearly_finish_products();
        give_turn(1 - group);
      }
      finish_products<N>(d);

      // Sums of the heads of this lane: of both keys for every row.
      float sums[2][ROWS];
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        sums[0][r] = sums[1][r] = 0;
#pragma unroll
        for (int j = 0; j < HEADS / 8; ++j) {
          const float2 weight = *reinterpret_cast<const float2 *>(&shared.weights[base + r][8 * j + 2 * t]);
          const float *of_heads = &d[(r * (HEADS / 8) + j) * 4];
#pragma unroll
          for (int key = 0; key < 2; ++key) {
            float sum = sums[key][r];
            // A head that is not there must not make a NaN.
            if (IS_FULL || 8 * j + 2 * t < heads) sum = __fmaf_rn(weight.x, relu(of_heads[2 * key]), sum);
            if (IS_FULL || 8 * j + 2 * t + 1 < heads) sum = __fmaf_rn(weight.y, relu(of_heads[2 * key + 1]), sum);
            sums[key][r] = sum;
          }
        }
      }
      // Lanes of odd t keep the second key; of each pair of lanes with one key, the one of higher t keeps the upper half of the rows.
      const int key = t % 2;
      float kept[ROWS];
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        const float given = __shfl_xor_sync(0xFFFFFFFFu, key ? sums[0][r] : sums[1][r], 1);
        kept[r] = __fadd_rn(key ? sums[1][r] : sums[0][r], given);
      }
      const uint32_t c = at + 8 * key, e = key ? entry[1] : entry[0];
      constexpr int PART = ROWS == 1 ? 1 : ROWS / 2;
      const bool is_upper = ROWS > 1 && t >= 2;
#pragma unroll
      for (int r = 0; r < PART; ++r) {
        const float given = __shfl_xor_sync(0xFFFFFFFFu, is_upper ? kept[r] : kept[r + ROWS - PART], 2);
        const float score = __fadd_rn(is_upper ? kept[r + ROWS - PART] : kept[r], given);
        const int of_block = base + r + (is_upper ? PART : 0);
        const bool is_mine = of_block >= first && of_block < first + count && (ROWS > 1 || t < 2);
        if (is_mine && c < end) {
          // No entry is above all that is seen.
          a.out.at<float>((row + of_block) * a.out.stride[2])[c] = e < shared.sees[of_block] ? score : __uint_as_float(0xFF800000u);
        }
      }
    }
  }
}

// The columns from `begin` to below `end` of a row that sees nothing there.
__device__ inline void clear(const Arguments &a, int64_t row, uint32_t begin, uint32_t end) {
  float *scores = a.out.at<float>(row * a.out.stride[2]);
  for (uint32_t c = begin + threadIdx.x; c < end; c += THREADS) scores[c] = __uint_as_float(0xFF800000u);
}

template <int C, int ROWS, bool IS_FULL> __device__ inline void score(const Arguments &a) {
  extern __shared__ unsigned char memory[];
  Shared<ROWS> &shared = *reinterpret_cast<Shared<ROWS> *>(memory + (1024 - uint32_t(__cvta_generic_to_shared(memory)) % 1024) % 1024);
  const uint32_t columns = uint32_t(a.out.columns()), pieces = max(1u, (columns + a.columns_of_block - 1) / a.columns_of_block);
  const int64_t row = int64_t(blockIdx.x / pieces) * ROWS;
  const uint32_t begin = blockIdx.x % pieces * a.columns_of_block, end = min(columns, begin + a.columns_of_block);
  const int rows = int(min(int64_t(ROWS), a.out.shape[2] - row));
  bool is_wrong = false;
  if (threadIdx.x < rows) {
    const int64_t r = row + threadIdx.x, sees = max(0, *a.visible.at<int32_t>(r * a.visible.stride[3]));
    const int64_t request = *a.row_request.at<int32_t>(r * a.row_request.stride[3]);
    is_wrong = sees > 0 && (request < 0 || request >= a.block_table.shape[2]);
    if (is_wrong) refuse(a.fault, OP, ROW_REQUEST, REQUEST_WRONG);
    shared.request[threadIdx.x] = request;
    shared.sees[threadIdx.x] = sees;
  }
  if (__syncthreads_or(is_wrong)) return;
  int64_t most = 0;
  for (int r = 0; r < rows; ++r) most = max(most, shared.sees[r]);
  // Entries of candidates are anywhere.
  if (a.candidates.is_absent() ? most <= begin : most == 0) {
    for (int r = 0; r < rows; ++r) clear(a, row + r, begin, end);
    return;
  }
  stage(a, shared, row, rows);
  // The tensor cores read what was stored.
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  // The part of the columns that none of the rows sees.
  uint32_t seen = end;
  if (a.candidates.is_absent() && most < end) {
    seen = uint32_t(begin + (most - begin + KEYS - 1) / KEYS * KEYS);
    seen = min(seen, end);
    for (int r = 0; r < rows; ++r) clear(a, row + r, seen, end);
  }
  // Tiles whose codes are under way: as many as registers are left for.
  constexpr int AHEAD = IS_FULL && (C == CACHE_FP4_ROW16 || C == CACHE_FP4_ROW32) ? 2 : 1;
  if constexpr (ROWS == 1) {
    score_rows<C, 1, IS_FULL, AHEAD>(a, shared, row, 0, 0, 1, begin, seen);
  } else {
    // The first warpgroup has the first turn; it takes the one that is left at the end.
    if (threadIdx.x / 128 == 1) give_turn(0);
    for (int first = 0; first < rows;) {
      int count = 1;
      while (first + count < rows && shared.request[first + count] == shared.request[first]) ++count;
      if (count > 2) {
        for (int base = 0; base < ROWS; base += TOGETHER) {
          const int from = max(first, base), to = min(first + count, base + TOGETHER);
          if (from < to) score_rows<C, TOGETHER, true, 1>(a, shared, row, base, from, to - from, begin, seen);
        }
      } else {
        for (int r = first; r < first + count; ++r) score_rows<C, 1, true, AHEAD>(a, shared, row, r, r, 1, begin, seen);
      }
      first += count;
    }
    if (threadIdx.x / 128 == 0) take_turn(0);
  }
}

#define INDEX_SCORES(NAME, FORMAT, ROWS, IS_FULL, BLOCKS)                                                                             \
  extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)                                                                       \
  index_scores_##NAME(const __grid_constant__ View q, const __grid_constant__ View head_weight, const __grid_constant__ View keys,    \
                      const __grid_constant__ View row_request, const __grid_constant__ View block_table,                             \
                      const __grid_constant__ View visible, const __grid_constant__ View candidates, const __grid_constant__ View out,\
                      float scale, uint32_t entries, uint32_t entries_log2, uint32_t block_size, uint32_t block_log2,                 \
                      uint32_t columns_of_block, uint32_t *fault) {                                                                   \
    score<FORMAT, ROWS, IS_FULL>({q, head_weight, keys, row_request, block_table, visible, candidates, out, scale, entries,           \
                                  entries_log2, block_size, block_log2, columns_of_block, fault});                                    \
  }
// By format of the keys: rows that have keys of their own, with all 32 heads or fewer; up to eight rows together.
#define INDEX_SCORES_OF(NAME, FORMAT, BLOCKS)                                                                                         \
  INDEX_SCORES(NAME##_few_heads, FORMAT, 1, false, BLOCKS)                                                                            \
  INDEX_SCORES(NAME##_row, FORMAT, 1, true, BLOCKS)                                                                                   \
  INDEX_SCORES(NAME##_rows, FORMAT, MOST_ROWS, true, 1)
INDEX_SCORES_OF(bf16, CACHE_BF16, 1)
INDEX_SCORES_OF(fp8, CACHE_FP8, 1)
INDEX_SCORES_OF(fp4_row16, CACHE_FP4_ROW16, 2)
INDEX_SCORES_OF(fp4_row32, CACHE_FP4_ROW32, 2)
