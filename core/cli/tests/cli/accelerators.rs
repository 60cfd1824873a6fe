//! Accelerators that cannot be used.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::command::{command, deepinfer, finish, repository};

/// Generates with an accelerator, given as a flag and as a variable; both must be refused in the same way.
#[track_caller]
fn refused(accelerator: &str, parts: &[&str]) {
    deepinfer(&["generate", "x", "--accelerator", accelerator]).refused(parts);
    finish(command(&["generate", "x"]).env("DEEPINFER_ACCELERATOR", accelerator)).refused(parts);
}

/// Compiles a file of `tests/plugins`; `false`, with a line that says so, on a machine without a C compiler.
pub(crate) fn compile(source: &str, library: &Path) -> bool {
    compile_with(source, library, &[])
}

/// As [`compile`], with switches (`-DX`).
pub(crate) fn compile_with(source: &str, library: &Path, switches: &[&str]) -> bool {
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut command = Command::new(&compiler);
    command.args(["-std=c11", "-shared", "-fPIC"]).args(switches).arg("-I").arg(repository("plugin-api/include"));
    command.arg(repository("tests/plugins").join(source)).arg("-o").arg(library).args(["-lm", "-lpthread"]);
    match command.status() {
        Ok(status) => {
            assert!(status.success(), "{command:?}");
            true
        }
        Err(e) => {
            eprintln!("skipped: {source} cannot be compiled, {compiler:?} does not run: {e}");
            false
        }
    }
}

#[test]
fn unknown_names_list_what_there_is() {
    refused(
        "tpu",
        &["there is no accelerator backend \"tpu\"", "libdeepinfer_cpu_reference.so: this is the backend cpu"],
    );
}

#[test]
fn a_name_that_is_almost_right_brings_the_right_one() {
    for (name, wanted) in [("CPU", "cpu"), ("cpuu:0?threads=1", "cpu"), ("Auto", "auto")] {
        refused(
            name,
            &["there is no accelerator backend ", &format!("; perhaps \"{wanted}\" is meant; these plugins")],
        );
    }
    let run = deepinfer(&["parity", "--backend", "cppu"]);
    run.refused(&["there is no accelerator backend \"cppu\"; perhaps \"cpu\" is meant"]);
    let far = deepinfer(&["generate", "x", "--accelerator", "tpu"]);
    assert!(!far.stderr.contains("is meant"), "{}", far.stderr);
}

#[test]
fn selections_that_are_none() {
    refused("cpu:one", &["cpu:one", "\"one\" is not the number of a device"]);
    refused("cpu?fast", &["cpu?fast", "\"fast\" is not of the form key=value"]);
    deepinfer(&["generate", "x", "--accelerator", ""]).refused(&["the name of the backend is missing"]);
}

#[test]
fn devices_that_do_not_exist() {
    refused("cpu:7", &["has no device 7", "it has 1"]);
}

#[test]
fn files_that_are_no_plugins() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("libtext.so");
    let name = path.to_str().unwrap();
    refused(name, &[name, "cannot be read"]);
    fs::write(&path, "a text that calls itself a library\n").unwrap();
    refused(name, &[name, "cannot be loaded as a shared library"]);

    let path = dir.path().join("libother.so");
    if compile("no_entry.c", &path) {
        refused(
            path.to_str().unwrap(),
            &[path.to_str().unwrap(), "it is not a DeepInfer plugin", "deepinfer_backend_entry"],
        );
    }
}

#[test]
fn a_plugin_of_another_abi() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("libdeepinfer_major9.so");
    if compile("major9.c", &path) {
        refused(path.to_str().unwrap(), &[path.to_str().unwrap(), "version 9", "plugin ABI"]);
    }
}

#[test]
fn a_plugin_that_garbles_its_words() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("libdeepinfer_garbles.so");
    if compile("garbles.c", &path) {
        let run = deepinfer(&["generate", "x", "--accelerator", path.to_str().unwrap()]);
        let lines: Vec<&str> = run.stderr.lines().collect();
        assert_eq!((run.code, lines.len()), (Some(2), 2), "{lines:?}");
        assert!(lines[0].contains("WARN") && lines[0].contains(r"logged\nerror: \u{1b}[31mline"), "{lines:?}");
        let refusal = r"the plugin c-\u{1b}[2Jgarbles refused to start: first\nerror: \u{1b}[31msecond";
        assert!(lines[1].starts_with("error: ") && lines[1].ends_with(refusal), "{lines:?}");
    }
}

#[test]
fn the_flag_wins_over_the_variable() {
    let mut generate = command(&["generate", "x", "--max-tokens", "1", "--accelerator", "cpu"]);
    finish(generate.env("DEEPINFER_ACCELERATOR", "tpu")).succeeded_quietly();
}

#[test]
fn a_plugin_that_is_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    let whole = dir.path().join("whole.so");
    if !compile("no_entry.c", &whole) {
        return;
    }
    let bytes = fs::read(&whole).unwrap();
    let path = dir.path().join("libdeepinfer_cut.so");
    fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    refused(path.to_str().unwrap(), &[path.to_str().unwrap(), "the file is cut off: "]);
    // Nor does it end commands that merely come across it.
    let run = finish(command(&["backends"]).env("DEEPINFER_PLUGIN_PATH", dir.path()));
    assert!(run.succeeded().contains("libdeepinfer_cut.so: the file is cut off: "), "{}", run.stdout);
}

#[test]
fn options_that_the_backend_does_not_take_are_one_sentence() {
    for (accelerator, reason) in [
        ("cpu?threads=0", "threads is \"0\", but must be a number from 1 to 1024"),
        ("cpu?threads=1025", "threads is \"1025\", but must be a number from 1 to 1024"),
        ("cpu-reference?x=y", "option \"x=y\" is unknown; there are threads=N and async=SEED"),
    ] {
        let run = deepinfer(&["generate", "x", "--accelerator", accelerator]);
        run.refused(&["the accelerator backend \"cpu", "cannot be used: ", reason]);
        assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
    }
}

#[test]
fn auto_warns_of_broken_plugins_that_the_user_named_and_of_no_others() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("libdeepinfer_broken.so");
    fs::write(&path, "no library").unwrap();
    let args = ["generate", "x", "--max-tokens", "1"];
    let auto = |variable: &str| {
        let mut command = command(&args);
        finish(command.env("DEEPINFER_ACCELERATOR", "auto").env("DEEPINFER_PLUGIN_PATH", variable))
    };
    // Plugins of vendors lie beside the program, too, and have no device here.
    assert_eq!(auto("").succeeded_quietly(), deepinfer(&args).stdout);

    let list = format!("{}:/nonexistent:{}", dir.path().display(), path.display());
    let run = auto(&list);
    run.succeeded();
    let warnings: Vec<&str> = run.stderr.lines().collect();
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    for (warning, parts) in warnings.iter().zip([
        ["DEEPINFER_PLUGIN_PATH: /nonexistent is not searched", "No such file"],
        ["DEEPINFER_PLUGIN_PATH: ", "libdeepinfer_broken.so is not searched: Not a directory"],
        ["passed over: ", "libdeepinfer_broken.so: it cannot be loaded as a shared library"],
    ]) {
        assert!(warning.contains("WARN") && parts.iter().all(|part| warning.contains(part)), "{warning}");
    }
}

#[test]
fn the_log_names_a_plugin_before_its_code_runs() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("libdeepinfer_major9.so");
    if compile("major9.c", &path) {
        let path = path.to_str().unwrap();
        let run = finish(command(&["generate", "x", "--accelerator", path]).env("RUST_LOG", "debug"));
        let at = |text: &str| run.stderr.find(text).unwrap_or_else(|| panic!("{text:?} is missing in: {}", run.stderr));
        assert!(at(&format!("loading {path}")) < at(&format!("starting {path}")), "{}", run.stderr);
        assert!(at(&format!("starting {path}")) < at("version 9"), "{}", run.stderr);
    }
}
