/* host_backend.c with what only reports ask for: memory spaces, links, and the reflection row of an op of its own.
 * With -DBAD_ROW, an argument lies beyond the argument struct; with -DODD_ROW, between two words; with -DNO_ROWS and
 * -DNO_ARGS, what is counted is at no address; with -DWILD_TABLE, the table is not. */
#define NAME "c-vendor"
#define deepinfer_backend_entry host_backend_entry
#include "host_backend.c"
#undef deepinfer_backend_entry

#define OP_SCALE 0x80000001u
typedef struct ArgsScale { DiOpHeader h; DiTensor x; float factor; uint32_t unused; } ArgsScale;
#if defined BAD_ROW
#define PLACE (uint32_t)sizeof(ArgsScale)
#elif defined ODD_ROW
#define PLACE (uint32_t)(offsetof(ArgsScale, factor) + 1)
#else
#define PLACE (uint32_t)offsetof(ArgsScale, factor)
#endif

static const DiArgInfo args[] = {
    {sizeof(DiArgInfo), offsetof(ArgsScale, x), DI_ARG_TENSOR, DI_ROLE_INOUT, 0, 0, TEXT("x")},
    {sizeof(DiArgInfo), PLACE, DI_ARG_F32, DI_ROLE_IN, 0, 0, TEXT("factor\n\033[31m")},
};
#ifdef NO_ARGS
#define ARGS NULL
#else
#define ARGS args
#endif
#ifdef NO_ROWS
#define ROWS NULL
#else
#define ROWS rows
#endif
static const DiOpInfo rows[] = {
    {.struct_size = sizeof(DiOpInfo), .op_id = OP_SCALE, .op_version = 3, .args_size = sizeof(ArgsScale),
     .contract = DI_CONTRACT_ULP, .name = TEXT("scale"), .args = ARGS, .n_args = 2, .arg_stride = sizeof *args, .ulps = 1},
};
static const DiOpsTable own_ops = {sizeof own_ops, 0, ROWS, 1, sizeof *rows};

static const void *table(DiBackend *b, uint32_t id) {
  (void)b;
#ifdef WILD_TABLE
  if (id == DI_TABLE_OPS) return (const void *)1;
#endif
  return id == DI_TABLE_OPS ? &own_ops : NULL;
}

static DiError *describe(DiBackend *b, uint32_t i, DiDeviceInfo *out) {
  DiError *error = device_info(b, i, out);
  if (error == NULL) out->n_spaces = 1;
  return error;
}

static DiError *space_info(DiBackend *b, uint32_t device, uint32_t i, DiSpaceInfo *out) {
  (void)b, (void)device;
  if (i != 0) return fail(DI_E_INVALID, 0, "there is one space");
  out->space_id = 7;
  out->kind = DI_SPACE_HOST_PINNED;
  out->min_align = 64;
  out->granularity = 4096;
  out->total_bytes = 1u << 30;
  return NULL;
}

static DiError *device_link(DiBackend *b, uint32_t from, uint32_t to, DiLinkInfo *out) {
  (void)b, (void)from, (void)to;
  out->link_class = DI_LINK_DIRECT;
  out->flags = DI_LF_PEER_COPY;
  out->bytes_per_s = 450000000000ull;
  return NULL;
}

int32_t deepinfer_backend_entry(const DiEntryRequest *request, DiEntryReply *reply) {
  int32_t code = host_backend_entry(request, reply);
  runtime.known.device_info = describe;
  runtime.known.space_info = space_info;
  runtime.known.device_link = device_link;
  api.known.table = table;
  return code;
}
