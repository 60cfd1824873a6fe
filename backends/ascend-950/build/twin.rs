//! The host twin: kernels and the fake runtime as shared objects of this machine, by the C++ compiler.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::images::{Compiler, relative};

/// `twin/` stands where the vendor's headers would be. Contraction is off because a vector instruction rounds once;
/// memory of a device has no type; nobody replaces functions of an image.
const FLAGS: [&str; 10] = [
    "-std=c++17",
    "-g0",
    "-fPIC",
    "-pthread",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fno-semantic-interposition",
    "-fvisibility=default",
    "-Wall",
    "-Wno-unknown-pragmas",
];

/// The C++ compiler, GCC or Clang.
pub(crate) struct Gcc {
    root: PathBuf,
    tool: cc::Tool,
    identity: String,
    output: PathBuf,
    /// The twin, which is part of every kernel's image: compiled when the first of them is.
    objects: OnceLock<Result<Vec<PathBuf>, String>>,
}

impl Gcc {
    /// The compiler that Cargo's users choose by `CXX`. `build` says how much it optimises, and for which machine where Cargo does
    /// not.
    pub(crate) fn find(root: &Path, output: &Path, mut build: cc::Build) -> Result<Self, String> {
        build.cpp(true).cargo_metadata(false).cargo_warnings(false).warnings(false).out_dir(output);
        let tool = build.try_get_compiler().map_err(|e| format!("no C++ compiler: {e}"))?;
        if !tool.is_like_gnu() && !tool.is_like_clang() {
            return Err(format!("{} is neither GCC nor Clang", tool.path().display()));
        }
        let printed = Command::new(tool.path()).arg("--version").output();
        let printed = printed.map_err(|e| format!("no C++ compiler: {} does not run: {e}", tool.path().display()))?;
        let version = String::from_utf8_lossy(&printed.stdout).into_owned();
        let identity = format!("{version}{FLAGS:?}{:?}", tool.args());
        let (root, output) = (root.to_owned(), output.to_owned());
        Ok(Self { root, tool, identity, output, objects: OnceLock::new() })
    }

    /// The fake runtime.
    pub(crate) fn fake(&self, output: &Path) -> Result<PathBuf, String> {
        self.image(&self.root.join("fake/ascendcl.cpp"), output)
    }

    fn objects(&self) -> Result<&[PathBuf], String> {
        let compile =
            || sources(&self.root.join("twin")).iter().map(|source| self.image(source, &self.output)).collect();
        self.objects.get_or_init(compile).as_deref().map_err(Clone::clone)
    }
}

/// Whether a source lies in a folder of this name: that of the crate, or a changed copy of it elsewhere.
fn is_of(source: &Path, folder: &str) -> bool {
    source.parent().is_some_and(|parent| parent.ends_with(folder))
}

/// The C++ files of a folder, sorted.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok).map(|entry| entry.path());
    let mut sources: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|extension| extension == "cpp")).collect();
    sources.sort();
    sources
}

impl Compiler for Gcc {
    fn root(&self) -> &Path {
        &self.root
    }

    fn identity(&self) -> &str {
        &self.identity
    }

    /// A changed setting of the fake runtime compiles no kernel again.
    fn shared(&self, source: &Path) -> Vec<PathBuf> {
        let of_fake: &[&str] = &["twin", "include", "fake"];
        let folders = if is_of(source, "fake") { of_fake } else { &["twin", "kernels/common"] };
        folders.iter().map(|folder| self.root.join(folder)).collect()
    }

    fn extension(&self, source: &Path) -> &'static str {
        if is_of(source, "twin") { "o" } else { "so" }
    }

    fn run(&self, source: &Path, image: &Path) -> Result<(), String> {
        let mut command = self.tool.to_command();
        // Messages name sources by a path that does not depend on where the repository lies.
        command.current_dir(&self.root).args(FLAGS).args(["-I", "twin", "-I", "kernels"]);
        command.arg(relative(source, &self.root));
        if is_of(source, "twin") {
            command.arg("-c");
        } else {
            command.arg("-shared");
        }
        if is_of(source, "kernels") {
            command.args(self.objects()?);
        }
        if is_of(source, "fake") {
            let parts = sources(&self.root.join("fake")).into_iter().filter(|part| part != source);
            command.args(parts.map(|part| relative(&part, &self.root).to_owned()));
        }
        let run = command.args(["-ldl", "-o"]).arg(image).output();
        let run = run.map_err(|e| format!("{} does not run: {e}", self.tool.path().display()))?;
        if run.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&run.stderr);
        Err(format!("{} is not compiled ({}):\n{said}", relative(source, &self.root).display(), run.status))
    }
}
