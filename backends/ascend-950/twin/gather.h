// Elements by offset in the unified buffer. Offsets are in bytes and of whole elements.

#ifndef DEEPINFER_ASCEND_TWIN_GATHER_H
#define DEEPINFER_ASCEND_TWIN_GATHER_H

#include "reduce.h"

namespace AscendC {

// dst[i] = the element at src + base + offset[i]. Which bytes of src are read is known only when it runs: all of src up to its end
// counts as read.
template <class T>
void Gather(const LocalTensor<T> &dst, const LocalTensor<T> &src, const LocalTensor<uint32_t> &offset, const uint32_t base, const uint32_t elements) {
  static_assert(std::is_trivially_copyable_v<T>, "Gather: plain values");
  const uint32_t count = di_twin::checked_count(elements, "Gather");
  auto instruction = di_twin::vector_instruction("Gather");
  const uint32_t bytes = src.GetLength();
  di_twin::operand(instruction, src, src.GetSize(), false);
  di_twin::operand(instruction, offset, count, false);
  di_twin::operand(instruction, dst, count, true);
  T *to = dst.twin_data();
  const unsigned char *from = reinterpret_cast<const unsigned char *>(src.twin_data());
  const uint32_t *at = offset.twin_data();
  const uint32_t block = di_twin::Core::now().block();
  di_twin::Core::now().issue(instruction, [=] {
    for (uint32_t i = 0; i < count; ++i) {
      const uint64_t place = uint64_t(at[i]) + base;
      if (place % sizeof(T) != 0 || place + sizeof(T) > bytes) {
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
  auto instruction = di_twin::vector_instruction("Scatter");
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
