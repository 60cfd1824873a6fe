//! The CUDA compiler: where it is, and one call per kernel file, kept by content.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Targets that are built if nobody says otherwise: `90a` runs on Hopper, `100f` and `120f` on the families of Blackwell.
/// An image for one target loads in 0.1 ms; there is no intermediate code, which a driver older than the compiler refuses.
const TARGETS: &str = "90a,100f,120f";

/// `-DNDEBUG` because assertions serialise the matrix instructions (C7510) without an error.
const FLAGS: [&str; 8] =
    ["-O3", "-std=c++17", "-DNDEBUG", "-lineinfo", "--fmad=false", "-Werror", "all-warnings", "--compress-mode=size"];

/// Lines of the compiler that it prints without failing, and that mean a slow kernel.
const FATAL_NOTES: [&str; 2] = ["C7508", "C7510"];

/// A compiler.
pub(crate) struct Nvcc {
    program: PathBuf,
    version: String,
    targets: Vec<String>,
    cache: PathBuf,
}

impl Nvcc {
    /// Looks for the compiler; `local` is the folder that `cargo xtask cuda` fills.
    pub(crate) fn find(local: &Path) -> Result<Self, String> {
        let named = env::var_os("DEEPINFER_NVCC").map(PathBuf::from);
        let home = env::var_os("CUDA_HOME").map(|home| Path::new(&home).join("bin/nvcc"));
        let path = env::var_os("PATH").unwrap_or_default();
        let on_path = env::split_paths(&path).map(|folder| folder.join("nvcc")).find(|file| file.is_file());
        let wheels = wheel_compiler(local);
        let found = named.or(home.filter(|file| file.is_file())).or(on_path).or(wheels);
        let program = found.ok_or(
            "no nvcc: DEEPINFER_NVCC and CUDA_HOME name none, and there is none on PATH or in target/cuda; \
             `cargo xtask cuda` fetches one",
        )?;
        println!("cargo::rerun-if-changed={}", program.display());
        let printed = Command::new(&program).arg("--version").output();
        let printed = printed.map_err(|e| format!("{} does not run: {e}", program.display()))?;
        let version = String::from_utf8_lossy(&printed.stdout).into_owned();
        let targets = env::var("DEEPINFER_CUDA_ARCHS").unwrap_or_else(|_| TARGETS.to_owned());
        let targets = targets.split(',').map(|target| target.trim().to_owned()).filter(|target| !target.is_empty());
        Ok(Self { program, version, targets: targets.collect(), cache: local.join("images") })
    }

    /// The image of `kernels/NAME.cu`: from the cache if a file of this content was compiled before.
    pub(crate) fn image(&self, folder: &Path, name: &str, output: &Path) -> Result<PathBuf, String> {
        let key = self.key(folder, &folder.join(format!("{name}.cu")), output)?;
        let (kept, image) =
            (self.cache.join(format!("{name}-{key:016x}.fatbin")), output.join(format!("{name}.fatbin")));
        // An empty file is what a compiler left that was ended.
        if fs::copy(&kept, &image).is_ok_and(|bytes| bytes > 0) {
            return Ok(image);
        }
        let mut command = Command::new(&self.program);
        // The image names its source: by a path that does not depend on where the repository lies.
        let source = Path::new("kernels").join(format!("{name}.cu"));
        command.current_dir(folder.parent().expect("the kernels are in a folder of the crate"));
        command.args(FLAGS).args(["-fatbin", "-t", "0", "--resource-usage", "-I", "kernels", "-I"]).arg(output);
        for target in &self.targets {
            command.args(["-gencode", &format!("arch=compute_{target},code=sm_{target}")]);
        }
        let run = command.arg(&source).arg("-o").arg(&image).output();
        let run = run.map_err(|e| format!("{} does not run: {e}", self.program.display()))?;
        let said = String::from_utf8_lossy(&run.stdout) + String::from_utf8_lossy(&run.stderr);
        if !run.status.success() {
            return Err(format!("{} is not compiled ({}):\n{said}", source.display(), run.status));
        }
        if let Some(line) = said.lines().find(|line| FATAL_NOTES.iter().any(|note| line.contains(note))) {
            return Err(format!("{} is compiled to slow code: {line}", source.display()));
        }
        // Another build may write the same file at this moment: what is there is whole at every time.
        let partial = self.cache.join(format!("{name}-{key:016x}.{}", std::process::id()));
        if fs::create_dir_all(&self.cache).is_ok() && fs::copy(&image, &partial).is_ok() {
            let _ = fs::rename(&partial, &kept);
        }
        Ok(image)
    }

    /// A number of all that the image follows from.
    fn key(&self, folder: &Path, source: &Path, output: &Path) -> Result<u64, String> {
        let mut hasher = DefaultHasher::new();
        (&self.version, &self.targets, FLAGS).hash(&mut hasher);
        let mut files = vec![source.to_owned(), output.join(crate::tables::FILE)];
        headers(&folder.join("common"), &mut files);
        files.sort();
        for file in files {
            let bytes = fs::read(&file).map_err(|e| format!("{}: {e}", file.display()))?;
            bytes.hash(&mut hasher);
        }
        Ok(hasher.finish())
    }
}

/// The compiler of the wheels in a virtual environment.
fn wheel_compiler(local: &Path) -> Option<PathBuf> {
    let versions = fs::read_dir(local.join("venv/lib")).ok()?;
    let compilers = versions.filter_map(Result::ok).map(|v| v.path().join("site-packages/nvidia/cu13/bin/nvcc"));
    compilers.into_iter().find(|file| file.is_file())
}

/// Every file of a folder.
fn headers(folder: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    files.extend(entries.filter_map(Result::ok).map(|entry| entry.path()).filter(|path| path.is_file()));
}
