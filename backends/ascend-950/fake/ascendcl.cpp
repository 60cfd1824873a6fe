// A fake libascendcl.so: devices that live in this process, for the host twin and for tests. Settings: settings.h.
//
// Streams are threads, so that what is not ordered by a stream or an event really runs in any order. A kernel image is a
// shared object made with the twin (twin/launch.h); a launch runs in its stream's thread. Rules of the runtime that a caller
// can break are kept: a context for every call, handles of the right context, host memory that is pinned for copies in a
// graph, no waits while a stream is captured, one error after which a device gives nothing else.

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include "device.h"

namespace fake {

// The device whose context is current, plus one.
thread_local int current = 0;
// Streams that the thread captures in a mode that forbids what cannot be recorded.
thread_local int captures = 0;
std::atomic<bool> is_initialised{false};
std::atomic<uint64_t> allocations{0}, kernels_run{0};

Device *here() { return current ? devices()[size_t(current - 1)] : nullptr; }

void lose(Device *device) { device->break_with(ACL_ERROR_RT_LOST_HEARTBEAT, "the heartbeat of device " + std::to_string(device->id) + " is lost"); }

int as_planned(int code, const char *function) { return fail(code, std::string(function) + ": as DEEPINFER_FAKE_ACL says"); }

// Of calls that work on a broken device, too: they are counted, and give what was planned.
int planned_on(Device *device, const char *function) {
  const Verdict verdict = fake::verdict(function, true);
  if (verdict.is_lost) return lose(device), device->state();
  return verdict.code ? as_planned(verdict.code, function) : ACL_SUCCESS;
}

int begin(const char *function, Device **device) {
  const Verdict verdict = fake::verdict(function, true);
  if (!is_initialised) return fail(ACL_ERROR_UNINITIALIZE, std::string(function) + ": aclInit was not called");
  Device *on = here();
  if (!on) return fail(ACL_ERROR_RT_CONTEXT_NULL, std::string(function) + ": the thread has no context");
  if (verdict.is_lost) lose(on);
  if (int code = on->state()) return code;
  if (verdict.code) return as_planned(verdict.code, function);
  *device = on;
  return ACL_SUCCESS;
}

// What cannot be recorded, while a stream is captured.
int forbidden(const char *what, int code = ACL_ERROR_RT_STREAM_CAPTURED) {
  return fail(code, std::string(what) + " is not possible while a stream is captured");
}

// What the thread may not do while it captures, though no stream is concerned.
int forbidden_here(const char *what) { return forbidden(what, ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT); }

int check(Device *device, Stream *stream) {
  if (!stream) return fail(ACL_ERROR_RT_INVALID_HANDLE, "the default stream is not offered");
  if (stream->device != device) return fail(ACL_ERROR_RT_STREAM_CONTEXT, "the stream is of another context");
  return ACL_SUCCESS;
}

// A shared object with kernels, loaded from memory.
struct Binary {
  void *library;
  int (*launch)(const DiTwinLaunch *);
};

struct Function {
  Binary *binary;
  void *address;
  std::string name;
};

// Arguments of a launch, copied: addresses, and behind them what they point to in the launch itself.
struct Arguments {
  void *block;
  uint64_t *values;
  uint64_t bytes;
  uint32_t count;

  Arguments(const void *from, size_t size, const aclrtPlaceHolderInfo *holders, size_t holder_count)
      : block(std::aligned_alloc(64, (size + 63) / 64 * 64)), values(static_cast<uint64_t *>(block)), bytes(size) {
    std::memcpy(block, from, size);
    size_t end = size;
    for (size_t i = 0; i < holder_count; ++i) {
      uint64_t address = uint64_t(block) + holders[i].dataOffset;
      std::memcpy(static_cast<char *>(block) + holders[i].addrOffset, &address, sizeof address);
      end = std::min<size_t>(end, holders[i].dataOffset);
    }
    count = 0;
    // Addresses stand before the first piece of data; the last of them is that of the tiling struct.
    for (size_t i = 0; i < holder_count; ++i) count = std::max<uint32_t>(count, holders[i].addrOffset / 8 + 1);
    if (holder_count == 0) count = uint32_t(end / 8);
  }
  Arguments(const Arguments &) = delete;
  ~Arguments() { std::free(block); }
};

struct Finder {
  const Arguments *arguments;
};

int find(void *context, uint64_t address, uint64_t *begin, uint64_t *bytes) {
  const Arguments &own = *static_cast<Finder *>(context)->arguments;
  if (address - uint64_t(own.block) < own.bytes) return *begin = uint64_t(own.block), *bytes = own.bytes, 1;
  std::lock_guard<std::mutex> guard(memory().lock);
  auto found = memory().holding(address);
  if (found == memory().ranges.end() || !found->second.is_reachable) return 0;
  return *begin = found->first, *bytes = found->second.bytes, 1;
}

int run_kernel(const Function &function, uint32_t blocks, const Arguments &arguments, std::string &text) {
  uint64_t number = ++kernels_run;
  if (number == settings().wild_at) return text = function.name + ": a wild access, as planned", ACL_ERROR_RT_VECTOR_CORE_EXCEPTION;
  if (number == settings().stuck_at) return text = function.name + ": stuck, as planned", ACL_ERROR_RT_VECTOR_CORE_TIMEOUT;
  char message[512] = "";
  Finder finder{&arguments};
  DiTwinLaunch launch{sizeof launch,   function.address, blocks, arguments.count, arguments.values,
                      settings().seed, find,             &finder, message,        sizeof message};
  int code = function.binary->launch(&launch);
  if (code) text = function.name + ": " + message;
  return code;
}

void *allocate(Device *device, size_t size) {
  uint64_t bytes = std::max<uint64_t>(size, 1);
  std::lock_guard<std::mutex> guard(memory().lock);
  if (device && bytes > settings().hbm - device->used) return nullptr;
  void *block = std::aligned_alloc(512, (bytes + 511) / 512 * 512);
  if (!block) return nullptr;
  if (device) device->used += bytes;
  memory().ranges[uint64_t(block)] = {bytes, device ? device->id : -1, device != nullptr, block};
  return block;
}

int release(void *address, bool on_device) {
  std::lock_guard<std::mutex> guard(memory().lock);
  auto found = memory().ranges.find(uint64_t(address));
  if (found == memory().ranges.end() || (found->second.device >= 0) != on_device)
    return fail(ACL_ERROR_RT_PARAM_INVALID, "no allocation begins at this address");
  if (on_device) devices()[size_t(found->second.device)]->used -= found->second.bytes;
  std::free(found->second.block);
  memory().ranges.erase(found);
  return ACL_SUCCESS;
}

bool is_on_device(const void *address) {
  std::lock_guard<std::mutex> guard(memory().lock);
  auto found = memory().holding(uint64_t(address));
  return found != memory().ranges.end() && found->second.device >= 0;
}

}  // namespace fake

using namespace fake;

#define BEGIN                                              \
  Device *device = nullptr;                                \
  if (int code_of_begin = begin(__func__, &device)) return code_of_begin
#define STREAM                                             \
  auto *on = static_cast<Stream *>(stream);                \
  if (int code_of_stream = check(device, on)) return code_of_stream

extern "C" {

// Why the settings cannot be understood, or null: of the twin alone, asked by src/acl.rs before aclInit.
const char *di_fake_problem(void) { return settings().problem.empty() ? nullptr : settings().problem.c_str(); }

// The seed of the twin, which the device's name says.
uint64_t di_fake_seed(void) { return settings().seed; }

aclError aclInit(const char *) {
  const int planned = verdict(__func__, false).code;
  if (!settings().problem.empty()) return fail(ACL_ERROR_INVALID_PARAM, settings().problem);
  if (planned) return as_planned(planned, __func__);
  return is_initialised.exchange(true) ? ACL_ERROR_REPEAT_INITIALIZE : ACL_SUCCESS;
}

const char *aclGetRecentErrMsg(void) {
  if (recent.empty()) return nullptr;
  // It is told once, as the runtime does.
  recent_shown.swap(recent);
  recent.clear();
  return recent_shown.c_str();
}

const char *aclrtGetSocName(void) { return settings().soc.c_str(); }

aclError aclrtGetDeviceCount(uint32_t *count) {
  if (int code = verdict(__func__, false).code) return as_planned(code, __func__);
  if (!is_initialised) return fail(ACL_ERROR_UNINITIALIZE, "aclInit was not called");
  *count = uint32_t(devices().size());
  return ACL_SUCCESS;
}

aclError aclrtGetDeviceInfo(uint32_t id, aclrtDevAttr attr, int64_t *value) {
  if (int code = verdict(__func__, false).code) return as_planned(code, __func__);
  if (id >= devices().size()) return fail(ACL_ERROR_RT_INVALID_DEVICEID, "there is no such device");
  switch (attr) {
    case ACL_DEV_ATTR_VECTOR_CORE_NUM: return *value = int64_t(settings().cores), ACL_SUCCESS;
    case ACL_DEV_ATTR_TOTAL_GLOBAL_MEM_SIZE: return *value = int64_t(settings().hbm), ACL_SUCCESS;
  }
  return fail(ACL_ERROR_RT_PARAM_INVALID, "there is no such attribute");
}

aclError aclrtSetDevice(int32_t id) {
  if (int code = verdict(__func__, false).code) return as_planned(code, __func__);
  if (!is_initialised) return fail(ACL_ERROR_UNINITIALIZE, "aclInit was not called");
  if (id < 0 || size_t(id) >= devices().size()) return fail(ACL_ERROR_RT_INVALID_DEVICEID, "there is no such device");
  current = id + 1;
  return ACL_SUCCESS;
}

aclError aclrtGetCurrentContext(aclrtContext *context) {
  if (!current) return fail(ACL_ERROR_RT_CONTEXT_NULL, "the thread has no context");
  if (int code = planned_on(here(), __func__)) return code;
  *context = here();
  return ACL_SUCCESS;
}

aclError aclrtSetCurrentContext(aclrtContext context) {
  for (size_t i = 0; i < devices().size(); ++i) {
    if (devices()[i] != context) continue;
    if (int code = planned_on(devices()[i], __func__)) return code;
    return current = int(i) + 1, ACL_SUCCESS;
  }
  return fail(ACL_ERROR_RT_CONTEXT_NULL, "there is no such context");
}

aclError aclrtGetMemInfo(aclrtMemAttr, size_t *free_bytes, size_t *total_bytes) {
  BEGIN;
  std::lock_guard<std::mutex> guard(memory().lock);
  *total_bytes = settings().hbm;
  *free_bytes = settings().hbm - device->used;
  return ACL_SUCCESS;
}

aclError aclrtMalloc(void **address, size_t size, aclrtMemMallocPolicy) {
  BEGIN;
  if (captures) return forbidden_here("an allocation");
  if (++allocations == settings().oom_at) return fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "as DEEPINFER_FAKE_ACL says");
  *address = allocate(device, size);
  if (*address) return ACL_SUCCESS;
  return fail(ACL_ERROR_RT_MEMORY_ALLOCATION, std::to_string(size) + " bytes of device memory are not there");
}

aclError aclrtFree(void *address) {
  BEGIN;
  return release(address, true);
}

aclError aclrtMallocHost(void **address, size_t size) {
  BEGIN;
  if (captures) return forbidden_here("an allocation");
  *address = allocate(nullptr, size);
  return *address ? ACL_SUCCESS : fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "the host has no such memory");
}

aclError aclrtFreeHost(void *address) {
  BEGIN;
  return release(address, false);
}

aclError aclrtHostRegister(void *address, uint64_t size, aclrtHostRegisterType, void **on_device) {
  BEGIN;
  if (!settings().mapped) return fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "host memory cannot be mapped here");
  std::lock_guard<std::mutex> guard(memory().lock);
  auto found = memory().ranges.find(uint64_t(address));
  if (found == memory().ranges.end() || size > found->second.bytes) return fail(ACL_ERROR_RT_PARAM_INVALID, "this is no pinned memory");
  found->second.is_reachable = true;
  *on_device = address;
  return ACL_SUCCESS;
}

aclError aclrtHostUnregister(void *address) {
  BEGIN;
  std::lock_guard<std::mutex> guard(memory().lock);
  auto found = memory().ranges.find(uint64_t(address));
  if (found == memory().ranges.end()) return fail(ACL_ERROR_RT_PARAM_INVALID, "this is no pinned memory");
  found->second.is_reachable = false;
  return ACL_SUCCESS;
}

aclError aclrtMemcpyAsync(void *dst, size_t room, const void *src, size_t count, aclrtMemcpyKind kind, aclrtStream stream) {
  BEGIN;
  STREAM;
  if (count > room) return fail(ACL_ERROR_RT_PARAM_INVALID, "a copy of more bytes than there is room for");
  const struct {
    const void *address;
    bool on_device;
  } sides[2] = {{dst, kind == ACL_MEMCPY_HOST_TO_DEVICE || kind == ACL_MEMCPY_DEVICE_TO_DEVICE},
                {src, kind == ACL_MEMCPY_DEVICE_TO_HOST || kind == ACL_MEMCPY_DEVICE_TO_DEVICE}};
  if (sides[0].on_device && sides[1].on_device && ((uint64_t(dst) | uint64_t(src)) & 63))
    return fail(ACL_ERROR_RT_ADDR_UNALIGNED, "a copy within a device whose addresses are no multiples of 64");
  bool is_pinned = true;
  for (const auto &side : sides) {
    bool is_known = memory().holds(side.address, count, side.on_device);
    if (side.on_device && !is_known)
      return fail(ACL_ERROR_RT_PARAM_INVALID, "a copy whose address on the device is in no allocation");
    if (!side.on_device && is_on_device(side.address))
      return fail(ACL_ERROR_RT_PARAM_INVALID, "a copy whose address on the host is one of a device");
    is_pinned &= is_known;
  }
  auto copy = [=](std::string &) { return std::memmove(dst, src, count), 0; };
  if (is_pinned) return on->add({copy, {}}), ACL_SUCCESS;
  // Memory that is not pinned is not waited for by anybody: the copy is over when the call is.
  if (on->capture) {
    on->capture_is_invalid = true;
    return forbidden("a copy of memory that is not pinned", ACL_ERROR_RT_CAPTURE_MODE_BLOCK_ASYNC);
  }
  on->add({copy, {}});
  return on->wait();
}

aclError aclrtMemsetAsync(void *dst, size_t room, int32_t value, size_t count, aclrtStream stream) {
  BEGIN;
  STREAM;
  if (count > room || !memory().holds(dst, count, true)) return fail(ACL_ERROR_RT_PARAM_INVALID, "bytes to set that are in no allocation");
  on->add({[=](std::string &) { return std::memset(dst, value, count), 0; }, {}});
  return ACL_SUCCESS;
}

aclError aclrtCreateStreamWithConfig(aclrtStream *stream, uint32_t, uint32_t) {
  BEGIN;
  // A thread for each stream: the system may refuse one.
  try {
    *stream = new Stream(device);
  } catch (const std::exception &error) {
    return fail(ACL_ERROR_RT_NO_STREAM_RESOURCE, std::string("the system gives no thread: ") + error.what());
  }
  return ACL_SUCCESS;
}

aclError aclrtDestroyStream(aclrtStream stream) {
  auto *on = static_cast<Stream *>(stream);
  const int code = planned_on(on->device, __func__);
  // A capture that was never ended ends with its stream.
  if (on->capture && captures > 0) --captures;
  // Also on a broken device, and whatever was planned: threads must end.
  delete on;
  return code;
}

aclError aclrtSynchronizeStream(aclrtStream stream) {
  BEGIN;
  STREAM;
  if (on->capture) {
    on->capture_is_invalid = true;
    return forbidden("a wait");
  }
  return on->wait();
}

aclError aclrtCreateEventExWithFlag(aclrtEvent *event, uint32_t) {
  BEGIN;
  *event = new Event{device, 0, 0, {}};
  return ACL_SUCCESS;
}

aclError aclrtDestroyEvent(aclrtEvent event) {
  auto *of = static_cast<Event *>(event);
  const int code = planned_on(of->device, __func__);
  {
    // A record that is still queued touches the event.
    std::unique_lock<std::mutex> guard(of->device->lock);
    of->device->changed.wait(guard, [of] { return of->device->broken || of->passed == of->recorded; });
    // What is queued on a broken device never runs; the memory stays for a record that runs at this moment.
    if (of->device->broken) return code;
  }
  delete of;
  return code;
}

aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream) {
  BEGIN;
  STREAM;
  auto *of = static_cast<Event *>(event);
  if (on->capture) {
    on->capture_is_invalid = true;
    return forbidden("an event for the host");
  }
  uint64_t number;
  {
    std::lock_guard<std::mutex> guard(device->lock);
    number = ++of->recorded;
  }
  on->add({[=](std::string &) {
             std::lock_guard<std::mutex> guard(device->lock);
             of->when = std::chrono::steady_clock::now();
             of->passed = std::max(of->passed, number);
             return 0;
           },
           {}});
  return ACL_SUCCESS;
}

aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event) {
  BEGIN;
  STREAM;
  auto *of = static_cast<Event *>(event);
  if (on->capture) {
    on->capture_is_invalid = true;
    return forbidden("a wait for an event from outside");
  }
  uint64_t number;
  {
    std::lock_guard<std::mutex> guard(device->lock);
    number = of->recorded;
    // An event that has passed may be gone before the stream comes to the wait.
    if (of->passed >= number) return ACL_SUCCESS;
  }
  on->add({[](std::string &) { return 0; }, [=] { return of->passed >= number; }});
  return ACL_SUCCESS;
}

aclError aclrtQueryEventStatus(aclrtEvent event, aclrtEventRecordedStatus *status) {
  BEGIN;
  auto *of = static_cast<Event *>(event);
  std::lock_guard<std::mutex> guard(device->lock);
  *status = of->passed == of->recorded ? ACL_EVENT_RECORDED_STATUS_COMPLETE : ACL_EVENT_RECORDED_STATUS_NOT_READY;
  return ACL_SUCCESS;
}

aclError aclrtSynchronizeEvent(aclrtEvent event) {
  BEGIN;
  if (captures) return forbidden_here("a wait");
  auto *of = static_cast<Event *>(event);
  {
    std::unique_lock<std::mutex> guard(device->lock);
    device->changed.wait(guard, [=] { return device->broken || of->passed == of->recorded; });
  }
  return device->state();
}

aclError aclrtEventElapsedTime(float *ms, aclrtEvent from, aclrtEvent to) {
  BEGIN;
  auto *first = static_cast<Event *>(from), *second = static_cast<Event *>(to);
  std::lock_guard<std::mutex> guard(device->lock);
  if (!first->passed || !second->passed) return fail(ACL_ERROR_RT_PARAM_INVALID, "an event that was not recorded");
  *ms = std::chrono::duration<float, std::milli>(second->when - first->when).count();
  return ACL_SUCCESS;
}

aclError aclrtBinaryLoadFromData(const void *data, size_t length, const aclrtBinaryLoadOptions *, aclrtBinHandle *binary) {
  BEGIN;
  if (captures) return forbidden_here("a load of kernels");
  int file = memfd_create("ascend-kernels", MFD_CLOEXEC);
  size_t written = 0;
  while (file >= 0 && written < length) {
    ssize_t bytes = write(file, static_cast<const char *>(data) + written, length - written);
    if (bytes <= 0) break;
    written += size_t(bytes);
  }
  if (file < 0) return fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "no memory for kernels");
  // The loader knows libraries by the text of their path, which must not come again when the file has been closed: between the
  // folder and the name stands how many were loaded before, in digits that lead nowhere.
  static std::atomic<uint64_t> loaded{0};
  std::string path = "/proc/self/fd/";
  for (uint64_t number = loaded++; number > 0; number /= 2) path += number % 2 ? "./" : "/";
  path += std::to_string(file);
  void *library = written == length ? dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
  close(file);
  if (written < length) return fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "no memory for kernels");
  void *launch = library ? dlsym(library, "di_twin_launch") : nullptr;
  if (!launch) return fail(ACL_ERROR_RT_PARAM_INVALID, std::string("these are no kernels of the host twin: ") + dlerror());
  *binary = new Binary{library, reinterpret_cast<int (*)(const DiTwinLaunch *)>(launch)};
  return ACL_SUCCESS;
}

aclError aclrtBinaryUnLoad(aclrtBinHandle) {
  BEGIN;
  return ACL_SUCCESS;
}

aclError aclrtBinaryGetFunction(aclrtBinHandle handle, const char *name, aclrtFuncHandle *function) {
  BEGIN;
  auto *binary = static_cast<Binary *>(handle);
  void *address = dlsym(binary->library, name);
  if (!address) return fail(ACL_ERROR_RT_KERNEL_LOOKUP, std::string("there is no kernel ") + name);
  *function = new Function{binary, address, name};
  return ACL_SUCCESS;
}

aclError aclrtLaunchKernelWithHostArgs(aclrtFuncHandle handle, uint32_t blocks, aclrtStream stream, aclrtLaunchKernelCfg *, void *host_args,
                                       size_t size, aclrtPlaceHolderInfo *holders, size_t holder_count) {
  BEGIN;
  STREAM;
  auto *function = static_cast<Function *>(handle);
  if (!function) return fail(ACL_ERROR_RT_INVALID_HANDLE, "no kernel was given");
  if (blocks == 0 || blocks > 65535) return fail(ACL_ERROR_RT_PARAM_INVALID, function->name + ": a launch of " + std::to_string(blocks) + " blocks");
  for (size_t i = 0; i < holder_count; ++i)
    if (holders[i].addrOffset % 8 || holders[i].addrOffset + 8u > size || holders[i].dataOffset > size)
      return fail(ACL_ERROR_RT_PARAM_INVALID, function->name + ": a placeholder outside of the arguments");
  auto arguments = std::make_shared<Arguments>(host_args, size, holders, holder_count);
  on->add({[=](std::string &text) { return run_kernel(*function, blocks, *arguments, text); }, {}});
  return ACL_SUCCESS;
}

aclError aclmdlRICaptureBegin(aclrtStream stream, aclmdlRICaptureMode mode) {
  BEGIN;
  STREAM;
  if (on->capture) return forbidden("a second capture");
  on->capture.reset(new Graph{device, {}});
  on->capture_is_invalid = false;
  captures += mode != ACL_MODEL_RI_CAPTURE_MODE_RELAXED;
  return ACL_SUCCESS;
}

aclError aclmdlRICaptureEnd(aclrtStream stream, aclmdlRI *graph) {
  BEGIN;
  STREAM;
  if (!on->capture) return fail(ACL_ERROR_RT_STREAM_NOT_CAPTURED, "the stream is not captured");
  if (captures > 0) --captures;
  std::unique_ptr<Graph> made = std::move(on->capture);
  if (on->capture_is_invalid) return fail(ACL_ERROR_RT_STREAM_CAPTURE_INVALIDATED, "something in the capture could not be recorded");
  *graph = made.release();
  return ACL_SUCCESS;
}

aclError aclmdlRIExecuteAsync(aclmdlRI handle, aclrtStream stream) {
  BEGIN;
  STREAM;
  auto *graph = static_cast<Graph *>(handle);
  if (on->capture) {
    on->capture_is_invalid = true;
    return forbidden("the launch of a graph");
  }
  for (const Task &task : graph->tasks) on->add(task);
  return ACL_SUCCESS;
}

aclError aclmdlRIDestroy(aclmdlRI graph) {
  auto *of = static_cast<Graph *>(graph);
  const int code = planned_on(of->device, __func__);
  delete of;
  return code;
}

}  // extern "C"
