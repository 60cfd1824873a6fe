// Made by bindgen from include/di_acl.h: see tests/tests/bindgen/ascend.rs.

pub const ACL_EVENT_SYNC: u32 = 1;
pub const ACL_EVENT_TIME_LINE: u32 = 8;
pub const ACL_STREAM_FAST_LAUNCH: u32 = 1;
pub const ACL_RT_BINARY_MAGIC_ELF_VECTOR_CORE: u32 = 1094799942;
pub type aclError = ::std::os::raw::c_int;
pub type aclrtContext = *mut ::std::os::raw::c_void;
pub type aclrtStream = *mut ::std::os::raw::c_void;
pub type aclrtEvent = *mut ::std::os::raw::c_void;
pub type aclrtBinHandle = *mut ::std::os::raw::c_void;
pub type aclrtFuncHandle = *mut ::std::os::raw::c_void;
pub type aclmdlRI = *mut ::std::os::raw::c_void;
pub const ACL_SUCCESS: aclError = 0;
pub const ACL_ERROR_INVALID_PARAM: aclError = 100000;
pub const ACL_ERROR_UNINITIALIZE: aclError = 100001;
pub const ACL_ERROR_REPEAT_INITIALIZE: aclError = 100002;
pub const ACL_ERROR_RT_PARAM_INVALID: aclError = 107000;
pub const ACL_ERROR_RT_INVALID_DEVICEID: aclError = 107001;
pub const ACL_ERROR_RT_CONTEXT_NULL: aclError = 107002;
pub const ACL_ERROR_RT_STREAM_CONTEXT: aclError = 107003;
pub const ACL_ERROR_RT_ADDR_UNALIGNED: aclError = 107008;
pub const ACL_ERROR_RT_INVALID_HANDLE: aclError = 107017;
pub const ACL_ERROR_RT_WAIT_TIMEOUT: aclError = 107019;
pub const ACL_ERROR_RT_TASK_TIMEOUT: aclError = 107020;
pub const ACL_ERROR_RT_DEVICE_TASK_ABORT: aclError = 107022;
pub const ACL_ERROR_RT_STREAM_ABORT: aclError = 107023;
pub const ACL_ERROR_RT_STREAM_CAPTURED: aclError = 107027;
pub const ACL_ERROR_RT_STREAM_NOT_CAPTURED: aclError = 107029;
pub const ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT: aclError = 107030;
pub const ACL_ERROR_RT_CAPTURE_MODE_BLOCK_ASYNC: aclError = 107041;
pub const ACL_ERROR_RT_FEATURE_NOT_SUPPORT: aclError = 207000;
pub const ACL_ERROR_RT_MEMORY_ALLOCATION: aclError = 207001;
pub const ACL_ERROR_RT_NO_DEVICE: aclError = 207004;
pub const ACL_ERROR_RT_NO_STREAM_RESOURCE: aclError = 207008;
pub const ACL_ERROR_RT_DEVICE_OOM: aclError = 207018;
pub const ACL_ERROR_RT_LOST_HEARTBEAT: aclError = 507010;
pub const ACL_ERROR_RT_AICORE_TIMEOUT: aclError = 507014;
pub const ACL_ERROR_RT_AICORE_EXCEPTION: aclError = 507015;
pub const ACL_ERROR_RT_KERNEL_LOOKUP: aclError = 507027;
pub const ACL_ERROR_RT_VECTOR_CORE_TIMEOUT: aclError = 507034;
pub const ACL_ERROR_RT_VECTOR_CORE_EXCEPTION: aclError = 507035;
pub const ACL_ERROR_RT_STREAM_SYNC_TIMEOUT: aclError = 507046;
pub const ACL_ERROR_RT_EVENT_SYNC_TIMEOUT: aclError = 507047;
pub const ACL_ERROR_RT_DRV_INTERNAL_ERROR: aclError = 507899;
pub const ACL_ERROR_RT_SOCKET_CLOSE: aclError = 507901;
pub const ACL_ERROR_RT_STREAM_CAPTURE_INVALIDATED: aclError = 507903;
pub const ACL_MEMCPY_HOST_TO_HOST: aclrtMemcpyKind = 0;
pub const ACL_MEMCPY_HOST_TO_DEVICE: aclrtMemcpyKind = 1;
pub const ACL_MEMCPY_DEVICE_TO_HOST: aclrtMemcpyKind = 2;
pub const ACL_MEMCPY_DEVICE_TO_DEVICE: aclrtMemcpyKind = 3;
pub const ACL_MEMCPY_DEFAULT: aclrtMemcpyKind = 4;
pub type aclrtMemcpyKind = ::std::os::raw::c_uint;
pub const ACL_MEM_MALLOC_HUGE_FIRST: aclrtMemMallocPolicy = 0;
pub type aclrtMemMallocPolicy = ::std::os::raw::c_uint;
pub const ACL_HBM_MEM: aclrtMemAttr = 1;
pub type aclrtMemAttr = ::std::os::raw::c_uint;
pub const ACL_DEV_ATTR_VECTOR_CORE_NUM: aclrtDevAttr = 201;
pub const ACL_DEV_ATTR_TOTAL_GLOBAL_MEM_SIZE: aclrtDevAttr = 301;
pub type aclrtDevAttr = ::std::os::raw::c_uint;
pub const ACL_HOST_REGISTER_MAPPED: aclrtHostRegisterType = 0;
pub type aclrtHostRegisterType = ::std::os::raw::c_uint;
pub const ACL_EVENT_RECORDED_STATUS_NOT_READY: aclrtEventRecordedStatus = 0;
pub const ACL_EVENT_RECORDED_STATUS_COMPLETE: aclrtEventRecordedStatus = 1;
pub type aclrtEventRecordedStatus = ::std::os::raw::c_uint;
pub const ACL_MODEL_RI_CAPTURE_MODE_GLOBAL: aclmdlRICaptureMode = 0;
pub const ACL_MODEL_RI_CAPTURE_MODE_THREAD_LOCAL: aclmdlRICaptureMode = 1;
pub const ACL_MODEL_RI_CAPTURE_MODE_RELAXED: aclmdlRICaptureMode = 2;
pub type aclmdlRICaptureMode = ::std::os::raw::c_uint;
pub const ACL_RT_BINARY_LOAD_OPT_MAGIC: aclrtBinaryLoadOptionType = 2;
pub type aclrtBinaryLoadOptionType = ::std::os::raw::c_uint;
#[repr(C)]
#[derive(Copy, Clone)]
pub union aclrtBinaryLoadOptionValue {
    pub magic: u32,
    pub rsv: [u32; 4usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of aclrtBinaryLoadOptionValue"][::std::mem::size_of::<aclrtBinaryLoadOptionValue>() - 16usize];
    ["Alignment of aclrtBinaryLoadOptionValue"][::std::mem::align_of::<aclrtBinaryLoadOptionValue>() - 4usize];
    ["Offset of field: aclrtBinaryLoadOptionValue::magic"]
        [::std::mem::offset_of!(aclrtBinaryLoadOptionValue, magic) - 0usize];
    ["Offset of field: aclrtBinaryLoadOptionValue::rsv"]
        [::std::mem::offset_of!(aclrtBinaryLoadOptionValue, rsv) - 0usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub struct aclrtBinaryLoadOption {
    pub type_: aclrtBinaryLoadOptionType,
    pub value: aclrtBinaryLoadOptionValue,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of aclrtBinaryLoadOption"][::std::mem::size_of::<aclrtBinaryLoadOption>() - 20usize];
    ["Alignment of aclrtBinaryLoadOption"][::std::mem::align_of::<aclrtBinaryLoadOption>() - 4usize];
    ["Offset of field: aclrtBinaryLoadOption::type_"][::std::mem::offset_of!(aclrtBinaryLoadOption, type_) - 0usize];
    ["Offset of field: aclrtBinaryLoadOption::value"][::std::mem::offset_of!(aclrtBinaryLoadOption, value) - 4usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct aclrtBinaryLoadOptions {
    pub options: *mut aclrtBinaryLoadOption,
    pub numOpt: usize,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of aclrtBinaryLoadOptions"][::std::mem::size_of::<aclrtBinaryLoadOptions>() - 16usize];
    ["Alignment of aclrtBinaryLoadOptions"][::std::mem::align_of::<aclrtBinaryLoadOptions>() - 8usize];
    ["Offset of field: aclrtBinaryLoadOptions::options"]
        [::std::mem::offset_of!(aclrtBinaryLoadOptions, options) - 0usize];
    ["Offset of field: aclrtBinaryLoadOptions::numOpt"]
        [::std::mem::offset_of!(aclrtBinaryLoadOptions, numOpt) - 8usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct aclrtPlaceHolderInfo {
    pub addrOffset: u32,
    pub dataOffset: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of aclrtPlaceHolderInfo"][::std::mem::size_of::<aclrtPlaceHolderInfo>() - 8usize];
    ["Alignment of aclrtPlaceHolderInfo"][::std::mem::align_of::<aclrtPlaceHolderInfo>() - 4usize];
    ["Offset of field: aclrtPlaceHolderInfo::addrOffset"]
        [::std::mem::offset_of!(aclrtPlaceHolderInfo, addrOffset) - 0usize];
    ["Offset of field: aclrtPlaceHolderInfo::dataOffset"]
        [::std::mem::offset_of!(aclrtPlaceHolderInfo, dataOffset) - 4usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct aclrtLaunchKernelCfg {
    _unused: [u8; 0],
}
pub struct AscendCl {
    __library: ::libloading::Library,
    pub aclInit:
        Result<unsafe extern "C" fn(configPath: *const ::std::os::raw::c_char) -> aclError, ::libloading::Error>,
    pub aclGetRecentErrMsg: Result<unsafe extern "C" fn() -> *const ::std::os::raw::c_char, ::libloading::Error>,
    pub aclrtGetSocName: Result<unsafe extern "C" fn() -> *const ::std::os::raw::c_char, ::libloading::Error>,
    pub aclrtGetDeviceCount: Result<unsafe extern "C" fn(count: *mut u32) -> aclError, ::libloading::Error>,
    pub aclrtGetDeviceInfo: Result<
        unsafe extern "C" fn(deviceId: u32, attr: aclrtDevAttr, value: *mut i64) -> aclError,
        ::libloading::Error,
    >,
    pub aclrtSetDevice: Result<unsafe extern "C" fn(deviceId: i32) -> aclError, ::libloading::Error>,
    pub aclrtGetCurrentContext:
        Result<unsafe extern "C" fn(context: *mut aclrtContext) -> aclError, ::libloading::Error>,
    pub aclrtSetCurrentContext: Result<unsafe extern "C" fn(context: aclrtContext) -> aclError, ::libloading::Error>,
    pub aclrtGetMemInfo: Result<
        unsafe extern "C" fn(attr: aclrtMemAttr, freeBytes: *mut usize, totalBytes: *mut usize) -> aclError,
        ::libloading::Error,
    >,
    pub aclrtMalloc: Result<
        unsafe extern "C" fn(
            devPtr: *mut *mut ::std::os::raw::c_void,
            size: usize,
            policy: aclrtMemMallocPolicy,
        ) -> aclError,
        ::libloading::Error,
    >,
    pub aclrtFree: Result<unsafe extern "C" fn(devPtr: *mut ::std::os::raw::c_void) -> aclError, ::libloading::Error>,
    pub aclrtMallocHost: Result<
        unsafe extern "C" fn(hostPtr: *mut *mut ::std::os::raw::c_void, size: usize) -> aclError,
        ::libloading::Error,
    >,
    pub aclrtFreeHost:
        Result<unsafe extern "C" fn(hostPtr: *mut ::std::os::raw::c_void) -> aclError, ::libloading::Error>,
    pub aclrtHostRegister: Result<
        unsafe extern "C" fn(
            ptr: *mut ::std::os::raw::c_void,
            size: u64,
            type_: aclrtHostRegisterType,
            devPtr: *mut *mut ::std::os::raw::c_void,
        ) -> aclError,
        ::libloading::Error,
    >,
    pub aclrtHostUnregister:
        Result<unsafe extern "C" fn(ptr: *mut ::std::os::raw::c_void) -> aclError, ::libloading::Error>,
    pub aclrtMemcpyAsync: Result<
        unsafe extern "C" fn(
            dst: *mut ::std::os::raw::c_void,
            destMax: usize,
            src: *const ::std::os::raw::c_void,
            count: usize,
            kind: aclrtMemcpyKind,
            stream: aclrtStream,
        ) -> aclError,
        ::libloading::Error,
    >,
    pub aclrtMemsetAsync: Result<
        unsafe extern "C" fn(
            devPtr: *mut ::std::os::raw::c_void,
            maxCount: usize,
            value: i32,
            count: usize,
            stream: aclrtStream,
        ) -> aclError,
        ::libloading::Error,
    >,
    pub aclrtCreateStreamWithConfig: Result<
        unsafe extern "C" fn(stream: *mut aclrtStream, priority: u32, flag: u32) -> aclError,
        ::libloading::Error,
    >,
    pub aclrtDestroyStream: Result<unsafe extern "C" fn(stream: aclrtStream) -> aclError, ::libloading::Error>,
    pub aclrtSynchronizeStream: Result<unsafe extern "C" fn(stream: aclrtStream) -> aclError, ::libloading::Error>,
    pub aclrtCreateEventExWithFlag:
        Result<unsafe extern "C" fn(event: *mut aclrtEvent, flag: u32) -> aclError, ::libloading::Error>,
    pub aclrtDestroyEvent: Result<unsafe extern "C" fn(event: aclrtEvent) -> aclError, ::libloading::Error>,
    pub aclrtRecordEvent:
        Result<unsafe extern "C" fn(event: aclrtEvent, stream: aclrtStream) -> aclError, ::libloading::Error>,
    pub aclrtStreamWaitEvent:
        Result<unsafe extern "C" fn(stream: aclrtStream, event: aclrtEvent) -> aclError, ::libloading::Error>,
    pub aclrtQueryEventStatus: Result<
        unsafe extern "C" fn(event: aclrtEvent, status: *mut aclrtEventRecordedStatus) -> aclError,
        ::libloading::Error,
    >,
    pub aclrtSynchronizeEvent: Result<unsafe extern "C" fn(event: aclrtEvent) -> aclError, ::libloading::Error>,
    pub aclrtEventElapsedTime: Result<
        unsafe extern "C" fn(ms: *mut f32, startEvent: aclrtEvent, endEvent: aclrtEvent) -> aclError,
        ::libloading::Error,
    >,
    pub aclrtBinaryLoadFromData: Result<
        unsafe extern "C" fn(
            data: *const ::std::os::raw::c_void,
            length: usize,
            options: *const aclrtBinaryLoadOptions,
            binHandle: *mut aclrtBinHandle,
        ) -> aclError,
        ::libloading::Error,
    >,
    pub aclrtBinaryUnLoad: Result<unsafe extern "C" fn(binHandle: aclrtBinHandle) -> aclError, ::libloading::Error>,
    pub aclrtBinaryGetFunction: Result<
        unsafe extern "C" fn(
            binHandle: aclrtBinHandle,
            kernelName: *const ::std::os::raw::c_char,
            funcHandle: *mut aclrtFuncHandle,
        ) -> aclError,
        ::libloading::Error,
    >,
    pub aclrtLaunchKernelWithHostArgs: Result<
        unsafe extern "C" fn(
            funcHandle: aclrtFuncHandle,
            blockDim: u32,
            stream: aclrtStream,
            cfg: *mut aclrtLaunchKernelCfg,
            hostArgs: *mut ::std::os::raw::c_void,
            argsSize: usize,
            placeHolderArray: *mut aclrtPlaceHolderInfo,
            placeHolderNum: usize,
        ) -> aclError,
        ::libloading::Error,
    >,
    pub aclmdlRICaptureBegin:
        Result<unsafe extern "C" fn(stream: aclrtStream, mode: aclmdlRICaptureMode) -> aclError, ::libloading::Error>,
    pub aclmdlRICaptureEnd:
        Result<unsafe extern "C" fn(stream: aclrtStream, modelRI: *mut aclmdlRI) -> aclError, ::libloading::Error>,
    pub aclmdlRIExecuteAsync:
        Result<unsafe extern "C" fn(modelRI: aclmdlRI, stream: aclrtStream) -> aclError, ::libloading::Error>,
    pub aclmdlRIDestroy: Result<unsafe extern "C" fn(modelRI: aclmdlRI) -> aclError, ::libloading::Error>,
}
impl AscendCl {
    pub unsafe fn new<P>(path: P) -> Result<Self, ::libloading::Error>
    where
        P: ::libloading::AsFilename,
    {
        let library = ::libloading::Library::new(path)?;
        Self::from_library(library)
    }
    pub unsafe fn from_library<L>(library: L) -> Result<Self, ::libloading::Error>
    where
        L: Into<::libloading::Library>,
    {
        let __library = library.into();
        let aclInit = __library.get(b"aclInit\0").map(|sym| *sym);
        let aclGetRecentErrMsg = __library.get(b"aclGetRecentErrMsg\0").map(|sym| *sym);
        let aclrtGetSocName = __library.get(b"aclrtGetSocName\0").map(|sym| *sym);
        let aclrtGetDeviceCount = __library.get(b"aclrtGetDeviceCount\0").map(|sym| *sym);
        let aclrtGetDeviceInfo = __library.get(b"aclrtGetDeviceInfo\0").map(|sym| *sym);
        let aclrtSetDevice = __library.get(b"aclrtSetDevice\0").map(|sym| *sym);
        let aclrtGetCurrentContext = __library.get(b"aclrtGetCurrentContext\0").map(|sym| *sym);
        let aclrtSetCurrentContext = __library.get(b"aclrtSetCurrentContext\0").map(|sym| *sym);
        let aclrtGetMemInfo = __library.get(b"aclrtGetMemInfo\0").map(|sym| *sym);
        let aclrtMalloc = __library.get(b"aclrtMalloc\0").map(|sym| *sym);
        let aclrtFree = __library.get(b"aclrtFree\0").map(|sym| *sym);
        let aclrtMallocHost = __library.get(b"aclrtMallocHost\0").map(|sym| *sym);
        let aclrtFreeHost = __library.get(b"aclrtFreeHost\0").map(|sym| *sym);
        let aclrtHostRegister = __library.get(b"aclrtHostRegister\0").map(|sym| *sym);
        let aclrtHostUnregister = __library.get(b"aclrtHostUnregister\0").map(|sym| *sym);
        let aclrtMemcpyAsync = __library.get(b"aclrtMemcpyAsync\0").map(|sym| *sym);
        let aclrtMemsetAsync = __library.get(b"aclrtMemsetAsync\0").map(|sym| *sym);
        let aclrtCreateStreamWithConfig = __library.get(b"aclrtCreateStreamWithConfig\0").map(|sym| *sym);
        let aclrtDestroyStream = __library.get(b"aclrtDestroyStream\0").map(|sym| *sym);
        let aclrtSynchronizeStream = __library.get(b"aclrtSynchronizeStream\0").map(|sym| *sym);
        let aclrtCreateEventExWithFlag = __library.get(b"aclrtCreateEventExWithFlag\0").map(|sym| *sym);
        let aclrtDestroyEvent = __library.get(b"aclrtDestroyEvent\0").map(|sym| *sym);
        let aclrtRecordEvent = __library.get(b"aclrtRecordEvent\0").map(|sym| *sym);
        let aclrtStreamWaitEvent = __library.get(b"aclrtStreamWaitEvent\0").map(|sym| *sym);
        let aclrtQueryEventStatus = __library.get(b"aclrtQueryEventStatus\0").map(|sym| *sym);
        let aclrtSynchronizeEvent = __library.get(b"aclrtSynchronizeEvent\0").map(|sym| *sym);
        let aclrtEventElapsedTime = __library.get(b"aclrtEventElapsedTime\0").map(|sym| *sym);
        let aclrtBinaryLoadFromData = __library.get(b"aclrtBinaryLoadFromData\0").map(|sym| *sym);
        let aclrtBinaryUnLoad = __library.get(b"aclrtBinaryUnLoad\0").map(|sym| *sym);
        let aclrtBinaryGetFunction = __library.get(b"aclrtBinaryGetFunction\0").map(|sym| *sym);
        let aclrtLaunchKernelWithHostArgs = __library.get(b"aclrtLaunchKernelWithHostArgs\0").map(|sym| *sym);
        let aclmdlRICaptureBegin = __library.get(b"aclmdlRICaptureBegin\0").map(|sym| *sym);
        let aclmdlRICaptureEnd = __library.get(b"aclmdlRICaptureEnd\0").map(|sym| *sym);
        let aclmdlRIExecuteAsync = __library.get(b"aclmdlRIExecuteAsync\0").map(|sym| *sym);
        let aclmdlRIDestroy = __library.get(b"aclmdlRIDestroy\0").map(|sym| *sym);
        Ok(AscendCl {
            __library,
            aclInit,
            aclGetRecentErrMsg,
            aclrtGetSocName,
            aclrtGetDeviceCount,
            aclrtGetDeviceInfo,
            aclrtSetDevice,
            aclrtGetCurrentContext,
            aclrtSetCurrentContext,
            aclrtGetMemInfo,
            aclrtMalloc,
            aclrtFree,
            aclrtMallocHost,
            aclrtFreeHost,
            aclrtHostRegister,
            aclrtHostUnregister,
            aclrtMemcpyAsync,
            aclrtMemsetAsync,
            aclrtCreateStreamWithConfig,
            aclrtDestroyStream,
            aclrtSynchronizeStream,
            aclrtCreateEventExWithFlag,
            aclrtDestroyEvent,
            aclrtRecordEvent,
            aclrtStreamWaitEvent,
            aclrtQueryEventStatus,
            aclrtSynchronizeEvent,
            aclrtEventElapsedTime,
            aclrtBinaryLoadFromData,
            aclrtBinaryUnLoad,
            aclrtBinaryGetFunction,
            aclrtLaunchKernelWithHostArgs,
            aclmdlRICaptureBegin,
            aclmdlRICaptureEnd,
            aclmdlRIExecuteAsync,
            aclmdlRIDestroy,
        })
    }
    pub unsafe fn aclInit(&self, configPath: *const ::std::os::raw::c_char) -> aclError {
        (self.aclInit.as_ref().expect("Expected function, got error."))(configPath)
    }
    pub unsafe fn aclGetRecentErrMsg(&self) -> *const ::std::os::raw::c_char {
        (self.aclGetRecentErrMsg.as_ref().expect("Expected function, got error."))()
    }
    pub unsafe fn aclrtGetSocName(&self) -> *const ::std::os::raw::c_char {
        (self.aclrtGetSocName.as_ref().expect("Expected function, got error."))()
    }
    pub unsafe fn aclrtGetDeviceCount(&self, count: *mut u32) -> aclError {
        (self.aclrtGetDeviceCount.as_ref().expect("Expected function, got error."))(count)
    }
    pub unsafe fn aclrtGetDeviceInfo(&self, deviceId: u32, attr: aclrtDevAttr, value: *mut i64) -> aclError {
        (self.aclrtGetDeviceInfo.as_ref().expect("Expected function, got error."))(deviceId, attr, value)
    }
    pub unsafe fn aclrtSetDevice(&self, deviceId: i32) -> aclError {
        (self.aclrtSetDevice.as_ref().expect("Expected function, got error."))(deviceId)
    }
    pub unsafe fn aclrtGetCurrentContext(&self, context: *mut aclrtContext) -> aclError {
        (self.aclrtGetCurrentContext.as_ref().expect("Expected function, got error."))(context)
    }
    pub unsafe fn aclrtSetCurrentContext(&self, context: aclrtContext) -> aclError {
        (self.aclrtSetCurrentContext.as_ref().expect("Expected function, got error."))(context)
    }
    pub unsafe fn aclrtGetMemInfo(
        &self,
        attr: aclrtMemAttr,
        freeBytes: *mut usize,
        totalBytes: *mut usize,
    ) -> aclError {
        (self.aclrtGetMemInfo.as_ref().expect("Expected function, got error."))(attr, freeBytes, totalBytes)
    }
    pub unsafe fn aclrtMalloc(
        &self,
        devPtr: *mut *mut ::std::os::raw::c_void,
        size: usize,
        policy: aclrtMemMallocPolicy,
    ) -> aclError {
        (self.aclrtMalloc.as_ref().expect("Expected function, got error."))(devPtr, size, policy)
    }
    pub unsafe fn aclrtFree(&self, devPtr: *mut ::std::os::raw::c_void) -> aclError {
        (self.aclrtFree.as_ref().expect("Expected function, got error."))(devPtr)
    }
    pub unsafe fn aclrtMallocHost(&self, hostPtr: *mut *mut ::std::os::raw::c_void, size: usize) -> aclError {
        (self.aclrtMallocHost.as_ref().expect("Expected function, got error."))(hostPtr, size)
    }
    pub unsafe fn aclrtFreeHost(&self, hostPtr: *mut ::std::os::raw::c_void) -> aclError {
        (self.aclrtFreeHost.as_ref().expect("Expected function, got error."))(hostPtr)
    }
    pub unsafe fn aclrtHostRegister(
        &self,
        ptr: *mut ::std::os::raw::c_void,
        size: u64,
        type_: aclrtHostRegisterType,
        devPtr: *mut *mut ::std::os::raw::c_void,
    ) -> aclError {
        (self.aclrtHostRegister.as_ref().expect("Expected function, got error."))(ptr, size, type_, devPtr)
    }
    pub unsafe fn aclrtHostUnregister(&self, ptr: *mut ::std::os::raw::c_void) -> aclError {
        (self.aclrtHostUnregister.as_ref().expect("Expected function, got error."))(ptr)
    }
    pub unsafe fn aclrtMemcpyAsync(
        &self,
        dst: *mut ::std::os::raw::c_void,
        destMax: usize,
        src: *const ::std::os::raw::c_void,
        count: usize,
        kind: aclrtMemcpyKind,
        stream: aclrtStream,
    ) -> aclError {
        (self.aclrtMemcpyAsync.as_ref().expect("Expected function, got error."))(dst, destMax, src, count, kind, stream)
    }
    pub unsafe fn aclrtMemsetAsync(
        &self,
        devPtr: *mut ::std::os::raw::c_void,
        maxCount: usize,
        value: i32,
        count: usize,
        stream: aclrtStream,
    ) -> aclError {
        (self.aclrtMemsetAsync.as_ref().expect("Expected function, got error."))(devPtr, maxCount, value, count, stream)
    }
    pub unsafe fn aclrtCreateStreamWithConfig(&self, stream: *mut aclrtStream, priority: u32, flag: u32) -> aclError {
        (self.aclrtCreateStreamWithConfig.as_ref().expect("Expected function, got error."))(stream, priority, flag)
    }
    pub unsafe fn aclrtDestroyStream(&self, stream: aclrtStream) -> aclError {
        (self.aclrtDestroyStream.as_ref().expect("Expected function, got error."))(stream)
    }
    pub unsafe fn aclrtSynchronizeStream(&self, stream: aclrtStream) -> aclError {
        (self.aclrtSynchronizeStream.as_ref().expect("Expected function, got error."))(stream)
    }
    pub unsafe fn aclrtCreateEventExWithFlag(&self, event: *mut aclrtEvent, flag: u32) -> aclError {
        (self.aclrtCreateEventExWithFlag.as_ref().expect("Expected function, got error."))(event, flag)
    }
    pub unsafe fn aclrtDestroyEvent(&self, event: aclrtEvent) -> aclError {
        (self.aclrtDestroyEvent.as_ref().expect("Expected function, got error."))(event)
    }
    pub unsafe fn aclrtRecordEvent(&self, event: aclrtEvent, stream: aclrtStream) -> aclError {
        (self.aclrtRecordEvent.as_ref().expect("Expected function, got error."))(event, stream)
    }
    pub unsafe fn aclrtStreamWaitEvent(&self, stream: aclrtStream, event: aclrtEvent) -> aclError {
        (self.aclrtStreamWaitEvent.as_ref().expect("Expected function, got error."))(stream, event)
    }
    pub unsafe fn aclrtQueryEventStatus(&self, event: aclrtEvent, status: *mut aclrtEventRecordedStatus) -> aclError {
        (self.aclrtQueryEventStatus.as_ref().expect("Expected function, got error."))(event, status)
    }
    pub unsafe fn aclrtSynchronizeEvent(&self, event: aclrtEvent) -> aclError {
        (self.aclrtSynchronizeEvent.as_ref().expect("Expected function, got error."))(event)
    }
    pub unsafe fn aclrtEventElapsedTime(&self, ms: *mut f32, startEvent: aclrtEvent, endEvent: aclrtEvent) -> aclError {
        (self.aclrtEventElapsedTime.as_ref().expect("Expected function, got error."))(ms, startEvent, endEvent)
    }
    pub unsafe fn aclrtBinaryLoadFromData(
        &self,
        data: *const ::std::os::raw::c_void,
        length: usize,
        options: *const aclrtBinaryLoadOptions,
        binHandle: *mut aclrtBinHandle,
    ) -> aclError {
        (self.aclrtBinaryLoadFromData.as_ref().expect("Expected function, got error."))(
            data, length, options, binHandle,
        )
    }
    pub unsafe fn aclrtBinaryUnLoad(&self, binHandle: aclrtBinHandle) -> aclError {
        (self.aclrtBinaryUnLoad.as_ref().expect("Expected function, got error."))(binHandle)
    }
    pub unsafe fn aclrtBinaryGetFunction(
        &self,
        binHandle: aclrtBinHandle,
        kernelName: *const ::std::os::raw::c_char,
        funcHandle: *mut aclrtFuncHandle,
    ) -> aclError {
        (self.aclrtBinaryGetFunction.as_ref().expect("Expected function, got error."))(
            binHandle, kernelName, funcHandle,
        )
    }
    pub unsafe fn aclrtLaunchKernelWithHostArgs(
        &self,
        funcHandle: aclrtFuncHandle,
        blockDim: u32,
        stream: aclrtStream,
        cfg: *mut aclrtLaunchKernelCfg,
        hostArgs: *mut ::std::os::raw::c_void,
        argsSize: usize,
        placeHolderArray: *mut aclrtPlaceHolderInfo,
        placeHolderNum: usize,
    ) -> aclError {
        (self.aclrtLaunchKernelWithHostArgs.as_ref().expect("Expected function, got error."))(
            funcHandle,
            blockDim,
            stream,
            cfg,
            hostArgs,
            argsSize,
            placeHolderArray,
            placeHolderNum,
        )
    }
    pub unsafe fn aclmdlRICaptureBegin(&self, stream: aclrtStream, mode: aclmdlRICaptureMode) -> aclError {
        (self.aclmdlRICaptureBegin.as_ref().expect("Expected function, got error."))(stream, mode)
    }
    pub unsafe fn aclmdlRICaptureEnd(&self, stream: aclrtStream, modelRI: *mut aclmdlRI) -> aclError {
        (self.aclmdlRICaptureEnd.as_ref().expect("Expected function, got error."))(stream, modelRI)
    }
    pub unsafe fn aclmdlRIExecuteAsync(&self, modelRI: aclmdlRI, stream: aclrtStream) -> aclError {
        (self.aclmdlRIExecuteAsync.as_ref().expect("Expected function, got error."))(modelRI, stream)
    }
    pub unsafe fn aclmdlRIDestroy(&self, modelRI: aclmdlRI) -> aclError {
        (self.aclmdlRIDestroy.as_ref().expect("Expected function, got error."))(modelRI)
    }
}
