//! `deepinfer plugin new`: the projects build at once and are green, in each language.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::command::{Run, command, deepinfer, finish};

/// A project that `plugin new` wrote.
struct Scaffold {
    folder: TempDir,
    name: &'static str,
}

impl Scaffold {
    #[track_caller]
    fn new(name: &'static str, lang: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let run = finish(command(&["plugin", "new", name, "--lang", lang]).current_dir(folder.path()));
        let text = run.succeeded_quietly();
        assert!(text.contains(&format!("cd {name}\n")), "{text}");
        Self { folder, name }
    }

    fn root(&self) -> PathBuf {
        self.folder.path().join(self.name)
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
    }

    /// Loads, conforms in what it has, and says that the rest is missing.
    #[track_caller]
    fn is_green(&self, library: &Path) {
        let library = library.to_str().unwrap();
        let test = |args: &[&str]| {
            let mut all = vec!["parity", "--backend", library, "--profile", "none", "--timeout", "120"];
            all.extend(args);
            deepinfer(&all)
        };
        for args in [&["--level", "L0,L1"][..], &["--ops", "gather", "--cases", "12"]] {
            let run = test(args);
            let text = run.succeeded();
            assert!(text.starts_with(&format!("{} 0.1.0 on host memory", self.name)), "{text}");
            assert!(text.contains(" cases pass") && !text.contains("FAILED"), "{text}");
        }
        let run = deepinfer(&["parity", "--backend", library, "--level", "L0"]);
        assert_eq!(run.code, Some(1));
        assert!(run.stdout.contains("MISSING ops of v41-text: rms_norm"), "{}", run.stdout);
        let option = deepinfer(&["generate", "x", "--accelerator", &format!("{library}?speed=high")]);
        option.refused(&[self.name, "speed=high", "there are none"]);
    }
}

/// Runs a tool in a project. `None` when the machine does not have it.
#[track_caller]
fn tool(root: &Path, program: &str, args: &[&str], variables: &[(&str, &str)]) -> Option<Run> {
    let mut command = Command::new(program);
    command.args(args).current_dir(root).envs(variables.iter().copied());
    if let Err(e) = Command::new(program).arg("--version").output() {
        eprintln!("skipped: {program} does not run: {e}");
        return None;
    }
    Some(finish(&mut command))
}

/// Builds with `make` and tests, both by the Makefile's own words.
fn make_project(lang: &str, sources: &[&str]) {
    let project = Scaffold::new("my-npu", lang);
    // The compiler's warnings are errors here, and not in the author's project.
    let flags = [("CFLAGS", "-O1 -Werror -Wpedantic -Wshadow"), ("CXXFLAGS", "-O1 -Werror -Wpedantic -Wshadow")];
    let Some(run) = tool(&project.root(), "make", &[], &flags) else { return };
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let library = project.root().join("libdeepinfer_my_npu.so");
    project.is_green(&library);

    let deepinfer = format!("DEEPINFER={}", env!("CARGO_BIN_EXE_deepinfer"));
    let run = tool(&project.root(), "make", &["test", "OPS=gather", &deepinfer], &flags).unwrap();
    assert_eq!(run.code, Some(0), "{}{}", run.stdout, run.stderr);
    assert!(run.stdout.contains("cases pass"), "{}", run.stdout);
    // The profile is not there yet.
    let run = tool(&project.root(), "make", &["conform", &deepinfer], &flags).unwrap();
    assert_eq!(run.code, Some(2), "{}", run.stdout);

    let home = tempfile::tempdir().unwrap();
    let data = ("XDG_DATA_HOME", home.path().to_str().unwrap());
    let run = tool(&project.root(), "make", &["install"], &[flags[0], flags[1], data]).unwrap();
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let plugins = home.path().join("deepinfer/plugins");
    let found = finish(command(&["backends", "--accelerator", "my-npu"]).env("DEEPINFER_PLUGIN_PATH", &plugins));
    assert!(found.stdout.contains("my-npu") && found.stdout.contains("libdeepinfer_my_npu.so"), "{found:?}");

    for path in sources {
        assert!(!project.read(path).is_empty());
    }
}

#[test]
fn a_project_in_c() {
    make_project("c", &["include/deepinfer_plugin.h", "src/ops/gather.c", "src/ops_to_write.h"]);
}

#[test]
fn a_project_in_cpp() {
    make_project("cpp", &["include/deepinfer_plugin.hpp", "src/ops/gather.cpp", "src/ops_to_write.hpp"]);
}

#[test]
fn a_project_in_rust() {
    let project = Scaffold::new("my-npu", "rust");
    // A folder that is kept: the SDK is compiled once.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("scaffold");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(project.root()).env("CARGO_TARGET_DIR", &target).env_remove("RUSTFLAGS");
    // What the workspace depends on is on this machine; nothing is fetched.
    let run = finish(cargo.args(["rustc", "--offline", "--lib", "--", "-D", "warnings"]));
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    project.is_green(&target.join("debug/libdeepinfer_my_npu.so"));
    let Some(run) = tool(&project.root(), "cargo-fmt", &["--check"], &[]) else { return };
    assert_eq!(run.code, Some(0), "{}{}", run.stdout, run.stderr);
}

#[test]
fn what_is_still_to_write_comes_from_the_catalogue() {
    for (lang, file, signature) in [
        ("rust", "src/ops_to_write.rs", "// fn rope(cx: &Cx<'_>, mut a: RopeArgs<'_>) -> Result<(), Fault>"),
        ("c", "src/ops_to_write.h", "// DiError *rope(DiBackend *, DiPlan *, DiStream *, const DiOpHeader *);"),
        ("cpp", "src/ops_to_write.hpp", "// void rope(const deepinfer::Call<DiArgsRopeV1> &);"),
    ] {
        let project = Scaffold::new("npu", lang);
        let list = project.read(file);
        let summary = "Rotary position embedding of the last channels, in place.";
        for part in [signature, summary, "//   freqs: in [R] F32.", "---- fused_sample ----", "Contract: EXACT"] {
            assert!(list.contains(part), "{part}: {list}");
        }
        assert!(!list.contains("---- gather ----"));
        let manifest: serde_json::Value = serde_json::from_str(&project.read("npu.deepinfer.json")).unwrap();
        assert_eq!(manifest["library"], "libdeepinfer_npu.so");
        assert_eq!((&manifest["manifest_version"], &manifest["name"]), (&1.into(), &"npu".into()));
        let workflow = project.read(".github/workflows/parity.yml");
        assert!(workflow.contains("parity --backend ./") && workflow.contains("${{ vars.DEEPINFER_REPOSITORY }}"));
        for path in ["README.md", ".gitignore"] {
            assert!(!project.read(path).contains("{{"), "{path}");
        }
    }
}

#[test]
fn refusals_leave_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("project");
    let dir = place.to_str().unwrap();
    let refused = |args: &[&str], parts: &[&str]| {
        let mut all = vec!["plugin", "new"];
        all.extend(args);
        deepinfer(&all).refused(parts);
    };
    for name in ["My-Npu", "my_npu", "../npu", "npu-"] {
        refused(&["--lang", "c", "--dir", dir, "--", name], &[&format!("{name:?}"), "lower-case", "my-npu"]);
    }
    refused(&["cpu", "--lang", "c", "--dir", dir], &["\"cpu\" is taken by DeepInfer itself"]);
    refused(&["cpu-reference", "--lang", "c", "--dir", dir], &["libdeepinfer_cpu_reference.so", "choose another one"]);
    refused(&["npu", "--lang", "go", "--dir", dir], &["rust", "cpp"]);
    refused(&["npu", "--lang", "c", "--dir", dir, "--sdk", "."], &["--sdk is the Rust SDK", "headers"]);
    refused(&["npu", "--lang", "rust", "--dir", dir, "--sdk", "/"], &["--sdk /", "deepinfer-plugin-api"]);
    let deep = place.join("a").display().to_string();
    refused(&["npu", "--lang", "c", "--dir", &deep], &[dir, "make it first"]);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);

    fs::create_dir(&place).unwrap();
    fs::write(place.join("notes"), "mine").unwrap();
    refused(&["npu", "--lang", "c", "--dir", dir], &[dir, "not empty"]);
    assert_eq!(fs::read_dir(&place).unwrap().count(), 1);
    fs::remove_file(place.join("notes")).unwrap();
    // An empty folder is as good as none.
    deepinfer(&["plugin", "new", "npu", "--lang", "c", "--dir", dir]).succeeded_quietly();
    assert!(place.join("Makefile").is_file());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    refused(&[dir, "--lang", "c"], &["lower-case"]);
}
