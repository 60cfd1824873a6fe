// Products of many BF16 rows with transposed weights, BF16 or FP8, on Hopper's matrix units.
//
// Bytes: weights and rows once per band of tiles, out once. Flops: 2 T N K; a multiprocessor makes 4096 a cycle.
// A block makes tiles of 128 outputs by N rows: a thread copies stages of 64 columns of both into shared memory, two warpgroups
// multiply, the weights being the left operand; FP8 ones they widen in registers. Two blocks that share their rows form a cluster:
// each copies half of them for both. Results leave through shared memory while the next tile begins.
//
// The sum of an element: columns are cut into segments; within a segment the products of sixteen columns at a time are added to
// an F32 accumulator that begins at zero; the segments' sums are added in F32, ascending. Nothing else enters it.
#pragma once

#include "exact.cuh"
#include "widen.cuh"
#include "widen_rows.cuh"
#include "wgmma.cuh"

// What a launch multiplies. A stage is 64 columns.
struct ManyRows {
  int64_t rows;
  // Of a group.
  int64_t outputs;
  int64_t columns;
  // Stages of the sum: of FP8 weights an even number.
  int32_t stages;
  int32_t groups;
  // Tiles: of rows, and pairs of tiles of outputs in a group.
  int32_t row_tiles, output_pairs;
  // Scales of FP8 weights: one per 32 outputs of all groups and 32 columns.
  const uint8_t *scales;
  int64_t scale_stride;
  int32_t scale_columns;
  // Whether the copy engine takes the results to where they belong.
  int32_t is_out_mapped;
};

#if HAS_WGMMA

namespace many {

constexpr int OUTPUTS = 128;
constexpr int STAGE_COLUMNS = 64;
constexpr int STAGE_BYTES = STAGE_COLUMNS * 2;
constexpr int CLUSTER = 2;
constexpr int CONSUMER_WARPS = 8;
// Row tiles that follow each other before the outputs advance, so that the tiles in flight share both operands in the L2.
constexpr int BAND = 8;

// Shared memory of a block, as the host gives it: all that there is but one KiB.
constexpr int SHARED_BYTES = 226 * 1024;
constexpr int MOST_STAGES = 16;
constexpr int min_of(int a, int b) { return a < b ? a : b; }

// Shared memory of a block, from a multiple of 1024 on.
template <int N, int W> struct Layout {
  static constexpr int WEIGHTS = OUTPUTS * STAGE_COLUMNS * bits_of<W>() / 8, ROWS = N * STAGE_BYTES, STAGE = WEIGHTS + ROWS;
  static constexpr int RESULT = N * OUTPUTS * 2;
  static constexpr int STAGES = min_of(MOST_STAGES, (SHARED_BYTES - 1024 - 512 - RESULT) / STAGE);
  static constexpr int BARRIERS = STAGES * STAGE + RESULT;
  // Tiles, at the stage that each begins with.
  static constexpr int TILES = BARRIERS + STAGES * 16;
  static_assert(BARRIERS + 512 + 1024 <= SHARED_BYTES);
  static_assert(STAGES * 32 <= 512);
};

// A tile: where its rows and outputs begin, those of this block.
struct alignas(16) Tile {
  int row, output, group;
  // Where its rows end, for those to whom that is not the end of all rows.
  int end;
};

// By its number in the order of the launch.
__device__ inline Tile tile_at(const ManyRows &p, int index, int tile_rows, int block) {
  const int per_group = p.row_tiles * p.output_pairs, group = index / per_group;
  index -= group * per_group;
  const int band = index / (BAND * p.output_pairs), first = band * BAND, high = min(BAND, p.row_tiles - first);
  index -= first * p.output_pairs;
  return {(first + index % high) * tile_rows, (index / high * CLUSTER + block) * OUTPUTS, group, 0};
}

__device__ inline void store_tile(uint32_t at, const Tile &tile) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(tile.row), "r"(tile.output), "r"(tile.group), "r"(tile.end) : "memory");
}
__device__ inline Tile load_tile(uint32_t at) {
  Tile tile;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(tile.row), "=r"(tile.output), "=r"(tile.group), "=r"(tile.end) : "r"(at) : "memory");
  return tile;
}

static_assert(SEGMENT_STEP % (2 * STAGE_COLUMNS) == 0);
__device__ inline int segment_stages(int64_t columns) { return int(segment_columns(columns) / STAGE_COLUMNS); }

// The place in the ring of stages.
template <int STAGES> struct Ring {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void advance() {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
};

// The results of a warpgroup: 64 outputs of N rows, of which thread t has, for eight rows at a time, two neighbouring rows of outputs
// t / 4 and t / 4 + 8 of its warp's sixteen.
template <int N> __device__ void store_f32(const float (&sums)[N / 2], const View &out, int64_t row, int64_t rows, int64_t column, int64_t columns) {
  const int lane = threadIdx.x % 32, output = threadIdx.x / 32 % 4 * 16 + lane / 4;
  float *to = reinterpret_cast<float *>(out.data) + row * out.stride[2] + column + output;
#pragma unroll
  for (int i = 0; i < N / 8; ++i) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int r = i * 8 + lane % 4 * 2 + j;
      if (r >= rows) continue;
      if (output < columns) to[r * out.stride[2]] = sums[i * 4 + j];
      if (output + 8 < columns) to[r * out.stride[2] + 8] = sums[i * 4 + j + 2];
    }
  }
}

// BF16 goes to shared memory first, where a row's 64 outputs are 128 bytes, swizzled as the copy engine does it.
template <int N> __device__ void stage_bf16(const float (&sums)[N / 2], uint32_t shared) {
  const int lane = threadIdx.x % 32, part = threadIdx.x / 32 % 4 * 2 + lane / 8 % 2, r = lane / 16 * 8 + lane % 8;
#pragma unroll
  for (int i = 0; i < N / 8; i += 2) {
    store_transposed(shared + i * 8 * 128 + r * 128 + (part ^ r % 8) * 16, pack_bf16(sums[i * 4], sums[i * 4 + 1]), pack_bf16(sums[i * 4 + 2], sums[i * 4 + 3]),
                     pack_bf16(sums[i * 4 + 4], sums[i * 4 + 5]), pack_bf16(sums[i * 4 + 6], sums[i * 4 + 7]));
  }
}

// From there to rows of any stride.
template <int N> __device__ __noinline__ void store_staged(const View &out, int64_t row, int64_t rows, int64_t column, int64_t columns, const unsigned char *staged) {
  const int thread = threadIdx.x % 128, part = thread % 8;
  uint16_t *to = reinterpret_cast<uint16_t *>(out.data) + row * out.stride[2] + column + part * 8;
  const bool is_wide = part * 8 + 8 <= columns && reinterpret_cast<uintptr_t>(to) % 16 == 0 && out.stride[2] % 8 == 0;
#pragma unroll 4
  for (int r = thread / 8; r < min(int64_t(N), rows); r += 16) {
    const uint4 eight = *reinterpret_cast<const uint4 *>(staged + r * 128 + (part ^ r % 8) * 16);
    if (is_wide) {
      *reinterpret_cast<uint4 *>(to + r * out.stride[2]) = eight;
      continue;
    }
    const uint32_t words[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
    for (int j = 0; j < 8; ++j) if (part * 8 + j < columns) to[r * out.stride[2] + j] = uint16_t(words[j / 2] >> j % 2 * 16);
  }
}

template <int N>
__device__ void store_results(const float (&sums)[N / 2], int64_t rows, int64_t outputs, bool is_mapped, const View &out, const TensorMap &out_map, const Tile &tile, unsigned char *staged, int group) {
  const int64_t output = tile.output + group * 64, column = tile.group * outputs + output;
  if (out.format == F32) return store_f32<N>(sums, out, tile.row, rows - tile.row, column, outputs - output);
  const bool is_first = threadIdx.x % 128 == 0;
  // The last tile's have left.
  if (is_first) stores_read();
  warpgroup_sync(group + 1);
  stage_bf16<N>(sums, shared_address(staged));
  publish_stores();
  warpgroup_sync(group + 1);
  if (!is_mapped) store_staged<N>(out, tile.row, rows - tile.row, column, outputs - output, staged);
  else if (is_first) store_box(out_map, shared_address(staged), int(output), tile.row, tile.group);
}

// One thread of a block fills the ring, for all its tiles.
template <int N, int W> __device__ void copy_tiles(const TensorMap &weights, const TensorMap &rows, const ManyRows &p, uint32_t memory) {
  using L = Layout<N, W>;
  const uint32_t full = memory + L::BARRIERS, empty = full + L::STAGES * 8, block = block_of_cluster();
  const int tiles = p.row_tiles * p.output_pairs * p.groups;
  Ring<L::STAGES> at;
  for (int index = blockIdx.x / CLUSTER; index < tiles; index += gridDim.x / CLUSTER) {
    const Tile tile = tile_at(p, index, N, block);
    for (int k = 0; k < p.stages; ++k) {
      const uint32_t barrier = full + at.stage * 8, to = memory + at.stage * L::STAGE;
      barrier_wait(empty + at.stage * 8, at.parity ^ 1);
      // The arrival publishes it.
      if (k == 0) store_tile(memory + L::TILES + at.stage * 16, tile);
      barrier_expect(barrier, L::STAGE);
      copy_box(weights, to, barrier, k * STAGE_COLUMNS, tile.output, tile.group);
      copy_box_to(rows, to + L::WEIGHTS + block * (L::ROWS / CLUSTER), barrier, k * STAGE_COLUMNS, tile.row + block * (N / CLUSTER), tile.group, (1 << CLUSTER) - 1);
      at.advance();
    }
  }
}

// Segments of a BF16 tile: both operands from shared memory.
template <int N> __device__ void sum_bf16(const ManyRows &p, uint32_t memory, int group, Ring<Layout<N, BF16>::STAGES> &at, float (&sums)[N / 2]) {
  using L = Layout<N, BF16>;
  const uint32_t full = memory + L::BARRIERS, empty = full + L::STAGES * 8, lane = threadIdx.x % 32;
  const int segment = segment_stages(p.columns);
  float part[N / 2];
#pragma unroll 1
  for (int begin = 0; begin < p.stages; begin += segment) {
    const int end = min(begin + segment, p.stages);
    int last = 0;
#pragma unroll 1
    for (int k = begin; k < end; ++k) {
      barrier_wait(full + at.stage * 8, at.parity);
      const uint32_t from = memory + at.stage * L::STAGE;
      const uint64_t a = swizzled(from + group * (L::WEIGHTS / 2)), b = swizzled(from + L::WEIGHTS);
      pin(part);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < STAGE_COLUMNS / 16; ++step) wgmma(part, a + step * 2, b + step * 2, step > 0 || k > begin);
      wgmma_commit();
      pin(part);
      // All but this stage's products are done: the stage before it is free, in every block that fills it.
      wgmma_wait<1>();
      if (k > begin && lane < CLUSTER) barrier_arrive(empty + last * 8, lane);
      last = at.stage;
      at.advance();
    }
    wgmma_wait<0>();
    pin(part);
    if (lane < CLUSTER) barrier_arrive(empty + last * 8, lane);
#pragma unroll
    for (int i = 0; i < N / 2; ++i) sums[i] = __fadd_rn(sums[i], part[i]);
  }
}

// The scales of 32 outputs, a window of 32 of them at a time in the lanes of a warp, with the window after it on its way.
struct Scales {
  const uint8_t *row;
  int columns;
  uint32_t now, next;
  __device__ uint32_t load(int first) const {
    const int at = first + threadIdx.x % 32;
    return at < columns ? row[at] : 127;
  }
  __device__ Scales(const uint8_t *row, int columns) : row(row), columns(columns), now(load(0)), next(load(32)) {}
  // The factor of `widen_e4m3`. In ascending order, each.
  __device__ uint32_t factor(int column) {
    if (column > 0 && column % 32 == 0) now = next, next = load(column + 32);
    return factor_of<FP8_TILE32>(__shfl_sync(0xFFFFFFFFu, now, column % 32), 0);
  }
};

// The left operand of a stage: the four products' sixteen columns, of which a thread has 4 (t % 4) to 4 (t % 4) + 3, even ones first.
// The rows of x are stored in the order that this makes of the columns.
__device__ inline void widen_stage(uint32_t from, Scales &scales, int stage, uint32_t (&a)[4][4], uint32_t (&largest)[2]) {
  const int lane = threadIdx.x % 32, row = lane % 8;
  const uint32_t at = from + threadIdx.x / 32 % 4 * 16 * STAGE_COLUMNS + row * STAGE_COLUMNS + (lane / 8 ^ row / 2) * 16;
  uint32_t low[4], high[4];
  load_matrices(at, low);
  load_matrices(at + 8 * STAGE_COLUMNS, high);
  const uint32_t first = scales.factor(2 * stage), second = scales.factor(2 * stage + 1);
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    widen_e4m3(low[step], step < 2 ? first : second, a[step][0], a[step][2], largest[0]);
    widen_e4m3(high[step], step < 2 ? first : second, a[step][1], a[step][3], largest[1]);
  }
}

// Segments of a tile of FP8 weights, which are widened in registers one stage ahead of the products. Stages come in pairs.
template <int N> __device__ void sum_fp8(const ManyRows &p, const Tile &tile, uint32_t memory, int group, Ring<Layout<N, FP8_TILE32>::STAGES> &at, float (&sums)[N / 2]) {
  using L = Layout<N, FP8_TILE32>;
  const uint32_t full = memory + L::BARRIERS, empty = full + L::STAGES * 8, lane = threadIdx.x % 32;
  const int64_t output = tile.output + group * 64 + threadIdx.x / 32 % 4 * 16;
  Scales scales(p.scales + (tile.group * p.outputs + min(output, p.outputs - 1)) / 32 * p.scale_stride, p.scale_columns);
  float part[N / 2];
  uint32_t a[2][4][4], largest[2] = {0, 0};
  int last = -1;
  barrier_wait(full + at.stage * 8, at.parity);
  widen_stage(memory + at.stage * L::STAGE + group * (L::WEIGHTS / 2), scales, 0, a[0], largest);
  const int segment = segment_stages(p.columns);
#pragma unroll 1
  for (int begin = 0; begin < p.stages; begin += segment) {
    const int end = min(begin + segment, p.stages);
#pragma unroll 1
    for (int k = begin; k < end; k += 2) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint64_t b = swizzled(memory + at.stage * L::STAGE + L::WEIGHTS);
        pin(part);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; ++step) wgmma(part, a[half][step], b + step * 2, step > 0 || half > 0 || k > begin);
        wgmma_commit();
        pin(part);
        // All but this stage's products are done: the stage before it is free, and so are the registers that held its weights.
        wgmma_wait<1>();
        if (last >= 0 && lane < CLUSTER) barrier_arrive(empty + last * 8, lane);
        last = at.stage;
        at.advance();
        if (k + half + 1 < p.stages) {
          barrier_wait(full + at.stage * 8, at.parity);
          widen_stage(memory + at.stage * L::STAGE + group * (L::WEIGHTS / 2), scales, k + half + 1, a[half ^ 1], largest);
        }
      }
    }
    wgmma_wait<0>();
    pin(part);
#pragma unroll
    for (int i = 0; i < N / 2; ++i) sums[i] = __fadd_rn(sums[i], part[i]);
  }
  if (lane < CLUSTER) barrier_arrive(empty + last * 8, lane);
  // A NaN among the weights, which the factor does not keep, is one in all sums of its output.
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const float nan = __uint_as_float(0x7FFFFFFFu);
    bool is_nan = has_nan(largest[j]);
    is_nan |= __shfl_xor_sync(0xFFFFFFFFu, is_nan, 1);
    is_nan |= __shfl_xor_sync(0xFFFFFFFFu, is_nan, 2);
    if (!is_nan) continue;
#pragma unroll
    for (int i = 0; i < N / 8; ++i) sums[4 * i + 2 * j] = sums[4 * i + 2 * j + 1] = nan;
  }
}

// A warpgroup multiplies its 64 of the block's 128 outputs.
template <int N, int W> __device__ void multiply_tiles(const ManyRows &p, const View &out, const TensorMap &out_map, unsigned char *shared, uint32_t memory, int group) {
  using L = Layout<N, W>;
  const int tiles = p.row_tiles * p.output_pairs * p.groups;
  Ring<L::STAGES> at;
#pragma unroll 1
  for (int index = blockIdx.x / CLUSTER; index < tiles; index += gridDim.x / CLUSTER) {
    barrier_wait(memory + L::BARRIERS + at.stage * 8, at.parity);
    const Tile tile = load_tile(memory + L::TILES + at.stage * 16);
    // What the first segment's sum is added to without a change, be it a zero of either sign.
    float sums[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; ++i) sums[i] = -0.0f;
    if constexpr (W == BF16) sum_bf16<N>(p, memory, group, at, sums);
    else sum_fp8<N>(p, tile, memory, group, at, sums);
    store_results<N>(sums, p.rows, p.outputs, p.is_out_mapped, out, out_map, tile, shared + L::STAGES * L::STAGE + group * (L::RESULT / 2), group);
  }
  if (threadIdx.x % 128 == 0) stores_done();
}

template <int N, int W> __device__ void multiply(const TensorMap &weights, const TensorMap &rows, const TensorMap &out_map, const ManyRows &p, const View &out) {
  using L = Layout<N, W>;
  extern __shared__ unsigned char dynamic[];
  unsigned char *shared = dynamic + (1024 - shared_address(dynamic) % 1024) % 1024;
  const uint32_t memory = shared_address(shared), full = memory + L::BARRIERS, empty = full + L::STAGES * 8;
  if (threadIdx.x == 0) {
    prefetch_map(weights), prefetch_map(rows), prefetch_map(out_map);
    for (int i = 0; i < L::STAGES; ++i) barrier_init(full + i * 8, 1), barrier_init(empty + i * 8, CONSUMER_WARPS * CLUSTER);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  cluster_sync();
  // A block stays until the other one has told it of all the stages that it has read.
  if (threadIdx.x >= 256) {
    fewer_registers<40>();
    if (threadIdx.x == 256) copy_tiles<N, W>(weights, rows, p, memory);
    __syncwarp();
    cluster_sync();
  } else {
    more_registers<232>();
    multiply_tiles<N, W>(p, out, out_map, shared, memory, threadIdx.x / 128);
    cluster_sync();
  }
}

} // namespace many

#endif
