/* A plugin that takes its process with it, built with one switch:
 *   ABORTS   while it is mapped, before anybody can ask it anything
 *   EXITS    in its entry, with code 0
 *   SPINS    in its entry, for good
 *   SLEEPS   while it is mapped, for good; it prints its process id before
 *   FLOODS   in its entry: it prints a line without end
 *   ORPHANS  in its entry: it starts a process that keeps the pipes open, prints the id of that, and aborts */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "deepinfer_plugin.h"

#ifdef ABORTS
__attribute__((constructor)) static void on_load(void) { abort(); }
#endif

#ifdef SLEEPS
__attribute__((constructor)) static void on_load(void) {
  printf("process %d\n", (int)getpid());
  fflush(stdout);
  for (;;) pause();
}
#endif

int32_t deepinfer_backend_entry(const DiEntryRequest *request, DiEntryReply *reply) {
  (void)request, (void)reply;
#ifdef EXITS
  exit(0);
#endif
#ifdef SPINS
  for (;;) pause();
#endif
#ifdef FLOODS
  static char part[1 << 16];
  memset(part, 'x', sizeof part);
  while (write(1, part, sizeof part) >= 0) continue;
#endif
#ifdef ORPHANS
  int helper = fork();
  if (helper == 0) {
    sleep(100);
    _exit(0);
  }
  printf("process %d\n", helper);
  fflush(stdout);
  abort();
#endif
  return DI_E_INTERNAL;
}
