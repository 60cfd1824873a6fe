/* A plugin that declines to start and says why. */
#include "deepinfer_plugin.h"

static int releases;
int probe_releases(void);
int probe_releases(void) { return releases; }

static void release(DiError *error) {
  (void)error;
  ++releases;
}

static const char text[] = "the licence server is on holiday";
static DiError error = {sizeof error, DI_E_UNSUPPORTED, 0, 17, {(const uint8_t *)text, sizeof text - 1}, {0, 0}, release};

int32_t deepinfer_backend_entry(const DiEntryRequest *request, DiEntryReply *reply) {
  static const char name[] = "c-refuses";
  (void)request;
  reply->name.ptr = (const uint8_t *)name;
  reply->name.len = sizeof name - 1;
  reply->error = &error;
  return error.code;
}
