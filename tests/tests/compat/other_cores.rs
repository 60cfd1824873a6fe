//! Plugins of the present header under older and newer cores, and plugins of older headers under the present one.

use std::fs;
use std::path::{Path, PathBuf};

use deepinfer_oracle::{Call, Value};
use deepinfer_parity::{Check, cases, run_call};
use deepinfer_plugin_api::ArgInfo;
use deepinfer_plugin_api::abi::{DI_ABI_MAJOR, DI_ABI_MINOR};
use deepinfer_plugin_api::generated::OPS;
use deepinfer_tests::layouts::argument_struct_name;

use crate::built;
use crate::c_compiler::{Language, compiler_with, repository, run};
use crate::raw_host::{Core, RawBackend, Sizes};

/// Cases of each op and check.
const CASES: usize = 4;

/// Folders of the headers that were released within the present major version.
fn kept_headers() -> Vec<PathBuf> {
    let folders = fs::read_dir(repository().join("plugin-api/abi")).unwrap().map(|entry| entry.unwrap().path());
    let major = format!("{DI_ABI_MAJOR}.");
    let kept: Vec<PathBuf> =
        folders.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with(&major)).collect();
    assert!(kept.len() >= usize::from(DI_ABI_MINOR), "{kept:?}");
    kept
}

/// The core of a kept header, whose `layout.txt` has a line `STRUCT size align` for every struct.
fn core_of(header: &Path) -> Core {
    let text = fs::read_to_string(header.join("layout.txt")).unwrap();
    let size = |line: &str| {
        let [name, size, _] = line.split(' ').collect::<Vec<_>>()[..] else { return None };
        Some((name.to_owned(), size.parse().unwrap()))
    };
    let version = header.file_name().unwrap().to_string_lossy().into_owned();
    let minor = version.split_once('.').unwrap().1.parse().unwrap();
    Core { minor, sizes: Sizes::Of(text.lines().filter_map(size).collect()) }
}

/// Whether a core can make a call: it has every argument that the call gives.
fn can_make(core: &Core, call: &Call) -> bool {
    let name = argument_struct_name(call.op);
    let is_given = |arg: &ArgInfo| !matches!(call.value(arg.name), Value::Absent);
    call.op.args.iter().filter(|arg| is_given(arg)).all(|arg| core.knows_field(&name, arg.offset))
}

/// Runs a few cases of every op that plugin and core both know.
fn works(library: &Path, core: Core, least_ops: usize) {
    let folder = tempfile::tempdir().unwrap();
    // A plugin's entry is called once per process: every core gets a library of its own.
    let copy = folder.path().join("libdeepinfer_copy.so");
    fs::copy(library, &copy).unwrap();
    let minor = core.minor;
    // The calls of each op that the core can make.
    let mut known = Vec::new();
    for op in OPS.iter().filter(|op| core.knows(&argument_struct_name(op))) {
        let mut calls = Vec::new();
        for check in [Check::Value, Check::Refusal] {
            let all = cases(op.name, check, 0, None).into_iter().map(|case| (check, case, case.call().0));
            calls.extend(all.filter(|(_, _, call)| can_make(&core, call)).take(CASES));
        }
        known.push((op, calls));
    }
    let backend = RawBackend::start(&copy, core);
    let mut ran = 0;
    for (_, calls) in known.into_iter().filter(|(op, _)| !backend.implementations(op).is_empty()) {
        ran += usize::from(!calls.is_empty());
        for (check, case, call) in calls {
            let what = format!("{case} of {} under a core of minor {minor}", library.display());
            match run_call(&backend, &call) {
                Ok(_) if check == Check::Refusal => panic!("{what} was accepted"),
                Ok(outputs) => {
                    call.judge(&outputs).unwrap_or_else(|wrong| panic!("{what}: {wrong}"));
                }
                Err(_) if check == Check::Refusal => {}
                Err(error) => panic!("{what}: {error}"),
            }
            assert_eq!(backend.take_strayed(), None, "{what} writes behind the end of a struct");
        }
    }
    assert!(ran >= least_ops, "only {ran} ops of {} ran", library.display());
}

fn works_with_every_core(library: &Path, least_ops: usize) {
    for header in kept_headers() {
        works(library, core_of(&header), least_ops);
    }
    works(library, Core { minor: 9, sizes: Sizes::Longer(64) }, least_ops);
}

#[test]
fn the_c_example_works_under_older_and_newer_cores() {
    if let Some(library) = deepinfer_example_backend_c::library() {
        works_with_every_core(library, 4);
    }
}

#[test]
fn the_rust_sdk_works_under_older_and_newer_cores() {
    works_with_every_core(&built("deepinfer_cpu_reference"), 27);
}

/// A plugin that was compiled against an old header loads and works under the present core. `c_example.rs` does the same
/// with the example and its ops.
#[test]
fn plugins_of_old_headers_still_work() {
    for header in kept_headers() {
        let Some(mut compiler) = compiler_with(Language::C11, &header) else { return };
        let output = tempfile::tempdir().unwrap();
        let library = output.path().join("libdeepinfer_old.so");
        let source = repository().join("tests/plugins/host_backend.c");
        run(compiler.args(["-shared", "-fPIC"]).arg(source).arg("-o").arg(&library).arg("-lm"));
        let backend = deepinfer_runtime::load(&library, "").unwrap_or_else(|e| panic!("{}: {e}", header.display()));
        assert_eq!(backend.device_count().unwrap(), 2, "{}", header.display());
        backend.open(0).unwrap_or_else(|e| panic!("{}: {e}", header.display()));
    }
}

/// A plugin of an old header would pass over an optional argument that came later, and give another result without a word.
#[test]
fn arguments_that_a_plugin_cannot_see_are_refused() {
    for header in kept_headers() {
        let minor = core_of(&header).minor;
        let Some(mut compiler) = compiler_with(Language::C11, &header) else { return };
        let output = tempfile::tempdir().unwrap();
        let library = output.path().join("libdeepinfer_old.so");
        let source = repository().join("tests/plugins/null.c");
        run(compiler.args(["-shared", "-fPIC"]).arg(source).arg("-o").arg(&library));
        let backend = deepinfer_runtime::load(&library, "").unwrap_or_else(|e| panic!("{}: {e}", header.display()));
        let device = backend.open(0).unwrap();
        let (mut ran, mut refused) = (0, 0);
        for case in cases("fused_sample", Check::Value, 0, None) {
            let (call, _) = case.call();
            let is_given = |arg: &ArgInfo| !matches!(call.value(arg.name), Value::Absent);
            let unseen = call.op.args.iter().find(|arg| arg.since > minor && is_given(arg));
            match (run_call(&device, &call), unseen) {
                (Ok(_), None) => ran += 1,
                (Err(error), Some(arg)) => {
                    let (error, wanted) = (error.to_string(), format!("the argument {}, which came with", arg.name));
                    assert!(error.contains(&wanted), "{case}: {error}");
                    refused += 1;
                }
                (Ok(_), Some(arg)) => panic!("{case}, minor {minor}: {} is passed over", arg.name),
                (Err(error), None) => panic!("{case}, minor {minor}: {error}"),
            }
        }
        assert!(ran > 0 && (refused > 0) == (minor < 2), "minor {minor}: {ran} ran, {refused} were refused");
    }
}
