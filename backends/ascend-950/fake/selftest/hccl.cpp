// The fake collectives: what they give, and what becomes of ranks that fail. One scenario for each run, by its name; tests/tests
// starts them, each with its settings. The exit code is 0 if all is right.

#include "../../include/di_hccl.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#define CHECK(...)                                                       \
  do {                                                                   \
    if (!(__VA_ARGS__)) {                                                \
      std::printf("line %d: not so: %s\n", __LINE__, #__VA_ARGS__);     \
      std::fflush(stdout);                                               \
      std::_Exit(1);                                                     \
    }                                                                    \
  } while (0)

namespace {

constexpr uint32_t RANKS = 3;

struct Rank {
  uint32_t rank;
  HcclComm comm;
  aclrtStream stream;
  HcclResult joined;

  void *memory(size_t bytes) {
    void *address = nullptr;
    CHECK(aclrtMalloc(&address, bytes, ACL_MEM_MALLOC_HUGE_FIRST) == 0);
    return address;
  }

  template <class T> T *tensor(const std::vector<T> &values) {
    T *address = static_cast<T *>(memory(values.size() * sizeof(T)));
    std::memcpy(address, values.data(), values.size() * sizeof(T));
    return address;
  }

  template <class T> bool holds(const T *address, const std::vector<T> &values) {
    CHECK(aclrtSynchronizeStream(stream) == 0);
    return std::memcmp(address, values.data(), values.size() * sizeof(T)) == 0;
  }

  HcclResult error() {
    HcclResult error = HCCL_SUCCESS;
    CHECK(HcclGetCommAsyncError(comm, &error) == HCCL_SUCCESS);
    return error;
  }
};

// A thread and a device for each of `present` ranks of a group of three.
void each(uint32_t present, const std::function<void(Rank &)> &act) {
  HcclRootInfo info;
  CHECK(HcclGetRootInfo(&info) == HCCL_SUCCESS);
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < present; ++i)
    threads.emplace_back([&, i] {
      Rank rank{i, nullptr, nullptr, HCCL_SUCCESS};
      CHECK(aclrtSetDevice(int32_t(i)) == 0);
      CHECK(aclrtCreateStreamWithConfig(&rank.stream, 0, 0) == 0);
      rank.joined = HcclCommInitRootInfoConfig(RANKS, &info, i, nullptr, &rank.comm);
      act(rank);
    });
  for (std::thread &thread : threads) thread.join();
}

void results(Rank &r) {
  CHECK(r.joined == HCCL_SUCCESS);
  uint32_t size = 0, id = 0;
  char name[128];
  CHECK(HcclGetRankSize(r.comm, &size) == 0 && size == RANKS && HcclGetRankId(r.comm, &id) == 0 && id == r.rank);
  CHECK(HcclGetCommName(r.comm, name) == 0 && std::strncmp(name, "group-", 6) == 0);
  const float own = float(r.rank + 1);

  float *x = r.tensor<float>({own, 10 * own, -own}), *y = r.tensor<float>({0, 0, 0});
  CHECK(HcclAllReduce(x, y, 3, HCCL_DATA_TYPE_FP32, HCCL_REDUCE_SUM, r.comm, r.stream) == 0);
  CHECK(r.holds(y, {6.0f, 60.0f, -6.0f}));
  CHECK(HcclAllReduce(x, x, 3, HCCL_DATA_TYPE_FP32, HCCL_REDUCE_MAX, r.comm, r.stream) == 0);
  CHECK(r.holds(x, {3.0f, 30.0f, -1.0f}));

  // 256 + 1 + 1 in BF16: the ones are lost one after the other, whoever comes first.
  uint16_t *narrow = r.tensor<uint16_t>({uint16_t(r.rank == 0 ? 0x4380 : 0x3F80)});
  CHECK(HcclAllReduce(narrow, narrow, 1, HCCL_DATA_TYPE_BFP16, HCCL_REDUCE_SUM, r.comm, r.stream) == 0);
  CHECK(r.holds(narrow, {uint16_t(0x4380)}));

  int32_t *all = r.tensor<int32_t>({0, 0, 0}), *one = r.tensor<int32_t>({int32_t(r.rank)});
  CHECK(HcclAllGather(one, all, 1, HCCL_DATA_TYPE_INT32, r.comm, r.stream) == 0);
  CHECK(r.holds(all, {0, 1, 2}));
  CHECK(HcclReduceScatter(all, one, 1, HCCL_DATA_TYPE_INT32, HCCL_REDUCE_SUM, r.comm, r.stream) == 0);
  CHECK(r.holds(one, {int32_t(3 * r.rank)}));
  CHECK(HcclBroadcast(one, 1, HCCL_DATA_TYPE_INT32, 2, r.comm, r.stream) == 0);
  CHECK(r.holds(one, {6}));

  // Rank r sends s + 1 bytes of its number to rank s.
  std::vector<uint8_t> sent(6, uint8_t(r.rank)), received(3 * (r.rank + 1), 99), wanted;
  for (uint32_t from = 0; from < RANKS; ++from) wanted.insert(wanted.end(), r.rank + 1, uint8_t(from));
  const uint64_t send_counts[] = {1, 2, 3}, send_places[] = {0, 1, 3}, own_count = r.rank + 1;
  const uint64_t receive_counts[] = {own_count, own_count, own_count}, receive_places[] = {0, own_count, 2 * own_count};
  uint8_t *from = r.tensor(sent), *to = r.tensor(received);
  CHECK(HcclAlltoAllV(from, send_counts, send_places, HCCL_DATA_TYPE_UINT8, to, receive_counts, receive_places, HCCL_DATA_TYPE_UINT8,
                      r.comm, r.stream) == 0);
  CHECK(r.holds(to, wanted));

  // A pair leaves the third alone.
  if (r.rank == 0) CHECK(HcclSend(from, 4, HCCL_DATA_TYPE_UINT8, 2, r.comm, r.stream) == 0);
  if (r.rank == 2) {
    CHECK(HcclRecv(to, 4, HCCL_DATA_TYPE_UINT8, 0, r.comm, r.stream) == 0);
    CHECK(r.holds(to, std::vector<uint8_t>(4, 0)));
  }
  CHECK(HcclSend(from, 4, HCCL_DATA_TYPE_UINT8, r.rank, r.comm, r.stream) == HCCL_E_PARA);
  CHECK(HcclBarrier(r.comm, r.stream) == 0);
  CHECK(aclrtSynchronizeStream(r.stream) == 0 && r.error() == HCCL_SUCCESS);
  CHECK(HcclCommDestroy(r.comm) == 0);
}

// One rank's device is lost before its call.
void lost(Rank &r) {
  CHECK(r.joined == HCCL_SUCCESS);
  void *x = r.memory(64);
  if (r.rank == 1) {
    // As the settings say, the first fill ends the device.
    CHECK(aclrtMemsetAsync(x, 64, 0, 64, r.stream) == 507010);
    return;
  }
  CHECK(HcclAllReduce(x, x, 16, HCCL_DATA_TYPE_FP32, HCCL_REDUCE_SUM, r.comm, r.stream) == 0);
  CHECK(aclrtSynchronizeStream(r.stream) == 507057);
  CHECK(r.error() == HCCL_E_REMOTE);
}

// One rank makes no call.
void late(Rank &r) {
  CHECK(r.joined == HCCL_SUCCESS);
  if (r.rank == 1) return;
  CHECK(HcclBarrier(r.comm, r.stream) == 0);
  CHECK(aclrtSynchronizeStream(r.stream) == 507057);
  CHECK(r.error() == HCCL_E_TIMEOUT || r.error() == HCCL_E_REMOTE);
}

// One rank says another count.
void different(Rank &r) {
  CHECK(r.joined == HCCL_SUCCESS);
  void *x = r.memory(64);
  CHECK(HcclAllReduce(x, x, r.rank == 1 ? 8 : 16, HCCL_DATA_TYPE_FP32, HCCL_REDUCE_SUM, r.comm, r.stream) == 0);
  CHECK(aclrtSynchronizeStream(r.stream) == 507057);
  CHECK(r.error() == HCCL_E_PARA || r.error() == HCCL_E_REMOTE);
}

}  // namespace

int main(int count, char **arguments) {
  const std::string name = count > 1 ? arguments[1] : "";
  CHECK(aclInit(nullptr) == 0);
  if (name == "results") each(RANKS, results);
  else if (name == "lost") each(RANKS, lost);
  else if (name == "late") each(RANKS, late);
  else if (name == "different") each(RANKS, different);
  else if (name == "absent") each(RANKS - 1, [](Rank &r) { CHECK(r.joined == HCCL_E_TIMEOUT); });
  else if (name == "memory") each(RANKS, [](Rank &r) { CHECK(r.joined == HCCL_E_OOM); });
  else return std::printf("%s is no scenario\n", name.c_str()), 1;
  std::printf("%s: right\n", name.c_str());
  std::fflush(stdout);
  // Threads of streams are still there.
  std::_Exit(0);
}
