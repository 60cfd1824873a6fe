// Fake collectives (libhccl.so) among the devices of this process: each rank's part runs in the thread of its stream.
//
// The parts of one call meet: the last that comes does the work of all, in the order of the ranks, so that equal inputs give equal bits.
// Calls are matched by their number, which is how many calls of the group the rank has made; those of a pair by the pair's. Kept are:
// the count of ranks, what each says of the call, memory for the group on each device, a device that is lost, and patience:
//
//   24  a device has no memory for the group's buffers        9  ranks that do not come (hccl_ms in settings.h)
//   21  another rank's device is lost, or its call failed      1  ranks that do not say the same of a call
//
// What comes to pass in a stream is asked for by HcclGetCommAsyncError, and the stream's device gives 507057 from then on.

#include "../include/di_hccl.h"

#include <cstdio>

#include "device.h"

namespace fake {

void *allocate(Device *device, size_t size);
int release(void *address, bool on_device);

}  // namespace fake

namespace {

using namespace fake;

constexpr uint64_t GROUP_BYTES = 1 << 20;

// One rank's part of a call.
struct Part {
  std::string what;  // which call, with all that must be the same for every rank
  const char *send;
  char *receive;
  std::vector<uint64_t> send_counts, send_places, receive_counts, receive_places;  // in bytes
  HcclDataType type;
  HcclReduceOp op;
  uint64_t bytes;
  uint32_t root;
};

using Parts = std::map<uint32_t, Part>;

struct Meeting {
  Parts parts;
  size_t wanted;
  bool is_done = false;
};

struct Group {
  std::mutex lock;
  std::condition_variable changed;
  uint32_t ranks = 0, joined = 0;
  int failed = 0;  // what went wrong for any rank
  std::map<std::string, std::shared_ptr<Meeting>> meetings;
  std::vector<Device *> devices;
};

struct Member {
  std::shared_ptr<Group> group;
  uint32_t rank;
  Device *device;
  void *memory;
  std::string name;
  std::map<std::string, uint64_t> calls;  // used by the thread that uses the stream
  std::atomic<int> error{HCCL_SUCCESS};
};

std::mutex &groups_lock() {
  static auto *lock = new std::mutex;
  return *lock;
}

std::map<std::string, std::shared_ptr<Group>> &groups() {
  static auto *all = new std::map<std::string, std::shared_ptr<Group>>;
  return *all;
}

std::chrono::milliseconds patience() { return std::chrono::milliseconds(settings().hccl_ms); }

uint64_t size_of(HcclDataType type) {
  switch (type) {
    case HCCL_DATA_TYPE_FP32:
    case HCCL_DATA_TYPE_INT32: return 4;
    case HCCL_DATA_TYPE_INT64: return 8;
    case HCCL_DATA_TYPE_BFP16: return 2;
    case HCCL_DATA_TYPE_INT8:
    case HCCL_DATA_TYPE_UINT8:
    case HCCL_DATA_TYPE_FP8E4M3: return 1;
  }
  return 0;
}

template <class T> T reduced(T a, T b, HcclReduceOp op) {
  switch (op) {
    case HCCL_REDUCE_SUM: return T(a + b);
    case HCCL_REDUCE_PROD: return T(a * b);
    case HCCL_REDUCE_MAX: return a < b ? b : a;
    case HCCL_REDUCE_MIN: return b < a ? b : a;
  }
  return a;
}

float widened(uint16_t bits) {
  const uint32_t wide = uint32_t(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

uint16_t narrowed(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return value != value ? 0x7FC0 : uint16_t((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// Takes `from` into `to`, element by element. BF16 is rounded at each step, as a ring of devices does.
void reduce(char *to, const char *from, uint64_t bytes, HcclDataType type, HcclReduceOp op) {
  const uint64_t size = size_of(type);
  for (uint64_t at = 0; at < bytes; at += size) {
    auto with = [&](auto example) {
      decltype(example) a, b;
      std::memcpy(&a, to + at, sizeof a);
      std::memcpy(&b, from + at, sizeof b);
      a = reduced(a, b, op);
      std::memcpy(to + at, &a, sizeof a);
    };
    if (type == HCCL_DATA_TYPE_FP32) with(float());
    else if (type == HCCL_DATA_TYPE_INT32) with(int32_t());
    else if (type == HCCL_DATA_TYPE_INT64) with(int64_t());
    else if (type == HCCL_DATA_TYPE_BFP16) {
      uint16_t a, b;
      std::memcpy(&a, to + at, 2);
      std::memcpy(&b, from + at, 2);
      a = narrowed(reduced(widened(a), widened(b), op));
      std::memcpy(to + at, &a, 2);
    }
  }
}

// The reduction of everybody's piece.
std::vector<char> reduction(const Parts &parts, uint64_t at, uint64_t bytes) {
  std::vector<char> sum;
  for (const auto &[rank, part] : parts) {
    if (sum.empty()) sum.assign(part.send + at, part.send + at + bytes);
    else reduce(sum.data(), part.send + at, bytes, part.type, part.op);
  }
  return sum;
}

using Work = void (*)(Parts &);

// A call of a rank: it is queued, and meets the others when the stream comes to it.
HcclResult meet(const char *function, HcclComm comm, aclrtStream stream, const std::string &place, size_t wanted, Part part, Work work) {
  Device *device = nullptr;
  if (begin(function, &device)) return HCCL_E_RUNTIME;
  auto *member = static_cast<Member *>(comm);
  auto *on = static_cast<Stream *>(stream);
  if (!member || !on) return HCCL_E_PTR;
  if (on->device != device || member->device != device || size_of(part.type) == 0) return HCCL_E_PARA;
  const std::string key = place + " " + std::to_string(++member->calls[place]);
  auto run = [=](std::string &text) {
    Group &group = *member->group;
    std::unique_lock<std::mutex> guard(group.lock);
    auto fail_with = [&](int code, const char *why) {
      member->error = code;
      if (!group.failed) group.failed = code;
      group.changed.notify_all();
      text = std::string(function) + ", rank " + std::to_string(member->rank) + ": " + why;
      return 507057;
    };
    std::shared_ptr<Meeting> &found = group.meetings[key];
    if (!found) found = std::make_shared<Meeting>(Meeting{{}, wanted});
    std::shared_ptr<Meeting> meeting = found;
    for (const auto &[rank, other] : meeting->parts)
      if (other.what != part.what) return fail_with(HCCL_E_PARA, "the ranks do not say the same of a call");
    meeting->parts[member->rank] = part;
    if (meeting->parts.size() == wanted) {
      work(meeting->parts);
      meeting->is_done = true;
      group.meetings.erase(key);
      group.changed.notify_all();
      return 0;
    }
    const auto end = std::chrono::steady_clock::now() + patience();
    while (!meeting->is_done) {
      // Nobody tells of a device that is lost: it is looked at now and then.
      group.changed.wait_for(guard, std::chrono::milliseconds(2));
      if (meeting->is_done) return 0;
      if (group.failed) return fail_with(HCCL_E_REMOTE, "the call of another rank failed");
      for (Device *other : group.devices) {
        if (other == device) continue;
        std::lock_guard<std::mutex> state(other->lock);
        if (other->broken) return fail_with(HCCL_E_REMOTE, "the device of another rank is lost");
      }
      if (std::chrono::steady_clock::now() > end) return fail_with(HCCL_E_TIMEOUT, "the other ranks did not come");
    }
    return 0;
  };
  on->add({run, {}});
  return HCCL_SUCCESS;
}

HcclResult meet_all(const char *function, HcclComm comm, aclrtStream stream, Part part, Work work) {
  auto *member = static_cast<Member *>(comm);
  if (!member) return HCCL_E_PTR;
  return meet(function, comm, stream, "all", member->group->ranks, std::move(part), work);
}

// A call that is the same for every rank but for the addresses.
Part same(const char *function, const void *send, void *receive, uint64_t count, HcclDataType type, int op, uint32_t root) {
  char what[128];
  std::snprintf(what, sizeof what, "%s %llu %d %d %u", function, (unsigned long long)count, int(type), op, root);
  Part part{};
  part.what = what;
  part.send = static_cast<const char *>(send);
  part.receive = static_cast<char *>(receive);
  part.type = type;
  part.op = HcclReduceOp(op);
  part.bytes = count * size_of(type);
  part.root = root;
  return part;
}

std::vector<uint64_t> in_bytes(const void *counts, uint32_t ranks, HcclDataType type) {
  std::vector<uint64_t> all(static_cast<const uint64_t *>(counts), static_cast<const uint64_t *>(counts) + ranks);
  for (uint64_t &one : all) one *= size_of(type);
  return all;
}

// What a rank sends to itself and others has one way only: checked by the receiver.
void exchange(Parts &parts) {
  for (auto &[to, receiver] : parts)
    for (auto &[from, sender] : parts)
      std::memmove(receiver.receive + receiver.receive_places[from], sender.send + sender.send_places[to],
                   std::min(receiver.receive_counts[from], sender.send_counts[to]));
}

HcclResult pass(const char *function, void *buffer, uint64_t count, HcclDataType type, uint32_t from, uint32_t to, HcclComm comm,
                aclrtStream stream) {
  auto *member = static_cast<Member *>(comm);
  if (!member) return HCCL_E_PTR;
  if (from >= member->group->ranks || to >= member->group->ranks || from == to) return HCCL_E_PARA;
  Part part = same("pass", buffer, buffer, count, type, 0, to);
  const std::string place = std::to_string(from) + " to " + std::to_string(to);
  auto work = [](Parts &parts) {
    Part &receiver = parts.at(parts.begin()->second.root);
    for (auto &[rank, part] : parts)
      if (rank != receiver.root) std::memmove(receiver.receive, part.send, receiver.bytes);
  };
  return meet(function, comm, stream, place, 2, std::move(part), work);
}

}  // namespace

extern "C" {

HcclResult HcclGetRootInfo(HcclRootInfo *info) {
  static std::atomic<int> *number = new std::atomic<int>{0};
  if (!info) return HCCL_E_PTR;
  std::memset(info->internal, 0, sizeof info->internal);
  std::snprintf(info->internal, sizeof info->internal, "group-%d", ++*number);
  return HCCL_SUCCESS;
}

HcclResult HcclCommInitRootInfoConfig(uint32_t ranks, const HcclRootInfo *info, uint32_t rank, const HcclCommConfig *, HcclComm *comm) {
  Device *device = nullptr;
  if (begin(__func__, &device)) return HCCL_E_RUNTIME;
  if (!info || !comm) return HCCL_E_PTR;
  if (ranks == 0 || rank >= ranks) return HCCL_E_PARA;
  void *memory = allocate(device, GROUP_BYTES);
  if (!memory) return HCCL_E_OOM;
  std::shared_ptr<Group> group;
  {
    std::lock_guard<std::mutex> guard(groups_lock());
    std::shared_ptr<Group> &found = groups()[info->internal];
    if (!found) found = std::make_shared<Group>();
    group = found;
  }
  std::unique_lock<std::mutex> guard(group->lock);
  if (group->ranks && group->ranks != ranks) return release(memory, true), HCCL_E_PARA;
  group->ranks = ranks;
  group->devices.push_back(device);
  ++group->joined;
  group->changed.notify_all();
  if (!group->changed.wait_for(guard, patience(), [&] { return group->joined >= ranks; })) return release(memory, true), HCCL_E_TIMEOUT;
  *comm = new Member{group, rank, device, memory, info->internal, {}};
  return HCCL_SUCCESS;
}

HcclResult HcclCommDestroy(HcclComm comm) {
  auto *member = static_cast<Member *>(comm);
  if (!member) return HCCL_E_PTR;
  release(member->memory, true);
  delete member;
  return HCCL_SUCCESS;
}

HcclResult HcclGetCommName(HcclComm comm, char *name) {
  if (!comm || !name) return HCCL_E_PTR;
  std::strcpy(name, static_cast<Member *>(comm)->name.c_str());
  return HCCL_SUCCESS;
}

HcclResult HcclGetRankSize(HcclComm comm, uint32_t *ranks) {
  if (!comm || !ranks) return HCCL_E_PTR;
  return *ranks = static_cast<Member *>(comm)->group->ranks, HCCL_SUCCESS;
}

HcclResult HcclGetRankId(HcclComm comm, uint32_t *rank) {
  if (!comm || !rank) return HCCL_E_PTR;
  return *rank = static_cast<Member *>(comm)->rank, HCCL_SUCCESS;
}

HcclResult HcclGetCommAsyncError(HcclComm comm, HcclResult *error) {
  if (!comm || !error) return HCCL_E_PTR;
  return *error = HcclResult(int(static_cast<Member *>(comm)->error)), HCCL_SUCCESS;
}

HcclResult HcclAllReduce(void *send, void *receive, uint64_t count, HcclDataType type, HcclReduceOp op, HcclComm comm, aclrtStream stream) {
  return meet_all(__func__, comm, stream, same("all_reduce", send, receive, count, type, op, 0), [](Parts &parts) {
    const std::vector<char> sum = reduction(parts, 0, parts.begin()->second.bytes);
    for (auto &[rank, part] : parts) std::memcpy(part.receive, sum.data(), sum.size());
  });
}

HcclResult HcclBroadcast(void *buffer, uint64_t count, HcclDataType type, uint32_t root, HcclComm comm, aclrtStream stream) {
  if (comm && root >= static_cast<Member *>(comm)->group->ranks) return HCCL_E_PARA;
  return meet_all(__func__, comm, stream, same("broadcast", buffer, buffer, count, type, 0, root), [](Parts &parts) {
    const Part &from = parts.at(parts.begin()->second.root);
    for (auto &[rank, part] : parts) std::memmove(part.receive, from.send, part.bytes);
  });
}

HcclResult HcclReduceScatter(void *send, void *receive, uint64_t count, HcclDataType type, HcclReduceOp op, HcclComm comm, aclrtStream stream) {
  return meet_all(__func__, comm, stream, same("reduce_scatter", send, receive, count, type, op, 0), [](Parts &parts) {
    std::vector<std::vector<char>> sums;
    for (auto &[rank, part] : parts) sums.push_back(reduction(parts, rank * part.bytes, part.bytes));
    for (auto &[rank, part] : parts) std::memcpy(part.receive, sums[rank].data(), part.bytes);
  });
}

HcclResult HcclAllGather(void *send, void *receive, uint64_t count, HcclDataType type, HcclComm comm, aclrtStream stream) {
  return meet_all(__func__, comm, stream, same("all_gather", send, receive, count, type, 0, 0), [](Parts &parts) {
    for (auto &[to, receiver] : parts)
      for (auto &[from, sender] : parts) std::memmove(receiver.receive + from * receiver.bytes, sender.send, sender.bytes);
  });
}

HcclResult HcclAlltoAllV(const void *send, const void *send_counts, const void *send_places, HcclDataType send_type, const void *receive,
                         const void *receive_counts, const void *receive_places, HcclDataType receive_type, HcclComm comm, aclrtStream stream) {
  if (!comm || !send_counts || !send_places || !receive_counts || !receive_places) return HCCL_E_PTR;
  if (send_type != receive_type) return HCCL_E_PARA;
  const uint32_t ranks = static_cast<Member *>(comm)->group->ranks;
  Part part = same("all_to_all", send, const_cast<void *>(receive), 0, send_type, 0, 0);
  part.send_counts = in_bytes(send_counts, ranks, send_type);
  part.send_places = in_bytes(send_places, ranks, send_type);
  part.receive_counts = in_bytes(receive_counts, ranks, receive_type);
  part.receive_places = in_bytes(receive_places, ranks, receive_type);
  return meet_all(__func__, comm, stream, std::move(part), exchange);
}

HcclResult HcclSend(void *buffer, uint64_t count, HcclDataType type, uint32_t to, HcclComm comm, aclrtStream stream) {
  if (!comm) return HCCL_E_PTR;
  return pass(__func__, buffer, count, type, static_cast<Member *>(comm)->rank, to, comm, stream);
}

HcclResult HcclRecv(void *buffer, uint64_t count, HcclDataType type, uint32_t from, HcclComm comm, aclrtStream stream) {
  if (!comm) return HCCL_E_PTR;
  return pass(__func__, buffer, count, type, from, static_cast<Member *>(comm)->rank, comm, stream);
}

HcclResult HcclBarrier(HcclComm comm, aclrtStream stream) {
  return meet_all(__func__, comm, stream, same("barrier", nullptr, nullptr, 0, HCCL_DATA_TYPE_UINT8, 0, 0), [](Parts &) {});
}

}  // extern "C"
