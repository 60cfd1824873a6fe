// Devices of the fake runtime: memory, streams that are threads, events, and the error after which nothing works.

#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "../include/di_acl.h"
#include "../twin/launch.h"
#include "calls.h"

namespace fake {

// The text for aclGetRecentErrMsg, of the thread that failed.
inline thread_local std::string recent, recent_shown;

inline int fail(int code, const std::string &text) {
  recent = "EF" + std::to_string(code) + ": " + text;
  return code;
}

// Live allocations, of devices and of the host, by their first address.
struct Memory {
  struct Range {
    uint64_t bytes;
    int device;        // -1: of the host
    bool is_reachable; // kernels may use it
    void *block;       // what is given back to the C library
  };

  std::mutex lock;
  std::map<uint64_t, Range> ranges;

  // The allocation that holds an address, or the end.
  std::map<uint64_t, Range>::iterator holding(uint64_t address) {
    auto next = ranges.upper_bound(address);
    if (next == ranges.begin()) return ranges.end();
    auto found = std::prev(next);
    return address - found->first < found->second.bytes ? found : ranges.end();
  }

  bool holds(const void *address, uint64_t bytes, bool on_device) {
    std::lock_guard<std::mutex> guard(lock);
    auto found = holding(uint64_t(address));
    if (found == ranges.end() || (found->second.device >= 0) != on_device) return false;
    return bytes <= found->second.bytes - (uint64_t(address) - found->first);
  }
};

inline Memory &memory() {
  static Memory *all = new Memory;
  return *all;
}

struct Stream;
struct Device;

// What every call that needs a context begins with: it is counted, and gets the device, or a code.
int begin(const char *function, Device **device);

struct Device {
  int id;
  uint64_t used = 0;  // bytes of device memory, under the lock of `memory()`
  std::mutex lock;
  std::condition_variable changed;  // a task ended, or the device broke
  int broken = 0;                   // the code that everything gives from now on
  std::string why;

  void break_with(int code, const std::string &text) {
    std::lock_guard<std::mutex> guard(lock);
    if (!broken) broken = code, why = text;
    changed.notify_all();
  }

  // The code of a broken device, with its sentence for the calling thread.
  int state() {
    std::lock_guard<std::mutex> guard(lock);
    return broken ? fail(broken, why) : ACL_SUCCESS;
  }
};

inline std::vector<Device *> &devices() {
  static auto *all = [] {
    auto *made = new std::vector<Device *>;
    for (uint64_t i = 0; i < settings().devices; ++i) {
      made->push_back(new Device);
      made->back()->id = int(i);
    }
    return made;
  }();
  return *all;
}

// Work of a stream: 0, or the code with which the device breaks.
struct Task {
  std::function<int(std::string &)> run;
  std::function<bool()> may_start;  // absent: at once
};

struct Event {
  Device *device;
  // Under the lock of the device: how often it was recorded, and how many of these have passed.
  uint64_t recorded = 0, passed = 0;
  std::chrono::steady_clock::time_point when;
};

struct Graph {
  Device *device;
  std::vector<Task> tasks;
};

struct Stream {
  Device *device;
  // Under the lock of the device.
  std::deque<Task> tasks;
  bool is_busy = false, is_ending = false;
  std::thread thread;
  // A capture: used by the thread that uses the stream.
  std::unique_ptr<Graph> capture;
  bool capture_is_invalid = false;

  explicit Stream(Device *on) : device(on), thread([this] { work(); }) {}

  ~Stream() {
    {
      std::lock_guard<std::mutex> guard(device->lock);
      is_ending = true;
      device->changed.notify_all();
    }
    thread.join();
  }

  void add(Task task) {
    if (capture) {
      capture->tasks.push_back(std::move(task));
      return;
    }
    std::lock_guard<std::mutex> guard(device->lock);
    tasks.push_back(std::move(task));
    device->changed.notify_all();
  }

  // Blocks until all work is done; the code of a broken device.
  int wait() {
    std::unique_lock<std::mutex> guard(device->lock);
    device->changed.wait(guard, [this] { return device->broken || (tasks.empty() && !is_busy); });
    return device->broken ? fail(device->broken, device->why) : ACL_SUCCESS;
  }

 private:
  void work();
};

inline std::atomic<uint64_t> tasks_run{0};

inline void Stream::work() {
  std::unique_lock<std::mutex> guard(device->lock);
  for (;;) {
    auto can_go = [this] {
      if (device->broken) return true;
      return tasks.empty() ? is_ending : !tasks.front().may_start || tasks.front().may_start();
    };
    device->changed.wait(guard, can_go);
    if (device->broken) {
      // Nothing that is queued on a broken device runs.
      tasks.clear();
      if (is_ending) return;
      device->changed.wait(guard, [this] { return is_ending || !tasks.empty(); });
      continue;
    }
    if (tasks.empty()) return;
    Task task = std::move(tasks.front());
    tasks.pop_front();
    is_busy = true;
    guard.unlock();
    std::string text;
    int code = 0;
    if (settings().lost_at && ++tasks_run == settings().lost_at) {
      code = ACL_ERROR_RT_LOST_HEARTBEAT;
      text = "the heartbeat of device " + std::to_string(device->id) + " is lost";
    } else {
      code = task.run(text);
    }
    task = {};
    if (code) device->break_with(code, text);
    guard.lock();
    is_busy = false;
    device->changed.notify_all();
  }
}

}  // namespace fake
