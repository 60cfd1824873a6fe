/* What the files of this backend share. */
#ifndef BACKEND_H
#define BACKEND_H
#include "deepinfer_plugin_helpers.h"

/* Name by which users select the backend; the origin of its errors begins with it. */
#define BACKEND "{{name}}"

/* Devices, memory, streams and events: device.c. */
extern const DiRuntimeApi runtime;

/* Ops, one file each, named after it: ops/. */
DiError *gather(DiBackend *, DiPlan *, DiStream *, const DiOpHeader *);

#endif
