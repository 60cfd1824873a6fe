/* The runtime table of a backend that computes in the host's memory: one device, whose work is done when a call returns.
 *
 * A device with queues of its own keeps a handle in DiStream and DiEvent and only enqueues here: stream_sync, event_query
 * and event_sync then wait or look, and the first fault of enqueued work is what they return. */
#include <unistd.h>

#include "backend.h"

struct DiDevice { char unused; };
struct DiStream { char unused; };
struct DiEvent { char unused; };
struct DiBuffer { void *memory; };

static const DiCall device_call = {BACKEND, "device"};

static DiError *out_of_memory(uint64_t bytes) {
  return di_fail(DI_E_OOM, DI_EF_RETRYABLE, BACKEND, "%" PRIu64 " bytes of host memory are not available", bytes);
}

static DiError *device_count(DiBackend *b, uint32_t *out) {
  (void)b;
  *out = 1;
  return NULL;
}

static DiError *check_index(uint32_t i) {
  return i == 0 ? NULL : di_refuse(device_call, "device %" PRIu32 " does not exist; there is device 0", i);
}

static uint64_t pages(int name) {
  long count = sysconf(name), bytes = sysconf(_SC_PAGESIZE);
  return count > 0 && bytes > 0 ? (uint64_t)count * (uint64_t)bytes : 0;
}

/* The device's own memory and what it reads of the host's: here the same. */
#define SPACES 2u

static DiError *check_space(uint32_t space) {
  if (space < SPACES) return NULL;
  return di_refuse(device_call, "memory space %" PRIu32 " does not exist; there are 0 and 1", space);
}

static DiError *space_info(DiBackend *b, uint32_t device, uint32_t i, DiSpaceInfo *out) {
  DiSpaceInfo info;
  DiError *error = check_index(device);
  (void)b;
  if (error != NULL || (error = check_space(i)) != NULL) return error;
  memset(&info, 0, sizeof info);
  info.space_id = i;
  info.kind = i == 0 ? DI_SPACE_DEVICE : DI_SPACE_HOST_PINNED;
  info.min_align = sizeof(void *);
  info.granularity = 1;
  info.total_bytes = pages(_SC_PHYS_PAGES);
  di_fill_struct(out, &info, sizeof info);
  return NULL;
}

static DiError *device_info(DiBackend *b, uint32_t i, DiDeviceInfo *out) {
  DiDeviceInfo info;
  DiError *error = check_index(i);
  (void)b;
  if (error != NULL) return error;
  memset(&info, 0, sizeof info);
  info.device_type = DI_DEVICE_CPU;
  info.ordinal = 0;
  info.name = di_str("host memory");
  info.arch = di_str("portable C");
  info.total_bytes = pages(_SC_PHYS_PAGES);
  info.numa_node = -1;
  info.n_spaces = SPACES;
  info.compute_units = 1;
  di_fill_struct(out, &info, sizeof info);
  return NULL;
}

static DiError *device_open(DiBackend *b, uint32_t i, const DiExt *ext, DiDevice **out) {
  DiError *error = check_index(i);
  (void)b, (void)ext;
  if (error != NULL) return error;
  *out = (DiDevice *)calloc(1, sizeof **out);
  return *out == NULL ? out_of_memory(sizeof **out) : NULL;
}

static void device_close(DiBackend *b, DiDevice *device) {
  (void)b;
  free(device);
}

static DiError *device_mem_info(DiBackend *b, DiDevice *device, uint32_t space, uint64_t *free_b, uint64_t *total_b) {
  DiError *error = check_space(space);
  (void)b, (void)device;
  if (error != NULL) return error;
  *total_b = pages(_SC_PHYS_PAGES);
  *free_b = pages(_SC_AVPHYS_PAGES);
  return NULL;
}

/* Nothing at all is a size, too, and gets an address of its own. */
static DiError *alloc_buffer(DiBackend *b, DiDevice *device, uint32_t space, uint64_t bytes, uint64_t align,
                             DiBuffer **out, void **addr) {
  DiError *error = check_space(space);
  uint64_t padded;
  (void)b, (void)device;
  if (error != NULL) return error;
  if (align == 0 || (align & (align - 1)) != 0)
    return di_refuse(device_call, "the alignment %" PRIu64 " is no power of two", align);
  if (align < sizeof(void *)) align = sizeof(void *);
  if (bytes > SIZE_MAX - 2 * align) return out_of_memory(bytes);
  padded = (bytes == 0 ? align : (bytes + align - 1) / align * align);
  *out = (DiBuffer *)malloc(sizeof **out);
  if (*out == NULL) return out_of_memory(sizeof **out);
  (*out)->memory = aligned_alloc((size_t)align, (size_t)padded);
  if ((*out)->memory == NULL) {
    free(*out);
    return out_of_memory(bytes);
  }
  *addr = (*out)->memory;
  return NULL;
}

static void free_buffer(DiBackend *b, DiBuffer *buffer) {
  (void)b;
  free(buffer->memory);
  free(buffer);
}

static DiError *stream_create(DiBackend *b, DiDevice *device, int32_t priority, uint32_t flags, DiStream **out) {
  (void)b, (void)device, (void)priority, (void)flags;
  *out = (DiStream *)calloc(1, sizeof **out);
  return *out == NULL ? out_of_memory(sizeof **out) : NULL;
}

static void stream_destroy(DiBackend *b, DiStream *stream) {
  (void)b;
  free(stream);
}

static DiError *stream_sync(DiBackend *b, DiStream *stream) {
  (void)b, (void)stream;
  return NULL;
}

static DiError *event_create(DiBackend *b, DiDevice *device, uint32_t flags, DiEvent **out) {
  (void)b, (void)device, (void)flags;
  *out = (DiEvent *)calloc(1, sizeof **out);
  return *out == NULL ? out_of_memory(sizeof **out) : NULL;
}

static void event_destroy(DiBackend *b, DiEvent *event) {
  (void)b;
  free(event);
}

static DiError *event_record(DiBackend *b, DiEvent *event, DiStream *stream) {
  (void)b, (void)event, (void)stream;
  return NULL;
}

static DiError *event_wait(DiBackend *b, DiStream *stream, DiEvent *event) {
  (void)b, (void)stream, (void)event;
  return NULL;
}

static DiError *event_query(DiBackend *b, DiEvent *event, int32_t *done) {
  (void)b, (void)event;
  *done = 1;
  return NULL;
}

static DiError *event_sync(DiBackend *b, DiEvent *event) {
  (void)b, (void)event;
  return NULL;
}

static DiError *copy(DiBackend *b, DiStream *stream, void *dst, const void *src, uint64_t bytes, uint32_t kind) {
  (void)b, (void)stream;
  if (kind > DI_COPY_D2D) return di_refuse(device_call, "copies of kind %" PRIu32 " do not exist; there are 0 to 2", kind);
  if (bytes > 0) memmove(dst, src, (size_t)bytes);
  return NULL;
}

/* The low bytes of the pattern, lowest first, `count` times. */
static DiError *fill(DiBackend *b, DiStream *stream, void *dst, uint32_t pattern, uint32_t pattern_bytes, uint64_t count) {
  unsigned char bytes[4];
  uint64_t i;
  uint32_t k;
  (void)b, (void)stream;
  if (pattern_bytes != 1 && pattern_bytes != 2 && pattern_bytes != 4)
    return di_refuse(device_call, "a pattern of %" PRIu32 " bytes is not possible; 1, 2 and 4 are", pattern_bytes);
  for (k = 0; k < 4; ++k) bytes[k] = (unsigned char)(pattern >> 8 * k);
  if (count > 0 && pattern_bytes == 1) memset(dst, bytes[0], (size_t)count);
  else
    for (i = 0; i < count; ++i) memcpy((char *)dst + i * pattern_bytes, bytes, pattern_bytes);
  return NULL;
}

/* What is not named stays NULL: other optional functions, which a backend may lack. */
const DiRuntimeApi runtime = {
    .struct_size = sizeof(DiRuntimeApi),
    .device_count = device_count,
    .device_info = device_info,
    .device_open = device_open,
    .device_close = device_close,
    .device_mem_info = device_mem_info,
    .alloc = alloc_buffer,
    .free_ = free_buffer,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .stream_sync = stream_sync,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_wait = event_wait,
    .event_query = event_query,
    .event_sync = event_sync,
    .copy = copy,
    .fill = fill,
    .space_info = space_info,
};
