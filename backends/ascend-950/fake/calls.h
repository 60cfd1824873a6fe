// Calls of the fake's functions: counted, and what was planned for each.

#pragma once

#include <mutex>

#include "settings.h"

namespace fake {

inline const Planned *planned(const std::vector<Planned> &plans, const std::string &function, uint64_t nth) {
  for (const Planned &plan : plans)
    if (plan.function == function && plan.nth == nth) return &plan;
  return nullptr;
}

// Counts a call, and says how many there were.
inline uint64_t counted(const std::string &function) {
  static std::mutex *lock = new std::mutex;
  static auto *calls = new std::map<std::string, uint64_t>;
  std::lock_guard<std::mutex> guard(*lock);
  const uint64_t now = ++(*calls)[function];
  if (!settings().count.empty() && (function.find("Destroy") != std::string::npos || function.find("Free") != std::string::npos)) {
    std::ofstream file(settings().count);
    for (const auto &[each, times] : *calls) file << each << ' ' << times << '\n';
  }
  return now;
}

// What was planned for one call of a function.
struct Verdict {
  int code = 0;
  bool is_lost = false;
};

// Counts a call of a function that can fail, and says what was planned for it.
inline Verdict verdict(const char *function, bool of_device) {
  const Fallible *known = function_named(function);
  // A function that is not in the list could not be planned for: a mistake of the fake's author.
  if (!known || known->of_device != of_device) std::abort();
  const uint64_t now = counted(function);
  const Planned *code = planned(settings().fails, function, now);
  return {code ? int(code->value) : 0, planned(settings().losses, function, now) != nullptr};
}

}  // namespace fake
