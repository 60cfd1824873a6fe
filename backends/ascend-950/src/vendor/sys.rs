// Made by bindgen from include/di_aclnn.h: see tests/tests/bindgen/ascend.rs.

pub type aclrtStream = *mut ::std::os::raw::c_void;
pub type aclnnStatus = i32;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct aclTensor {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct aclTensorList {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct aclIntArray {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct aclOpExecutor {
    _unused: [u8; 0],
}
pub const ACLNN_SUCCESS: aclnnStatus = 0;
pub const ACLNN_ERR_PARAM_NULLPTR: aclnnStatus = 161001;
pub const ACLNN_ERR_PARAM_INVALID: aclnnStatus = 161002;
pub const ACLNN_ERR_RUNTIME_ERROR: aclnnStatus = 361001;
pub const ACLNN_ERR_INNER: aclnnStatus = 561000;
pub const ACL_FLOAT: aclDataType = 0;
pub const ACL_INT64: aclDataType = 9;
pub const ACL_BF16: aclDataType = 27;
pub const ACL_FLOAT8_E4M3FN: aclDataType = 36;
pub const ACL_FLOAT8_E8M0: aclDataType = 37;
pub const ACL_FLOAT4_E2M1: aclDataType = 40;
pub type aclDataType = ::std::os::raw::c_uint;
pub const ACL_FORMAT_ND: aclFormat = 2;
pub type aclFormat = ::std::os::raw::c_uint;
pub struct OpApi {
    __library: ::libloading::Library,
    pub aclCreateTensor: Result<
        unsafe extern "C" fn(
            viewDims: *const i64,
            viewDimsNum: u64,
            dataType: aclDataType,
            stride: *const i64,
            offset: i64,
            format: aclFormat,
            storageDims: *const i64,
            storageDimsNum: u64,
            tensorData: *mut ::std::os::raw::c_void,
        ) -> *mut aclTensor,
        ::libloading::Error,
    >,
    pub aclDestroyTensor: Result<unsafe extern "C" fn(tensor: *const aclTensor) -> aclnnStatus, ::libloading::Error>,
    pub aclCreateTensorList: Result<
        unsafe extern "C" fn(value: *const *const aclTensor, size: u64) -> *mut aclTensorList,
        ::libloading::Error,
    >,
    pub aclDestroyTensorList:
        Result<unsafe extern "C" fn(array: *const aclTensorList) -> aclnnStatus, ::libloading::Error>,
    pub aclnnMatmulGetWorkspaceSize: Result<
        unsafe extern "C" fn(
            self_: *const aclTensor,
            mat2: *const aclTensor,
            out: *mut aclTensor,
            cubeMathType: i8,
            workspaceSize: *mut u64,
            executor: *mut *mut aclOpExecutor,
        ) -> aclnnStatus,
        ::libloading::Error,
    >,
    pub aclnnMatmul: Result<
        unsafe extern "C" fn(
            workspace: *mut ::std::os::raw::c_void,
            workspaceSize: u64,
            executor: *mut aclOpExecutor,
            stream: aclrtStream,
        ) -> aclnnStatus,
        ::libloading::Error,
    >,
    pub aclnnQuantMatmulV5GetWorkspaceSize: Result<
        unsafe extern "C" fn(
            x1: *const aclTensor,
            x2: *const aclTensor,
            x1Scale: *const aclTensor,
            x2Scale: *const aclTensor,
            yScale: *const aclTensor,
            x1Offset: *const aclTensor,
            x2Offset: *const aclTensor,
            yOffset: *const aclTensor,
            bias: *const aclTensor,
            transposeX1: bool,
            transposeX2: bool,
            groupSize: i64,
            out: *mut aclTensor,
            workspaceSize: *mut u64,
            executor: *mut *mut aclOpExecutor,
        ) -> aclnnStatus,
        ::libloading::Error,
    >,
    pub aclnnQuantMatmulV5: Result<
        unsafe extern "C" fn(
            workspace: *mut ::std::os::raw::c_void,
            workspaceSize: u64,
            executor: *mut aclOpExecutor,
            stream: aclrtStream,
        ) -> aclnnStatus,
        ::libloading::Error,
    >,
    pub aclnnGroupedMatmulV5GetWorkspaceSize: Result<
        unsafe extern "C" fn(
            x: *const aclTensorList,
            weight: *const aclTensorList,
            biasOptional: *const aclTensorList,
            scaleOptional: *const aclTensorList,
            offsetOptional: *const aclTensorList,
            antiquantScaleOptional: *const aclTensorList,
            antiquantOffsetOptional: *const aclTensorList,
            perTokenScaleOptional: *const aclTensorList,
            groupListOptional: *const aclTensor,
            activationInputOptional: *const aclTensorList,
            activationQuantScaleOptional: *const aclTensorList,
            activationQuantOffsetOptional: *const aclTensorList,
            splitItem: i64,
            groupType: i64,
            groupListType: i64,
            actType: i64,
            tuningConfigOptional: *mut aclIntArray,
            out: *mut aclTensorList,
            activationFeatureOutOptional: *mut aclTensorList,
            dynQuantScaleOutOptional: *mut aclTensorList,
            workspaceSize: *mut u64,
            executor: *mut *mut aclOpExecutor,
        ) -> aclnnStatus,
        ::libloading::Error,
    >,
    pub aclnnGroupedMatmulV5: Result<
        unsafe extern "C" fn(
            workspace: *mut ::std::os::raw::c_void,
            workspaceSize: u64,
            executor: *mut aclOpExecutor,
            stream: aclrtStream,
        ) -> aclnnStatus,
        ::libloading::Error,
    >,
}
impl OpApi {
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
        let aclCreateTensor = __library.get(b"aclCreateTensor\0").map(|sym| *sym);
        let aclDestroyTensor = __library.get(b"aclDestroyTensor\0").map(|sym| *sym);
        let aclCreateTensorList = __library.get(b"aclCreateTensorList\0").map(|sym| *sym);
        let aclDestroyTensorList = __library.get(b"aclDestroyTensorList\0").map(|sym| *sym);
        let aclnnMatmulGetWorkspaceSize = __library.get(b"aclnnMatmulGetWorkspaceSize\0").map(|sym| *sym);
        let aclnnMatmul = __library.get(b"aclnnMatmul\0").map(|sym| *sym);
        let aclnnQuantMatmulV5GetWorkspaceSize = __library.get(b"aclnnQuantMatmulV5GetWorkspaceSize\0").map(|sym| *sym);
        let aclnnQuantMatmulV5 = __library.get(b"aclnnQuantMatmulV5\0").map(|sym| *sym);
        let aclnnGroupedMatmulV5GetWorkspaceSize =
            __library.get(b"aclnnGroupedMatmulV5GetWorkspaceSize\0").map(|sym| *sym);
        let aclnnGroupedMatmulV5 = __library.get(b"aclnnGroupedMatmulV5\0").map(|sym| *sym);
        Ok(OpApi {
            __library,
            aclCreateTensor,
            aclDestroyTensor,
            aclCreateTensorList,
            aclDestroyTensorList,
            aclnnMatmulGetWorkspaceSize,
            aclnnMatmul,
            aclnnQuantMatmulV5GetWorkspaceSize,
            aclnnQuantMatmulV5,
            aclnnGroupedMatmulV5GetWorkspaceSize,
            aclnnGroupedMatmulV5,
        })
    }
    pub unsafe fn aclCreateTensor(
        &self,
        viewDims: *const i64,
        viewDimsNum: u64,
        dataType: aclDataType,
        stride: *const i64,
        offset: i64,
        format: aclFormat,
        storageDims: *const i64,
        storageDimsNum: u64,
        tensorData: *mut ::std::os::raw::c_void,
    ) -> *mut aclTensor {
        (self.aclCreateTensor.as_ref().expect("Expected function, got error."))(
            viewDims,
            viewDimsNum,
            dataType,
            stride,
            offset,
            format,
            storageDims,
            storageDimsNum,
            tensorData,
        )
    }
    pub unsafe fn aclDestroyTensor(&self, tensor: *const aclTensor) -> aclnnStatus {
        (self.aclDestroyTensor.as_ref().expect("Expected function, got error."))(tensor)
    }
    pub unsafe fn aclCreateTensorList(&self, value: *const *const aclTensor, size: u64) -> *mut aclTensorList {
        (self.aclCreateTensorList.as_ref().expect("Expected function, got error."))(value, size)
    }
    pub unsafe fn aclDestroyTensorList(&self, array: *const aclTensorList) -> aclnnStatus {
        (self.aclDestroyTensorList.as_ref().expect("Expected function, got error."))(array)
    }
    pub unsafe fn aclnnMatmulGetWorkspaceSize(
        &self,
        self_: *const aclTensor,
        mat2: *const aclTensor,
        out: *mut aclTensor,
        cubeMathType: i8,
        workspaceSize: *mut u64,
        executor: *mut *mut aclOpExecutor,
    ) -> aclnnStatus {
        (self.aclnnMatmulGetWorkspaceSize.as_ref().expect("Expected function, got error."))(
            self_,
            mat2,
            out,
            cubeMathType,
            workspaceSize,
            executor,
        )
    }
    pub unsafe fn aclnnMatmul(
        &self,
        workspace: *mut ::std::os::raw::c_void,
        workspaceSize: u64,
        executor: *mut aclOpExecutor,
        stream: aclrtStream,
    ) -> aclnnStatus {
        (self.aclnnMatmul.as_ref().expect("Expected function, got error."))(workspace, workspaceSize, executor, stream)
    }
    pub unsafe fn aclnnQuantMatmulV5GetWorkspaceSize(
        &self,
        x1: *const aclTensor,
        x2: *const aclTensor,
        x1Scale: *const aclTensor,
        x2Scale: *const aclTensor,
        yScale: *const aclTensor,
        x1Offset: *const aclTensor,
        x2Offset: *const aclTensor,
        yOffset: *const aclTensor,
        bias: *const aclTensor,
        transposeX1: bool,
        transposeX2: bool,
        groupSize: i64,
        out: *mut aclTensor,
        workspaceSize: *mut u64,
        executor: *mut *mut aclOpExecutor,
    ) -> aclnnStatus {
        (self.aclnnQuantMatmulV5GetWorkspaceSize.as_ref().expect("Expected function, got error."))(
            x1,
            x2,
            x1Scale,
            x2Scale,
            yScale,
            x1Offset,
            x2Offset,
            yOffset,
            bias,
            transposeX1,
            transposeX2,
            groupSize,
            out,
            workspaceSize,
            executor,
        )
    }
    pub unsafe fn aclnnQuantMatmulV5(
        &self,
        workspace: *mut ::std::os::raw::c_void,
        workspaceSize: u64,
        executor: *mut aclOpExecutor,
        stream: aclrtStream,
    ) -> aclnnStatus {
        (self.aclnnQuantMatmulV5.as_ref().expect("Expected function, got error."))(
            workspace,
            workspaceSize,
            executor,
            stream,
        )
    }
    pub unsafe fn aclnnGroupedMatmulV5GetWorkspaceSize(
        &self,
        x: *const aclTensorList,
        weight: *const aclTensorList,
        biasOptional: *const aclTensorList,
        scaleOptional: *const aclTensorList,
        offsetOptional: *const aclTensorList,
        antiquantScaleOptional: *const aclTensorList,
        antiquantOffsetOptional: *const aclTensorList,
        perTokenScaleOptional: *const aclTensorList,
        groupListOptional: *const aclTensor,
        activationInputOptional: *const aclTensorList,
        activationQuantScaleOptional: *const aclTensorList,
        activationQuantOffsetOptional: *const aclTensorList,
        splitItem: i64,
        groupType: i64,
        groupListType: i64,
        actType: i64,
        tuningConfigOptional: *mut aclIntArray,
        out: *mut aclTensorList,
        activationFeatureOutOptional: *mut aclTensorList,
        dynQuantScaleOutOptional: *mut aclTensorList,
        workspaceSize: *mut u64,
        executor: *mut *mut aclOpExecutor,
    ) -> aclnnStatus {
        (self.aclnnGroupedMatmulV5GetWorkspaceSize.as_ref().expect("Expected function, got error."))(
            x,
            weight,
            biasOptional,
            scaleOptional,
            offsetOptional,
            antiquantScaleOptional,
            antiquantOffsetOptional,
            perTokenScaleOptional,
            groupListOptional,
            activationInputOptional,
            activationQuantScaleOptional,
            activationQuantOffsetOptional,
            splitItem,
            groupType,
            groupListType,
            actType,
            tuningConfigOptional,
            out,
            activationFeatureOutOptional,
            dynQuantScaleOutOptional,
            workspaceSize,
            executor,
        )
    }
    pub unsafe fn aclnnGroupedMatmulV5(
        &self,
        workspace: *mut ::std::os::raw::c_void,
        workspaceSize: u64,
        executor: *mut aclOpExecutor,
        stream: aclrtStream,
    ) -> aclnnStatus {
        (self.aclnnGroupedMatmulV5.as_ref().expect("Expected function, got error."))(
            workspace,
            workspaceSize,
            executor,
            stream,
        )
    }
}
