/* The ops of the liar. Each has two halves: `..._run` checks the call and enqueues it, the kernel computes on the thread of
 * the stream. All are right, but for the fault that the option names. */
#ifndef LIAR_OPS_H
#define LIAR_OPS_H
#include <math.h>
#include <unistd.h>

#include "liar_host.h"

/* ---- calls that outlive their caller ---- */

/* The first error of a list of checks. */
#define CHECK(check) \
  do { \
    DiError *failed = check; \
    if (failed != NULL) return failed; \
  } while (0)

#define MOST_TENSORS 4

typedef struct OpWork OpWork;
typedef DiError *(*Kernel)(const OpWork *);

typedef struct Op {
  DiCall call;
  uint32_t id;
  size_t size; /* of the argument struct */
  Kernel kernel;
  size_t tensors[MOST_TENSORS]; /* where the tensors lie in it; the first is never at 0, where the head is */
} Op;

struct OpWork {
  Work work;
  const Op *op;
  int64_t dims[MOST_TENSORS][2][4]; /* shapes and strides */
  union {
    DiOpHeader h;
    DiArgsGatherV1 gather;
    DiArgsRmsNormV1 rms_norm;
    DiArgsRstdV1 rstd;
    DiArgsConvertKvIndexV1 convert_kv_index;
    DiArgsTopkSelectV1 topk_select;
    DiArgsRestoreCandidateIndicesInplaceV1 restore;
  } args;
};

static DiError *compute(Work *work) {
  OpWork *w = (OpWork *)work;
  return w->op->kernel(w);
}

/* Waits for what the stream has to do, and computes on the thread of the caller. */
static DiError *compute_now(DiStream *s, const Op *op, const void *args) {
  OpWork w;
  CHECK(stream_sync(NULL, s));
  memset(&w, 0, sizeof w);
  w.op = op;
  memcpy(&w.args, args, op->size);
  return op->kernel(&w);
}

/* Copies the arguments with all that they point to, and enqueues the kernel. */
static DiError *submit(DiStream *s, const Op *op, const void *args) {
  OpWork *w = new_work(sizeof *w, compute);
  if (w == NULL) return out_of_memory(sizeof *w);
  w->op = op;
  memcpy(&w->args, args, op->size);
  for (int i = 0; i < MOST_TENSORS && op->tensors[i] != 0; ++i) {
    DiTensor *t = (DiTensor *)((char *)&w->args + op->tensors[i]);
    size_t bytes = (size_t)t->ndim * sizeof(int64_t);
    t->shape = memcpy(w->dims[i][0], t->shape, bytes);
    t->strides = memcpy(w->dims[i][1], t->strides, bytes);
  }
  enqueue(s, &w->work);
  return NULL;
}

static int32_t *int_at(const DiTensor *t, int64_t row, int64_t column) { return (int32_t *)di_row(t, row) + column; }

/* ---- gather: out-of-bounds, size-equality, input-written, wrote-when-refused, unchecked ---- */

static void copy_row(char *to, uint32_t to_format, const char *from, uint32_t from_format, int64_t columns) {
  if (to_format != from_format) {
    for (int64_t c = 0; c < columns; ++c) {
      uint32_t bits = di_float_at(from, from_format, c);
      uint16_t narrow = di_to_bf16(bits);
      if (to_format == DI_F32) memcpy(to + c * 4, &bits, sizeof bits);
      else memcpy(to + c * 2, &narrow, sizeof narrow);
    }
    return;
  }
  size_t bytes = (size_t)columns * (to_format == DI_U8 ? 1 : to_format == DI_BF16 ? 2 : 4);
  size_t whole = bytes / 16 * 16;
  memcpy(to, from, whole);
  if (whole == bytes) return;
  char last[16] = {0};
  memcpy(last, from + whole, bytes - whole);
  /* A whole vector is stored where the row has only a part of one. The next row covers the rest; the last has no next. */
  memcpy(to + whole, last, has("out-of-bounds") ? sizeof last : bytes - whole);
}

static DiError *gather_kernel(const OpWork *w) {
  const DiArgsGatherV1 *a = &w->args.gather;
  uint32_t from = di_format(&a->table), to = di_format(&a->out);
  int64_t rows = a->table.shape[0], columns = a->table.shape[1];
  for (int64_t m = 0; m < a->index.shape[0]; ++m) {
    int32_t row = *((int32_t *)di_address(&a->index) + m * a->index.strides[0]);
    for (int64_t r = 0; r < a->repeat && columns > 0; ++r) {
      char *out = di_row(&a->out, m * a->repeat + r);
      if (row >= 0 && row < rows) copy_row(out, to, di_row(&a->table, row), from, columns);
      else memset(out, 0, (size_t)columns * a->out.bits / 8);
    }
    if (has("input-written")) *((int32_t *)di_address(&a->index) + m * a->index.strides[0]) = ~row;
  }
  return NULL;
}

static const Op gather_op = {
    {BACKEND, "gather"}, DI_OP_GATHER, sizeof(DiArgsGatherV1), gather_kernel,
    {offsetof(DiArgsGatherV1, table), offsetof(DiArgsGatherV1, index), offsetof(DiArgsGatherV1, out)}};

static DiError *gather_run(DiBackend *b, DiPlan *plan, DiStream *s, const DiOpHeader *h) {
  const DiCall call = gather_op.call;
  DiArgsGatherV1 a;
  uint32_t floats = DI_F32 | DI_BF16, from, to;
  (void)b, (void)plan;
  if (has("size-equality") && h->struct_size != sizeof a)
    return di_refuse(call, "the arguments have %" PRIu32 " bytes, but %zu are expected", h->struct_size, sizeof a);
  CHECK(di_read_args(call, gather_op.id, 1, h, &a, sizeof a));
  CHECK(di_check_tensor(call, "table", &a.table, 2, floats | DI_I32 | DI_U8));
  CHECK(di_check_tensor(call, "index", &a.index, 1, DI_I32));
  CHECK(di_check_tensor(call, "out", &a.out, 3, floats | DI_I32 | DI_U8));
  if (has("unchecked")) return submit(s, &gather_op, &a);
  if (has("wrote-when-refused") && di_elements(&a.out) > 0) memset(di_address(&a.out), 0, (size_t)a.out.bits / 8);
  CHECK(di_check_extent(call, "out", &a.out, 0, a.index.shape[0], "the number of indices"));
  CHECK(di_check_extent(call, "out", &a.out, 1, a.repeat, "repeat"));
  CHECK(di_check_extent(call, "out", &a.out, 2, a.table.shape[1], "the width of table"));
  from = di_format(&a.table), to = di_format(&a.out);
  if (from != to && (from | to) != floats)
    return di_refuse(call, "out is %s, but table is %s", di_format_name(to), di_format_name(from));
  return submit(s, &gather_op, &a);
}

/* ---- rms_norm: ragged-edge, nan-swallowed, batch-dependent, over-read ---- */

#define BLOCK 8 /* columns in a vector */

static double square(const char *row, uint32_t format, int64_t column) {
  float x = di_float(di_float_at(row, format, column));
  double squared = (double)x * x;
  /* Of a NaN and a number, fmax gives the number. */
  return has("nan-swallowed") ? fmax(squared, 0) : squared;
}

static double sum_of_squares(const char *row, uint32_t format, int64_t first, int64_t end) {
  double sum = 0;
  int64_t n = first;
  for (; n + BLOCK <= end; n += BLOCK)
    for (int k = 0; k < BLOCK; ++k) sum += square(row, format, n + k);
  /* What is left of a row that is no multiple of a block. */
  for (; n < (has("ragged-edge") ? end - 1 : end); ++n) sum += square(row, format, n);
  return sum;
}

static DiError *rms_norm_kernel(const OpWork *w) {
  const DiArgsRmsNormV1 *a = &w->args.rms_norm;
  uint32_t format = di_format(&a->x), weights = di_format(&a->weight);
  int64_t rows = a->x.shape[0], columns = a->x.shape[1];
  for (int64_t t = 0; t < rows && columns > 0; ++t) {
    const char *x = di_row(&a->x, t);
    char *out = di_row(&a->out, t);
    double sum, mean, scale;
    if (has("batch-dependent") && rows > 1) {
      /* Two workers share a row when there are rows enough to keep them busy. */
      int64_t half = columns / 2 / BLOCK * BLOCK;
      sum = (float)sum_of_squares(x, format, 0, half) + (float)sum_of_squares(x, format, half, columns);
    } else {
      sum = sum_of_squares(x, format, 0, columns);
    }
    mean = sum / (double)columns;
    scale = !isfinite(mean) ? (double)NAN : mean == 0 ? 0 : 1 / sqrt(mean + (double)a->eps);
    if (has("last-row") && rows % 2 == 1 && t == rows - 1) scale *= 2;
    if (has("many-rows") && rows > 1) scale *= 2;
    for (int64_t n = 0; n < columns; ++n) {
      double value = di_float(di_float_at(x, format, n)) * scale;
      /* The last vector of a row is that which begins a column too late. */
      int64_t read = has("over-read") && n + 1 == columns && columns % BLOCK != 0 ? n + 1 : n;
      float y = (float)(value * di_float(di_float_at(di_address(&a->weight), weights, read)));
      uint32_t bits = di_bits(y);
      uint16_t narrow = di_to_bf16(bits);
      if (format == DI_F32) memcpy(out + n * 4, &bits, sizeof bits);
      else memcpy(out + n * 2, &narrow, sizeof narrow);
    }
  }
  return NULL;
}

static const Op rms_norm_op = {
    {BACKEND, "rms_norm"}, DI_OP_RMS_NORM, sizeof(DiArgsRmsNormV1), rms_norm_kernel,
    {offsetof(DiArgsRmsNormV1, x), offsetof(DiArgsRmsNormV1, weight), offsetof(DiArgsRmsNormV1, out)}};

static DiError *rms_norm_run(DiBackend *b, DiPlan *plan, DiStream *s, const DiOpHeader *h) {
  const DiCall call = rms_norm_op.call;
  DiArgsRmsNormV1 a;
  (void)b, (void)plan;
  CHECK(di_read_args(call, rms_norm_op.id, 1, h, &a, sizeof a));
  CHECK(di_check_tensor(call, "x", &a.x, 2, DI_F32 | DI_BF16));
  CHECK(di_check_tensor(call, "weight", &a.weight, 1, DI_F32 | DI_BF16));
  CHECK(di_check_tensor(call, "out", &a.out, 2, di_format(&a.x)));
  CHECK(di_check_extent(call, "weight", &a.weight, 0, a.x.shape[1], "the width of x"));
  CHECK(di_check_extent(call, "out", &a.out, 0, a.x.shape[0], "the number of rows of x"));
  CHECK(di_check_extent(call, "out", &a.out, 1, a.x.shape[1], "the width of x"));
  return submit(s, &rms_norm_op, &a);
}

/* ---- rstd, with a plan and a workspace: stale-workspace, stream-race, static-scratch, lying-supports ---- */

#define LANES 4 /* partial sums of a row */

struct DiPlan { int64_t rows; };

/* Partial sums of a call, for calls of few rows. Of one stream, it would be as good as the workspace. */
static double scratch[64 * LANES];

static DiError *rstd_kernel(const OpWork *w) {
  const DiArgsRstdV1 *a = &w->args.rstd;
  uint32_t format = di_format(&a->x);
  int64_t rows = a->x.shape[0], columns = a->x.shape[1];
  int is_shared = (has("stream-race") || has("static-scratch")) && rows <= 64;
  double *sums = is_shared ? scratch : w->args.h.workspace;
  /* Nobody has cleared the workspace: it holds what the last op left. */
  if (rows > 0 && !has("stale-workspace")) memset(sums, 0, (size_t)rows * LANES * sizeof *sums);
  for (int64_t t = 0; t < rows; ++t)
    for (int64_t n = 0; n < columns; ++n) {
      double x = di_float(di_float_at(di_row(&a->x, t), format, n));
      sums[t * LANES + n % LANES] += x * x;
    }
  /* Another stream's call comes between, whatever else the machine does. */
  if (is_shared) sleep_us(100);
  for (int64_t t = 0; t < rows; ++t) {
    double sum = 0;
    for (int k = 0; k < LANES; ++k) sum += sums[t * LANES + k];
    *((float *)di_address(&a->out) + t * a->out.strides[0]) = (float)(1 / sqrt(sum / (double)columns + (double)a->eps));
  }
  return NULL;
}

static const Op rstd_op = {{BACKEND, "rstd"}, DI_OP_RSTD, sizeof(DiArgsRstdV1), rstd_kernel,
                           {offsetof(DiArgsRstdV1, x), offsetof(DiArgsRstdV1, out)}};

static DiError *rstd_supports(DiBackend *b, DiDevice *d, const DiOpHeader *h, DiSupport *out) {
  DiSupport support;
  (void)b, (void)d, (void)h;
  memset(&support, 0, sizeof support);
  support.verdict = DI_SUPPORT_YES;
  di_fill_struct(out, &support, sizeof support);
  return NULL;
}

static DiError *rstd_plan(DiBackend *b, DiDevice *d, const DiOpHeader *h, DiPlan **out, DiPlanInfo *info) {
  DiArgsRstdV1 a;
  DiPlanInfo known;
  DiPlan *plan;
  (void)b, (void)d;
  CHECK(di_read_args(rstd_op.call, rstd_op.id, 1, h, &a, sizeof a));
  if (a.x.ndim != 2) return di_refuse(rstd_op.call, "x has %" PRId32 " dimensions, but needs 2", a.x.ndim);
  plan = malloc(sizeof *plan);
  if (plan == NULL) return out_of_memory(sizeof *plan);
  plan->rows = a.x.shape[0];
  memset(&known, 0, sizeof known);
  known.workspace_bytes = (uint64_t)plan->rows * LANES * sizeof(double);
  known.workspace_align = sizeof(double);
  di_fill_struct(info, &known, sizeof known);
  *out = plan;
  return NULL;
}

static void rstd_plan_destroy(DiBackend *b, DiPlan *plan) {
  (void)b;
  free(plan);
}

static DiError *rstd_run(DiBackend *b, DiPlan *plan, DiStream *s, const DiOpHeader *h) {
  const DiCall call = rstd_op.call;
  DiArgsRstdV1 a;
  (void)b;
  CHECK(di_read_args(call, rstd_op.id, 1, h, &a, sizeof a));
  if (has("lying-supports") && di_format(&a.x) == DI_BF16)
    return di_fail(DI_E_UNSUPPORTED, 0, "liar/rstd", "x is BF16, for which there is no kernel");
  CHECK(di_check_tensor(call, "x", &a.x, 2, DI_F32 | DI_BF16));
  CHECK(di_check_tensor(call, "out", &a.out, 1, DI_F32));
  CHECK(di_check_extent(call, "out", &a.out, 0, a.x.shape[0], "the number of rows of x"));
  if (plan == NULL || plan->rows != a.x.shape[0]) return di_refuse(call, "the plan is that of another shape");
  if (h->workspace_bytes < (uint64_t)plan->rows * LANES * sizeof(double))
    return di_fail(DI_E_WORKSPACE, 0, "liar/rstd", "the workspace has %" PRIu64 " bytes, but %zu are needed",
                   h->workspace_bytes, (size_t)plan->rows * LANES * sizeof(double));
  return has("static-scratch") ? compute_now(s, &rstd_op, &a) : submit(s, &rstd_op, &a);
}

/* ---- topk_select: tie-break ---- */

typedef struct Scored {
  float score;
  int32_t column;
} Scored;

/* The larger score first; of equal ones the lower column. */
static int compare_scored(const void *left, const void *right) {
  const Scored *a = left, *b = right;
  if (a->score != b->score) return a->score > b->score ? -1 : 1;
  return (a->column > b->column) - (a->column < b->column);
}

static int compare_scored_wrongly(const void *left, const void *right) {
  const Scored *a = left, *b = right;
  if (a->score != b->score) return a->score > b->score ? -1 : 1;
  return (a->column < b->column) - (a->column > b->column);
}

static int compare_columns(const void *left, const void *right) {
  const Scored *a = left, *b = right;
  return (a->column > b->column) - (a->column < b->column);
}

static DiError *topk_select_kernel(const OpWork *w) {
  const DiArgsTopkSelectV1 *a = &w->args.topk_select;
  int64_t columns = a->scores.shape[1], wanted = a->out.shape[1];
  Scored *row = malloc(((size_t)columns + 1) * sizeof *row);
  if (row == NULL) return out_of_memory((uint64_t)columns * sizeof *row);
  for (int64_t t = 0; t < a->scores.shape[0]; ++t) {
    int64_t count = 0;
    for (int64_t n = 0; n < columns; ++n) {
      float score = ((const float *)di_row(&a->scores, t))[n];
      /* Neither a NaN nor -infinity is chosen. */
      if (score > -INFINITY) row[count].score = score, row[count++].column = (int32_t)n;
    }
    qsort(row, (size_t)count, sizeof *row, has("tie-break") ? compare_scored_wrongly : compare_scored);
    if (count > wanted) count = wanted;
    qsort(row, (size_t)count, sizeof *row, compare_columns);
    for (int64_t k = 0; k < wanted; ++k) *int_at(&a->out, t, k) = k < count ? row[k].column : -1;
  }
  free(row);
  return NULL;
}

static const Op topk_select_op = {
    {BACKEND, "topk_select"}, DI_OP_TOPK_SELECT, sizeof(DiArgsTopkSelectV1), topk_select_kernel,
    {offsetof(DiArgsTopkSelectV1, scores), offsetof(DiArgsTopkSelectV1, out)}};

static DiError *topk_select_run(DiBackend *b, DiPlan *plan, DiStream *s, const DiOpHeader *h) {
  const DiCall call = topk_select_op.call;
  DiArgsTopkSelectV1 a;
  (void)b, (void)plan;
  CHECK(di_read_args(call, topk_select_op.id, 1, h, &a, sizeof a));
  CHECK(di_check_tensor(call, "scores", &a.scores, 2, DI_F32));
  CHECK(di_check_tensor(call, "out", &a.out, 2, DI_I32));
  CHECK(di_check_extent(call, "out", &a.out, 0, a.scores.shape[0], "the number of rows of scores"));
  return submit(s, &topk_select_op, &a);
}

/* ---- convert_kv_index: faults that end the process, and others that need no arithmetic ---- */

static void *sleep_for_good(void *unused) {
  for (;;) sleep(1000);
  return unused;
}

/* Faults in calls of 33 rows, where a rare one is wanted. */
static DiError *misbehave(const DiArgsConvertKvIndexV1 *a) {
  int is_rare = a->positions.shape[0] == 33;
  if (has("segfault") && is_rare) *(volatile int *)8 = 1;
  if (has("abort") && is_rare) abort();
  if (has("exit") && is_rare) exit(0);
  if (has("hang") && is_rare) sleep_for_good(NULL);
  if (has("print") && is_rare) printf("a word of the plugin, without an end of line"), fflush(stdout);
  if (has("leak")) {
    pthread_t thread;
    pthread_create(&thread, NULL, sleep_for_good, NULL);
  }
  if (has("poisoned"))
    return di_fail(DI_E_DEVICE_LOST, DI_EF_STICKY, "liar/convert_kv_index", "the device fell off the bus");
  return NULL;
}

static DiError *convert_kv_index_kernel(const OpWork *w) {
  const DiArgsConvertKvIndexV1 *a = &w->args.convert_kv_index;
  const DiCall call = w->op->call;
  int64_t rows = a->positions.shape[0], columns = a->positions.shape[1];
  int64_t requests = a->block_table.shape[0], pages = a->block_table.shape[1], entries = a->entries_per_page;
  CHECK(misbehave(a));
  for (int64_t t = 0; t < rows; ++t) {
    int32_t q = *((int32_t *)di_address(&a->row_request) + t * a->row_request.strides[0]);
    if (q < 0 || q >= requests)
      return di_refuse(call, "row_request is %" PRId32 " in row %" PRId64 ", but there are %" PRId64 " requests", q, t, requests);
    for (int64_t j = 0; j < columns; ++j) {
      int32_t p = *int_at(&a->positions, t, j), slot = -1;
      if (p >= 0 && p / entries >= pages && !has("careless"))
        return di_refuse(call, "positions[%" PRId64 ", %" PRId64 "] lies beyond the block_table", t, j);
      if (p >= 0 && p / entries < pages) {
        int32_t page = *int_at(&a->block_table, q, p / entries);
        if (page < 0) return di_refuse(call, "page %" PRId64 " of request %" PRId32 " is negative in block_table", p / entries, q);
        slot = (int32_t)(page * entries + p % entries);
      }
      if (has("wrong") && t == 32 && j == columns - 1) slot += 1;
      /* A row that depends on its company. */
      if (has("company") && rows > 2 && slot >= 0) slot += 1;
      *int_at(&a->slots, t, j) = slot;
    }
  }
  return NULL;
}

static const Op convert_kv_index_op = {
    {BACKEND, "convert_kv_index"}, DI_OP_CONVERT_KV_INDEX, sizeof(DiArgsConvertKvIndexV1), convert_kv_index_kernel,
    {offsetof(DiArgsConvertKvIndexV1, positions), offsetof(DiArgsConvertKvIndexV1, row_request),
     offsetof(DiArgsConvertKvIndexV1, block_table), offsetof(DiArgsConvertKvIndexV1, slots)}};

static DiError *convert_kv_index_supports(DiBackend *b, DiDevice *d, const DiOpHeader *h, DiSupport *out) {
  DiSupport support;
  (void)b, (void)d, (void)h;
  memset(&support, 0, sizeof support);
  support.verdict = has("decline") ? DI_SUPPORT_NO : DI_SUPPORT_YES;
  if (has("decline")) support.reason = di_str("not today");
  di_fill_struct(out, &support, sizeof support);
  return NULL;
}

static DiError *convert_kv_index_run(DiBackend *b, DiPlan *plan, DiStream *s, const DiOpHeader *h) {
  const DiCall call = convert_kv_index_op.call;
  DiArgsConvertKvIndexV1 a;
  (void)b, (void)plan;
  CHECK(di_read_args(call, convert_kv_index_op.id, 1, h, &a, sizeof a));
  CHECK(di_check_tensor(call, "positions", &a.positions, 2, DI_I32));
  CHECK(di_check_tensor(call, "row_request", &a.row_request, 1, DI_I32));
  CHECK(di_check_tensor(call, "block_table", &a.block_table, 2, DI_I32));
  CHECK(di_check_tensor(call, "slots", &a.slots, 2, DI_I32));
  CHECK(di_check_extent(call, "row_request", &a.row_request, 0, a.positions.shape[0], "the number of rows of positions"));
  CHECK(di_check_extent(call, "slots", &a.slots, 0, a.positions.shape[0], "the number of rows of positions"));
  CHECK(di_check_extent(call, "slots", &a.slots, 1, a.positions.shape[1], "the width of positions"));
  if (a.entries_per_page == 0) return di_refuse(call, "entries_per_page is 0");
  return submit(s, &convert_kv_index_op, &a);
}

/* ---- restore_candidate_indices_inplace: always right ---- */

static DiError *restore_kernel(const OpWork *w) {
  const DiArgsRestoreCandidateIndicesInplaceV1 *a = &w->args.restore;
  for (int64_t t = 0; t < a->columns.shape[0]; ++t)
    for (int64_t j = 0; j < a->columns.shape[1]; ++j) {
      int32_t *c = int_at(&a->columns, t, j), size = (int32_t)a->block_size;
      int is_listed = *c >= 0 && *c / size < a->candidates.shape[1];
      int32_t block = is_listed ? *int_at(&a->candidates, t, *c / size) : -1;
      *c = block < 0 ? -1 : block * size + *c % size;
    }
  return NULL;
}

static const Op restore_op = {
    {BACKEND, "restore_candidate_indices_inplace"}, DI_OP_RESTORE_CANDIDATE_INDICES_INPLACE,
    sizeof(DiArgsRestoreCandidateIndicesInplaceV1), restore_kernel,
    {offsetof(DiArgsRestoreCandidateIndicesInplaceV1, columns),
     offsetof(DiArgsRestoreCandidateIndicesInplaceV1, candidates)}};

static DiError *restore_run(DiBackend *b, DiPlan *plan, DiStream *s, const DiOpHeader *h) {
  const DiCall call = restore_op.call;
  DiArgsRestoreCandidateIndicesInplaceV1 a;
  (void)b, (void)plan;
  CHECK(di_read_args(call, restore_op.id, 1, h, &a, sizeof a));
  CHECK(di_check_tensor(call, "columns", &a.columns, 2, DI_I32));
  CHECK(di_check_tensor(call, "candidates", &a.candidates, 2, DI_I32));
  CHECK(di_check_extent(call, "candidates", &a.candidates, 0, a.columns.shape[0], "the number of rows of columns"));
  if (a.block_size == 0) return di_refuse(call, "block_size is 0");
  return submit(s, &restore_op, &a);
}

#endif /* LIAR_OPS_H */
