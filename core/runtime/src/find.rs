//! Where plugins are looked for.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Colon-separated list of absolute directories, searched first.
const PATH_VARIABLE: &str = "DEEPINFER_PLUGIN_PATH";

/// Directories that are searched for plugins, in order. The current directory is never among them.
#[derive(Clone, Debug, Default)]
pub struct SearchPath {
    directories: Vec<PathBuf>,
}

impl SearchPath {
    /// Exactly these directories.
    pub fn of(directories: impl IntoIterator<Item = PathBuf>) -> Self {
        Self { directories: directories.into_iter().collect() }
    }

    /// `DEEPINFER_PLUGIN_PATH`, then the executable's folder and the `deps` folder in it. For an executable that itself
    /// lies in `deps` or `examples`, where Cargo puts tests and examples, also the folder above.
    ///
    /// The variable is ignored in a process with raised privileges, and so are entries of it that are not absolute:
    /// they would mean something else in every working directory.
    pub fn from_environment() -> Self {
        let mut directories = Vec::new();
        if let Some(list) = std::env::var_os(PATH_VARIABLE).filter(|_| !privileges_are_raised()) {
            directories.extend(absolute_entries(&list));
        }
        match std::env::current_exe() {
            Ok(executable) => directories.extend(executable.parent().map(beside).unwrap_or_default()),
            Err(e) => tracing::warn!("plugins beside the executable are not searched: its path is unknown: {e}"),
        }
        Self { directories }
    }

    /// The directories.
    pub fn directories(&self) -> &[PathBuf] {
        &self.directories
    }

    /// Files that look like plugins by their name, each file once, in the order of the directories, then of names.
    /// Directories that cannot be read are skipped.
    pub fn candidates(&self) -> Vec<PathBuf> {
        let mut seen = HashSet::new();
        let mut found = Vec::new();
        for directory in &self.directories {
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
            for path in names.into_iter().map(|name| directory.join(name)) {
                // Cargo links the same file into two folders; the file system knows that they are one.
                let Ok(meta) = std::fs::metadata(&path) else { continue };
                if meta.is_file() && seen.insert((meta.dev(), meta.ino())) {
                    found.push(path);
                }
            }
        }
        found
    }
}

/// Folders beside an executable in `folder`: its own first, since that is where its own build put them.
fn beside(folder: &Path) -> Vec<PathBuf> {
    let mut directories = vec![folder.to_owned(), folder.join("deps")];
    let is_inner = folder.file_name().is_some_and(|name| name == "deps" || name == "examples");
    if let Some(above) = folder.parent().filter(|_| is_inner) {
        directories.extend([above.to_owned(), above.join("deps")]);
    }
    directories
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
    fn a_test_binary_searches_its_own_folder_before_the_one_above() {
        let directories = beside(Path::new("/t/debug/deps"));
        assert_eq!(directories[0], Path::new("/t/debug/deps"));
        assert!(directories.contains(&PathBuf::from("/t/debug")));
        assert!(!beside(Path::new("/usr/bin")).contains(&PathBuf::from("/usr")));
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
