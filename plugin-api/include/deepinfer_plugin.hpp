/* A backend in C++17: exceptions end at the boundary, arguments are typed and checked, ops are a table of functions.
 *
 * Header only; beside it lie deepinfer_plugin.h and deepinfer_plugin_helpers.h. Define DiBackend as a class derived from
 * deepinfer::Contained before the first trampoline, write functions that throw, and put them into the C tables:
 *
 *     struct DiBackend : deepinfer::Contained { ... };
 *     void stream_sync(DiBackend &, DiStream *) { ... throw deepinfer::Failure(DI_E_DEVICE_LOST, "...") ... }
 *     runtime.stream_sync = deepinfer::fallible<stream_sync>;
 *
 *     void rstd(const deepinfer::Call<DiArgsRstdV1> &call) { ... }
 *     const DiOpEntry ops[] = {deepinfer::op<rstd, DI_OP_RSTD, 1>("rstd", "plain", DI_PF_DETERMINISTIC)};
 *
 * What an exception becomes:
 *   deepinfer::Failure      its own code and flags
 *   std::invalid_argument   DI_E_INVALID: the caller broke a rule of the call
 *   std::bad_alloc          DI_E_OOM, retryable
 *   anything else           DI_E_PANIC and poison: nobody knows what state it left, so every later call is refused */
#ifndef DEEPINFER_PLUGIN_HPP
#define DEEPINFER_PLUGIN_HPP
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "deepinfer_plugin_helpers.h"

/* Hidden: templates and inline variables of two plugins in one process must not become one. */
#if defined(__GNUC__)
namespace deepinfer __attribute__((visibility("hidden"))) {
#else
namespace deepinfer {
#endif

/* ---- errors ---- */

/* An error with a code of the boundary. `flags` are DI_EF_*; `vendor_code` is that of the vendor's library. */
class Failure : public std::runtime_error {
 public:
  Failure(std::int32_t code, const std::string &message, std::uint32_t flags = 0, std::int32_t vendor_code = 0)
      : std::runtime_error(message), code_(code), flags_(flags), vendor_code_(vendor_code) {}
  std::int32_t code() const { return code_; }
  std::uint32_t flags() const { return flags_; }
  std::int32_t vendor_code() const { return vendor_code_; }

 private:
  std::int32_t code_;
  std::uint32_t flags_;
  std::int32_t vendor_code_;
};

/* An error object that somebody else made, released when it goes. */
struct ReleaseError {
  void operator()(DiError *error) const noexcept {
    if (error->release != nullptr) error->release(error);
  }
};
using Error = std::unique_ptr<DiError, ReleaseError>;

/* A text of the boundary; not valid longer than its owner. */
inline std::string_view view(DiStr text) { return {reinterpret_cast<const char *>(text.ptr), text.len}; }

namespace detail {

/* The C object and the strings that it points to, as one allocation that the receiver gives back. */
struct OwnedError : DiError {
  std::string origin_text, message_text;
};

inline DiError *make_error(std::int32_t code, std::uint32_t flags, std::int32_t vendor_code, const std::string &origin,
                           const char *message) {
  auto owned = std::make_unique<OwnedError>();
  static_cast<DiError &>(*owned) = DiError{};
  owned->origin_text = origin;
  owned->message_text = message;
  owned->struct_size = sizeof(DiError);
  owned->code = code;
  owned->flags = flags;
  owned->vendor_code = vendor_code;
  owned->origin.ptr = reinterpret_cast<const std::uint8_t *>(owned->origin_text.data());
  owned->origin.len = owned->origin_text.size();
  owned->message.ptr = reinterpret_cast<const std::uint8_t *>(owned->message_text.data());
  owned->message.len = owned->message_text.size();
  owned->release = [](DiError *self) { delete static_cast<OwnedError *>(self); };
  return owned.release();
}

}  // namespace detail

/* Throws what a function of the boundary returned: `check(di_check_tensor(...))`. */
inline void check(DiError *raw) {
  if (raw == nullptr) return;
  Error error(raw);
  throw Failure(error->code, std::string(view(error->message)), error->flags, error->vendor_code);
}

/* ---- containment ---- */

/* What every backend has: a name for its errors, and whether an exception has left it in a state that nobody knows. */
class Contained {
 public:
  explicit Contained(std::string name) : name_(std::move(name)) {}
  const std::string &name() const { return name_; }
  bool is_poisoned() const { return poisoned_.load(std::memory_order_relaxed); }
  void poison() { poisoned_.store(true, std::memory_order_relaxed); }

 private:
  std::string name_;
  std::atomic<bool> poisoned_{false};
};

namespace detail {

/* The error that the exception being handled is, of `name` or `name/op`. Calls `poison` if it is one that does not say what
 * happened. */
template <class Poison>
DiError *error_of_exception(std::string_view name, const char *op, Poison &&poison) noexcept {
  try {
    std::string origin(name);
    if (op != nullptr) origin.append("/").append(op);
    try {
      throw;
    } catch (const Failure &failure) {
      return make_error(failure.code(), failure.flags(), failure.vendor_code(), origin, failure.what());
    } catch (const std::invalid_argument &wrong) {
      return make_error(DI_E_INVALID, 0, 0, origin, wrong.what());
    } catch (const std::bad_alloc &) {
      return make_error(DI_E_OOM, DI_EF_RETRYABLE, 0, origin, "the memory of the host is used up");
    } catch (const std::exception &other) {
      poison();
      const std::string text = std::string("an exception was caught: ") + other.what();
      return make_error(DI_E_PANIC, DI_EF_POISONED, 0, origin, text.c_str());
    } catch (...) {
      poison();
      return make_error(DI_E_PANIC, DI_EF_POISONED, 0, origin, "something that is no std::exception was thrown");
    }
  } catch (...) {
    /* There is no memory for the texts of the error. */
    return di_out_of_memory();
  }
}

}  // namespace detail

/* Runs `work` and turns what it throws into an error of `name` or `name/op`; nothing is allocated when it throws nothing. */
template <class Work, class Poison>
DiError *contain(std::string_view name, const char *op, Work &&work, Poison &&poison) noexcept {
  try {
    work();
    return nullptr;
  } catch (...) {
    return detail::error_of_exception(name, op, poison);
  }
}

/* As contain, in a backend: refuses when it is poisoned. */
template <class Backend, class Work>
DiError *contain_in(Backend &backend, const char *op, Work &&work) noexcept {
  auto poison = [&backend]() noexcept { backend.poison(); };
  if (backend.is_poisoned())
    return contain(
        backend.name(), op,
        [] { throw Failure(DI_E_PANIC, "the backend is unusable after an exception; restart the process", DI_EF_POISONED); },
        poison);
  return contain(backend.name(), op, work, poison);
}

namespace detail {

template <auto Function>
struct Trampoline;

/* Backend is DiBackend, which is complete by the time that a table is filled. */
template <class Backend, class... Arguments, void (*Function)(Backend &, Arguments...)>
struct Trampoline<Function> {
  static DiError *fallible(Backend *backend, Arguments... arguments) noexcept {
    return contain_in(*backend, nullptr, [&] { Function(*backend, arguments...); });
  }

  /* For functions that return nothing: what they throw can only poison. They run in a poisoned backend, too, since what
   * was made must be destroyed. */
  static void infallible(Backend *backend, Arguments... arguments) noexcept {
    auto poison = [backend]() noexcept { backend->poison(); };
    Error error(contain(backend->name(), nullptr, [&] { Function(*backend, arguments...); }, poison));
    if (error != nullptr) poison();
  }
};

}  // namespace detail

/* The C form of `void function(DiBackend &, ...)`, for entries of tables that return an error. */
template <auto Function>
inline constexpr auto fallible = &detail::Trampoline<Function>::fallible;

/* The same for entries that return nothing: destroy, close, free. */
template <auto Function>
inline constexpr auto infallible = &detail::Trampoline<Function>::infallible;

/* ---- tensors ---- */

/* Elements that follow each other. */
template <class T>
class Span {
 public:
  Span(T *data, std::size_t size) : data_(data), size_(size) {}
  T *data() const { return data_; }
  std::size_t size() const { return size_; }
  T *begin() const { return data_; }
  T *end() const { return data_ + size_; }
  /* An index beyond the end is a bug of the kernel: it throws what poisons. */
  T &operator[](std::size_t index) const {
    if (index >= size_) throw std::out_of_range("element " + std::to_string(index) + " of " + std::to_string(size_));
    return data_[index];
  }

 private:
  T *data_;
  std::size_t size_;
};

/* A BF16 by its bits. */
struct Bf16 {
  std::uint16_t bits;
  static Bf16 round(float x) { return {di_to_bf16(di_bits(x))}; }
  operator float() const { return di_float(di_from_bf16(bits)); }
};

/* The format of a tensor of T's. */
template <class T>
constexpr std::uint32_t format_of() {
  using Plain = std::remove_const_t<T>;
  if (std::is_same_v<Plain, float>) return DI_F32;
  if (std::is_same_v<Plain, Bf16>) return DI_BF16;
  if (std::is_same_v<Plain, std::int32_t>) return DI_I32;
  if (std::is_same_v<Plain, std::int64_t>) return DI_I64;
  if (std::is_same_v<Plain, std::uint8_t>) return DI_U8;
  return 0;
}

/* Rows of a checked tensor along its last dimension, wherever they lie. */
template <class T>
class Rows {
 public:
  explicit Rows(const DiTensor &tensor) : tensor_(&tensor) {}
  std::size_t count() const { return static_cast<std::size_t>(di_rows(tensor_)); }
  std::size_t columns() const { return static_cast<std::size_t>(tensor_->shape[tensor_->ndim - 1]); }
  Span<T> operator[](std::size_t row) const {
    if (row >= count()) throw std::out_of_range("row " + std::to_string(row) + " of " + std::to_string(count()));
    /* A tensor without elements may have no memory. */
    if (columns() == 0) return {nullptr, 0};
    return {reinterpret_cast<T *>(di_row(tensor_, static_cast<std::int64_t>(row))), columns()};
  }

 private:
  const DiTensor *tensor_;
};

/* ---- ops ---- */

/* One call of an op. */
template <class Args>
class Call {
 public:
  using Arguments = Args;
  Call(DiBackend &b, DiPlan *p, DiStream *s, const Args &a, const char *op)
      : backend(b), plan(p), stream(s), args(a), where_(di_call("", op)) {}

  DiBackend &backend;
  DiPlan *plan;
  DiStream *stream;
  const Args &args; /* a copy: what an older caller does not know is zero */

  /* Checks a tensor by the catalogue's rules and returns its format: one of `formats`, a sum of DI_F32 and the like.
   * Throws: DI_E_INVALID. */
  std::uint32_t check(const char *name, const DiTensor &tensor, std::int32_t rank, std::uint32_t formats) const {
    deepinfer::check(di_check_tensor(where_, name, &tensor, rank, formats));
    return di_format(&tensor);
  }

  /* Checks an extent; `what` says what it must equal. Throws: DI_E_INVALID. */
  void check_extent(const char *name, const DiTensor &tensor, std::int32_t dim, std::int64_t wanted, const char *what) const {
    deepinfer::check(di_check_extent(where_, name, &tensor, dim, wanted, what));
  }

  /* Rows of a tensor of T's; of const T's if it is only read. Throws: DI_E_INVALID. */
  template <class T>
  Rows<T> rows(const char *name, const DiTensor &tensor, std::int32_t rank) const {
    static_assert(format_of<T>() != 0, "float, Bf16, int32_t, int64_t or uint8_t");
    check(name, tensor, rank, format_of<T>());
    return Rows<T>(tensor);
  }

  /* The elements of a tensor with one dimension. Throws: DI_E_INVALID. */
  template <class T>
  Span<T> elements(const char *name, const DiTensor &tensor) const {
    return rows<T>(name, tensor, 1)[0];
  }

 private:
  DiCall where_;
};

namespace detail {

template <class Function>
struct KernelArguments;

template <class Args>
struct KernelArguments<void (*)(const Call<Args> &)> {
  using Type = Args;
};

template <auto Kernel, std::uint32_t Id, std::uint32_t Version>
struct Op {
  static inline const char *name = "";

  static DiError *run(DiBackend *backend, DiPlan *plan, DiStream *stream, const DiOpHeader *header) noexcept {
    return contain_in(*backend, name, [&] {
      using Args = typename KernelArguments<decltype(Kernel)>::Type;
      Args args;
      check(di_read_args(di_call("", name), Id, Version, header, &args, sizeof args));
      Kernel(Call<Args>(*backend, plan, stream, args, name));
    });
  }
};

}  // namespace detail

/* The table entry of a kernel, `void kernel(const Call<DiArgs...> &)`. `name` and `implementation` are literals, `flags` are
 * DI_PF_*. Set `supports`, `plan` and `plan_destroy` of the result where the kernel has them. */
template <auto Kernel, std::uint32_t Id, std::uint32_t Version>
DiOpEntry op(const char *name, const char *implementation, std::uint32_t flags, std::int32_t priority = 0) {
  using Registered = detail::Op<Kernel, Id, Version>;
  DiOpEntry entry{};
  Registered::name = name;
  entry.struct_size = sizeof entry;
  entry.op_id = Id;
  entry.op_version = Version;
  entry.flags = flags;
  entry.name = di_str(name);
  entry.impl_name = di_str(implementation);
  entry.priority = priority;
  entry.run = &Registered::run;
  return entry;
}

/* ---- the entry ---- */

/* What a backend says of itself; literals. */
struct Description {
  const char *name, *version, *build;
};

/* The body of deepinfer_backend_entry: agrees on the version, refuses to be a layer, and calls
 * `const DiBackendApi *start(std::string_view options)`, whose exceptions refuse to start. */
template <class Start>
std::int32_t enter(const DiEntryRequest *theirs, DiEntryReply *answer, const Description &self, Start &&start) noexcept {
  DiEntryRequest request;
  DiEntryReply reply{};
  di_read_struct(&request, sizeof request, theirs);
  reply.major = DI_ABI_MAJOR;
  reply.minor = DI_ABI_MINOR;
  reply.flags = DI_RF_CONTAINS_PANICS;
  reply.name = di_str(self.name);
  reply.version = di_str(self.version);
  reply.build = di_str(self.build);
  auto begin = [&] {
    const std::uint32_t major = DI_ABI_MAJOR;
    if (major < request.min_major || major > request.max_major)
      throw Failure(DI_E_ABI, "the plugin speaks ABI major " + std::to_string(major) + ", the core " +
                                  std::to_string(request.min_major) + " to " + std::to_string(request.max_major));
    if (request.next != nullptr)
      throw Failure(DI_E_UNSUPPORTED, "this is a backend, not a layer over another one");
    const auto options = request.options.len == 0 ? std::string_view() : view(request.options);
    reply.api = start(options);
  };
  reply.error = contain(self.name, nullptr, begin, []() noexcept {});
  di_fill_struct(answer, &reply, sizeof reply);
  return reply.error != nullptr ? reply.error->code : 0;
}

}  // namespace deepinfer
#endif /* DEEPINFER_PLUGIN_HPP */
