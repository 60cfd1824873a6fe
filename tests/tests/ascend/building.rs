//! What the build of the backend says where its user has to do something: a sentence, as an error of Cargo, and no panic.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

#[allow(dead_code)]
#[path = "../../../backends/ascend-950/build.rs"]
mod build;

/// Runs in a process of its own, below: it takes all that it is told from the environment.
#[test]
#[ignore = "part of the other tests"]
fn child_builds() {
    build::main();
}

/// What the build script prints, and the folder that it wrote to.
#[track_caller]
fn build(crate_folder: &Path, variables: &[(&str, &str)]) -> (String, TempDir) {
    let output = tempfile::tempdir().unwrap();
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let run = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "building::child_builds", "--ignored", "--nocapture"])
        .env("CARGO_MANIFEST_DIR", crate_folder)
        .env("OUT_DIR", output.path())
        .envs([("TARGET", target.as_str()), ("HOST", target.as_str()), ("OPT_LEVEL", "0"), ("DEBUG", "false")])
        .env_remove("DEEPINFER_ASCEND")
        .env_remove("ASCEND_HOME_PATH")
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&run.stdout).into_owned();
    let errors = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success() && !errors.contains("panicked"), "{text}{errors}");
    (text, output)
}

/// A crate with nothing but a kernel, a twin and a fake runtime.
fn small_crate(kernel: &str, twin: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [("kernels/one.cpp", kernel), ("twin/core.cpp", twin), ("fake/ascendcl.cpp", "")] {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    folder
}

/// The sentences that Cargo shows.
fn errors(printed: &str) -> Vec<&str> {
    printed.lines().filter_map(|line| line.strip_prefix("cargo::error=")).collect()
}

#[test]
fn a_toolkit_that_is_not_there() {
    let otherwise = "or leave DEEPINFER_ASCEND unset for the host twin";
    let empty = tempfile::tempdir().unwrap();
    let no_folder = empty.path().join("nowhere");
    let source = small_crate("", "");
    for (home, sentence) in [
        ("", "ASCEND_HOME_PATH, which names the CANN toolkit, is not set: source CANN's set_env.sh, ".to_owned()),
        (no_folder.to_str().unwrap(), format!("ASCEND_HOME_PATH is {no_folder:?}, which is no folder: ")),
        (
            empty.path().to_str().unwrap(),
            format!(
                "the folder of ASCEND_HOME_PATH, {:?}, has no compiler bisheng (looked for bin/bisheng, ",
                empty.path()
            ),
        ),
    ] {
        let (text, _) = build(source.path(), &[("DEEPINFER_ASCEND", "cann"), ("ASCEND_HOME_PATH", home)]);
        let [said] = errors(&text)[..] else { panic!("{text}") };
        assert!(said.starts_with(&format!("DEEPINFER_ASCEND=cann: {sentence}")) && said.ends_with(otherwise), "{said}");
    }
}

#[test]
fn a_kernel_that_the_devices_compiler_refuses() {
    let home = tempfile::tempdir().unwrap();
    let bisheng = home.path().join("bin/bisheng");
    fs::create_dir(home.path().join("bin")).unwrap();
    fs::write(&bisheng, "#!/bin/sh\n[ \"$1\" = --version ] && exit\necho \"one.cpp:1:1: error: no\" >&2\nexit 3\n")
        .unwrap();
    fs::set_permissions(&bisheng, fs::Permissions::from_mode(0o755)).unwrap();
    let source = small_crate("", "");
    let (text, _) =
        build(source.path(), &[("DEEPINFER_ASCEND", "cann"), ("ASCEND_HOME_PATH", home.path().to_str().unwrap())]);
    assert_eq!(errors(&text), ["kernels/one.cpp is not compiled (exit status: 3):", "one.cpp:1:1: error: no"]);
}

#[test]
fn a_mode_that_does_not_exist() {
    let source = small_crate("", "");
    let (text, _) = build(source.path(), &[("DEEPINFER_ASCEND", "device")]);
    let [said] = errors(&text)[..] else { panic!("{text}") };
    assert!(
        said.starts_with("DEEPINFER_ASCEND is \"device\": the values are twin (") && said.contains("), cann ("),
        "{said}"
    );
    assert!(said.contains(") and none ("), "{said}");
}

#[test]
fn a_file_that_does_not_compile_is_an_error_of_cargo() {
    for (kernel, twin, file) in [("int f( {", "", "kernels/one.cpp"), ("", "int f( {", "twin/core.cpp")] {
        let source = small_crate(kernel, twin);
        let (text, _) = build(source.path(), &[]);
        if text.contains("cargo::warning=") {
            return eprintln!("skipped: there is no C++ compiler");
        }
        let said = errors(&text);
        assert_eq!(said[0], format!("{file} is not compiled (exit status: 1):"), "{text}");
        assert!(said.iter().any(|line| line.starts_with(&format!("{file}:1:"))), "{text}");
    }
    // One that does. A variable without a value is none.
    let (text, output) = build(small_crate("", "").path(), &[("DEEPINFER_ASCEND", "")]);
    let table = fs::read_to_string(output.path().join("images.rs")).unwrap();
    assert!(errors(&text).is_empty() && table.contains("const MODE: &str = \"twin\""), "{text}{table}");
    assert!(table.contains("static ALL: [&Image; COUNT] = [&ONE];"), "{table}");
}

/// Such a plugin says why it has no kernels, and what to do.
#[test]
fn a_build_without_kernels_keeps_the_reason() {
    let source = small_crate("", "");
    for (variables, why) in [
        ([("DEEPINFER_ASCEND", "none")], "DEEPINFER_ASCEND=none was set when it was built; build it again with "),
        ([("CXX", "/nowhere/g++")], "; build it again with GCC or Clang, which CXX names, for the host twin, or with "),
    ] {
        let (text, output) = build(source.path(), &variables);
        let table = fs::read_to_string(output.path().join("images.rs")).unwrap();
        assert!(errors(&text).is_empty() && table.contains("const MODE: &str = \"none\""), "{text}{table}");
        for part in [why, "DEEPINFER_ASCEND=cann for a device"] {
            assert!(table.contains(part), "{part:?} is missing in: {table}");
        }
        let warns = text.contains("cargo::warning=the ascend backend is built without its kernels: no C++ compiler");
        assert_eq!(warns, variables[0].0 == "CXX", "{text}");
    }
}
