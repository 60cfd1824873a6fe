//! Where plugins are looked for.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Colon-separated list of absolute directories, searched first.
pub(crate) const PATH_VARIABLE: &str = "DEEPINFER_PLUGIN_PATH";

/// Directories that are searched for plugins, in order. The current directory is never among them.
#[derive(Clone, Debug, Default)]
pub struct SearchPath {
    directories: Vec<PathBuf>,
    /// How many of the first directories the user named in the variable.
    of_variable: usize,
    /// How many of the last directories belong to one build: of files with the same name there, only the first counts.
    of_one_build: usize,
}

impl SearchPath {
    /// Exactly these directories.
    pub fn of(directories: impl IntoIterator<Item = PathBuf>) -> Self {
        Self { directories: directories.into_iter().collect(), of_variable: 0, of_one_build: 0 }
    }

    /// `DEEPINFER_PLUGIN_PATH`, then the `deps` folder beside the executable and the executable's own folder. For an
    /// executable that itself lies in `deps` or `examples`, where Cargo puts tests and examples, the folder above counts
    /// as its own.
    ///
    /// The variable is ignored in a process with raised privileges, and so are entries of it that are not absolute:
    /// they would mean something else in every working directory. Entries that cannot be read are warned of.
    pub fn from_environment() -> Self {
        let mut directories = Vec::new();
        if let Some(list) = std::env::var_os(PATH_VARIABLE).filter(|_| !privileges_are_raised()) {
            directories.extend(absolute_entries(&list));
        }
        for directory in &directories {
            if let Err(e) = std::fs::read_dir(directory) {
                tracing::warn!("{PATH_VARIABLE}: {} is not searched: {e}", directory.display());
            }
        }
        let of_variable = directories.len();
        let beside = match std::env::current_exe() {
            Ok(executable) => executable.parent().map(beside).unwrap_or_default(),
            Err(e) => {
                tracing::warn!("plugins beside the executable are not searched: its path is unknown: {e}");
                Vec::new()
            }
        };
        let of_one_build = beside.len();
        directories.extend(beside);
        Self { directories, of_variable, of_one_build }
    }

    /// The directories.
    pub fn directories(&self) -> &[PathBuf] {
        &self.directories
    }

    /// Whether the user named the directory of a candidate, rather than finding it there.
    pub(crate) fn is_of_variable(&self, candidate: &Path) -> bool {
        self.directories[..self.of_variable].iter().any(|directory| candidate.parent() == Some(directory))
    }

    /// Files that look like plugins by their name, each file once, in the order of the directories, then of names.
    /// Directories that cannot be read are skipped.
    pub fn candidates(&self) -> Vec<PathBuf> {
        let mut seen = HashSet::new();
        let mut found = Vec::new();
        let mut built = HashSet::new();
        for (index, directory) in self.directories.iter().enumerate() {
            let is_of_build = index + self.of_one_build >= self.directories.len();
            let entries = match std::fs::read_dir(directory) {
                Ok(entries) => entries,
                Err(e) => {
                    tracing::debug!("{} is not searched for plugins: {e}", directory.display());
                    continue;
                }
            };
            let mut names: Vec<_> =
                entries.filter_map(|entry| Some(entry.ok()?.file_name())).filter(|n| is_plugin_name(n)).collect();
            names.sort();
            for name in names {
                let path = directory.join(&name);
                let Ok(meta) = std::fs::metadata(&path) else { continue };
                let is_new = seen.insert((meta.dev(), meta.ino())) && !(is_of_build && built.contains(&name));
                if meta.is_file() && is_new {
                    found.push(path);
                }
                if is_of_build {
                    built.insert(name);
                }
            }
        }
        found
    }
}

/// Folders beside an executable in `folder`. Cargo builds into `deps` and links the result into the folder above, but not
/// on every kind of build: the file in `deps` is the newer one.
fn beside(folder: &Path) -> Vec<PathBuf> {
    let is_inner = folder.file_name().is_some_and(|name| name == "deps" || name == "examples");
    let own = folder.parent().filter(|_| is_inner).unwrap_or(folder);
    vec![own.join("deps"), own.to_owned()]
}

fn absolute_entries(list: &OsStr) -> Vec<PathBuf> {
    let (absolute, relative): (Vec<PathBuf>, _) = std::env::split_paths(list).partition(|entry| entry.is_absolute());
    for entry in relative.iter().filter(|entry| !entry.as_os_str().is_empty()) {
        tracing::warn!("{PATH_VARIABLE}: {:?} is ignored: only absolute directories are searched", entry);
    }
    absolute
}

/// `lib*deepinfer_*.so`, but not the names with a hash that Cargo gives to libraries of the compiler.
fn is_plugin_name(name: &OsStr) -> bool {
    let Some(stem) = name.to_str().and_then(|n| n.strip_suffix(".so")) else { return false };
    let hashed =
        stem.rsplit_once('-').is_some_and(|(_, hash)| hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit()));
    stem.starts_with("lib") && stem.contains("deepinfer_") && !hashed
}

/// Whether the process runs with more rights than its caller has (set-user-ID and the like): then its environment is
/// the caller's and must not choose code to load.
pub(crate) fn privileges_are_raised() -> bool {
    const AT_SECURE: usize = 23;
    if !cfg!(target_os = "linux") {
        return false;
    }
    // Such a process may be unable to read the file; a process without /proc loses the variables, too.
    std::fs::read("/proc/self/auxv").map_or(true, |bytes| auxiliary_value(&bytes, AT_SECURE).is_some_and(|v| v != 0))
}

/// A value of the auxiliary vector: pairs of a type and a value, as native words.
fn auxiliary_value(bytes: &[u8], wanted: usize) -> Option<usize> {
    let (words, _) = bytes.as_chunks::<{ size_of::<usize>() }>();
    let (pairs, _) = words.as_chunks::<2>();
    pairs.iter().find(|[kind, _]| usize::from_ne_bytes(*kind) == wanted).map(|[_, value]| usize::from_ne_bytes(*value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugin_names() {
        for name in ["libdeepinfer_cpu_reference.so", "libacme_deepinfer_npu.so"] {
            assert!(is_plugin_name(name.as_ref()), "{name}");
        }
        for name in [
            "libdeepinfer_macros-0123456789abcdef.so",
            "libdeepinfer_cpu_reference.rlib",
            "libdeepinfer_cpu_reference.so.1",
            "deepinfer_cpu.so",
            "libc.so",
        ] {
            assert!(!is_plugin_name(name.as_ref()), "{name}");
        }
    }

    #[test]
    fn the_folder_that_cargo_builds_into_comes_first() {
        let wanted = [PathBuf::from("/t/debug/deps"), PathBuf::from("/t/debug")];
        for folder in ["/t/debug", "/t/debug/deps", "/t/debug/examples"] {
            assert_eq!(beside(Path::new(folder)), wanted, "{folder}");
        }
    }

    #[test]
    fn of_one_build_each_name_counts_once_and_of_other_folders_each_file() {
        let folders: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
        let directories: Vec<PathBuf> = folders.iter().map(|f| f.path().to_owned()).collect();
        let paths: Vec<PathBuf> = directories.iter().map(|d| d.join("libdeepinfer_x.so")).collect();
        paths.iter().for_each(|path| std::fs::write(path, "").unwrap());
        let link = directories[2].join("libdeepinfer_y.so");
        std::fs::hard_link(&paths[0], &link).unwrap();

        assert_eq!(SearchPath::of(directories.clone()).candidates(), paths);
        let search = SearchPath { directories, of_variable: 1, of_one_build: 2 };
        assert_eq!(search.candidates(), paths[..2]);
        assert!(search.is_of_variable(&paths[0]) && !search.is_of_variable(&paths[1]));
    }

    #[test]
    fn relative_directories_of_the_variable_are_ignored() {
        assert_eq!(absolute_entries("::.:plugins:/opt/x:/opt/y".as_ref()), [Path::new("/opt/x"), Path::new("/opt/y")]);
    }

    #[test]
    fn the_auxiliary_vector_is_read_by_pairs() {
        // 23 also occurs as a value, which must not be taken for the type.
        let words: [usize; 6] = [16, 23, 23, 1, 0, 0];
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
        assert_eq!(auxiliary_value(&bytes, 23), Some(1));
        assert_eq!(auxiliary_value(&bytes, 99), None);
        assert!(!privileges_are_raised(), "tests run without raised privileges");
    }
}
