/* A CUDA driver of the tests: devices, memory, copies, streams and events that work on the host, kernels that do nothing, and
 * failures on demand. The nvidia backend finds it instead of the real one by LD_LIBRARY_PATH, and cannot tell.
 *
 * FAKE_CUDA_DEVICES       how many devices there are (1)
 * FAKE_CUDA_BROKEN        the number of a device whose context cannot be had
 * FAKE_CUDA_CAPABILITY    compute capability times ten (90)
 * FAKE_CUDA_VERSION       what cuDriverGetVersion says (13000)
 * FAKE_CUDA_BYTES         memory of a device (4 GiB)
 * FAKE_CUDA_FAIL          "function:nth:status", and ":lost" behind it if every later call fails with it, too
 * FAKE_CUDA_COUNT         a file that gets the number of calls of each function at the end
 *
 * The names and the order of parameters are the public ones of the driver's C interface; statuses are its numbers. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_DEVICE = 101, DEVICE_UNAVAILABLE = 46 };

typedef unsigned long long Address;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long lost;

static long number(const char *name, long otherwise) {
  const char *text = getenv(name);
  return text ? atol(text) : otherwise;
}

/* Counts a call of a function, and says with which status it fails. */
static int call(const char *function) {
  static struct { const char *name; long calls; } seen[128];
  static int count;
  pthread_mutex_lock(&lock);
  int at = 0;
  while (at < count && strcmp(seen[at].name, function) != 0) ++at;
  if (at == count && count < 128) seen[count++].name = function;
  long calls = ++seen[at].calls;
  const char *plan = getenv("FAKE_CUDA_FAIL");
  char name[64];
  long nth = 0;
  int status = 0;
  int status_now = (int)lost;
  if (!status_now && plan && sscanf(plan, "%63[^:]:%ld:%d", name, &nth, &status) == 3 && strcmp(name, function) == 0 && calls == nth) {
    status_now = status;
    if (strstr(plan, ":lost")) lost = status;
  }
  const char *path = getenv("FAKE_CUDA_COUNT");
  /* Written when things are given back, which is at the end. */
  if (path && (strstr(function, "Destroy") || strstr(function, "Free"))) {
    FILE *file = fopen(path, "w");
    for (int i = 0; file && i < count; ++i) fprintf(file, "%s %ld\n", seen[i].name, seen[i].calls);
    if (file) fclose(file);
  }
  pthread_mutex_unlock(&lock);
  return status_now;
}

#define CALL                                                                                                                     \
  do {                                                                                                                           \
    int status_of_call = call(__func__);                                                                                         \
    if (status_of_call) return status_of_call;                                                                                   \
  } while (0)

int cuInit(unsigned flags) { (void)flags; CALL; return SUCCESS; }
int cuDriverGetVersion(int *version) { CALL; *version = (int)number("FAKE_CUDA_VERSION", 13000); return SUCCESS; }
int cuDeviceGetCount(int *count) { CALL; *count = (int)number("FAKE_CUDA_DEVICES", 1); return SUCCESS; }

int cuDeviceGet(int *device, int ordinal) {
  CALL;
  if (ordinal < 0 || ordinal >= number("FAKE_CUDA_DEVICES", 1)) return INVALID_DEVICE;
  *device = ordinal;
  return SUCCESS;
}

int cuDeviceGetName(char *name, int length, int device) {
  CALL;
  snprintf(name, (size_t)length, "Imagined GPU %d", device);
  return SUCCESS;
}

static size_t total(void) { return (size_t)number("FAKE_CUDA_BYTES", 4l << 30); }

int cuDeviceTotalMem_v2(size_t *bytes, int device) { (void)device; CALL; *bytes = total(); return SUCCESS; }

int cuDeviceGetAttribute(int *value, int which, int device) {
  (void)device;
  CALL;
  long capability = number("FAKE_CUDA_CAPABILITY", 90);
  *value = which == 75 ? (int)(capability / 10) : which == 76 ? (int)(capability % 10) : which == 16 ? 132 : 1;
  return SUCCESS;
}

int cuDeviceGetP2PAttribute(int *value, int which, int a, int b) { (void)which, (void)a, (void)b; CALL; *value = 0; return SUCCESS; }

int cuDevicePrimaryCtxRetain(void **context, int device) {
  CALL;
  if (device == number("FAKE_CUDA_BROKEN", -1)) return DEVICE_UNAVAILABLE;
  *context = (void *)(uintptr_t)(0x1000 + device);
  return SUCCESS;
}

int cuCtxSetCurrent(void *context) { (void)context; return lost ? (int)lost : SUCCESS; }

static const struct { int status; const char *name; } NAMES[] = {
  {1, "CUDA_ERROR_INVALID_VALUE"}, {2, "CUDA_ERROR_OUT_OF_MEMORY"}, {35, "CUDA_ERROR_STUB_LIBRARY"}, {46, "CUDA_ERROR_DEVICE_UNAVAILABLE"},
  {100, "CUDA_ERROR_NO_DEVICE"}, {209, "CUDA_ERROR_NO_BINARY_FOR_GPU"}, {700, "CUDA_ERROR_ILLEGAL_ADDRESS"}, {719, "CUDA_ERROR_LAUNCH_FAILED"},
  {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"},
};

int cuGetErrorName(int status, const char **name) {
  for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; ++i)
    if (NAMES[i].status == status) return *name = NAMES[i].name, SUCCESS;
  *name = NULL;
  return INVALID_VALUE;
}

int cuGetErrorString(int status, const char **text) { return cuGetErrorName(status, text); }

/* Memory: every allocation knows its size. */
static size_t used;

static int allocate(Address *address, size_t bytes, int is_counted) {
  pthread_mutex_lock(&lock);
  int fits = !is_counted || bytes <= total() - used;
  char *memory = fits ? aligned_alloc(512, (bytes + 1024 + 511) / 512 * 512) : NULL;
  if (memory) {
    ((size_t *)memory)[0] = is_counted ? bytes : 0;
    used += is_counted ? bytes : 0;
    *address = (Address)(uintptr_t)(memory + 512);
  }
  pthread_mutex_unlock(&lock);
  return memory ? SUCCESS : OUT_OF_MEMORY;
}

static int release(Address address) {
  char *memory = (char *)(uintptr_t)address - 512;
  pthread_mutex_lock(&lock);
  used -= ((size_t *)memory)[0];
  pthread_mutex_unlock(&lock);
  free(memory);
  return SUCCESS;
}

int cuMemAlloc_v2(Address *address, size_t bytes) { CALL; return allocate(address, bytes, 1); }
int cuMemFree_v2(Address address) { CALL; return release(address); }
int cuMemHostAlloc(void **memory, size_t bytes, unsigned flags) {
  (void)flags;
  CALL;
  Address address = 0;
  int status = allocate(&address, bytes, 0);
  *memory = (void *)(uintptr_t)address;
  return status;
}
int cuMemFreeHost(void *memory) { CALL; return release((Address)(uintptr_t)memory); }

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
  CALL;
  pthread_mutex_lock(&lock);
  *total_bytes = total();
  *free_bytes = total() - used;
  pthread_mutex_unlock(&lock);
  return SUCCESS;
}

/* Graphs: copies and fills of bytes that are queued while a stream is captured, in their order. */
struct Work { struct Work *next; Address to, from; int value; size_t bytes; };
struct Graph { struct Work *first, **last; void *stream; };
static struct Graph *captured; /* one capture at a time */

static int queue(struct Work work, void *stream) {
  pthread_mutex_lock(&lock);
  struct Graph *graph = captured && captured->stream == stream ? captured : NULL;
  if (graph) {
    *graph->last = memcpy(malloc(sizeof work), &work, sizeof work);
    graph->last = &(*graph->last)->next;
  }
  pthread_mutex_unlock(&lock);
  if (graph) return SUCCESS;
  if (work.from) memmove((void *)(uintptr_t)work.to, (const void *)(uintptr_t)work.from, work.bytes);
  else memset((void *)(uintptr_t)work.to, work.value, work.bytes);
  return SUCCESS;
}

int cuThreadExchangeStreamCaptureMode(int *mode) { (void)mode; CALL; return SUCCESS; }

int cuStreamBeginCapture_v2(void *stream, int mode) {
  (void)mode;
  CALL;
  captured = calloc(1, sizeof *captured);
  captured->last = &captured->first;
  captured->stream = stream;
  return SUCCESS;
}

int cuStreamEndCapture(void *stream, struct Graph **graph) {
  (void)stream;
  CALL;
  *graph = captured;
  captured = NULL;
  return SUCCESS;
}

/* What is instantiated has the work; the graph is left empty. */
int cuGraphInstantiateWithFlags(struct Graph **executable, struct Graph *graph, unsigned long long flags) {
  (void)flags;
  CALL;
  *executable = memcpy(malloc(sizeof *graph), graph, sizeof *graph);
  graph->first = NULL;
  return SUCCESS;
}

int cuGraphDestroy(struct Graph *graph) {
  CALL;
  for (struct Work *work = graph->first, *next; work; work = next) next = work->next, free(work);
  free(graph);
  return SUCCESS;
}

int cuGraphExecDestroy(struct Graph *executable) { return cuGraphDestroy(executable); }

int cuGraphLaunch(struct Graph *executable, void *stream) {
  CALL;
  for (const struct Work *work = executable->first; work; work = work->next) queue(*work, stream);
  return SUCCESS;
}

int cuMemcpyAsync(Address to, Address from, size_t bytes, void *stream) {
  CALL;
  return queue((struct Work){.to = to, .from = from, .bytes = bytes}, stream);
}

/* The driver's description of a copy of rows. */
struct Copy2d {
  size_t from_x, from_y; int from_type; const void *from_host; Address from_device; void *from_array; size_t from_pitch;
  size_t to_x, to_y; int to_type; void *to_host; Address to_device; void *to_array; size_t to_pitch;
  size_t width, height;
};

int cuMemcpy2DAsync_v2(const struct Copy2d *copy, void *stream) {
  (void)stream;
  CALL;
  for (size_t y = 0; y < copy->height; ++y)
    memmove((char *)(uintptr_t)copy->to_device + y * copy->to_pitch, (const char *)(uintptr_t)copy->from_device + y * copy->from_pitch, copy->width);
  return SUCCESS;
}

#define FILL(NAME, TYPE)                                                                                                         \
  int NAME(Address to, TYPE value, size_t count, void *stream) {                                                                 \
    (void)stream;                                                                                                                \
    CALL;                                                                                                                        \
    for (size_t i = 0; i < count; ++i) ((TYPE *)(uintptr_t)to)[i] = value;                                                       \
    return SUCCESS;                                                                                                              \
  }
int cuMemsetD8Async(Address to, unsigned char value, size_t count, void *stream) {
  CALL;
  return queue((struct Work){.to = to, .value = value, .bytes = count}, stream);
}
FILL(cuMemsetD16Async, unsigned short)
FILL(cuMemsetD32Async, unsigned)

/* Work is done when it is queued, so that streams and events have nothing to remember. */
int cuStreamCreate(void **stream, unsigned flags) { (void)flags; CALL; *stream = malloc(1); return SUCCESS; }
int cuStreamDestroy_v2(void *stream) { CALL; free(stream); return SUCCESS; }
int cuStreamSynchronize(void *stream) { (void)stream; CALL; return SUCCESS; }
int cuStreamWaitEvent(void *stream, void *event, unsigned flags) { (void)stream, (void)event, (void)flags; CALL; return SUCCESS; }
int cuEventCreate(void **event, unsigned flags) { (void)flags; CALL; *event = malloc(1); return SUCCESS; }
int cuEventDestroy_v2(void *event) { CALL; free(event); return SUCCESS; }
int cuEventRecord(void *event, void *stream) { (void)event, (void)stream; CALL; return SUCCESS; }
int cuEventQuery(void *event) { (void)event; CALL; return SUCCESS; }
int cuEventSynchronize(void *event) { (void)event; CALL; return SUCCESS; }
int cuEventElapsedTime_v2(float *milliseconds, void *from, void *to) { (void)from, (void)to; CALL; *milliseconds = 0; return SUCCESS; }

int cuModuleLoadData(void **module, const void *image) { CALL; *module = (void *)(uintptr_t)image; return SUCCESS; }
int cuModuleGetFunction(void **function, void *module, const char *name) { (void)module; CALL; *function = (void *)(uintptr_t)name; return SUCCESS; }
int cuFuncSetAttribute(void *function, int attribute, int value) { (void)function, (void)attribute, (void)value; CALL; return SUCCESS; }
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream,
                   void **parameters, void **extra) {
  (void)function, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)stream, (void)parameters, (void)extra;
  CALL;
  return SUCCESS;
}
int cuLaunchKernelEx(const void *config, void *function, void **parameters, void **extra) {
  (void)config, (void)function, (void)parameters, (void)extra;
  CALL;
  return SUCCESS;
}
