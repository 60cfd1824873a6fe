// Element by element: arithmetic, bits, shifts, copies inside the unified buffer. All of it is exact or rounded once to nearest
// even; denormals are kept.

#ifndef DEEPINFER_ASCEND_TWIN_VECTOR_H
#define DEEPINFER_ASCEND_TWIN_VECTOR_H

#include "inexact.h"

namespace di_twin {

using std::is_integral_v;

// Of integers the low bits stay.
template <class T, class F> auto arithmetic(const F &f) {
  return [f](T a, T b) -> T {
    if constexpr (std::is_same_v<T, half>) return to_half(f(to_float(a), to_float(b)));
    else if constexpr (std::is_same_v<T, bfloat16_t>) return to_bfloat16(f(to_float(a), to_float(b)));
    else if constexpr (std::is_same_v<T, float>) return f(a, b);
    else return T(f(std::make_unsigned_t<T>(a), std::make_unsigned_t<T>(b)));
  };
}

struct Plus {
  template <class T> auto operator()(T a, T b) const { return T(a + b); }
};
struct Minus {
  template <class T> auto operator()(T a, T b) const { return T(a - b); }
};
struct Times {
  template <class T> auto operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) return T(uint64_t(a) * uint64_t(b));
    else return T(a * b);
  }
};

// Of a NaN and a number: nothing public says which the device gives. By the seed it is the NaN or the number.
inline bool does_nan_win() { return noise(Core::now().seed(), 103, 0, 0) & 1; }

// The larger or smaller one; of two zeros it is the first.
template <class T, bool is_max> struct Extreme {
  bool is_nan_best = does_nan_win();
  T operator()(T a, T b) const {
    if constexpr (is_any<T, half, bfloat16_t, float>()) {
      const float x = value(a), y = value(b);
      if (x != x) return is_nan_best || y != y ? a : b;
      if (y != y) return is_nan_best ? b : a;
      return (is_max ? x < y : y < x) ? b : a;
    } else {
      return (is_max ? a < b : b < a) ? b : a;
    }
  }
  static float value(float x) { return x; }
  template <class U> static float value(U x) { return to_float(x); }
};

} // namespace di_twin

namespace AscendC {

// Count form and repeat form of `name`, each for the types that the device's has.
#define DI_TWIN_BINARY(name, counted, repeated, function)                                                                                    \
  template <class T> void name(const LocalTensor<T> &dst, const LocalTensor<T> &src0, const LocalTensor<T> &src1, const int32_t &count) {    \
    static_assert(counted, #name ": the device has no such type");                                                                         \
    di_twin::zip<false>(#name, dst, src0, src1, count, function);                                                                          \
  }                                                                                                                                        \
  template <class T, bool isSetMask = true, class M>                                                                                       \
  void name(const LocalTensor<T> &dst, const LocalTensor<T> &src0, const LocalTensor<T> &src1, M mask, uint8_t repeats,                      \
            const BinaryRepeatParams &p) {                                                                                                 \
    static_assert(repeated, #name ": the device's repeat form has no such type");                                                          \
    di_twin::zip<false>(#name, dst, src0, src1, mask, repeats, p, function);                                                               \
  }

#define DI_TWIN_SCALAR(name, counted, repeated, function)                                                                                  \
  template <class T, bool isSetMask = true>                                                                                                \
  void name(const LocalTensor<T> &dst, const LocalTensor<T> &src, const T &scalar, const int32_t &count) {                                   \
    static_assert(counted, #name ": the device has no such type");                                                                         \
    const T b = scalar;                                                                                                                    \
    const auto f = function;                                                                                                               \
    di_twin::map(#name, dst, src, count, [f, b](T a) { return f(a, b); });                                                                  \
  }                                                                                                                                        \
  template <class T, bool isSetMask = true, class M>                                                                                       \
  void name(const LocalTensor<T> &dst, const LocalTensor<T> &src, const T &scalar, M mask, uint8_t repeats, const UnaryRepeatParams &p) {    \
    static_assert(repeated, #name ": the device's repeat form has no such type");                                                          \
    const T b = scalar;                                                                                                                    \
    const auto f = function;                                                                                                               \
    di_twin::map(#name, dst, src, mask, repeats, p, [f, b](T a) { return f(a, b); });                                                       \
  }

#define DI_TWIN_UNARY(name, counted, repeated, function)                                                                                   \
  template <class T> void name(const LocalTensor<T> &dst, const LocalTensor<T> &src, const int32_t &count) {                                 \
    static_assert(counted, #name ": the device has no such type");                                                                         \
    di_twin::map(#name, dst, src, count, function);                                                                                        \
  }                                                                                                                                        \
  template <class T, bool isSetMask = true, class M>                                                                                       \
  void name(const LocalTensor<T> &dst, const LocalTensor<T> &src, M mask, uint8_t repeats, const UnaryRepeatParams &p) {                     \
    static_assert(repeated, #name ": the device's repeat form has no such type");                                                          \
    di_twin::map(#name, dst, src, mask, repeats, p, function);                                                                             \
  }

#define DI_TWIN_NUMBERS (di_twin::is_vector_type<T>() || di_twin::is_wide_integer<T>() || di_twin::is_byte<T>())
#define DI_TWIN_BITS (std::is_integral_v<T> && sizeof(T) <= 8)
#define DI_TWIN_SHORT_BITS (di_twin::is_any<T, int16_t, uint16_t, int32_t, uint32_t>())
DI_TWIN_BINARY(Add, DI_TWIN_NUMBERS, di_twin::is_vector_type<T>(), (di_twin::arithmetic<T>(di_twin::Plus{})))
DI_TWIN_BINARY(Sub, DI_TWIN_NUMBERS, di_twin::is_vector_type<T>(), (di_twin::arithmetic<T>(di_twin::Minus{})))
DI_TWIN_BINARY(Mul, di_twin::is_vector_type<T>() || di_twin::is_wide_integer<T>(), di_twin::is_vector_type<T>(), (di_twin::arithmetic<T>(di_twin::Times{})))
DI_TWIN_BINARY(Max, DI_TWIN_NUMBERS, di_twin::is_vector_type<T>(), (di_twin::Extreme<T, true>{}))
DI_TWIN_BINARY(Min, DI_TWIN_NUMBERS, di_twin::is_vector_type<T>(), (di_twin::Extreme<T, false>{}))
DI_TWIN_BINARY(And, DI_TWIN_BITS, DI_TWIN_SHORT_BITS, ([](T a, T b) { return T(a & b); }))
DI_TWIN_BINARY(Or, DI_TWIN_BITS, DI_TWIN_SHORT_BITS, ([](T a, T b) { return T(a | b); }))

#define DI_TWIN_SCALARS (di_twin::is_scalar_type<T>() || di_twin::is_wide_integer<T>())
DI_TWIN_SCALAR(Adds, DI_TWIN_SCALARS || di_twin::is_byte<T>(), di_twin::is_scalar_type<T>(), (di_twin::arithmetic<T>(di_twin::Plus{})))
DI_TWIN_SCALAR(Subs, DI_TWIN_SCALARS, di_twin::is_scalar_type<T>(), (di_twin::arithmetic<T>(di_twin::Minus{})))
DI_TWIN_SCALAR(Muls, DI_TWIN_SCALARS, di_twin::is_scalar_type<T>(), (di_twin::arithmetic<T>(di_twin::Times{})))
DI_TWIN_SCALAR(Maxs, DI_TWIN_SCALARS || di_twin::is_byte<T>(), di_twin::is_scalar_type<T>(), (di_twin::Extreme<T, true>{}))
DI_TWIN_SCALAR(Mins, DI_TWIN_SCALARS || di_twin::is_byte<T>(), di_twin::is_scalar_type<T>(), (di_twin::Extreme<T, false>{}))
// Not for 32 bits: those are taken as pairs of 64.
#define DI_TWIN_MASKS (di_twin::is_any<T, int16_t, uint16_t>())
DI_TWIN_SCALAR(Ands, DI_TWIN_MASKS || di_twin::is_wide_integer<T>(), DI_TWIN_MASKS, ([](T a, T b) { return T(a & b); }))
DI_TWIN_SCALAR(Ors, DI_TWIN_MASKS || di_twin::is_wide_integer<T>(), DI_TWIN_MASKS, ([](T a, T b) { return T(a | b); }))
DI_TWIN_UNARY(Not, DI_TWIN_BITS, DI_TWIN_SHORT_BITS, ([](T a) { return T(~a); }))

namespace twin_detail {
template <class T> T absolute(T a) {
  if constexpr (std::is_same_v<T, float>) return di_twin::float_of(di_twin::bits_of(a) & 0x7FFFFFFFu);
  else if constexpr (std::is_same_v<T, half>) return half{uint16_t(a.bits & 0x7FFFu)};
  else return a < 0 ? T(0 - std::make_unsigned_t<T>(a)) : a;
}
template <class T> T negative(T a) {
  if constexpr (std::is_same_v<T, float>) return -a;
  else if constexpr (std::is_same_v<T, half>) return half{uint16_t(a.bits ^ 0x8000u)};
  else return T(0 - std::make_unsigned_t<T>(a));
}
template <class T> T rectified(T a) {
  if constexpr (std::is_same_v<T, float>) return a < 0 ? 0 : a;
  else if constexpr (std::is_same_v<T, half>) return di_twin::to_float(a) < 0 ? half{0} : a;
  else return a < 0 ? T(0) : a;
}
} // namespace twin_detail

DI_TWIN_UNARY(Abs, (di_twin::is_any<T, float, half, int8_t, int16_t, int32_t, int64_t>()), (di_twin::is_any<T, float, half, int16_t, int32_t>()),
              (twin_detail::absolute<T>))
DI_TWIN_UNARY(Relu, (di_twin::is_any<T, float, half, int32_t, int64_t>()), (di_twin::is_any<T, float, half, int32_t>()), (twin_detail::rectified<T>))

template <class T> void Neg(const LocalTensor<T> &dst, const LocalTensor<T> &src, const uint32_t count) {
  static_assert(di_twin::is_any<T, float, half, int8_t, int16_t, int32_t, int64_t>(), "Neg: the device has no such type");
  di_twin::map("Neg", dst, src, count, twin_detail::negative<T>);
}

// By bits; to the right a signed number keeps its sign. Beyond the width nothing, or the sign, is left.
namespace twin_detail {
template <class T> auto to_left(uint64_t by) {
  const bool is_beyond = by >= 8 * sizeof(T);
  const int bits = is_beyond ? 0 : int(by);
  return [is_beyond, bits](T a) { return is_beyond ? T(0) : T(std::make_unsigned_t<T>(a) << bits); };
}
template <class T> auto to_right(uint64_t by) {
  const bool is_beyond = by >= 8 * sizeof(T);
  const int bits = is_beyond ? 0 : int(by);
  return [is_beyond, bits](T a) { return is_beyond ? T(a < 0 ? -1 : 0) : T(a >> bits); };
}
} // namespace twin_detail

template <class T> void ShiftLeft(const LocalTensor<T> &dst, const LocalTensor<T> &src, const T &scalar, const int32_t &count) {
  static_assert(std::is_integral_v<T>, "ShiftLeft: the device has no such type");
  di_twin::map("ShiftLeft", dst, src, count, twin_detail::to_left<T>(uint64_t(scalar)));
}

template <class T> void ShiftRight(const LocalTensor<T> &dst, const LocalTensor<T> &src, const T &scalar, const int32_t &count) {
  static_assert(std::is_integral_v<T>, "ShiftRight: the device has no such type");
  di_twin::map("ShiftRight", dst, src, count, twin_detail::to_right<T>(uint64_t(scalar)));
}

// Each element by its own number of bits, which is not negative and lies in an integer of the same size.
template <class T, class U>
void ShiftRight(const LocalTensor<T> &dst, const LocalTensor<T> &src0, const LocalTensor<U> &src1, const int32_t &count) {
  static_assert(std::is_integral_v<T> && std::is_integral_v<U> && std::is_signed_v<U> && sizeof(T) == sizeof(U), "ShiftRight: integers of one size");
  const uint32_t block = di_twin::Core::now().block();
  di_twin::zip<false>("ShiftRight", dst, src0, src1, count, [block](T a, U by) {
    if (by < 0) di_twin::wrong("block %u: ShiftRight by %lld bits", block, (long long)by);
    return uint64_t(by) >= 8 * sizeof(T) ? T(a < 0 ? -1 : 0) : T(a >> by);
  });
}

// dst += src0 * src1. Whether the device rounds the product first is not known: the twin does either, by the seed.
template <class T> void MulAddDst(const LocalTensor<T> &dst, const LocalTensor<T> &src0, const LocalTensor<T> &src1, const int32_t &count) {
  static_assert(std::is_same_v<T, float>, "MulAddDst: float here");
  const bool is_fused = di_twin::noise(twin_detail::seed(), 100, 0, 0) & 1;
  di_twin::zip<true>("MulAddDst", dst, src0, src1, count, [is_fused](float a, float b, float c) {
    if (is_fused) return std::fma(a, b, c);
    const float product = a * b;
    return product + c;
  });
}

// dst += src * scalar, rounded once or twice by the seed.
template <class T> void Axpy(const LocalTensor<T> &dst, const LocalTensor<T> &src, const T &scalar, const int32_t &count) {
  static_assert(std::is_same_v<T, float>, "Axpy: float here");
  const bool is_fused = di_twin::noise(twin_detail::seed(), 101, 0, 0) & 1;
  const float b = scalar;
  di_twin::zip<true>("Axpy", dst, src, src, count, [is_fused, b](float a, float, float c) {
    if (is_fused) return std::fma(a, b, c);
    const float product = a * b;
    return product + c;
  });
}

// All elements one value.
template <class T> void Duplicate(const LocalTensor<T> &dst, const T &value, const int32_t &elements) {
  const uint32_t count = di_twin::checked_count(elements, "Duplicate");
  auto &instruction = di_twin::vector_instruction("Duplicate");
  di_twin::result(instruction, dst, count);
  T *to = dst.twin_data();
  const T copy = value;
  di_twin::Core::now().issue(instruction, [=] {
    for (uint32_t i = 0; i < count; ++i) to[i] = copy;
  });
}

// Elements of repeats under a mask; strides in blocks of 32 bytes.
template <class T, bool isSetMask = true, class M>
void Duplicate(const LocalTensor<T> &dst, const T &value, M masked, uint8_t repeats, uint16_t block_stride, uint8_t repeat_stride) {
  static_assert(di_twin::is_vector_type<T>(), "Duplicate: the device's repeat form has no such type");
  constexpr uint32_t per_repeat = 256 / sizeof(T);
  const di_twin::Mask mask = di_twin::mask_of(masked, per_repeat, "Duplicate");
  const di_twin::Steps steps = di_twin::steps_of<T>(block_stride, repeat_stride, 32 / sizeof(T));
  auto &instruction = di_twin::vector_instruction("Duplicate");
  di_twin::operand(instruction, dst, steps, mask, per_repeat, repeats, true);
  T *to = dst.twin_data();
  const T copy = value;
  const uint32_t count = repeats;
  di_twin::Core::now().issue(instruction, [=] {
    for (uint32_t r = 0; r < count; ++r) {
      for (uint32_t i = 0; i < per_repeat; ++i) {
        if (mask.has(i)) to[steps.at(r, i)] = copy;
      }
    }
  });
}

// first, first + 1, ...
template <class T> void CreateVecIndex(LocalTensor<T> dst, const T &first, uint32_t elements) {
  static_assert(di_twin::is_any<T, int8_t, int16_t, int32_t, int64_t, half, float>(), "CreateVecIndex: the device has no such type");
  const uint32_t count = di_twin::checked_count(elements, "CreateVecIndex");
  auto &instruction = di_twin::vector_instruction("CreateVecIndex");
  di_twin::result(instruction, dst, count);
  T *to = dst.twin_data();
  const T begin = first;
  di_twin::Core::now().issue(instruction, [=] {
    for (uint32_t i = 0; i < count; ++i) {
      if constexpr (std::is_same_v<T, half>) to[i] = di_twin::to_half(di_twin::to_float(begin) + float(i));
      else to[i] = T(begin + T(i));
    }
  });
}

// Inside the unified buffer, by V: whole blocks, from input to what V works on or from there to output.
template <class T> void DataCopy(const LocalTensor<T> &dst, const LocalTensor<T> &src, uint32_t count) {
  di_twin::check_inner_places(dst, src);
  twin_detail::check_blocks(uint64_t(count) * sizeof(T), "DataCopy");
  di_twin::map("DataCopy", dst, src, count, [](T a) { return a; });
}

template <class T> void DataCopy(const LocalTensor<T> &dst, const LocalTensor<T> &src, const DataCopyParams &p) {
  auto &instruction = di_twin::vector_instruction("DataCopy");
  if (p.blockCount == 0 || p.blockLen == 0) return;
  di_twin::check_inner_places(dst, src);
  di_twin::check_block(dst, "DataCopy");
  di_twin::check_block(src, "DataCopy");
  const uint32_t bytes = p.blockLen * 32u, from_step = bytes + p.srcStride * 32u, to_step = bytes + p.dstStride * 32u, count = p.blockCount;
  src.check(0, ((count - 1) * from_step + bytes) / sizeof(T), "DataCopy");
  dst.check(0, ((count - 1) * to_step + bytes) / sizeof(T), "DataCopy");
  di_twin::ub_span(instruction, src.twin_begin(), bytes, count, from_step, false);
  di_twin::ub_span(instruction, dst.twin_begin(), bytes, count, to_step, true);
  unsigned char *to = reinterpret_cast<unsigned char *>(dst.twin_data());
  const unsigned char *from = reinterpret_cast<const unsigned char *>(src.twin_data());
  di_twin::Core::now().issue(instruction, [=] {
    for (uint32_t i = 0; i < count; ++i) std::memmove(to + size_t(i) * to_step, from + size_t(i) * from_step, bytes);
  });
}

#undef DI_TWIN_BINARY
#undef DI_TWIN_SCALAR
#undef DI_TWIN_UNARY
#undef DI_TWIN_NUMBERS
#undef DI_TWIN_BITS
#undef DI_TWIN_SHORT_BITS
#undef DI_TWIN_SCALARS
#undef DI_TWIN_MASKS

} // namespace AscendC

#endif
