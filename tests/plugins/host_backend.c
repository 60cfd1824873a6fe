/* A complete small backend in C, for tests of the loader: two devices in host memory, `gather` called directly and `rstd`
 * through `supports` and `plan`. Built several times with different switches:
 *   NAME     name of the backend
 *   DEVICES  how many devices it claims to have
 *   OLDER    tables end before their optional fields; junk lies where a newer core would look
 *   NEWER    tables and entries are longer than this core knows
 *   BREAK_*  one rule is broken
 *   OPEN_FAILS  no device opens: the code of the refusal
 * It counts its live objects and every breach of the order in which they must go; `probe_*` tell the test. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "deepinfer_plugin.h"

#ifndef NAME
#define NAME "c-host"
#endif
#ifndef DEVICES
#define DEVICES 2
#endif
#define TEXT(s) {(const uint8_t *)(s), sizeof(s) - 1}

struct DiBackend { int unused; };
struct DiDevice { int buffers, streams, events, plans; };
struct DiStream { DiDevice *device; };
struct DiEvent { DiDevice *device; };
struct DiBuffer { DiDevice *device; void *memory; };
struct DiPlan { DiDevice *device; uint64_t rows; };

static int live_devices, live_errors, breaches, plans_made, calls_to_entry;
int probe_live_devices(void);
int probe_live_errors(void);
int probe_breaches(void);
int probe_plans_made(void);
int probe_calls_to_entry(void);
int probe_live_devices(void) { return live_devices; }
int probe_live_errors(void) { return live_errors; }
int probe_breaches(void) { return breaches; }
int probe_plans_made(void) { return plans_made; }
int probe_calls_to_entry(void) { return calls_to_entry; }

/* ---- errors ---- */
static void release(DiError *error) {
  --live_errors;
  free(error);
}

static DiError *fail(int32_t code, uint32_t flags, const char *message) {
  DiError *error = calloc(1, sizeof *error);
  error->struct_size = sizeof *error;
  error->code = code;
  error->flags = flags;
  error->message.ptr = (const uint8_t *)message;
  error->message.len = strlen(message);
  error->release = release;
  ++live_errors;
  return error;
}

/* ---- devices, memory, streams, events ---- */
static DiError *device_count(DiBackend *b, uint32_t *out) {
  (void)b;
#ifdef NO_DEVICE
  (void)out;
  return fail(DI_E_UNSUPPORTED, 0, "the cable is not plugged in");
#else
  *out = DEVICES;
  return NULL;
#endif
}

static DiError *device_info(DiBackend *b, uint32_t i, DiDeviceInfo *out) {
  static const DiStr name = TEXT("host memory"), arch = TEXT("c11");
  (void)b;
  if (i >= 2) return fail(DI_E_INVALID, 0, "there are two devices, 0 and 1");
  out->device_type = DI_DEVICE_CPU;
  out->ordinal = (int32_t)i;
  out->name = name;
  out->arch = arch;
  out->total_bytes = 1u << 30;
  out->numa_node = -1;
  return NULL;
}

static DiError *device_open(DiBackend *b, uint32_t i, const DiExt *ext, DiDevice **out) {
  (void)b, (void)ext;
  if (i >= 2) return fail(DI_E_INVALID, 0, "there are two devices, 0 and 1");
#ifdef OPEN_FAILS
  return fail(OPEN_FAILS, 0, "the clock is set to five");
#endif
  *out = calloc(1, sizeof **out);
  ++live_devices;
  return NULL;
}

static void device_close(DiBackend *b, DiDevice *d) {
  (void)b;
  breaches += d->buffers != 0 || d->streams != 0 || d->events != 0 || d->plans != 0;
  --live_devices;
  free(d);
}

static DiError *mem_info(DiBackend *b, DiDevice *d, uint32_t space, uint64_t *free_b, uint64_t *total_b) {
  (void)b, (void)d, (void)space;
  *free_b = 1u << 29;
  *total_b = 1u << 30;
  return NULL;
}

static DiError *alloc(DiBackend *b, DiDevice *d, uint32_t space, uint64_t bytes, uint64_t align, DiBuffer **out, void **addr) {
  (void)b, (void)space;
  if (bytes > 1u << 30) return fail(DI_E_OOM, DI_EF_RETRYABLE, "the toy is full");
  *out = malloc(sizeof **out);
  (*out)->device = d;
  (*out)->memory = aligned_alloc(align, (bytes + align) / align * align);
  *addr = (*out)->memory;
  ++d->buffers;
  return NULL;
}

static void free_buffer(DiBackend *b, DiBuffer *buffer) {
  (void)b;
  --buffer->device->buffers;
  free(buffer->memory);
  free(buffer);
}

static DiError *stream_create(DiBackend *b, DiDevice *d, int32_t priority, uint32_t flags, DiStream **out) {
  (void)b, (void)priority, (void)flags;
  *out = malloc(sizeof **out);
  (*out)->device = d;
  ++d->streams;
  return NULL;
}

static void stream_destroy(DiBackend *b, DiStream *s) {
  (void)b;
  --s->device->streams;
  free(s);
}

static DiError *stream_sync(DiBackend *b, DiStream *s) {
  (void)b, (void)s;
  return NULL;
}

static DiError *event_create(DiBackend *b, DiDevice *d, uint32_t flags, DiEvent **out) {
  (void)b, (void)flags;
  *out = malloc(sizeof **out);
  (*out)->device = d;
  ++d->events;
  return NULL;
}

static void event_destroy(DiBackend *b, DiEvent *e) {
  (void)b;
  --e->device->events;
  free(e);
}

static DiError *event_record(DiBackend *b, DiEvent *e, DiStream *s) {
  (void)b, (void)e, (void)s;
  return NULL;
}

static DiError *event_wait(DiBackend *b, DiStream *s, DiEvent *e) {
  (void)b, (void)s, (void)e;
  return NULL;
}

static DiError *event_query(DiBackend *b, DiEvent *e, int32_t *done) {
  (void)b, (void)e;
  *done = 1;
  return NULL;
}

static DiError *event_sync(DiBackend *b, DiEvent *e) {
  (void)b, (void)e;
  return NULL;
}

static DiError *copy(DiBackend *b, DiStream *s, void *dst, const void *src, uint64_t bytes, uint32_t kind) {
  (void)b, (void)s, (void)kind;
  memcpy(dst, src, bytes);
  return NULL;
}

static DiError *fill(DiBackend *b, DiStream *s, void *dst, uint32_t pattern, uint32_t pattern_bytes, uint64_t count) {
  (void)b, (void)s;
  for (uint64_t i = 0; i < count; ++i) memcpy((char *)dst + i * pattern_bytes, &pattern, pattern_bytes);
  return NULL;
}

/* ---- ops ---- */
/* A negative first index stands for a fault of the device after which it is lost. */
static DiError *gather(DiBackend *b, DiPlan *plan, DiStream *s, const DiOpHeader *h) {
  const DiArgsGatherV1 *a = (const DiArgsGatherV1 *)h;
  const float *table = a->table.data;
  const int32_t *index = a->index.data;
  float *out = a->out.data;
  int64_t columns = a->table.shape[1];
  (void)b, (void)s;
  breaches += plan != NULL;
  if (a->index.shape[0] > 0 && index[0] < 0) return fail(DI_E_INTERNAL, DI_EF_STICKY, "the toy fell off the table");
  for (int64_t m = 0; m < a->index.shape[0]; ++m)
    for (uint32_t r = 0; r < a->repeat; ++r, out += columns)
      memcpy(out, table + index[m] * columns, (size_t)columns * sizeof *out);
  return NULL;
}

/* This form of rstd takes rows of at most 8 values, and wants scratch memory. */
static DiError *rstd_supports(DiBackend *b, DiDevice *d, const DiOpHeader *h, DiSupport *out) {
  static const DiStr reason = TEXT("rows are longer than 8");
  const DiArgsRstdV1 *a = (const DiArgsRstdV1 *)h;
  (void)b, (void)d;
  out->verdict = a->x.shape[1] <= 8 ? DI_SUPPORT_YES : DI_SUPPORT_NO;
  out->reason = reason;
  return NULL;
}

static DiError *rstd_plan(DiBackend *b, DiDevice *d, const DiOpHeader *h, DiPlan **out, DiPlanInfo *info) {
  const DiArgsRstdV1 *a = (const DiArgsRstdV1 *)h;
  (void)b;
  *out = malloc(sizeof **out);
  (*out)->device = d;
  (*out)->rows = (uint64_t)a->x.shape[0];
  info->workspace_bytes = (*out)->rows * sizeof(double) + 1;
  info->workspace_align = 512;
  ++d->plans;
  ++plans_made;
  return NULL;
}

static void rstd_plan_destroy(DiBackend *b, DiPlan *plan) {
  (void)b;
  --plan->device->plans;
  free(plan);
}

static DiError *rstd(DiBackend *b, DiPlan *plan, DiStream *s, const DiOpHeader *h) {
  const DiArgsRstdV1 *a = (const DiArgsRstdV1 *)h;
  const float *x = a->x.data;
  double *sums = h->workspace;
  (void)b, (void)s;
  if (plan == NULL || plan->rows != (uint64_t)a->x.shape[0]) return fail(DI_E_INVALID, 0, "another call's plan");
  if (h->workspace_bytes < plan->rows * sizeof(double) + 1 || (uintptr_t)sums % 512 != 0)
    return fail(DI_E_WORKSPACE, 0, "the workspace is too small or misaligned");
  for (int64_t t = 0; t < a->x.shape[0]; ++t) {
    sums[t] = 0;
    for (int64_t n = 0; n < a->x.shape[1]; ++n) sums[t] += (double)x[t * a->x.shape[1] + n] * x[t * a->x.shape[1] + n];
    ((float *)a->out.data)[t] = (float)(1 / sqrt(sums[t] / (double)a->x.shape[1] + (double)a->eps));
  }
  return NULL;
}

/* The second choice for rstd: any length, only one value for all rows so that the test can tell it apart. */
static DiError *rstd_any(DiBackend *b, DiPlan *plan, DiStream *s, const DiOpHeader *h) {
  const DiArgsRstdV1 *a = (const DiArgsRstdV1 *)h;
  (void)b, (void)plan, (void)s;
  for (int64_t t = 0; t < a->x.shape[0]; ++t) ((float *)a->out.data)[t] = -1;
  return NULL;
}

/* ---- tables, in the size of the switches ---- */
typedef struct { DiOpEntry known; uint64_t added[3]; } Entry;
typedef struct { DiBackendApi known; uint64_t added[3]; } Api;
typedef struct { DiRuntimeApi known; uint64_t added[3]; } Runtime;

#ifdef NEWER
#define LONGER (uint32_t)(3 * sizeof(uint64_t))
#else
#define LONGER 0u
#endif

/* Named fields: what a newer header appends stays NULL. */
static Runtime runtime = {
    .known = {.struct_size = sizeof(DiRuntimeApi) + LONGER, .device_count = device_count, .device_info = device_info,
              .device_open = device_open, .device_close = device_close, .device_mem_info = mem_info, .alloc = alloc,
              .free_ = free_buffer, .stream_create = stream_create, .stream_destroy = stream_destroy,
              .stream_sync = stream_sync, .event_create = event_create, .event_destroy = event_destroy,
              .event_record = event_record, .event_wait = event_wait, .event_query = event_query,
              .event_sync = event_sync, .copy = copy, .fill = fill},
    .added = {~0ull, ~0ull, ~0ull}};

#define ENTRY_SIZE (sizeof(DiOpEntry) + LONGER)
static Entry entries[] = {
    {{ENTRY_SIZE, DI_OP_GATHER, 1, 0, TEXT("gather"), TEXT("plain"), 0, 0, NULL, NULL, gather, NULL}, {~0ull, ~0ull, ~0ull}},
    {{ENTRY_SIZE, DI_OP_RSTD, 1, 0, TEXT("rstd"), TEXT("any"), -5, 0, NULL, NULL, rstd_any, NULL}, {~0ull, ~0ull, ~0ull}},
    {{ENTRY_SIZE, DI_OP_RSTD, 1, 0, TEXT("rstd"), TEXT("short"), 5, 0, rstd_supports, rstd_plan, rstd, rstd_plan_destroy},
     {~0ull, ~0ull, ~0ull}},
    /* Of a version that the core does not call. */
    {{ENTRY_SIZE, DI_OP_RMS_NORM, 77, DI_PF_CONCURRENT, TEXT("rms_norm"), TEXT("future"), 0, 0, NULL, NULL, gather, NULL},
     {~0ull, ~0ull, ~0ull}},
};

static DiBackend backend;
static Api api = {{sizeof(DiBackendApi) + LONGER, 0, &backend, &runtime.known, &entries[0].known,
                   sizeof entries / sizeof *entries, sizeof *entries, NULL, NULL},
                  {~0ull, ~0ull, ~0ull}};

int32_t deepinfer_backend_entry(const DiEntryRequest *request, DiEntryReply *reply) {
  static const DiStr name = TEXT(NAME), version = TEXT("1.2.3"), build = TEXT("C11");
  ++calls_to_entry;
  reply->major = DI_ABI_MAJOR;
  reply->minor = DI_ABI_MINOR;
  reply->name = name;
  reply->version = version;
  reply->build = build;
  reply->flags = DI_RF_CONTAINS_PANICS;
  reply->api = &api.known;
  if (request->options.len != 0 && memcmp(request->options.ptr, "mode=", 5) != 0) {
    reply->error = fail(DI_E_INVALID, 0, "the only option is mode");
    return DI_E_INVALID;
  }
#ifdef OLDER
  /* Junk where fields of a newer minor lie: it must not be read. */
  api.known.struct_size = offsetof(DiBackendApi, table);
  memset(&api.known.table, 0xAB, sizeof api.known - offsetof(DiBackendApi, table));
  api.known.n_ops = 1;
  entries[0].known.struct_size = offsetof(DiOpEntry, plan_destroy);
  memset(&entries[0].known.plan_destroy, 0xAB, sizeof entries[0].known.plan_destroy);
#endif
#if defined BREAK_NULL_RUNTIME
  api.known.runtime = NULL;
#elif defined BREAK_NULL_API
  reply->api = NULL;
#elif defined BREAK_NULL_OPS
  api.known.ops = NULL;
#elif defined BREAK_STRIDE
  api.known.op_stride = 16;
#elif defined BREAK_SHORT_RUNTIME
  runtime.known.struct_size = offsetof(DiRuntimeApi, copy);
#elif defined BREAK_NO_RUN
  entries[0].known.run = NULL;
#elif defined BREAK_NAME
  reply->name.ptr = (const uint8_t *)"\xFF\xFE";
  reply->name.len = 2;
#elif defined BREAK_MAJOR
  reply->major = 9;
#elif defined BREAK_MINOR
  reply->min_core_minor = 40;
#elif defined BREAK_SILENT
  reply->api = NULL;
  return DI_E_INTERNAL;
#endif
  return 0;
}
