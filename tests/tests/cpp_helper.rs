//! `deepinfer_plugin.hpp`, in a backend in C++ (`tests/plugins/cpp_backend.cpp`, on the device and with the `gather` of the
//! C++ scaffold): it conforms, and every kind of exception ends as the error that the header promises.

#![allow(unsafe_code)]

mod c_compiler;
mod raw_plugin;

use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

use deepinfer_parity::{Check, Outcome, cases, run_case};
use deepinfer_plugin_api::abi::*;
use tempfile::TempDir;

use c_compiler::{Language, compiler, repository, run as run_command};
use raw_plugin::{DI_OP_RSTD, Floats, RawError, RawPlugin, rstd_args, run, taken};

/// The backend in a file of its own, since one that is poisoned stays so: the linker takes copies for other libraries.
fn backend() -> Option<(TempDir, PathBuf)> {
    static COMPILED: LazyLock<Option<Vec<u8>>> = LazyLock::new(compile);
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("libdeepinfer_cpp_host.so");
    fs::write(&library, COMPILED.as_ref()?).unwrap();
    Some((folder, library))
}

fn compile() -> Option<Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("libdeepinfer_cpp_host.so");
    let scaffold = repository().join("core/cli/templates/plugin-cpp/src");
    let mut compiler = compiler(Language::Cpp17)?;
    compiler.args(["-Wpedantic", "-Wshadow", "-fvisibility=hidden", "-shared", "-fPIC", "-I"]).arg(&scaffold);
    compiler.arg(repository().join("tests/plugins/cpp_backend.cpp"));
    compiler.args([scaffold.join("device.cpp"), scaffold.join("ops/gather.cpp")]);
    run_command(compiler.arg("-o").arg(&library));
    Some(fs::read(library).unwrap())
}

/// Calls `rstd` with an `eps` that stands for an exception.
fn rstd(api: &DiBackendApi, eps: f32) -> Result<Vec<f32>, RawError> {
    let (mut x, mut out) = (Floats::new(&[3.0, 4.0], &[1, 2]), Floats::new(&[0.0], &[1]));
    let args = rstd_args(x.tensor(), eps, out.tensor());
    // SAFETY: whole arguments.
    unsafe { run(api, DI_OP_RSTD, &raw const args.h) }?;
    Ok(out.values)
}

#[test]
fn it_conforms() {
    let Some((_folder, library)) = backend() else { return };
    let loaded = deepinfer_runtime::load(&library, "").unwrap_or_else(|e| panic!("{e}"));
    let device = loaded.open(0).unwrap_or_else(|e| panic!("{e}"));
    for op in ["gather", "rstd"] {
        for case in Check::ALL.into_iter().flat_map(|check| cases(op, check, 0, Some(12))) {
            let outcome = run_case(&device, &case);
            assert!(matches!(outcome, Outcome::Passed { .. }), "{case}: {outcome:?}\n{}", case.facts().call);
        }
    }
}

#[test]
fn exceptions_become_errors() {
    let Some((_folder, library)) = backend() else { return };
    let api = RawPlugin::open(&library).start();
    for (eps, code, flags, vendor_code, part) in [
        (-1.0, DI_E_OOM, DI_EF_RETRYABLE, 0, "memory of the host"),
        (-2.0, DI_E_INVALID, 0, 0, "eps is -2, which stands for a wrong argument"),
        (-3.0, DI_E_DEVICE_LOST, DI_EF_STICKY, 77, "the device fell off the bus"),
    ] {
        let error = rstd(api, eps).unwrap_err();
        assert_eq!((error.code, error.flags, error.vendor_code), (code, flags, vendor_code), "{error:?}");
        assert_eq!(error.origin, "cpp-host/rstd");
        assert!(error.message.contains(part), "{error:?}");
        // They say what happened: the backend goes on.
        assert_eq!(rstd(api, 0.0).unwrap(), [12.5f64.sqrt().recip() as f32]);
    }
}

#[test]
fn what_is_not_known_poisons_the_backend() {
    for (eps, part) in [
        (-4.0, "an exception was caught: a bug of the kernel"),
        (-5.0, "something that is no std::exception was thrown"),
        (-6.0, "an exception was caught: vector::_M_range_check"),
    ] {
        let Some((_folder, library)) = backend() else { return };
        let api = RawPlugin::open(&library).start();
        let error = rstd(api, eps).unwrap_err();
        assert_eq!((error.code, error.flags), (DI_E_PANIC, DI_EF_POISONED), "{error:?}");
        assert!(error.message.contains(part), "{error:?}");
        let error = rstd(api, 0.0).unwrap_err();
        assert_eq!((error.code, error.flags), (DI_E_PANIC, DI_EF_POISONED), "{error:?}");
        assert!(error.message.contains("unusable after an exception; restart"), "{error:?}");
        let mut count = 0;
        // SAFETY: a function of the table, and a number that it may write.
        let result = unsafe { taken((*api.runtime).device_count.unwrap()(api.backend, &raw mut count)) };
        assert_eq!(result.unwrap_err().origin, "cpp-host");
    }
}

#[test]
fn malformed_arguments_are_refused_and_poison_nothing() {
    let Some((_folder, library)) = backend() else { return };
    let api = RawPlugin::open(&library).start();
    let (mut x, mut out) = (Floats::new(&[3.0, 4.0], &[1, 2]), Floats::new(&[0.0], &[1]));
    let mut args = rstd_args(x.tensor(), 0.0, out.tensor());
    args.x.nbytes = 7;
    // SAFETY: the plugin checks `nbytes` before it reads.
    let error = unsafe { run(api, DI_OP_RSTD, &raw const args.h) }.unwrap_err();
    assert_eq!((error.code, error.origin.as_str()), (DI_E_INVALID, "cpp-host/rstd"));
    assert!(error.message.contains("x reaches to element 1 of 32 bits, but has 7 bytes"), "{error:?}");
    args.h.struct_size = 0;
    // SAFETY: the plugin looks at `struct_size` first.
    let error = unsafe { run(api, DI_OP_RSTD, &raw const args.h) }.unwrap_err();
    assert!(error.message.contains("the arguments are missing"), "{error:?}");
    rstd(api, 0.0).unwrap();
}

#[test]
fn an_exception_while_it_starts_is_a_refusal() {
    let Some((_folder, library)) = backend() else { return };
    let plugin = RawPlugin::open(&library);
    let error = plugin.enter(&RawPlugin::request("mode=throw")).unwrap_err();
    assert_eq!((error.code, error.origin.as_str()), (DI_E_PANIC, "cpp-host"));
    let error = plugin.enter(&RawPlugin::request("speed=high")).unwrap_err();
    assert!(error.message.contains("speed=high") && error.code == DI_E_INVALID, "{error:?}");
    let mut request = RawPlugin::request("");
    (request.min_major, request.max_major) = (9, 9);
    let error = plugin.enter(&request).unwrap_err();
    assert!(error.message.contains("ABI major 0, the core 9 to 9") && error.code == DI_E_ABI, "{error:?}");
}
