// Products of rows with transposed weights where F32 meets F32 or BF16, in F32 with F64 sums of short pieces.
//
// Order of a sum, from the number of columns alone: 1024 neighbouring columns are 32 chunks of 32. Chunk l has columns 8 l to 8 l + 7,
// and those 256, 512 and 768 further on, so that lanes that take a chunk each read neighbours. A chunk is added by fused multiply-adds in ascending order, from 0; the sums of chunks are added in
// F64, in ascending order within a run of neighbouring chunks. There are WARPS runs of equal length for each block of a cluster (the
// last ones shorter or empty); runs are added in F64 in ascending order, first those of a block, then those of the blocks. Rounding of
// a chunk's sum is of the size of the chunk's, not of the whole sum's, and what rounds the F64 sums is nothing beside it: for terms of
// random sign the error is about three roundings of the result to F32. Which rows and outputs share a tile enters nowhere: a row or
// output that is not there repeats the last one and is not written.
//
// Many rows: a warp has a tile of the product and a run to itself. It copies its chunks of both operands to its own part of shared
// memory, some of them on their way, and waits for nobody else until the end. Few rows: some blocks have one element, a lane one chunk
// at a time, straight from memory, and some threads add the chunks' sums as the cluster would.
#pragma once

#include <cooperative_groups.h>

#include "cluster.cuh"
#include "values.cuh"

constexpr int WARPS = 8, CHUNK = 32, CHUNKS = 32, SPAN = CHUNK * CHUNKS;

// Neighbouring columns of a chunk.
constexpr int GROUP = 8;

// The column of element e of a chunk.
__device__ inline int64_t column_of(int chunk, int e) {
  return int64_t(chunk / CHUNKS) * SPAN + chunk % CHUNKS * GROUP + e / GROUP * (CHUNKS * GROUP) + e % GROUP;
}

__device__ inline int chunks_of(int64_t columns) { return int((columns + SPAN - 1) / SPAN) * CHUNKS; }

// A block of the product: its first row and output, how many there are, and the columns.
struct Block {
  int64_t row, output, columns;
  int rows, outputs;
};

__device__ inline void copy_16(void *to, const void *from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(uint32_t(__cvta_generic_to_shared(to))), "l"(from) : "memory");
}

// Rows of an operand from a column on, a chunk at a time. In shared memory a row of a chunk is followed by 16 bytes, so that eight
// rows lie in different banks.
template <int F> struct Rows {
  static constexpr int BYTES = F == F32 ? 4 : 2, PITCH = CHUNK * BYTES + 16, QUAD = 4 * BYTES;
  const unsigned char *data;
  int64_t stride, columns;
  bool is_wide;

  // `row` is the first one of the tile.
  __device__ Rows(const View &x, int64_t row, int64_t first_column, int64_t count)
      : data(x.data + (row * x.stride[2] + first_column) * BYTES), stride(x.stride[2] * BYTES), columns(count) {
    is_wide = reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride % 16 == 0 && columns % (16 / BYTES) == 0;
  }

  // COUNT rows of a chunk, of which the last ones repeat row `last`; by a warp.
  template <int COUNT> __device__ void copy(unsigned char *to, int chunk, int last) const {
    constexpr int PIECES = CHUNK * BYTES / 16, ELEMENTS = 16 / BYTES, STEP = 32 / PIECES;
    const int first = threadIdx.x % 32 / PIECES, piece = threadIdx.x % PIECES;
    const int64_t column = column_of(chunk, piece * ELEMENTS);
    const unsigned char *from = data + column * BYTES;
    unsigned char *place = to + first * PITCH + piece * 16;
    if (is_wide && last + 1 >= COUNT && int64_t(chunk / CHUNKS + 1) * SPAN <= columns && COUNT % STEP == 0) {
      from += first * stride;
#pragma unroll
      for (int i = 0; i < COUNT; i += STEP) {
        copy_16(place + i * PITCH, from);
        from += STEP * stride;
      }
      return;
    }
    if (is_wide) {
#pragma unroll 1
      for (int i = 0; i < COUNT; i += STEP) {
        if (first + i >= COUNT) break;
        if (column < columns) copy_16(place + i * PITCH, from + min(first + i, last) * stride);
        else *reinterpret_cast<uint4 *>(place + i * PITCH) = make_uint4(0, 0, 0, 0);
      }
      return;
    }
#pragma unroll 1
    for (int i = 0; i < COUNT; i += STEP) {
      if (first + i >= COUNT) break;
#pragma unroll 1
      for (int j = 0; j < ELEMENTS; ++j) {
        const bool is_there = column + j < columns;
        const unsigned char *row = from + min(first + i, last) * stride;
        if constexpr (F == F32) reinterpret_cast<uint32_t *>(place + i * PITCH)[j] = is_there ? reinterpret_cast<const uint32_t *>(row)[j] : 0;
        else reinterpret_cast<uint16_t *>(place + i * PITCH)[j] = is_there ? reinterpret_cast<const uint16_t *>(row)[j] : 0;
      }
    }
  }

  // Eight neighbours of the first row; zeros beyond the columns.
  __device__ void eight(int64_t column, float (&v)[8]) const {
    const unsigned char *from = data + column * BYTES;
    if (is_wide && column + 8 <= columns) {
      if constexpr (F == F32) {
        const float4 low = reinterpret_cast<const float4 *>(from)[0], high = reinterpret_cast<const float4 *>(from)[1];
        v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w, v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
      } else {
        const uint4 four = *reinterpret_cast<const uint4 *>(from);
        const uint32_t words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) v[2 * i] = __uint_as_float(words[i] << 16), v[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000u);
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if constexpr (F == F32) v[i] = column + i < columns ? reinterpret_cast<const float *>(from)[i] : 0.0f;
      else v[i] = column + i < columns ? bf16_to_f32(reinterpret_cast<const uint16_t *>(from)[i]) : 0.0f;
    }
  }

  // Columns 4 q to 4 q + 3 of a row of a chunk in shared memory.
  static __device__ float4 quad(const unsigned char *chunk, int row, int q) {
    const unsigned char *from = chunk + row * PITCH + q * QUAD;
    if constexpr (F == F32) return *reinterpret_cast<const float4 *>(from);
    const uint2 v = *reinterpret_cast<const uint2 *>(from);
    return make_float4(__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xFFFF0000u), __uint_as_float(v.y << 16), __uint_as_float(v.y & 0xFFFF0000u));
  }
};

// The chunks of a warp's run.
struct Run {
  int first, end;

  __device__ Run(int64_t columns, int number, int runs) {
    const int chunks = chunks_of(columns), each = (chunks + runs - 1) / runs;
    first = min(chunks, number * each), end = min(chunks, first + each);
  }
};

// Adds the runs of a tile, first those of the block's warps, then those of the cluster's blocks, and writes it. Each warp has left its
// sums, row by row, at the beginning of its WARP_BYTES of shared memory. `rank` is the block's in its cluster.
template <int TILE_ROWS, int TILE_OUTPUTS, int WARP_BYTES, int CLUSTER>
__device__ void add_runs(const Block &b, int rank, unsigned char *shared, const View &out) {
  __syncthreads();
  const auto write = [&](int e, double value) {
    const int row = e / TILE_OUTPUTS, output = e % TILE_OUTPUTS;
    if (row < b.rows && output < b.outputs) {
      const int64_t at = (b.row + row) * out.stride[2] + b.output + output;
      if (out.format == F32) out.at<float>()[at] = float(value);
      else out.at<uint16_t>()[at] = f32_to_bf16(float(value));
    }
  };
  for (int e = threadIdx.x; e < TILE_ROWS * TILE_OUTPUTS; e += 32 * WARPS) {
    double value = 0;
#pragma unroll
    for (int v = 0; v < WARPS; ++v) value += reinterpret_cast<const double *>(shared + v * WARP_BYTES)[e];
    if constexpr (CLUSTER == 1) write(e, value);
    else reinterpret_cast<double *>(shared)[e] = value;
  }
  if constexpr (CLUSTER > 1) {
    static_assert(TILE_ROWS * TILE_OUTPUTS % CLUSTER == 0);
    const auto cluster = cooperative_groups::this_cluster();
    cluster.sync();
    constexpr int SHARE = TILE_ROWS * TILE_OUTPUTS / CLUSTER;
    for (int i = threadIdx.x; i < SHARE; i += 32 * WARPS) {
      double value = 0;
#pragma unroll
      for (int c = 0; c < CLUSTER; ++c) value += reinterpret_cast<const double *>(cluster.map_shared_rank(shared, c))[rank * SHARE + i];
      write(rank * SHARE + i, value);
    }
    cluster.sync();
  }
}

// A tile of 8 R rows and 4 O outputs, STAGES chunks on their way: lane l is at row l / 4 and output l % 4 of a grid of 8 by 4 that repeats
// R times down and O times across.
template <int X, int W, int R, int O, int STAGES, int CLUSTER> struct Product {
  static constexpr int TILE_ROWS = 8 * R, TILE_OUTPUTS = 4 * O;
  static constexpr int X_BYTES = TILE_ROWS * Rows<X>::PITCH, STAGE_BYTES = X_BYTES + TILE_OUTPUTS * Rows<W>::PITCH;
  // The sums of a warp take the place of its chunks.
  static constexpr int SUM_BYTES = TILE_ROWS * TILE_OUTPUTS * 8;
  static constexpr int WARP_BYTES = STAGES * STAGE_BYTES > SUM_BYTES ? STAGES * STAGE_BYTES : SUM_BYTES;
  static constexpr int SHARED_BYTES = WARPS * WARP_BYTES;

  static __device__ void add_chunk(double (&sums)[R][O], const unsigned char *stage) {
    const int lane_row = threadIdx.x % 32 / 4, lane_output = threadIdx.x % 4;
    float part[R][O] = {};
    // A large tile has no registers for more.
#pragma unroll R > 1 ? 2 : CHUNK / 4
    for (int q = 0; q < CHUNK / 4; ++q) {
      float4 b[O];
#pragma unroll
      for (int o = 0; o < O; ++o) b[o] = Rows<W>::quad(stage + X_BYTES, 4 * o + lane_output, q);
#pragma unroll
      for (int r = 0; r < R; ++r) {
        const float4 a = Rows<X>::quad(stage, 8 * r + lane_row, q);
#pragma unroll
        for (int o = 0; o < O; ++o) {
          part[r][o] = __fmaf_rn(a.x, b[o].x, part[r][o]);
          part[r][o] = __fmaf_rn(a.y, b[o].y, part[r][o]);
          part[r][o] = __fmaf_rn(a.z, b[o].z, part[r][o]);
          part[r][o] = __fmaf_rn(a.w, b[o].w, part[r][o]);
        }
      }
    }
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int o = 0; o < O; ++o) sums[r][o] += double(part[r][o]);
    }
  }

  // `rank` is the block's in its cluster.
  static __device__ void run(const Rows<X> &x, const Rows<W> &w, const Block &b, int rank, unsigned char *shared, const View &out) {
    const int warp = threadIdx.x / 32, lane_row = threadIdx.x % 32 / 4, lane_output = threadIdx.x % 4;
    const Run run(b.columns, rank * WARPS + warp, WARPS * CLUSTER);
    const int first = run.first, end = run.end;
    unsigned char *mine = shared + warp * WARP_BYTES;
    const auto ask = [&](int chunk, int stage) {
      if (chunk < end) {
        x.template copy<TILE_ROWS>(mine + stage * STAGE_BYTES, chunk, b.rows - 1);
        w.template copy<TILE_OUTPUTS>(mine + stage * STAGE_BYTES + X_BYTES, chunk, b.outputs - 1);
      }
      asm volatile("cp.async.commit_group;" ::: "memory");
    };
    double sums[R][O] = {};
#pragma unroll 1
    for (int s = 0; s < STAGES; ++s) ask(first + s, s);
    int stage = 0;
#pragma unroll 1
    for (int chunk = first; chunk < end; ++chunk) {
      asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 1) : "memory");
      __syncwarp();
      add_chunk(sums, mine + stage * STAGE_BYTES);
      __syncwarp();
      ask(chunk + STAGES, stage);
      stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncwarp();

    double *place = reinterpret_cast<double *>(mine);
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int o = 0; o < O; ++o) place[(8 * r + lane_row) * TILE_OUTPUTS + 4 * o + lane_output] = sums[r][o];
    }
    add_runs<TILE_ROWS, TILE_OUTPUTS, WARP_BYTES, CLUSTER>(b, rank, shared, out);
  }
};

// Sums of this many columns can be made by a block alone.
constexpr int64_t MOST_ALONE = 65536;

// One element by a cluster of BLOCKS blocks of T threads, in the order of RUNS runs. Lanes take chunks straight from memory, a share in
// every block; the first block gets the sums of all chunks and adds them. Blocks wait for each other once, while they load: nobody
// writes to a block that has not begun.
template <int X, int W, int RUNS, int T, int BLOCKS>
__device__ inline void multiply_alone(const Rows<X> &x, const Rows<W> &w, const Block &b, const View &out) {
  __shared__ float parts[MOST_ALONE / CHUNK];
  __shared__ double sums[RUNS];
  const int chunks = chunks_of(b.columns);
  const uint32_t rank = BLOCKS == 1 ? 0 : cluster_rank();
  if constexpr (BLOCKS > 1) cluster_arrive();
  bool is_waited = BLOCKS == 1;
  for (int chunk = int(rank) * T + threadIdx.x; chunk < chunks; chunk += T * BLOCKS) {
    float a[CHUNK / 8][8], c[CHUNK / 8][8], part = 0;
#pragma unroll
    for (int e = 0; e < CHUNK / 8; ++e) {
      w.eight(column_of(chunk, 8 * e), c[e]);
      x.eight(column_of(chunk, 8 * e), a[e]);
    }
#pragma unroll
    for (int e = 0; e < CHUNK / 8; ++e) {
#pragma unroll
      for (int i = 0; i < 8; ++i) part = __fmaf_rn(a[e][i], c[e][i], part);
    }
    if constexpr (BLOCKS == 1) {
      parts[chunk] = part;
    } else {
      if (!is_waited) cluster_wait(), is_waited = true;
      store_at_rank(reinterpret_cast<uint32_t *>(&parts[chunk]), 0, __float_as_uint(part));
    }
  }
  if constexpr (BLOCKS == 1) {
    __syncthreads();
  } else {
    if (!is_waited) cluster_wait();
    cluster_arrive();
    // The others have written all that they have.
    cluster_wait();
    if (rank != 0) return;
  }
  if (threadIdx.x < RUNS) {
    const Run run(b.columns, threadIdx.x, RUNS);
    double sum = 0;
#pragma unroll 8
    for (int chunk = run.first; chunk < run.end; ++chunk) sum += double(parts[chunk]);
    sums[threadIdx.x] = sum;
  }
  __syncthreads();
  if (threadIdx.x >= 32) return;
  // Lane l adds the runs of block l, then every lane the blocks in order.
  double sum = 0;
  if (threadIdx.x < RUNS / WARPS) {
#pragma unroll
    for (int i = 0; i < WARPS; ++i) sum += sums[threadIdx.x * WARPS + i];
  }
  double total = sum;
  if constexpr (RUNS > WARPS) {
    total = 0;
#pragma unroll
    for (int c = 0; c < RUNS / WARPS; ++c) total += __shfl_sync(0xFFFFFFFFu, sum, c);
  }
  if (threadIdx.x == 0) store_float(out, b.row, b.output, float(total));
}
