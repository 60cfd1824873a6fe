/* Noise for drawing tokens. */
#ifndef GUMBEL_H
#define GUMBEL_H
#include <stdint.h>

/* The Gumbel noise of the tokens 4 * block to 4 * block + 3, for the draw of the token at `position`: the same bits on every
 * machine (plugin-api/numerics/SAMPLING.md; domain 0, child 0). */
void gumbel_noise4(uint64_t seed, uint32_t position, uint32_t block, float noise[4]);

#endif
