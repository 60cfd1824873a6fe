//! One call of a compiler per kernel file, as many at once as Cargo allows, kept by content.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, fs, thread};

/// What makes images.
pub(crate) trait Compiler: Sync {
    /// The crate.
    fn root(&self) -> &Path;
    /// All that an image follows from besides files: program, version, flags.
    fn identity(&self) -> &str;
    /// Folders whose files the image of a source follows from.
    fn shared(&self, source: &Path) -> Vec<PathBuf>;
    /// Makes the image of a source, or a part of images.
    fn run(&self, source: &Path, image: &Path) -> Result<(), String>;
    /// How the name of what is made of a source ends.
    fn extension(&self, _source: &Path) -> &'static str {
        "so"
    }

    /// What is made of a source: from the cache if a file of this content was compiled before.
    fn image(&self, source: &Path, output: &Path) -> Result<PathBuf, String> {
        let name = source.file_stem().expect("it has a name").to_string_lossy().into_owned();
        let cache = cache();
        let key = key(self.identity(), source, &self.shared(source), self.root())?;
        let extension = self.extension(source);
        let kept = cache.as_ref().map(|cache| cache.join(format!("{name}-{key:016x}.{extension}")));
        let image = output.join(format!("{name}.{extension}"));
        // An empty file is what a compiler left that was ended.
        if kept.as_ref().is_some_and(|kept| fs::copy(kept, &image).is_ok_and(|bytes| bytes > 0)) {
            return Ok(image);
        }
        self.run(source, &image)?;
        // Another build may write the same file at this moment: what is there is whole at every time.
        if let (Some(cache), Some(kept)) = (cache, kept) {
            let partial = cache.join(format!("{name}-{key:016x}.{}", std::process::id()));
            if fs::create_dir_all(&cache).is_ok() && fs::copy(&image, &partial).is_ok() {
                let _ = fs::rename(&partial, &kept);
            }
        }
        Ok(image)
    }
}

/// Where images are kept, for every profile and for tests: in Cargo's target folder, which it marks as a cache, and in which this
/// program lies. Nothing is kept where there is none.
fn cache() -> Option<PathBuf> {
    let program = env::current_exe().ok()?;
    let target = program.ancestors().find(|folder| folder.join("CACHEDIR.TAG").is_file())?;
    Some(target.join("ascend-950/images"))
}

/// Names of the kernel files, sorted.
pub(crate) fn names(folder: &Path) -> Vec<String> {
    let Ok(files) = fs::read_dir(folder) else { return Vec::new() };
    let files = files.map(|entry| entry.expect("it can be read").path());
    let mut names: Vec<String> = files
        .filter(|path| path.extension().is_some_and(|extension| extension == "cpp"))
        .map(|path| path.file_stem().expect("it has a name").to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Compiles the files.
///
/// # Errors
/// Names all those that do not compile.
pub(crate) fn compile<C: Compiler>(compiler: &C, names: &[String], output: &Path) -> Result<Vec<PathBuf>, String> {
    let jobs = env::var("NUM_JOBS").ok().and_then(|jobs| jobs.parse().ok());
    let workers = jobs.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from));
    let next = AtomicUsize::new(0);
    let done: Vec<(usize, Result<PathBuf, String>)> = thread::scope(|scope| {
        let work = || {
            let mut done = Vec::new();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(name) = names.get(index) else { return done };
                let source = compiler.root().join("kernels").join(format!("{name}.cpp"));
                done.push((index, compiler.image(&source, output)));
            }
        };
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a compiler thread ends")).collect()
    });
    let (mut images, mut problems) = (vec![PathBuf::new(); names.len()], Vec::new());
    for (index, image) in done {
        match image {
            Ok(image) => images[index] = image,
            // What is wrong with a file that all include is told once.
            Err(problem) if !problems.contains(&problem) => problems.push(problem),
            Err(_) => {}
        }
    }
    if problems.is_empty() { Ok(images) } else { Err(problems.join("\n")) }
}

/// A number of all that an image follows from.
fn key(identity: &str, source: &Path, folders: &[PathBuf], root: &Path) -> Result<u64, String> {
    let mut files = vec![source.to_owned()];
    for folder in folders {
        let Ok(entries) = fs::read_dir(folder) else { continue };
        files.extend(entries.filter_map(Result::ok).map(|entry| entry.path()).filter(|path| path.is_file()));
    }
    files.sort();
    let mut hasher = DefaultHasher::new();
    identity.hash(&mut hasher);
    for file in files {
        relative(&file, root).hash(&mut hasher);
        fs::read(&file).map_err(|e| format!("{}: {e}", file.display()))?.hash(&mut hasher);
    }
    Ok(hasher.finish())
}

/// The part of a path that does not depend on where the repository lies.
pub(crate) fn relative<'a>(path: &'a Path, root: &Path) -> &'a Path {
    path.strip_prefix(root).unwrap_or(path)
}
