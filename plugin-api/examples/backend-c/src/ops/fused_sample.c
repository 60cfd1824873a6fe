/* fused_sample: one token per row, the lowest column of the largest logit * inv_temperature + noise among those that the
 * filters leave.
 *
 * EXACT: noise and weights are integer arithmetic, and products and sums are F32 operations that round one after the other.
 * Compile with -ffp-contract=off, or a compiler may fuse them. */
#include <math.h>

#include "../backend.h"
#include "../gumbel.h"
#include "../weight.h"

typedef struct {
  float score;
  int32_t token;
} Candidate;

/* What the draw of a row depends on besides its logits. */
typedef struct {
  float inv_temperature;
  uint64_t seed;
  uint32_t position, child;
  float min_p_log;
  int32_t top_k;
  float top_p;
} Draw;

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

static int32_t argmax(const float *logits, int64_t columns) {
  int64_t v, best = 0;
  for (v = 1; v < columns; ++v)
    if (logits[v] > logits[best]) best = v;
  return (int32_t)best;
}

/* Larger scores first, equal ones by token. */
static int by_score(const void *left, const void *right) {
  const Candidate *a = (const Candidate *)left, *b = (const Candidate *)right;
  if (a->score != b->score) return a->score > b->score ? -1 : 1;
  return a->token < b->token ? -1 : 1;
}

/* How many of the sorted candidates the filters leave. */
static int64_t filter(const Candidate *list, int64_t count, const Draw *d) {
  const float top = list[0].score, bar = top + d->min_p_log;
  int64_t kept = 0;
  /* Not `score >= bar`: the bar of two infinities is a NaN and drops nothing. */
  while (kept < count && !(list[kept].score < bar)) ++kept;
  if (d->top_k > 0 && kept > d->top_k) kept = d->top_k;
  if (d->top_p < 1) {
    uint64_t total = 0, needed;
    int64_t i;
    for (i = 0; i < kept; ++i) total += weight(top - list[i].score);
    needed = mass_needed(total, d->top_p);
    for (total = 0, kept = 0; total < needed; ++kept) total += weight(top - list[kept].score);
  }
  return kept;
}

/* `list` has room for every column. */
static int32_t draw(const float *logits, int64_t columns, const Draw *d, Candidate *list) {
  int64_t v, i, count = 0;
  float best = 0;
  int32_t token = -1;
  if (!can_draw(logits, columns)) return -1;
  if (d->inv_temperature == 0) return argmax(logits, columns);
  for (v = 0; v < columns; ++v) {
    if (di_bits(logits[v]) == 0xFF800000u) continue;
    list[count].score = logits[v] * d->inv_temperature;
    list[count++].token = (int32_t)v;
  }
  if (di_bits(d->min_p_log) != 0xFF800000u || d->top_k > 0 || d->top_p < 1) {
    qsort(list, (size_t)count, sizeof *list, by_score);
    count = filter(list, count, d);
  }
  for (i = 0; i < count; ++i) {
    float value = list[i].score + gumbel_noise(d->seed, d->position, (uint32_t)list[i].token, d->child);
    if (token < 0 || value > best || (value == best && list[i].token < token)) {
      best = value;
      token = list[i].token;
    }
  }
  return token;
}

static DiError *check(DiCall call, const DiArgsFusedSampleV1 *a) {
  const struct {
    const char *name;
    const DiTensor *tensor;
    uint32_t format;
    int optional;
  } of_rows[] = {
      {"inv_temperature", &a->inv_temperature, DI_F32, 0}, {"seed", &a->seed, DI_I64, 0},
      {"position", &a->position, DI_I32, 0},               {"token", &a->token, DI_I32, 0},
      {"child", &a->child, DI_I32, 1},                     {"min_p_log", &a->min_p_log, DI_F32, 1},
      {"top_k", &a->top_k, DI_I32, 1},                     {"top_p", &a->top_p, DI_F32, 1},
  };
  DiError *error = di_check_tensor(call, "logits", &a->logits, 2, DI_F32);
  size_t i;
  for (i = 0; error == NULL && i < sizeof of_rows / sizeof *of_rows; ++i) {
    if (of_rows[i].optional && !di_present(of_rows[i].tensor)) continue;
    error = di_check_tensor(call, of_rows[i].name, of_rows[i].tensor, 1, of_rows[i].format);
    if (error == NULL)
      error = di_check_extent(call, of_rows[i].name, of_rows[i].tensor, 0, a->logits.shape[0],
                              "the number of rows of logits");
  }
  if (error != NULL) return error;
  if (a->logits.shape[1] > INT32_MAX)
    return di_refuse(call, "logits have %" PRId64 " columns, more than an I32 token can name", a->logits.shape[1]);
  if (di_present(&a->top_p) && a->logits.shape[1] > 1 << 17)
    return di_refuse(call, "top_p is given with %" PRId64 " columns of logits, but sums at most 131072 weights",
                     a->logits.shape[1]);
  return NULL;
}

static DiError *not_negative(DiCall call, const char *name, int64_t n, int32_t value) {
  if (value >= 0) return NULL;
  return di_refuse(call, "%s[%" PRId64 "] is %" PRId32 ", but must not be negative", name, n, value);
}

/* Element n of an optional tensor, or what its absence means. */
static int32_t int_of(const DiTensor *t, int64_t n, int32_t absent) {
  return di_present(t) ? ((const int32_t *)(const void *)di_address(t))[n] : absent;
}

static float float_of(const DiTensor *t, int64_t n, float absent) {
  return di_present(t) ? ((const float *)(const void *)di_address(t))[n] : absent;
}

/* The arguments of row n. */
static DiError *read_draw(DiCall call, const DiArgsFusedSampleV1 *a, int64_t n, Draw *d) {
  const int32_t position = int_of(&a->position, n, 0), child = int_of(&a->child, n, 0);
  DiError *error;
  d->inv_temperature = float_of(&a->inv_temperature, n, 0);
  d->seed = (uint64_t)((const int64_t *)(const void *)di_address(&a->seed))[n];
  d->position = (uint32_t)position;
  d->child = (uint32_t)child;
  d->min_p_log = float_of(&a->min_p_log, n, -INFINITY);
  d->top_k = int_of(&a->top_k, n, 0);
  d->top_p = float_of(&a->top_p, n, 1);
  if ((error = not_negative(call, "position", n, position)) != NULL ||
      (error = not_negative(call, "child", n, child)) != NULL || (error = not_negative(call, "top_k", n, d->top_k)) != NULL)
    return error;
  if (!(d->inv_temperature >= 0) || di_bits(d->inv_temperature) == 0x7F800000u)
    return di_refuse(call, "inv_temperature[%" PRId64 "] is %g, but must be finite and at least 0", n,
                     (double)d->inv_temperature);
  if (!(d->min_p_log <= 0))
    return di_refuse(call, "min_p_log[%" PRId64 "] is %g, but must be at most 0", n, (double)d->min_p_log);
  if (!(d->top_p > 0 && d->top_p <= 1))
    return di_refuse(call, "top_p[%" PRId64 "] is %g, but must be above 0 and at most 1", n, (double)d->top_p);
  return NULL;
}

DiError *fused_sample(DiBackend *b, DiPlan *plan, DiStream *stream, const DiOpHeader *h) {
  const DiCall call = {BACKEND, "fused_sample"};
  DiArgsFusedSampleV1 a;
  DiError *error;
  Draw d;
  Candidate *list;
  int64_t n, rows, columns;
  (void)b, (void)plan, (void)stream;
  if ((error = di_read_args(call, DI_OP_FUSED_SAMPLE, 1, h, &a, sizeof a)) != NULL || (error = check(call, &a)) != NULL)
    return error;
  rows = a.logits.shape[0];
  columns = a.logits.shape[1];
  /* Everything is refused before anything is written. */
  for (n = 0; n < rows; ++n)
    if ((error = read_draw(call, &a, n, &d)) != NULL) return error;
  if (rows == 0) return NULL;

  list = (Candidate *)malloc(((size_t)columns + 1) * sizeof *list);
  if (list == NULL) return di_refuse(call, "there is no memory for %" PRId64 " candidates", columns);
  for (n = 0; n < rows; ++n) {
    const float *row = columns > 0 ? (const float *)(const void *)di_row(&a.logits, n) : NULL;
    if ((error = read_draw(call, &a, n, &d)) == NULL)
      ((int32_t *)(void *)di_address(&a.token))[n] = draw(row, columns, &d, list);
  }
  free(list);
  return error;
}
