// F32 to scaled formats: the rules of `quantize`, in the terms of four neighbours per lane. Nothing here depends on the order
// in which elements are taken.
#pragma once

#include "quad.cuh"

// The code of the smallest power of two that is not below x >= 0; 255 where x is not finite.
__device__ inline uint8_t pow2_ceil(float x) {
  const uint32_t bits = __float_as_uint(x) & 0x7FFFFFFFu;
  return uint8_t(min((bits >> 23) + ((bits & 0x7FFFFFu) != 0), 255u));
}

// To nearest even; above 448 it is 448, a NaN 0x7F, both with the sign.
__device__ inline uint8_t f32_to_e4m3(float x) {
  const uint32_t bits = __float_as_uint(x), magnitude = bits & 0x7FFFFFFFu, sign = bits >> 24 & 0x80;
  if (magnitude > 0x7F800000u) return uint8_t(sign | 0x7F);
  const uint32_t clamped = min(magnitude, __float_as_uint(448.0f));
  // Below 2^-6 a code counts steps of 2^-9, which is the last place of F32 at 2^14.
  if (clamped < __float_as_uint(0x1p-6f)) return uint8_t(sign | (__float_as_uint(__uint_as_float(clamped) + 0x1p14f) & 15));
  return uint8_t(sign | ((clamped + 0x7FFFFu + (clamped >> 20 & 1)) >> 20) - (120u << 3));
}

// To nearest, ties to the even code; above 6, NaN too, it is 6, with the sign.
__device__ inline uint32_t f32_to_e2m1(float x) {
  const uint32_t bits = __float_as_uint(x), magnitude = bits & 0x7FFFFFFFu;
  const auto above = [&](float tie) { return uint32_t(magnitude > __float_as_uint(tie)); };
  const auto from = [&](float tie) { return uint32_t(magnitude >= __float_as_uint(tie)); };
  return (bits >> 28 & 8) + above(0.25f) + from(0.75f) + above(1.25f) + from(1.75f) + above(2.5f) + from(3.5f) + above(5.0f);
}

// max(amax, floor) that keeps a NaN.
__device__ inline float at_least(float amax, float floor) { return amax < floor ? floor : amax; }

// The code of the scale of a group with this largest magnitude.
template <int F> __device__ inline uint8_t scale_code(float amax) {
  if constexpr (F == FP8_ROW32) return pow2_ceil(__fmul_rn(at_least(amax, 1e-4f), 1.0f / 448.0f));
  else if constexpr (F == FP4_ROW32) return pow2_ceil(__fmul_rn(at_least(amax, 0x1.8p-124f), 1.0f / 6.0f));
  else return f32_to_e4m3(__fmul_rn(at_least(amax, 6.0f / 512.0f), 1.0f / 6.0f)) & 0x7F;
}

// Elements under one scale, and bytes of four codes.
template <int F> __host__ __device__ constexpr int group_of() { return F == FP4_ROW16 ? 16 : 32; }
template <int F> __host__ __device__ constexpr int quad_bytes() { return F == FP8_ROW32 ? 4 : 2; }

// Four neighbours of a row, encoded: the first element in the low bits.
struct Quad {
  uint32_t codes;
  uint8_t scale;
};

// By all lanes of a warp: lane l holds the elements 4l to 4l + 3 of whole groups. Lanes whose elements lie beyond the row take
// part with zeros; they share no group with the others.
template <int F> __device__ inline Quad encode(const float (&v)[4]) {
  uint32_t largest = 0;
#pragma unroll
  for (int j = 0; j < 4; ++j) largest = max(largest, __float_as_uint(v[j]) & 0x7FFFFFFFu);
#pragma unroll
  // Magnitudes are ordered as their bits are, a NaN above all.
  for (int width = group_of<F>() / 8; width > 0; width /= 2) largest = max(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, width));
  Quad quad = {0, scale_code<F>(__uint_as_float(largest))};
  // The reciprocal of a power of two is exact: the product has the bits of the quotient.
  const float factor = F == FP4_ROW16 ? e4m3_to_f32(quad.scale) : ue8m0_to_f32(quad.scale == 255 ? 255 : 254 - quad.scale);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float scaled = F == FP4_ROW16 ? __fdiv_rn(v[j], factor) : __fmul_rn(v[j], factor);
    // The sign of a NaN is the element's.
    const float signed_as_before = copysignf(scaled, v[j]);
    if constexpr (F == FP8_ROW32) quad.codes |= uint32_t(f32_to_e4m3(signed_as_before)) << 8 * j;
    else quad.codes |= f32_to_e2m1(signed_as_before) << 4 * j;
  }
  return quad;
}

// What a reader of the codes sees.
template <int F> __device__ inline void decode(const Quad &quad, float (&v)[4]) {
  const float scale = F == FP4_ROW16 ? e4m3_to_f32(quad.scale) : ue8m0_to_f32(quad.scale);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float code = F == FP8_ROW32 ? e4m3_to_f32(quad.codes >> 8 * j & 255) : e2m1_to_f32(quad.codes >> 4 * j & 15);
    v[j] = __fmul_rn(code, scale);
  }
}

// The low `BYTES` bytes of a number, at any address.
template <int BYTES> __device__ inline void store_bytes(unsigned char *to, uint32_t bits) {
  if (BYTES == 4 && reinterpret_cast<uintptr_t>(to) % 4 == 0) {
    *reinterpret_cast<uint32_t *>(to) = bits;
  } else if (reinterpret_cast<uintptr_t>(to) % 2 == 0) {
#pragma unroll
    for (int i = 0; i < BYTES / 2; ++i) reinterpret_cast<uint16_t *>(to)[i] = uint16_t(bits >> 16 * i);
  } else {
#pragma unroll
    for (int i = 0; i < BYTES; ++i) to[i] = uint8_t(bits >> 8 * i);
  }
}

// As many bytes from any address.
template <int BYTES> __device__ inline uint32_t load_bytes(const unsigned char *from) {
  if (BYTES == 4 && reinterpret_cast<uintptr_t>(from) % 4 == 0) return *reinterpret_cast<const uint32_t *>(from);
  uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < BYTES; ++i) bits |= uint32_t(from[i]) << 8 * i;
  return bits;
}
