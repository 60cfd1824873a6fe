//! `supports` and `plan`: what they are shown, what they answer, and what the run checks.

use std::mem::offset_of;

use deepinfer_plugin_api::abi::*;
use deepinfer_plugin_api::generated::{DiArgsRstdV1, Rstd};

use crate::npu::{DiArgsScaleV2, Npu, Scale};
use crate::raw::{Matrix, Plugin, args, text};

/// A call of rows without memory, as it is shown to `supports` and `plan`.
fn shapes(x: &Matrix, out: &Matrix, flags: u32) -> DiArgsRstdV1 {
    let mut call = args::<Rstd>();
    (call.x, call.out, call.h.flags) = (x.without_memory(), out.without_memory(), flags);
    call
}

fn rows(t: usize, n: usize) -> (Matrix, Matrix) {
    let values: Vec<f32> = (0..t * n).map(|i| i as f32 / 4.0).collect();
    (Matrix::floats(&values, &[t as i64, n as i64]), Matrix::floats(&vec![f32::NAN; t], &[t as i64]))
}

#[test]
fn entries_are_in_order_and_have_only_the_functions_that_they_need() {
    let plugin = Plugin::start::<Npu>("");
    let entries: Vec<_> = plugin
        .entries()
        .iter()
        .map(|e| {
            assert_eq!(e.plan.is_some(), e.plan_destroy.is_some());
            let functions = (e.supports.is_some(), e.plan.is_some());
            (text(e.name), text(e.impl_name), e.priority, e.flags, functions)
        })
        .collect();
    let usual = DI_PF_DETERMINISTIC | DI_PF_BATCH_INVARIANT;
    let expected = [
        ("gather", "default", 0, usual, (false, false)),
        ("rstd", "tiled", 10, DI_PF_DETERMINISTIC | DI_PF_CAPTURABLE, (true, true)),
        // It promises less than a call may require, so that it must be asked.
        ("rstd", "simple", 0, DI_PF_BATCH_INVARIANT, (true, false)),
        ("npu_scale", "default", 0, usual, (true, false)),
    ];
    assert_eq!(entries, expected);
}

#[test]
fn an_implementation_says_why_it_declines() {
    let plugin = Plugin::start::<Npu>("");
    let (x, out) = rows(4, 16);
    let yes = plugin.supports::<Rstd>("tiled", &shapes(&x, &out, 0)).unwrap();
    assert_eq!((yes.verdict, text(yes.reason)), (DI_SUPPORT_YES, ""));
    assert_eq!(yes.determinism, DI_PF_DETERMINISTIC | DI_PF_BATCH_INVARIANT);

    let (long, out_of_long) = rows(4, 65);
    let first = plugin.supports::<Rstd>("tiled", &shapes(&long, &out_of_long, 0)).unwrap();
    let second = plugin.supports::<Rstd>("tiled", &shapes(&long, &out_of_long, 0)).unwrap();
    assert_eq!((first.verdict, text(first.reason)), (DI_SUPPORT_NO, "rows of more than 64"));
    assert_eq!(first.reason.ptr, second.reason.ptr, "a reason is kept once");

    let gaps = rows(8, 16).0.every_second_row();
    let no = plugin.supports::<Rstd>("tiled", &shapes(&gaps, &out, 0)).unwrap();
    assert_eq!((no.verdict, text(no.reason)), (DI_SUPPORT_NO, "rows with gaps"));

    // The device has a say: the second one takes shorter rows only.
    let smaller = Plugin::open::<Npu>("", 1);
    let (x, out) = rows(4, 17);
    let no = smaller.supports::<Rstd>("tiled", &shapes(&x, &out, 0)).unwrap();
    assert_eq!(text(no.reason), "rows of more than 16");
}

#[test]
fn an_answer_is_cut_to_what_its_reader_knows() {
    let plugin = Plugin::start::<Npu>("");
    let (x, out) = rows(4, 16);
    let call = shapes(&x, &out, 0);
    // A verdict and the determinism, and the marks behind them stay.
    let mut answer = [12_u32, 99, 99, 99];
    let supports = plugin.entry(Rstd::INFO.id, "tiled").supports.unwrap();
    // SAFETY: the first 12 bytes are writable, and the struct says so.
    let error =
        unsafe { supports(plugin.api.backend, plugin.device, (&raw const call).cast(), answer.as_mut_ptr().cast()) };
    assert!(error.is_null());
    assert_eq!(answer, [12, DI_SUPPORT_YES, DI_PF_DETERMINISTIC | DI_PF_BATCH_INVARIANT, 99]);
}

#[test]
fn calls_that_break_the_catalogue_are_refused_by_name() {
    let plugin = Plugin::start::<Npu>("");
    let ((x, _), (_, out)) = (rows(4, 16), rows(3, 16));
    let error = plugin.supports::<Rstd>("tiled", &shapes(&x, &out, 0)).map(drop).unwrap_err();
    assert_eq!((error.code, error.origin.as_str()), (DI_E_INVALID, "npu/rstd"));
    assert!(error.message.contains("out has shape [3], but dimension 0 must be T = 4"), "{error}");
    let error = plugin.plan::<Rstd>("tiled", &shapes(&x, &out, 0)).map(drop).unwrap_err();
    assert!(error.message.contains("out has shape [3]"), "{error}");
}

#[test]
fn a_plan_says_what_it_needs_and_the_run_gets_it() {
    let plugin = Plugin::start::<Npu>("");
    let (mut x, mut out) = rows(3, 20);
    let (plan, info) = plugin.plan::<Rstd>("tiled", &shapes(&x, &out, 0)).unwrap();
    assert_eq!((info.workspace_bytes, info.workspace_align, info.algo_id), (32, 32, 8));
    assert_eq!((info.est_flops, info.est_bytes), (120, 240));
    assert_eq!(info.flags, DI_PF_DETERMINISTIC | DI_PF_CAPTURABLE);

    #[repr(align(32))]
    struct Aligned([u8; 64]);
    let mut scratch = Aligned([0xFF; 64]);
    let mut call = shapes(&x, &out, 0);
    (call.x, call.out, call.eps) = (x.raw(), out.raw(), 0.5);
    (call.h.workspace, call.h.workspace_bytes) = (scratch.0.as_mut_ptr().cast(), 32);
    plugin.run::<Rstd>("tiled", plan, &call).unwrap();
    let tiled = out.values();
    assert_eq!(scratch.0[32..], [0xFF; 32], "the workspace ends where the plan said");
    plugin.run::<Rstd>("simple", std::ptr::null_mut(), &call).unwrap();
    for (tiled, simple) in tiled.iter().zip(out.values()) {
        assert!((tiled - simple).abs() <= 1e-5 * simple, "{tiled} for {simple}");
    }

    // Too small, missing, not aligned; and no plan at all.
    call.h.workspace_bytes = 31;
    let error = plugin.run::<Rstd>("tiled", plan, &call).unwrap_err();
    assert_eq!(error.code, DI_E_WORKSPACE);
    assert_eq!(error.to_string(), "npu/rstd: the workspace has 31 bytes, but the plan asked for 32");
    (call.h.workspace, call.h.workspace_bytes) = (std::ptr::null_mut(), 32);
    let error = plugin.run::<Rstd>("tiled", plan, &call).unwrap_err();
    assert_eq!((error.code, error.message.contains("has 0 bytes")), (DI_E_WORKSPACE, true));
    call.h.workspace = scratch.0[8..].as_mut_ptr().cast();
    let error = plugin.run::<Rstd>("tiled", plan, &call).unwrap_err();
    assert_eq!((error.code, error.message.contains("a multiple of 32")), (DI_E_WORKSPACE, true));
    let error = plugin.run::<Rstd>("tiled", std::ptr::null_mut(), &call).unwrap_err();
    assert_eq!((error.code, error.message.as_str()), (DI_E_INVALID, "no plan was given"));

    let destroy = plugin.entry(Rstd::INFO.id, "tiled").plan_destroy.unwrap();
    // SAFETY: made by the same entry, destroyed once.
    unsafe { destroy(plugin.api.backend, plan) };
}

#[test]
fn what_a_call_requires_is_promised_or_declined() {
    let plugin = Plugin::start::<Npu>("");
    let invariant = DI_OPF_REQUIRE_BATCH_INVARIANT;
    let (x, out) = rows(4, 16);
    // `supports` promises it of this call, beyond the implementation's flags; the plan of several rows does not keep it.
    let yes = plugin.supports::<Rstd>("tiled", &shapes(&x, &out, invariant)).unwrap();
    assert_eq!(yes.verdict, DI_SUPPORT_YES);
    let error = plugin.plan::<Rstd>("tiled", &shapes(&x, &out, invariant)).map(drop).unwrap_err();
    assert_eq!(error.code, DI_E_UNSUPPORTED);
    let sentence = "the call requires rows whose bits do not depend on their neighbours, which tiled does not promise";
    assert_eq!(error.message, sentence);
    let (x, out) = rows(1, 16);
    let (_, info) = plugin.plan::<Rstd>("tiled", &shapes(&x, &out, invariant)).unwrap();
    assert_eq!(info.flags, DI_PF_DETERMINISTIC | DI_PF_CAPTURABLE | DI_PF_BATCH_INVARIANT);

    // An implementation without `supports` of its own is asked all the same.
    let deterministic = DI_OPF_REQUIRE_DETERMINISTIC;
    assert_eq!(plugin.supports::<Rstd>("simple", &shapes(&x, &out, invariant)).unwrap().verdict, DI_SUPPORT_YES);
    let no = plugin.supports::<Rstd>("simple", &shapes(&x, &out, deterministic)).unwrap();
    assert_eq!(no.verdict, DI_SUPPORT_NO);
    let sentence = "the call requires the same bits in two runs, which simple does not promise";
    assert_eq!(text(no.reason), sentence);
    // And a caller that does not ask is declined by the run.
    let (mut x, mut out) = rows(1, 16);
    let mut call = shapes(&x, &out, deterministic);
    (call.x, call.out) = (x.raw(), out.raw());
    let error = plugin.run::<Rstd>("simple", std::ptr::null_mut(), &call).unwrap_err();
    assert_eq!((error.code, error.message.as_str()), (DI_E_UNSUPPORTED, sentence));
    assert!(out.values()[0].is_nan(), "nothing was written");
}

#[test]
fn a_plan_may_decline() {
    let plugin = Plugin::start::<Npu>("");
    let (x, out) = rows(0, 16);
    let error = plugin.plan::<Rstd>("tiled", &shapes(&x, &out, 0)).map(drop).unwrap_err();
    assert_eq!((error.code, error.message.as_str()), (DI_E_UNSUPPORTED, "there is nothing to tile"));
}

#[test]
fn an_op_of_the_backends_own_is_run_and_reflected() {
    let plugin = Plugin::start::<Npu>("");
    let (mut x, mut out) = (Matrix::floats(&[1.0, -2.0], &[2]), Matrix::floats(&[0.0; 2], &[2]));
    let mut call = args::<Scale>();
    (call.x, call.factor, call.out) = (x.raw(), 1.5, out.raw());
    plugin.run::<Scale>("default", std::ptr::null_mut(), &call).unwrap();
    assert_eq!(out.values(), [1.5, -3.0]);
    call.out = Matrix::floats(&[0.0; 3], &[3]).without_memory();
    let shape = [3_i64];
    call.out.shape = shape.as_ptr().cast_mut();
    call.out.strides = [1_i64].as_ptr().cast_mut();
    let no = plugin.supports::<Scale>("default", &call).unwrap();
    assert_eq!((no.verdict, text(no.reason)), (DI_SUPPORT_NO, "x and out of different shapes"));

    // SAFETY: the table of this id has this type; rows are at their strides.
    unsafe {
        let table = plugin.api.table.unwrap()(plugin.api.backend, DI_TABLE_OPS).cast::<DiOpsTable>();
        let table = &*table;
        assert_eq!((table.n_ops, table.op_stride), (1, size_of::<DiOpInfo>()));
        let op = &*table.ops;
        assert_eq!((op.op_id, op.op_version, text(op.name)), (0x8000_0010, 2, "npu_scale"));
        assert_eq!((op.contract, op.ulps), (DI_CONTRACT_ULP, 1.0));
        assert_eq!(op.args_size as usize, size_of::<DiArgsScaleV2>());
        let args = std::slice::from_raw_parts(op.args, op.n_args);
        let rows: Vec<_> = args.iter().map(|a| (text(a.name), a.kind, a.role, a.offset as usize)).collect();
        let expected = [
            ("x", DI_ARG_TENSOR, DI_ROLE_IN, offset_of!(DiArgsScaleV2, x)),
            ("factor", DI_ARG_F32, DI_ROLE_IN, offset_of!(DiArgsScaleV2, factor)),
            ("out", DI_ARG_TENSOR, DI_ROLE_OUT, offset_of!(DiArgsScaleV2, out)),
        ];
        assert_eq!(rows, expected);
    }
}
