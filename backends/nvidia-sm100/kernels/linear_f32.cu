// out = x times the transposed weights where one of them is F32 and the other F32 or BF16, for each block of the diagonal.
//
// Bytes: x once, the weights once per tile of rows (from the caches), out once. Flops: 2 T N K in F32. Tiles of three sizes, with the
// same bits: `alone` gives a block, or four, to each element of a few rows, `many` reuses each weight for 64 rows. Sums over many columns are
// cut over a cluster of 8 blocks, short ones stay in one block; the host says which, by the number of columns. The order
// is that of common/product_f32.cuh.
#include "common/product_f32.cuh"

constexpr int THREADS = 32 * WARPS;

// What a block has of the product: tile `index` of TILE_ROWS rows and TILE_OUTPUTS outputs, `tiles` of which lie below each other.
template <int TILE_ROWS, int TILE_OUTPUTS>
__device__ inline Block block_of(const View &weight, const View &out, uint32_t groups, uint32_t tiles, uint32_t index, int64_t *x_column) {
  const uint32_t outputs = uint32_t(weight.shape[2]) / groups, across = (outputs + TILE_OUTPUTS - 1) / TILE_OUTPUTS;
  const uint32_t block = index / tiles, group = block / across, first = block % across * TILE_OUTPUTS;
  const int64_t row = int64_t(index % tiles) * TILE_ROWS;
  *x_column = group * weight.columns();
  const int rows = int(min(int64_t(TILE_ROWS), out.shape[2] - row)), some = int(min(uint32_t(TILE_OUTPUTS), outputs - first));
  return {row, int64_t(group) * outputs + first, weight.columns(), rows, some};
}

template <class Tile, int X, int W, int CLUSTER>
__device__ void multiply(const View &x, const View &weight, const View &out, uint32_t groups, uint32_t tiles, unsigned char *shared) {
  int64_t x_column;
  const Block b = block_of<Tile::TILE_ROWS, Tile::TILE_OUTPUTS>(weight, out, groups, tiles, blockIdx.x / CLUSTER, &x_column);
  Tile::run(Rows<X>(x, b.row, x_column, b.columns), Rows<W>(weight, b.output, 0, b.columns), b, int(blockIdx.x % CLUSTER), shared, out);
}

// The kinds of tile.
template <int X, int W, int CLUSTER> using Some = Product<X, W, 1, 6, 3, CLUSTER>;
template <int X, int W, int CLUSTER> using Many = Product<X, W, 8, 6, 2, CLUSTER>;

// `tiles` tiles of rows of a block of outputs are neighbours in the grid; the host asks for BYTES of shared memory.
template <template <int, int, int> class Tile, int CLUSTER, int BYTES>
__device__ void by_format(const View &x, const View &weight, const View &out, uint32_t groups, uint32_t tiles) {
  extern __shared__ uint4 memory[];
  static_assert(Tile<F32, F32, CLUSTER>::SHARED_BYTES <= BYTES);
  unsigned char *shared = reinterpret_cast<unsigned char *>(memory);
  if (x.format == BF16) return multiply<Tile<BF16, F32, CLUSTER>, BF16, F32, CLUSTER>(x, weight, out, groups, tiles, shared);
  if (weight.format == BF16) return multiply<Tile<F32, BF16, CLUSTER>, F32, BF16, CLUSTER>(x, weight, out, groups, tiles, shared);
  multiply<Tile<F32, F32, CLUSTER>, F32, F32, CLUSTER>(x, weight, out, groups, tiles, shared);
}

#define KERNEL(name, Tile, CLUSTER, BLOCKS, BYTES)                                                                              \
  extern "C" __global__ void __cluster_dims__(CLUSTER) __launch_bounds__(THREADS, BLOCKS)                                       \
  name(View x, View weight, View out, uint32_t groups, uint32_t tiles, uint32_t *) {                                            \
    by_format<Tile, CLUSTER, BYTES>(x, weight, out, groups, tiles);                                                             \
  }

KERNEL(short_some, Some, 1, 2, 108 * 1024)
KERNEL(short_many, Many, 1, 1, 198 * 1024)
KERNEL(long_some, Some, 8, 2, 108 * 1024)
KERNEL(long_many, Many, 8, 1, 198 * 1024)

// An element by a block, or, as long as the device has multiprocessors for them, by four that share what is read for it.
constexpr int ALONE = 640, SHARED_BLOCKS = 4, SHARED = ALONE / SHARED_BLOCKS;

template <int X, int W, int RUNS, int T, int BLOCKS>
__device__ void alone(const View &x, const View &weight, const View &out, uint32_t groups, uint32_t tiles) {
  int64_t x_column;
  const Block b = block_of<1, 1>(weight, out, groups, tiles, blockIdx.x / BLOCKS, &x_column);
  multiply_alone<X, W, RUNS, T, BLOCKS>(Rows<X>(x, b.row, x_column, b.columns), Rows<W>(weight, b.output, 0, b.columns), b, out);
}

template <int RUNS, int T, int BLOCKS>
__device__ void alone_by_format(const View &x, const View &weight, const View &out, uint32_t groups, uint32_t tiles) {
  if (x.format == BF16) return alone<BF16, F32, RUNS, T, BLOCKS>(x, weight, out, groups, tiles);
  if (weight.format == BF16) return alone<F32, BF16, RUNS, T, BLOCKS>(x, weight, out, groups, tiles);
  alone<F32, F32, RUNS, T, BLOCKS>(x, weight, out, groups, tiles);
}

extern "C" __global__ void __launch_bounds__(ALONE)
short_alone(View x, View weight, View out, uint32_t groups, uint32_t tiles, uint32_t *) {
  alone_by_format<WARPS, ALONE, 1>(x, weight, out, groups, tiles);
}

extern "C" __global__ void __launch_bounds__(ALONE)
long_alone(View x, View weight, View out, uint32_t groups, uint32_t tiles, uint32_t *) {
  alone_by_format<8 * WARPS, ALONE, 1>(x, weight, out, groups, tiles);
}

extern "C" __global__ void __cluster_dims__(SHARED_BLOCKS) __launch_bounds__(SHARED)
long_shared(View x, View weight, View out, uint32_t groups, uint32_t tiles, uint32_t *) {
  alone_by_format<8 * WARPS, SHARED, SHARED_BLOCKS>(x, weight, out, groups, tiles);
}
