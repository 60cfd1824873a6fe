/* A backend in C++ for tests of deepinfer_plugin.hpp, on the devices and with the `gather` of the C++ scaffold. Its rstd
 * throws what `eps` asks for when that is negative. */
#include <cmath>
#include <vector>

#include "backend.hpp"

using deepinfer::Bf16;
using deepinfer::Call;

static void throw_what(float eps) {
  if (eps == -1) throw std::bad_alloc();
  if (eps == -2) throw std::invalid_argument("eps is -2, which stands for a wrong argument");
  if (eps == -3) throw deepinfer::Failure(DI_E_DEVICE_LOST, "the device fell off the bus", DI_EF_STICKY, 77);
  if (eps == -4) throw std::runtime_error("a bug of the kernel");
  if (eps == -5) throw 42;
  if (eps == -6) (void)std::vector<int>(3).at(3);
}

template <class T>
static void inverse_roots(const Call<DiArgsRstdV1> &call) {
  const auto x = call.rows<const T>("x", call.args.x, 2);
  const auto out = call.elements<float>("out", call.args.out);
  for (std::size_t t = 0; t < x.count(); ++t) {
    double squares = 0;
    for (const T value : x[t]) squares += double(float(value)) * double(float(value));
    out[t] = float(1 / std::sqrt(squares / double(x.columns()) + double(call.args.eps)));
  }
}

static void rstd(const Call<DiArgsRstdV1> &call) {
  const std::uint32_t format = call.check("x", call.args.x, 2, DI_F32 | DI_BF16);
  call.check("out", call.args.out, 1, DI_F32);
  call.check_extent("out", call.args.out, 0, call.args.x.shape[0], "the number of rows of x");
  throw_what(call.args.eps);
  if (format == DI_F32) inverse_roots<float>(call);
  else inverse_roots<Bf16>(call);
}

static const DiBackendApi *start(std::string_view options) {
  if (options == "mode=throw") throw 42;
  if (!options.empty()) throw std::invalid_argument("the option \"" + std::string(options) + "\" is unknown");
  constexpr std::uint32_t flags = DI_PF_BATCH_INVARIANT | DI_PF_DETERMINISTIC;
  static DiBackend backend("cpp-host");
  static const DiRuntimeApi runtime = runtime_table();
  static const DiOpEntry ops[] = {
      deepinfer::op<gather, DI_OP_GATHER, 1>("gather", "plain", flags),
      deepinfer::op<rstd, DI_OP_RSTD, 1>("rstd", "throws", flags),
  };
  static DiBackendApi api{};
  api.struct_size = sizeof api;
  api.backend = &backend;
  api.runtime = &runtime;
  api.ops = ops;
  api.n_ops = sizeof ops / sizeof *ops;
  api.op_stride = sizeof *ops;
  return &api;
}

extern "C" DI_EXPORT std::int32_t deepinfer_backend_entry(const DiEntryRequest *request, DiEntryReply *reply) {
  return deepinfer::enter(request, reply, {"cpp-host", "1.0.0", "C++17"}, start);
}
