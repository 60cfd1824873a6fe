/* Noise for drawing tokens. */
#ifndef GUMBEL_H
#define GUMBEL_H
#include <stdint.h>

/* The Gumbel noise of a token for the draw at `position`: the same bits on every machine (plugin-api/numerics/SAMPLING.md;
 * domain 0). */
float gumbel_noise(uint64_t seed, uint32_t position, uint32_t token, uint32_t child);

#endif
