//! Plugins that go wrong while a model runs: what the user sees, and what goes on. The table of all faults is
//! `tests/plugins/README.md`.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::command::{command, deepinfer, finish, repository};

const SIGABRT: i32 = 6;

/// A library that Cargo has built beside the binary.
pub(crate) fn built(name: &str) -> PathBuf {
    let beside = Path::new(env!("CARGO_BIN_EXE_deepinfer")).parent().unwrap();
    let built = ["", "deps"].map(|folder| beside.join(folder).join(format!("lib{name}.so")));
    built.into_iter().find(|path| path.exists()).unwrap_or_else(|| panic!("lib{name}.so: build the whole workspace"))
}

/// `tests/plugins/proxy.cpp`, before the processor's backend.
struct Proxy(TempDir);

impl Proxy {
    /// `None`, with a line that says so, on a machine without a C++ compiler.
    fn new() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let compiler = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
        let mut command = Command::new(&compiler);
        command.args(["-std=c++17", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-I"]);
        command.arg(repository("plugin-api/include")).arg(repository("tests/plugins/proxy.cpp"));
        match command.arg("-o").arg(folder.path().join("libdeepinfer_proxy.so")).arg("-ldl").status() {
            Ok(status) => assert!(status.success(), "{command:?}"),
            Err(e) => {
                eprintln!("skipped: proxy.cpp cannot be compiled, {compiler:?} does not run: {e}");
                return None;
            }
        }
        Some(Self(folder))
    }

    /// The selection with an option.
    fn with(&self, option: &str) -> String {
        let library = self.0.path().join("libdeepinfer_proxy.so");
        format!("{}?inner={}&{option}", library.display(), built("deepinfer_cpu_reference").display())
    }
}

fn generate(accelerator: &str) -> Command {
    command(&["generate", "x", "--max-tokens", "1", "--accelerator", accelerator])
}

/// Parity of the op that goes wrong and of three that do not: the first fails as `how` says, the others pass.
#[track_caller]
fn parity_names_the_case(accelerator: &str, how: &str) {
    let run = deepinfer(&[
        "parity",
        "--backend",
        accelerator,
        "--level",
        "L2",
        "--ops",
        "r*",
        "--case",
        "value/0",
        "--timeout",
        "4",
        "--profile",
        "none",
    ]);
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    let failures: Vec<&str> = run.stdout.lines().filter(|line| line.starts_with("FAILED ")).collect();
    assert_eq!(failures.len(), 1, "{}", run.stdout);
    assert!(failures[0].starts_with("FAILED rms_norm/value/0: ") && failures[0].contains(how), "{}", failures[0]);
    assert!(run.stderr.contains("of 4 cases 3 pass, 1 fail"), "{}", run.stderr);
}

#[test]
fn a_panic_in_a_kernel_is_a_sentence() {
    let plugin = built("panics_in_run");
    let plugin = plugin.to_str().unwrap();
    let run = finish(&mut generate(plugin));
    assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""), "{}", run.stderr);
    let error = run.stderr.lines().last().unwrap();
    assert!(
        error.starts_with("error: ") && error.contains("panic in rms_norm: a bug of the kernel, in rows of "),
        "{error}"
    );
    parity_names_the_case(plugin, "cpu/rms_norm: panic in rms_norm: a bug of the kernel");
}

#[test]
fn a_panic_in_the_entry_is_a_refusal() {
    let plugin = built("panics_in_entry");
    let plugin = plugin.to_str().unwrap();
    for args in [&["generate", "x", "--accelerator", plugin][..], &["parity", "--backend", plugin]] {
        let run = deepinfer(args);
        assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""), "{}", run.stderr);
        assert!(run.stderr.contains("the plugin panics refused to start: panic: a bug of the entry"), "{}", run.stderr);
    }
    // One that panics when it is asked for its devices has none.
    let run = deepinfer(&["generate", "x", "--accelerator", &format!("{plugin}?later=1")]);
    assert_eq!(run.code, Some(2), "{}", run.stderr);
    assert!(run.stderr.contains("panic in device_count: a bug of the search for devices"), "{}", run.stderr);
}

#[test]
fn what_ends_the_process_in_a_kernel_is_a_failed_case_of_parity() {
    let Some(proxy) = Proxy::new() else { return };
    for fault in ["throw", "abort"] {
        let accelerator = proxy.with(&format!("fault={fault}"));
        let output = generate(&accelerator).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(SIGABRT), "{fault}: {} {text}", output.status);
        // Which of the two languages' runtimes sees the exception first is the compiler's affair.
        let is_said = text.contains("foreign exception") || text.contains("terminate called");
        assert!(is_said || fault == "abort", "{fault}: {text}");
        parity_names_the_case(&accelerator, "killed by signal 6 (SIGABRT)");
    }
    let accelerator = proxy.with("entry=throw");
    assert_eq!(generate(&accelerator).output().unwrap().status.signal(), Some(SIGABRT));
    let run = deepinfer(&["parity", "--backend", &accelerator]);
    assert_eq!(run.code, Some(2), "{}", run.stderr);
    // The words of the process that died come before it.
    let error = run.stderr.lines().last().unwrap();
    assert!(
        error.starts_with("error: the backend ") && error.contains("does not load: while it was loaded"),
        "{error}"
    );
    assert!(error.ends_with("killed by signal 6 (SIGABRT)"), "{error}");
}

#[test]
fn a_kernel_that_never_returns_is_a_failed_case_of_parity() {
    let Some(proxy) = Proxy::new() else { return };
    let accelerator = proxy.with("fault=spin");
    parity_names_the_case(&accelerator, "no answer within 4 s");
    // Generation has no limit of time: a kernel may take long.
    let mut child = generate(&accelerator).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(2) {
        assert_eq!(child.try_wait().unwrap(), None, "it ended");
        std::thread::sleep(Duration::from_millis(50));
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_plugin_that_does_not_contain_panics_says_so() {
    let Some(proxy) = Proxy::new() else { return };
    let accelerator = proxy.with("fault=none");
    // It is as good as any other until something goes wrong.
    assert_eq!(finish(&mut generate(&accelerator)).succeeded_quietly(), finish(&mut generate("cpu")).stdout);
    let flags = |selection: &str| {
        let (library, options) = selection.split_once('?').unwrap_or((selection, ""));
        let run = deepinfer(&["plugin", "inspect", library, "--options", options, "--json"]);
        let report: serde_json::Value = serde_json::from_str(run.succeeded()).unwrap();
        report["flags"].clone()
    };
    assert_eq!(flags(&accelerator), serde_json::json!([]));
    assert_eq!(flags(built("deepinfer_cpu_reference").to_str().unwrap()), serde_json::json!(["contains_panics"]));
}

#[test]
fn batch_invariance_is_refused_where_an_op_does_not_promise_it() {
    let Some(proxy) = Proxy::new() else { return };
    let run =
        |option: &str, strict: &str| finish(generate(&proxy.with(option)).env("DEEPINFER_BATCH_INVARIANT", strict));
    let wanted = run("silent=", "1");
    wanted.succeeded_quietly();
    assert_eq!(run("silent=rms_norm", "0").succeeded_quietly(), wanted.stdout);
    run("silent=rms_norm", "1")
        .refused(&["deterministic and batch-invariant", "of rms_norm no implementation declares that it is"]);
}

#[test]
fn bad_plugins_do_not_disturb_a_good_one() {
    let Some(proxy) = Proxy::new() else { return };
    let folder = proxy.0.path();
    std::fs::copy(built("panics_in_entry"), folder.join("libdeepinfer_panics.so")).unwrap();
    let wanted = finish(&mut generate("cpu")).stdout;
    let run = |accelerator: &str| finish(generate(accelerator).env("DEEPINFER_PLUGIN_PATH", folder));
    assert_eq!(run("cpu").succeeded_quietly(), wanted);
    let auto = run("auto");
    assert_eq!(auto.succeeded(), wanted);
    for part in [
        "libdeepinfer_panics.so: the plugin panics refused to start: panic: a bug of the entry",
        "libdeepinfer_proxy.so: the plugin refused to start: it gave no reason, only the code 1",
    ] {
        assert!(auto.stderr.contains(part), "{part:?} is missing in: {}", auto.stderr);
    }
    let backends = finish(command(&["backends"]).env("DEEPINFER_PLUGIN_PATH", folder));
    for part in ["libdeepinfer_panics.so: the plugin panics refused to start", "libdeepinfer_proxy.so: ", "cpu 0."] {
        assert!(backends.succeeded().contains(part), "{part:?} is missing in: {}", backends.stdout);
    }
}
