// Cosine and sine of any F32 angle, by S in integers: there is no F64, and F32 alone cannot tell a large angle from its neighbour.
//
// The angle times 2 / pi, modulo 4, with 62 bits behind the point: of 2 / pi only 96 bits count, from a place that the exponent gives;
// those before it make whole turns. Then the nearest quarter is taken off, and Taylor's series run in numbers of 31 bits behind the
// point. Each result is off by less than 2^-29 before it is rounded to F32.
#pragma once

#include "bits.h"

struct Turn {
  float cosine, sine;
};

// Bits of 2 / pi behind the point, 32 at a time; none before it.
__aicore__ inline uint64_t two_over_pi(int32_t word) {
  switch (word) {
  case 0: return 0xA2F9836Eu;
  case 1: return 0x4E441529u;
  case 2: return 0xFC2757D1u;
  case 3: return 0xF534DDC0u;
  case 4: return 0xDB629599u;
  case 5: return 0x3C439041u;
  case 6: return 0xFE5163ABu;
  default: return 0;
  }
}

// Number * factor, with 31 bits behind the point.
__aicore__ inline int64_t scaled_down(int64_t number, int64_t factor) { return number * factor >> 31; }

__aicore__ inline Turn turn_of(float angle) {
  const uint32_t bits = bits_of(angle);
  const int32_t field = static_cast<int32_t>(bits >> 23 & 255);
  if (field == 255) return {float_of(NAN_BITS), float_of(NAN_BITS)};
  // Below 2^-30 both series end with their first term.
  if (field < 97) return {1.0f, angle};
  const uint64_t significand = (bits & 0x7FFFFFu) | 0x800000u;
  // angle = significand * 2^exponent. Bit 1 of 2 / pi has the weight 1 / 2; those before `first` are worth multiples of 4 quarters.
  const int32_t exponent = field - 150, first = exponent - 1, shifted = first - 1 + 64;
  const int32_t word = (shifted >> 5) - 2, by = shifted & 31;
  uint64_t window[3];
  for (int32_t i = 0; i < 3; ++i) {
    const uint64_t two = two_over_pi(word + i) << 32 | two_over_pi(word + i + 1);
    window[i] = two << by >> 32;
  }
  const uint64_t low = significand * window[2], middle = significand * window[1] + (low >> 32), high = significand * window[0] + (middle >> 32);
  const uint64_t quarters = high << 32 | (middle & 0xFFFFFFFFu);
  const uint32_t quadrant = static_cast<uint32_t>((quarters >> 62) + (quarters >> 61 & 1)) & 3;
  // From the nearest quarter, between -1/2 and 1/2, with 32 bits behind the point; then in radians, with 31.
  const int64_t rest = static_cast<int64_t>(quarters << 2) >> 32;
  const int64_t r = rest * 3373259426ll >> 32, z = scaled_down(r, r);
  constexpr int64_t ONE = int64_t(1) << 31;
  int64_t sine = 5918 - scaled_down(54, z);
  sine = 426088 - scaled_down(sine, z);
  sine = 17895697 - scaled_down(sine, z);
  sine = 357913941 - scaled_down(sine, z);
  sine = r - scaled_down(r, scaled_down(sine, z));
  int64_t cosine = 53261 - scaled_down(592, z);
  cosine = 2982616 - scaled_down(cosine, z);
  cosine = 89478485 - scaled_down(cosine, z);
  cosine = 1073741824 - scaled_down(cosine, z);
  cosine = ONE - scaled_down(cosine, z);
  const bool is_odd = quadrant & 1;
  const int64_t c = is_odd ? sine : cosine, s = is_odd ? cosine : sine;
  const bool is_minus = (quadrant >> 1) != (bits >> 31);
  const float unit = power_of_two(-31);
  return {static_cast<float>(quadrant == 1 || quadrant == 2 ? -c : c) * unit, static_cast<float>(is_minus ? -s : s) * unit};
}
