//! Where plugins are looked for, and what a file there is before any of its code runs.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::backend::LoadedBackend;
use crate::load::{LoadError, load, load_described};
use crate::manifest::{Manifest, ManifestError, SUFFIX};
use crate::one_line::one_line;

/// Colon-separated list of absolute directories, searched first.
pub(crate) const PATH_VARIABLE: &str = "DEEPINFER_PLUGIN_PATH";
/// Folder of plugins below a folder of data or libraries.
const BELOW: &str = "deepinfer/plugins";

/// Directories that are searched for plugins, in order. The current directory is never among them.
///
/// In each of them a plugin is a manifest (`NAME.deepinfer.json`) with the library that it names, or a library without a
/// manifest whose name is `lib*deepinfer_*.so`. The second form is what a build leaves beside the executable; it works
/// everywhere, but only a manifest says what a plugin is without running its code.
#[derive(Clone, Debug, Default)]
pub struct SearchPath {
    directories: Vec<PathBuf>,
    /// One for each directory.
    origins: Vec<Origin>,
}

/// Why a directory is searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// The user named it in `DEEPINFER_PLUGIN_PATH`, or the caller did, or named the file itself.
    Named,
    /// It is the user's: `$XDG_DATA_HOME/deepinfer/plugins`.
    User,
    /// It belongs to the build of the executable. Of files with the same name in several of these only the first counts.
    Build,
    /// It belongs to the installation.
    System,
}

/// What of the process decides where to look.
#[derive(Default)]
struct Surroundings {
    variable: Option<OsString>,
    data_home: Option<OsString>,
    home: Option<OsString>,
    executable: Option<PathBuf>,
    privileges_are_raised: bool,
}

impl SearchPath {
    /// Exactly these directories.
    pub fn of(directories: impl IntoIterator<Item = PathBuf>) -> Self {
        let directories: Vec<PathBuf> = directories.into_iter().collect();
        Self { origins: vec![Origin::Named; directories.len()], directories }
    }

    /// In this order: the directories of `DEEPINFER_PLUGIN_PATH`; `deepinfer/plugins` in `$XDG_DATA_HOME`, or else in
    /// `~/.local/share`; the `deps` folder beside the executable and the executable's own folder;
    /// `../lib/deepinfer/plugins` from there; `/usr/local/lib/deepinfer/plugins` and `/usr/lib/deepinfer/plugins`. For an
    /// executable that itself lies in `deps` or `examples`, where Cargo puts tests and examples, the folder above counts
    /// as its own.
    ///
    /// A process with raised privileges searches `/usr/local/lib` and `/usr/lib` alone: its caller chooses the variables, and
    /// with a hard link also the folder of the executable. That does not make a program fit to be set-uid if its arguments can
    /// name a library.
    ///
    /// Entries of the variables that are not absolute are ignored: they would mean something else in every working directory.
    /// Entries of the first one that cannot be read are warned of.
    pub fn from_environment() -> Self {
        let executable = std::env::current_exe();
        if let Err(e) = &executable {
            tracing::warn!("plugins beside the executable are not searched: its path is unknown: {e}");
        }
        let search = Self::of_surroundings(&Surroundings {
            variable: std::env::var_os(PATH_VARIABLE),
            data_home: std::env::var_os("XDG_DATA_HOME"),
            home: std::env::var_os("HOME"),
            executable: executable.ok(),
            privileges_are_raised: privileges_are_raised(),
        });
        for (directory, _) in search.places().filter(|(_, origin)| *origin == Origin::Named) {
            if let Err(e) = std::fs::read_dir(directory) {
                let directory = one_line(&directory.display().to_string());
                tracing::warn!("{PATH_VARIABLE}: {directory} is not searched: {e}");
            }
        }
        search
    }

    fn of_surroundings(process: &Surroundings) -> Self {
        let mut search = Self::default();
        if !process.privileges_are_raised {
            for directory in process.variable.iter().flat_map(|list| absolute_entries(list)) {
                search.add(directory, Origin::Named);
            }
            let absolute =
                |value: &Option<OsString>| value.as_ref().map(PathBuf::from).filter(|path| path.is_absolute());
            let data = absolute(&process.data_home).or_else(|| Some(absolute(&process.home)?.join(".local/share")));
            if let Some(data) = data {
                search.add(data.join(BELOW), Origin::User);
            }
        }
        let executable = process.executable.as_ref().filter(|_| !process.privileges_are_raised);
        if let Some(own) = executable.and_then(|path| path.parent()).map(own_folder) {
            // Cargo builds into `deps` and links the result into the folder above, but not on every kind of build: the
            // file in `deps` is the newer one.
            search.add(own.join("deps"), Origin::Build);
            search.add(own.to_owned(), Origin::Build);
            if let Some(above) = own.parent() {
                search.add(above.join("lib").join(BELOW), Origin::System);
            }
        }
        for system in ["/usr/local/lib", "/usr/lib"] {
            search.add(Path::new(system).join(BELOW), Origin::System);
        }
        search
    }

    fn add(&mut self, directory: PathBuf, origin: Origin) {
        if !self.directories.contains(&directory) {
            self.directories.push(directory);
            self.origins.push(origin);
        }
    }

    /// The directories.
    pub fn directories(&self) -> &[PathBuf] {
        &self.directories
    }

    /// The directories, each with why it is searched.
    pub fn places(&self) -> impl Iterator<Item = (&Path, Origin)> {
        self.directories.iter().map(PathBuf::as_path).zip(self.origins.iter().copied())
    }

    /// Plugins, as far as files tell; none of their code runs. Each library once, in the order of the directories; in one
    /// directory those with a manifest come first, each group in the order of names. Directories that cannot be read are
    /// skipped.
    pub fn candidates(&self) -> Vec<Candidate> {
        let mut found = Found::default();
        for (directory, origin) in self.places() {
            let entries = match std::fs::read_dir(directory) {
                Ok(entries) => entries,
                Err(e) => {
                    tracing::debug!("{} is not searched for plugins: {e}", directory.display());
                    continue;
                }
            };
            let mut names: Vec<OsString> = entries.filter_map(|entry| Some(entry.ok()?.file_name())).collect();
            names.sort();
            for name in names.iter().filter(|name| is_manifest_name(name)) {
                found.add_manifest(&directory.join(name), origin);
            }
            for name in names.iter().filter(|name| is_plugin_name(name)) {
                found.add_library(directory.join(name), origin);
            }
        }
        found.candidates
    }
}

/// Candidates so far.
#[derive(Default)]
struct Found {
    candidates: Vec<Candidate>,
    /// Device and inode of libraries.
    seen: HashSet<(u64, u64)>,
    /// Names of libraries in the folders of the build.
    built: HashSet<OsString>,
}

impl Found {
    fn add_manifest(&mut self, path: &Path, origin: Origin) {
        let candidate = Candidate { origin, ..Candidate::of_manifest(path) };
        let claimed = match &candidate.description {
            Description::Manifest(manifest) => Some(manifest.library.clone()),
            // The library of a manifest that cannot be used is not used either: it is this one, or has its name.
            _ => Manifest::claimed_library(path).or_else(|| Some(path.with_file_name(library_of(path)))),
        };
        let is_new = claimed.and_then(|library| identity(&library)).is_none_or(|file| self.seen.insert(file));
        if is_new {
            self.candidates.push(candidate);
        }
    }

    fn add_library(&mut self, path: PathBuf, origin: Origin) {
        let name = path.file_name().unwrap_or_default().to_owned();
        let is_second = origin == Origin::Build && !self.built.insert(name);
        let Some(file) = identity(&path) else { return };
        if self.seen.insert(file) && !is_second {
            self.candidates.push(Candidate { path, origin, description: Description::None });
        }
    }
}

/// A regular file, whatever its paths.
fn identity(path: &Path) -> Option<(u64, u64)> {
    let meta = std::fs::metadata(path).ok()?;
    meta.is_file().then(|| (meta.dev(), meta.ino()))
}

/// A plugin that may be tried.
#[derive(Clone, Debug)]
pub struct Candidate {
    path: PathBuf,
    origin: Origin,
    description: Description,
}

/// What is known before the library is opened.
#[derive(Clone, Debug)]
enum Description {
    /// Nothing.
    None,
    Manifest(Box<Manifest>),
    Broken(ManifestError),
}

impl Candidate {
    /// The plugin in a file: a library, or a manifest with its library. A manifest beside a library that is named is not
    /// looked at.
    pub fn of_path(path: &Path) -> Self {
        if path.file_name().is_some_and(is_manifest_name) {
            return Self::of_manifest(path);
        }
        Self { path: path.to_owned(), origin: Origin::Named, description: Description::None }
    }

    fn of_manifest(path: &Path) -> Self {
        let description = match Manifest::read(path) {
            Ok(manifest) => Description::Manifest(Box::new(manifest)),
            Err(error) => Description::Broken(error),
        };
        Self { path: path.to_owned(), origin: Origin::Named, description }
    }

    /// The library; the manifest, if that cannot be used.
    pub fn path(&self) -> &Path {
        self.manifest().map_or(&self.path, |manifest| &manifest.library)
    }

    /// What was found: the manifest, or a library without one. [`Candidate::of_path`] gives the same candidate again.
    pub fn file(&self) -> &Path {
        &self.path
    }

    /// Why its directory is searched.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// What its manifest says.
    pub fn manifest(&self) -> Option<&Manifest> {
        match &self.description {
            Description::Manifest(manifest) => Some(manifest),
            _ => None,
        }
    }

    /// Why its manifest cannot be used at all.
    pub fn problem(&self) -> Option<&ManifestError> {
        match &self.description {
            Description::Broken(error) => Some(error),
            _ => None,
        }
    }

    /// That of the manifest, or 0.
    pub fn priority(&self) -> i32 {
        self.manifest().map_or(0, |manifest| manifest.priority)
    }

    /// The library, if the manifest can be used and fits this machine. Runs none of its code.
    ///
    /// # Errors
    /// Why not.
    pub fn library(&self) -> Result<&Path, LoadError> {
        match &self.description {
            Description::None => Ok(&self.path),
            Description::Broken(error) => Err(LoadError::Manifest(error.clone())),
            Description::Manifest(manifest) => {
                manifest.check()?;
                Ok(&manifest.library)
            }
        }
    }

    /// Loads the backend; see [`load`]. What a manifest says is checked before, and its name after.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn load(&self, options: &str) -> Result<&'static LoadedBackend, LoadError> {
        let library = self.library()?;
        match self.manifest() {
            None => load(library, options),
            Some(manifest) => load_described(library, options, manifest),
        }
    }
}

/// Folder of the executable, in the sense of [`SearchPath::from_environment`].
fn own_folder(folder: &Path) -> &Path {
    let is_inner = folder.file_name().is_some_and(|name| name == "deps" || name == "examples");
    folder.parent().filter(|_| is_inner).unwrap_or(folder)
}

fn absolute_entries(list: &OsStr) -> Vec<PathBuf> {
    let (absolute, relative): (Vec<PathBuf>, _) = std::env::split_paths(list).partition(|entry| entry.is_absolute());
    for entry in relative.iter().filter(|entry| !entry.as_os_str().is_empty()) {
        tracing::warn!("{PATH_VARIABLE}: {:?} is ignored: only absolute directories are searched", entry);
    }
    absolute
}

/// `lib*deepinfer_*.so`, but not the names with a hash that Cargo gives to libraries of the compiler.
fn is_plugin_name(name: impl AsRef<OsStr>) -> bool {
    let Some(stem) = name.as_ref().to_str().and_then(|n| n.strip_suffix(".so")) else { return false };
    let hashed =
        stem.rsplit_once('-').is_some_and(|(_, hash)| hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit()));
    stem.starts_with("lib") && stem.contains("deepinfer_") && !hashed
}

fn is_manifest_name(name: impl AsRef<OsStr>) -> bool {
    name.as_ref().to_str().is_some_and(|name| name.len() > SUFFIX.len() && name.ends_with(SUFFIX))
}

/// Name of the library that belongs to a manifest by its name.
fn library_of(manifest: &Path) -> String {
    let name = manifest.file_name().and_then(OsStr::to_str).unwrap_or_default();
    format!("libdeepinfer_{}.so", name.trim_end_matches(SUFFIX).replace('-', "_"))
}

/// Whether a library is called after a plugin: `libdeepinfer_NAME.so`, with `_` for `-`.
pub(crate) fn file_is_named(path: &Path, name: &str) -> bool {
    stem(path).strip_prefix("libdeepinfer_") == Some(&name.replace('-', "_"))
}

pub(crate) fn stem(path: &Path) -> String {
    path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default()
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
            assert!(is_plugin_name(name), "{name}");
        }
        for name in [
            "libdeepinfer_macros-0123456789abcdef.so",
            "libdeepinfer_cpu_reference.rlib",
            "libdeepinfer_cpu_reference.so.1",
            "deepinfer_cpu.so",
            "libc.so",
        ] {
            assert!(!is_plugin_name(name), "{name}");
        }
        assert!(is_manifest_name("npu.deepinfer.json") && !is_manifest_name(".deepinfer.json"));
        assert_eq!(library_of(Path::new("/x/my-npu.deepinfer.json")), "libdeepinfer_my_npu.so");
    }

    fn surroundings() -> Surroundings {
        Surroundings {
            variable: Some("/opt/x::.:plugins:/opt/y".into()),
            data_home: Some("/data".into()),
            home: Some("/home/u".into()),
            executable: Some("/opt/deepinfer/bin/deepinfer".into()),
            privileges_are_raised: false,
        }
    }

    fn order(process: &Surroundings) -> Vec<(String, Origin)> {
        let search = SearchPath::of_surroundings(process);
        search.places().map(|(path, origin)| (path.display().to_string(), origin)).collect()
    }

    #[test]
    fn the_order_of_the_search() {
        use Origin::{Build, Named, System, User};
        let wanted = [
            ("/opt/x", Named),
            ("/opt/y", Named),
            ("/data/deepinfer/plugins", User),
            ("/opt/deepinfer/bin/deps", Build),
            ("/opt/deepinfer/bin", Build),
            ("/opt/deepinfer/lib/deepinfer/plugins", System),
            ("/usr/local/lib/deepinfer/plugins", System),
            ("/usr/lib/deepinfer/plugins", System),
        ];
        assert_eq!(order(&surroundings()), wanted.map(|(path, origin)| (path.to_owned(), origin)));

        // An executable in /usr/bin does not search /usr/lib twice.
        let installed = Surroundings { executable: Some("/usr/bin/deepinfer".into()), ..Default::default() };
        let paths: Vec<String> = order(&installed).into_iter().map(|(path, _)| path).collect();
        let wanted = ["/usr/bin/deps", "/usr/bin", "/usr/lib/deepinfer/plugins", "/usr/local/lib/deepinfer/plugins"];
        assert_eq!(paths, wanted);
    }

    #[test]
    fn folders_of_the_user_are_absolute_and_not_for_raised_privileges() {
        let data = |process: &Surroundings| order(process).into_iter().find(|(_, origin)| *origin == Origin::User);
        let path = |process: &Surroundings| data(process).map(|(path, _)| path);
        let home = Some("/home/u/.local/share/deepinfer/plugins".to_owned());
        assert_eq!(path(&Surroundings { data_home: None, ..surroundings() }), home);
        assert_eq!(path(&Surroundings { data_home: Some("data".into()), ..surroundings() }), home);
        assert_eq!(path(&Surroundings { data_home: None, home: Some("".into()), ..surroundings() }), None);

        let raised = order(&Surroundings { privileges_are_raised: true, ..surroundings() });
        let system = ["/usr/local/lib/deepinfer/plugins", "/usr/lib/deepinfer/plugins"];
        assert_eq!(raised, system.map(|path| (path.to_owned(), Origin::System)));
    }

    #[test]
    fn the_folder_that_cargo_builds_into_comes_first() {
        for executable in ["/t/debug/x", "/t/debug/deps/x", "/t/debug/examples/x"] {
            let process = Surroundings { executable: Some(executable.into()), ..Default::default() };
            let paths: Vec<String> = order(&process).into_iter().map(|(path, _)| path).collect();
            assert_eq!(paths[..2], ["/t/debug/deps", "/t/debug"], "{executable}");
        }
    }

    fn paths(search: &SearchPath) -> Vec<PathBuf> {
        search.candidates().iter().map(|candidate| candidate.path().to_owned()).collect()
    }

    #[test]
    fn of_one_build_each_name_counts_once_and_of_other_folders_each_file() {
        let folders: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
        let directories: Vec<PathBuf> = folders.iter().map(|f| f.path().to_owned()).collect();
        let files: Vec<PathBuf> = directories.iter().map(|d| d.join("libdeepinfer_x.so")).collect();
        files.iter().for_each(|path| std::fs::write(path, "").unwrap());
        let link = directories[2].join("libdeepinfer_y.so");
        std::fs::hard_link(&files[0], &link).unwrap();

        assert_eq!(paths(&SearchPath::of(directories.clone())), files);
        let search = SearchPath { directories, origins: vec![Origin::Named, Origin::Build, Origin::Build] };
        assert_eq!(paths(&search), files[..2]);
    }

    #[test]
    fn a_manifest_describes_its_library_and_a_broken_one_keeps_it_out() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["libdeepinfer_a.so", "other.so", "libdeepinfer_c.so", "libdeepinfer_d.so"] {
            std::fs::write(at(name), "").unwrap();
        }
        let manifest = |library: &str| {
            serde_json::json!({
                "manifest_version": 1, "name": "b", "vendor": "v", "version": "1", "library": library,
                "abi": {"major": 0, "minor": 2}, "arch": "x86_64", "os": "linux", "priority": 5,
            })
            .to_string()
        };
        std::fs::write(at("b.deepinfer.json"), manifest("other.so")).unwrap();
        // One that is no JSON is of the library with its name, another of the library that it names.
        std::fs::write(at("c.deepinfer.json"), "{").unwrap();
        std::fs::write(at("x.deepinfer.json"), manifest("libdeepinfer_d.so").replace("\"manifest_version\":1,", ""))
            .unwrap();

        let candidates = SearchPath::of([folder.path().to_owned()]).candidates();
        let found: Vec<&Path> = candidates.iter().map(Candidate::path).collect();
        let wanted = ["other.so", "c.deepinfer.json", "x.deepinfer.json", "libdeepinfer_a.so"].map(at);
        assert_eq!(found, wanted);
        assert_eq!(candidates[0].manifest().unwrap().name, "b");
        assert_eq!(candidates.iter().map(Candidate::priority).collect::<Vec<_>>(), [5, 0, 0, 0]);
        let error = candidates[1].load("").unwrap_err().to_string();
        assert!(error.contains("c.deepinfer.json: the manifest is not a JSON object"), "{error}");
        let error = candidates[2].library().unwrap_err().to_string();
        assert!(error.contains("the manifest's field manifest_version is missing"), "{error}");
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
