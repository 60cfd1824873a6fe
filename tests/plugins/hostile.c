/* A plugin that takes its process with it, built with one switch:
 *   ABORTS   while it is mapped, before anybody can ask it anything
 *   EXITS    in its entry, with code 0
 *   SPINS    in its entry, for good */
#include <stdlib.h>
#include <unistd.h>
#include "deepinfer_plugin.h"

#ifdef ABORTS
__attribute__((constructor)) static void on_load(void) { abort(); }
#endif

int32_t deepinfer_backend_entry(const DiEntryRequest *request, DiEntryReply *reply) {
  (void)request, (void)reply;
#ifdef EXITS
  exit(0);
#endif
#ifdef SPINS
  for (;;) pause();
#endif
  return DI_E_INTERNAL;
}
