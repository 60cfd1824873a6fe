/* A backend whose ops do nothing, for measuring what a call costs before and after the plugin. All ops but one are called
 * directly; rstd goes through a plan. Devices and memory are those of host_backend.c. `probe_calls` counts. */
#define NAME "null"
#define deepinfer_backend_entry host_backend_entry
#include "host_backend.c"
#undef deepinfer_backend_entry

static uint64_t calls;
int probe_calls(void);
int probe_calls(void) { return (int)calls; }

static DiError *nothing(DiBackend *b, DiPlan *plan, DiStream *s, const DiOpHeader *h) {
  (void)b, (void)plan, (void)s, (void)h;
  ++calls;
  return NULL;
}

static DiError *plan_nothing(DiBackend *b, DiDevice *d, const DiOpHeader *h, DiPlan **out, DiPlanInfo *info) {
  (void)b, (void)d, (void)h, (void)out, (void)info;
  return NULL;
}

static void destroy_nothing(DiBackend *b, DiPlan *plan) { (void)b, (void)plan; }

#define DIRECT(id, name) {sizeof(DiOpEntry), id, 1, 0, TEXT(name), TEXT("nothing"), 0, 0, NULL, NULL, nothing, NULL}
static const DiOpEntry nothings[] = {
    DIRECT(DI_OP_GATHER, "gather"),
    DIRECT(DI_OP_RMS_NORM, "rms_norm"),
    DIRECT(DI_OP_LINEAR, "linear"),
    DIRECT(DI_OP_GROUPED_LINEAR, "grouped_linear"),
    DIRECT(DI_OP_QUANTIZE, "quantize"),
    DIRECT(DI_OP_ENGRAM_GATE, "engram_gate"),
    DIRECT(DI_OP_ROPE, "rope"),
    DIRECT(DI_OP_HC_COLLAPSE, "hc_collapse"),
    DIRECT(DI_OP_HC_EXPAND, "hc_expand"),
    DIRECT(DI_OP_SWIGLU_QUANTIZE, "swiglu_quantize"),
    DIRECT(DI_OP_MOE_GATE, "moe_gate"),
    DIRECT(DI_OP_MOE_DISPATCH, "moe_dispatch"),
    DIRECT(DI_OP_MOE_COMBINE, "moe_combine"),
    DIRECT(DI_OP_ENGRAM_GATHER, "engram_gather"),
    DIRECT(DI_OP_FUSED_SAMPLE, "fused_sample"),
    DIRECT(DI_OP_CONVERT_KV_INDEX, "convert_kv_index"),
#ifdef DI_OP_ADJUST_LOGITS /* since minor 2; a test compiles this with older headers, too */
    DIRECT(DI_OP_ADJUST_LOGITS, "adjust_logits"),
    DIRECT(DI_OP_APPLY_TOKEN_MASK, "apply_token_mask"),
#endif
    DIRECT(DI_OP_CANDIDATE_BLOCK_MAX, "candidate_block_max"),
    DIRECT(DI_OP_COMPRESS_AND_UPDATE_STATE, "compress_and_update_state"),
    DIRECT(DI_OP_ENGRAM_HASH, "engram_hash"),
    DIRECT(DI_OP_HC_MIX, "hc_mix"),
    DIRECT(DI_OP_INDEX_SCORES, "index_scores"),
    DIRECT(DI_OP_LOAD_PAGED_KV_CACHE, "load_paged_kv_cache"),
    DIRECT(DI_OP_RESTORE_CANDIDATE_INDICES_INPLACE, "restore_candidate_indices_inplace"),
    DIRECT(DI_OP_SPARSE_ATTENTION, "sparse_attention"),
    DIRECT(DI_OP_STORE_KV_CACHE, "store_kv_cache"),
    DIRECT(DI_OP_TOPK_SELECT, "topk_select"),
    {sizeof(DiOpEntry), DI_OP_RSTD, 1, 0, TEXT("rstd"), TEXT("planned"), 0, 0, NULL, plan_nothing, nothing,
     destroy_nothing},
};

int32_t deepinfer_backend_entry(const DiEntryRequest *request, DiEntryReply *reply) {
  int32_t code = host_backend_entry(request, reply);
  api.known.ops = nothings;
  api.known.n_ops = sizeof nothings / sizeof *nothings;
  api.known.op_stride = sizeof *nothings;
  return code;
}
