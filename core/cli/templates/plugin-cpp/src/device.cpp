/* The runtime table: one device in the host's memory, whose work is done when a call returns.
 *
 * For a device with queues of its own put its handles into DiStream and DiEvent and only enqueue here: stream_sync,
 * event_query and event_sync then wait or look, and the first fault of enqueued work is what they throw. */
#include <unistd.h>

#include <cstring>

#include "backend.hpp"

using deepinfer::Failure;

struct DiDevice {};
struct DiStream {};
struct DiEvent {};

struct DiBuffer {
  DiBuffer(std::size_t bytes, std::size_t a) : align(a), memory(operator new(bytes, std::align_val_t(a))) {}
  ~DiBuffer() { operator delete(memory, std::align_val_t(align)); }
  DiBuffer(const DiBuffer &) = delete;
  DiBuffer &operator=(const DiBuffer &) = delete;

  std::size_t align;
  void *memory;
};

static void check_index(std::uint32_t i) {
  if (i != 0) throw std::invalid_argument("device " + std::to_string(i) + " does not exist; there is device 0");
}

/* The device's own memory and what it reads of the host's: here the same. */
constexpr std::uint32_t spaces = 2;

static void check_space(std::uint32_t space) {
  if (space >= spaces)
    throw std::invalid_argument("memory space " + std::to_string(space) + " does not exist; there are 0 and 1");
}

static std::uint64_t page_bytes(int name) {
  const long pages = sysconf(name), bytes = sysconf(_SC_PAGESIZE);
  return pages > 0 && bytes > 0 ? std::uint64_t(pages) * std::uint64_t(bytes) : 0;
}

static void device_count(DiBackend &, std::uint32_t *out) { *out = 1; }

static void device_info(DiBackend &, std::uint32_t i, DiDeviceInfo *out) {
  check_index(i);
  DiDeviceInfo info{};
  info.device_type = DI_DEVICE_CPU;
  info.name = di_str("host memory");
  info.arch = di_str("portable C++");
  info.total_bytes = page_bytes(_SC_PHYS_PAGES);
  info.numa_node = -1;
  info.n_spaces = spaces;
  info.compute_units = 1;
  di_fill_struct(out, &info, sizeof info);
}

static void space_info(DiBackend &, std::uint32_t device, std::uint32_t i, DiSpaceInfo *out) {
  check_index(device);
  check_space(i);
  DiSpaceInfo info{};
  info.space_id = i;
  info.kind = i == 0 ? DI_SPACE_DEVICE : DI_SPACE_HOST_PINNED;
  info.min_align = alignof(std::max_align_t);
  info.granularity = 1;
  info.total_bytes = page_bytes(_SC_PHYS_PAGES);
  di_fill_struct(out, &info, sizeof info);
}

static void device_open(DiBackend &, std::uint32_t i, const DiExt *, DiDevice **out) {
  check_index(i);
  *out = new DiDevice;
}

static void device_close(DiBackend &, DiDevice *device) { delete device; }

static void device_mem_info(DiBackend &, DiDevice *, std::uint32_t space, std::uint64_t *free_b, std::uint64_t *total_b) {
  check_space(space);
  *total_b = page_bytes(_SC_PHYS_PAGES);
  *free_b = page_bytes(_SC_AVPHYS_PAGES);
}

/* Nothing at all is a size, too. What operator new throws becomes DI_E_OOM. */
static void allocate(DiBackend &, DiDevice *, std::uint32_t space, std::uint64_t bytes, std::uint64_t align, DiBuffer **out,
                     void **addr) {
  check_space(space);
  if (align == 0 || (align & (align - 1)) != 0)
    throw std::invalid_argument("the alignment " + std::to_string(align) + " is no power of two");
  if (bytes > PTRDIFF_MAX)
    throw Failure(DI_E_OOM, std::to_string(bytes) + " bytes are more than there are addresses", DI_EF_RETRYABLE);
  *out = new DiBuffer(bytes, align);
  *addr = (*out)->memory;
}

static void free_buffer(DiBackend &, DiBuffer *buffer) { delete buffer; }
static void stream_create(DiBackend &, DiDevice *, std::int32_t, std::uint32_t, DiStream **out) { *out = new DiStream; }
static void stream_destroy(DiBackend &, DiStream *stream) { delete stream; }
static void stream_sync(DiBackend &, DiStream *) {}
static void event_create(DiBackend &, DiDevice *, std::uint32_t, DiEvent **out) { *out = new DiEvent; }
static void event_destroy(DiBackend &, DiEvent *event) { delete event; }
static void event_record(DiBackend &, DiEvent *, DiStream *) {}
static void event_wait(DiBackend &, DiStream *, DiEvent *) {}
static void event_query(DiBackend &, DiEvent *, std::int32_t *done) { *done = 1; }
static void event_sync(DiBackend &, DiEvent *) {}

static void copy(DiBackend &, DiStream *, void *dst, const void *src, std::uint64_t bytes, std::uint32_t kind) {
  if (kind > DI_COPY_D2D)
    throw std::invalid_argument("copies of kind " + std::to_string(kind) + " do not exist; there are 0 to 2");
  if (bytes > 0) std::memmove(dst, src, bytes);
}

/* The low bytes of the pattern, lowest first, `count` times. */
static void fill(DiBackend &, DiStream *, void *dst, std::uint32_t pattern, std::uint32_t pattern_bytes,
                 std::uint64_t count) {
  if (pattern_bytes != 1 && pattern_bytes != 2 && pattern_bytes != 4)
    throw std::invalid_argument("a pattern of " + std::to_string(pattern_bytes) + " bytes is not possible; 1, 2 and 4 are");
  for (std::uint64_t i = 0; i < count * pattern_bytes; ++i)
    static_cast<unsigned char *>(dst)[i] = static_cast<unsigned char>(pattern >> 8 * (i % pattern_bytes));
}

/* What is not named stays null: other optional functions, which a backend may lack. */
DiRuntimeApi runtime_table() {
  using deepinfer::fallible;
  using deepinfer::infallible;
  DiRuntimeApi table{};
  table.struct_size = sizeof table;
  table.device_count = fallible<device_count>;
  table.device_info = fallible<device_info>;
  table.device_open = fallible<device_open>;
  table.device_close = infallible<device_close>;
  table.device_mem_info = fallible<device_mem_info>;
  table.alloc = fallible<allocate>;
  table.free_ = infallible<free_buffer>;
  table.stream_create = fallible<stream_create>;
  table.stream_destroy = infallible<stream_destroy>;
  table.stream_sync = fallible<stream_sync>;
  table.event_create = fallible<event_create>;
  table.event_destroy = infallible<event_destroy>;
  table.event_record = fallible<event_record>;
  table.event_wait = fallible<event_wait>;
  table.event_query = fallible<event_query>;
  table.event_sync = fallible<event_sync>;
  table.copy = fallible<copy>;
  table.fill = fallible<fill>;
  table.space_info = fallible<space_info>;
  return table;
}
