/* host_backend.c with an op of its own, `scale`, that multiplies in place and, when the factor is negative, goes one element
 * too far. */
#define NAME "c-writer"
#define deepinfer_backend_entry host_backend_entry
#include "host_backend.c"
#undef deepinfer_backend_entry

#define OP_SCALE 0x80000001u
typedef struct ArgsScale { DiOpHeader h; DiTensor x; float factor; uint32_t unused; } ArgsScale;

static const DiArgInfo args[] = {
    {sizeof(DiArgInfo), offsetof(ArgsScale, x), DI_ARG_TENSOR, DI_ROLE_INOUT, 0, 0, TEXT("x")},
    {sizeof(DiArgInfo), offsetof(ArgsScale, factor), DI_ARG_F32, DI_ROLE_IN, 0, 0, TEXT("factor")},
};
static const DiOpInfo rows[] = {
    {.struct_size = sizeof(DiOpInfo), .op_id = OP_SCALE, .op_version = 3, .args_size = sizeof(ArgsScale),
     .contract = DI_CONTRACT_ULP, .name = TEXT("scale"), .args = args, .n_args = 2, .arg_stride = sizeof *args, .ulps = 1},
};
static const DiOpsTable own_ops = {sizeof own_ops, 0, rows, 1, sizeof *rows};

static const void *table(DiBackend *b, uint32_t id) {
  (void)b;
  return id == DI_TABLE_OPS ? &own_ops : NULL;
}

static DiError *scale(DiBackend *b, DiPlan *plan, DiStream *s, const DiOpHeader *h) {
  const ArgsScale *a = (const ArgsScale *)h;
  float *x = (float *)((char *)a->x.data + a->x.byte_offset);
  int64_t count = a->x.shape[0] + (a->factor < 0);
  (void)b, (void)plan, (void)s;
  for (int64_t i = 0; i < count; ++i) x[i] *= a->factor;
  return NULL;
}

static const DiOpEntry own[] = {
    {sizeof(DiOpEntry), OP_SCALE, 3, 0, TEXT("scale"), TEXT("plain"), 0, 0, NULL, NULL, scale, NULL},
};

int32_t deepinfer_backend_entry(const DiEntryRequest *request, DiEntryReply *reply) {
  int32_t code = host_backend_entry(request, reply);
  api.known.table = table;
  api.known.ops = own;
  api.known.n_ops = sizeof own / sizeof *own;
  api.known.op_stride = sizeof *own;
  return code;
}
