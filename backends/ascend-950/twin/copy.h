// Copies between global memory and the unified buffer. DataCopy moves whole blocks of 32 bytes; DataCopyPad moves any number of
// bytes, and into the UB fills up to the end of a block. Strides are gaps: between the end of a piece and the next one.

#ifndef DEEPINFER_ASCEND_TWIN_COPY_H
#define DEEPINFER_ASCEND_TWIN_COPY_H

#include "tensor.h"

namespace AscendC {

// For DataCopy: lengths and gaps in blocks of 32 bytes. For DataCopyPad: lengths and gaps as DataCopyExtParams.
struct DataCopyParams {
  DataCopyParams() = default;
  DataCopyParams(uint16_t count, uint16_t length, uint16_t source_gap, uint16_t target_gap)
      : blockCount(count), blockLen(length), srcStride(source_gap), dstStride(target_gap) {}
  uint16_t blockCount = 1, blockLen = 0, srcStride = 0, dstStride = 0;
};

struct DataCopyExtParams {
  DataCopyExtParams() = default;
  DataCopyExtParams(uint16_t count, uint32_t length, int64_t source_gap, int64_t target_gap, uint32_t reserved)
      : blockCount(count), blockLen(length), srcStride(source_gap), dstStride(target_gap), rsv(reserved) {}
  uint16_t blockCount = 1;
  uint32_t blockLen = 0; // bytes
  int64_t srcStride = 0, dstStride = 0; // in global memory bytes, in the UB blocks of 32 bytes
  uint32_t rsv = 0;
};

struct DataCopyPadParams {
  DataCopyPadParams() = default;
  DataCopyPadParams(bool is_pad, uint8_t left, uint8_t right, uint64_t value)
      : isPad(is_pad), leftPadding(left), rightPadding(right), paddingValue(value) {}
  bool isPad = false;
  uint8_t leftPadding = 0, rightPadding = 0;
  uint64_t paddingValue = 0;
};

// Elements before and behind each piece in the UB. Without isPad what is behind it up to the end of a block has any value.
template <class T> struct DataCopyPadExtParams {
  DataCopyPadExtParams() = default;
  DataCopyPadExtParams(bool is_pad, uint8_t left, uint8_t right, T value)
      : isPad(is_pad), leftPadding(left), rightPadding(right), paddingValue(value) {}
  bool isPad = false;
  uint8_t leftPadding = 0, rightPadding = 0;
  T paddingValue{};
};

} // namespace AscendC

namespace di_twin {

using AscendC::GlobalTensor;
using AscendC::LocalTensor;

// Pieces of a copy, in bytes from begin to begin.
struct Pieces {
  uint32_t count, bytes;
  int64_t source_step, target_step;
};

template <class T> void check_block(const LocalTensor<T> &tensor, const char *name) {
  if (tensor.twin_begin() % BLOCK_BYTES != 0) {
    wrong("block %u: %s: UB byte %u is no multiple of %u", Core::now().block(), name, tensor.twin_begin(), BLOCK_BYTES);
  }
}

// Between which places of the UB and global memory the device copies.
template <class T> Place place_of(const LocalTensor<T> &tensor, const char *name) {
  Core::now().check_tensor(tensor.twin_buffer(), tensor.twin_generation(), tensor.twin_begin(), 0, name);
  return Core::now().buffer(tensor.twin_buffer()).place;
}
template <class T> void check_target_place(const LocalTensor<T> &to, const char *name) {
  if (place_of(to, name) == Place::OUT) wrong("block %u: %s from global memory to a buffer of VECOUT", Core::now().block(), name);
}
template <class T> void check_source_place(const LocalTensor<T> &from, const char *name) {
  if (place_of(from, name) == Place::CALC) wrong("block %u: %s to global memory from a buffer of VECCALC", Core::now().block(), name);
}
template <class T> void check_inner_places(const LocalTensor<T> &to, const LocalTensor<T> &from) {
  const Place source = place_of(from, "DataCopy"), target = place_of(to, "DataCopy");
  if ((source == Place::IN && target == Place::CALC) || (source == Place::CALC && target == Place::OUT)) return;
  wrong("block %u: DataCopy inside the UB goes from VECIN to VECCALC or from VECCALC to VECOUT", Core::now().block());
}

// What a piece of DataCopyPad may be.
template <class T> void check_pieces(const AscendC::DataCopyExtParams &p, int64_t global_gap, int64_t least_gap, int64_t ub_gap) {
  constexpr int64_t MOST_GAP = (int64_t(1) << 40) - 1;
  const unsigned block = Core::now().block();
  if (p.blockCount > 4095) wrong("block %u: DataCopyPad of %u pieces of at most 4095", block, p.blockCount);
  if (p.blockLen > 2097151 || p.blockLen % sizeof(T) != 0) wrong("block %u: DataCopyPad of pieces of %u bytes of elements of %zu", block, p.blockLen, sizeof(T));
  if (ub_gap < 0 || ub_gap > 65535) wrong("block %u: DataCopyPad with %lld blocks of the UB between pieces", block, (long long)ub_gap);
  if (global_gap < least_gap || global_gap > MOST_GAP) wrong("block %u: DataCopyPad with %lld bytes between pieces", block, (long long)global_gap);
}

template <class T>
GlobalSpan global_span(const GlobalTensor<T> &tensor, const Pieces &pieces, int64_t step, bool is_write, bool is_atomic, const char *name) {
  const uint64_t begin = tensor.address();
  if (begin % sizeof(T) != 0) wrong("block %u: %s: a global address that is no multiple of %zu", Core::now().block(), name, sizeof(T));
  if (tensor.GetSize() > 0 && pieces.count > 0) {
    const int64_t end = int64_t(pieces.count - 1) * step + pieces.bytes;
    if (uint64_t(end) > tensor.GetSize() * sizeof(T)) {
      wrong("block %u: %s: %lld bytes of a global tensor of %llu", Core::now().block(), name, (long long)end,
            (unsigned long long)(tensor.GetSize() * sizeof(T)));
    }
  }
  const GlobalSpan span = {begin, pieces.bytes, is_write, is_atomic, pieces.count, step};
  Core::now().check_global(span, name);
  return span;
}

inline void ub_span(Instruction &instruction, uint32_t begin, uint32_t bytes, uint32_t count, int64_t step, bool is_write) {
  Span span{begin, bytes, is_write};
  span.blocks = count;
  span.block_stride = uint32_t(step);
  instruction.span[instruction.spans++] = span;
}

// From global memory; `left` and `right` bytes around each piece get the pattern of `size` bytes at `pad`, and the rest of the last
// block anything.
template <class T>
void copy_in(const LocalTensor<T> &to, const GlobalTensor<T> &from, const Pieces &pieces, uint32_t left, uint32_t right, bool is_pad, T pad,
             const char *name) {
  if (pieces.count == 0 || pieces.bytes == 0) return;
  Core &core = Core::now();
  check_target_place(to, name);
  check_block(to, name);
  const GlobalSpan global = global_span(from, pieces, pieces.source_step, false, false, name);
  const uint32_t width = (left + pieces.bytes + right + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
  if (pieces.target_step % BLOCK_BYTES != 0) wrong("block %u: %s: pieces that begin inside a block", core.block(), name);
  core.check_tensor(to.twin_buffer(), to.twin_generation(), to.twin_begin(), uint64_t(pieces.count - 1) * uint64_t(pieces.target_step) + width,
                    name);
  Instruction &instruction = core.fresh(name, MTE2);
  ub_span(instruction, to.twin_begin(), width, pieces.count, pieces.target_step, true);
  instruction.span[0].is_whole = true;
  instruction.global = global;
  unsigned char *target = core.ub() + to.twin_begin();
  const unsigned char *source = reinterpret_cast<const unsigned char *>(from.address());
  const uint64_t seed = core.seed();
  core.issue(instruction, [=] {
    for (uint32_t i = 0; i < pieces.count; ++i) {
      unsigned char *piece = target + int64_t(i) * pieces.target_step;
      for (uint32_t at = 0; at < left; at += sizeof(T)) std::memcpy(piece + at, &pad, sizeof(T));
      std::memcpy(piece + left, source + int64_t(i) * pieces.source_step, pieces.bytes);
      uint32_t at = left + pieces.bytes;
      for (uint32_t end = at + right; at < end; at += sizeof(T)) std::memcpy(piece + at, &pad, sizeof(T));
      for (; at < width; ++at) piece[at] = static_cast<unsigned char>(0xA5u + seed + at);
      (void)is_pad;
    }
  });
}

template <class T> void copy_out(const GlobalTensor<T> &to, const LocalTensor<T> &from, const Pieces &pieces, const char *name) {
  if (pieces.count == 0 || pieces.bytes == 0) return;
  Core &core = Core::now();
  check_source_place(from, name);
  check_block(from, name);
  const GlobalSpan global = global_span(to, pieces, pieces.target_step, true, core.atomic != 0, name);
  if (pieces.source_step % BLOCK_BYTES != 0) wrong("block %u: %s: pieces that begin inside a block", core.block(), name);
  core.check_tensor(from.twin_buffer(), from.twin_generation(), from.twin_begin(),
                    uint64_t(pieces.count - 1) * uint64_t(pieces.source_step) + pieces.bytes, name);
  Instruction &instruction = core.fresh(name, MTE3);
  ub_span(instruction, from.twin_begin(), pieces.bytes, pieces.count, pieces.source_step, false);
  instruction.global = global;
  unsigned char *target = reinterpret_cast<unsigned char *>(to.address());
  const unsigned char *source = core.ub() + from.twin_begin();
  const int atomic = core.atomic;
  core.issue(instruction, [=] {
    for (uint32_t i = 0; i < pieces.count; ++i) {
      unsigned char *piece = target + int64_t(i) * pieces.target_step;
      const unsigned char *values = source + int64_t(i) * pieces.source_step;
      if (atomic == 0) {
        std::memcpy(piece, values, pieces.bytes);
        continue;
      }
      if constexpr (std::is_arithmetic_v<T>) {
        for (uint32_t at = 0; at + sizeof(T) <= pieces.bytes; at += sizeof(T)) {
          T old, fresh;
          std::memcpy(&old, piece + at, sizeof(T));
          std::memcpy(&fresh, values + at, sizeof(T));
          const T result = atomic == 1 ? T(old + fresh) : atomic == 2 ? (old < fresh ? fresh : old) : (fresh < old ? fresh : old);
          std::memcpy(piece + at, &result, sizeof(T));
        }
      }
    }
  });
}

} // namespace di_twin

namespace AscendC {

namespace twin_detail {
inline void check_blocks(uint64_t bytes, const char *name) {
  if (bytes % 32 != 0) {
    di_twin::wrong("block %u: %s of %llu bytes: it moves whole blocks of 32", di_twin::Core::now().block(), name, (unsigned long long)bytes);
  }
}
} // namespace twin_detail

// GM to UB.
template <class T> void DataCopy(const LocalTensor<T> &dst, const GlobalTensor<T> &src, uint32_t count) {
  const uint64_t bytes = uint64_t(count) * sizeof(T);
  twin_detail::check_blocks(bytes, "DataCopy");
  di_twin::copy_in(dst, src, {1, uint32_t(bytes), 0, 0}, 0, 0, false, T{}, "DataCopy");
}

template <class T> void DataCopy(const LocalTensor<T> &dst, const GlobalTensor<T> &src, const DataCopyParams &p) {
  const uint32_t bytes = p.blockLen * 32u;
  di_twin::copy_in(dst, src, {p.blockCount, bytes, int64_t(bytes) + p.srcStride * 32, int64_t(bytes) + p.dstStride * 32}, 0, 0, false, T{}, "DataCopy");
}

// UB to GM.
template <class T> void DataCopy(const GlobalTensor<T> &dst, const LocalTensor<T> &src, uint32_t count) {
  const uint64_t bytes = uint64_t(count) * sizeof(T);
  twin_detail::check_blocks(bytes, "DataCopy");
  di_twin::copy_out(dst, src, {1, uint32_t(bytes), 0, 0}, "DataCopy");
}

template <class T> void DataCopy(const GlobalTensor<T> &dst, const LocalTensor<T> &src, const DataCopyParams &p) {
  const uint32_t bytes = p.blockLen * 32u;
  di_twin::copy_out(dst, src, {p.blockCount, bytes, int64_t(bytes) + p.srcStride * 32, int64_t(bytes) + p.dstStride * 32}, "DataCopy");
}

// GM to UB, any number of bytes.
template <class T>
void DataCopyPad(const LocalTensor<T> &dst, const GlobalTensor<T> &src, const DataCopyExtParams &p, const DataCopyPadExtParams<T> &pad) {
  const uint32_t left = pad.isPad ? pad.leftPadding * uint32_t(sizeof(T)) : 0, right = pad.isPad ? pad.rightPadding * uint32_t(sizeof(T)) : 0;
  if (left > 32 || right > 32) di_twin::wrong("DataCopyPad: more than 32 bytes of padding");
  if constexpr (sizeof(T) == 8) {
    if (pad.isPad && di_twin::bits_as<uint64_t>(pad.paddingValue) != 0) di_twin::wrong("DataCopyPad: a padding of 64 bits is 0");
  }
  di_twin::check_pieces<T>(p, p.srcStride, -int64_t(p.blockLen), p.dstStride);
  const int64_t width = (left + p.blockLen + right + 31) / 32 * 32;
  di_twin::copy_in(dst, src, {p.blockCount, p.blockLen, int64_t(p.blockLen) + p.srcStride, width + p.dstStride * 32}, left, right, pad.isPad,
                   pad.paddingValue, "DataCopyPad");
}

template <class T>
void DataCopyPad(const LocalTensor<T> &dst, const GlobalTensor<T> &src, const DataCopyParams &p, const DataCopyPadParams &pad) {
  T value{};
  std::memcpy(&value, &pad.paddingValue, sizeof(T));
  DataCopyPad(dst, src, DataCopyExtParams(p.blockCount, p.blockLen, p.srcStride, p.dstStride, 0),
              DataCopyPadExtParams<T>(pad.isPad, pad.leftPadding, pad.rightPadding, value));
}

// UB to GM, any number of bytes.
template <class T> void DataCopyPad(const GlobalTensor<T> &dst, const LocalTensor<T> &src, const DataCopyExtParams &p) {
  di_twin::check_pieces<T>(p, p.dstStride, 0, p.srcStride);
  const int64_t width = (p.blockLen + 31) / 32 * 32;
  di_twin::copy_out(dst, src, {p.blockCount, p.blockLen, width + p.srcStride * 32, int64_t(p.blockLen) + p.dstStride}, "DataCopyPad");
}

template <class T> void DataCopyPad(const GlobalTensor<T> &dst, const LocalTensor<T> &src, const DataCopyParams &p) {
  DataCopyPad(dst, src, DataCopyExtParams(p.blockCount, p.blockLen, p.srcStride, p.dstStride, 0));
}

// What copies to global memory do with the value that is there, until SetAtomicNone.
template <class T> void SetAtomicAdd() { di_twin::Core::now().atomic = 1; }
template <class T> void SetAtomicMax() { di_twin::Core::now().atomic = 2; }
template <class T> void SetAtomicMin() { di_twin::Core::now().atomic = 3; }
inline void SetAtomicNone() { di_twin::Core::now().atomic = 0; }

} // namespace AscendC

#endif
