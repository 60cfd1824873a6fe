//! Builds the shared library. The `cc` crate makes static archives only, but knows compiler and flags of the target: the
//! command that it would run is taken and made to link.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Name of the library in `OUT_DIR`.
const LIBRARY: &str = "libdeepinfer_c_example.so";

fn main() {
    let root = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let library = PathBuf::from(variable("OUT_DIR")).join(LIBRARY);
    let include = root.join("../../include");
    println!("cargo::rerun-if-changed={}", root.join("src").display());
    println!("cargo::rerun-if-changed={}", include.display());
    println!("cargo::rustc-env=C_EXAMPLE_LIBRARY={}", library.display());
    match command() {
        Some(mut command) => {
            command.args(["-std=c11", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror"]);
            command.args(["-shared", "-fPIC", "-fvisibility=hidden", "-I"]).arg(include);
            command.args(sources(&root.join("src"))).args(["-lm", "-o"]).arg(&library);
            let status = command.status().unwrap_or_else(|e| panic!("{command:?}: {e}"));
            assert!(status.success(), "{command:?}: {status}");
        }
        None => {
            // A machine without a C compiler builds the rest of the workspace; `library` then gives nothing.
            let _ = fs::remove_file(&library);
            println!("cargo::warning=the C example is not built: there is no working C compiler (set CC)");
        }
    }
}

/// The compiler, if it runs.
fn command() -> Option<Command> {
    let compiler = cc::Build::new().opt_level(2).cargo_warnings(false).try_get_compiler().ok()?;
    let works = Command::new(compiler.path()).arg("--version").output().is_ok_and(|output| output.status.success());
    works.then(|| compiler.to_command())
}

/// C files below a folder.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut found = Vec::new();
    for path in entries.map(|entry| entry.expect("a folder that can be read").path()) {
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "c") {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|e| panic!("{name}: {e}"))
}
