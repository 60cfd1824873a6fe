/* The table of ops, and the one symbol that the library exports. */
#include "backend.h"

/* Every row of every op here depends on that row alone, in a fixed order: the same bits in any batch, every time. An op
 * whose sums depend on the shape of the batch must not claim DI_PF_BATCH_INVARIANT. */
#define FLAGS (DI_PF_CONCURRENT | DI_PF_BATCH_INVARIANT | DI_PF_DETERMINISTIC)
#define TEXT(literal) {(const uint8_t *)(literal), sizeof(literal) - 1}
#define OP(id, function) \
  {.struct_size = sizeof(DiOpEntry), .op_id = (id), .op_version = 1, .flags = FLAGS, .name = TEXT(#function), \
   .impl_name = TEXT("plain"), .run = (function)}

static const DiOpEntry ops[] = {
    OP(DI_OP_GATHER, gather),
};

static const DiBackendApi api = {
    .struct_size = sizeof(DiBackendApi),
    .runtime = &runtime,
    .ops = ops,
    .n_ops = sizeof ops / sizeof *ops,
    .op_stride = sizeof *ops,
};

/* The texts of the reply live as long as the library, which is never unloaded. */
static int32_t start(const DiEntryRequest *request, DiEntryReply *reply) {
  const uint32_t major = DI_ABI_MAJOR;
  reply->major = DI_ABI_MAJOR;
  reply->minor = DI_ABI_MINOR;
  reply->min_core_minor = 0;
  /* Trivially: C has neither panics nor exceptions. */
  reply->flags = DI_RF_CONTAINS_PANICS;
  reply->name = di_str(BACKEND);
  reply->version = di_str("0.1.0");
  reply->build = di_str("C11, " __VERSION__);
  if (major < request->min_major || major > request->max_major)
    reply->error = di_fail(DI_E_ABI, 0, BACKEND, "the plugin speaks ABI major %u, the core %u to %u", DI_ABI_MAJOR,
                           (unsigned)request->min_major, (unsigned)request->max_major);
  else if (request->next != NULL)
    reply->error = di_fail(DI_E_UNSUPPORTED, 0, BACKEND, "this is a backend, not a layer over another one");
  else if (request->options.len != 0)
    reply->error = di_fail(DI_E_INVALID, 0, BACKEND, "the option \"%.*s\" is unknown; there are none",
                           (int)(request->options.len < 200 ? request->options.len : 200),
                           (const char *)request->options.ptr);
  else
    reply->api = &api;
  return reply->error != NULL ? reply->error->code : 0;
}

DI_EXPORT int32_t deepinfer_backend_entry(const DiEntryRequest *theirs, DiEntryReply *answer);

/* The core may be older or newer than this file: its structs may end earlier, or go on. */
DI_EXPORT int32_t deepinfer_backend_entry(const DiEntryRequest *theirs, DiEntryReply *answer) {
  DiEntryRequest request;
  DiEntryReply reply;
  int32_t code;
  di_read_struct(&request, sizeof request, theirs);
  memset(&reply, 0, sizeof reply);
  code = start(&request, &reply);
  di_fill_struct(answer, &reply, sizeof reply);
  return code;
}
