//! Choosing among implementations that look at shapes before they run.
//!
//! Most entries of most backends have neither `supports` nor `plan` and are called directly. For the others the choice is
//! made once per *signature*: the op, all shapes, strides, formats and scalars of the call, without addresses.

#![allow(unsafe_code)]

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use deepinfer_plugin_api::abi::{
    DI_E_UNSUPPORTED, DI_SUPPORT_YES, DiOpHeader, DiPlan, DiPlanDestroyFn, DiPlanInfo, DiRunFn, DiSupport, DiTensor,
    DiTensorList,
};
use deepinfer_plugin_api::{ArgInfo, Kind, OpInfo};

use crate::backend::PluginError;
use crate::implementations::describe_flags;
use crate::memory::{Opened, Retired};
use crate::prototype::Prototype;
use crate::raw::{blank, read_text_lossy, take_error};

/// Plans that are kept. Decoding makes a signature per length of the context, so that the number must be bounded.
const MAX_PLANS: usize = 4096;

/// An argument of a call that a plugin of minor `minor` cannot see.
///
/// # Safety
/// `args` is a complete argument struct of `info`.
pub(crate) unsafe fn unseen_argument(
    info: &'static OpInfo,
    minor: u16,
    args: *const DiOpHeader,
) -> Option<&'static ArgInfo> {
    info.args.iter().find(|arg| {
        // SAFETY: only tensors are optional, and the struct has one at this offset.
        arg.since > minor && unsafe { (*args.byte_add(arg.offset).cast::<DiTensor>()).bits != 0 }
    })
}

/// An implementation that takes calls of one signature. Destroyed after the work that uses it.
pub(crate) struct Plan {
    opened: Arc<Opened>,
    pub(crate) run: DiRunFn,
    /// Null when the implementation does not plan.
    pub(crate) raw: *mut DiPlan,
    destroy: Option<DiPlanDestroyFn>,
    /// Of the implementation, in the backend's list.
    pub(crate) index: usize,
    /// `DI_PF_*` that the implementation or the plan declares.
    pub(crate) flags: u32,
    pub(crate) workspace_bytes: u64,
    pub(crate) workspace_align: u64,
}

// SAFETY: the pointers are only passed to the plugin, by the thread that uses the stream or after its work.
unsafe impl Send for Plan {}
// SAFETY: as above; a shared plan can only be read.
unsafe impl Sync for Plan {}

impl Drop for Plan {
    fn drop(&mut self) {
        if let Some(destroy) = self.destroy.filter(|_| !self.raw.is_null()) {
            self.opened.retire(Retired::Plan(destroy, self.raw));
        }
    }
}

/// Why no implementation takes a call.
pub(crate) enum NoPlan {
    /// Each said no; the reasons.
    Unsupported(String),
    /// One of them failed.
    Failed(PluginError),
}

/// The plans of a stream.
#[derive(Default)]
pub(crate) struct Plans {
    /// Where the plan of a signature stands.
    by_signature: HashMap<Box<[u64]>, usize, BuildHasherDefault<WordHasher>>,
    plans: Vec<Arc<Plan>>,
    /// Signature of the call at hand; kept to spare an allocation per call.
    signature: Vec<u64>,
}

impl Plans {
    /// The plan for a call: a known one, or that of the first of `candidates` (indices of op implementations, best
    /// first) that takes it and declares all of `required` (`DI_PF_*`).
    ///
    /// # Safety
    /// `args` is a complete argument struct of `info`.
    pub(crate) unsafe fn find(
        &mut self,
        opened: &Arc<Opened>,
        info: &OpInfo,
        candidates: &[usize],
        required: u32,
        args: *const DiOpHeader,
    ) -> Result<&Arc<Plan>, NoPlan> {
        // SAFETY: the same contract.
        unsafe { write_signature(&mut self.signature, info, args) };
        if let Some(&at) = self.by_signature.get(self.signature.as_slice()) {
            return Ok(&self.plans[at]);
        }
        // SAFETY: the same contract.
        let prototype = unsafe { Prototype::of(info, args) };
        // SAFETY: a complete argument struct, as that from which it is made.
        let plan = unsafe { choose(opened, candidates, required, prototype.args()) }?;
        if self.plans.len() >= MAX_PLANS {
            self.by_signature.clear();
            self.plans.clear();
        }
        self.by_signature.insert(self.signature.as_slice().into(), self.plans.len());
        self.plans.push(Arc::new(plan));
        Ok(&self.plans[self.plans.len() - 1])
    }
}

/// Hashes the words of a signature: a multiplication and a rotation each, since signatures are looked up on every planned
/// call and nobody chooses them to collide.
#[derive(Default)]
struct WordHasher(u64);

impl Hasher for WordHasher {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|&word| self.write_u64(u64::from_ne_bytes(word)));
        rest.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    fn write_u64(&mut self, word: u64) {
        // The odd number next to 2^64 divided by the golden ratio.
        self.0 = (self.0 ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Asks the candidates in turn.
///
/// # Safety
/// `args` is a complete argument struct of the candidates' op; its tensors need no memory.
unsafe fn choose(
    opened: &Arc<Opened>,
    candidates: &[usize],
    required: u32,
    args: *const DiOpHeader,
) -> Result<Plan, NoPlan> {
    let mut reasons = Vec::new();
    for &index in candidates {
        // SAFETY: the same contract.
        let reason = match unsafe { try_plan(opened, index, args) } {
            Ok(Ok(plan)) if plan.flags & required == required => return Ok(plan),
            Ok(Ok(plan)) => format!("it does not declare that it is {}", describe_flags(required & !plan.flags)),
            Ok(Err(reason)) => reason,
            Err(error) => return Err(NoPlan::Failed(error)),
        };
        reasons.push(format!("{}: {reason}", opened.backend.ops[index].impl_name));
    }
    Err(NoPlan::Unsupported(reasons.join("; ")))
}

/// A plan, or why this implementation does not take the call, or a failure of the plugin.
///
/// # Safety
/// As [`choose`].
unsafe fn try_plan(
    opened: &Arc<Opened>,
    index: usize,
    args: *const DiOpHeader,
) -> Result<Result<Plan, String>, PluginError> {
    let backend = opened.backend;
    let entry = &backend.ops[index].entry;
    if let Some(supports) = entry.supports {
        let mut support: DiSupport = blank();
        // SAFETY: the backend and its device are alive, `args` is the caller's, `support` is writable.
        match unsafe { take_error(supports(backend.raw, opened.device, args, &raw mut support)) } {
            Some(error) if error.code == DI_E_UNSUPPORTED => return Ok(Err(error.to_string())),
            Some(error) => return Err(error),
            None => {}
        }
        if support.verdict != DI_SUPPORT_YES {
            // Relayout is not offered by this core, so that "after relayout" is a no.
            // SAFETY: the header says that the reason lives as long as the backend.
            return Ok(Err(unsafe { read_text_lossy(support.reason) }));
        }
    }
    let mut plan = Plan {
        opened: opened.clone(),
        run: entry.run.expect("`load` refuses entries without run"),
        raw: std::ptr::null_mut(),
        destroy: entry.plan_destroy,
        index,
        flags: entry.flags,
        workspace_bytes: 0,
        workspace_align: 1,
    };
    if let Some(make) = entry.plan {
        // What a plan that fails leaves here is not ours, and may be freed already.
        let (mut made, mut info): (*mut DiPlan, DiPlanInfo) = (std::ptr::null_mut(), blank());
        // SAFETY: as above; both out-pointers are writable.
        match unsafe { take_error(make(backend.raw, opened.device, args, &raw mut made, &raw mut info)) } {
            Some(error) if error.code == DI_E_UNSUPPORTED => return Ok(Err(error.to_string())),
            Some(error) => return Err(error),
            None => {}
        }
        plan.raw = made;
        plan.flags |= info.flags;
        plan.workspace_bytes = info.workspace_bytes;
        plan.workspace_align = u64::from(info.workspace_align).max(1).next_power_of_two();
    }
    Ok(Ok(plan))
}

/// Writes all of a call that a plan may depend on. Each variable-length part is preceded by its length, so that two
/// different calls never give the same words.
///
/// # Safety
/// `args` is a complete argument struct of `info`.
unsafe fn write_signature(out: &mut Vec<u64>, info: &OpInfo, args: *const DiOpHeader) {
    out.clear();
    // SAFETY: every offset lies in the argument struct and has the type that its kind says; lists and tensors point to
    // what the header promises.
    unsafe {
        out.push(u64::from(info.id) << 32 | u64::from((*args).flags));
        for arg in info.args {
            let at = args.byte_add(arg.offset);
            match arg.kind {
                Kind::Tensor => tensor_signature(out, &*at.cast::<DiTensor>()),
                Kind::TensorList => {
                    let list = &*at.cast::<DiTensorList>();
                    out.push(list.len);
                    (0..list.len as usize).for_each(|i| tensor_signature(out, &*list.ptr.add(i)));
                }
                Kind::U32 | Kind::I32 | Kind::F32 => out.push(u64::from(at.cast::<u32>().read())),
            }
        }
    }
}

/// # Safety
/// `tensor` points to its shape, strides and scales.
unsafe fn tensor_signature(out: &mut Vec<u64>, tensor: &DiTensor) {
    // SAFETY: the same contract; scales are tensors without scales of their own.
    unsafe {
        let rank = tensor.ndim as usize;
        let has_scale = !tensor.quant.is_null();
        out.push(
            u64::from(tensor.code)
                | u64::from(tensor.bits) << 8
                | (rank as u64) << 16
                | u64::from(has_scale) << 24
                | u64::from(tensor.layout) << 32,
        );
        if rank > 0 {
            out.extend(std::slice::from_raw_parts(tensor.shape, rank).iter().map(|&v| v as u64));
            out.extend(std::slice::from_raw_parts(tensor.strides, rank).iter().map(|&v| v as u64));
        }
        if has_scale {
            let quant = &*tensor.quant;
            out.extend(quant.block.iter().map(|&v| v as u64));
            tensor_signature(out, &*quant.scale);
        }
    }
}
