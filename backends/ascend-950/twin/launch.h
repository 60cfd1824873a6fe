// How a kernel image of the host twin is started. The fake runtime includes this and nothing else of the twin.
//
// An image is a shared object made of one kernel file and the twin. It exports its kernels, `extern "C"`, and
// `di_twin_launch`, which runs every block of one launch and comes back when all are done.

#ifndef DEEPINFER_ASCEND_TWIN_LAUNCH_H
#define DEEPINFER_ASCEND_TWIN_LAUNCH_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// What the device reports; the codes are those of the runtime.
#define DI_TWIN_OK 0
#define DI_TWIN_VECTOR_TIMEOUT 507034   // a deadlock, where nothing that is left can start, or steps without an end
#define DI_TWIN_VECTOR_EXCEPTION 507035 // an access or a flag that is wrong

typedef struct DiTwinLaunch {
  uint64_t struct_size;  // sizeof(DiTwinLaunch)
  void *kernel;          // address of the extern "C" function
  uint32_t blocks;       // at least 1
  uint32_t arg_count;    // 1 to DI_TWIN_MAX_ARGS
  const uint64_t *args;  // device addresses; the last one is that of the tiling struct
  uint64_t seed;         // order of the pipes and of the blocks, and the noise of inexact instructions
  // The live allocation that holds `address`: 1 and its range, else 0. Called from the thread that launches.
  int (*find)(void *context, uint64_t address, uint64_t *begin, uint64_t *bytes);
  void *context;
  char *message;           // where a sentence goes when the result is not 0
  uint64_t message_bytes;  // room for it, with its final zero
} DiTwinLaunch;

#define DI_TWIN_MAX_ARGS 32

// 0, or one of the codes above. Memory of the device may be partly written when it is not 0.
int di_twin_launch(const DiTwinLaunch *launch);

#ifdef __cplusplus
}
#endif

#endif
