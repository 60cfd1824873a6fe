//! What must hold of the kernels' machine code, read without a GPU: `cargo xtask machine-code`.
//!
//! A compiler that keeps an array in local memory, or falls back from the matrix instructions, says nothing, and the kernel
//! stays right: it is only slow. `backends/nvidia-sm100/machine_code.toml` says per kernel file and target how many registers
//! its functions take at most and which instructions must occur. No function has a stack frame or local memory but those that are
//! listed with their bytes, for targets that nobody has tuned; one that is gone must leave the list.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

/// The file of expectations, from the root of the repository.
const EXPECTATIONS: &str = "backends/nvidia-sm100/machine_code.toml";
/// The folder of the kernel files.
const KERNELS: &str = "backends/nvidia-sm100/kernels";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Expectations {
    /// Targets that every image has.
    targets: Vec<String>,
    /// Registers of a function in a file that is not listed.
    registers: u32,
    /// Files with expectations of their own.
    #[serde(default)]
    kernels: BTreeMap<String, Expectation>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Expectation {
    /// Registers of a function at most, where they are not those of all.
    registers: Option<u32>,
    /// Bytes of the largest stack frame of a function, by target; local memory counts, too.
    #[serde(default)]
    stack: BTreeMap<String, u32>,
    /// Instructions that occur, by target.
    #[serde(default)]
    instructions: BTreeMap<String, Vec<String>>,
}

/// Builds the backend with all its targets and compares its images with the expectations.
///
/// # Errors
/// What does not hold, line by line; or the tools do not run.
pub(crate) fn check() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let text = std::fs::read_to_string(root.join(EXPECTATIONS)).with_context(|| EXPECTATIONS.to_owned())?;
    let expectations: Expectations = toml::from_str(&text).with_context(|| EXPECTATIONS.to_owned())?;
    let folder = build(&root)?;
    let cuobjdump = disassembler(&root.join("target/cuda/venv/lib"))?;
    // Not what lies in the folder: images of kernels that were renamed stay there.
    let mut images: Vec<PathBuf> = std::fs::read_dir(root.join(KERNELS))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "cu"))
        .filter_map(|path| Some(folder.join(path.file_name()?).with_extension("fatbin")))
        .collect();
    images.sort();
    for image in &images {
        ensure!(image.is_file(), "{} is not there: was the backend built without nvcc?", image.display());
    }
    let mut problems = String::new();
    let mut names = Vec::new();
    for image in &images {
        let name = image.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let usage = printed(Command::new(&cuobjdump).arg("--dump-resource-usage").arg(image))?;
        let expected = expectations.kernels.get(&name);
        let cap = expected.and_then(|expected| expected.registers).unwrap_or(expectations.registers);
        let functions = functions_of(&usage);
        for target in &expectations.targets {
            if !functions.iter().any(|function| function.target == *target) {
                writeln!(problems, "{name}: no machine code for sm_{target}")?;
            }
            let of_target = functions.iter().filter(|function| function.target == *target);
            let largest = of_target.map(|function| function.stack.saturating_add(function.local)).max().unwrap_or(0);
            let listed = expected.and_then(|expected| expected.stack.get(target)).copied().unwrap_or(0);
            if largest != listed {
                writeln!(
                    problems,
                    "{name}, sm_{target}: {largest} bytes of stack and local memory, instead of {listed}"
                )?;
            }
        }
        for function in &functions {
            let place = format!("{name}, sm_{}, {}", function.target, function.name);
            if function.registers > cap {
                writeln!(problems, "{place}: {} registers, more than {cap}", function.registers)?;
            }
        }
        let most = functions.iter().map(|function| function.registers).max().unwrap_or(0);
        println!("{name}: {} functions, at most {most} registers", functions.len());
        let wanted: Vec<_> = expected.iter().flat_map(|expected| &expected.instructions).collect();
        if !wanted.is_empty() {
            let code = printed(Command::new(&cuobjdump).arg("--dump-sass").arg(image))?;
            for (target, instructions) in wanted {
                let of_target = code_of(&code, target);
                for instruction in instructions.iter().filter(|instruction| !of_target.contains(instruction.as_str())) {
                    writeln!(problems, "{name}, sm_{target}: the instruction {instruction} does not occur")?;
                }
            }
        }
        names.push(name);
    }
    for name in expectations.kernels.keys().filter(|name| !names.contains(name)) {
        writeln!(problems, "{EXPECTATIONS} names {name}, but there is no kernel file of that name")?;
    }
    if !problems.is_empty() {
        bail!("the machine code is not what {EXPECTATIONS} expects:\n{}", problems.trim_end());
    }
    println!("{} kernel files are as {EXPECTATIONS} expects", images.len());
    Ok(())
}

/// Builds the backend, and returns the folder in which its build script has left the images.
fn build(root: &Path) -> Result<PathBuf> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(root).args(["build", "--locked", "-p", "deepinfer-nvidia-sm100", "--message-format", "json"]);
    // What a developer builds for one target is not what is checked.
    cargo.env_remove("DEEPINFER_CUDA_ARCHS").env("DEEPINFER_REQUIRE_CUDA_KERNELS", "1");
    let messages = printed(&mut cargo)?;
    let folder = messages.lines().find_map(|line| {
        let message: Message = serde_json::from_str(line).ok()?;
        let is_it = message.package_id.as_deref().is_some_and(|id| id.contains("nvidia-sm100"));
        message.out_dir.filter(|_| is_it && message.reason == "build-script-executed")
    });
    folder.context("cargo did not say where the build script of the backend writes")
}

/// What cargo prints in a line.
#[derive(Deserialize)]
struct Message {
    reason: String,
    package_id: Option<String>,
    out_dir: Option<PathBuf>,
}

/// The disassembler that `cargo xtask cuda` has fetched, else that of `PATH`.
fn disassembler(versions: &Path) -> Result<PathBuf> {
    let wheels = std::fs::read_dir(versions).into_iter().flatten().filter_map(Result::ok);
    let mut found = wheels.map(|version| version.path().join("site-packages/nvidia/cu13/bin/cuobjdump"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|folder| folder.join("cuobjdump")).find(|file| file.is_file());
    found.find(|file| file.is_file()).or(on_path).context("no cuobjdump; `cargo xtask cuda` fetches one")
}

/// Runs a program and returns its standard output.
fn printed(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?} does not run"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {}\n{}", output.status, said.trim_end());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A function of an image.
#[derive(Debug, PartialEq)]
struct Function {
    target: String,
    name: String,
    registers: u32,
    stack: u32,
    local: u32,
}

/// The functions that the disassembler lists: a line `arch = sm_90a` above those of a target, a line with the name of each, and
/// one with its figures.
fn functions_of(usage: &str) -> Vec<Function> {
    let mut functions = Vec::new();
    let (mut target, mut name) = (String::new(), String::new());
    for line in usage.lines().map(str::trim) {
        if let Some(arch) = line.strip_prefix("arch = sm_") {
            arch.clone_into(&mut target);
        } else if let Some(function) = line.strip_prefix("Function ") {
            function.trim_end_matches(':').clone_into(&mut name);
        } else if line.starts_with("REG:") {
            let figure = |what: &str| {
                let field = line.split_whitespace().find_map(|field| field.strip_prefix(what)?.strip_prefix(':'));
                field.and_then(|number| number.parse().ok()).unwrap_or(u32::MAX)
            };
            functions.push(Function {
                target: target.clone(),
                name: name.clone(),
                registers: figure("REG"),
                stack: figure("STACK"),
                local: figure("LOCAL"),
            });
        }
    }
    functions
}

/// The instructions of a target. The disassembler heads them with `arch = sm_90a`.
fn code_of(code: &str, target: &str) -> String {
    let head = format!("arch = sm_{target}");
    let mut is_of_target = false;
    let lines = code.lines().filter(|line| {
        if line.starts_with("arch = ") {
            is_of_target = line.trim() == head;
        }
        is_of_target
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const USAGE: &str = "\nFatbin elf code:\n================\narch = sm_90a\nhost = linux\n\nResource usage:\n Common:\n  GLOBAL:0\n \
        Function rope:\n  REG:40 STACK:0 SHARED:1024 LOCAL:0 CONSTANT[0]:912\n Function rope_wide:\n  REG:255 STACK:16 \
        SHARED:0 LOCAL:8\n\nFatbin elf code:\narch = sm_100f\n Function rope:\n  REG:38 STACK:0 LOCAL:0\n";

    #[test]
    fn functions_are_read_with_their_target() {
        let function = |target: &str, name: &str, registers, stack, local| Function {
            target: target.to_owned(),
            name: name.to_owned(),
            registers,
            stack,
            local,
        };
        let expected = [
            function("90a", "rope", 40, 0, 0),
            function("90a", "rope_wide", 255, 16, 8),
            function("100f", "rope", 38, 0, 0),
        ];
        assert_eq!(functions_of(USAGE), expected);
    }

    #[test]
    fn a_figure_that_is_missing_is_not_taken_for_none() {
        assert_eq!(functions_of("arch = sm_90a\nFunction f:\n REG:1 STACK:0\n")[0].local, u32::MAX);
    }

    #[test]
    fn instructions_are_those_of_the_target() {
        let code = "arch = sm_90a\n HGMMA\narch = sm_100f\n UTCHMMA\n";
        assert!(code_of(code, "90a").contains("HGMMA") && !code_of(code, "90a").contains("UTCHMMA"));
        assert!(code_of(code, "100f").contains("UTCHMMA"));
    }

    #[test]
    fn the_expectations_can_be_read() {
        let text =
            std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(EXPECTATIONS)).unwrap();
        let expectations: Expectations = toml::from_str(&text).unwrap();
        let targets: Vec<_> = expectations.kernels.values().flat_map(|kernel| kernel.instructions.keys()).collect();
        assert!(targets.iter().all(|target| expectations.targets.contains(target)), "{targets:?}");
    }
}
