// How a vector instruction walks over its operands: `count` neighbours, or repeats of 256 bytes of the widest operand under a
// mask, with strides in blocks of 32 bytes.

#ifndef DEEPINFER_ASCEND_TWIN_LANES_H
#define DEEPINFER_ASCEND_TWIN_LANES_H

#include "copy.h"

namespace AscendC {

struct UnaryRepeatParams {
  UnaryRepeatParams() = default;
  UnaryRepeatParams(uint16_t dst_block, uint16_t src_block, uint8_t dst_repeat, uint8_t src_repeat)
      : dstBlkStride(dst_block), srcBlkStride(src_block), dstRepStride(dst_repeat), srcRepStride(src_repeat) {}
  uint16_t dstBlkStride = 1, srcBlkStride = 1;
  uint8_t dstRepStride = 8, srcRepStride = 8;
};

struct BinaryRepeatParams {
  BinaryRepeatParams() = default;
  BinaryRepeatParams(uint8_t dst_block, uint8_t src0_block, uint8_t src1_block, uint8_t dst_repeat, uint8_t src0_repeat, uint8_t src1_repeat)
      : dstBlkStride(dst_block), src0BlkStride(src0_block), src1BlkStride(src1_block), dstRepStride(dst_repeat), src0RepStride(src0_repeat),
        src1RepStride(src1_repeat) {}
  uint8_t dstBlkStride = 1, src0BlkStride = 1, src1BlkStride = 1;
  uint8_t dstRepStride = 8, src0RepStride = 8, src1RepStride = 8;
};

} // namespace AscendC

namespace di_twin {

// Which elements of a repeat take part.
struct Mask {
  uint64_t bits[2] = {~uint64_t(0), ~uint64_t(0)};
  bool has(uint32_t i) const { return i >= 128 || (bits[i / 64] >> i % 64 & 1); }
  // Behind the last element that takes part.
  uint32_t end(uint32_t per_repeat) const {
    if (per_repeat > 128) return per_repeat;
    const uint64_t low = per_repeat < 64 ? bits[0] & ((uint64_t(1) << per_repeat) - 1) : bits[0];
    const uint64_t high = per_repeat <= 64 ? 0 : per_repeat < 128 ? bits[1] & ((uint64_t(1) << (per_repeat - 64)) - 1) : bits[1];
    return high != 0 ? 128 - uint32_t(__builtin_clzll(high)) : low != 0 ? 64 - uint32_t(__builtin_clzll(low)) : 0;
  }
  static Mask first(uint64_t count) {
    Mask mask;
    mask.bits[0] = count >= 64 ? ~uint64_t(0) : (uint64_t(1) << count) - 1;
    mask.bits[1] = count >= 128 ? ~uint64_t(0) : count <= 64 ? 0 : (uint64_t(1) << (count - 64)) - 1;
    mask.prefix = uint32_t(count);
    return mask;
  }
  // So many first elements and no others; 0 if it was not given as a number.
  uint32_t prefix = 0;
};

// Elements of one operand: of `per_repeat` elements each repeat takes.
struct Steps {
  uint32_t per_block, block_step, repeat_step; // in elements
  uint32_t block(uint32_t repeat, uint32_t b) const { return repeat * repeat_step + b * block_step; }
  uint32_t at(uint32_t repeat, uint32_t i) const { return repeat * repeat_step + i / per_block * block_step + i % per_block; }
};

template <class T> constexpr Steps steps_of(uint32_t block_stride, uint32_t repeat_stride, uint32_t per_block) {
  constexpr uint32_t unit = BLOCK_BYTES / sizeof(T);
  return {per_block, block_stride * unit, repeat_stride * unit};
}

[[noreturn]] inline void misaligned(const char *name, uint32_t begin) {
  wrong("block %u: %s: an operand at UB byte %u, which is no multiple of %u", Core::now().block(), name, begin, BLOCK_BYTES);
}

// An operand of `count` neighbours.
template <class T>
void operand(Instruction &instruction, const LocalTensor<T> &tensor, uint64_t count, bool is_write, uint32_t alignment = BLOCK_BYTES) {
  const uint32_t begin = tensor.check(0, count, instruction.name);
  if (begin % alignment != 0) misaligned(instruction.name, begin);
  instruction.span[instruction.spans++] = Span{begin, uint32_t(count * sizeof(T)), is_write};
}

// A result of `count` neighbours, each of which is written.
template <class T> void result(Instruction &instruction, const LocalTensor<T> &tensor, uint64_t count) {
  operand(instruction, tensor, count, true);
  instruction.span[instruction.spans - 1].is_whole = true;
}

// An operand of repeats.
template <class T>
void operand(Instruction &instruction, const LocalTensor<T> &tensor, const Steps &steps, const Mask &mask, uint32_t per_repeat, uint32_t repeats,
             bool is_write) {
  const uint32_t used = mask.end(per_repeat);
  if (used == 0 || repeats == 0) wrong("block %u: %s of no elements: the device promises nothing for it", Core::now().block(), instruction.name);
  const uint32_t begin = tensor.check(0, 0, instruction.name);
  if (begin % BLOCK_BYTES != 0) misaligned(instruction.name, begin);
  tensor.check(0, steps.at(repeats - 1, used - 1) + 1, instruction.name);
  Span span{begin, uint32_t(steps.per_block * sizeof(T)), is_write};
  span.blocks = (used + steps.per_block - 1) / steps.per_block;
  span.block_stride = uint32_t(steps.block_step * sizeof(T));
  span.repeats = repeats;
  span.repeat_stride = uint32_t(steps.repeat_step * sizeof(T));
  // What lies without a gap is one piece, and the same bytes again are none.
  if (span.blocks == 1 || span.block_stride == span.bytes) {
    span.blocks = 1;
    span.bytes = uint32_t(used * sizeof(T));
  }
  if (span.repeat_stride == 0) span.repeats = 1;
  if (span.blocks == 1 && span.repeat_stride == span.bytes) {
    span.bytes *= span.repeats;
    span.repeats = 1;
  }
  instruction.span[instruction.spans++] = span;
}

// In place is fine; operands that overlap in part are not.
template <class T, class U> void check_overlap(const LocalTensor<T> &dst, const LocalTensor<U> &src, uint64_t count, const char *name) {
  const uint64_t a = dst.twin_begin(), a_end = a + count * sizeof(T), b = src.twin_begin(), b_end = b + count * sizeof(U);
  if (a == b && sizeof(T) == sizeof(U)) return;
  if (a < b_end && b < a_end) wrong("block %u: %s: its operands overlap in part", Core::now().block(), name);
}

inline Instruction &vector_instruction(const char *name) { return Core::now().fresh(name, V); }

inline uint32_t checked_count(int64_t count, const char *name) {
  if (count == 0) wrong("block %u: %s of no elements: the device promises nothing for it", Core::now().block(), name);
  if (count < 0 || count > int64_t(UB_BYTES)) wrong("block %u: %s of %lld elements", Core::now().block(), name, (long long)count);
  return uint32_t(count);
}

inline Mask mask_of(uint64_t count, uint32_t per_repeat, const char *name) {
  if (count == 0 || count > per_repeat) wrong("block %u: %s: a mask of %llu of %u elements", Core::now().block(), name, (unsigned long long)count, per_repeat);
  return Mask::first(count);
}

inline Mask mask_of(const uint64_t mask[], uint32_t, const char *) {
  Mask bits;
  bits.bits[0] = mask[0];
  bits.bits[1] = mask[1];
  return bits;
}

// Elements one by one. Operands are the same or do not overlap: no element waits for another.
template <class T, class U, class F> void map_run(T *to, const U *from, uint32_t count, const F &f) {
#pragma GCC ivdep
  for (uint32_t i = 0; i < count; ++i) to[i] = f(from[i]);
}

template <bool is_update, class T, class U, class W, class F> void zip_run(T *to, const U *a, const W *b, uint32_t count, const F &f) {
#pragma GCC ivdep
  for (uint32_t i = 0; i < count; ++i) {
    if constexpr (is_update) to[i] = f(a[i], b[i], to[i]);
    else to[i] = f(a[i], b[i]);
  }
}

// The same elements, or none in common.
template <class T, class U> bool are_apart(const T *a, const U *b, uint32_t count) {
  const auto *x = reinterpret_cast<const unsigned char *>(a), *y = reinterpret_cast<const unsigned char *>(b);
  return x == y || x + count * sizeof(T) <= y || y + count * sizeof(U) <= x;
}

// dst[i] = f(src[i]).
template <class T, class U, class F>
void map(const char *name, const LocalTensor<T> &dst, const LocalTensor<U> &src, int64_t elements, const F &f) {
  const uint32_t count = checked_count(elements, name);
  Instruction &instruction = vector_instruction(name);
  operand(instruction, src, count, false);
  result(instruction, dst, count);
  check_overlap(dst, src, count, name);
  T *to = dst.twin_data();
  const U *from = src.twin_data();
  Core::now().issue(instruction, [=] { map_run(to, from, count, f); });
}

template <class T, class U, class M, class F>
void map(const char *name, const LocalTensor<T> &dst, const LocalTensor<U> &src, M masked, uint32_t repeats, const AscendC::UnaryRepeatParams &p,
         const F &f) {
  constexpr uint32_t size = sizeof(T) > sizeof(U) ? sizeof(T) : sizeof(U);
  constexpr uint32_t per_repeat = REPEAT_BYTES / size;
  const Mask mask = mask_of(masked, per_repeat, name);
  // Elements per step of the block stride, as the narrower operand has them.
  const Steps a = steps_of<T>(p.dstBlkStride, p.dstRepStride, BLOCK_BYTES / sizeof(T)), b = steps_of<U>(p.srcBlkStride, p.srcRepStride, BLOCK_BYTES / sizeof(U));
  Instruction &instruction = vector_instruction(name);
  operand(instruction, src, b, mask, per_repeat, repeats, false);
  operand(instruction, dst, a, mask, per_repeat, repeats, true);
  T *to = dst.twin_data();
  const U *from = src.twin_data();
  Core::now().issue(instruction, [=] {
    for (uint32_t r = 0; r < repeats; ++r) {
      for (uint32_t i = 0; i < per_repeat; ++i) {
        if (mask.has(i)) to[a.at(r, i)] = f(from[b.at(r, i)]);
      }
    }
  });
}

// dst[i] = f(src0[i], src1[i]), or with `is_update` f(src0[i], src1[i], dst[i]).
template <bool is_update, class T, class U, class W, class F>
void zip(const char *name, const LocalTensor<T> &dst, const LocalTensor<U> &src0, const LocalTensor<W> &src1, int64_t elements, const F &f) {
  const uint32_t count = checked_count(elements, name);
  Instruction &instruction = vector_instruction(name);
  operand(instruction, src0, count, false);
  operand(instruction, src1, count, false);
  if constexpr (is_update) operand(instruction, dst, count, false);
  result(instruction, dst, count);
  check_overlap(dst, src0, count, name);
  check_overlap(dst, src1, count, name);
  T *to = dst.twin_data();
  const U *a = src0.twin_data();
  const W *b = src1.twin_data();
  Core::now().issue(instruction, [=] { zip_run<is_update>(to, a, b, count, f); });
}

template <bool is_update, class T, class U, class W, class M, class F>
void zip(const char *name, const LocalTensor<T> &dst, const LocalTensor<U> &src0, const LocalTensor<W> &src1, M masked, uint32_t repeats,
         const AscendC::BinaryRepeatParams &p, const F &f) {
  constexpr uint32_t per_repeat = REPEAT_BYTES / sizeof(T);
  static_assert(sizeof(T) == sizeof(U) && sizeof(T) == sizeof(W), "operands of several sizes have no repeat form here");
  const Mask mask = mask_of(masked, per_repeat, name);
  constexpr uint32_t per_block = BLOCK_BYTES / sizeof(T);
  const Steps d = steps_of<T>(p.dstBlkStride, p.dstRepStride, per_block), a = steps_of<U>(p.src0BlkStride, p.src0RepStride, per_block),
              b = steps_of<W>(p.src1BlkStride, p.src1RepStride, per_block);
  Instruction &instruction = vector_instruction(name);
  operand(instruction, src0, a, mask, per_repeat, repeats, false);
  operand(instruction, src1, b, mask, per_repeat, repeats, false);
  if (is_update) operand(instruction, dst, d, mask, per_repeat, repeats, false);
  operand(instruction, dst, d, mask, per_repeat, repeats, true);
  T *to = dst.twin_data();
  const U *x = src0.twin_data();
  const W *y = src1.twin_data();
  Core::now().issue(instruction, [=] {
    const bool is_dense = d.block_step == per_block && a.block_step == per_block && b.block_step == per_block;
    for (uint32_t r = 0; r < repeats; ++r) {
      // Blocks at once where they are neighbours, and else one by one: two blocks are the same or do not overlap.
      T *out = to + d.block(r, 0);
      const U *one = x + a.block(r, 0);
      const W *other = y + b.block(r, 0);
      uint32_t left = mask.prefix;
      if (is_dense && are_apart(out, one, left) && are_apart(out, other, left)) {
        if (left == per_repeat) zip_run<is_update>(out, one, other, per_repeat, f);
        else zip_run<is_update>(out, one, other, left, f);
        left = 0;
      }
      for (; left >= per_block; left -= per_block, out += d.block_step, one += a.block_step, other += b.block_step) {
        zip_run<is_update>(out, one, other, per_block, f);
      }
      zip_run<is_update>(out, one, other, left, f);
      if (mask.prefix > 0) continue;
      for (uint32_t i = 0; i < per_repeat; ++i) {
        if (!mask.has(i)) continue;
        if constexpr (is_update) to[d.at(r, i)] = f(x[a.at(r, i)], y[b.at(r, i)], to[d.at(r, i)]);
        else to[d.at(r, i)] = f(x[a.at(r, i)], y[b.at(r, i)]);
      }
    }
  });
}

template <class T, class... Allowed> constexpr bool is_any() { return (std::is_same_v<T, Allowed> || ...); }

// Sets of types, as the device's instructions have them: those of 16 and 32 bits, which the repeat form takes, and more.
template <class T> constexpr bool is_vector_type() { return is_any<T, half, bfloat16_t, float, int16_t, uint16_t, int32_t, uint32_t>(); }
template <class T> constexpr bool is_wide_integer() { return is_any<T, int64_t, uint64_t>(); }
template <class T> constexpr bool is_byte() { return is_any<T, int8_t, uint8_t>(); }
// Of operations with a scalar: no unsigned numbers of 16 and 32 bits.
template <class T> constexpr bool is_scalar_type() { return is_any<T, half, bfloat16_t, float, int16_t, int32_t>(); }

} // namespace di_twin

#endif
