// The inverse roots of the mean squares of up to 64 rows: (mean(x^2) + eps)^-1/2, within one ulp of what the sum of the squares gives.
//
// A row is scaled by a power of two, so that its squares neither overflow nor vanish: with e the exponent of the larger of max |x|
// and eps^1/2, the scale is 2^-e; what comes out is inverse() * scale().
//
// Sum: pieces of 4096 columns, each by ReduceSum, added by S in ascending order. Root: the device's quotient and root are each off by
// up to an ulp, so that y = sqrt(1 / m) is by up to three. One step of Newton's, y += y (1 - m y y) / 2, with m y and (m y) y exact
// in two numbers, leaves the rounding of its addition.
//
// MTE2 reads a row once if it is one piece, else twice. S chooses the scale; the root is V's, for all rows at once.
#pragma once

#include "bits.h"
#include "division.h"
#include "float_rows.h"
#include "tiling.h"
#include "two_float.h"

class InverseRoots {
public:
  static constexpr uint32_t ROWS = 64, PIECE = 4096;

  __aicore__ inline void init(AscendC::TPipe &pipe) {
    pipe.InitBuffer(in_, 2, piece_bytes(PIECE));
    pipe.InitBuffer(values_, PIECE * 4);
    pipe.InitBuffer(squares_, PIECE * 4);
    pipe.InitBuffer(work_, 512);
    pipe.InitBuffer(small_, VECTORS * ROWS * 4);
  }

  // The sum of row `place` of the batch.
  template <class X> __aicore__ inline void add(uint32_t place, const AscendC::GlobalTensor<X> &row, int64_t columns, float eps) {
    using namespace AscendC;
    const LocalTensor<float> values = values_.Get<float>(), squares = squares_.Get<float>();
    uint32_t largest = 0;
    for (int64_t at = 0; at < columns; at += PIECE) {
      const uint32_t count = static_cast<uint32_t>(least(columns - at, PIECE));
      load_floats(in_, values, row[at], count);
      const uint32_t here = largest_magnitude(values, squares, count);
      largest = here > largest ? here : largest;
    }
    const uint32_t eps_bits = bits_of(eps);
    float mean = 1.0f, scale = 1.0f, added = 0.0f;
    bool is_special = true;
    if (largest > INFINITY_BITS || columns == 0 || (eps_bits & MAGNITUDE_BITS) > INFINITY_BITS) scale = float_of(NAN_BITS);
    else if (largest == INFINITY_BITS || eps_bits == INFINITY_BITS) scale = 0.0f;
    else if (largest == 0 && (eps_bits & MAGNITUDE_BITS) == 0) scale = float_of(INFINITY_BITS);
    else is_special = false;
    if (!is_special) {
      // Of a number below the normal ones the exponent counts as the smallest. Half of that of eps, rounded up.
      const int32_t of_eps = static_cast<int32_t>(eps_bits >> 23 & 255) - 127;
      const int32_t of_root = (eps_bits & MAGNITUDE_BITS) == 0 ? -126 : (of_eps + 1) >> 1;
      int32_t exponent = static_cast<int32_t>(most(static_cast<int32_t>(largest >> 23) - 127, of_root));
      exponent = static_cast<int32_t>(most(least(exponent, 126), -126));
      scale = power_of_two(-exponent);
      added = eps * scale * scale;
      mean = 0.0f;
      for (int64_t at = 0; at < columns; at += PIECE) {
        const uint32_t count = static_cast<uint32_t>(least(columns - at, PIECE));
        if (columns > PIECE) load_floats(in_, values, row[at], count);
        mean += sum_of_squares(values, squares, scale, count);
      }
    }
    vector(MEAN).SetValue(place, mean);
    vector(EPS).SetValue(place, added);
    // A row that has no sum is divided by 1.
    vector(COUNT).SetValue(place, is_special ? 1.0f : static_cast<float>(columns));
    vector(SCALE).SetValue(place, scale);
    is_nan_or_infinite_[place] = largest >= INFINITY_BITS;
  }

  // Of the rows that were added, by V; behind it S may read them, too.
  __aicore__ inline void finish(uint32_t rows) {
    using namespace AscendC;
    const int32_t count = static_cast<int32_t>(rows);
    const LocalTensor<float> m = vector(MEAN), y = vector(ROOT), one = vector(ONE), h = vector(A), h_low = vector(B), p = vector(C), p_low = vector(D),
                             scratch = vector(E);
    order<HardEvent::S_V>();
    Duplicate(one, 1.0f, count);
    Div<float, EXACT_DIVISION>(m, m, vector(COUNT), count);
    vector_barrier();
    Add(m, m, vector(EPS), count);
    vector_barrier();
    Div(y, one, m, count);
    vector_barrier();
    Sqrt(y, y, count);
    vector_barrier();
    const Halves root = {y, vector(F), vector(G)};
    split(root.high, root.low, y, count);
    const Halves mean = {m, vector(H), vector(I)};
    split(mean.high, mean.low, m, count);
    exact_product(h, h_low, mean, root, scratch, count);
    const Halves half = {h, vector(H), vector(I)};
    split(half.high, half.low, h, count);
    exact_product(p, p_low, half, root, scratch, count);
    // 1 - p is exact: p is near 1.
    Sub(p, one, p, count);
    Mul(h_low, h_low, y, count);
    vector_barrier();
    Sub(p, p, p_low, count);
    vector_barrier();
    Sub(p, p, h_low, count);
    vector_barrier();
    Mul(p, p, y, count);
    vector_barrier();
    Muls(p, p, 0.5f, count);
    vector_barrier();
    Add(y, y, p, count);
    order<HardEvent::V_S>();
  }

  // Of the batch that is finished. A row's result is the product of the two.
  __aicore__ inline AscendC::LocalTensor<float> inverse() { return vector(ROOT); }
  __aicore__ inline AscendC::LocalTensor<float> scale() { return vector(SCALE); }
  // A row that holds a NaN or an infinity.
  __aicore__ inline bool is_spoilt(uint32_t place) const { return is_nan_or_infinite_[place]; }

private:
  enum Vector : uint32_t { MEAN, EPS, COUNT, SCALE, ROOT, ONE, A, B, C, D, E, F, G, H, I, VECTORS };
  __aicore__ inline AscendC::LocalTensor<float> vector(Vector which) { return small_.GetWithOffset<float>(ROWS, which * ROWS * 4); }

  // The bits of the largest |x|. As integers they are in the order of the magnitudes, with NaN above all.
  __aicore__ inline uint32_t largest_magnitude(const AscendC::LocalTensor<float> &values, const AscendC::LocalTensor<float> &scratch, uint32_t count) {
    using namespace AscendC;
    const LocalTensor<int32_t> magnitudes = scratch.ReinterpretCast<int32_t>(), largest = work_.GetWithOffset<int32_t>(8, 0);
    and_bits(magnitudes, values.ReinterpretCast<int32_t>(), MAGNITUDE_BITS, static_cast<int32_t>(count));
    vector_barrier();
    ReduceMax(largest, magnitudes, work_.GetWithOffset<int32_t>(64, 256), static_cast<int32_t>(count));
    order<HardEvent::V_S>();
    const uint32_t result = static_cast<uint32_t>(largest.GetValue(0));
    return result;
  }

  __aicore__ inline float sum_of_squares(const AscendC::LocalTensor<float> &values, const AscendC::LocalTensor<float> &squares, float scale,
                                         uint32_t count) {
    using namespace AscendC;
    const LocalTensor<float> sum = work_.GetWithOffset<float>(8, 32);
    Muls(squares, values, scale, static_cast<int32_t>(count));
    vector_barrier();
    Mul(squares, squares, squares, static_cast<int32_t>(count));
    vector_barrier();
    // Behind it S has waited for V.
    ReduceSum(sum, squares, work_.GetWithOffset<float>(64, 256), static_cast<int32_t>(count));
    return sum.GetValue(0);
  }

  AscendC::TQue<AscendC::TPosition::VECIN, 2> in_;
  AscendC::TBuf<AscendC::TPosition::VECCALC> values_, squares_, work_, small_;
  bool is_nan_or_infinite_[ROWS];
};
