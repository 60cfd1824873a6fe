// The host twin's kernel_operator.h: found instead of the vendor's when a kernel is compiled for the twin. It is our own, and has
// only what our kernels use. ../kernels/README.md lists it.

#ifndef DEEPINFER_ASCEND_TWIN_KERNEL_OPERATOR_H
#define DEEPINFER_ASCEND_TWIN_KERNEL_OPERATOR_H

// What a build for the device says of the machine.
#ifndef __NPU_ARCH__
#define __NPU_ARCH__ 3510
#endif

#include "gather.h"
#include "queue.h"

#endif
