//! Mistakes in the kernels of the ascend backend, made on purpose: those of `backends/ascend-950/mutants.toml`. Each is built
//! into an image as `build.rs` builds the kernels, put in the place of the right one, and must be noticed by the parity cases of
//! its op, whatever the seed of the host twin. An unnoticed one is a hole in the cases or in the twin.
//!
//! By itself `cargo test` tries some dozens of the mistakes, each on one seed, chosen by its place in the list. All of them on all
//! seeds, and that the images without a mistake are noticed on none: `cargo test --release -p deepinfer-tests --test
//! ascend_mutants -- --ignored all_seeds --nocapture`.

#![forbid(unsafe_code)]

// The part of build.rs that compiles for the twin.
#[allow(dead_code)]
#[path = "../../../backends/ascend-950/build/images.rs"]
mod images;
#[allow(dead_code)]
#[path = "../../../backends/ascend-950/build/twin.rs"]
mod twin;

mod list;
mod trial;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use images::Compiler;
use list::Mutant;
use trial::Finding;

/// Seeds of the twin.
const SEEDS: usize = 6;
/// Mistakes that `cargo test` tries by itself.
const SOME: usize = 36;

/// The crate of the backend.
fn backend() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("it lies in the repository").join("backends/ascend-950")
}

/// The compiler of the twin, or `None`, with a line that says so. What runs once is not worth optimising.
fn compiler(output: &Path, optimisation: u32) -> Option<twin::Gcc> {
    let environment = if cfg!(target_env = "musl") { "musl" } else { "gnu" };
    let target = format!("{}-unknown-linux-{environment}", std::env::consts::ARCH);
    let mut build = cc::Build::new();
    build.target(&target).host(&target).opt_level(optimisation);
    match twin::Gcc::find(&backend(), output, build) {
        Ok(compiler) => Some(compiler),
        Err(problem) => {
            eprintln!("skipped: {problem}");
            None
        }
    }
}

/// Does some work on as many threads as there are cores, and gives what is wrong with it.
fn in_parallel<T: Sync>(all: &[T], work: impl Fn(usize, &T) -> Result<(), String> + Sync) -> Vec<String> {
    let (next, workers) = (AtomicUsize::new(0), thread::available_parallelism().map_or(1, usize::from));
    thread::scope(|scope| {
        let worker = || {
            let mut problems = Vec::new();
            loop {
                let place = next.fetch_add(1, Ordering::Relaxed);
                let Some(one) = all.get(place) else { return problems };
                problems.extend(work(place, one).err());
            }
        };
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(worker)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a thread ends")).collect()
    })
}

/// Builds those mutants that have seeds and tries them. One that is not noticed on one of them is a problem.
fn try_all(optimisation: u32, seeds_of: impl Fn(usize) -> Vec<usize> + Sync) {
    let mutants = list::read(&backend());
    let folder = tempfile::tempdir().unwrap();
    let Some(compiler) = compiler(folder.path(), optimisation) else { return };
    let problems = in_parallel(&mutants, |place, mutant| {
        if seeds_of(place).is_empty() {
            return Ok(());
        }
        let images = build(&compiler, mutant, &folder.path().join(place.to_string()))?;
        for seed in seeds_of(place) {
            match trial::run(&images, &mutant.ops, seed)? {
                Finding::Noticed(how) => println!("{mutant}, seed {seed}: {how}"),
                Finding::Nothing(cases) => {
                    return Err(format!("{mutant}: {cases} cases on seed {seed} do not notice it"));
                }
                Finding::Skipped => return Ok(()),
            }
        }
        Ok(())
    });
    assert!(problems.is_empty(), "of {} mutants {} are wrong:\n{}", mutants.len(), problems.len(), problems.join("\n"));
}

/// The folder with the image of a mutant. `folder` does not exist.
fn build(compiler: &twin::Gcc, mutant: &Mutant, folder: &Path) -> Result<PathBuf, String> {
    let kernels = folder.join("kernels");
    list::copy(&backend().join("kernels"), &kernels);
    mutant.make(&kernels)?;
    let (source, image) =
        (kernels.join(format!("{}.cpp", mutant.kernel)), folder.join(format!("{}.so", mutant.kernel)));
    compiler.run(&source, &image).map_err(|problem| format!("{mutant}: {problem}"))?;
    Ok(folder.to_owned())
}

#[test]
fn every_mistake_is_noticed() {
    let step = list::read(&backend()).len().div_ceil(SOME);
    try_all(0, |place| if place % step == 0 { vec![place / step % SEEDS] } else { Vec::new() });
}

#[test]
#[ignore = "takes minutes"]
fn all_seeds() {
    try_all(2, |_| (0..SEEDS).collect());
    // What is built here is as right as what the plugin has.
    let mutants = list::read(&backend());
    let kernels: BTreeSet<(&str, &str)> = mutants.iter().map(|m| (m.kernel.as_str(), m.ops.as_str())).collect();
    let kernels: Vec<_> = kernels.into_iter().collect();
    let problems = in_parallel(&kernels, |place, &(kernel, ops)| unchanged(kernel, ops, place % SEEDS));
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// That an image without a mistake is not noticed.
fn unchanged(kernel: &str, ops: &str, seed: usize) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    let Some(compiler) = compiler(folder.path(), 2) else { return Ok(()) };
    let source = backend().join(format!("kernels/{kernel}.cpp"));
    compiler.run(&source, &folder.path().join(format!("{kernel}.so")))?;
    match trial::run(folder.path(), ops, seed)? {
        Finding::Noticed(how) => Err(format!("{kernel} without a mistake, seed {seed}: {how}")),
        Finding::Nothing(_) | Finding::Skipped => Ok(()),
    }
}

#[test]
fn an_image_without_a_mistake_passes() {
    unchanged("rms_norm", "rms_norm", 0).unwrap();
}

/// Runs in a process of its own: see `trial`.
#[test]
#[ignore = "part of the other tests"]
fn child() {
    trial::child();
}

#[test]
fn the_list_fits_the_kernels() {
    let mutants = list::read(&backend());
    assert!(mutants.len() >= 40, "{} mutants", mutants.len());
    let problems: Vec<String> = mutants.iter().filter_map(|m| m.changed(&backend().join("kernels")).err()).collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    let names: BTreeSet<String> = mutants.iter().map(ToString::to_string).collect();
    assert_eq!(names.len(), mutants.len());
}
