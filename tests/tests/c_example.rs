//! The example backend in C: conforms in its four ops, runs when compiled against older headers, refuses what breaks the
//! boundary's rules with sentences, and leaves alone what an older core did not give it.

#![allow(unsafe_code)]

mod c_compiler;
mod raw_plugin;

use std::mem::{offset_of, zeroed};
use std::path::Path;
use std::{fs, ptr};

use deepinfer_parity::{Check, Outcome, cases, run_case};
use deepinfer_plugin_api::abi::*;
use deepinfer_plugin_api::generated::DiArgsRstdV1;

use c_compiler::{Language, compiler, compiler_with, repository, run as run_command};
use raw_plugin::{DI_OP_RSTD, Floats, RawError, RawPlugin, rstd_args, run, taken};

const OPS: [&str; 4] = ["gather", "rstd", "store_kv_cache", "fused_sample"];

/// The library, or `None` with a line that says so.
fn library() -> Option<&'static Path> {
    let library = deepinfer_example_backend_c::library();
    if library.is_none() {
        eprintln!("skipped: the C example was not built, since there was no C compiler");
    }
    library
}

/// Runs the cases of the example's ops and names those that do not pass.
#[track_caller]
fn conforms(library: &Path, ops: &[&str], seed: u64, number: Option<usize>) {
    let backend = deepinfer_runtime::load(library, "").unwrap_or_else(|e| panic!("{e}"));
    let device = backend.open(0).unwrap_or_else(|e| panic!("{e}"));
    for op in ops {
        for case in Check::ALL.into_iter().flat_map(|check| cases(op, check, seed, number)) {
            match run_case(&device, &case) {
                Outcome::Passed { .. } => {}
                Outcome::Unsupported { reason } | Outcome::NotTried { reason } => {
                    panic!("{case}, seed {seed}: did not run: {reason}")
                }
                Outcome::Failed(failure) => panic!("{case}, seed {seed}: {failure}\n{}", case.facts().call),
            }
        }
    }
}

#[test]
fn four_ops_conform_over_three_seeds() {
    let Some(library) = library() else { return };
    (0..3).for_each(|seed| conforms(library, &OPS, seed, None));
}

/// A plugin of an author who has not upgraded: the example with each kept header, as far as that has the arguments that the
/// example reads.
#[test]
fn compiled_against_older_headers_it_conforms() {
    let sources = repository().join("plugin-api/examples/backend-c/src");
    for version in fs::read_dir(repository().join("plugin-api/abi")).unwrap() {
        let version = version.unwrap().path();
        let folder = tempfile::tempdir().unwrap();
        // Quoted includes look beside the including file first: the helpers must lie beside the old header.
        let include = repository().join("plugin-api/include");
        for (from, file) in [(&version, "deepinfer_plugin.h"), (&include, "deepinfer_plugin_helpers.h")] {
            fs::copy(from.join(file), folder.path().join(file)).unwrap();
        }
        let Some(mut compiler) = compiler_with(Language::C11, folder.path()) else { return };
        let library = folder.path().join("libdeepinfer_c_example.so");
        compiler.args(["-ffp-contract=off", "-fvisibility=hidden", "-shared", "-fPIC", "-o"]).arg(&library);
        let mut ops = OPS.to_vec();
        let table = fs::read_to_string(sources.join("backend.c")).unwrap();
        let mut table = table.replace("#include \"", &format!("#include \"{}/", sources.display()));
        if !fs::read_to_string(version.join("deepinfer_plugin.h")).unwrap().contains("top_p") {
            ops.retain(|op| *op != "fused_sample");
            let row = "    OP(DI_OP_FUSED_SAMPLE, fused_sample),\n";
            assert!(table.contains(row));
            table = table.replace(row, "");
        }
        fs::write(folder.path().join("backend.c"), table).unwrap();
        compiler.arg(folder.path().join("backend.c"));
        for folder in [sources.clone(), sources.join("ops")] {
            let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
            let of_no_op = ["gumbel", "weight", "scaled", "device"];
            let is_taken = |stem: &str| ops.contains(&stem) || of_no_op.contains(&stem);
            compiler.args(files.filter(|path| {
                let stem = path.file_stem().unwrap().to_str().unwrap();
                path.extension().is_some_and(|extension| extension == "c") && is_taken(stem)
            }));
        }
        run_command(compiler.arg("-lm"));
        conforms(&library, &ops, 0, Some(6));
    }
}

/// Authors compile the headers with warnings of their own choice.
#[test]
fn the_helpers_compile_without_a_warning_in_c_and_cpp() {
    let folder = tempfile::tempdir().unwrap();
    for (language, file) in [(Language::C11, "a.c"), (Language::Cpp17, "a.cpp")] {
        let Some(mut compiler) = compiler(language) else { return };
        let source = folder.path().join(file);
        fs::write(&source, "#include \"deepinfer_plugin_helpers.h\"\n").unwrap();
        compiler.args(["-Wpedantic", "-Wshadow", "-Wconversion", "-fsyntax-only"]);
        run_command(compiler.arg(source));
    }
}

/// The worked example of the guide for authors, as it stands there, in the place of the example's `rstd`.
#[test]
fn the_code_in_the_guide_conforms() {
    let Some(mut compiler) = compiler(Language::C11) else { return };
    let guide = fs::read_to_string(repository().join("plugin-api/README.md")).unwrap();
    let code: Vec<&str> = guide.split("```c\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(!code.is_empty());
    let (folder, sources) = (tempfile::tempdir().unwrap(), repository().join("plugin-api/examples/backend-c/src"));
    let file = |name: &str| sources.join(name).display().to_string();
    let table = fs::read_to_string(file("backend.c")).unwrap();
    let (rows, after) = table.split_once("    OP(DI_OP_GATHER, gather),\n").expect("a row for gather");
    let after = after.split_once("};").expect("the end of the table").1;
    let entry = "    {.struct_size = sizeof(DiOpEntry), .op_id = DI_OP_RSTD, .op_version = 1, .flags = DI_PF_CONCURRENT, .name = \
                 TEXT(\"rstd\"), .impl_name = TEXT(\"guide\"), .supports = rstd_supports, .plan = rstd_plan, .run = rstd, \
                 .plan_destroy = rstd_plan_destroy},\n};";
    let code = format!("#include \"backend.h\"\n{}{rows}{entry}{after}", code.concat());
    let source = folder.path().join("guide.c");
    fs::write(&source, code).unwrap();
    let library = folder.path().join("libdeepinfer_guide.so");
    compiler.args(["-fvisibility=hidden", "-shared", "-fPIC", "-I"]).arg(&sources).arg("-o").arg(&library);
    run_command(compiler.arg(source).arg(file("device.c")).arg("-lm"));
    let backend = deepinfer_runtime::load(&library, "").unwrap_or_else(|e| panic!("{e}"));
    let device = backend.open(0).unwrap_or_else(|e| panic!("{e}"));
    let outcomes = Check::ALL.into_iter().flat_map(|check| cases("rstd", check, 0, None)).map(|case| {
        let outcome = run_case(&device, &case);
        // It declines rows that are longer than it says.
        assert!(!matches!(outcome, Outcome::Failed(_)), "{case}: {outcome:?}\n{}", case.facts().call);
        matches!(outcome, Outcome::Passed { .. })
    });
    let passed: Vec<bool> = outcomes.collect();
    assert!(passed.iter().filter(|passed| **passed).count() > passed.len() / 2, "{passed:?}");
}

#[test]
fn the_entry_refuses_what_it_does_not_speak() {
    let Some(library) = library() else { return };
    let plugin = RawPlugin::open(library);
    let api = plugin.start();
    let refused = |change: &dyn Fn(&mut DiEntryRequest), code: i32, part: &str| {
        let mut request = RawPlugin::request("");
        change(&mut request);
        let error = plugin.enter(&request).unwrap_err();
        assert_eq!((error.code, error.origin.as_str()), (code, "c-example"), "{error:?}");
        assert!(error.message.contains(part), "{error:?}");
    };
    refused(&|r| (r.min_major, r.max_major) = (9, 11), DI_E_ABI, "ABI major 0, the core 9 to 11");
    refused(&|r| r.next = api, DI_E_UNSUPPORTED, "not a layer");
    let long = "x".repeat(5000).leak();
    refused(&|r| r.options = DiStr { ptr: long.as_ptr(), len: long.len() }, DI_E_INVALID, "is unknown");
}

/// Breaks one rule of a call of `rstd` that is otherwise right.
#[track_caller]
fn rstd_refuses(change: impl FnOnce(&mut DiArgsRstdV1)) -> RawError {
    let api = RawPlugin::open(library().expect("the caller has asked")).start();
    let (mut x, mut out) = (Floats::new(&[3.0, 4.0, 0.5, 0.5], &[2, 2]), Floats::new(&[-7.0; 2], &[2]));
    let mut args = rstd_args(x.tensor(), 0.0, out.tensor());
    // SAFETY: whole arguments.
    unsafe { run(api, DI_OP_RSTD, &raw const args.h) }.unwrap();
    assert_eq!(out.values, [(12.5f64.sqrt().recip()) as f32, 2.0]);

    out.values.fill(-7.0);
    change(&mut args);
    // SAFETY: what `change` breaks is what the plugin checks before it reads.
    let error = unsafe { run(api, DI_OP_RSTD, &raw const args.h) }.unwrap_err();
    assert_eq!(out.values, [-7.0; 2], "a refused call has written");
    assert_eq!((error.code, error.flags, error.vendor_code), (DI_E_INVALID, 0, 0));
    assert_eq!(error.origin, "c-example/rstd");
    error
}

/// Changes an extent or a stride of an argument of [`rstd_refuses`].
fn put(array: *mut i64, dim: usize, value: i64) {
    // SAFETY: the arrays belong to tensors that `rstd_refuses` keeps, and have at least this dimension.
    unsafe { *array.add(dim) = value };
}

#[test]
fn malformed_arguments_are_refused_with_a_sentence() {
    if library().is_none() {
        return;
    }
    let refused = |part: &str, change: fn(&mut DiArgsRstdV1)| {
        let error = rstd_refuses(change);
        assert!(error.message.contains(part), "{part:?} is missing in: {}", error.message);
    };
    refused("arguments of op 4 version 1", |a| a.h.op_id = 4);
    refused("arguments of op 3 version 2", |a| a.h.op_version = 2);
    refused("the arguments are missing", |a| a.h.struct_size = 12);
    refused("x has 3 dimensions, but needs 2", |a| a.x.ndim = 3);
    refused("x has -1 dimensions", |a| a.x.ndim = -1);
    refused("x has no shape or no strides", |a| a.x.strides = ptr::null_mut());
    refused("x is I32, but must be F32 or BF16", |a| a.x.code = DI_CODE_INT);
    refused("x is an unknown format", |a| a.x.layout = 7);
    refused("out is an unknown format, but must be F32", |a| a.out.bits = 24);
    refused("x has no memory", |a| a.x.data = ptr::null_mut());
    refused("out reaches to element 1 of 32 bits, but has 7 bytes", |a| a.out.nbytes = 7);
    refused("x lies at an address that is not a multiple of 4", |a| a.x.byte_offset = 2);
    refused("x has the negative extent -2 in dimension 0", |a| put(a.x.shape, 0, -2));
    refused("x has stride 2 in dimension 1", |a| put(a.x.strides, 1, 2));
    refused("x has stride -2 in dimension 0", |a| put(a.x.strides, 0, -2));
    refused("x reaches to element", |a| put(a.x.strides, 0, i64::MAX));
    refused("out has 1 elements in dimension 0, but the number of rows of x is 2", |a| put(a.out.shape, 0, 1));
}

/// An older core knows fewer arguments: they read as zero, whatever lies behind.
#[test]
fn a_struct_that_ends_early_reads_as_zeros() {
    if library().is_none() {
        return;
    }
    let error = rstd_refuses(|a| a.h.struct_size = offset_of!(DiArgsRstdV1, out) as u32);
    assert!(error.message.contains("out has 0 dimensions, but needs 1"), "{}", error.message);
}

/// The plugin writes no more of a struct than the core gave it.
#[test]
fn nothing_is_written_behind_the_struct_of_an_older_core() {
    let Some(library) = library() else { return };
    let api = RawPlugin::open(library).start();
    const SIZE: usize = size_of::<DiDeviceInfo>();
    for known in (4..=SIZE).step_by(4) {
        let mut info = [0xA5A5_A5A5_A5A5_A5A5_u64; SIZE / 8];
        info[0] = info[0] >> 32 << 32 | known as u64;
        // SAFETY: the struct has `known` bytes, and more that must not be touched.
        let result = unsafe {
            let device_info = (*api.runtime).device_info.unwrap();
            taken(device_info(api.backend, 0, info.as_mut_ptr().cast()))
        };
        result.unwrap();
        let bytes: Vec<u8> = info.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert!(bytes[known..].iter().all(|&byte| byte == 0xA5), "{known}");
        assert_eq!(bytes[..4], (known as u32).to_le_bytes());
    }
    // SAFETY: zeros are a valid struct of this kind.
    let mut whole: DiDeviceInfo = unsafe { zeroed() };
    whole.struct_size = SIZE as u32;
    // SAFETY: as above.
    unsafe { taken((*api.runtime).device_info.unwrap()(api.backend, 0, &raw mut whole)) }.unwrap();
    assert_eq!((whole.device_type, whole.numa_node), (DI_DEVICE_CPU, -1));
}
