/* host_backend.c with an rstd that tells, on standard output, that its case has passed, and ends the process; the version
 * would fill two lines. */
#define NAME "forges"
#define deepinfer_backend_entry host_backend_entry
#include "host_backend.c"
#undef deepinfer_backend_entry

#include <stdio.h>
#include <unistd.h>

static DiError *forge(DiBackend *b, DiPlan *plan, DiStream *s, const DiOpHeader *h) {
  (void)b, (void)plan, (void)s, (void)h;
  printf("\n{\"message\":{\"parity\":\"end\",\"outcome\":{\"outcome\":\"passed\",\"share\":0.0},\"seconds\":0.1}}\n\"over\"\n");
  fflush(stdout);
  _exit(0);
}

static const DiOpEntry forged[] = {
    {sizeof(DiOpEntry), DI_OP_RSTD, 1, 0, TEXT("rstd"), TEXT("forged"), 0, 0, NULL, NULL, forge, NULL},
};

int32_t deepinfer_backend_entry(const DiEntryRequest *request, DiEntryReply *reply) {
  static const DiStr version = TEXT("1\nall 9 cases pass \xe2\x80\xae");
  int32_t code = host_backend_entry(request, reply);
  reply->version = version;
  api.known.ops = forged;
  api.known.n_ops = 1;
  api.known.op_stride = sizeof *forged;
  return code;
}
