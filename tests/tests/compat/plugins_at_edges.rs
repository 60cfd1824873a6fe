//! What plugins read and write of structs that end at any field, where memory ends.

use std::path::Path;

use deepinfer_parity::{Case, Check, cases, run_call};
use deepinfer_plugin_api::abi::{DI_E_INVALID, DI_E_UNSUPPORTED, DiOpHeader};
use deepinfer_plugin_api::generated::OPS;
use deepinfer_plugin_api::{Kind, OpInfo};
use deepinfer_tests::layouts::{Layout, argument_struct, fixed_structs};

use crate::built;
use crate::c_plugin::plugin;
use crate::raw_host::{Core, RawBackend, RawError, enter, take_lines};
use crate::steps::{PerChild, Steps, run};

const CHILD: &str = "plugins_at_edges::child";

/// Where the steps of [`steps_of`] are taken.
#[test]
fn child() {
    // The entry of a plugin is called once in a process.
    let per_child = |group: &str| if group.starts_with("handshake") { PerChild::One } else { PerChild::All };
    if let Some((group, mut steps)) = Steps::of_child(per_child) {
        let (what, path) = group.split_once(' ').expect("what and a path");
        let path = Path::new(path);
        match what {
            "handshake" => handshakes(path, &mut steps),
            "handshake-and-log" => handshakes_and_logs(path, &mut steps),
            "describe" => descriptions(path, &mut steps),
            "call" => calls(path, &mut steps),
            other => panic!("no steps {other}"),
        }
    }
}

/// Takes the steps of a group in children; at least so many.
#[track_caller]
fn take(what: &str, plugin: &Path, least: usize) {
    let (taken, problems) = run(CHILD, &format!("{what} {}", plugin.display()));
    assert!(problems.is_empty(), "{what}, {}:\n{}", plugin.display(), problems.join("\n"));
    assert!(taken >= least, "{what}, {}: only {taken} steps", plugin.display());
}

#[test]
fn the_rust_sdk_stays_within_its_structs() {
    let cpu = built("deepinfer_cpu_reference");
    take("handshake", &cpu, 24);
    take("describe", &cpu, 20);
    take("call", &cpu, 300);
    // It logs, and has an implementation that is asked and plans.
    let planned = built("panics_in_run");
    take("handshake-and-log", &planned, 4);
    take("call", &planned, 300);
}

#[test]
fn the_c_example_stays_within_its_structs() {
    if let Some(library) = deepinfer_example_backend_c::library() {
        take("handshake", library, 24);
        take("describe", library, 15);
        take("call", library, 40);
    }
}

#[test]
fn a_plugin_in_c_that_logs_looks_for_the_function() {
    let folder = tempfile::tempdir().unwrap();
    if let Some(library) = plugin(folder.path(), "edges.c", "libdeepinfer_edges.so", &[]) {
        take("handshake-and-log", &library, 4);
    }
}

fn layout(name: &str) -> Layout {
    fixed_structs().into_iter().find(|layout| layout.name == name).unwrap_or_else(|| panic!("no struct {name}"))
}

/// A struct of a size, in words.
fn words(name: &str, size: usize, missing: Option<&str>) -> String {
    let end = missing.map_or("whole".to_owned(), |field| format!("without {field}"));
    format!("{name} of {size} bytes ({end})")
}

/// Errors are sentences.
fn is_sentence(error: &RawError) -> bool {
    error.message.contains(' ')
}

fn handshakes(path: &Path, steps: &mut Steps) {
    for name in ["DiEntryRequest", "DiEntryReply", "DiHostApi"] {
        for (size, missing) in layout(name).ends() {
            let step = format!("{} in the entry of {}", words(name, size, missing), path.display());
            steps.take(&step, || match enter(path, &Core::present(), Some((name, size))) {
                Ok(None) if missing.is_none() => Err("it started without a table".to_owned()),
                // What is missing reads as zero, and means the old behaviour: no options, no log, no layer.
                Ok(_) => Ok(()),
                Err(error) => Err(format!("it refused to start: {error:?}")),
            });
        }
    }
}

/// A line is written if the core's table reaches to the function, and otherwise not.
fn handshakes_and_logs(path: &Path, steps: &mut Steps) {
    let host = layout("DiHostApi");
    let log_ends = host.fields.iter().find(|(field, _)| *field == "log").expect("a function").1 + size_of::<usize>();
    for (size, missing) in host.ends() {
        let step = format!("{} while {} logs", words("DiHostApi", size, missing), path.display());
        steps.take(&step, || {
            let backend = RawBackend::start_with(path, Core::present(), Some(("DiHostApi", size)));
            let case = Case::parse("rstd/value/0", 0).expect("a case");
            let outcome = run_whole(&backend, &case);
            let (lines, wanted) = (take_lines(), size >= log_ends);
            if lines.is_empty() == wanted { Err(format!("it wrote {lines:?}")) } else { outcome }
        });
    }
}

fn descriptions(path: &Path, steps: &mut Steps) {
    let backend = RawBackend::start(path, Core::present());
    for name in ["DiDeviceInfo", "DiSpaceInfo", "DiLinkInfo"] {
        for (size, missing) in layout(name).ends() {
            backend.set_odd(name, size);
            let step = format!("{} filled by {}", words(name, size, missing), path.display());
            // A plugin without the function has nothing to say.
            steps.take(&step, || {
                backend.describe(name).map_err(|error| format!("{error:?}")).and_then(|()| strayed(&backend))
            });
        }
    }
}

fn strayed(backend: &RawBackend) -> Result<(), String> {
    backend.take_strayed().map_or(Ok(()), |name| Err(format!("it writes behind the end of {name}")))
}

fn calls(path: &Path, steps: &mut Steps) {
    let backend = RawBackend::start(path, Core::present());
    // What panics, panics for whole structs, too.
    let quant = layout("DiQuant");
    for op in OPS {
        let implementations = backend.implementations(op);
        // What panics, panics for whole structs, too.
        if implementations.first().is_none_or(|first| is_called(first.impl_name, "panics")) {
            continue;
        }
        let case = case_with(op, |_| true).expect("every op has cases");
        let args = argument_struct(op);
        let heads = layout("DiOpHeader").ends().filter(|&(size, _)| size < size_of::<DiOpHeader>()).collect::<Vec<_>>();
        for (size, missing) in heads.into_iter().chain(args.ends()) {
            call(&backend, &case, (&args.name, size, missing), needs_more(op, size), path, steps);
        }
        let scale_ends =
            quant.fields.iter().find(|(field, _)| *field == "scale").expect("scales").1 + size_of::<usize>();
        if let Some(case) = case_with(op, |call| call.contains("FP8_") || call.contains("FP4_")) {
            for (size, missing) in quant.ends() {
                call(&backend, &case, ("DiQuant", size, missing), size < scale_ends, path, steps);
            }
        }
        backend.set_quantises(true);
        for (size, missing) in quant.ends() {
            call(&backend, &case, ("DiQuant", size, missing), true, path, steps);
        }
        backend.set_quantises(false);
        let [asks, plans] = [
            implementations.iter().any(|entry| entry.supports.is_some()),
            implementations.iter().any(|entry| entry.plan.is_some()),
        ];
        for (name, is_used) in [("DiSupport", asks), ("DiPlanInfo", plans)] {
            for (size, missing) in layout(name).ends().filter(|_| is_used) {
                call(&backend, &case, (name, size, missing), false, path, steps);
            }
        }
    }
}

/// Whether a call whose struct ends there lacks something that it cannot do without.
fn needs_more(op: &OpInfo, size: usize) -> bool {
    let is_required = |arg: &deepinfer_plugin_api::ArgInfo| arg.kind == Kind::Tensor && !arg.optional;
    size < size_of::<DiOpHeader>() || op.args.iter().any(|arg| arg.offset >= size && is_required(arg))
}

/// The first drawn call of an op whose description passes.
fn case_with(op: &OpInfo, wanted: impl Fn(&str) -> bool) -> Option<Case> {
    cases(op.name, Check::Value, 0, None).into_iter().find(|case| wanted(&case.facts().call))
}

/// Runs a case, which must give the right result.
fn run_whole(backend: &RawBackend, case: &Case) -> Result<(), String> {
    let (call, _) = case.call();
    let outputs = run_call(backend, &call).map_err(|error| error.to_string())?;
    call.judge(&outputs).map(drop).map_err(|wrong| wrong.to_string())
}

/// Runs a case with a struct of another size: a call that lacks something must be refused, in a sentence; a whole one must
/// give the right result; one without optional parts may do either.
fn call(
    backend: &RawBackend,
    case: &Case,
    (name, size, missing): (&str, usize, Option<&str>),
    must_refuse: bool,
    path: &Path,
    steps: &mut Steps,
) {
    backend.set_odd(name, size);
    let step = format!("{} in {} of {}", words(name, size, missing), case.op, path.display());
    steps.take(&step, || {
        let outcome = run_whole(backend, case);
        strayed(backend)?;
        match backend.last_error() {
            Some(error) if !is_sentence(&error) => Err(format!("its refusal is no sentence: {error:?}")),
            Some(error) if must_refuse && !matches!(error.code, DI_E_INVALID | DI_E_UNSUPPORTED) => {
                Err(format!("it was refused with code {}: {}", error.code, error.message))
            }
            None if must_refuse => Err("it was accepted".to_owned()),
            _ if missing.is_none() && !must_refuse => outcome,
            _ => Ok(()),
        }
    });
}

fn is_called(text: deepinfer_plugin_api::abi::DiStr, name: &str) -> bool {
    // SAFETY: a name in the table of a plugin that has started.
    text.len == name.len() && unsafe { std::slice::from_raw_parts(text.ptr, text.len) } == name.as_bytes()
}
