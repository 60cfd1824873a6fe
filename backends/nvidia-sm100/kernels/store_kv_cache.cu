// Rows encoded into cache entries, and what a reader will see of them.
//
// Bytes: a row read, an entry written, with `rounded` a row written; and the slots. Some lanes of a warp take a row, 32 bytes each at a
// time.
//
// Of several rows that name one slot the highest is stored. With few rows each compares its slot with all later ones. With many,
// `store_kv_cache_mark` enters all rows into a table of the highest row of each slot, which takes the same time however many there
// are, and the order of arrival does not show in a maximum. The usual rows, BF16 to a scaled format, are then stored by
// `store_kv_cache_by_slot`, if there are not many more slots than rows, or by `store_kv_cache_many`; for others
// `store_kv_cache_resolve` takes the slot away from all rows but the highest.
#include "common/cache.cuh"
#include "common/octet.cuh"
#include "common/sixteen.cuh"

constexpr int THREADS = 256;
constexpr uint32_t OP = 11, SLOTS = 1, BEYOND_CACHE = 3;

// The highest row of each slot. With as many places as slots, a place of 32 bits for each: 0, or one more than the row. With fewer, open
// addressing: a place of 64 bits is 0, or slot + 1 above the row.
struct Writers {
  uint64_t *place;
  uint32_t places;
  bool is_direct;

  __device__ uint32_t *direct(int32_t slot) const { return reinterpret_cast<uint32_t *>(place) + slot; }
  __device__ uint32_t first_place(int32_t slot) const { return (uint32_t(slot) * 0x9E3779B1u ^ uint32_t(slot) >> 15) & (places - 1); }

  __device__ void enter(int32_t slot, uint32_t row) const {
    if (is_direct) {
      atomicMax(direct(slot), row + 1);
      return;
    }
    const unsigned long long wanted = (unsigned long long)(uint32_t(slot) + 1) << 32 | row;
    for (uint32_t i = first_place(slot);; i = (i + 1) & (places - 1)) {
      unsigned long long *at = reinterpret_cast<unsigned long long *>(place) + i;
      const unsigned long long found = atomicCAS(at, 0ull, wanted);
      if (found == 0) return;
      if (found >> 32 != wanted >> 32) continue;
      atomicMax(at, wanted);
      return;
    }
  }

  // Of a slot of the cache that was entered.
  __device__ uint32_t last_row(int32_t slot) const {
    if (is_direct) return *direct(slot) - 1;
    for (uint32_t i = first_place(slot);; i = (i + 1) & (places - 1)) {
      const uint64_t found = place[i];
      if (found >> 32 == uint32_t(slot) + 1) return uint32_t(found);
    }
  }
};

// A thread for each row.
extern "C" __global__ void __launch_bounds__(THREADS)
store_kv_cache_mark(View slots, uint64_t *writers, uint32_t places, uint32_t is_direct, uint32_t *fault) {
  const int64_t row = int64_t(blockIdx.x) * THREADS + threadIdx.x;
  if (row >= slots.columns()) return;
  const int32_t slot = slots.at<int32_t>()[row];
  if (is_direct && slot >= 0 && uint32_t(slot) >= places) return refuse(fault, OP, SLOTS, BEYOND_CACHE);
  if (slot >= 0) Writers{writers, places, is_direct != 0}.enter(slot, uint32_t(row));
}

// A thread for each row: its slot, or -1 where a later row has it. A slot beyond the cache, of which there are `count`, stays.
extern "C" __global__ void __launch_bounds__(THREADS)
store_kv_cache_resolve(View slots, uint64_t *writers, uint32_t places, uint32_t is_direct, int64_t count, int32_t *resolved, uint32_t *) {
  const int64_t row = int64_t(blockIdx.x) * THREADS + threadIdx.x;
  if (row >= slots.columns()) return;
  const int32_t slot = slots.at<int32_t>()[row];
  const bool is_overtaken = slot >= 0 && slot < count && Writers{writers, places, is_direct != 0}.last_row(slot) != row;
  resolved[row] = is_overtaken ? -1 : slot;
}

// What the call says beside its tensors.
struct Job {
  uint32_t format, entries, lanes_log2;
  const int32_t *resolved;
  uint32_t *fault;
};

// Whether a later row of the call names the slot of a row, by the lanes that have the row.
__device__ inline bool is_overtaken(const View &slots, int64_t rows, int64_t row, int32_t slot, int lanes) {
  const int lane = threadIdx.x & (lanes - 1);
  bool is_named = false;
#pragma unroll 4
  for (int64_t later = row + 1 + lane; later < rows; later += lanes) is_named |= slots.at<int32_t>()[later] == slot;
  const uint32_t mine = (lanes == 32 ? ~0u : (1u << lanes) - 1) << (threadIdx.x % 32 & ~(lanes - 1));
  return (__ballot_sync(0xFFFFFFFFu, is_named) & mine) != 0;
}

// A value of an F32 or BF16 entry. What is a BF16 value keeps its bits, also a NaN.
template <int F> __device__ inline float keep_as(float value) {
  if constexpr (F == F32) return value;
  else return (__float_as_uint(value) & 0xFFFF) == 0 ? value : bf16_to_f32(f32_to_bf16(value));
}

// An octet of an entry that is stored or not, and what a reader will see, if that is wanted. By all lanes of a warp.
template <int F, int X>
__device__ inline void store_octet(const Entry &entry, bool is_stored, int column, int dim, const Octet<X> &raw, bool is_wanted, float (&v)[8]) {
  if constexpr (F == F32 || F == BF16) {
    Octet<F> octet;
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = keep_as<F>(raw[j]);
#pragma unroll
    for (int i = 0; i < octet_bytes<F>() / 4; ++i) {
      if constexpr (F == F32) octet.word[i] = __float_as_uint(v[i]);
      else octet.word[i] = __byte_perm(__float_as_uint(v[2 * i]), __float_as_uint(v[2 * i + 1]), 0x7632);
    }
    if (!is_stored || column >= dim) return;
    unsigned char *to = entry.values + int64_t(column) * octet_bytes<F>() / 8;
    if (lies_on(to, 16) && column + 8 <= dim) return write_octet<F, true>(to, 8, octet);
#pragma unroll
    for (int i = 0; i < octet_bytes<F>() / 2; ++i) {
      // Entries of any size, in pages of any size: a value may lie at any address.
      constexpr int HALVES = octet_bytes<F>() / 16;
      if (column + i / HALVES < dim) store_bytes<2>(to + 2 * i, octet.word[i / 2] >> i % 2 * 16);
    }
  } else {
    const Coded<F> coded = encode_raw<F, X>(raw);
    if (is_stored && column < dim) {
      write_codes<F>(entry.values + int64_t(column) * octet_bytes<F>() / 8, coded);
      if (column % group_of<F>() == 0) entry.scales[column / group_of<F>()] = coded.scale;
    }
    if (is_wanted) decode_octet<F>(coded, v);
  }
}

template <int C, int X, bool IS_WHOLE>
__device__ void store_rows(const View &kv, const View &slots, const View &cache, const View &rounded, const Job &job) {
  constexpr int F = elements_of<C>();
  const int lanes = 1 << job.lanes_log2, lane = threadIdx.x & (lanes - 1);
  const int dim = int(kv.columns());
  const int64_t rows = kv.shape[2], row = (int64_t(blockIdx.x) * THREADS + threadIdx.x) >> job.lanes_log2;
  const bool is_row = row < rows, is_wanted = !rounded.is_absent();
  const unsigned char *from = matrix_row<X>(kv, is_row ? row : 0);
  const auto read = [&](int column) {
    return read_octet<X, IS_WHOLE>(from + int64_t(column) * octet_bytes<X>() / 8, is_row ? dim - column : 0);
  };
  // 32 bytes are under way while the slot is looked at.
  constexpr int OCTETS = X == BF16 ? 2 : 1;
  int column = 8 * lane;
  Octet<X> octets[OCTETS];
#pragma unroll
  for (int i = 0; i < OCTETS; ++i) octets[i] = read(column + 8 * lanes * i);

  const int32_t *named = job.resolved == nullptr ? slots.at<int32_t>() : job.resolved;
  const int32_t slot = is_row ? named[row] : -1;
  const bool is_wrong = slot >= 0 && slot >= cache.shape[2] * job.entries;
  if (is_wrong) refuse(job.fault, OP, SLOTS, BEYOND_CACHE);
  // A slot that is resolved names this row alone.
  const bool is_last = job.resolved != nullptr || !is_overtaken(slots, rows, row, slot, lanes);
  const bool is_stored = slot >= 0 && !is_wrong && is_last;
  const Entry entry = is_stored ? entry_of<C>(cache, slot, job.entries, dim) : Entry{};
  unsigned char *seen = is_wanted && is_row ? matrix_row<X>(rounded, row) : nullptr;

  // All lanes go round as often: those beyond the row help with the exchange.
#pragma unroll 1
  for (int begin = 0; begin < dim; begin += 8 * OCTETS * lanes, column += 8 * OCTETS * lanes) {
    if (begin > 0) {
#pragma unroll
      for (int i = 0; i < OCTETS; ++i) octets[i] = read(column + 8 * lanes * i);
    }
#pragma unroll
    for (int i = 0; i < OCTETS; ++i) {
      const int at = column + 8 * lanes * i;
      float v[8];
      store_octet<F, X>(entry, is_stored, at, dim, octets[i], seen != nullptr, v);
      if (seen == nullptr || is_wrong) continue;
      unsigned char *to = seen + int64_t(at) * octet_bytes<X>() / 8;
      Octet<X> octet = octet_of<X>(v);
      // A plain value that fits stays what it was.
      if constexpr ((F == F32 || F == BF16) && X == BF16) octet = octets[i];
      if (IS_WHOLE && lies_on(to, 16)) write_octet<X, true>(to, dim - at, octet);
      else write_octet<X, false>(to, dim - at, octet);
    }
  }
}

template <int C> __device__ void store_as(const View &kv, const View &slots, const View &cache, const View &rounded, const Job &job) {
  if (kv.format == BF16) {
    if (has_whole_octets<BF16>(kv)) return store_rows<C, BF16, true>(kv, slots, cache, rounded, job);
    return store_rows<C, BF16, false>(kv, slots, cache, rounded, job);
  }
  if (has_whole_octets<F32>(kv)) return store_rows<C, F32, true>(kv, slots, cache, rounded, job);
  return store_rows<C, F32, false>(kv, slots, cache, rounded, job);
}

// 2^lanes_log2 lanes for each row, 4 to 32. `resolved` is null or has the slots without those that later rows have too.
extern "C" __global__ void __launch_bounds__(THREADS, 4)
store_kv_cache(View kv, View slots, View cache, View rounded, uint32_t format, uint32_t entries, uint32_t lanes_log2,
               const int32_t *resolved, uint32_t *fault) {
  const Job job = {format, entries, lanes_log2, resolved, fault};
  switch (format) {
  case CACHE_F32: return store_as<CACHE_F32>(kv, slots, cache, rounded, job);
  case CACHE_BF16: return store_as<CACHE_BF16>(kv, slots, cache, rounded, job);
  case CACHE_FP8: return store_as<CACHE_FP8>(kv, slots, cache, rounded, job);
  case CACHE_FP4_ROW16: return store_as<CACHE_FP4_ROW16>(kv, slots, cache, rounded, job);
  case CACHE_FP4_ROW32: return store_as<CACHE_FP4_ROW32>(kv, slots, cache, rounded, job);
  }
}

// Many BF16 rows of at most 512 channels to a scaled format, the usual case. Lanes have sixteen channels each. A warp has ROWS times as
// many rows as its lanes hold at once, all of which it reads before it looks at slots; a lane finds the entry of one row for all.
constexpr int ROWS = 4;

// Sixteen channels of a row, to the entry that lane `of` knows, if there is one. By whole warps.
template <int C, int F>
__device__ inline void write_entry(const Entry &entry, int of, bool is_column, int column, int dim, const CodedSixteen<F> &coded) {
  const auto of_lane = [&](const unsigned char *address) {
    return reinterpret_cast<unsigned char *>(__shfl_sync(0xFFFFFFFFu, reinterpret_cast<uint64_t>(address), of));
  };
  unsigned char *values = of_lane(entry.values);
  unsigned char *scales = C == CACHE_FP4_ROW32 ? of_lane(entry.scales) : values + dim * octet_bytes<F>() / 8;
  if (!is_column || values == nullptr) return;
  write_sixteen<F>(values + column * octet_bytes<F>() / 8, coded);
  if (column % group_of<F>() == 0) scales[column / group_of<F>()] = coded.scale;
}

template <int C>
__device__ void store_many(const View &kv, const View &slots, const View &cache, const View &rounded, const Job &job, const Writers &writers) {
  constexpr int F = elements_of<C>();
  const int lanes = 1 << job.lanes_log2, lane = threadIdx.x % 32, at_once = 32 >> job.lanes_log2;
  const int dim = int(kv.columns()), column = (lane & (lanes - 1)) * 16;
  const int64_t rows = kv.shape[2], first = int64_t(warp_of_grid()) * ROWS * at_once, mine = first + (lane >> job.lanes_log2);
  // Groups are whole: a column beyond the row is in no group of the row.
  const bool is_column = column < dim;
  // Lane l has the slot of row first + l.
  const bool has_row = lane < ROWS * at_once && first + lane < rows;
  const int32_t slot = has_row ? slots.at<int32_t>()[first + lane] : -1;
  Sixteen x[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    const int64_t row = mine + r * at_once;
    x[r] = {};
    if (is_column && row < rows) {
      const uint4 *from = reinterpret_cast<const uint4 *>(matrix_row<BF16>(kv, row) + 2 * column);
      x[r] = {from[0], from[1]};
    }
  }
  // What waits for the slot comes behind the loads.
  __syncwarp();
  const bool is_wrong = slot >= 0 && slot >= cache.shape[2] * job.entries;
  if (is_wrong) refuse(job.fault, OP, SLOTS, BEYOND_CACHE);
  const bool is_stored = slot >= 0 && !is_wrong && writers.last_row(slot) == uint32_t(first + lane);
  const Entry entry = is_stored ? entry_of<C>(cache, slot, job.entries, dim) : Entry{};
  const uint32_t wrongs = __ballot_sync(0xFFFFFFFFu, is_wrong);

#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    const int64_t row = mine + r * at_once;
    const int of = int(row - first);
    const unsigned char *from = matrix_row<BF16>(kv, row) + 2 * column;
    const CodedSixteen<F> coded = encode_sixteen<F>(x[r], from);
    write_entry<C>(entry, of, is_column, column, dim, coded);
    if (rounded.is_absent() || !is_column || row >= rows || (wrongs >> of & 1)) continue;
    unsigned char *to = matrix_row<BF16>(rounded, row) + 2 * column;
#pragma unroll
    for (int o = 0; o < 2; ++o) {
      float v[8];
      decode_octet<F>(octet_of<F>(coded, o), v);
      if (lies_on(to, 16)) write_octet<BF16, true>(to + 16 * o, 8, octet_of<BF16>(v));
      else write_octet<BF16, false>(to + 16 * o, 8, octet_of<BF16>(v));
    }
  }
}

// The host sees to it that rows lie on boundaries of 16 bytes and have no more channels than 2^lanes_log2 lanes hold, at least 4.
extern "C" __global__ void __launch_bounds__(THREADS, 4)
store_kv_cache_many(View kv, View slots, View cache, View rounded, uint32_t format, uint32_t entries, uint32_t lanes_log2, uint64_t *writers,
                    uint32_t places, uint32_t is_direct, uint32_t *fault) {
  const Job job = {format, entries, lanes_log2, nullptr, fault};
  const Writers entered = {writers, places, is_direct != 0};
  switch (format) {
  case CACHE_FP8: return store_many<CACHE_FP8>(kv, slots, cache, rounded, job, entered);
  case CACHE_FP4_ROW16: return store_many<CACHE_FP4_ROW16>(kv, slots, cache, rounded, job, entered);
  case CACHE_FP4_ROW32: return store_many<CACHE_FP4_ROW32>(kv, slots, cache, rounded, job, entered);
  }
}

// The same in the order of the slots, by the table with a place for each: entries that lie beside each other are written at once, and rows
// are read where they are. Where nothing else is asked of rows than to be stored.
template <int C> __device__ void store_by_slot(const View &kv, const View &cache, const Job &job, const uint32_t *writers, uint32_t slots) {
  constexpr int F = elements_of<C>();
  const int lanes = 1 << job.lanes_log2, lane = threadIdx.x % 32, at_once = 32 >> job.lanes_log2;
  const int dim = int(kv.columns()), column = (lane & (lanes - 1)) * 16;
  const bool is_column = column < dim;
  // Lane l has slot first + l, and the row in it, from 1 on, if there is one.
  const uint32_t slot = warp_of_grid() * (ROWS * at_once) + lane;
  const uint32_t mine = lane < ROWS * at_once && slot < slots ? writers[slot] : 0;
  Sixteen x[ROWS];
  bool is_stored[ROWS];
  const unsigned char *from[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    const uint32_t row = __shfl_sync(0xFFFFFFFFu, mine, (lane >> job.lanes_log2) + r * at_once);
    is_stored[r] = is_column && row > 0;
    from[r] = matrix_row<BF16>(kv, row == 0 ? 0 : int64_t(row) - 1) + 2 * column;
    x[r] = {};
    const uint4 *at = reinterpret_cast<const uint4 *>(from[r]);
    if (is_stored[r]) x[r] = {at[0], at[1]};
  }
  const Entry entry = mine > 0 ? entry_of<C>(cache, slot, job.entries, dim) : Entry{};
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    const CodedSixteen<F> coded = encode_sixteen<F>(x[r], from[r]);
    write_entry<C>(entry, (lane >> job.lanes_log2) + r * at_once, is_stored[r], column, dim, coded);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 4)
store_kv_cache_by_slot(View kv, View cache, uint32_t format, uint32_t entries, uint32_t lanes_log2, const uint32_t *writers, uint32_t slots,
                       uint32_t *fault) {
  const Job job = {format, entries, lanes_log2, nullptr, fault};
  switch (format) {
  case CACHE_FP8: return store_by_slot<CACHE_FP8>(kv, cache, job, writers, slots);
  case CACHE_FP4_ROW16: return store_by_slot<CACHE_FP4_ROW16>(kv, cache, job, writers, slots);
  case CACHE_FP4_ROW32: return store_by_slot<CACHE_FP4_ROW32>(kv, cache, job, writers, slots);
  }
}
