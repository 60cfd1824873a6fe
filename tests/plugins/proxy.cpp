/* The backend of another library with one op that goes wrong, so that a model gets as far as that op. Options:
 *   inner=PATH    the library, which is loaded and started here
 *   fault=NAME    what rms_norm does instead of its work; without it everything works:
 *     throw         an exception leaves it, which the header forbids
 *     abort         it ends the process
 *     spin          it never returns
 *   entry=throw   the exception leaves the entry instead
 *   silent=OP     this op promises nothing: neither determinism nor batch invariance
 * Its entry does not say that panics are contained. */
#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "deepinfer_plugin.h"

static DiStr text(const char *literal) { return {reinterpret_cast<const uint8_t *>(literal), std::strlen(literal)}; }

static std::string option(const DiStr &all, const std::string &key) {
  const std::string options = "&" + std::string(reinterpret_cast<const char *>(all.ptr), all.len) + "&";
  const size_t at = options.find("&" + key + "=");
  if (at == std::string::npos) return "";
  const size_t begin = at + key.size() + 2;
  return options.substr(begin, options.find('&', begin) - begin);
}

static DiError *throws(DiBackend *, DiPlan *, DiStream *, const DiOpHeader *) {
  throw std::runtime_error("a bug of the kernel");
}

static DiError *aborts(DiBackend *, DiPlan *, DiStream *, const DiOpHeader *) { std::abort(); }

static DiError *spins(DiBackend *, DiPlan *, DiStream *, const DiOpHeader *) {
  for (;;) pause();
}

static DiRunFn run_of(const std::string &fault) {
  return fault == "throw" ? throws : fault == "abort" ? aborts : fault == "spin" ? spins : nullptr;
}

extern "C" int32_t deepinfer_backend_entry(const DiEntryRequest *request, DiEntryReply *reply) {
  static DiOpEntry ops[256];
  static DiBackendApi api;
  const std::string inner = option(request->options, "inner"), fault = option(request->options, "fault");
  const std::string silent = option(request->options, "silent");
  if (option(request->options, "entry") == "throw") throw std::runtime_error("a bug of the entry");
  void *library = inner.empty() ? nullptr : dlopen(inner.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return DI_E_INVALID;
  const auto enter = reinterpret_cast<DiEntryFn>(dlsym(library, DI_ENTRY_SYMBOL));
  DiEntryRequest plain = *request;
  plain.options.len = 0;
  const int32_t code = enter(&plain, reply);
  if (code != 0) return code;
  api = *reply->api;
  for (size_t i = 0; i < api.n_ops; ++i) {
    const auto *entry = reinterpret_cast<const char *>(reply->api->ops) + i * reply->api->op_stride;
    std::memcpy(&ops[i], entry, sizeof ops[i]);
    if (ops[i].op_id == DI_OP_RMS_NORM && run_of(fault) != nullptr) ops[i].run = run_of(fault);
    const std::string name(reinterpret_cast<const char *>(ops[i].name.ptr), ops[i].name.len);
    if (name == silent) ops[i].flags &= ~(DI_PF_DETERMINISTIC | DI_PF_BATCH_INVARIANT);
  }
  api.ops = ops;
  api.op_stride = sizeof *ops;
  reply->api = &api;
  reply->name = text("proxy");
  reply->flags = 0;
  return 0;
}
