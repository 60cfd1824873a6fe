/* A layer for tests: passes every call on to the backend that it wraps, counts, and by option adds one fault:
 *   fault=fill     a fill is refused, in the layer's name
 *   fault=gather   a gather gives zeros
 *   fault=start    the layer declines to start
 *   mute=1         no shutdown function: nobody could end the backend
 * `tag=TEXT` changes nothing and tells two sets of options apart. Built with other switches:
 *   NAME           name of the layer
 *   NOT_A_LAYER    the flag that says what it is is missing */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "deepinfer_plugin.h"

#ifndef NAME
#define NAME "c-layer"
#endif
#define TEXT(s) {(const uint8_t *)(s), sizeof(s) - 1}

/* One for each backend that is wrapped. */
struct DiBackend {
  const DiBackendApi *next;
  DiBackendApi api;
  DiRuntimeApi runtime;
  DiOpEntry *ops;
  char fault[16];
};

static int entries_called, wraps, fills, shutdowns;
int probe_entries_called(void);
int probe_wraps(void);
int probe_fills(void);
int probe_shutdowns(void);
int probe_entries_called(void) { return entries_called; }
int probe_wraps(void) { return wraps; }
int probe_fills(void) { return fills; }
int probe_shutdowns(void) { return shutdowns; }

static void release(DiError *error) { free(error); }

static DiError *fail(int32_t code, const char *message, const char *origin) {
  DiError *error = calloc(1, sizeof *error);
  error->struct_size = sizeof *error;
  error->code = code;
  error->message.ptr = (const uint8_t *)message;
  error->message.len = strlen(message);
  error->origin.ptr = (const uint8_t *)origin;
  error->origin.len = strlen(origin);
  error->release = release;
  return error;
}

/* ---- the runtime table: every function gets the layer's own backend and passes on the wrapped one ---- */
#define NEXT(b) (b)->next->backend
#define CALL(b, f) (b)->next->runtime->f
static DiError *device_count(DiBackend *b, uint32_t *out) { return CALL(b, device_count)(NEXT(b), out); }
static DiError *device_info(DiBackend *b, uint32_t i, DiDeviceInfo *out) { return CALL(b, device_info)(NEXT(b), i, out); }
static DiError *device_open(DiBackend *b, uint32_t i, const DiExt *ext, DiDevice **out) {
  return CALL(b, device_open)(NEXT(b), i, ext, out);
}
static void device_close(DiBackend *b, DiDevice *d) { CALL(b, device_close)(NEXT(b), d); }
static DiError *mem_info(DiBackend *b, DiDevice *d, uint32_t space, uint64_t *free_b, uint64_t *total_b) {
  return CALL(b, device_mem_info)(NEXT(b), d, space, free_b, total_b);
}
static DiError *alloc(DiBackend *b, DiDevice *d, uint32_t space, uint64_t bytes, uint64_t align, DiBuffer **out, void **addr) {
  return CALL(b, alloc)(NEXT(b), d, space, bytes, align, out, addr);
}
static void free_buffer(DiBackend *b, DiBuffer *buffer) { CALL(b, free_)(NEXT(b), buffer); }
static DiError *stream_create(DiBackend *b, DiDevice *d, int32_t priority, uint32_t flags, DiStream **out) {
  return CALL(b, stream_create)(NEXT(b), d, priority, flags, out);
}
static void stream_destroy(DiBackend *b, DiStream *s) { CALL(b, stream_destroy)(NEXT(b), s); }
static DiError *stream_sync(DiBackend *b, DiStream *s) { return CALL(b, stream_sync)(NEXT(b), s); }
static DiError *event_create(DiBackend *b, DiDevice *d, uint32_t flags, DiEvent **out) {
  return CALL(b, event_create)(NEXT(b), d, flags, out);
}
static void event_destroy(DiBackend *b, DiEvent *e) { CALL(b, event_destroy)(NEXT(b), e); }
static DiError *event_record(DiBackend *b, DiEvent *e, DiStream *s) { return CALL(b, event_record)(NEXT(b), e, s); }
static DiError *event_wait(DiBackend *b, DiStream *s, DiEvent *e) { return CALL(b, event_wait)(NEXT(b), s, e); }
static DiError *event_query(DiBackend *b, DiEvent *e, int32_t *done) { return CALL(b, event_query)(NEXT(b), e, done); }
static DiError *event_sync(DiBackend *b, DiEvent *e) { return CALL(b, event_sync)(NEXT(b), e); }
static DiError *copy(DiBackend *b, DiStream *s, void *dst, const void *src, uint64_t bytes, uint32_t kind) {
  return CALL(b, copy)(NEXT(b), s, dst, src, bytes, kind);
}
static DiError *fill(DiBackend *b, DiStream *s, void *dst, uint32_t pattern, uint32_t pattern_bytes, uint64_t count) {
  ++fills;
  if (strcmp(b->fault, "fill") == 0) return fail(DI_E_INTERNAL, "the fill was not to my taste", NAME "/fill");
  return CALL(b, fill)(NEXT(b), s, dst, pattern, pattern_bytes, count);
}

/* ---- ops: the wrapped functions get the layer's backend, so that all of them need a detour ---- */
static const DiOpEntry *wrapped_entry(const DiBackendApi *api, uint32_t op, uint32_t version) {
  for (size_t i = 0; i < api->n_ops; ++i) {
    const DiOpEntry *entry = (const DiOpEntry *)((const char *)api->ops + i * api->op_stride);
    if (entry->op_id == op && entry->op_version == version) return entry;
  }
  return NULL;
}

/* Of several implementations the first in the table: the layer lists each op once, without plans. */
static DiError *run(DiBackend *b, DiPlan *plan, DiStream *s, const DiOpHeader *h) {
  const DiOpEntry *entry = wrapped_entry(b->next, h->op_id, h->op_version);
  DiError *error = entry->run(NEXT(b), plan, s, h);
  if (error == NULL && h->op_id == DI_OP_GATHER && strcmp(b->fault, "gather") == 0) {
    DiArgsGatherV1 *a = (DiArgsGatherV1 *)(uintptr_t)h;
    memset((char *)a->out.data + a->out.byte_offset, 0, a->out.nbytes);
  }
  return error;
}

static const void *table(DiBackend *b, uint32_t id) { return b->next->table == NULL ? NULL : b->next->table(NEXT(b), id); }

static DiError *shutdown(DiBackend *b) {
  ++shutdowns;
  return b->next->shutdown == NULL ? NULL : b->next->shutdown(NEXT(b));
}

static int has_option(const DiEntryRequest *request, const char *pair) {
  size_t length = strlen(pair), at = 0;
  const char *text = (const char *)request->options.ptr;
  for (size_t end = 0; end <= request->options.len; ++end)
    if (end == request->options.len || text[end] == '&') {
      if (end - at == length && memcmp(text + at, pair, length) == 0) return 1;
      at = end + 1;
    }
  return 0;
}

int32_t deepinfer_backend_entry(const DiEntryRequest *request, DiEntryReply *reply) {
  static const DiStr name = TEXT(NAME), version = TEXT("0.9"), build = TEXT("C11");
  static const char *const faults[] = {"fill", "gather"};
  DiBackend *b;
  ++entries_called;
  reply->major = DI_ABI_MAJOR;
  reply->minor = DI_ABI_MINOR;
  reply->name = name;
  reply->version = version;
  reply->build = build;
#ifndef NOT_A_LAYER
  reply->flags = DI_RF_IS_LAYER;
#endif
  if (request->next == NULL || has_option(request, "fault=start")) {
    reply->error = fail(DI_E_UNSUPPORTED, "not over this", NAME);
    return DI_E_UNSUPPORTED;
  }
  b = calloc(1, sizeof *b);
  b->next = request->next;
  for (size_t i = 0; i < sizeof faults / sizeof *faults; ++i) {
    char pair[32];
    snprintf(pair, sizeof pair, "fault=%s", faults[i]);
    if (has_option(request, pair)) strcpy(b->fault, faults[i]);
  }
  b->runtime = (DiRuntimeApi){.struct_size = sizeof(DiRuntimeApi), .device_count = device_count,
      .device_info = device_info, .device_open = device_open, .device_close = device_close, .device_mem_info = mem_info,
      .alloc = alloc, .free_ = free_buffer, .stream_create = stream_create, .stream_destroy = stream_destroy,
      .stream_sync = stream_sync, .event_create = event_create, .event_destroy = event_destroy,
      .event_record = event_record, .event_wait = event_wait, .event_query = event_query, .event_sync = event_sync,
      .copy = copy, .fill = fill};
  b->ops = calloc(b->next->n_ops + 1, sizeof *b->ops);
  for (size_t i = 0; i < b->next->n_ops; ++i) {
    const DiOpEntry *entry = (const DiOpEntry *)((const char *)b->next->ops + i * b->next->op_stride);
    if (entry != wrapped_entry(b->next, entry->op_id, entry->op_version) || entry->plan != NULL) continue;
    b->ops[b->api.n_ops++] = (DiOpEntry){.struct_size = sizeof(DiOpEntry), .op_id = entry->op_id,
        .op_version = entry->op_version, .flags = entry->flags, .name = entry->name, .impl_name = entry->impl_name,
        .priority = entry->priority, .run = run};
  }
  b->api.struct_size = sizeof b->api;
  b->api.backend = b;
  b->api.runtime = &b->runtime;
  b->api.ops = b->ops;
  b->api.op_stride = sizeof *b->ops;
  b->api.table = table;
  b->api.shutdown = has_option(request, "mute=1") ? NULL : shutdown;
  ++wraps;
  reply->api = &b->api;
  return 0;
}
