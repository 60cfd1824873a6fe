/* Rounding to scaled 8- and 4-bit formats.
 *
 * The largest magnitude of a group gives its scale: max(amax, floor) * f32(1 / largest element), rounded up to a power of
 * two, or to the nearest E4M3 value. Each value is divided by the scale in F32, clamped, and rounded to the nearest code,
 * ties to even. A group with a NaN, or under a power of two with an infinity, gets a scale that is NaN; its codes are the
 * largest ones, with the sign of the element. An E4M3 scale ends at 448 instead. */
#include "scaled.h"

#include "deepinfer_plugin_helpers.h"

#define MAGNITUDE 0x7FFFFFFFu
#define INFINITE 0x7F800000u
#define NAN_UE8M0 255u

/* The nearest E4M3 code (bias 7, three mantissa bits, subnormals in steps of 2^-9); 448 and above give 448. */
static uint8_t e4m3(float x) {
  uint32_t bits = di_bits(x), sign = bits >> 24 & 0x80u, magnitude = bits & MAGNITUDE;
  if (magnitude > INFINITE) return (uint8_t)(sign | 0x7Fu);
  if (magnitude >= di_bits(448.0f)) return (uint8_t)(sign | 0x7Eu);
  if (magnitude >= di_bits(0x1p-6f)) {
    /* Keeps three of 23 mantissa bits; a carry moves on into the exponent, which is then seen with its new bias. */
    uint32_t rounded = magnitude + 0x7FFFFu + (magnitude >> 20 & 1u);
    return (uint8_t)(sign | ((rounded >> 20) - (120u << 3)));
  }
  /* Around 2^14 the steps of F32 are 2^-9: the sum rounds to whole steps, which stand in its lowest bits. */
  return (uint8_t)(sign | (di_bits(di_float(magnitude) + 0x1p14f) - di_bits(0x1p14f)));
}

static float from_e4m3(uint8_t code) {
  uint32_t sign = (uint32_t)(code & 0x80u) << 24, rest = code & 0x7Fu;
  if (rest == 0x7Fu) return di_float(sign | 0x7FC00000u);
  if (rest < 8) return di_float(sign | di_bits((float)rest * 0x1p-9f));
  return di_float(sign | ((rest + (120u << 3)) << 20));
}

/* The nearest E2M1 code. The boundaries between codes are 0.25, 0.75, 1.25, 1.75, 2.5, 3.5 and 5: on one, the even code
 * wins. Magnitudes are ordered like their bits, NaN above all. */
static uint8_t e2m1(float x) {
  uint32_t bits = di_bits(x), m = bits & MAGNITUDE;
  uint32_t code = (uint32_t)(m > di_bits(0.25f)) + (m >= di_bits(0.75f)) + (m > di_bits(1.25f)) + (m >= di_bits(1.75f)) +
                  (m > di_bits(2.5f)) + (m >= di_bits(3.5f)) + (m > di_bits(5.0f));
  return (uint8_t)((bits >> 28 & 8u) | code);
}

static float from_e2m1(uint8_t code) {
  static const float values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                   -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
  return values[code & 15u];
}

/* The exponent byte of the smallest power of two that is not below x >= 0; NaN for what is beyond. */
static uint8_t power_of_two(float x) {
  uint32_t bits = di_bits(x) & MAGNITUDE, byte = (bits >> 23) + ((bits & 0x7FFFFFu) != 0);
  return (uint8_t)(byte > NAN_UE8M0 ? NAN_UE8M0 : byte);
}

static float from_power_of_two(uint8_t byte) {
  if (byte == NAN_UE8M0) return di_float(0x7FC00000u);
  return byte == 0 ? 0x1p-127f : di_float((uint32_t)byte << 23);
}

static float scale_of(ScaledFormat format, uint8_t byte) {
  return format == FP4_E4M3 ? from_e4m3(byte) : from_power_of_two(byte);
}

/* Not fmax, which drops a NaN. */
static float at_least(float x, float floor) { return x < floor ? floor : x; }

static uint8_t scale_byte(ScaledFormat format, float amax) {
  switch (format) {
    case FP8_UE8M0: return power_of_two(at_least(amax, 1e-4f) * (1.0f / 448.0f));
    case FP4_E4M3: return e4m3(at_least(amax, 6.0f * 0x1p-9f) * (1.0f / 6.0f)) & 0x7Fu;
    default: return power_of_two(at_least(amax, 6.0f * 0x1p-126f) * (1.0f / 6.0f));
  }
}

int64_t scaled_group(ScaledFormat format) { return format == FP4_E4M3 ? 16 : 32; }

int64_t scaled_code_bytes(ScaledFormat format) { return scaled_group(format) / (format == FP8_UE8M0 ? 1 : 2); }

uint8_t scaled_encode(ScaledFormat format, const uint32_t *values, uint8_t *codes) {
  int64_t i, group = scaled_group(format);
  uint32_t largest = 0;
  uint8_t byte;
  float scale;
  for (i = 0; i < group; ++i) largest = (values[i] & MAGNITUDE) > largest ? values[i] & MAGNITUDE : largest;
  byte = scale_byte(format, di_float(largest));
  scale = scale_of(format, byte);
  for (i = 0; i < group; ++i) {
    /* The sign of a NaN that arithmetic makes differs between machines: it is taken from the element. */
    float divided = di_float((di_bits(di_float(values[i]) / scale) & MAGNITUDE) | (values[i] & ~MAGNITUDE));
    if (format == FP8_UE8M0) codes[i] = e4m3(divided);
    else if (i % 2 == 0) codes[i / 2] = e2m1(divided);
    else codes[i / 2] = (uint8_t)(codes[i / 2] | e2m1(divided) << 4);
  }
  return byte;
}

void scaled_decode(ScaledFormat format, const uint8_t *codes, uint8_t scale, float *values) {
  int64_t i, group = scaled_group(format);
  float factor = scale_of(format, scale);
  for (i = 0; i < group; ++i)
    values[i] = factor * (format == FP8_UE8M0 ? from_e4m3(codes[i]) : from_e2m1((uint8_t)(codes[i / 2] >> 4 * (i % 2))));
}
