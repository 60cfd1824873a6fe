/* fused_sample: one token per row, the lowest column of the largest logit * inv_temperature + noise.
 *
 * EXACT: the noise is integer arithmetic, and product and sum are F32 operations that round one after the other. Compile
 * with -ffp-contract=off, or a compiler may fuse them. */
#include "../backend.h"
#include "../gumbel.h"

/* Whether a row has a finite logit and neither NaN nor +infinity. */
static int can_draw(const float *logits, int64_t columns) {
  const uint32_t infinity = 0x7F800000u;
  int is_finite = 0;
  int64_t v;
  for (v = 0; v < columns; ++v) {
    uint32_t bits = di_bits(logits[v]);
    if ((bits & 0x7FFFFFFFu) > infinity || bits == infinity) return 0;
    is_finite |= (bits & 0x7FFFFFFFu) < infinity;
  }
  return is_finite;
}

static int32_t draw(const float *logits, int64_t columns, float inv_temperature, uint64_t seed, uint32_t position) {
  float best = 0, noise[4];
  int32_t token = -1;
  int64_t v;
  if (!can_draw(logits, columns)) return -1;
  for (v = 0; v < columns; ++v) {
    float score = logits[v];
    if (inv_temperature != 0) {
      if (v % 4 == 0) gumbel_noise4(seed, position, (uint32_t)(v / 4), noise);
      score *= inv_temperature;
      score += noise[v % 4];
    }
    /* Only a strictly larger score replaces an earlier one: ties go to the lowest column. */
    if (token < 0 || score > best) {
      best = score;
      token = (int32_t)v;
    }
  }
  return token;
}

DiError *fused_sample(DiBackend *b, DiPlan *plan, DiStream *stream, const DiOpHeader *h) {
  const DiCall call = {BACKEND, "fused_sample"};
  DiArgsFusedSampleV1 a;
  DiError *error;
  const float *inv_temperature;
  const int64_t *seed;
  const int32_t *position;
  int32_t *token;
  int64_t n, rows, columns;
  (void)b, (void)plan, (void)stream;
  if ((error = di_read_args(call, DI_OP_FUSED_SAMPLE, 1, h, &a, sizeof a)) != NULL ||
      (error = di_check_tensor(call, "logits", &a.logits, 2, DI_F32)) != NULL ||
      (error = di_check_tensor(call, "inv_temperature", &a.inv_temperature, 1, DI_F32)) != NULL ||
      (error = di_check_tensor(call, "seed", &a.seed, 1, DI_I64)) != NULL ||
      (error = di_check_tensor(call, "position", &a.position, 1, DI_I32)) != NULL ||
      (error = di_check_tensor(call, "token", &a.token, 1, DI_I32)) != NULL)
    return error;
  rows = a.logits.shape[0];
  columns = a.logits.shape[1];
  if ((error = di_check_extent(call, "inv_temperature", &a.inv_temperature, 0, rows, "the number of rows of logits")) != NULL ||
      (error = di_check_extent(call, "seed", &a.seed, 0, rows, "the number of rows of logits")) != NULL ||
      (error = di_check_extent(call, "position", &a.position, 0, rows, "the number of rows of logits")) != NULL ||
      (error = di_check_extent(call, "token", &a.token, 0, rows, "the number of rows of logits")) != NULL)
    return error;
  if (columns > INT32_MAX) return di_refuse(call, "logits have %" PRId64 " columns, more than an I32 token can name", columns);

  inv_temperature = (const float *)(const void *)di_address(&a.inv_temperature);
  seed = (const int64_t *)(const void *)di_address(&a.seed);
  position = (const int32_t *)(const void *)di_address(&a.position);
  token = (int32_t *)(void *)di_address(&a.token);
  for (n = 0; n < rows; ++n) {
    if (position[n] < 0)
      return di_refuse(call, "position[%" PRId64 "] is %" PRId32 ", but must not be negative", n, position[n]);
    if (!(inv_temperature[n] >= 0) || di_bits(inv_temperature[n]) == 0x7F800000u)
      return di_refuse(call, "inv_temperature[%" PRId64 "] is %g, but must be finite and at least 0", n,
                       (double)inv_temperature[n]);
  }
  for (n = 0; n < rows; ++n) {
    const float *row = columns > 0 ? (const float *)(const void *)di_row(&a.logits, n) : NULL;
    token[n] = draw(row, columns, inv_temperature[n], (uint64_t)seed[n], (uint32_t)position[n]);
  }
  return NULL;
}
