// Attention of each row over listed cache entries, with a sink; keys and values are the same vectors. For every format, dimension
// and device; what the matrix units of Hopper do is in sparse_attention_tiles.cu and sparse_attention_long.cu.
//
// Bytes: the listed entries twice per group of heads (the second time from the caches), q and out once. Flops: 4 per head,
// entry and channel, in F64. A block takes a few heads of a row and walks over its entries, as many at a time as have room for
// their scores: once for the exact maximum, once for the sums; entries that fit at once are scored once. A score: lane l adds
// channels 4l to 4l + 3, then those 128 further on, and a tree over neighbours adds the lanes; a total: lane l adds entries l,
// l + 32, ... of the list, likewise. A value adds the entries in the order of the list. Neither the row's company nor the number
// of heads in a block nor that of entries in a walk enters any of these orders.
#include "common/cache_read.cuh"
#include "common/order.cuh"

constexpr int THREADS = 256;
constexpr int MOST_HEADS = 8;
constexpr uint32_t OP = 19;
// Places in the catalogue.
enum Argument : uint32_t { WINDOW_SLOTS = 4, GLOBAL_SLOTS = 8 };
enum Rule : uint32_t { WINDOW_SLOT_BEYOND = 2, GLOBAL_SLOT_BEYOND = 5 };

struct Source {
  View cache;
  View slots;
  uint32_t format;
  uint32_t entries;
};

__device__ inline double warp_sum(double value) {
  for (int width = 16; width > 0; width /= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, width);
  return value;
}

// Dynamic shared memory has, for each of `most` entries, a score per head of the block, an address, and the distance from
// there to the scales. `most` is a multiple of 32, or no row
// lists more.
// IS_LONG: a row may list more.
template <bool IS_LONG>
__device__ void attend(const View &q, const Source &window, const Source &global, const View &sink, const View &out, int most,
                       uint32_t block_heads, float scale, uint32_t round_probs, uint32_t *fault) {
  extern __shared__ double shared[];
  double *p = shared;
  unsigned char **values = reinterpret_cast<unsigned char **>(p + most * int(block_heads));
  uint32_t *to_scales = reinterpret_cast<uint32_t *>(values + most);
  __shared__ int scratch[THREADS / 32];
  __shared__ double totals[MOST_HEADS];
  const int64_t all_heads = q.shape[2], dim = q.columns(), groups = max(int64_t(1), (all_heads + block_heads - 1) / block_heads);
  const int64_t row = blockIdx.x / groups, first = blockIdx.x % groups * block_heads;
  const int heads = int(min(int64_t(block_heads), all_heads - first)), warp = threadIdx.x / 32, lane = threadIdx.x % 32;

  // Lists the entries from number `from` on, negative slots not counted, that fit; returns how many entries there are in all.
  int in_window = 0;
  bool is_wrong = false;
  const auto list = [&](int from) {
    int all = 0;
    const auto add = [&](const Source &source, uint32_t argument, uint32_t rule) {
      const int64_t columns = source.slots.columns(), capacity = source.cache.shape[2] * source.entries;
      for (int64_t base = 0; base < columns; base += THREADS) {
        const int64_t k = base + threadIdx.x;
        int64_t slot = k < columns ? source.slots.at<int32_t>(row * source.slots.stride[2])[k] : -1;
        if (slot >= capacity) {
          refuse(fault, OP, argument, rule);
          is_wrong = true;
          slot = -1;
        }
        const Count found = count_block<THREADS>(slot >= 0, scratch);
        const int place = all + found.before - from;
        if (slot >= 0 && place >= 0 && place < most) {
          const Entry entry = find_entry(source.cache, source.format, slot, source.entries, dim);
          values[place] = entry.values;
          to_scales[place] = uint32_t(entry.scales - entry.values);
        }
        all += found.all;
      }
    };
    add(window, WINDOW_SLOTS, WINDOW_SLOT_BEYOND);
    in_window = all;
    add(global, GLOBAL_SLOTS, GLOBAL_SLOT_BEYOND);
    return all;
  };
  const bool is_f32 = q.format == F32;
  const int size = is_f32 ? 4 : 2;
  const auto row_of = [&](const View &x, int head) {
    return PlainRow{x.data + (row * x.stride[1] + (first + head) * x.stride[2]) * size, dim, is_f32};
  };
  // Listed entry j, which is entry `from` + j of the row.
  const auto read = [&](int from, int j, int64_t column, float (&v)[4]) {
    read_entry({values[j], values[j] + to_scales[j]}, from + j < in_window ? window.format : global.format, dim, column, v);
  };
  const auto score = [&](int from, int count) {
    for (int j = warp; j < count; j += THREADS / 32) {
      double sums[MOST_HEADS] = {};
      for (int64_t column = lane * 4; column < dim; column += 128) {
        float key[4];
        read(from, j, column, key);
#pragma unroll
        for (int head = 0; head < MOST_HEADS; ++head) {
          if (head >= heads) continue;
          float query[4];
          load_quad(row_of(q, head), column, query);
#pragma unroll
          for (int i = 0; i < 4; ++i) sums[head] = __fma_rn(double(query[i]), double(key[i]), sums[head]);
        }
      }
#pragma unroll
      for (int head = 0; head < MOST_HEADS; ++head) {
        if (head >= heads) continue;
        const double sum = warp_sum(sums[head]);
        if (lane == 0) p[j * int(block_heads) + head] = sum * double(scale);
      }
    }
  };

  // Half of the threads for each half of the heads, four channels to a thread, 512 channels at a time: turn 0 is for the maxima,
  // the others for those channels each.
  constexpr int HALF = MOST_HEADS / 2, SPAN = THREADS / 2 * 4;
  const int own = int(threadIdx.x) / (THREADS / 2) * HALF;
  int all = 1;
  const int turns = 1 + max(1, int((dim + SPAN - 1) / SPAN));
  double largest = __longlong_as_double(0xFFF0000000000000ll), total = 0;
#pragma unroll 1
  for (int turn = 0; turn < turns; ++turn) {
    const int64_t column = int64_t(turn - 1) * SPAN + threadIdx.x % (THREADS / 2) * 4;
    const bool has_values = turn > 0 && own < heads && column < dim;
    double sums[HALF][4] = {};
#pragma unroll 1
    for (int from = 0; from < (IS_LONG ? all : 1); from += most) {
      if (turn == 0 || (IS_LONG && all > most)) {
        __syncthreads();
        all = list(from);
        if (__syncthreads_or(is_wrong)) return;
        if (all == 0) {
          for (int head = warp; head < heads; head += THREADS / 32) {
            for (int64_t c = lane * 4; c < dim; c += 128) store_quad(row_of(out, head), c, {0.0f, 0.0f, 0.0f, 0.0f});
          }
          return;
        }
        score(from, min(most, all - from));
        __syncthreads();
      }
      const int count = min(most, all - from);
      if (warp < heads && turn == 0) {
        // `fmax` drops a NaN, but the exponentials keep it.
        for (int j = lane; j < count; j += 32) largest = fmax(largest, p[j * int(block_heads) + warp]);
      } else if (warp < heads && (turn == 1 || (IS_LONG && all > most))) {
        for (int j = lane; j < count; j += 32) {
          double &place = p[j * int(block_heads) + warp];
          const double probability = exp(place - largest);
          if (turn == 1) total += probability;
          place = round_probs != 0 ? double(bf16_to_f32(f32_to_bf16(float(probability)))) : probability;
        }
      }
      __syncthreads();
      if (!has_values) continue;
      for (int j = 0; j < count; ++j) {
        float value[4];
        read(from, j, column, value);
#pragma unroll
        for (int h = 0; h < HALF; ++h) {
          if (own + h >= heads) continue;
          const double probability = p[j * int(block_heads) + own + h];
#pragma unroll
          for (int i = 0; i < 4; ++i) sums[h][i] = __fma_rn(probability, double(value[i]), sums[h][i]);
        }
      }
    }
    if (turn == 0) {
      for (int width = 16; width > 0; width /= 2) largest = fmax(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, width));
    } else if (turn == 1 && warp < heads) {
      total = warp_sum(total) + exp(double(sink.at<float>()[first + warp]) - largest);
      if (lane == 0) totals[warp] = total;
    }
    __syncthreads();
    if (!has_values) continue;
#pragma unroll
    for (int h = 0; h < HALF; ++h) {
      if (own + h >= heads) continue;
      float result[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) result[i] = float(sums[h][i] / totals[own + h]);
      store_quad(row_of(out, own + h), column, result);
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
sparse_attention(const __grid_constant__ View q, const __grid_constant__ Source window, const __grid_constant__ Source global,
                 const __grid_constant__ View sink, const __grid_constant__ View out, int32_t most, uint32_t block_heads,
                 float scale, uint32_t round_probs, uint32_t *fault) {
  attend<false>(q, window, global, sink, out, most, block_heads, scale, round_probs, fault);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
sparse_attention_long(const __grid_constant__ View q, const __grid_constant__ Source window, const __grid_constant__ Source global,
                      const __grid_constant__ View sink, const __grid_constant__ View out, int32_t most, uint32_t block_heads,
                      float scale, uint32_t round_probs, uint32_t *fault) {
  attend<true>(q, window, global, sink, out, most, block_heads, scale, round_probs, fault);
}
