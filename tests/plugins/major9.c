/* A plugin of a later major that declines politely: it knows that only the head of the reply is common ground. */
#include <string.h>
#include "deepinfer_plugin.h"

static void release(DiError *error) { (void)error; }
static DiError error;

int32_t deepinfer_backend_entry(const DiEntryRequest *request, DiEntryReply *reply) {
  static const char text[] = "this build wants ABI major 9";
  reply->major = 9;
  reply->minor = 4;
  if (request->max_major >= 9) return 0;
  memset(&error, 0, sizeof error);
  error.struct_size = sizeof error;
  error.code = DI_E_ABI;
  error.message.ptr = (const uint8_t *)text;
  error.message.len = sizeof text - 1;
  error.release = release;
  reply->error = &error;
  return DI_E_ABI;
}
