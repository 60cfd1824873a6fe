//! Mistakes in the kernels of the ascend backend, made on purpose. Each is built into an image as `build.rs` builds the kernels,
//! put in the place of the right one, and must be noticed by the parity cases of its op, whatever the seed of the host twin. An
//! unnoticed one is a hole in the cases or in the twin.
//!
//! - `all_seeds`: those of `backends/ascend-950/mutants.toml`, and that the images without a mistake are noticed on no seed. By
//!   itself `cargo test` tries some dozens of them, each on one seed, chosen by its place in the list.
//! - `every_order`: each statement that orders instructions, left out.
//! - `one`: those whose name has the text of `ASCEND_MUTANT` in it.
//!
//! All but the choice of `cargo test` take minutes: `cargo test --release -p deepinfer-tests --test ascend_mutants -- --ignored
//! all_seeds --nocapture`.

#![forbid(unsafe_code)]

// The part of build.rs that compiles for the twin.
#[allow(dead_code)]
#[path = "../../../backends/ascend-950/build/images.rs"]
mod images;
#[allow(dead_code)]
#[path = "../../../backends/ascend-950/build/twin.rs"]
mod twin;

mod list;
mod orders;
mod trial;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use images::Compiler;
use list::Subject;
use trial::Finding;

/// Seeds of the twin.
const SEEDS: usize = 6;
const ALL_SEEDS: [usize; SEEDS] = [0, 1, 2, 3, 4, 5];
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

/// A change of a copy of the kernels.
type Change<'a> = &'a (dyn Fn(&Path) -> Result<(), String> + Sync);

/// The folder with the image of a changed kernel. `folder` does not exist.
fn build(compiler: &twin::Gcc, kernel: &str, change: Change<'_>, folder: &Path) -> Result<PathBuf, String> {
    let kernels = folder.join("kernels");
    list::copy(&backend().join("kernels"), &kernels);
    change(&kernels)?;
    let (source, image) = (kernels.join(format!("{kernel}.cpp")), folder.join(format!("{kernel}.so")));
    compiler.run(&source, &image)?;
    Ok(folder.to_owned())
}

/// The first of the seeds on which a change is not noticed, and after how many cases.
fn unnoticed(
    compiler: &twin::Gcc,
    subject: &Subject,
    name: &str,
    change: Change<'_>,
    seeds: &[usize],
) -> Result<Option<(usize, usize)>, String> {
    let folder = tempfile::tempdir().unwrap();
    let images = build(compiler, &subject.kernel, change, &folder.path().join("changed"))?;
    for &seed in seeds {
        match trial::run(&images, subject, seed)? {
            Finding::Noticed(how) => println!("{name}, seed {seed}: {how}"),
            Finding::Nothing(cases) => return Ok(Some((seed, cases))),
            Finding::Skipped => return Ok(None),
        }
    }
    Ok(None)
}

/// Builds those mutants that have seeds and tries them. One that is not noticed on one of them is a problem.
fn try_all(optimisation: u32, seeds_of: impl Fn(usize, &str) -> Vec<usize> + Sync) {
    let mutants = list::read(&backend()).mutant;
    let folder = tempfile::tempdir().unwrap();
    let Some(compiler) = compiler(folder.path(), optimisation) else { return };
    let problems = in_parallel(&mutants, |place, mutant| {
        let name = mutant.to_string();
        let seeds = seeds_of(place, &name);
        if seeds.is_empty() {
            return Ok(());
        }
        let found = unnoticed(&compiler, &mutant.subject(), &name, &|kernels| mutant.make(kernels), &seeds)
            .map_err(|problem| format!("{name}: {problem}"))?;
        found.map_or(Ok(()), |(seed, cases)| Err(format!("{name}: {cases} cases on seed {seed} do not notice it")))
    });
    assert!(problems.is_empty(), "of {} mutants {} are wrong:\n{}", mutants.len(), problems.len(), problems.join("\n"));
}

#[test]
fn every_mistake_is_noticed() {
    let step = list::read(&backend()).mutant.len().div_ceil(SOME);
    try_all(0, |place, _| if place % step == 0 { vec![place / step % SEEDS] } else { Vec::new() });
}

#[test]
#[ignore = "takes minutes"]
fn all_seeds() {
    try_all(2, |_, _| ALL_SEEDS.to_vec());
    // What is built here is as right as what the plugin has.
    let mutants = list::read(&backend()).mutant;
    let subjects = mutants.iter().map(|mutant| (mutant.subject().kernel.clone(), mutant.subject()));
    let subjects: Vec<Subject> = subjects.collect::<BTreeMap<_, _>>().into_values().collect();
    let problems = in_parallel(&subjects, |place, subject| unchanged(subject, place % SEEDS));
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// The mutants that a developer names.
#[test]
#[ignore = "wants ASCEND_MUTANT, a part of a name"]
fn one() {
    let text = std::env::var("ASCEND_MUTANT").expect("ASCEND_MUTANT is a part of the name of a mutant");
    let is_meant = |name: &str| name.contains(&text);
    let mutants = list::read(&backend()).mutant;
    assert!(mutants.iter().any(|mutant| is_meant(&mutant.to_string())), "no mutant has {text:?} in its name");
    try_all(2, |_, name| if is_meant(name) { ALL_SEEDS.to_vec() } else { Vec::new() });
}

/// Leaves out each order of the kernels, or those whose name (`FILE:LINE: ..`) begins with one of the texts of `ASCEND_ORDERS`, which
/// commas part. One in a file that kernels share must be noticed by one of them, on every seed.
#[test]
#[ignore = "takes half an hour"]
fn every_order() {
    let kernels = backend().join("kernels");
    let list = list::read(&backend());
    let orders = orders::all(&kernels);
    let spare = orders::spare(&kernels, &orders, &list.spare).unwrap_or_else(|problem| panic!("{problem}"));
    let meant = std::env::var("ASCEND_ORDERS").unwrap_or_default();
    let folder = tempfile::tempdir().unwrap();
    let Some(compiler) = compiler(folder.path(), 1) else { return };
    let problems = in_parallel(&orders, |place, order| {
        let name = order.to_string();
        if !meant.split(',').any(|beginning| name.starts_with(beginning)) {
            return Ok(());
        }
        let mut misses = Vec::new();
        for subject in orders::subjects(&kernels, &order.file) {
            // What a seed does not notice, none of the others need look at.
            let found = unnoticed(&compiler, &subject, &name, &|copy| order.leave_out(copy), &ALL_SEEDS);
            match (found.map_err(|problem| format!("{name}: {problem}"))?, spare[place]) {
                (None, None) => return Ok(()),
                (None, Some(spare)) => return Err(format!("{name}: noticed, but listed as spare: {}", spare.why)),
                (Some((seed, _)), _) => misses.push(format!("{} on seed {seed}", subject.kernel)),
            }
        }
        if spare[place].is_some() {
            return Ok(());
        }
        let problem = format!("{name}: not noticed by {}", misses.join(", "));
        println!("{problem}");
        Err(problem)
    });
    assert!(problems.is_empty(), "of {} orders {} are wrong:\n{}", orders.len(), problems.len(), problems.join("\n"));
}

/// That an image without a mistake is not noticed.
fn unchanged(subject: &Subject, seed: usize) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    let Some(compiler) = compiler(folder.path(), 2) else { return Ok(()) };
    let kernel = &subject.kernel;
    let source = backend().join(format!("kernels/{kernel}.cpp"));
    compiler.run(&source, &folder.path().join(format!("{kernel}.so")))?;
    match trial::run(folder.path(), subject, seed)? {
        Finding::Noticed(how) => Err(format!("{kernel} without a mistake, seed {seed}: {how}")),
        Finding::Nothing(_) | Finding::Skipped => Ok(()),
    }
}

#[test]
fn an_image_without_a_mistake_passes() {
    unchanged(&Subject::of("rms_norm").unwrap(), 0).unwrap();
}

/// Runs in a process of its own: see `trial`.
#[test]
#[ignore = "part of the other tests"]
fn child() {
    trial::child();
}

#[test]
fn the_list_fits_the_kernels() {
    let kernels = backend().join("kernels");
    let list::List { mutant: mutants, spare } = list::read(&backend());
    assert!(mutants.len() >= 40, "{} mutants", mutants.len());
    let problems: Vec<String> = mutants.iter().filter_map(|m| m.changed(&kernels).err()).collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    let names: BTreeSet<String> = mutants.iter().map(ToString::to_string).collect();
    assert_eq!(names.len(), mutants.len());
    orders::spare(&kernels, &orders::all(&kernels), &spare).unwrap_or_else(|problem| panic!("{problem}"));
}
