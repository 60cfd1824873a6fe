/* Groups of values with one scale: E4M3 with a power of two, E2M1 with a power of two or an E4M3 scale. */
#ifndef SCALED_H
#define SCALED_H
#include <stdint.h>

/* Most values under one scale. */
#define MOST_IN_GROUP 32

typedef enum ScaledFormat { FP8_UE8M0, FP4_E4M3, FP4_UE8M0 } ScaledFormat;

/* Values under one scale: 32, 16, 32. */
int64_t scaled_group(ScaledFormat);
/* Bytes of the codes of one group; even elements of FP4 are in the low nibbles. */
int64_t scaled_code_bytes(ScaledFormat);
/* One group of values, given as bits of F32, to its codes. Returns the byte of its scale. */
uint8_t scaled_encode(ScaledFormat, const uint32_t *values, uint8_t *codes);
/* The values that a reader of the codes sees. */
void scaled_decode(ScaledFormat, const uint8_t *codes, uint8_t scale, float *values);

#endif
