// Instructions that the device computes to within one unit in the last place. The twin gives one of the numbers that are so near,
// which one follows from the seed and the bits that go in: a kernel that needs more shows it on some seed.
//
// The default and the FTZ_TRUE algorithms take denormal operands for zeros and flush denormal results; FTZ_FALSE keeps them, and
// 0ULP is the exact result, rounded.

#ifndef DEEPINFER_ASCEND_TWIN_INEXACT_H
#define DEEPINFER_ASCEND_TWIN_INEXACT_H

#include <cmath>

#include "lanes.h"

namespace AscendC {

enum class DivAlgo { INTRINSIC = 0, DIFF_COMPENSATION, PRECISION_1ULP_FTZ_TRUE, PRECISION_0ULP_FTZ_TRUE, PRECISION_0ULP_FTZ_FALSE, PRECISION_1ULP_FTZ_FALSE };
struct DivConfig {
  DivAlgo algo = DivAlgo::INTRINSIC;
};
constexpr DivConfig DEFAULT_DIV_CONFIG = {DivAlgo::INTRINSIC};

enum class SqrtAlgo { INTRINSIC = 0, FAST_INVERSE, PRECISION_1ULP_FTZ_TRUE, PRECISION_0ULP_FTZ_FALSE, PRECISION_1ULP_FTZ_FALSE };
struct SqrtConfig {
  SqrtAlgo algo = SqrtAlgo::INTRINSIC;
};
constexpr SqrtConfig DEFAULT_SQRT_CONFIG = {SqrtAlgo::INTRINSIC};

enum class ExpAlgo { INTRINSIC = 0, PRECISION_1ULP_FTZ_TRUE, PRECISION_1ULP_FTZ_FALSE };
struct ExpConfig {
  ExpAlgo algo = ExpAlgo::INTRINSIC;
};
constexpr ExpConfig DEFAULT_EXP_CONFIG = {ExpAlgo::INTRINSIC};

enum class LnAlgo { INTRINSIC = 0, PRECISION_1ULP_FTZ_TRUE, PRECISION_1ULP_FTZ_FALSE };
struct LnConfig {
  LnAlgo algo = LnAlgo::INTRINSIC;
};
constexpr LnConfig DEFAULT_LN_CONFIG = {LnAlgo::INTRINSIC};

enum class ReciprocalAlgo { INTRINSIC = 0, PRECISION_1ULP_FTZ_TRUE, PRECISION_1ULP_FTZ_FALSE };
struct ReciprocalConfig {
  ReciprocalAlgo algo = ReciprocalAlgo::INTRINSIC;
};
constexpr ReciprocalConfig DEFAULT_RECIPROCAL_CONFIG = {ReciprocalAlgo::INTRINSIC};

} // namespace AscendC

namespace di_twin {

enum Inexact : uint32_t { DIV = 1, SQRT, EXP, LN };

struct Precision {
  bool is_exact, is_flushed;
};

inline float flush(float x) { return (bits_of(x) & 0x7F800000u) == 0 ? float_of(bits_of(x) & 0x80000000u) : x; }

// The next binary32 number in the order of the real line; zero and what is not finite stay.
inline float neighbour(float x, bool is_up) {
  const uint32_t bits = bits_of(x), magnitude = bits & 0x7FFFFFFFu;
  if (magnitude == 0 || magnitude >= 0x7F7FFFFFu) return x;
  return float_of((bits >> 31 != 0) == is_up ? bits - 1 : bits + 1);
}

// `exact` is the result with far more places than F32 has.
inline float within_one_ulp(double exact, const Precision &precision, uint64_t seed, uint32_t instruction, uint32_t a, uint32_t b) {
  float result = float(exact);
  if (!precision.is_exact && result == result) {
    const uint32_t chosen = noise(seed, instruction, a, b);
    // An exact number has neighbours on both sides, one unit away; any other lies between two.
    if (double(result) == exact) result = chosen % 3 == 0 ? result : neighbour(result, chosen % 3 == 1);
    else if (chosen & 1) result = neighbour(result, double(result) < exact);
  }
  return precision.is_flushed ? flush(result) : result;
}

template <AscendC::DivAlgo algo> constexpr Precision precision_of_div() {
  using A = AscendC::DivAlgo;
  return {algo == A::DIFF_COMPENSATION || algo == A::PRECISION_0ULP_FTZ_TRUE || algo == A::PRECISION_0ULP_FTZ_FALSE,
          algo != A::PRECISION_0ULP_FTZ_FALSE && algo != A::PRECISION_1ULP_FTZ_FALSE};
}

template <AscendC::SqrtAlgo algo> constexpr Precision precision_of_sqrt() {
  using A = AscendC::SqrtAlgo;
  return {algo == A::FAST_INVERSE || algo == A::PRECISION_0ULP_FTZ_FALSE,
          algo != A::PRECISION_0ULP_FTZ_FALSE && algo != A::PRECISION_1ULP_FTZ_FALSE};
}

struct Divide {
  Precision precision;
  uint64_t seed;
  float operator()(float a, float b) const {
    if (precision.is_flushed) a = flush(a), b = flush(b);
    // A quotient of two numbers of 24 places that F32 rounds up or down is told from its neighbours by 53 places.
    if (precision.is_exact && !precision.is_flushed) return a / b;
    return within_one_ulp(double(a) / double(b), precision, seed, DIV, bits_of(a), bits_of(b));
  }
};

struct Root {
  Precision precision;
  uint64_t seed;
  float operator()(float x) const {
    if (precision.is_flushed) x = flush(x);
    if (precision.is_exact && !precision.is_flushed) return std::sqrt(x);
    return within_one_ulp(std::sqrt(double(x)), precision, seed, SQRT, bits_of(x), 0);
  }
};

struct Exponential {
  Precision precision;
  uint64_t seed;
  float operator()(float x) const {
    if (precision.is_flushed) x = flush(x);
    return within_one_ulp(std::exp(double(x)), precision, seed, EXP, bits_of(x), 0);
  }
};

struct Logarithm {
  Precision precision;
  uint64_t seed;
  float operator()(float x) const {
    if (precision.is_flushed) x = flush(x);
    return within_one_ulp(std::log(double(x)), precision, seed, LN, bits_of(x), 0);
  }
};

// A reciprocal root in one instruction is a root and a quotient.
struct ReciprocalRoot {
  Root root;
  Divide divide;
  float operator()(float x) const { return divide(1.0f, root(x)); }
};

// In half precision the twin rounds the result of F32.
template <class F> struct InHalf {
  F f;
  half operator()(half x) const { return to_half(f(to_float(x))); }
  half operator()(half x, half y) const { return to_half(f(to_float(x), to_float(y))); }
};

} // namespace di_twin

namespace AscendC {

namespace twin_detail {
inline uint64_t seed() { return di_twin::Core::now().seed(); }
template <class T, class F> auto of_type(const F &f) {
  if constexpr (std::is_same_v<T, half>) return di_twin::InHalf<F>{f};
  else return f;
}
template <class T> constexpr void float_or_half() { static_assert(di_twin::is_any<T, float, half>(), "float or half"); }
} // namespace twin_detail

template <class T, const DivConfig &config = DEFAULT_DIV_CONFIG>
void Div(const LocalTensor<T> &dst, const LocalTensor<T> &src0, const LocalTensor<T> &src1, const int32_t &count) {
  if constexpr (std::is_integral_v<T>) {
    static_assert(sizeof(T) > 1, "no integers of 8 bits");
    di_twin::zip<false>("Div", dst, src0, src1, count, [](T a, T b) { return b == 0 ? T(-1) : T(a / b); });
  } else {
    twin_detail::float_or_half<T>();
    di_twin::zip<false>("Div", dst, src0, src1, count,
                        twin_detail::of_type<T>(di_twin::Divide{di_twin::precision_of_div<config.algo>(), twin_detail::seed()}));
  }
}

template <class T, bool isSetMask = true, const DivConfig &config = DEFAULT_DIV_CONFIG, class M>
void Div(const LocalTensor<T> &dst, const LocalTensor<T> &src0, const LocalTensor<T> &src1, M mask, uint8_t repeats, const BinaryRepeatParams &p) {
  twin_detail::float_or_half<T>();
  di_twin::zip<false>("Div", dst, src0, src1, mask, repeats, p,
                      twin_detail::of_type<T>(di_twin::Divide{di_twin::precision_of_div<config.algo>(), twin_detail::seed()}));
}

// By a scalar; as Div without a config.
template <class T> void Divs(const LocalTensor<T> &dst, const LocalTensor<T> &src, const T &scalar, const int32_t &count) {
  static_assert(std::is_same_v<T, float>, "Divs: float here");
  const di_twin::Divide divide{di_twin::precision_of_div<DivAlgo::INTRINSIC>(), twin_detail::seed()};
  const float b = scalar;
  di_twin::map("Divs", dst, src, count, [divide, b](float a) { return divide(a, b); });
}

template <class T, const SqrtConfig &config = DEFAULT_SQRT_CONFIG>
void Sqrt(const LocalTensor<T> &dst, const LocalTensor<T> &src, const int32_t &count) {
  twin_detail::float_or_half<T>();
  di_twin::map("Sqrt", dst, src, count, twin_detail::of_type<T>(di_twin::Root{di_twin::precision_of_sqrt<config.algo>(), twin_detail::seed()}));
}

template <class T, const ExpConfig &config = DEFAULT_EXP_CONFIG>
void Exp(const LocalTensor<T> &dst, const LocalTensor<T> &src, const int32_t &count) {
  twin_detail::float_or_half<T>();
  constexpr di_twin::Precision precision{false, config.algo != ExpAlgo::PRECISION_1ULP_FTZ_FALSE};
  di_twin::map("Exp", dst, src, count, twin_detail::of_type<T>(di_twin::Exponential{precision, twin_detail::seed()}));
}

template <class T, const LnConfig &config = DEFAULT_LN_CONFIG>
void Ln(const LocalTensor<T> &dst, const LocalTensor<T> &src, const int32_t &count) {
  twin_detail::float_or_half<T>();
  constexpr di_twin::Precision precision{false, config.algo != LnAlgo::PRECISION_1ULP_FTZ_FALSE};
  di_twin::map("Ln", dst, src, count, twin_detail::of_type<T>(di_twin::Logarithm{precision, twin_detail::seed()}));
}

template <class T, const ReciprocalConfig &config = DEFAULT_RECIPROCAL_CONFIG>
void Reciprocal(const LocalTensor<T> &dst, const LocalTensor<T> &src, const int32_t &count) {
  twin_detail::float_or_half<T>();
  constexpr di_twin::Precision precision{false, config.algo != ReciprocalAlgo::PRECISION_1ULP_FTZ_FALSE};
  const di_twin::Divide divide{precision, twin_detail::seed()};
  di_twin::map("Reciprocal", dst, src, count, twin_detail::of_type<T>([divide](float x) { return divide(1.0f, x); }));
}

template <class T> void Rsqrt(const LocalTensor<T> &dst, const LocalTensor<T> &src, const int32_t &count) {
  twin_detail::float_or_half<T>();
  constexpr di_twin::Precision precision{false, true};
  di_twin::map("Rsqrt", dst, src, count,
               twin_detail::of_type<T>(di_twin::ReciprocalRoot{{precision, twin_detail::seed()}, {precision, twin_detail::seed()}}));
}

} // namespace AscendC

#endif
