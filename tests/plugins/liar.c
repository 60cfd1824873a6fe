/* A backend with two ops and, if the option fault=NAME asks for it, one fault, for tests of `deepinfer parity`. Devices and
 * memory are those of host_backend.c. Faults are in convert_kv_index, in calls of 33 rows where a rare one is wanted;
 * restore_candidate_indices_inplace is always right. */
#define _DEFAULT_SOURCE
#define NAME "liar"
#define deepinfer_backend_entry host_backend_entry
#include "host_backend.c"
#undef deepinfer_backend_entry

#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static char fault[32];

static int has(const char *name) { return strcmp(fault, name) == 0; }

static int32_t *at(const DiTensor *t, int64_t row, int64_t column) {
  return (int32_t *)t->data + row * t->strides[0] + column * t->strides[1];
}

static void *sleep_for_good(void *unused) {
  for (;;) sleep(1000);
  return unused;
}

static DiError *commit(const DiArgsConvertKvIndexV1 *a) {
  int is_rare = a->positions.shape[0] == 33;
  if (has("segfault") && is_rare) *(volatile int *)8 = 1;
  if (has("abort") && is_rare) abort();
  if (has("exit") && is_rare) exit(0);
  if (has("hang") && is_rare) sleep_for_good(NULL);
  if (has("print") && is_rare) printf("a word of the plugin, without an end of line"), fflush(stdout);
  if (has("leak")) {
    pthread_t thread;
    pthread_create(&thread, NULL, sleep_for_good, NULL);
  }
  if (has("decline")) return fail(DI_E_UNSUPPORTED, 0, "not today");
  if (has("poisoned")) return fail(DI_E_DEVICE_LOST, DI_EF_STICKY, "the device fell off the bus");
  return NULL;
}

static DiError *convert_kv_index(DiBackend *b, DiPlan *plan, DiStream *s, const DiOpHeader *h) {
  const DiArgsConvertKvIndexV1 *a = (const DiArgsConvertKvIndexV1 *)h;
  int64_t rows = a->positions.shape[0], columns = a->positions.shape[1];
  int64_t requests = a->block_table.shape[0], pages = a->block_table.shape[1], entries = a->entries_per_page;
  DiError *error = commit(a);
  (void)b, (void)plan, (void)s;
  if (error != NULL) return error;
  if (entries == 0) return fail(DI_E_INVALID, 0, "convert_kv_index: entries_per_page is 0");
  for (int64_t t = 0; t < rows; ++t) {
    int32_t q = ((const int32_t *)a->row_request.data)[t * a->row_request.strides[0]];
    if (q < 0 || q >= requests) return fail(DI_E_INVALID, 0, "convert_kv_index: row_request names no request");
    for (int64_t j = 0; j < columns; ++j) {
      int32_t p = *at(&a->positions, t, j);
      if (p >= 0 && p / entries >= pages && !has("careless"))
        return fail(DI_E_INVALID, 0, "convert_kv_index: positions lie beyond the block_table");
      if (p >= 0 && p / entries < pages && *at(&a->block_table, q, p / entries) < 0)
        return fail(DI_E_INVALID, 0, "convert_kv_index: a page of block_table is negative");
    }
  }
  for (int64_t t = 0; t < rows; ++t) {
    int32_t q = ((const int32_t *)a->row_request.data)[t * a->row_request.strides[0]];
    for (int64_t j = 0; j < columns; ++j) {
      int32_t p = *at(&a->positions, t, j), slot = -1;
      if (p >= 0 && p / entries < pages)
        slot = (int32_t)(*at(&a->block_table, q, p / entries) * entries + p % entries);
      /* An off-by-one at a ragged edge. */
      if (has("wrong") && t == 32 && j == columns - 1) slot += 1;
      /* A row that depends on its company. */
      if (has("company") && rows > 2 && slot >= 0) slot += 1;
      *at(&a->slots, t, j) = slot;
    }
  }
  return NULL;
}

static DiError *restore(DiBackend *b, DiPlan *plan, DiStream *s, const DiOpHeader *h) {
  const DiArgsRestoreCandidateIndicesInplaceV1 *a = (const DiArgsRestoreCandidateIndicesInplaceV1 *)h;
  (void)b, (void)plan, (void)s;
  if (a->block_size == 0) return fail(DI_E_INVALID, 0, "restore_candidate_indices_inplace: block_size is 0");
  for (int64_t t = 0; t < a->columns.shape[0]; ++t)
    for (int64_t j = 0; j < a->columns.shape[1]; ++j) {
      int32_t *c = at(&a->columns, t, j), size = (int32_t)a->block_size;
      int is_listed = *c >= 0 && *c / size < a->candidates.shape[1];
      int32_t block = is_listed ? *at(&a->candidates, t, *c / size) : -1;
      *c = block < 0 ? -1 : block * size + *c % size;
    }
  return NULL;
}

static const DiOpEntry own[] = {
    {sizeof(DiOpEntry), DI_OP_CONVERT_KV_INDEX, 1, 0, TEXT("convert_kv_index"), TEXT("c"), 0, 0, NULL, NULL,
     convert_kv_index, NULL},
    {sizeof(DiOpEntry), DI_OP_RESTORE_CANDIDATE_INDICES_INPLACE, 1, 0, TEXT("restore_candidate_indices_inplace"), TEXT("c"),
     0, 0, NULL, NULL, restore, NULL},
};

int32_t deepinfer_backend_entry(const DiEntryRequest *request, DiEntryReply *reply) {
  static const char key[] = "fault=";
  DiEntryRequest plain = *request;
  size_t length = request->options.len;
  int32_t code;
  if (length > sizeof key - 1 && length - sizeof key + 1 < sizeof fault &&
      memcmp(request->options.ptr, key, sizeof key - 1) == 0) {
    memcpy(fault, request->options.ptr + sizeof key - 1, length - sizeof key + 1);
    plain.options.len = 0;
  }
  if (has("boot")) abort();
  code = host_backend_entry(&plain, reply);
  api.known.ops = own;
  api.known.n_ops = sizeof own / sizeof *own;
  api.known.op_stride = sizeof *own;
  return code;
}
