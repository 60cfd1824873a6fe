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
        Self::with(name, lang, &[])
    }

    #[track_caller]
    fn with(name: &'static str, lang: &str, more: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let run = finish(command(&["plugin", "new", name, "--lang", lang]).args(more).current_dir(folder.path()));
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

/// A project in Rust, with an SDK that lies outside of every workspace.
struct RustProject {
    project: Scaffold,
    /// Holds the SDK: nothing but a copy of the folder `plugin-api`.
    elsewhere: TempDir,
}

impl RustProject {
    fn new() -> Self {
        let elsewhere = tempfile::tempdir().unwrap();
        let sdk = elsewhere.path().join("plugin-api");
        copy_folder(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plugin-api"), &sdk);
        Self { project: Scaffold::with("my-npu", "rust", &["--sdk", sdk.to_str().unwrap()]), elsewhere }
    }

    /// Runs Cargo, warnings being errors. What the SDK depends on is on this machine; nothing is fetched.
    fn cargo(&self, arguments: &[&str]) -> Run {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.current_dir(self.project.root()).env("CARGO_TARGET_DIR", Self::target()).env_remove("RUSTFLAGS");
        finish(cargo.args(arguments).args(["--offline", "--lib", "--", "-D", "warnings"]))
    }

    /// A folder that is kept, so that the dependencies are compiled once.
    fn target() -> PathBuf {
        Path::new(env!("CARGO_TARGET_TMPDIR")).join("scaffold")
    }

    #[track_caller]
    fn build(&self) -> PathBuf {
        let run = self.cargo(&["rustc"]);
        assert_eq!(run.code, Some(0), "{}", run.stderr);
        Self::target().join("debug/libdeepinfer_my_npu.so")
    }

    fn write(&self, path: &str, text: &str) {
        fs::write(self.project.root().join(path), text).unwrap();
    }

    /// Gives the project these modules of ops.
    fn set_ops(&self, modules: &[(&str, &str)]) {
        let mut list = String::new();
        for (name, text) in modules {
            list += &format!("mod {name};\n");
            self.write(&format!("src/ops/{name}.rs"), text);
        }
        self.write("src/ops.rs", &list);
    }

    /// The kernels conform, and are the ones that ran.
    #[track_caller]
    fn conforms(&self, op: &str, implementation: &str) {
        let library = self.build();
        let library = library.to_str().unwrap();
        let seen = deepinfer(&["plugin", "inspect", library]);
        assert!(seen.succeeded().contains(&format!("{op}@1  {implementation}")), "{}", seen.stdout);
        let run = deepinfer(&["parity", "--backend", library, "--profile", "none", "--ops", op, "--timeout", "120"]);
        let text = run.succeeded();
        // A call that the implementation declines is not supported, and no failure.
        assert!(text.contains("pass") && !text.contains("FAILED"), "{text}");
    }
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_folder(&entry.path(), &to),
            false => drop(fs::copy(entry.path(), to).unwrap()),
        }
    }
}

/// A file of the SDK in this repository.
fn of_the_sdk(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plugin-api").join(path);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The only example in the documentation of what follows `begin`, whose lines begin with `mark`.
#[track_caller]
fn example(source: &str, begin: &str, mark: &str) -> String {
    let (_, rest) = source.split_once(begin).unwrap_or_else(|| panic!("no {begin}"));
    let fence = format!("{mark} ```\n");
    let lines = rest.split(&fence).nth(1).expect("an example").lines();
    let bare = lines.map(|line| line.strip_prefix(mark).expect("a line of documentation"));
    bare.map(|line| format!("{}\n", line.strip_prefix(' ').unwrap_or(line))).collect()
}

#[test]
fn a_project_in_rust() {
    let rust = RustProject::new();
    rust.project.is_green(&rust.build());
    if let Some(run) = tool(&rust.project.root(), "cargo-fmt", &["--check"], &[]) {
        assert_eq!(run.code, Some(0), "{}{}", run.stdout, run.stderr);
    }

    // The examples of the documentation, word for word, are kernels that conform.
    let front_page = example(&of_the_sdk("src/lib.rs"), "//! catalogue allows:\n", "//!");
    rust.set_ops(&[("front_page", &front_page)]);
    rust.conforms("rstd", "default");
    let of_kernel = example(&of_the_sdk("src/sdk/kernel.rs"), "/// An `rstd` for rows of at most 1024 values", "///");
    let guide = of_the_sdk("README.md");
    let of_guide = guide.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next()).expect("an example");
    assert_eq!(of_guide, of_kernel, "the guide and the documentation of kernel! have one example");
    rust.set_ops(&[("planned", of_guide)]);
    rust.conforms("rstd", "planned");

    // Mistakes in the macros are sentences, and nothing else is said.
    let kernel = "fn rstd(_: &deepinfer_plugin_api::sdk::Cx<'_>, _: deepinfer_plugin_api::generated::RstdArgs<'_>) \
                  -> Result<(), deepinfer_plugin_api::sdk::Fault> {\n    Ok(())\n}\n";
    let vendor = |argument: &str| {
        format!(
            "deepinfer_plugin_api::vendor_op! {{\n    pub Scale \"npu_scale\" id 0x8000_0001 version 1 contract \
             deepinfer_plugin_api::Contract::EXACT,\n    raw Raw, args Args, proto Proto {{ {argument} }}\n}}\n"
        )
    };
    for (text, sentence) in [
        (
            "kernel!(Scale, rstd);",
            "the catalogue has no op Scale; for an op of vendor_op!, write kernel!(vendor Scale, ..)",
        ),
        ("kernel!(Rstd);", "kernel! takes an op and its function"),
        ("kernel!(Rstd, rstd, speed = 3);", "`speed = 3` is no option, or given twice; there are impl_name"),
        ("kernel!(Rstd, rstd, priority = 3, priority = 4);", "`priority = 4` is no option, or given twice"),
        (&vendor("factor: f64"), "an argument is In, Out, InOut, u32, i32 or f32, but not f64"),
        ("deepinfer_plugin_api::vendor_op! { pub Scale id 1 }", "vendor_op! takes, in this order: pub Op"),
    ] {
        let text = text.replace("kernel!(", "deepinfer_plugin_api::kernel!(");
        rust.set_ops(&[("mistake", &format!("#![allow(dead_code)]\n{kernel}{text}\n"))]);
        let run = rust.cargo(&["rustc"]);
        assert!(run.code != Some(0) && run.stderr.contains(sentence), "{text}: {}", run.stderr);
        assert_eq!(
            run.stderr.matches("\nerror").count() + usize::from(run.stderr.starts_with("error")),
            2,
            "{}",
            run.stderr
        );
    }

    // Options come in any order; an own op needs a kernel.
    let orders = "kernel!(Rstd, rstd, priority = 5, impl_name = \"fast\");\n\
                  deepinfer_plugin_api::kernel!(Rstd, rstd, impl_name = \"slow\", priority = -5,);";
    rust.set_ops(&[("orders", &format!("{kernel}deepinfer_plugin_api::{orders}\n"))]);
    let library = rust.build();
    let seen = deepinfer(&["plugin", "inspect", library.to_str().unwrap()]);
    let text = seen.succeeded();
    assert!(text.contains("fast") && text.contains("priority -5"), "{text}");
    rust.set_ops(&[("declared", &format!("#![allow(dead_code)]\n{}", vendor("factor: f32")))]);
    let library = rust.build();
    let declared = deepinfer(&["plugin", "inspect", library.to_str().unwrap()]);
    declared.refused(&["vendor_op! declares npu_scale, but it has no kernel"]);

    // An SDK of another catalogue: what was built with it says so, and no project begins with it.
    let sdk = rust.elsewhere.path().join("plugin-api");
    let generated = fs::read_to_string(sdk.join("src/generated.rs")).unwrap();
    let (before, after) = generated.split_once("pub const DIGEST: u64 = 0x").expect("the digest");
    let other = format!("{before}pub const DIGEST: u64 = 0x0000000000000abc{}", &after[16..]);
    fs::write(sdk.join("src/generated.rs"), other).unwrap();
    rust.set_ops(&[("front_page", &front_page)]);
    let library = rust.build();
    let seen = deepinfer(&["plugin", "inspect", library.to_str().unwrap()]);
    let text = seen.succeeded();
    assert!(text.contains("catalogue 0000000000000abc, ") && text.contains("built from another catalogue"), "{text}");
    let new = deepinfer(&["plugin", "new", "npu", "--lang", "rust", "--sdk", sdk.to_str().unwrap()]);
    new.refused(&["another catalogue of ops (0000000000000abc)", "a checkout of DeepInfer of this version"]);
}

/// What the folder `plugin-api` writes out is what the workspace says.
/// Name and version of a dependency's line.
fn version(line: &str) -> (&str, Option<&str>) {
    (line.split(' ').next().unwrap_or_default(), line.split('"').nth(1))
}

#[test]
fn the_sdk_inherits_nothing_and_agrees_with_the_workspace() {
    let workspace = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml")).unwrap();
    let section = |text: &str, name: &str| -> Vec<String> {
        let (_, rest) = text.split_once(&format!("\n[{name}]\n")).unwrap_or_else(|| panic!("no [{name}]"));
        rest.lines()
            .take_while(|line| !line.starts_with('['))
            .filter(|l| !l.is_empty() && !l.starts_with('#'))
            .map(str::to_owned)
            .collect()
    };
    let dependencies = section(&workspace, "workspace.dependencies");
    for manifest in ["Cargo.toml", "numerics/Cargo.toml", "oracle/Cargo.toml", "layers/validate/Cargo.toml"] {
        let text = format!("\n{}", of_the_sdk(manifest));
        assert!(!text.contains("workspace = true"), "{manifest} inherits");
        for line in section(&workspace, "workspace.package") {
            assert!(text.contains(&format!("\n{line}\n")), "{manifest}: {line}");
        }
        for lints in ["rust", "clippy"] {
            let (own, all) =
                (section(&text, &format!("lints.{lints}")), section(&workspace, &format!("workspace.lints.{lints}")));
            assert_eq!(own, all, "{manifest}");
        }
        for name in ["dependencies", "dev-dependencies"] {
            let has = text.contains(&format!("\n[{name}]\n"));
            let lines = if has { section(&text, name) } else { Vec::new() };
            for line in lines.iter().filter(|line| !line.contains("path =")) {
                // The program may have more features of a crate than the SDK needs.
                let has = dependencies.iter().any(|other| other == line || version(other) == version(line));
                assert!(has, "{manifest}: {line} is not what the workspace has");
            }
        }
    }
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
