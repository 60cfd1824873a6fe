/* Two implementations of rstd that plan. `fast` declares batch invariance for calls of one row alone, `slow` for all calls.
 * Devices, memory and arithmetic are those of host_backend.c; `probe_*` count. With -DDECLINES_LATE both leave a plan that
 * they have freed, and decline. */
#define NAME "planned"
#define deepinfer_backend_entry host_backend_entry
#include "host_backend.c"
#undef deepinfer_backend_entry

static int fast_runs, slow_runs, live_plans;
int probe_fast_runs(void);
int probe_slow_runs(void);
int probe_live_plans(void);
int probe_fast_runs(void) { return fast_runs; }
int probe_slow_runs(void) { return slow_runs; }
int probe_live_plans(void) { return live_plans; }

#ifdef DECLINES_LATE
static DiError *decline(DiBackend *b, DiDevice *d, const DiOpHeader *h, DiPlan **out, DiPlanInfo *info) {
  rstd_plan(b, d, h, out, info);
  rstd_plan_destroy(b, *out);
  return fail(DI_E_UNSUPPORTED, 0, "declined after all");
}
#define rstd_plan(b, d, h, out, info) (--live_plans, decline(b, d, h, out, info))
#endif

static DiError *plan_fast(DiBackend *b, DiDevice *d, const DiOpHeader *h, DiPlan **out, DiPlanInfo *info) {
  ++live_plans;
  if (((const DiArgsRstdV1 *)h)->x.shape[0] == 1) info->flags = DI_PF_BATCH_INVARIANT;
  return rstd_plan(b, d, h, out, info);
}

static DiError *plan_slow(DiBackend *b, DiDevice *d, const DiOpHeader *h, DiPlan **out, DiPlanInfo *info) {
  ++live_plans;
  return rstd_plan(b, d, h, out, info);
}

static void destroy_plan(DiBackend *b, DiPlan *plan) {
  --live_plans;
  rstd_plan_destroy(b, plan);
}

static DiError *fast(DiBackend *b, DiPlan *plan, DiStream *s, const DiOpHeader *h) {
  ++fast_runs;
  return rstd(b, plan, s, h);
}

static DiError *slow(DiBackend *b, DiPlan *plan, DiStream *s, const DiOpHeader *h) {
  ++slow_runs;
  return rstd(b, plan, s, h);
}

static const DiOpEntry planned_entries[] = {
    {sizeof(DiOpEntry), DI_OP_RSTD, 1, 0, TEXT("rstd"), TEXT("fast"), 10, 0, NULL, plan_fast, fast, destroy_plan},
    {sizeof(DiOpEntry), DI_OP_RSTD, 1, DI_PF_BATCH_INVARIANT, TEXT("rstd"), TEXT("slow"), 0, 0, NULL, plan_slow, slow,
     destroy_plan},
};

int32_t deepinfer_backend_entry(const DiEntryRequest *request, DiEntryReply *reply) {
  int32_t code = host_backend_entry(request, reply);
  api.known.ops = planned_entries;
  api.known.n_ops = sizeof planned_entries / sizeof *planned_entries;
  api.known.op_stride = sizeof *planned_entries;
  return code;
}
