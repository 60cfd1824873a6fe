/* A backend that is right in every respect but one, for tests of `deepinfer parity` and of the validation layer: the option
 * fault=NAME says in which. Its device (liar_host.h) works beside the caller, its ops (liar_ops.h) are such as an author
 * would write.
 *
 * Ten faults of the kinds that authors make:
 *   ragged-edge      rms_norm leaves out the last column of a row that is no multiple of a vector
 *   nan-swallowed    rms_norm takes a NaN in a row for nothing
 *   batch-dependent  rms_norm adds in another order when there are several rows
 *   tie-break        topk_select prefers the higher of two columns with equal scores
 *   stale-workspace  rstd takes the workspace for cleared
 *   stream-race      rstd has one buffer for all streams
 *   lying-supports   rstd says that it takes BF16, and refuses to run it
 *   out-of-bounds    gather writes whole vectors, also beyond the end of its output
 *   size-equality    gather refuses an argument struct that is longer than it knows
 *   event-wait       a stream goes on without the event that it is told to wait for
 *
 * And some that a right result hides:
 *   unknown-option       the entry takes an option that it does not know
 *   unknown-id           the table has an op with an id that neither the catalogue nor a vendor has given
 *   input-written        gather marks the indices that it has used
 *   wrote-when-refused   gather clears its output before it looks at the extents
 *   unchecked            gather takes an output of any extents
 *   over-read            rms_norm reads the weight behind the last column of a ragged row
 *   static-scratch       rstd computes at once, on the caller's thread, with one buffer for all streams
 *   unaligned            memory is aligned to half of what is asked for
 *   memory-leak          memory that is given back is kept
 *
 * And some about rows, and about ops of its own:
 *   last-row    rms_norm works on two rows at a time, and does the last one of an odd number wrongly
 *   many-rows   rms_norm gives wrong values where there are several rows
 *   own-op      the table has an op "polish" that is the vendor's own: no fault
 *   misnamed    the table has an op of the vendor's own that is called rstd
 *
 * And some in convert_kv_index that end the process or need no arithmetic: segfault, abort, exit, hang, print, leak,
 * decline, poisoned, careless, wrong, company; boot ends it when the library is loaded. restore_candidate_indices_inplace is
 * always right. */
#define _DEFAULT_SOURCE
#include "liar_ops.h"

static char fault[64];

static int has(const char *name) { return strcmp(fault, name) == 0; }

#define ENTRY(id, name, supports, plan, run, destroy) \
  {sizeof(DiOpEntry), id, 1, 0, {(const uint8_t *)(name), sizeof(name) - 1}, {(const uint8_t *)"c", 1}, 0, 0, \
   supports, plan, run, destroy}

static DiOpEntry ops[] = {
    ENTRY(DI_OP_GATHER, "gather", NULL, NULL, gather_run, NULL),
    ENTRY(DI_OP_RMS_NORM, "rms_norm", NULL, NULL, rms_norm_run, NULL),
    ENTRY(DI_OP_RSTD, "rstd", rstd_supports, rstd_plan, rstd_run, rstd_plan_destroy),
    ENTRY(DI_OP_TOPK_SELECT, "topk_select", NULL, NULL, topk_select_run, NULL),
    ENTRY(DI_OP_CONVERT_KV_INDEX, "convert_kv_index", convert_kv_index_supports, NULL, convert_kv_index_run, NULL),
    ENTRY(DI_OP_RESTORE_CANDIDATE_INDICES_INPLACE, "restore_candidate_indices_inplace", NULL, NULL, restore_run, NULL),
    ENTRY(DI_OP_GATHER, "gather", NULL, NULL, gather_run, NULL), /* of fault=unknown-id and others */
};

static DiBackend backend;
static DiBackendApi api = {
    sizeof(DiBackendApi), 0, &backend, &host_runtime, ops, sizeof ops / sizeof *ops - 1, sizeof *ops, NULL, NULL};

DI_EXPORT int32_t deepinfer_backend_entry(const DiEntryRequest *request, DiEntryReply *reply) {
  static const char key[] = "fault=";
  size_t length = request->options.len, prefix = sizeof key - 1;
  const void *more = length == 0 ? NULL : memchr(request->options.ptr, '&', length);
  DiEntryReply known;
  memset(&known, 0, sizeof known);
  known.major = DI_ABI_MAJOR;
  known.minor = DI_ABI_MINOR;
  known.name = di_str(BACKEND);
  known.version = di_str("1.0.0");
  known.build = di_str("C11");
  known.flags = DI_RF_CONTAINS_PANICS;
  known.api = &api;
  if (request->min_major > DI_ABI_MAJOR) { /* There is no major before this one. */
    known.error = di_fail(DI_E_ABI, 0, BACKEND, "it speaks major %u of the plugin ABI, the core %u to %u", DI_ABI_MAJOR,
                          (unsigned)request->min_major, (unsigned)request->max_major);
  } else if (length > prefix && length - prefix < sizeof fault && memcmp(request->options.ptr, key, prefix) == 0) {
    memcpy(fault, request->options.ptr + prefix, length - prefix);
  } else if (length != 0) {
    known.error = di_fail(DI_E_INVALID, 0, BACKEND, "the only option is fault=NAME");
  }
  if (has("boot")) abort();
  if (more != NULL && known.error == NULL) {
    fault[strcspn(fault, "&")] = 0;
    if (!has("unknown-option")) known.error = di_fail(DI_E_INVALID, 0, BACKEND, "there is one option, fault=NAME");
  }
  if (has("unknown-id")) {
    DiOpEntry *last = &ops[api.n_ops++];
    last->op_id = 999;
    last->name = di_str("polish");
  }
  if (has("own-op") || has("misnamed")) {
    DiOpEntry *last = &ops[api.n_ops++];
    last->op_id = 0x80000001u;
    last->name = di_str(has("own-op") ? "polish" : "rstd");
  }
  if (known.error != NULL) known.api = NULL;
  di_fill_struct(reply, &known, sizeof known);
  return known.error == NULL ? 0 : known.error->code;
}
