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
fn compile(source: &str, library: &Path) -> bool {
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut command = Command::new(&compiler);
    command.args(["-std=c11", "-shared", "-fPIC", "-I"]).arg(repository("plugin-api/include"));
    command.arg(repository("tests/plugins").join(source)).arg("-o").arg(library);
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
fn the_flag_wins_over_the_variable() {
    let mut generate = command(&["generate", "x", "--max-tokens", "1", "--accelerator", "cpu"]);
    finish(generate.env("DEEPINFER_ACCELERATOR", "tpu")).succeeded_quietly();
}
