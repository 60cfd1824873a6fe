//! Callers who mix up plans and workspaces.

use std::mem::zeroed;

use deepinfer_plugin_api::abi::*;
use deepinfer_plugin_api::generated::DiArgsRstdV1;
use deepinfer_plugin_api::op_by_name;

use crate::c_plugin::plugin;
use crate::caller::{Caller, call, start_file, taken};

/// A call of `rstd` on rows of 4, with a plan and the workspace that it asked for. The backend in C takes both.
struct Planned {
    args: Box<DiArgsRstdV1>,
    plan: *mut DiPlan,
    shape: Box<[i64; 2]>,
    strides: Box<[i64; 2]>,
}

fn entry(caller: &Caller) -> &DiOpEntry {
    // SAFETY: the layer's table lives as long as the process.
    let entries = unsafe { std::slice::from_raw_parts(caller.api.ops, caller.api.n_ops) };
    entries.iter().find(|entry| entry.plan.is_some()).expect("an implementation with a plan")
}

impl Planned {
    fn new(caller: &Caller) -> Self {
        let (mut shape, mut strides) = (Box::new([3_i64, 4]), Box::new([4_i64, 1]));
        let op = op_by_name("rstd").expect("an op of the catalogue");
        // SAFETY: zeros are a valid argument struct.
        let mut args: Box<DiArgsRstdV1> = Box::new(unsafe { zeroed() });
        args.h.struct_size = size_of::<DiArgsRstdV1>() as u32;
        (args.h.op_id, args.h.op_version) = (op.id, op.version);
        for (tensor, rank, bytes) in [(&mut args.x, 2, 64), (&mut args.out, 1, 16)] {
            tensor.data = caller.alloc(bytes).1;
            (tensor.device_type, tensor.ndim, tensor.lanes) = (DI_DEVICE_CPU, rank, 1);
            (tensor.code, tensor.bits, tensor.nbytes) = (DI_CODE_FLOAT, 32, bytes);
            (tensor.shape, tensor.strides) = (shape.as_mut_ptr(), strides[2 - rank as usize..].as_mut_ptr());
            taken(call!(caller, fill, caller.stream, tensor.data, 0, 4, bytes / 4)).expect("a fill");
        }
        let mut plan = std::ptr::null_mut();
        // SAFETY: as above.
        let mut info: DiPlanInfo = unsafe { zeroed() };
        info.struct_size = size_of::<DiPlanInfo>() as u32;
        let make = entry(caller).plan.expect("it plans");
        // SAFETY: the arguments are complete and both results are writable.
        taken(unsafe { make(caller.api.backend, caller.device, &raw const args.h, &raw mut plan, &raw mut info) })
            .expect("a plan");
        let (mut buffer, mut at) = (std::ptr::null_mut(), std::ptr::null_mut());
        let align = u64::from(info.workspace_align);
        let made = call!(caller, alloc, caller.device, 0, info.workspace_bytes, align, &raw mut buffer, &raw mut at);
        taken(made).expect("memory");
        (args.h.workspace, args.h.workspace_bytes) = (at, info.workspace_bytes);
        Self { args, plan, shape, strides }
    }

    fn run(&self, caller: &Caller, plan: *mut DiPlan) -> Result<(), String> {
        let run = entry(caller).run.expect("a function");
        // SAFETY: what is wrong with the call is the layer's to find.
        taken(unsafe { run(caller.api.backend, plan, caller.stream, &raw const self.args.h) })
    }
}

#[test]
fn plans_and_workspaces_that_do_not_fit() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(path) = plugin(folder.path(), "host_backend.c", "libdeepinfer_c_host.so", &[]) else { return };
    let api = start_file(&path, "", std::ptr::null()).expect("the backend starts");
    let caller = Caller::over(api, folder.path(), "check=1");
    let mut call = Planned::new(&caller);
    call.run(&caller, call.plan).expect("a right call");
    let refused = |call: &Planned, plan, rule: &str, part: &str| {
        let message = call.run(&caller, plan).expect_err("a finding is an error");
        assert!(message.starts_with(&format!("validate ({rule}): ")) && message.contains(part), "{message}");
    };

    refused(&call, std::ptr::null_mut(), "plan", "there is no plan, but this implementation makes one");
    call.args.h.workspace_bytes -= 1;
    refused(&call, call.plan, "workspace", "workspace has 24 bytes, but the plan asked for 25");
    call.args.h.workspace_bytes += 1;
    call.args.h.workspace = call.args.h.workspace.wrapping_byte_add(8);
    refused(&call, call.plan, "workspace", "but the plan asked for a multiple of 512");
    call.args.h.workspace = call.args.h.workspace.wrapping_byte_sub(8);
    (call.shape[0], call.strides[0]) = (2, 8);
    refused(&call, call.plan, "plan", "plan #1 was made for other shapes, strides, formats or numbers");
    (call.shape[0], call.strides[0]) = (3, 4);

    // Left alone until now, it goes with its entry's function, once.
    call.run(&caller, call.plan).expect("right again");
    let destroy = entry(&caller).plan_destroy.expect("a function");
    // SAFETY: the plan is destroyed once and then only shown.
    unsafe { destroy(caller.api.backend, call.plan) };
    refused(&call, call.plan, "lifetime", "plan #1, which was destroyed");
}
