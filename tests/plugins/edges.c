/* host_backend.c whose tables end where memory does. The option edge=STRUCT/SIZE copies the structs of that name to the end of a
 * page behind which nothing may be touched, with SIZE as struct_size: a core that reads further dies. Of a size that is no
 * multiple of 8 the rest up to the next multiple is junk.
 *
 * It has an op of its own, so that there are reflection rows, and its gather fails when the index is empty. */
#define _DEFAULT_SOURCE
#define NAME "edges"
#define deepinfer_backend_entry host_backend_entry
#include "host_backend.c"
#undef deepinfer_backend_entry
#include <sys/mman.h>
#include <unistd.h>

static char edge_struct[32];
static uint32_t edge_size;

/* `count` structs of `known` bytes, each at the beginning of `*stride` bytes, the last one's end at the end of memory. */
static void *at_edge(const void *structs, size_t count, size_t known, size_t *stride) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE), room = 16 * page;
  size_t each = (edge_size + 7u) / 8 * 8, i;
  char *memory = mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *first;
  if (memory == MAP_FAILED || mprotect(memory + room, page, PROT_NONE) != 0 || count * each > room) abort();
  first = memory + room - count * each;
  memset(first, 0xA5, count * each);
  for (i = 0; i < count; ++i) {
    memcpy(first + i * each, (const char *)structs + i * known, known < edge_size ? known : edge_size);
    memcpy(first + i * each, &edge_size, sizeof edge_size);
  }
  if (stride != NULL) *stride = each;
  return first;
}

static int is_edge(const char *name) { return strcmp(edge_struct, name) == 0; }

/* ---- graphs, which nobody asks for: no op here says that it can be captured ---- */
static DiError *no_begin(DiBackend *b, DiStream *s) { return (void)b, (void)s, fail(DI_E_NOT_CAPTURABLE, 0, "no graphs"); }
static DiError *no_end(DiBackend *b, DiStream *s, DiGraph **out) { return (void)out, no_begin(b, s); }
static DiError *no_exec(DiBackend *b, DiGraph *g, DiGraphExec **out) { return (void)g, (void)out, no_begin(b, NULL); }
static DiError *no_launch(DiBackend *b, DiGraphExec *e, DiStream *s) { return (void)e, no_begin(b, s); }
static void no_graph(DiBackend *b, DiGraph *g) { (void)b, (void)g; }
static void no_more_exec(DiBackend *b, DiGraphExec *e) { (void)b, (void)e; }
static const DiGraphApi graph_api = {sizeof(DiGraphApi), 0, no_begin, no_end, no_exec, NULL, no_launch, no_graph, no_more_exec};

/* ---- an op of its own ---- */
typedef struct { DiOpHeader h; DiTensor x; float factor; uint32_t reserved0; } ArgsScaleV1;
#define DI_OP_SCALE 0x80000001u

static const DiArgInfo scale_args[] = {
    {sizeof(DiArgInfo), offsetof(ArgsScaleV1, x), DI_ARG_TENSOR, DI_ROLE_INOUT, 0, 0, TEXT("x")},
    {sizeof(DiArgInfo), offsetof(ArgsScaleV1, factor), DI_ARG_F32, DI_ROLE_IN, 0, 0, TEXT("factor")},
};
static DiOpInfo scale_info = {
    .struct_size = sizeof(DiOpInfo), .op_id = DI_OP_SCALE, .op_version = 1, .args_size = sizeof(ArgsScaleV1),
    .contract = DI_CONTRACT_EXACT, .name = TEXT("scale"), .args = scale_args, .n_args = 2, .arg_stride = sizeof(DiArgInfo)};
static DiOpsTable scale_table = {sizeof(DiOpsTable), 0, &scale_info, 1, sizeof(DiOpInfo)};

static const void *edge_table(DiBackend *b, uint32_t table) {
  (void)b;
  if (table == DI_TABLE_OPS) {
    if (is_edge("DiArgInfo")) scale_info.args = at_edge(scale_args, 2, sizeof *scale_args, &scale_info.arg_stride);
    if (is_edge("DiOpInfo")) scale_table.ops = at_edge(&scale_info, 1, sizeof scale_info, &scale_table.op_stride);
    return is_edge("DiOpsTable") ? at_edge(&scale_table, 1, sizeof scale_table, NULL) : &scale_table;
  }
  if (table != DI_TABLE_GRAPH) return NULL;
  return is_edge("DiGraphApi") ? at_edge(&graph_api, 1, sizeof graph_api, NULL) : &graph_api;
}

/* ---- an error ---- */
static void keep(DiError *error) { (void)error; }

static DiError *edge_gather(DiBackend *b, DiPlan *plan, DiStream *s, const DiOpHeader *h) {
  static const DiError error = {sizeof(DiError), DI_E_INVALID, 0, 9, TEXT("nothing is to be gathered"), TEXT("edges/gather"),
                                keep};
  if (((const DiArgsGatherV1 *)h)->index.shape[0] > 0) return gather(b, plan, s, h);
  return at_edge(&error, 1, sizeof error, NULL);
}

/* ---- the entry ---- */
static void log_line(const DiHostApi *host) {
  static const DiStr name = TEXT(NAME), line = TEXT("edges is here");
  if (host == NULL || !DI_HAS_FIELD(host, DiHostApi, log) || host->log == NULL) return;
  if (DI_HAS_FIELD(host, DiHostApi, log_enabled) && host->log_enabled != NULL &&
      host->log_enabled(host->user, DI_LOG_INFO, name) == 0)
    return;
  host->log(host->user, DI_LOG_INFO, name, line);
}

int32_t deepinfer_backend_entry(const DiEntryRequest *request, DiEntryReply *reply) {
  static const char key[] = "edge=";
  DiEntryRequest plain;
  const char *slash;
  memset(&plain, 0, sizeof plain);
  memcpy(&plain, request, request->struct_size < sizeof plain ? request->struct_size : sizeof plain);
  if (plain.options.len > sizeof key - 1 && memcmp(plain.options.ptr, key, sizeof key - 1) == 0) {
    const char *option = (const char *)plain.options.ptr + sizeof key - 1;
    size_t length = plain.options.len - (sizeof key - 1);
    slash = memchr(option, '/', length);
    if (slash == NULL || (size_t)(slash - option) >= sizeof edge_struct) return DI_E_INVALID;
    memcpy(edge_struct, option, (size_t)(slash - option));
    for (++slash; slash < option + length; ++slash) edge_size = edge_size * 10 + (uint32_t)(*slash - '0');
    plain.options.len = 0;
  }
  log_line(plain.host);
  if (host_backend_entry(&plain, reply) != 0) return DI_E_INTERNAL;
  entries[0].known.run = edge_gather;
  api.known.table = edge_table;
  if (is_edge("DiOpEntry")) api.known.ops = at_edge(entries, api.known.n_ops, sizeof *entries, &api.known.op_stride);
  if (is_edge("DiRuntimeApi")) api.known.runtime = at_edge(&runtime.known, 1, sizeof runtime.known, NULL);
  if (is_edge("DiBackendApi")) reply->api = at_edge(&api.known, 1, sizeof api.known, NULL);
  return 0;
}
