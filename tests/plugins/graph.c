/* A backend that captures: while a stream is in capture, its ops, fills and copies become closures in an array instead of
 * running. Devices and memory are those of host_backend.c. gather can be captured; rstd goes through a plan with a
 * workspace, can be captured, and is deterministic by its plan alone; rms_norm says that it can be captured and then
 * cannot. An eps below zero makes rstd and rms_norm decline a call that they have promised to take. `probe_*` tell the test
 * what happened. */
#ifndef NAME
#define NAME "graph"
#endif
#define deepinfer_backend_entry host_backend_entry
#include "host_backend.c"
#undef deepinfer_backend_entry

enum { MOST_NODES = 64, MOST_ARGS = 1024 };

/* A recorded op with its arguments, or a fill or copy. Tensors are copied by value: of their shapes only the addresses are
 * kept, so that a caller whose shapes do not outlive the capture is found. */
typedef struct Node {
  DiRunFn run;
  DiPlan *plan;
  _Alignas(16) uint8_t args[MOST_ARGS];
  void *target;
  const void *source;
  uint64_t bytes;
  uint32_t pattern;
} Node;

struct DiGraph { int count; Node nodes[MOST_NODES]; };
struct DiGraphExec { DiGraph graph; };

static DiGraph *capturing; /* of the one stream that captures */
static int launches, captures, live_graphs, direct_runs, live_buffers, live_plans, live_events, last_size, last_tail;
static int last_flags, last_copy_kind;
int probe_launches(void);
int probe_captures(void);
int probe_live_graphs(void);
int probe_direct_runs(void);
int probe_live_buffers(void);
int probe_live_plans(void);
int probe_live_events(void);
int probe_last_size(void);
int probe_last_tail(void);
int probe_last_flags(void);
int probe_last_copy_kind(void);
int probe_live_buffers(void) { return live_buffers; }
int probe_live_plans(void) { return live_plans; }
int probe_live_events(void) { return live_events; }
int probe_last_size(void) { return last_size; }
int probe_last_tail(void) { return last_tail; }
int probe_last_flags(void) { return last_flags; }
int probe_last_copy_kind(void) { return last_copy_kind; }
int probe_launches(void) { return launches; }
int probe_captures(void) { return captures; }
int probe_live_graphs(void) { return live_graphs; }
int probe_direct_runs(void) { return direct_runs; }

static Node *next_node(void) { return &capturing->nodes[capturing->count++]; }

static DiError *maybe_capture(DiBackend *b, DiPlan *plan, DiStream *s, const DiOpHeader *h, DiRunFn now) {
  if (capturing == NULL) return ++direct_runs, now(b, plan, s, h);
  if (capturing->count == MOST_NODES || h->struct_size > MOST_ARGS) return fail(DI_E_NOT_CAPTURABLE, 0, "the graph is full");
  Node *node = next_node();
  node->run = now;
  node->plan = plan;
  memcpy(node->args, h, h->struct_size);
  return NULL;
}

static DiError *graph_gather(DiBackend *b, DiPlan *plan, DiStream *s, const DiOpHeader *h) {
  return maybe_capture(b, plan, s, h, gather);
}

static DiError *graph_rstd(DiBackend *b, DiPlan *plan, DiStream *s, const DiOpHeader *h) {
  if (((const DiArgsRstdV1 *)h)->eps < 0) return fail(DI_E_UNSUPPORTED, 0, "eps is negative");
  return maybe_capture(b, plan, s, h, rstd);
}

static DiError *plan_with_flags(DiBackend *b, DiDevice *d, const DiOpHeader *h, DiPlan **out, DiPlanInfo *info) {
  info->flags = DI_PF_CAPTURABLE | DI_PF_DETERMINISTIC;
  ++live_plans;
  return rstd_plan(b, d, h, out, info);
}

static void graph_plan_destroy(DiBackend *b, DiPlan *plan) {
  --live_plans;
  rstd_plan_destroy(b, plan);
}

/* Copies x to out; but not into a graph, whatever its flags say. */
static DiError *graph_rms_norm(DiBackend *b, DiPlan *plan, DiStream *s, const DiOpHeader *h) {
  const DiArgsRmsNormV1 *a = (const DiArgsRmsNormV1 *)h;
  (void)b, (void)plan, (void)s;
  if (a->eps < 0) return fail(DI_E_UNSUPPORTED, 0, "eps is negative");
  last_flags = (int)h->flags;
  last_size = (int)h->struct_size;
  last_tail = 0;
  for (uint32_t i = sizeof *a; i < h->struct_size; ++i) last_tail |= ((const uint8_t *)h)[i];
  if (capturing != NULL) return fail(DI_E_NOT_CAPTURABLE, 0, "rms_norm waits for the host");
  memcpy(a->out.data, a->x.data, (size_t)(a->x.shape[0] * a->x.shape[1]) * sizeof(float));
  return NULL;
}

static DiError *graph_copy(DiBackend *b, DiStream *s, void *dst, const void *src, uint64_t bytes, uint32_t kind) {
  last_copy_kind = (int)kind;
  if (capturing == NULL) return copy(b, s, dst, src, bytes, kind);
  Node *node = next_node();
  memset(node, 0, sizeof *node);
  node->target = dst, node->source = src, node->bytes = bytes;
  return NULL;
}

static DiError *graph_fill(DiBackend *b, DiStream *s, void *dst, uint32_t pattern, uint32_t pattern_bytes, uint64_t count) {
  if (capturing == NULL) return fill(b, s, dst, pattern, pattern_bytes, count);
  Node *node = next_node();
  memset(node, 0, sizeof *node);
  node->target = dst, node->bytes = count, node->pattern = pattern;
  return NULL;
}

static DiError *graph_alloc(DiBackend *b, DiDevice *d, uint32_t space, uint64_t bytes, uint64_t align, DiBuffer **out,
                            void **addr) {
  DiError *error = alloc(b, d, space, bytes, align, out, addr);
  live_buffers += error == NULL;
  return error;
}

static void graph_free(DiBackend *b, DiBuffer *buffer) {
  --live_buffers;
  free_buffer(b, buffer);
}

static DiError *graph_event_create(DiBackend *b, DiDevice *d, uint32_t flags, DiEvent **out) {
  ++live_events;
  return event_create(b, d, flags, out);
}

static void graph_event_destroy(DiBackend *b, DiEvent *e) {
  --live_events;
  event_destroy(b, e);
}

static DiError *begin(DiBackend *b, DiStream *s) {
  (void)b, (void)s;
  breaches += capturing != NULL;
  capturing = calloc(1, sizeof *capturing);
  ++live_graphs;
  return NULL;
}

static DiError *end(DiBackend *b, DiStream *s, DiGraph **out) {
  (void)b, (void)s;
  breaches += capturing == NULL;
  *out = capturing;
  capturing = NULL;
  return NULL;
}

static DiError *instantiate(DiBackend *b, DiGraph *graph, DiGraphExec **out) {
  (void)b;
  *out = malloc(sizeof **out);
  (*out)->graph = *graph;
  ++live_graphs;
  ++captures;
  return NULL;
}

static DiError *update(DiBackend *b, DiGraphExec *exec, DiGraph *graph, int32_t *updated) {
  (void)b, (void)exec, (void)graph;
  *updated = 0;
  return NULL;
}

static DiError *launch(DiBackend *b, DiGraphExec *exec, DiStream *s) {
  ++launches;
  for (int i = 0; i < exec->graph.count; ++i) {
    Node *node = &exec->graph.nodes[i];
    DiError *error = NULL;
    if (node->run != NULL) error = node->run(b, node->plan, s, (const DiOpHeader *)node->args);
    else if (node->source != NULL) memcpy(node->target, node->source, node->bytes);
    else memset(node->target, (int)node->pattern, node->bytes);
    if (error != NULL) return error;
  }
  return NULL;
}

static void graph_destroy(DiBackend *b, DiGraph *graph) {
  (void)b;
  --live_graphs;
  free(graph);
}

static void exec_destroy(DiBackend *b, DiGraphExec *exec) {
  (void)b;
  --live_graphs;
  free(exec);
}

static const DiGraphApi graph_api = {sizeof(DiGraphApi), 0, begin, end, instantiate, update, launch, graph_destroy,
                                     exec_destroy};

static const void *graph_table(DiBackend *b, uint32_t table) {
  (void)b;
  return table == DI_TABLE_GRAPH ? &graph_api : NULL;
}

static const DiOpEntry graph_entries[] = {
    {sizeof(DiOpEntry), DI_OP_GATHER, 1, DI_PF_CAPTURABLE | DI_PF_DETERMINISTIC, TEXT("gather"), TEXT("captured"), 0, 0,
     NULL, NULL, graph_gather, NULL},
    {sizeof(DiOpEntry), DI_OP_RSTD, 1, 0, TEXT("rstd"), TEXT("planned"), 0, 0, rstd_supports, plan_with_flags, graph_rstd,
     graph_plan_destroy},
    {sizeof(DiOpEntry), DI_OP_RMS_NORM, 1, DI_PF_CAPTURABLE | DI_PF_DETERMINISTIC, TEXT("rms_norm"), TEXT("stubborn"), 0,
     0, NULL, NULL, graph_rms_norm, NULL},
};

int32_t deepinfer_backend_entry(const DiEntryRequest *request, DiEntryReply *reply) {
  int32_t code = host_backend_entry(request, reply);
  runtime.known.copy = graph_copy;
  runtime.known.fill = graph_fill;
  runtime.known.alloc = graph_alloc;
  runtime.known.free_ = graph_free;
  runtime.known.event_create = graph_event_create;
  runtime.known.event_destroy = graph_event_destroy;
  api.known.table = graph_table;
  api.known.ops = graph_entries;
  api.known.n_ops = sizeof graph_entries / sizeof *graph_entries;
  api.known.op_stride = sizeof *graph_entries;
  return code;
}
