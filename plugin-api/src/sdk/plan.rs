//! What an implementation decides before it runs: whether it takes a call, and how it will go about it.

#![allow(unsafe_code)]

use std::borrow::Cow;
use std::collections::HashSet;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::sync::{Mutex, PoisonError};

use crate::abi::{
    DI_OPF_REQUIRE_BATCH_INVARIANT, DI_OPF_REQUIRE_DETERMINISTIC, DI_PF_BATCH_INVARIANT, DI_PF_DETERMINISTIC, DiDevice,
    DiOpHeader, DiPlanInfo,
};
use crate::sdk::runtime_table::{State, object};
use crate::sdk::{Backend, Fault, FaultCode};

/// What `supports` and `plan` know besides the shapes.
pub struct PlanCx<'a> {
    pub(crate) state: &'a State,
    pub(crate) device: *mut DiDevice,
    pub(crate) required: u32,
}

impl<'a> PlanCx<'a> {
    /// The backend.
    ///
    /// # Panics
    /// If `B` is not the exported backend.
    pub fn backend<B: Backend>(&self) -> &'a B {
        self.state.backend.downcast_ref().expect("a kernel runs on the backend that exports it")
    }

    /// The device on which the call will run.
    ///
    /// # Errors
    /// The caller names none.
    ///
    /// # Panics
    /// If `B` is not the exported backend.
    pub fn device<B: Backend>(&self) -> Result<&'a B::Device, Fault> {
        self.backend::<B>();
        // SAFETY: the boundary promises a live device of the backend, which is a `B`.
        unsafe { object::<B::Device>(self.device, "device") }
    }

    /// `DI_PF_DETERMINISTIC` and `DI_PF_BATCH_INVARIANT`, as far as the call requires them.
    pub fn required(&self) -> u32 {
        self.required
    }
}

/// Whether an implementation takes a call.
#[derive(Clone, Debug)]
pub enum Support {
    /// It does, with what it promises of every call.
    Yes,
    /// It does, and promises these `DI_PF_*` of this call as well.
    YesWith(u32),
    /// It does not, and why. The text is kept for the life of the process, each different one once: it should not hold
    /// numbers that change from call to call.
    No(Cow<'static, str>),
}

impl Support {
    /// [`Support::No`].
    pub fn no(reason: impl Into<Cow<'static, str>>) -> Self {
        Support::No(reason.into())
    }
}

/// How an implementation will run calls of one signature: the op, all shapes, strides, formats and scalars.
pub struct Plan<P> {
    state: P,
    flags: u32,
    algo_id: u32,
    workspace_bytes: u64,
    workspace_align: u32,
    est_flops: u64,
    est_bytes: u64,
}

impl<P> Plan<P> {
    /// A plan without a workspace; `state` is what each run gets.
    pub fn new(state: P) -> Self {
        Self { state, flags: 0, algo_id: 0, workspace_bytes: 0, workspace_align: 1, est_flops: 0, est_bytes: 0 }
    }

    /// Asks for scratch memory of the device at each run. Its content is undefined.
    ///
    /// # Panics
    /// If `align` is not a power of two.
    #[must_use]
    pub fn workspace(self, bytes: u64, align: u32) -> Self {
        assert!(align.is_power_of_two(), "{align} is not a power of two");
        Self { workspace_bytes: bytes, workspace_align: align, ..self }
    }

    /// Promises these `DI_PF_*` beyond those of the implementation.
    #[must_use]
    pub fn promising(self, flags: u32) -> Self {
        Self { flags: self.flags | flags, ..self }
    }

    /// The backend's own number of the algorithm, for reports.
    #[must_use]
    pub fn algorithm(self, algo_id: u32) -> Self {
        Self { algo_id, ..self }
    }

    /// Estimated floating-point operations and bytes moved.
    #[must_use]
    pub fn cost(self, flops: u64, bytes: u64) -> Self {
        Self { est_flops: flops, est_bytes: bytes, ..self }
    }

    /// The description for the caller, and what runs get; `flags` are the implementation's.
    pub(crate) fn split(self, flags: u32) -> (DiPlanInfo, PlanObject<P>) {
        let flags = self.flags | flags;
        let info = DiPlanInfo {
            struct_size: size_of::<DiPlanInfo>() as u32,
            flags,
            workspace_bytes: self.workspace_bytes,
            workspace_align: self.workspace_align,
            algo_id: self.algo_id,
            est_flops: self.est_flops,
            est_bytes: self.est_bytes,
        };
        let (workspace_bytes, workspace_align) = (self.workspace_bytes, self.workspace_align);
        (info, PlanObject { state: self.state, flags, workspace_bytes, workspace_align })
    }
}

/// What a `*mut DiPlan` of ours points to.
pub(crate) struct PlanObject<P> {
    state: P,
    pub(crate) flags: u32,
    workspace_bytes: u64,
    workspace_align: u32,
}

/// A plan and the scratch memory that it asked for.
pub struct Planned<'a, P> {
    /// What `plan` made.
    pub plan: &'a P,
    /// At least as many bytes as `plan` asked for.
    pub workspace: Workspace<'a>,
}

impl<P> PlanObject<P> {
    /// The plan with the workspace of a call.
    ///
    /// # Errors
    /// [`FaultCode::Workspace`]: it is missing, too small or not aligned.
    ///
    /// # Safety
    /// `head.workspace_bytes` bytes at `head.workspace` are the caller's alone until the call has run.
    pub(crate) unsafe fn with_workspace<'a>(&'a self, head: &DiOpHeader) -> Result<Planned<'a, P>, Fault> {
        let (needed, align) = (self.workspace_bytes, self.workspace_align);
        if needed > 0 && (head.workspace.is_null() || head.workspace_bytes < needed) {
            let given = if head.workspace.is_null() { 0 } else { head.workspace_bytes };
            let problem = format!("the workspace has {given} bytes, but the plan asked for {needed}");
            return Err(Fault::new(FaultCode::Workspace, problem));
        }
        if needed > 0 && !head.workspace.addr().is_multiple_of(align as usize) {
            let problem =
                format!("the workspace lies at {:p}, but the plan asked for a multiple of {align}", head.workspace);
            return Err(Fault::new(FaultCode::Workspace, problem));
        }
        let workspace = Workspace { address: head.workspace, bytes: needed, life: PhantomData };
        Ok(Planned { plan: &self.state, workspace })
    }
}

/// Scratch memory of one call.
///
/// ```
/// use deepinfer_plugin_api::sdk::{Fault, Workspace};
///
/// /// One partial sum per row, in a workspace of which the plan asked for `8 * rows` bytes at multiples of 8.
/// fn square_sums(scratch: &mut Workspace<'_>, x: &[f32], columns: usize) -> Result<f64, Fault> {
///     let sums = scratch.slice_mut::<f64>()?;
///     for (sum, row) in sums.iter_mut().zip(x.chunks_exact(columns)) {
///         *sum = row.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
///     }
///     Ok(sums.iter().sum())
/// }
/// ```
pub struct Workspace<'a> {
    address: *mut c_void,
    bytes: u64,
    life: PhantomData<&'a mut [u8]>,
}

impl Workspace<'_> {
    /// Address on the device, aligned as the plan asked; meaningless without bytes.
    pub fn address(&self) -> *mut c_void {
        self.address
    }

    /// Bytes, as the plan asked.
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// Whether the plan asked for none.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The bytes, for a kernel that runs on the host's processor. The content is what others left there.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        if self.bytes == 0 {
            return &mut [];
        }
        // SAFETY: checked against the plan when the call came in, and this call's alone.
        unsafe { std::slice::from_raw_parts_mut(self.address.cast(), self.bytes as usize) }
    }

    /// As many whole numbers as the bytes hold, for a kernel that runs on the host's processor. Their values are what others
    /// left there.
    ///
    /// # Errors
    /// [`FaultCode::Workspace`]: the address is not one of a `T`, since the plan asked for a smaller alignment.
    pub fn slice_mut<T: Scratch>(&mut self) -> Result<&mut [T], Fault> {
        if self.bytes == 0 {
            return Ok(&mut []);
        }
        let (align, ty) = (align_of::<T>(), std::any::type_name::<T>());
        if !self.address.addr().is_multiple_of(align) {
            let problem = format!(
                "the workspace lies at {:p}, which is no address of an {ty}; the plan must ask for multiples of {align}",
                self.address
            );
            return Err(Fault::new(FaultCode::Workspace, problem));
        }
        // SAFETY: aligned, within the bytes that were checked when the call came in, and this call's alone; every pattern
        // of bits is a `T`.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.address.cast(), self.bytes as usize / size_of::<T>()) })
    }
}

/// A number that scratch memory may be taken for: every pattern of bits is one.
pub trait Scratch: Copy + Send + Sync + 'static + sealed::Sealed {}

mod sealed {
    pub trait Sealed {}
}

macro_rules! scratch {
    ($($ty:ty),*) => {$(
        impl sealed::Sealed for $ty {}
        impl Scratch for $ty {}
    )*};
}
scratch!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64, deepinfer_numerics::Bf16);

/// The promises that a call requires: `DI_OPF_REQUIRE_*` as `DI_PF_*`.
pub(crate) const fn required(op_flags: u32) -> u32 {
    let mut flags = 0;
    if op_flags & DI_OPF_REQUIRE_DETERMINISTIC != 0 {
        flags |= DI_PF_DETERMINISTIC;
    }
    if op_flags & DI_OPF_REQUIRE_BATCH_INVARIANT != 0 {
        flags |= DI_PF_BATCH_INVARIANT;
    }
    flags
}

/// Why an implementation with these promises does not take a call that requires others.
pub(crate) fn lacking(impl_name: &str, required: u32, flags: u32) -> Option<String> {
    let mut missing = Vec::new();
    if required & !flags & DI_PF_DETERMINISTIC != 0 {
        missing.push("the same bits in two runs");
    }
    if required & !flags & DI_PF_BATCH_INVARIANT != 0 {
        missing.push("rows whose bits do not depend on their neighbours");
    }
    let wanted = missing.join(" and ");
    (!missing.is_empty()).then(|| format!("the call requires {wanted}, which {impl_name} does not promise"))
}

/// The text at an address that stays valid.
pub(crate) fn intern(text: Cow<'static, str>) -> &'static str {
    static TEXTS: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
    let text = match text {
        Cow::Borrowed(text) => return text,
        Cow::Owned(text) => text,
    };
    let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    let texts = texts.get_or_insert_default();
    match texts.get(text.as_str()) {
        Some(known) => known,
        None => {
            let text: &'static str = text.leak();
            texts.insert(text);
            text
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratch_memory_is_taken_for_numbers() {
        let mut memory = [0_u64; 3];
        let mut workspace = |offset: usize, bytes| Workspace {
            address: memory.as_mut_ptr().cast::<u8>().wrapping_add(offset).cast(),
            bytes,
            life: PhantomData,
        };
        workspace(0, 24).slice_mut::<f64>().unwrap().copy_from_slice(&[0.5, 1.5, -2.0]);
        // Whole numbers only.
        assert_eq!(workspace(8, 15).slice_mut::<f64>().unwrap(), [1.5]);
        assert_eq!(workspace(16, 8).slice_mut::<i32>().unwrap(), [0, 0xC000_0000_u32 as i32]);
        let fault = workspace(4, 8).slice_mut::<f64>().unwrap_err();
        assert_eq!(fault.code, FaultCode::Workspace);
        assert!(fault.message.contains("no address of an f64; the plan must ask for multiples of 8"), "{fault}");
        assert!(workspace(1, 0).slice_mut::<f64>().unwrap().is_empty());
    }

    #[test]
    fn a_text_is_kept_once() {
        let (first, second) = (intern(format!("rows of {}", 3).into()), intern(format!("rows of {}", 3).into()));
        assert_eq!((first, first.as_ptr()), ("rows of 3", second.as_ptr()));
        let fixed = "fixed";
        assert_eq!(intern(Cow::Borrowed(fixed)).as_ptr(), fixed.as_ptr());
    }

    #[test]
    fn what_lacks_is_named() {
        let both = required(DI_OPF_REQUIRE_DETERMINISTIC | DI_OPF_REQUIRE_BATCH_INVARIANT);
        assert_eq!(both, DI_PF_DETERMINISTIC | DI_PF_BATCH_INVARIANT);
        assert_eq!(lacking("tiled", both, both), None);
        assert_eq!(lacking("tiled", 0, 0), None);
        let text = lacking("tiled", both, DI_PF_DETERMINISTIC).unwrap();
        assert_eq!(
            text,
            "the call requires rows whose bits do not depend on their neighbours, which tiled does not promise"
        );
        assert!(lacking("tiled", both, 0).unwrap().contains("two runs and rows"));
    }
}
