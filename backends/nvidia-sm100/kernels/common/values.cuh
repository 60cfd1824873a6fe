// Elements of every floating-point format as F32, and back. Only operations that are exact or rounded to nearest even, so
// that the bits are those of every other backend.
#pragma once

#include "view.cuh"

__device__ inline float bf16_to_f32(uint16_t bits) { return __uint_as_float(uint32_t(bits) << 16); }

// To nearest even; a NaN stays one.
__device__ inline uint16_t f32_to_bf16(float value) {
  const uint32_t bits = __float_as_uint(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return uint16_t(bits >> 16 | 0x40u);
  return uint16_t((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

// 2^(code - 127): code 0 is the subnormal 2^-127, 255 is NaN.
__device__ inline float ue8m0_to_f32(uint8_t code) {
  if (code == 255) return __uint_as_float(0x7FC00000u);
  return __uint_as_float(code == 0 ? 0x00400000u : uint32_t(code) << 23);
}

// 1 sign, 4 exponent (bias 7), 3 mantissa bits; no infinity, 0x7F and 0xFF are NaN.
__device__ inline float e4m3_to_f32(uint8_t code) {
  const uint32_t sign = uint32_t(code & 0x80) << 24, magnitude = code & 0x7F;
  if (magnitude == 0x7F) return __uint_as_float(sign | 0x7FC00000u);
  if (magnitude >= 8) return __uint_as_float(sign | ((magnitude << 20) + (120u << 23)));
  // A subnormal is a multiple of 2^-9; the sign of zero stays.
  return __uint_as_float(sign | __float_as_uint(float(magnitude) * 0x1p-9f));
}

// 1 sign, 2 exponent (bias 1), 1 mantissa bit: 0, 0.5, 1, 1.5, 2, 3, 4, 6.
__device__ inline float e2m1_to_f32(uint8_t code) {
  const uint32_t sign = uint32_t(code & 8) << 28, magnitude = code & 7;
  if (magnitude >= 2) return __uint_as_float(sign | ((magnitude << 22) + (126u << 23)));
  return __uint_as_float(sign | (magnitude == 1 ? 0x3F000000u : 0u));
}

// Element `column` of row `row` of a tensor whose rows have scales of their own, or none.
__device__ inline float load_float(const View &x, int64_t row, int64_t column) {
  const int64_t begin = x.row_begin(row);
  switch (x.format) {
  case F32: return x.at<float>(begin)[column];
  case BF16: return bf16_to_f32(x.at<uint16_t>(begin)[column]);
  case FP8_ROW32: {
    const float scale = ue8m0_to_f32(x.scale[x.scale_row_begin(row) + column / 32]);
    return __fmul_rn(e4m3_to_f32(x.data[begin + column]), scale);
  }
  case FP4_ROW32:
  case FP4_ROW16: {
    const uint8_t pair = x.data[(begin + column) / 2], code = column & 1 ? pair >> 4 : pair & 15;
    const int64_t group = x.scale_row_begin(row) + column / (x.format == FP4_ROW32 ? 32 : 16);
    const float scale = x.format == FP4_ROW32 ? ue8m0_to_f32(x.scale[group]) : e4m3_to_f32(x.scale[group]);
    return __fmul_rn(e2m1_to_f32(code), scale);
  }
  }
  return __uint_as_float(0x7FC00000u);
}

// Writes an F32 or BF16 element, rounded once.
__device__ inline void store_float(const View &out, int64_t row, int64_t column, float value) {
  if (out.format == F32) out.row<float>(row)[column] = value;
  else out.row<uint16_t>(row)[column] = f32_to_bf16(value);
}
