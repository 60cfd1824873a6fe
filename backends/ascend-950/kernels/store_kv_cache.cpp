// Rows encoded into cache entries, and what a reader will see of them.
//
// Bytes: a row read, an entry written, with `rounded` a row written; and the slots, by every block.
//
// Of several rows that name one slot the highest stays: a block has the slots that leave its number when they are divided by the
// number of blocks, takes their rows in ascending order, and MTE3 finishes an entry before it begins the next. A row without a slot is
// any block's. Pieces of 2048 columns: MTE2 reads, V encodes (common/encode.h) and decodes, MTE3 writes bytes at any address. S reads
// the slots.
#include "common/encode.h"
#include "common/faults.h"
#include "common/float_rows.h"
#include "common/plain_bits.h"

using namespace AscendC;

struct StoreKvCacheTiling {
  int64_t rows, columns, kv_stride, rounded_stride; // strides in elements
  int64_t page_stride, pages;                       // the stride in bytes
  uint32_t entries, format;
  int32_t kv_format, has_rounded;
};
static_assert(sizeof(StoreKvCacheTiling) == 64, "as in src/ops/store_kv_cache.rs");

// Places in the catalogue.
constexpr uint32_t OP = 11, SLOTS = 1, BEYOND_CACHE = 3;

// C is the cache format, X the rows' type as bits: uint32_t for F32, uint16_t for BF16.
template <uint32_t C, class X> class Store {
public:
  __aicore__ inline void init(GM_ADDR kv, GM_ADDR slots, GM_ADDR cache, GM_ADDR rounded, GM_ADDR faults, const StoreKvCacheTiling &t) {
    t_ = t;
    faults_ = faults;
    kv_.SetGlobalBuffer(reinterpret_cast<__gm__ X *>(kv));
    slots_.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t *>(slots));
    cache_.SetGlobalBuffer(reinterpret_cast<__gm__ uint8_t *>(cache));
    rounded_.SetGlobalBuffer(reinterpret_cast<__gm__ X *>(rounded));
    pipe_.InitBuffer(in_, 2, PIECE * sizeof(X));
    pipe_.InitBuffer(codes_, 2, PIECE * 4);
    pipe_.InitBuffer(scales_, 2, PIECE / 16);
    pipe_.InitBuffer(seen_, 2, PIECE * 4);
    pipe_.InitBuffer(values_, PIECE * 4);
    pipe_.InitBuffer(decoded_, PIECE * 4);
    pipe_.InitBuffer(scratch_, 3 * PIECE * 4);
    pipe_.InitBuffer(names_, MOST_SLOTS * 4);
    pipe_.InitBuffer(room_, 32);
    coder_.init(pipe_);
  }

  __aicore__ inline void run() {
    const int64_t block = GetBlockIdx(), blocks = GetBlockNum();
    const LocalTensor<int32_t> names = names_.template Get<int32_t>();
    for (int64_t first = 0; first < t_.rows; first += MOST_SLOTS) {
      const uint32_t count = static_cast<uint32_t>(least(t_.rows - first, MOST_SLOTS));
      DataCopyPad(names, slots_[first], DataCopyExtParams(1, count * 4, 0, 0, 0), DataCopyPadExtParams<int32_t>());
      order<HardEvent::MTE2_S>();
      for (uint32_t i = 0; i < count; ++i) {
        const int64_t slot = names.GetValue(i), row = first + i;
        if ((slot < 0 ? row : slot) % blocks != block) continue;
        if (slot < 0 && t_.has_rounded == 0) continue;
        if (slot >= t_.pages * t_.entries) {
          report_fault(room_.template Get<int32_t>(), faults_, OP, SLOTS, BEYOND_CACHE);
          continue;
        }
        store_row(row, slot);
      }
      order<HardEvent::S_MTE2>();
    }
  }

private:
  static constexpr uint32_t PIECE = CODED_COLUMNS, MOST_SLOTS = 2048;
  static constexpr int32_t FORMAT = C == CACHE_FP8 ? FP8_ROW32 : C == CACHE_FP4_ROW16 ? FP4_ROW16 : FP4_ROW32;
  static constexpr bool IS_PLAIN = C == CACHE_F32 || C == CACHE_BF16;

  // Bytes of the values and of the scales of an entry, or of a piece of one.
  __aicore__ static inline int64_t value_bytes(int64_t columns) {
    return C == CACHE_F32 ? columns * 4 : C == CACHE_BF16 ? columns * 2 : columns / Scaled<FORMAT>::CODES_PER_BYTE;
  }
  __aicore__ static inline int64_t scale_bytes(int64_t columns) { return IS_PLAIN ? 0 : columns / Scaled<FORMAT>::GROUP; }

  __aicore__ inline void store_row(int64_t row, int64_t slot) {
    const int64_t page = slot < 0 ? 0 : slot / t_.entries, place = slot < 0 ? 0 : slot - page * t_.entries;
    const int64_t values = value_bytes(t_.columns), scales = scale_bytes(t_.columns), begin = page * t_.page_stride;
    // In the last format all values of a page stand before all scales.
    const int64_t values_at = begin + place * (C == CACHE_FP4_ROW32 ? values : values + scales);
    const int64_t scales_at = C == CACHE_FP4_ROW32 ? begin + t_.entries * values + place * scales : values_at + values;
    // An earlier row may have had the slot.
    PipeBarrier<PIPE_MTE3>();
    for (int64_t at = 0; at < t_.columns; at += PIECE) {
      const uint32_t count = static_cast<uint32_t>(least(t_.columns - at, PIECE));
      load(kv_[row * t_.kv_stride + at], count);
      LocalTensor<uint8_t> codes = codes_.template AllocTensor<uint8_t>(), scale = scales_.template AllocTensor<uint8_t>();
      encode(codes, scale, count);
      if (t_.has_rounded != 0) write_rounded(rounded_[row * t_.rounded_stride + at], codes, scale, count);
      codes_.EnQue(codes);
      scales_.EnQue(scale);
      codes = codes_.template DeQue<uint8_t>();
      scale = scales_.template DeQue<uint8_t>();
      if (slot >= 0) {
        DataCopyPad(cache_[values_at + value_bytes(at)], codes, DataCopyExtParams(1, static_cast<uint32_t>(value_bytes(count)), 0, 0, 0));
        if constexpr (!IS_PLAIN) {
          DataCopyPad(cache_[scales_at + scale_bytes(at)], scale, DataCopyExtParams(1, static_cast<uint32_t>(scale_bytes(count)), 0, 0, 0));
        }
      }
      codes_.FreeTensor(codes);
      scales_.FreeTensor(scale);
    }
  }

  // The piece as the bits of F32 in values_.
  __aicore__ inline void load(const GlobalTensor<X> &from, uint32_t count) {
    const LocalTensor<uint32_t> values = values_.template Get<uint32_t>();
    LocalTensor<X> raw = in_.template AllocTensor<X>();
    DataCopyPad(raw, from, DataCopyExtParams(1, count * static_cast<uint32_t>(sizeof(X)), 0, 0, 0), DataCopyPadExtParams<X>());
    in_.EnQue(raw);
    raw = in_.template DeQue<X>();
    vector_barrier();
    if constexpr (sizeof(X) == 2) widen_bits(values, raw, count);
    else DataCopy(values, raw, whole_blocks(count));
    vector_barrier();
    in_.FreeTensor(raw);
  }

  __aicore__ inline LocalTensor<uint32_t> scratch(uint32_t which) { return scratch_.template GetWithOffset<uint32_t>(PIECE, which * PIECE * 4); }

  __aicore__ inline void encode(const LocalTensor<uint8_t> &codes, const LocalTensor<uint8_t> &scale, uint32_t count) {
    const LocalTensor<uint32_t> values = values_.template Get<uint32_t>();
    if constexpr (C == CACHE_F32) {
      DataCopy(codes.template ReinterpretCast<uint32_t>(), values, whole_blocks(count));
      vector_barrier();
    } else if constexpr (C == CACHE_BF16) {
      narrow_bits(codes.template ReinterpretCast<uint16_t>(), values, scratch(0), scratch(1), scratch(2), count);
    } else {
      coder_.template encode<FORMAT>(codes, scale, values.template ReinterpretCast<float>(), count);
    }
  }

  __aicore__ inline void write_rounded(const GlobalTensor<X> &to, const LocalTensor<uint8_t> &codes, const LocalTensor<uint8_t> &scale,
                                       uint32_t count) {
    LocalTensor<uint32_t> decoded = decoded_.template Get<uint32_t>();
    vector_barrier();
    // An F32 entry keeps everything, and a BF16 entry BF16 rows.
    if constexpr (C == CACHE_F32 || (C == CACHE_BF16 && sizeof(X) == 2)) decoded = values_.template Get<uint32_t>();
    else if constexpr (C == CACHE_BF16) widen_bits(decoded, codes.template ReinterpretCast<uint16_t>(), count);
    else coder_.template decode<FORMAT>(decoded.template ReinterpretCast<float>(), codes, scale, count);
    LocalTensor<X> seen = seen_.template AllocTensor<X>();
    if constexpr (sizeof(X) == 2) narrow_bits(seen, decoded, scratch(0), scratch(1), scratch(2), count);
    else DataCopy(seen, decoded, whole_blocks(count));
    seen_.EnQue(seen);
    seen = seen_.template DeQue<X>();
    DataCopyPad(to, seen, DataCopyExtParams(1, count * static_cast<uint32_t>(sizeof(X)), 0, 0, 0));
    seen_.FreeTensor(seen);
  }

  StoreKvCacheTiling t_;
  GM_ADDR faults_;
  TPipe pipe_;
  Coder coder_;
  TQue<TPosition::VECIN, 2> in_;
  TQue<TPosition::VECOUT, 2> codes_, scales_, seen_;
  TBuf<TPosition::VECCALC> values_, decoded_, scratch_, names_;
  TBuf<TPosition::VECOUT> room_;
  GlobalTensor<X> kv_, rounded_;
  GlobalTensor<int32_t> slots_;
  GlobalTensor<uint8_t> cache_;
};

template <uint32_t C> __aicore__ inline void store(GM_ADDR kv, GM_ADDR slots, GM_ADDR cache, GM_ADDR rounded, GM_ADDR faults,
                                              const StoreKvCacheTiling &t) {
  if (t.kv_format == BF16) {
    Store<C, uint16_t> store;
    store.init(kv, slots, cache, rounded, faults, t);
    store.run();
  } else {
    Store<C, uint32_t> store;
    store.init(kv, slots, cache, rounded, faults, t);
    store.run();
  }
}

extern "C" __global__ __aicore__ void store_kv_cache(GM_ADDR kv, GM_ADDR slots, GM_ADDR cache, GM_ADDR rounded, GM_ADDR faults,
                                                            GM_ADDR tiling) {
  const StoreKvCacheTiling t = read_tiling<StoreKvCacheTiling>(tiling);
  switch (t.format) {
  case CACHE_F32: return store<CACHE_F32>(kv, slots, cache, rounded, faults, t);
  case CACHE_BF16: return store<CACHE_BF16>(kv, slots, cache, rounded, faults, t);
  case CACHE_FP8: return store<CACHE_FP8>(kv, slots, cache, rounded, faults, t);
  case CACHE_FP4_ROW16: return store<CACHE_FP4_ROW16>(kv, slots, cache, rounded, faults, t);
  case CACHE_FP4_ROW32: return store<CACHE_FP4_ROW32>(kv, slots, cache, rounded, faults, t);
  }
}
