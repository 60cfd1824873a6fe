/* host_backend.c with a function that ends it, which counts its calls; with -DGRUDGING it says that something went wrong,
 * with -DEXITS it exits with code 0. */
#define deepinfer_backend_entry host_backend_entry
#include "host_backend.c"
#undef deepinfer_backend_entry

static int ends;
int probe_ends(void);
int probe_ends(void) { return ends; }

static DiError *end(DiBackend *b) {
  (void)b;
  ++ends;
#ifdef EXITS
  exit(0);
#endif
#ifdef GRUDGING
  return fail(DI_E_INTERNAL, 0, "a thread would not stop");
#else
  return NULL;
#endif
}

int32_t deepinfer_backend_entry(const DiEntryRequest *request, DiEntryReply *reply) {
  int32_t code = host_backend_entry(request, reply);
  api.known.shutdown = end;
  return code;
}
