/* The device of the liar: host memory, and one thread per stream that does the stream's work in order, late and at its own
 * pace. What an author needs of a device that computes beside the caller is all here: work that outlives the call, events
 * between streams, faults that surface at the next wait.
 *
 * With fault=event-wait, a stream does not wait for the event that it is told to wait for; unaligned and memory-leak are of
 * its memory. */
#ifndef LIAR_HOST_H
#define LIAR_HOST_H
#include <pthread.h>
#include <time.h>

#include "deepinfer_plugin_helpers.h"

#define BACKEND "liar"

static const DiCall device_call = {BACKEND, "device"};

/* Whether this is the fault that the option names. */
static int has(const char *fault);

struct DiBackend { char unused; };
struct DiDevice { char unused; };
struct DiBuffer { void *memory; };

static DiError *out_of_memory(uint64_t bytes) {
  return di_fail(DI_E_OOM, DI_EF_RETRYABLE, BACKEND, "%" PRIu64 " bytes of host memory are not available", bytes);
}

/* ---- streams ---- */

/* A piece of work. A larger struct begins with it, and holds whatever the work needs: the caller's arguments are gone when
 * it runs. */
typedef struct Work {
  struct Work *next;
  DiError *(*run)(struct Work *);
  void (*forget)(struct Work *); /* gives back what it holds besides its own memory; may be NULL */
} Work;

struct DiStream {
  pthread_t worker;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  Work *first, **end;
  int is_busy, is_ending;
  DiError *fault;   /* the first since the last wait */
  uint32_t random;
};

static void sleep_us(long us) {
  struct timespec time = {us / 1000000, us % 1000000 * 1000};
  nanosleep(&time, NULL);
}

/* Now and then the device is slow. */
static void dawdle(DiStream *s) {
  s->random ^= s->random << 13, s->random ^= s->random >> 17, s->random ^= s->random << 5;
  if (s->random % 16 == 0) sleep_us(s->random / 16 % 200);
}

static void keep_first(DiStream *s, DiError *error) {
  if (error == NULL) return;
  if (s->fault == NULL) s->fault = error;
  else error->release(error);
}

static void *work_off(void *argument) {
  DiStream *s = argument;
  pthread_mutex_lock(&s->lock);
  for (;;) {
    Work *work;
    DiError *error;
    while (s->first == NULL && !s->is_ending) pthread_cond_wait(&s->changed, &s->lock);
    work = s->first;
    if (work == NULL) break; /* The stream ends when nothing is left to do. */
    s->first = work->next;
    if (s->first == NULL) s->end = &s->first;
    s->is_busy = 1;
    pthread_mutex_unlock(&s->lock);
    dawdle(s);
    error = work->run(work);
    if (work->forget != NULL) work->forget(work);
    free(work);
    pthread_mutex_lock(&s->lock);
    s->is_busy = 0;
    keep_first(s, error);
    pthread_cond_broadcast(&s->changed);
  }
  pthread_mutex_unlock(&s->lock);
  return NULL;
}

/* Work of `bytes` bytes, all zero but for its functions; NULL without memory. */
static void *new_work(size_t bytes, DiError *(*run)(Work *)) {
  Work *work = calloc(1, bytes);
  if (work != NULL) work->run = run;
  return work;
}

static void enqueue(DiStream *s, Work *work) {
  pthread_mutex_lock(&s->lock);
  *s->end = work;
  s->end = &work->next;
  pthread_cond_broadcast(&s->changed);
  pthread_mutex_unlock(&s->lock);
}

static DiError *stream_create(DiBackend *b, DiDevice *d, int32_t priority, uint32_t flags, DiStream **out) {
  static uint32_t streams;
  DiStream *s = calloc(1, sizeof *s);
  (void)b, (void)d, (void)priority, (void)flags;
  if (s == NULL) return out_of_memory(sizeof *s);
  pthread_mutex_init(&s->lock, NULL);
  pthread_cond_init(&s->changed, NULL);
  s->end = &s->first;
  s->random = 2463534242u + 977u * __atomic_fetch_add(&streams, 1, __ATOMIC_RELAXED);
  if (pthread_create(&s->worker, NULL, work_off, s) != 0) {
    free(s);
    return di_fail(DI_E_OOM, 0, BACKEND, "no thread can be started for a stream");
  }
  *out = s;
  return NULL;
}

/* What is enqueued is still done. */
static void stream_destroy(DiBackend *b, DiStream *s) {
  (void)b;
  pthread_mutex_lock(&s->lock);
  s->is_ending = 1;
  pthread_cond_broadcast(&s->changed);
  pthread_mutex_unlock(&s->lock);
  pthread_join(s->worker, NULL);
  if (s->fault != NULL) s->fault->release(s->fault);
  pthread_cond_destroy(&s->changed);
  pthread_mutex_destroy(&s->lock);
  free(s);
}

static DiError *stream_sync(DiBackend *b, DiStream *s) {
  DiError *fault;
  (void)b;
  pthread_mutex_lock(&s->lock);
  while (s->first != NULL || s->is_busy) pthread_cond_wait(&s->changed, &s->lock);
  fault = s->fault;
  s->fault = NULL;
  pthread_mutex_unlock(&s->lock);
  return fault;
}

/* ---- events ---- */

/* Records are counted: a wait is for those that were made before it. Work may name an event that is destroyed meanwhile,
 * so that the last user frees it. */
struct DiEvent {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  uint64_t recorded, done;
  int users;
};

typedef struct EventWork {
  Work work;
  DiEvent *event;
  uint64_t number;
} EventWork;

static DiError *event_create(DiBackend *b, DiDevice *d, uint32_t flags, DiEvent **out) {
  DiEvent *e = calloc(1, sizeof *e);
  (void)b, (void)d, (void)flags;
  if (e == NULL) return out_of_memory(sizeof *e);
  pthread_mutex_init(&e->lock, NULL);
  pthread_cond_init(&e->changed, NULL);
  e->users = 1;
  *out = e;
  return NULL;
}

static void leave_event(DiEvent *e) {
  int users;
  pthread_mutex_lock(&e->lock);
  users = --e->users;
  pthread_mutex_unlock(&e->lock);
  if (users > 0) return;
  pthread_cond_destroy(&e->changed);
  pthread_mutex_destroy(&e->lock);
  free(e);
}

static void event_destroy(DiBackend *b, DiEvent *e) {
  (void)b;
  leave_event(e);
}

static void forget_event(Work *work) { leave_event(((EventWork *)work)->event); }

static DiError *reach(Work *work) {
  EventWork *w = (EventWork *)work;
  pthread_mutex_lock(&w->event->lock);
  if (w->event->done < w->number) w->event->done = w->number;
  pthread_cond_broadcast(&w->event->changed);
  pthread_mutex_unlock(&w->event->lock);
  return NULL;
}

static void wait_for(DiEvent *e, uint64_t number) {
  pthread_mutex_lock(&e->lock);
  while (e->done < number) pthread_cond_wait(&e->changed, &e->lock);
  pthread_mutex_unlock(&e->lock);
}

static DiError *await(Work *work) {
  EventWork *w = (EventWork *)work;
  wait_for(w->event, w->number);
  return NULL;
}

static DiError *enqueue_event(DiStream *s, DiEvent *e, DiError *(*run)(Work *), int is_record) {
  EventWork *w = new_work(sizeof *w, run);
  if (w == NULL) return out_of_memory(sizeof *w);
  w->event = e;
  w->work.forget = forget_event;
  pthread_mutex_lock(&e->lock);
  ++e->users;
  if (is_record) ++e->recorded;
  w->number = e->recorded;
  pthread_mutex_unlock(&e->lock);
  enqueue(s, &w->work);
  return NULL;
}

static DiError *event_record(DiBackend *b, DiEvent *e, DiStream *s) {
  (void)b;
  return enqueue_event(s, e, reach, 1);
}

/* An event that was never recorded is waited for no longer than any that is past. */
static DiError *event_wait(DiBackend *b, DiStream *s, DiEvent *e) {
  (void)b;
  if (has("event-wait")) return NULL;
  return enqueue_event(s, e, await, 0);
}

static DiError *event_query(DiBackend *b, DiEvent *e, int32_t *done) {
  (void)b;
  pthread_mutex_lock(&e->lock);
  *done = e->done >= e->recorded;
  pthread_mutex_unlock(&e->lock);
  return NULL;
}

static DiError *event_sync(DiBackend *b, DiEvent *e) {
  uint64_t recorded;
  (void)b;
  pthread_mutex_lock(&e->lock);
  recorded = e->recorded;
  pthread_mutex_unlock(&e->lock);
  wait_for(e, recorded);
  return NULL;
}

/* ---- memory ---- */

/* Room behind every allocation, as a pool of a device has it: who writes beyond the end hits nobody at once. */
#define SLACK 512u

static DiError *alloc(DiBackend *b, DiDevice *d, uint32_t space, uint64_t bytes, uint64_t align, DiBuffer **out, void **addr) {
  uint64_t whole;
  DiBuffer *buffer;
  (void)b, (void)d;
  if (space > DI_SPACE_HOST_PINNED) return di_refuse(device_call, "memory space %" PRIu32 " does not exist", space);
  if (align < 64) align = 64;
  if ((align & (align - 1)) != 0) return di_refuse(device_call, "an alignment of %" PRIu64 " is no power of two", align);
  if (bytes > UINT64_MAX / 2 - SLACK - align) return out_of_memory(bytes);
  whole = (bytes + SLACK + align - 1) / align * align;
  buffer = malloc(sizeof *buffer);
  if (buffer == NULL) return out_of_memory(bytes);
  buffer->memory = aligned_alloc(align, whole + align);
  if (buffer->memory == NULL) {
    free(buffer);
    return out_of_memory(bytes);
  }
  *out = buffer;
  *addr = (char *)buffer->memory + (has("unaligned") ? align / 2 : 0);
  return NULL;
}

static void free_buffer(DiBackend *b, DiBuffer *buffer) {
  (void)b;
  if (!has("memory-leak")) free(buffer->memory);
  free(buffer);
}

typedef struct CopyWork {
  Work work;
  char *to;
  const char *from;
  uint64_t bytes;
} CopyWork;

static DiError *do_copy(Work *work) {
  CopyWork *w = (CopyWork *)work;
  memmove(w->to, w->from, w->bytes);
  return NULL;
}

static DiError *copy(DiBackend *b, DiStream *s, void *dst, const void *src, uint64_t bytes, uint32_t kind) {
  CopyWork *w;
  (void)b;
  if (kind > DI_COPY_P2P) return di_refuse(device_call, "a copy of kind %" PRIu32 " does not exist", kind);
  w = new_work(sizeof *w, do_copy);
  if (w == NULL) return out_of_memory(sizeof *w);
  w->to = dst;
  w->from = src;
  w->bytes = bytes;
  enqueue(s, &w->work);
  return NULL;
}

typedef struct FillWork {
  Work work;
  char *to;
  uint32_t pattern, pattern_bytes;
  uint64_t count;
} FillWork;

static DiError *do_fill(Work *work) {
  FillWork *w = (FillWork *)work;
  if (w->pattern_bytes == 1) {
    memset(w->to, (int)(w->pattern & 0xFF), w->count);
    return NULL;
  }
  for (uint64_t i = 0; i < w->count; ++i) memcpy(w->to + i * w->pattern_bytes, &w->pattern, w->pattern_bytes);
  return NULL;
}

static DiError *fill(DiBackend *b, DiStream *s, void *dst, uint32_t pattern, uint32_t pattern_bytes, uint64_t count) {
  FillWork *w;
  (void)b;
  if (pattern_bytes != 1 && pattern_bytes != 2 && pattern_bytes != 4)
    return di_refuse(device_call, "a pattern has 1, 2 or 4 bytes, not %" PRIu32, pattern_bytes);
  w = new_work(sizeof *w, do_fill);
  if (w == NULL) return out_of_memory(sizeof *w);
  w->to = dst;
  w->pattern = pattern;
  w->pattern_bytes = pattern_bytes;
  w->count = count;
  enqueue(s, &w->work);
  return NULL;
}

/* ---- devices ---- */

#define MEMORY (UINT64_C(1) << 30)

static DiError *check_index(uint32_t i) {
  return i == 0 ? NULL : di_refuse(device_call, "device %" PRIu32 " does not exist; there is device 0", i);
}

static DiError *device_count(DiBackend *b, uint32_t *out) {
  (void)b;
  *out = 1;
  return NULL;
}

static DiError *device_info(DiBackend *b, uint32_t i, DiDeviceInfo *out) {
  DiDeviceInfo info;
  DiError *error = check_index(i);
  (void)b;
  if (error != NULL) return error;
  memset(&info, 0, sizeof info);
  info.device_type = DI_DEVICE_CPU;
  info.name = di_str("host memory");
  info.arch = di_str("c11");
  info.total_bytes = MEMORY;
  info.numa_node = -1;
  info.n_spaces = 2;
  info.compute_units = 1;
  di_fill_struct(out, &info, sizeof info);
  return NULL;
}

static DiError *device_open(DiBackend *b, uint32_t i, const DiExt *ext, DiDevice **out) {
  DiError *error = check_index(i);
  (void)b, (void)ext; /* No extension is known, and one that is not known is passed over. */
  if (error != NULL) return error;
  *out = calloc(1, sizeof **out);
  return *out == NULL ? out_of_memory(sizeof **out) : NULL;
}

static void device_close(DiBackend *b, DiDevice *d) {
  (void)b;
  free(d);
}

static DiError *mem_info(DiBackend *b, DiDevice *d, uint32_t space, uint64_t *free_b, uint64_t *total_b) {
  (void)b, (void)d;
  if (space > DI_SPACE_HOST_PINNED) return di_refuse(device_call, "memory space %" PRIu32 " does not exist", space);
  *free_b = MEMORY / 2;
  *total_b = MEMORY;
  return NULL;
}

static const DiRuntimeApi host_runtime = {
    .struct_size = sizeof(DiRuntimeApi), .device_count = device_count, .device_info = device_info,
    .device_open = device_open, .device_close = device_close, .device_mem_info = mem_info, .alloc = alloc,
    .free_ = free_buffer, .stream_create = stream_create, .stream_destroy = stream_destroy,
    .stream_sync = stream_sync, .event_create = event_create, .event_destroy = event_destroy,
    .event_record = event_record, .event_wait = event_wait, .event_query = event_query,
    .event_sync = event_sync, .copy = copy, .fill = fill};

#endif /* LIAR_HOST_H */
