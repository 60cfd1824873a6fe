//! The op table: one entry for each of the backend's, under the same id, name and priority.
//!
//! A function of an entry is not told which entry it belongs to. So each of the first [`MOST_ENTRIES`] entries has
//! functions of its own, which know their index.

#![allow(unsafe_code)]

use deepinfer_plugin_api::abi::*;
use deepinfer_plugin_api::sdk::{Fault, FaultCode};

use crate::boundary::{exposed, guard, guard_void, layer, pointer};
use crate::check::{self, Broken};
use crate::finding::{Culprit, Rule};
use crate::handles::Kind;
use crate::layer::Layer;
use crate::next::Next;
use crate::world::Plan;

/// Most implementations of a backend.
pub(crate) const MOST_ENTRIES: usize = 512;

/// The functions of an entry.
#[derive(Clone, Copy)]
struct Functions {
    supports: DiSupportsFn,
    plan: DiPlanFn,
    run: DiRunFn,
    plan_destroy: DiPlanDestroyFn,
}

const fn functions<const INDEX: usize>() -> Functions {
    Functions {
        supports: supports::<INDEX>,
        plan: plan::<INDEX>,
        run: run::<INDEX>,
        plan_destroy: plan_destroy::<INDEX>,
    }
}

/// A table by the binary digits of the index.
macro_rules! by_digits {
    ([$($index:expr),*]) => { [$(functions::<{ $index }>()),*] };
    ([$($index:expr),*] $bit:literal $($rest:literal)*) => { by_digits!([$($index),*, $($index + $bit),*] $($rest)*) };
}

static FUNCTIONS: [Functions; MOST_ENTRIES] = by_digits!([0] 1 2 4 8 16 32 64 128 256);

/// The layer's table over that of a backend.
///
/// # Errors
/// It has too many entries.
pub(crate) fn table(next: &Next) -> Result<Vec<DiOpEntry>, Fault> {
    if next.entries.len() > MOST_ENTRIES {
        let count = next.entries.len();
        return Err(Fault::new(
            FaultCode::Unsupported,
            format!("the backend has {count} op implementations, but this layer can wrap {MOST_ENTRIES}"),
        ));
    }
    let entries = next.entries.iter().zip(&FUNCTIONS);
    Ok(entries
        .map(|(entry, functions)| DiOpEntry {
            struct_size: size_of::<DiOpEntry>() as u32,
            supports: entry.raw.supports.map(|_| functions.supports),
            plan: entry.raw.plan.map(|_| functions.plan),
            run: Some(functions.run),
            plan_destroy: entry.raw.plan_destroy.map(|_| functions.plan_destroy),
            ..entry.raw
        })
        .collect())
}

// SAFETY of every function below: the header's contract. `backend` is the layer's, whose table has the entry INDEX; other
// objects are handles, which are looked up before anything of the backend is called with what they stand for.

unsafe extern "C" fn supports<const INDEX: usize>(
    backend: *mut DiBackend,
    device: *mut DiDevice,
    proto: *const DiOpHeader,
    out: *mut DiSupport,
) -> *mut DiError {
    // SAFETY: see above.
    unsafe {
        guard(backend, layer(backend).next.entries[INDEX].name, |layer| layer.supports(INDEX, device, proto, out))
    }
}

unsafe extern "C" fn plan<const INDEX: usize>(
    backend: *mut DiBackend,
    device: *mut DiDevice,
    proto: *const DiOpHeader,
    out: *mut *mut DiPlan,
    info: *mut DiPlanInfo,
) -> *mut DiError {
    // SAFETY: see above.
    unsafe {
        guard(backend, layer(backend).next.entries[INDEX].name, |layer| layer.plan(INDEX, device, proto, out, info))
    }
}

unsafe extern "C" fn run<const INDEX: usize>(
    backend: *mut DiBackend,
    plan: *mut DiPlan,
    stream: *mut DiStream,
    args: *const DiOpHeader,
) -> *mut DiError {
    // SAFETY: see above.
    unsafe { guard(backend, layer(backend).next.entries[INDEX].name, |layer| layer.run(INDEX, plan, stream, args)) }
}

unsafe extern "C" fn plan_destroy<const INDEX: usize>(backend: *mut DiBackend, plan: *mut DiPlan) {
    // SAFETY: see above.
    unsafe {
        guard_void(backend, "plan_destroy", |layer| {
            let (plan, _) = layer.find("plan_destroy", Kind::Plan, plan.addr())?;
            let Some(gone) = layer.world().plans.remove(plan) else { return Ok(()) };
            // By the entry that made it, whatever entry was asked.
            let made_by = &layer.next.entries[gone.entry];
            if gone.entry != INDEX {
                let problem = format!("{plan} was made by {} ({})", made_by.name, made_by.implementation);
                let broken = Broken::new(Rule::Plan, "", problem);
                layer.broken(INDEX, 0, Culprit::Core, Err(broken)).map(drop).unwrap_or_default();
            }
            if let Some(destroy) = made_by.raw.plan_destroy {
                destroy(layer.next.raw, exposed(gone.next));
            }
            Ok(())
        });
    }
}

impl Layer {
    /// # Safety
    /// As [`supports`].
    unsafe fn supports(
        &self,
        index: usize,
        device: *mut DiDevice,
        proto: *const DiOpHeader,
        out: *mut DiSupport,
    ) -> Result<*mut DiError, Fault> {
        let entry = &self.next.entries[index];
        let function = entry.raw.supports.expect("there, as the layer's is");
        // SAFETY: the same contract.
        unsafe {
            let call = self.arguments(index, 0, proto)?;
            if let Some(call) = &call {
                self.broken(index, 0, Culprit::Core, check::descriptors(call))?;
            }
            let (_, next) = self.device(entry.name, device.addr())?;
            let error = self.filled(entry.name, out, |out| function(self.next.raw, exposed(next), proto, out))?;
            if error.is_null() {
                let verdict = crate::read::sized(out).verdict;
                if verdict > DI_SUPPORT_AFTER_RELAYOUT {
                    let broken = Broken::new(Rule::Honesty, "", format!("supports gave the unknown verdict {verdict}"));
                    self.broken(index, 0, Culprit::Backend, Err(broken))?;
                }
                if let Some(call) = call.filter(|_| verdict == DI_SUPPORT_YES) {
                    self.promised(index, call.signature());
                }
            }
            Ok(error)
        }
    }

    /// # Safety
    /// As [`plan`].
    unsafe fn plan(
        &self,
        index: usize,
        device: *mut DiDevice,
        proto: *const DiOpHeader,
        out: *mut *mut DiPlan,
        info: *mut DiPlanInfo,
    ) -> Result<*mut DiError, Fault> {
        let entry = &self.next.entries[index];
        let function = entry.raw.plan.expect("there, as the layer's is");
        // SAFETY: the same contract.
        unsafe {
            let call = self.arguments(index, 0, proto)?;
            if let Some(call) = &call {
                self.broken(index, 0, Culprit::Core, check::descriptors(call))?;
            }
            let (device, next) = self.device(entry.name, device.addr())?;
            let mut raw = std::ptr::null_mut();
            let error = self
                .filled(entry.name, info, |info| function(self.next.raw, exposed(next), proto, &raw mut raw, info))?;
            if !error.is_null() {
                // A plan that took the call for `supports` and declines is no lie: it sees more.
                return Ok(error);
            }
            let next_plan = self.made(entry.name, raw, Kind::Plan)?;
            let info = crate::read::sized(info);
            let mut plan = Plan::new(next_plan, index, device, call.map(|call| call.signature()).unwrap_or_default());
            plan.workspace_bytes = info.workspace_bytes;
            plan.workspace_align = u64::from(info.workspace_align).max(1);
            plan.is_concurrent = info.flags & DI_PF_CONCURRENT != 0;
            if !plan.workspace_align.is_power_of_two() {
                let problem =
                    format!("the plan wants an alignment of {}, which is no power of two", info.workspace_align);
                let outcome = self.broken(index, 0, Culprit::Backend, Err(Broken::new(Rule::Workspace, "", problem)));
                if let Err(fault) = outcome {
                    if let Some(destroy) = entry.raw.plan_destroy {
                        destroy(self.next.raw, exposed(next_plan));
                    }
                    return Err(fault);
                }
            }
            out.write(pointer(self.world().plans.insert(plan)));
            Ok(error)
        }
    }
}
