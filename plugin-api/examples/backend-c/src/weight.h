/* Weights of tokens, for top_p. */
#ifndef WEIGHT_H
#define WEIGHT_H
#include <stdint.h>

/* About 2^46 e^-x for x >= 0: the same bits on every machine (plugin-api/numerics/SAMPLING.md). A NaN counts as 0. */
uint64_t weight(float x);

/* total * share, rounded up, with the exact product; both above 0, share at most 1, total at most 2^63. */
uint64_t mass_needed(uint64_t total, float share);

#endif
