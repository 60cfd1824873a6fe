// What the fake runtime is told from outside: DEEPINFER_FAKE_ACL, settings apart by commas.
//
//   devices=2                how many devices there are (1); 0 is a runtime that finds none
//   hbm=64M                  memory of a device, with K, M or G (4G)
//   cores=8                  vector cores of a device (8)
//   soc=Ascend950DT_9582     what the chip calls itself
//   mapped=0                 host memory cannot be mapped into the device
//   opapi=all                the vendor's ops are there (opapi.cpp); opapi=without:aclnnMatmul: all but one
//   hccl_ms=10000            how long a rank waits for the others (10000)
//   oom_at=12                the 12th allocation of device memory, counted from 1, does not fit
//   lost_at=30               the device loses its heartbeat at the 30th piece of work that a stream runs
//   wild_at=30               the 30th kernel that runs makes a wild access: 507035
//   stuck_at=30              the 30th kernel that runs never comes to an end: 507034
//   fail=aclrtMalloc:3:207001   the third call of a function gives this code; may be given several times
//   lost=aclrtRecordEvent:9  the device loses its heartbeat before the ninth call of a function
//   count=FILE               how often each function was called, written when things are given back
//
// A setting that does not exist ends aclInit with 100000 and a sentence.

#pragma once

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

namespace fake {

struct Planned {
  std::string function;
  uint64_t nth;
  int code;
};

struct Settings {
  uint64_t devices = 1, hbm = uint64_t(4) << 30, cores = 8, mapped = 1, hccl_ms = 10000;
  uint64_t oom_at = 0, lost_at = 0, wild_at = 0, stuck_at = 0;
  std::string soc = "Ascend950DT_9582", opapi, count;
  std::vector<Planned> fails, losses;
  std::string problem;
  uint64_t seed = 0;

  Settings() {
    if (const char *text = std::getenv("DEEPINFER_TWIN_SEED")) seed = std::strtoull(text, nullptr, 0);
    const char *text = std::getenv("DEEPINFER_FAKE_ACL");
    std::istringstream all(text ? text : "");
    for (std::string one; std::getline(all, one, ',');)
      if (!one.empty() && !take(one)) problem = "DEEPINFER_FAKE_ACL: " + one + " is no setting of the fake runtime";
  }

 private:
  bool take(const std::string &one) {
    size_t equals = one.find('=');
    if (equals == std::string::npos) return false;
    std::string name = one.substr(0, equals), value = one.substr(equals + 1);
    if (name == "soc") return soc = value, true;
    if (name == "opapi") return opapi = value, value == "all" || value.rfind("without:", 0) == 0;
    if (name == "count") return count = value, true;
    if (name == "fail" || name == "lost") return plan(value, name == "lost");
    const std::map<std::string, uint64_t *> numbers = {
        {"devices", &devices}, {"hbm", &hbm},         {"cores", &cores},     {"mapped", &mapped},
        {"oom_at", &oom_at},   {"lost_at", &lost_at}, {"wild_at", &wild_at}, {"stuck_at", &stuck_at}, {"hccl_ms", &hccl_ms}};
    auto found = numbers.find(name);
    return found != numbers.end() && number(value, *found->second);
  }

  static bool number(const std::string &text, uint64_t &to) {
    char *end = nullptr;
    uint64_t value = std::strtoull(text.c_str(), &end, 10);
    if (end == text.c_str()) return false;
    std::string unit = end;
    int shift = unit.empty() ? 0 : unit == "K" ? 10 : unit == "M" ? 20 : unit == "G" ? 30 : -1;
    if (shift < 0) return false;
    return to = value << shift, true;
  }

  bool plan(const std::string &value, bool is_lost) {
    size_t first = value.find(':'), second = is_lost ? value.size() : value.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) return false;
    uint64_t nth = 0, code = 0;
    if (!number(value.substr(first + 1, second - first - 1), nth)) return false;
    if (!is_lost && !number(value.substr(second + 1), code)) return false;
    (is_lost ? losses : fails).push_back({value.substr(0, first), nth, int(code)});
    return true;
  }
};

// Settings are read once. Nothing here is ever destroyed: threads of streams may outlive the end of the program.
inline const Settings &settings() {
  static const Settings *all = new Settings;
  return *all;
}

// What was planned for one call of a function.
struct Verdict {
  int code = 0;
  bool is_lost = false;
};

// Counts a call and says what was planned for it.
inline Verdict counted(const char *function) {
  static std::mutex *lock = new std::mutex;
  static auto *calls = new std::map<std::string, uint64_t>;
  std::lock_guard<std::mutex> guard(*lock);
  uint64_t now = ++(*calls)[function];
  const std::string name = function;
  if (!settings().count.empty() && (name.find("Destroy") != std::string::npos || name.find("Free") != std::string::npos)) {
    std::ofstream file(settings().count);
    for (const auto &[each, times] : *calls) file << each << ' ' << times << '\n';
  }
  Verdict verdict;
  for (const Planned &plan : settings().fails)
    if (plan.function == name && plan.nth == now) verdict.code = plan.code;
  for (const Planned &plan : settings().losses)
    if (plan.function == name && plan.nth == now) verdict.is_lost = true;
  return verdict;
}

}  // namespace fake
