/* A plugin that declines to start, with control characters in its name, its reason and its log. */
#include "deepinfer_plugin.h"

#define TEXT(s) {(const uint8_t *)(s), sizeof(s) - 1}

static void release(DiError *error) { (void)error; }

static DiError error = {sizeof error, DI_E_INTERNAL, 0, 0, TEXT("first\nerror: \033[31msecond"), {0, 0}, release};

int32_t deepinfer_backend_entry(const DiEntryRequest *request, DiEntryReply *reply) {
  static const DiStr name = TEXT("c-\033[2Jgarbles"), logged = TEXT("logged\nerror: \033[31mline");
  request->host->log(request->host->user, DI_LOG_WARN, name, logged);
  reply->name = name;
  reply->error = &error;
  return error.code;
}
