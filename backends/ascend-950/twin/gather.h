// Elements by offset in the unified buffer. Offsets are in bytes and of whole elements.

#ifndef DEEPINFER_ASCEND_TWIN_GATHER_H
#define DEEPINFER_ASCEND_TWIN_GATHER_H

#include "reduce.h"

namespace AscendC {

struct BrcbRepeatParams {
  BrcbRepeatParams() = default;
  BrcbRepeatParams(uint16_t dst_block, uint16_t dst_repeat) : dstBlkStride(dst_block), dstRepStride(dst_repeat) {}
  uint16_t dstBlkStride = 1, dstRepStride = 8;
};

// Each of 8 elements per repeat fills a block of 32 bytes.
template <class T> void Brcb(const LocalTensor<T> &dst, const LocalTensor<T> &src, const uint8_t repeats, const BrcbRepeatParams &p) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4, "Brcb: 16 or 32 bits");
  if (repeats == 0) di_twin::wrong("block %u: Brcb of no elements: the device promises nothing for it", di_twin::Core::now().block());
  if (p.dstBlkStride == 0) di_twin::wrong("block %u: Brcb of blocks at one place", di_twin::Core::now().block());
  auto &instruction = di_twin::vector_instruction("Brcb");
  constexpr uint32_t lanes = 32 / sizeof(T);
  const uint32_t count = repeats, block_step = p.dstBlkStride * lanes, repeat_step = p.dstRepStride * lanes;
  di_twin::operand(instruction, src, count * 8, false);
  const uint32_t begin = dst.check(0, (count - 1) * repeat_step + 7 * block_step + lanes, "Brcb");
  if (begin % 32 != 0) di_twin::misaligned("Brcb", begin);
  di_twin::Span span{begin, 32, true};
  span.blocks = 8;
  span.block_stride = uint32_t(p.dstBlkStride) * 32;
  span.repeats = count;
  span.repeat_stride = uint32_t(p.dstRepStride) * 32;
  instruction.span[instruction.spans++] = span;
  if (begin == src.twin_begin()) di_twin::wrong("block %u: Brcb in place", di_twin::Core::now().block());
  T *to = dst.twin_data();
  const T *from = src.twin_data();
  di_twin::Core::now().issue(instruction, [=] {
    for (uint32_t r = 0; r < count; ++r) {
      for (uint32_t b = 0; b < 8; ++b) {
        for (uint32_t i = 0; i < lanes; ++i) to[r * repeat_step + b * block_step + i] = from[r * 8 + b];
      }
    }
  });
}

// dst[i] = the element at src + base + offset[i]. Which bytes of src are read is known only when it runs: all of src up to its end
// counts as read.
template <class T>
void Gather(const LocalTensor<T> &dst, const LocalTensor<T> &src, const LocalTensor<uint32_t> &offset, const uint32_t base, const uint32_t elements) {
  static_assert(std::is_trivially_copyable_v<T>, "Gather: plain values");
  const uint32_t count = di_twin::checked_count(elements, "Gather");
  auto &instruction = di_twin::vector_instruction("Gather");
  const uint32_t bytes = src.GetLength();
  di_twin::operand(instruction, src, src.GetSize(), false);
  di_twin::operand(instruction, offset, count, false);
  di_twin::operand(instruction, dst, count, true);
  T *to = dst.twin_data();
  const unsigned char *from = reinterpret_cast<const unsigned char *>(src.twin_data());
  const uint32_t *at = offset.twin_data();
  const uint32_t block = di_twin::Core::now().block();
  // Results do not change offsets that are yet to be used.
  const bool is_apart = dst.twin_begin() + count * sizeof(T) <= offset.twin_begin() || offset.twin_begin() + count * 4 <= dst.twin_begin() ||
                        (sizeof(T) == 4 && dst.twin_begin() == offset.twin_begin());
  di_twin::Core::now().issue(instruction, [=] {
    // Places are checked all at once, which is nearly always enough: none is beyond that of all bits of all.
    uint32_t bits = 0;
    for (uint32_t i = 0; i < count; ++i) bits |= at[i];
    const uint64_t last = uint64_t(bits) + base;
    if (is_apart && (bits | base) % sizeof(T) == 0 && last + sizeof(T) <= bytes && (sizeof(T) > 2 || last / sizeof(T) <= 0xFFFF)) {
      for (uint32_t i = 0; i < count; ++i) std::memcpy(to + i, from + base + at[i], sizeof(T));
      return;
    }
    for (uint32_t i = 0; i < count; ++i) {
      const uint64_t place = uint64_t(at[i]) + base;
      // Numbers of small elements have 16 bits.
      if (place % sizeof(T) != 0 || place + sizeof(T) > bytes || (sizeof(T) <= 2 && place / sizeof(T) > 0xFFFF)) {
        di_twin::wrong("block %u: Gather at byte %llu of %u", block, (unsigned long long)place, bytes);
      }
      std::memcpy(to + i, from + place, sizeof(T));
    }
  });
}

// The element at dst + base + offset[i] = src[i]. Of several at one place any may stay.
template <class T>
void Scatter(const LocalTensor<T> &dst, const LocalTensor<T> &src, const LocalTensor<uint32_t> &offset, const uint32_t base, const uint32_t elements) {
  const uint32_t count = di_twin::checked_count(elements, "Scatter");
  auto &instruction = di_twin::vector_instruction("Scatter");
  const uint32_t bytes = dst.GetLength();
  di_twin::operand(instruction, src, count, false);
  di_twin::operand(instruction, offset, count, false);
  di_twin::operand(instruction, dst, dst.GetSize(), true);
  unsigned char *to = reinterpret_cast<unsigned char *>(dst.twin_data());
  const T *from = src.twin_data();
  const uint32_t *at = offset.twin_data();
  const uint32_t block = di_twin::Core::now().block();
  const bool is_reversed = di_twin::noise(twin_detail::seed(), 102, 0, 0) & 1;
  di_twin::Core::now().issue(instruction, [=] {
    for (uint32_t n = 0; n < count; ++n) {
      const uint32_t i = is_reversed ? count - 1 - n : n;
      const uint64_t place = uint64_t(at[i]) + base;
      if (place % sizeof(T) != 0 || place + sizeof(T) > bytes) {
        di_twin::wrong("block %u: Scatter at byte %llu of %u", block, (unsigned long long)place, bytes);
      }
      std::memcpy(to + place, from + i, sizeof(T));
    }
  });
}

} // namespace AscendC

#endif
