// Functions of the fake whose calls are counted and can be planned to fail (settings.h).

#pragma once

#include <string>

namespace fake {

struct Fallible {
  const char *name;
  // It is called on a device, which can be lost before the call.
  bool of_device;
};

inline constexpr Fallible FUNCTIONS[] = {
    {"aclInit", false},
    {"aclrtGetDeviceCount", false},
    {"aclrtGetDeviceInfo", false},
    {"aclrtSetDevice", false},
    {"aclrtGetCurrentContext", true},
    {"aclrtSetCurrentContext", true},
    {"aclrtGetMemInfo", true},
    {"aclrtMalloc", true},
    {"aclrtFree", true},
    {"aclrtMallocHost", true},
    {"aclrtFreeHost", true},
    {"aclrtHostRegister", true},
    {"aclrtHostUnregister", true},
    {"aclrtMemcpyAsync", true},
    {"aclrtMemsetAsync", true},
    {"aclrtCreateStreamWithConfig", true},
    {"aclrtDestroyStream", true},
    {"aclrtSynchronizeStream", true},
    {"aclrtCreateEventExWithFlag", true},
    {"aclrtDestroyEvent", true},
    {"aclrtRecordEvent", true},
    {"aclrtStreamWaitEvent", true},
    {"aclrtQueryEventStatus", true},
    {"aclrtSynchronizeEvent", true},
    {"aclrtEventElapsedTime", true},
    {"aclrtBinaryLoadFromData", true},
    {"aclrtBinaryUnLoad", true},
    {"aclrtBinaryGetFunction", true},
    {"aclrtLaunchKernelWithHostArgs", true},
    {"aclmdlRICaptureBegin", true},
    {"aclmdlRICaptureEnd", true},
    {"aclmdlRIExecuteAsync", true},
    {"aclmdlRIDestroy", true},
    {"aclnnMatmulGetWorkspaceSize", true},
    {"aclnnMatmul", true},
    {"aclnnQuantMatmulV5GetWorkspaceSize", true},
    {"aclnnQuantMatmulV5", true},
    {"aclnnGroupedMatmulV5GetWorkspaceSize", true},
    {"aclnnGroupedMatmulV5", true},
    {"HcclCommInitRootInfoConfig", true},
    {"HcclAllReduce", true},
    {"HcclBroadcast", true},
    {"HcclReduceScatter", true},
    {"HcclAllGather", true},
    {"HcclAlltoAllV", true},
    {"HcclSend", true},
    {"HcclRecv", true},
    {"HcclBarrier", true},
};

// Null if no function of this name can fail.
inline const Fallible *function_named(const std::string &name) {
  for (const Fallible &function : FUNCTIONS)
    if (name == function.name) return &function;
  return nullptr;
}

// Functions of the vendor's ops, each of which an installation can lack.
inline constexpr const char *OP_FUNCTIONS[] = {
    "aclCreateTensor", "aclDestroyTensor", "aclnnMatmulGetWorkspaceSize", "aclnnMatmul", "aclnnQuantMatmulV5GetWorkspaceSize",
    "aclnnQuantMatmulV5", "aclCreateTensorList", "aclDestroyTensorList", "aclnnGroupedMatmulV5GetWorkspaceSize", "aclnnGroupedMatmulV5",
};

// Vendor ops: those functions that are a second phase.
inline bool is_op(const std::string &name) {
  return name == "aclnnMatmul" || name == "aclnnQuantMatmulV5" || name == "aclnnGroupedMatmulV5";
}

}  // namespace fake
