//! The processor's backend with three more kernels, each tried before its own: one of `rms_norm` that panics, one of
//! `convert_kv_index` whose plan does, and one of `rstd` that asks for a plan and logs. The rest of it works, so that a
//! model gets as far as its first norm.

#![forbid(unsafe_code)]

use deepinfer_cpu_reference as _;
use deepinfer_plugin_api::generated::{ConvertKvIndexArgs, ConvertKvIndexProto, RmsNormArgs, RstdArgs, RstdProto};
use deepinfer_plugin_api::sdk::{Cx, Fault, LogLevel, Plan, PlanCx, Support, Workspace, log};
use deepinfer_plugin_api::{Format, kernel};

kernel!(RmsNorm, rms_norm, impl_name = "panics", priority = 10);

#[allow(clippy::needless_pass_by_value, reason = "the form of a kernel")]
fn rms_norm(_: &Cx<'_>, a: RmsNormArgs<'_>) -> Result<(), Fault> {
    panic!("a bug of the kernel, in rows of {}", a.dims.n)
}

kernel!(ConvertKvIndex, convert, impl_name = "panics", priority = 10, plan = plan_pages -> Pages);

/// What a plan of `convert_kv_index` would keep.
struct Pages(u32);

/// Two lines, as those of a failed assertion.
fn plan_pages(_: &PlanCx<'_>, a: &ConvertKvIndexProto<'_>) -> Result<Plan<Pages>, Fault> {
    panic!("a bug of the plan, for {} rows\n  in pages of {}", a.positions.shape()[0], a.entries_per_page)
}

#[allow(clippy::needless_pass_by_value, reason = "the form of a kernel")]
fn convert(_: &Cx<'_>, pages: &Pages, _: Workspace<'_>, _: ConvertKvIndexArgs<'_>) -> Result<(), Fault> {
    unreachable!("no plan is ever made, but one for pages of {} is here", pages.0)
}

kernel!(Rstd, rstd, impl_name = "planned", priority = 10, supports = is_f32, plan = plan_rows -> Columns);

/// What the plan of `rstd` keeps: the length of a row.
struct Columns(usize);

fn is_f32(_: &PlanCx<'_>, a: &RstdProto<'_>) -> Support {
    if a.x.format() == Some(Format::F32) { Support::Yes } else { Support::no("rows that are not F32") }
}

fn plan_rows(_: &PlanCx<'_>, a: &RstdProto<'_>) -> Result<Plan<Columns>, Fault> {
    let rows = a.x.shape()[0] as u64;
    Ok(Plan::new(Columns(a.dims.n)).workspace(8 * rows, 64))
}

/// The mean squares lie in the workspace before their roots are taken.
fn rstd(_: &Cx<'_>, plan: &Columns, mut scratch: Workspace<'_>, mut a: RstdArgs<'_>) -> Result<(), Fault> {
    log(LogLevel::Info, format_args!("rstd of rows of {}", plan.0));
    let x = a.x.rows::<f32>()?;
    let (means, _) = scratch.bytes_mut().as_chunks_mut::<8>();
    for (t, mean) in means.iter_mut().enumerate().take(x.count()) {
        let squares: f64 = x.row(t).iter().map(|&x| f64::from(x) * f64::from(x)).sum();
        *mean = (squares / plan.0 as f64).to_ne_bytes();
    }
    for (out, mean) in a.out.slice_mut::<f32>()?.iter_mut().zip(means) {
        *out = (f64::from_ne_bytes(*mean) + f64::from(a.eps)).sqrt().recip() as f32;
    }
    Ok(())
}
