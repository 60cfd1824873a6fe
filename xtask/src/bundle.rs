//! A folder with everything that checks and measures the NVIDIA backend on a machine with a GPU and no Rust.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

/// Most bytes of the folder: it travels.
const MOST_BYTES: u64 = 60 << 20;
/// Where it is made unless it is said.
const DEFAULT: &str = "target/gpu-bundle";

/// Tests of the crate `deepinfer-tests` that go with it.
const TESTS: [&str; 3] = ["miniature", "released_slice", "attention_widths"];

/// How a file gets there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    /// As it is.
    Copied,
    /// Without symbols.
    Stripped,
    /// Compressed: `run.sh` unpacks it.
    Zipped,
    /// Without symbols, and compressed.
    StrippedAndZipped,
}

/// A file: from where in the repository to where in the folder.
#[derive(PartialEq, Eq, Debug)]
struct File {
    from: PathBuf,
    to: String,
    how: How,
}

/// Makes the folder; the arguments are those behind the command.
pub(crate) fn run(args: &[&str]) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in the workspace")?;
    let out = match args {
        [] => root.join(DEFAULT),
        ["--out", folder] => PathBuf::from(folder),
        _ => bail!("usage: cargo xtask gpu-bundle [--out DIR]"),
    };
    let tests = build(root)?;
    // What an earlier run left could be of another commit. Only a folder that such a run made is removed.
    if out.join("run.sh").exists() {
        std::fs::remove_dir_all(&out).with_context(|| format!("cannot empty {}", out.display()))?;
    }
    ensure!(
        std::fs::read_dir(&out).map_or(true, |mut entries| entries.next().is_none()),
        "{} is not empty, and no bundle; choose another folder",
        out.display()
    );
    let files = files(&release_folder(root), &tests);
    for file in &files {
        put(root, file, &out)?;
    }
    let bytes = files.iter().map(|file| Ok(out.join(&file.to).metadata()?.len())).sum::<Result<u64>>()?;
    ensure!(bytes <= MOST_BYTES, "the bundle has {bytes} bytes, but must have at most {MOST_BYTES}");
    println!("{}: {} files, {:.1} MiB; run.sh runs all of it", out.display(), files.len(), bytes as f64 / 1048576.0);
    Ok(())
}

/// What belongs into the folder.
fn files(release: &Path, tests: &[PathBuf; TESTS.len()]) -> Vec<File> {
    let file = |from: PathBuf, to: &str, how| File { from, to: to.to_owned(), how };
    let mut files = vec![
        file(release.join("deepinfer"), "deepinfer.gz", How::StrippedAndZipped),
        file("backends/nvidia-sm100/bench/run.sh".into(), "run.sh", How::Copied),
        file("backends/nvidia-sm100/bench/peers.py".into(), "peers.py", How::Copied),
    ];
    for (name, test) in TESTS.iter().zip(tests) {
        files.push(file(test.clone(), name, How::Stripped));
    }
    for plugin in ["nvidia_sm100", "cpu_reference", "validate"] {
        let name = format!("libdeepinfer_{plugin}.so");
        files.push(file(release.join(&name), &format!("plugins/{name}"), How::Stripped));
    }
    for fixture in ["expected.json", "expected_deploy.json"] {
        let path = format!("tests/fixtures/{fixture}");
        files.push(file(path.clone().into(), &path, How::Copied));
    }
    for part in ["config.json", "tokenizer.json", "engram_token_map.json", "engram_constants.json"] {
        let path = format!("models/deepseek-v41-mini/{part}");
        files.push(file(path.clone().into(), &path, How::Copied));
    }
    let weights = "models/deepseek-v41-mini/model.safetensors";
    files.push(file(weights.into(), &format!("{weights}.gz"), How::Zipped));
    files
}

fn release_folder(root: &Path) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    target.join("release")
}

/// Builds the program, the plugins and the tests, and gives the paths of the tests.
fn build(root: &Path) -> Result<[PathBuf; TESTS.len()]> {
    let cargo = || {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        // A plugin without kernels would measure nothing.
        command.current_dir(root).env("DEEPINFER_REQUIRE_CUDA_KERNELS", "1");
        command
    };
    let packages = ["deepinfer", "deepinfer-nvidia-sm100", "deepinfer-cpu-reference", "deepinfer-validate"];
    let mut program = cargo();
    program.args(["build", "--release"]).args(packages.iter().flat_map(|package| ["-p", package]));
    succeed(&mut program)?;
    let mut tests = cargo();
    tests.args(["test", "--release", "-p", "deepinfer-tests"]).args(TESTS.iter().flat_map(|test| ["--test", test]));
    tests.args(["--no-run", "--message-format", "json-render-diagnostics"]).stderr(Stdio::inherit());
    let output = tests.output().with_context(|| format!("{tests:?} does not run"))?;
    ensure!(output.status.success(), "{tests:?}: {}", output.status);
    let messages = String::from_utf8(output.stdout).context("cargo writes UTF-8")?;
    let mut paths = [const { PathBuf::new() }; TESTS.len()];
    for (path, test) in paths.iter_mut().zip(TESTS) {
        *path = executable(&messages, test).with_context(|| format!("cargo does not say where {test} lies"))?;
    }
    Ok(paths)
}

/// The executable of a test in cargo's messages.
fn executable(messages: &str, test: &str) -> Option<PathBuf> {
    messages.lines().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        (message["target"]["name"] == test).then(|| message["executable"].as_str().map(PathBuf::from))?
    })
}

/// Puts a file into the folder.
fn put(root: &Path, file: &File, out: &Path) -> Result<()> {
    let (from, to) = (root.join(&file.from), out.join(&file.to));
    let folder = to.parent().context("files of a bundle lie in a folder")?;
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    if matches!(file.how, How::Copied | How::Stripped) {
        std::fs::copy(&from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
        return if file.how == How::Stripped { succeed(Command::new("strip").arg(&to)) } else { Ok(()) };
    }
    let plain = to.with_extension("plain");
    if file.how == How::StrippedAndZipped {
        succeed(Command::new("strip").arg("-o").arg(&plain).arg(&from))?;
    }
    let source = if file.how == How::StrippedAndZipped { &plain } else { &from };
    let target = std::fs::File::create(&to).with_context(|| format!("cannot write {}", to.display()))?;
    succeed(Command::new("gzip").arg("-9c").arg(source).stdout(target))?;
    if source == &plain {
        std::fs::remove_file(&plain).with_context(|| format!("cannot remove {}", plain.display()))?;
    }
    Ok(())
}

fn succeed(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("{command:?} does not run"))?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_has_what_its_script_names() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let built = Path::new("/built");
        let files = files(built, &TESTS.map(|test| built.join("deps").join(test)));
        // What is not built is in the repository.
        for file in files.iter().filter(|file| !file.from.starts_with(built)) {
            assert!(root.join(&file.from).is_file(), "{file:?}");
        }
        let places: Vec<&str> = files.iter().map(|file| file.to.as_str()).collect();
        let script = std::fs::read_to_string(root.join("backends/nvidia-sm100/bench/run.sh")).unwrap();
        let named = script.split("$here/").skip(1).map(|rest| rest.split(['"', ' ', '\n']).next().unwrap_or_default());
        let made = ["results", "results}"];
        for name in named.filter(|name| !made.contains(name)) {
            let is_there = places.iter().any(|place| {
                *place == name || place.starts_with(&format!("{name}/")) || *place == format!("{name}.gz")
            });
            assert!(is_there, "{name} is named in run.sh, but not in the bundle: {places:?}");
        }
        assert!(places.contains(&"models/deepseek-v41-mini/model.safetensors.gz"), "{places:?}");
        let mut unique = places.clone();
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(unique.len(), places.len());
    }

    #[test]
    fn the_test_is_found_in_the_messages_of_cargo() {
        let messages = "{\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"other\"},\"executable\":\"/x\"}\n\
                        {\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"miniature\"},\"executable\":\"/t/m-1\"}\n\
                        {\"reason\":\"build-finished\",\"success\":true}\n";
        assert_eq!(executable(messages, "miniature"), Some(PathBuf::from("/t/m-1")));
        assert_eq!(executable("not json\n", "miniature"), None);
    }

    #[test]
    fn files_arrive_as_they_are_or_compressed() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let out = std::env::temp_dir().join(format!("deepinfer-bundle-{}", std::process::id()));
        let file = |to: &str, how| File { from: "Cargo.toml".into(), to: to.to_owned(), how };
        put(root, &file("a/b.toml", How::Copied), &out).unwrap();
        put(root, &file("c.gz", How::Zipped), &out).unwrap();
        let unzipped = Command::new("gzip").arg("-dc").arg(out.join("c.gz")).output().unwrap().stdout;
        let wanted = std::fs::read(root.join("Cargo.toml")).unwrap();
        assert_eq!((std::fs::read(out.join("a/b.toml")).unwrap(), unzipped), (wanted.clone(), wanted));
        std::fs::remove_dir_all(&out).unwrap();
    }

    #[test]
    fn other_arguments_are_refused() {
        assert!(run(&["--output", "x"]).unwrap_err().to_string().contains("usage"));
    }
}
