/* What the backend uses of AscendCL, CANN's runtime (libascendcl.so): names, types and numbers, stated by us.
 *
 * bindgen makes src/acl/sys.rs of it, and the fake runtime (fake/) is compiled against it. It is no copy of the vendor's
 * headers and replaces none of them. Every function is looked up by its name when the library is opened. */
#ifndef DEEPINFER_DI_ACL_H
#define DEEPINFER_DI_ACL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef int aclError;
typedef void *aclrtContext;
typedef void *aclrtStream;
typedef void *aclrtEvent;
typedef void *aclrtBinHandle;
typedef void *aclrtFuncHandle;
typedef void *aclmdlRI;

/* Results. Those of 107xxx are mistakes of the caller, those of 207xxx lack something, those of 507xxx come from the device. */
static const aclError ACL_SUCCESS = 0;
static const aclError ACL_ERROR_INVALID_PARAM = 100000;
static const aclError ACL_ERROR_UNINITIALIZE = 100001;
static const aclError ACL_ERROR_REPEAT_INITIALIZE = 100002;
static const aclError ACL_ERROR_RT_PARAM_INVALID = 107000;
static const aclError ACL_ERROR_RT_INVALID_DEVICEID = 107001;
static const aclError ACL_ERROR_RT_CONTEXT_NULL = 107002;
static const aclError ACL_ERROR_RT_STREAM_CONTEXT = 107003;
static const aclError ACL_ERROR_RT_ADDR_UNALIGNED = 107008;
static const aclError ACL_ERROR_RT_INVALID_HANDLE = 107017;
static const aclError ACL_ERROR_RT_WAIT_TIMEOUT = 107019;
static const aclError ACL_ERROR_RT_TASK_TIMEOUT = 107020;
static const aclError ACL_ERROR_RT_DEVICE_TASK_ABORT = 107022;
static const aclError ACL_ERROR_RT_STREAM_ABORT = 107023;
static const aclError ACL_ERROR_RT_STREAM_CAPTURED = 107027;
static const aclError ACL_ERROR_RT_STREAM_NOT_CAPTURED = 107029;
static const aclError ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT = 107030;
static const aclError ACL_ERROR_RT_CAPTURE_MODE_BLOCK_ASYNC = 107041;
static const aclError ACL_ERROR_RT_FEATURE_NOT_SUPPORT = 207000;
static const aclError ACL_ERROR_RT_MEMORY_ALLOCATION = 207001;
static const aclError ACL_ERROR_RT_NO_DEVICE = 207004;
static const aclError ACL_ERROR_RT_NO_STREAM_RESOURCE = 207008;
static const aclError ACL_ERROR_RT_DEVICE_OOM = 207018;
static const aclError ACL_ERROR_RT_LOST_HEARTBEAT = 507010;
static const aclError ACL_ERROR_RT_AICORE_TIMEOUT = 507014;
static const aclError ACL_ERROR_RT_AICORE_EXCEPTION = 507015;
static const aclError ACL_ERROR_RT_KERNEL_LOOKUP = 507027;
static const aclError ACL_ERROR_RT_VECTOR_CORE_TIMEOUT = 507034;
static const aclError ACL_ERROR_RT_VECTOR_CORE_EXCEPTION = 507035;
static const aclError ACL_ERROR_RT_STREAM_SYNC_TIMEOUT = 507046;
static const aclError ACL_ERROR_RT_EVENT_SYNC_TIMEOUT = 507047;
static const aclError ACL_ERROR_RT_DRV_INTERNAL_ERROR = 507899;
static const aclError ACL_ERROR_RT_SOCKET_CLOSE = 507901;
static const aclError ACL_ERROR_RT_STREAM_CAPTURE_INVALIDATED = 507903;

/* Which way a copy goes. */
typedef enum aclrtMemcpyKind {
  ACL_MEMCPY_HOST_TO_HOST = 0,
  ACL_MEMCPY_HOST_TO_DEVICE = 1,
  ACL_MEMCPY_DEVICE_TO_HOST = 2,
  ACL_MEMCPY_DEVICE_TO_DEVICE = 3,
  ACL_MEMCPY_DEFAULT = 4,
} aclrtMemcpyKind;

typedef enum aclrtMemMallocPolicy { ACL_MEM_MALLOC_HUGE_FIRST = 0 } aclrtMemMallocPolicy;
typedef enum aclrtMemAttr { ACL_HBM_MEM = 1 } aclrtMemAttr;
typedef enum aclrtDevAttr { ACL_DEV_ATTR_VECTOR_CORE_NUM = 201, ACL_DEV_ATTR_TOTAL_GLOBAL_MEM_SIZE = 301 } aclrtDevAttr;
typedef enum aclrtHostRegisterType { ACL_HOST_REGISTER_MAPPED = 0 } aclrtHostRegisterType;

typedef enum aclrtEventRecordedStatus {
  ACL_EVENT_RECORDED_STATUS_NOT_READY = 0,
  ACL_EVENT_RECORDED_STATUS_COMPLETE = 1,
} aclrtEventRecordedStatus;

#define ACL_EVENT_SYNC 0x00000001u
#define ACL_EVENT_TIME_LINE 0x00000008u
#define ACL_STREAM_FAST_LAUNCH 0x00000001u

typedef enum aclmdlRICaptureMode {
  ACL_MODEL_RI_CAPTURE_MODE_GLOBAL = 0,
  ACL_MODEL_RI_CAPTURE_MODE_THREAD_LOCAL = 1,
  ACL_MODEL_RI_CAPTURE_MODE_RELAXED = 2,
} aclmdlRICaptureMode;

typedef enum aclrtBinaryLoadOptionType { ACL_RT_BINARY_LOAD_OPT_MAGIC = 2 } aclrtBinaryLoadOptionType;
#define ACL_RT_BINARY_MAGIC_ELF_VECTOR_CORE 0x41415246u

typedef union aclrtBinaryLoadOptionValue {
  uint32_t magic;
  uint32_t rsv[4];
} aclrtBinaryLoadOptionValue;

typedef struct aclrtBinaryLoadOption {
  aclrtBinaryLoadOptionType type;
  aclrtBinaryLoadOptionValue value;
} aclrtBinaryLoadOption;

typedef struct aclrtBinaryLoadOptions {
  aclrtBinaryLoadOption *options;
  size_t numOpt;
} aclrtBinaryLoadOptions;

/* In the arguments of a launch: at `addrOffset` goes the device address of what stands at `dataOffset`. */
typedef struct aclrtPlaceHolderInfo {
  uint32_t addrOffset;
  uint32_t dataOffset;
} aclrtPlaceHolderInfo;

/* Attributes of a launch: none is given. */
typedef struct aclrtLaunchKernelCfg aclrtLaunchKernelCfg;

/* Life. */
aclError aclInit(const char *configPath);
const char *aclGetRecentErrMsg(void);
const char *aclrtGetSocName(void);

/* Devices. */
aclError aclrtGetDeviceCount(uint32_t *count);
aclError aclrtGetDeviceInfo(uint32_t deviceId, aclrtDevAttr attr, int64_t *value);
aclError aclrtSetDevice(int32_t deviceId);
aclError aclrtGetCurrentContext(aclrtContext *context);
aclError aclrtSetCurrentContext(aclrtContext context);

/* Memory. */
aclError aclrtGetMemInfo(aclrtMemAttr attr, size_t *freeBytes, size_t *totalBytes);
aclError aclrtMalloc(void **devPtr, size_t size, aclrtMemMallocPolicy policy);
aclError aclrtFree(void *devPtr);
aclError aclrtMallocHost(void **hostPtr, size_t size);
aclError aclrtFreeHost(void *hostPtr);
aclError aclrtHostRegister(void *ptr, uint64_t size, aclrtHostRegisterType type, void **devPtr);
aclError aclrtHostUnregister(void *ptr);
aclError aclrtMemcpyAsync(void *dst, size_t destMax, const void *src, size_t count, aclrtMemcpyKind kind, aclrtStream stream);
aclError aclrtMemsetAsync(void *devPtr, size_t maxCount, int32_t value, size_t count, aclrtStream stream);

/* Streams and events. */
aclError aclrtCreateStreamWithConfig(aclrtStream *stream, uint32_t priority, uint32_t flag);
aclError aclrtDestroyStream(aclrtStream stream);
aclError aclrtSynchronizeStream(aclrtStream stream);
aclError aclrtCreateEventExWithFlag(aclrtEvent *event, uint32_t flag);
aclError aclrtDestroyEvent(aclrtEvent event);
aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream);
aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event);
aclError aclrtQueryEventStatus(aclrtEvent event, aclrtEventRecordedStatus *status);
aclError aclrtSynchronizeEvent(aclrtEvent event);
aclError aclrtEventElapsedTime(float *ms, aclrtEvent startEvent, aclrtEvent endEvent);

/* Kernels. */
aclError aclrtBinaryLoadFromData(const void *data, size_t length, const aclrtBinaryLoadOptions *options, aclrtBinHandle *binHandle);
aclError aclrtBinaryUnLoad(aclrtBinHandle binHandle);
aclError aclrtBinaryGetFunction(aclrtBinHandle binHandle, const char *kernelName, aclrtFuncHandle *funcHandle);
aclError aclrtLaunchKernelWithHostArgs(aclrtFuncHandle funcHandle, uint32_t blockDim, aclrtStream stream, aclrtLaunchKernelCfg *cfg,
                                       void *hostArgs, size_t argsSize, aclrtPlaceHolderInfo *placeHolderArray,
                                       size_t placeHolderNum);

/* Graphs: work of a stream, recorded and run again. */
aclError aclmdlRICaptureBegin(aclrtStream stream, aclmdlRICaptureMode mode);
aclError aclmdlRICaptureEnd(aclrtStream stream, aclmdlRI *modelRI);
aclError aclmdlRIExecuteAsync(aclmdlRI modelRI, aclrtStream stream);
aclError aclmdlRIDestroy(aclmdlRI modelRI);

#ifdef __cplusplus
}
#endif

#endif
