// Compare writes one bit per element of whole repeats, the lowest bit of a byte first; Select reads such bits.

#ifndef DEEPINFER_ASCEND_TWIN_COMPARE_H
#define DEEPINFER_ASCEND_TWIN_COMPARE_H

#include "convert.h"

namespace AscendC {

enum class CMPMODE : uint8_t { LT = 0, GT, EQ, LE, GE, NE };
enum class SELMODE : uint8_t { VSEL_CMPMASK_SPR = 0, VSEL_TENSOR_SCALAR_MODE, VSEL_TENSOR_TENSOR_MODE };

} // namespace AscendC

namespace di_twin {

// A NaN is unequal to everything and neither above nor below.
template <class T> bool compares(T a, T b, AscendC::CMPMODE mode) {
  using AscendC::CMPMODE;
  if constexpr (is_any<T, half, bfloat16_t>()) {
    return compares(to_float(a), to_float(b), mode);
  } else {
    switch (mode) {
    case CMPMODE::LT: return a < b;
    case CMPMODE::GT: return a > b;
    case CMPMODE::EQ: return a == b;
    case CMPMODE::LE: return a <= b;
    case CMPMODE::GE: return a >= b;
    default: return a != b;
    }
  }
}

template <class T> constexpr bool is_comparable() { return is_vector_type<T>() || is_wide_integer<T>() || is_byte<T>(); }

// Elements of whole repeats: the device leaves the rest of another one alone.
template <class T> uint32_t compared_count(int64_t elements, const char *name) {
  const uint32_t count = checked_count(elements, name);
  if (count * sizeof(T) % REPEAT_BYTES != 0) {
    wrong("block %u: %s of %u elements, which are no whole repeats of %u bytes", Core::now().block(), name, count, REPEAT_BYTES);
  }
  return count;
}

template <class U> void mask_operand(Instruction &instruction, const LocalTensor<U> &tensor, uint32_t bytes, bool is_write) {
  operand(instruction, tensor.template ReinterpretCast<uint8_t>(), bytes, is_write);
}

// f(i) for each bit.
template <class F> void write_bits(uint8_t *to, uint32_t count, const F &f) {
  for (uint32_t at = 0; at < count / 8; ++at) {
    uint8_t byte = 0;
    for (uint32_t i = at * 8; i < at * 8 + 8; ++i) byte = uint8_t(byte | uint32_t(f(i)) << i % 8);
    to[at] = byte;
  }
}

} // namespace di_twin

namespace AscendC {

template <class T, class U>
void Compare(const LocalTensor<U> &dst, const LocalTensor<T> &src0, const LocalTensor<T> &src1, CMPMODE mode, uint32_t elements) {
  static_assert(di_twin::is_comparable<T>() && di_twin::is_byte<U>(), "Compare: the device has no such type");
  const uint32_t count = di_twin::compared_count<T>(elements, "Compare");
  auto &instruction = di_twin::vector_instruction("Compare");
  di_twin::operand(instruction, src0, count, false);
  di_twin::operand(instruction, src1, count, false);
  di_twin::mask_operand(instruction, dst, count / 8, true);
  uint8_t *to = reinterpret_cast<uint8_t *>(dst.twin_data());
  const T *a = src0.twin_data(), *b = src1.twin_data();
  di_twin::Core::now().issue(instruction, [=] { di_twin::write_bits(to, count, [=](uint32_t i) { return di_twin::compares(a[i], b[i], mode); }); });
}

template <class T, class U> void Compares(const LocalTensor<U> &dst, const LocalTensor<T> &src, const T scalar, CMPMODE mode, uint32_t elements) {
  static_assert(di_twin::is_comparable<T>() && di_twin::is_byte<U>(), "Compares: the device has no such type");
  const uint32_t count = di_twin::compared_count<T>(elements, "Compares");
  auto &instruction = di_twin::vector_instruction("Compares");
  di_twin::operand(instruction, src, count, false);
  di_twin::mask_operand(instruction, dst, count / 8, true);
  uint8_t *to = reinterpret_cast<uint8_t *>(dst.twin_data());
  const T *a = src.twin_data();
  const T b = scalar;
  di_twin::Core::now().issue(instruction, [=] { di_twin::write_bits(to, count, [=](uint32_t i) { return di_twin::compares(a[i], b, mode); }); });
}

template <class T, class U> void CompareScalar(const LocalTensor<U> &dst, const LocalTensor<T> &src, const T scalar, CMPMODE mode, uint32_t count) {
  Compares(dst, src, scalar, mode, count);
}

// Where the bit is 1 it is src0, else src1.
template <class T, class U>
void Select(const LocalTensor<T> &dst, const LocalTensor<U> &mask, const LocalTensor<T> &src0, const LocalTensor<T> &src1, SELMODE mode, uint32_t elements) {
  static_assert(di_twin::is_vector_type<T>() && di_twin::is_any<U, uint8_t, uint16_t, uint32_t, uint64_t>(), "Select: the device has no such type");
  if (mode != SELMODE::VSEL_TENSOR_TENSOR_MODE) di_twin::wrong("block %u: Select of two tensors takes VSEL_TENSOR_TENSOR_MODE", di_twin::Core::now().block());
  const uint32_t count = di_twin::checked_count(elements, "Select");
  auto &instruction = di_twin::vector_instruction("Select");
  di_twin::mask_operand(instruction, mask, (count + 7) / 8, false);
  di_twin::operand(instruction, src0, count, false);
  di_twin::operand(instruction, src1, count, false);
  di_twin::operand(instruction, dst, count, true);
  di_twin::check_overlap(dst, src0, count, "Select");
  di_twin::check_overlap(dst, src1, count, "Select");
  const uint8_t *bits = reinterpret_cast<const uint8_t *>(mask.twin_data());
  T *to = dst.twin_data();
  const T *a = src0.twin_data(), *b = src1.twin_data();
  di_twin::Core::now().issue(instruction, [=] {
    for (uint32_t i = 0; i < count; ++i) to[i] = bits[i / 8] >> i % 8 & 1 ? a[i] : b[i];
  });
}

template <class T, class U>
void Select(const LocalTensor<T> &dst, const LocalTensor<U> &mask, const LocalTensor<T> &src0, T src1, SELMODE mode, uint32_t elements) {
  static_assert(di_twin::is_vector_type<T>() && di_twin::is_any<U, uint8_t, uint16_t, uint32_t, uint64_t>(), "Select: the device has no such type");
  if (mode != SELMODE::VSEL_TENSOR_SCALAR_MODE) di_twin::wrong("block %u: Select of a tensor and a scalar takes VSEL_TENSOR_SCALAR_MODE", di_twin::Core::now().block());
  const uint32_t count = di_twin::checked_count(elements, "Select");
  auto &instruction = di_twin::vector_instruction("Select");
  di_twin::mask_operand(instruction, mask, (count + 7) / 8, false);
  di_twin::operand(instruction, src0, count, false);
  di_twin::operand(instruction, dst, count, true);
  di_twin::check_overlap(dst, src0, count, "Select");
  const uint8_t *bits = reinterpret_cast<const uint8_t *>(mask.twin_data());
  T *to = dst.twin_data();
  const T *a = src0.twin_data();
  di_twin::Core::now().issue(instruction, [=] {
    for (uint32_t i = 0; i < count; ++i) to[i] = bits[i / 8] >> i % 8 & 1 ? a[i] : src1;
  });
}

} // namespace AscendC

#endif
