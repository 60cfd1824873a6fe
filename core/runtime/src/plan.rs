//! Choosing among implementations that look at shapes before they run.
//!
//! Most entries of most backends have neither `supports` nor `plan` and are called directly. For the others the choice is
//! made once per *signature*: the op, all shapes, strides, formats and scalars of the call, without addresses.

#![allow(unsafe_code)]

use std::collections::HashMap;

use deepinfer_plugin_api::abi::{
    DI_E_UNSUPPORTED, DI_SUPPORT_YES, DiOpHeader, DiPlan, DiPlanDestroyFn, DiPlanInfo, DiRunFn, DiSupport, DiTensor,
    DiTensorList,
};
use deepinfer_plugin_api::{Kind, OpInfo};

use crate::backend::{LoadedBackend, PluginError};
use crate::memory::Shared;
use crate::raw::{blank, read_text_lossy, take_error};

/// Plans that are kept. Decoding makes a signature per length of the context, so that the number must be bounded.
const MAX_PLANS: usize = 4096;

/// An implementation that takes calls of one signature.
pub(crate) struct Plan {
    pub(crate) run: DiRunFn,
    /// Null when the implementation does not plan.
    pub(crate) raw: *mut DiPlan,
    destroy: Option<DiPlanDestroyFn>,
    pub(crate) workspace_bytes: u64,
    pub(crate) workspace_align: u64,
}

/// Why no implementation takes a call.
pub(crate) enum NoPlan {
    /// Each said no; the reasons.
    Unsupported(String),
    /// One of them failed.
    Failed(PluginError),
}

/// The plans of a device.
#[derive(Default)]
pub(crate) struct Plans {
    by_signature: HashMap<Box<[u64]>, Plan>,
    /// Signature of the call at hand; kept to spare an allocation per call.
    signature: Vec<u64>,
}

impl Plans {
    /// The plan for a call: a known one, or that of the first of `candidates` (indices of op implementations, best
    /// first) that takes it.
    ///
    /// # Safety
    /// `args` is a complete argument struct of `info`; no other thread uses the device's stream.
    pub(crate) unsafe fn find(
        &mut self,
        shared: &Shared,
        info: &OpInfo,
        candidates: &[usize],
        args: *const DiOpHeader,
    ) -> Result<&Plan, NoPlan> {
        // SAFETY: the same contract.
        unsafe { write_signature(&mut self.signature, info, args) };
        // Looked up twice on a hit: the borrow checker does not yet accept an early return of the reference.
        if !self.by_signature.contains_key(self.signature.as_slice()) {
            // SAFETY: the same contract.
            let plan = unsafe { choose(shared, candidates, args) }?;
            if self.by_signature.len() >= MAX_PLANS {
                // SAFETY: the same contract.
                unsafe { self.clear(shared) };
            }
            self.by_signature.insert(self.signature.as_slice().into(), plan);
        }
        Ok(&self.by_signature[self.signature.as_slice()])
    }

    /// Destroys all plans, after the work that uses them.
    ///
    /// # Safety
    /// No other thread uses the device's stream.
    pub(crate) unsafe fn clear(&mut self, shared: &Shared) {
        if self.by_signature.is_empty() {
            return;
        }
        // SAFETY: the same contract. A fault stays with the device and is reported by its next call.
        let _ = unsafe { shared.synchronize() };
        for (_, plan) in self.by_signature.drain() {
            if let Some(destroy) = plan.destroy.filter(|_| !plan.raw.is_null()) {
                // SAFETY: made by the same entry's `plan`, destroyed once, and no work that uses it is pending.
                unsafe { destroy(shared.backend.raw, plan.raw) };
            }
        }
    }
}

/// Asks the candidates in turn.
///
/// # Safety
/// `args` is a complete argument struct of the candidates' op.
unsafe fn choose(shared: &Shared, candidates: &[usize], args: *const DiOpHeader) -> Result<Plan, NoPlan> {
    let mut reasons = Vec::new();
    for &index in candidates {
        // SAFETY: the same contract.
        match unsafe { try_plan(shared.backend, shared, index, args) } {
            Ok(Ok(plan)) => return Ok(plan),
            Ok(Err(reason)) => reasons.push(format!("{}: {reason}", shared.backend.ops[index].impl_name)),
            Err(error) => return Err(NoPlan::Failed(error)),
        }
    }
    Err(NoPlan::Unsupported(reasons.join("; ")))
}

/// A plan, or why this implementation does not take the call, or a failure of the plugin.
///
/// # Safety
/// As [`choose`].
unsafe fn try_plan(
    backend: &LoadedBackend,
    shared: &Shared,
    index: usize,
    args: *const DiOpHeader,
) -> Result<Result<Plan, String>, PluginError> {
    let entry = &backend.ops[index].entry;
    if let Some(supports) = entry.supports {
        let mut support: DiSupport = blank();
        // SAFETY: the backend and its device are alive, `args` is the caller's, `support` is writable.
        if let Some(error) = unsafe { take_error(supports(backend.raw, shared.device, args, &raw mut support)) } {
            return Err(error);
        }
        if support.verdict != DI_SUPPORT_YES {
            // Relayout is not offered by this core, so that "after relayout" is a no.
            // SAFETY: the header says that the reason lives as long as the backend.
            return Ok(Err(unsafe { read_text_lossy(support.reason) }));
        }
    }
    let run = entry.run.expect("`load` refuses entries without run");
    let mut plan =
        Plan { run, raw: std::ptr::null_mut(), destroy: entry.plan_destroy, workspace_bytes: 0, workspace_align: 1 };
    if let Some(make) = entry.plan {
        let mut info: DiPlanInfo = blank();
        // SAFETY: as above; both out-pointers are writable.
        let error = unsafe { take_error(make(backend.raw, shared.device, args, &raw mut plan.raw, &raw mut info)) };
        match error {
            Some(error) if error.code == DI_E_UNSUPPORTED => return Ok(Err(error.to_string())),
            Some(error) => return Err(error),
            None => {}
        }
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
