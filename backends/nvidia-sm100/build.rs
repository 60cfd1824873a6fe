//! Compiles the kernels: one fat binary per file of `kernels/`, machine code of every target in it, embedded in the library.
//!
//! - `DEEPINFER_NVCC`, else `CUDA_HOME`, `PATH`, `target/cuda` (`cargo xtask cuda`): where the compiler is.
//! - `DEEPINFER_CUDA_ARCHS`: targets, apart by commas; for the inner loop of a developer, `90a`.
//! - `DEEPINFER_REQUIRE_CUDA_KERNELS=1`: no compiler is an error instead of a plugin without kernels.

#[path = "build/nvcc.rs"]
mod nvcc;
#[path = "build/tables.rs"]
mod tables;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, thread};

use nvcc::Nvcc;

fn main() {
    for variable in ["DEEPINFER_NVCC", "CUDA_HOME", "DEEPINFER_CUDA_ARCHS", "DEEPINFER_REQUIRE_CUDA_KERNELS"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    println!("cargo::rerun-if-changed=kernels");
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rustc-check-cfg=cfg(cuda_kernels)");
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("Cargo sets it"));
    let output = PathBuf::from(env::var_os("OUT_DIR").expect("Cargo sets it"));
    fs::write(output.join(tables::FILE), tables::text()).expect("OUT_DIR is writable");
    let sources = kernels(&root.join("kernels"));
    match Nvcc::find(&root.join("../../target/cuda")) {
        Ok(nvcc) => {
            let images = compile(&nvcc, &root.join("kernels"), &sources, &output);
            fs::write(output.join("images.rs"), table(&sources, &images)).expect("OUT_DIR is writable");
            println!("cargo::rustc-cfg=cuda_kernels");
        }
        Err(problem) => {
            assert!(env::var("DEEPINFER_REQUIRE_CUDA_KERNELS").as_deref() != Ok("1"), "{problem}");
            println!("cargo::warning=the nvidia backend is built without its kernels: {problem}");
            fs::write(output.join("images.rs"), table(&sources, &vec![None; sources.len()]))
                .expect("OUT_DIR is writable");
        }
    }
}

/// Names of the kernel files, sorted.
fn kernels(folder: &Path) -> Vec<String> {
    let files = fs::read_dir(folder).expect("there are kernels").map(|entry| entry.expect("it can be read").path());
    let mut names: Vec<String> = files
        .filter(|path| path.extension().is_some_and(|extension| extension == "cu"))
        .map(|path| path.file_stem().expect("it has a name").to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Compiles the files, as many at once as there are processors.
fn compile(nvcc: &Nvcc, folder: &Path, sources: &[String], output: &Path) -> Vec<Option<PathBuf>> {
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let next = std::sync::atomic::AtomicUsize::new(0);
    let mut images = vec![None; sources.len()];
    let done: Vec<(usize, Result<PathBuf, String>)> = thread::scope(|scope| {
        let work = || {
            let mut done = Vec::new();
            loop {
                let index = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                let Some(name) = sources.get(index) else { return done };
                done.push((index, nvcc.image(folder, name, output)));
            }
        };
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a compiler thread ends")).collect()
    });
    for (index, image) in done {
        images[index] = Some(image.unwrap_or_else(|problem| panic!("{problem}")));
    }
    images
}

/// A constant per kernel file. Without a compiler the images are empty, and no device opens.
fn table(sources: &[String], images: &[Option<PathBuf>]) -> String {
    let mut text = format!("/// Kernel files.\npub(crate) const COUNT: usize = {};\n", sources.len());
    for (index, (name, image)) in sources.iter().zip(images).enumerate() {
        let bytes = match image {
            Some(path) => format!("include_bytes!({:?})", path.display().to_string()),
            None => "&[]".to_owned(),
        };
        let constant = name.to_uppercase();
        writeln!(
            text,
            "/// `kernels/{name}.cu`.\npub(crate) static {constant}: Image = Image {{ index: {index}, name: {name:?}, bytes: {bytes} }};"
        )
        .expect("a string grows");
    }
    text
}
