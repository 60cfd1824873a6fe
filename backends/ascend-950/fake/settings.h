// What the fake runtime is told from outside: DEEPINFER_FAKE_ACL, settings apart by commas.
//
//   devices=2                how many devices there are (1); 0 is a runtime that finds none
//   hbm=64M                  memory of a device, with K, M or G (4G)
//   cores=8                  vector cores of a device (8)
//   soc=Ascend950DT_9582     what the chip calls itself
//   mapped=0                 host memory cannot be mapped into the device
//   opapi=all                the vendor's ops are there (opapi.cpp); opapi=without:aclnnMatmul: all functions but one;
//                            opapi=none: there is no libopapi.so, and that is told as of a device
//   hccl_ms=10000            how long a rank waits for the others (10000)
//   oom_at=12                the 12th allocation of device memory, counted from 1, does not fit
//   lost_at=30               the device loses its heartbeat at the 30th piece of work that a stream runs
//   wild_at=30               the 30th kernel that runs makes a wild access: 507035
//   stuck_at=30              the 30th kernel that runs never comes to an end: 507034
//   fail=aclrtMalloc:3:207001   the third call of a function (functions.h) gives this code
//   lost=aclrtRecordEvent:9  the device loses its heartbeat before the ninth call of a function
//   stale=aclnnMatmul:2      the second plan of a vendor op gives the executor of the plan before it
//   workspace=aclnnMatmul:1:0   the first plan of a vendor op says that it needs so many bytes, whatever it needs
//   count=FILE               how often each function was called, written when things are given back
//
// fail, lost, stale and workspace may be given several times. What destroys an object does so whatever it is told to give.
//
// DEEPINFER_TWIN_SEED=N     the seed of the twin (0)
//
// What cannot be understood, here or there, ends aclInit with 100000 and a sentence, which di_fake_problem gives, too.

#pragma once

#include <cctype>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "functions.h"

namespace fake {

// Something about one call of a function, counted from 1.
struct Planned {
  std::string function;
  uint64_t nth;
  uint64_t value;
};

// A whole number in digits: no sign, no unit, nothing beyond 64 bits.
inline bool whole(const std::string &text, uint64_t &to, unsigned base = 10) {
  uint64_t value = 0;
  for (const char c : text) {
    const char *digits = "0123456789abcdef", *found = c ? std::strchr(digits, std::tolower(static_cast<unsigned char>(c))) : nullptr;
    const uint64_t digit = found ? uint64_t(found - digits) : base;
    if (digit >= base || value > (UINT64_MAX - digit) / base) return false;
    value = value * base + digit;
  }
  return !text.empty() && (to = value, true);
}

struct Settings {
  uint64_t devices = 1, hbm = uint64_t(4) << 30, cores = 8, mapped = 1, hccl_ms = 10000;
  uint64_t oom_at = 0, lost_at = 0, wild_at = 0, stuck_at = 0;
  std::string soc = "Ascend950DT_9582", opapi, count;
  std::vector<Planned> fails, losses, stales, workspaces;
  // Why something of it cannot be understood: a sentence, or empty.
  std::string problem;
  uint64_t seed = 0;

  Settings() {
    if (const char *text = std::getenv("DEEPINFER_FAKE_ACL")) read(text);
    const char *text = std::getenv("DEEPINFER_TWIN_SEED");
    if (!text || !*text) return;
    const std::string all = text;
    if (all.rfind("0x", 0) == 0 ? !whole(all.substr(2), seed, 16) : !whole(all, seed))
      problem = "DEEPINFER_TWIN_SEED is \"" + all + "\", but a seed is a whole number from 0 to " + std::to_string(UINT64_MAX) +
                ", decimal or 0x and hexadecimal";
  }

 private:
  using Why = std::string;

  void read(const std::string &text) {
    std::istringstream all(text);
    std::set<std::string> given;
    for (std::string one; std::getline(all, one, ',');) {
      const size_t equals = one.find('=');
      const std::string name = one.substr(0, equals);
      Why why = equals == std::string::npos ? "a setting is KEY=VALUE" : take(name, one.substr(equals + 1));
      if (why.empty() && !is_list(name) && !given.insert(name).second) why = name + " is given twice";
      if (!why.empty()) return void(problem = "DEEPINFER_FAKE_ACL: the setting \"" + one + "\" cannot be understood: " + why);
    }
  }

  static bool is_list(const std::string &name) { return name == "fail" || name == "lost" || name == "stale" || name == "workspace"; }

  // Empty if the setting is taken, else the end of a sentence.
  Why take(const std::string &name, const std::string &value) {
    if (name == "soc") return soc = value, value.empty() ? "the name of the chip is missing" : "";
    if (name == "opapi") return opapi = value, of_opapi(value);
    if (name == "count") return count = value, std::ofstream(value, std::ios::app) ? "" : "this file cannot be written";
    if (name == "hbm") return bytes(value, hbm);
    if (name == "fail") return plan(value, fails, "fail=FUNCTION:NTH:CODE", 1, INT_MAX);
    if (name == "lost") return plan(value, losses, "lost=FUNCTION:NTH");
    if (name == "stale") return plan(value, stales, "stale=OP:NTH");
    if (name == "workspace") return plan(value, workspaces, "workspace=OP:NTH:BYTES", 0, uint64_t(1) << 60);
    struct Number {
      uint64_t *to, least, most;
    };
    const std::map<std::string, Number> numbers = {
        {"devices", {&devices, 0, 64}},           {"cores", {&cores, 1, 65535}},          {"mapped", {&mapped, 0, 1}},
        {"oom_at", {&oom_at, 1, UINT64_MAX}},     {"lost_at", {&lost_at, 1, UINT64_MAX}}, {"wild_at", {&wild_at, 1, UINT64_MAX}},
        {"stuck_at", {&stuck_at, 1, UINT64_MAX}}, {"hccl_ms", {&hccl_ms, 1, 86400000}}};
    auto found = numbers.find(name);
    if (found == numbers.end()) {
      Why all = "there is no setting " + name + "; there are count, fail, hbm, lost, opapi, soc, stale, workspace";
      for (const auto &[known, number] : numbers) all += ", " + known;
      return all;
    }
    return number(name, value, *found->second.to, found->second.least, found->second.most);
  }

  static Why number(const std::string &name, const std::string &text, uint64_t &to, uint64_t least, uint64_t most) {
    if (whole(text, to) && to >= least && to <= most) return "";
    return name + " is a whole number from " + std::to_string(least) + " to " + std::to_string(most);
  }

  static Why bytes(const std::string &text, uint64_t &to) {
    const std::string units = "KMG";
    const size_t unit = text.empty() ? std::string::npos : units.find(text.back());
    const int shift = unit == std::string::npos ? 0 : 10 * (int(unit) + 1);
    const uint64_t most = uint64_t(1) << 50;
    if (!whole(shift ? text.substr(0, text.size() - 1) : text, to) || to == 0 || to > most >> shift)
      return "hbm is a number of bytes from 1 to 1048576G, with K, M, G or no unit";
    return to <<= shift, "";
  }

  static Why of_opapi(const std::string &value) {
    if (value == "all" || value == "none") return "";
    Why names;
    for (const char *name : OP_FUNCTIONS) {
      if (value == std::string("without:") + name) return "";
      names += std::string(names.empty() ? "" : ", ") + name;
    }
    return "opapi is all, none, or without: and one of " + names;
  }

  // `form` is KEY=FUNCTION:NTH or KEY=OP:NTH, then possibly :VALUE.
  static Why plan(const std::string &text, std::vector<Planned> &to, const std::string &form, uint64_t least = 0, uint64_t most = 0) {
    std::vector<std::string> parts;
    std::istringstream all(text + ":");
    for (std::string part; std::getline(all, part, ':');) parts.push_back(part);
    const bool has_value = form.find(":NTH:") != std::string::npos, is_of_op = form.find("=OP:") != std::string::npos;
    if (parts.size() != (has_value ? 3 : 2)) return "it is of the form " + form;
    const std::string &name = parts[0];
    const Fallible *function = function_named(name);
    if (is_of_op ? !is_op(name) : !function) return (is_of_op ? "no vendor op is called " : "no function that can fail is called ") + name;
    if (form.rfind("lost=", 0) == 0 && !function->of_device) return name + " is called on no device, and loses none";
    // The first plan has none before it.
    Planned made{name, 0, 0};
    Why why = number("NTH", parts[1], made.nth, form.rfind("stale=", 0) == 0 ? 2 : 1, UINT64_MAX);
    if (why.empty() && has_value) why = number(form.substr(form.rfind(':') + 1), parts[2], made.value, least, most);
    return to.push_back(made), why;
  }
};

// Settings are read once. Nothing here is ever destroyed: threads of streams may outlive the end of the program.
inline const Settings &settings() {
  static const Settings *all = new Settings;
  return *all;
}

}  // namespace fake
