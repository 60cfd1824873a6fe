/* The table of ops, and the one symbol that the library exports. */
#include "backend.hpp"

using deepinfer::op;

/* Every row depends on that row alone, in a fixed order: the same bits in any batch, every time. An op whose sums depend on
 * the shape of the batch must not claim DI_PF_BATCH_INVARIANT. */
constexpr std::uint32_t flags = DI_PF_CONCURRENT | DI_PF_BATCH_INVARIANT | DI_PF_DETERMINISTIC;

static const DiBackendApi *start(std::string_view options) {
  if (!options.empty())
    throw std::invalid_argument("the option \"" + std::string(options) + "\" is unknown; there are none");
  /* These live as long as the library, which is never unloaded. */
  static DiBackend backend("{{name}}");
  static const DiRuntimeApi runtime = runtime_table();
  static const DiOpEntry ops[] = {
      op<gather, DI_OP_GATHER, 1>("gather", "plain", flags),
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
  return deepinfer::enter(request, reply, {"{{name}}", "0.1.0", "C++17"}, start);
}
