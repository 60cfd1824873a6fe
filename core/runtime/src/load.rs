//! Opening a plugin file and shaking hands with it, as a backend or as a layer over one.
//!
//! What a file looks like from outside and what a plugin returns is checked. What its own code does is not: a constructor
//! or an entry that aborts, faults, exits or never returns does so to the whole process, since a library shares it. The
//! events `loading PATH` and `starting PATH` (at the level `debug`, as with `RUST_LOG=debug`) then tell which plugin it was.
//! The command line program therefore tries plugins in other processes, for its reports and for `auto`; what is selected in
//! the end runs in its own, and nothing can contain that.

#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::c_void;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use deepinfer_plugin_api::abi::{
    DI_ABI_MAJOR, DI_ABI_MINOR, DI_ENTRY_SYMBOL, DI_RF_IS_LAYER, DiBackendApi, DiEntryFn, DiEntryReply, DiEntryRequest,
    DiOpEntry, DiRuntimeApi, DiStr,
};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::backend::{LoadedBackend, OpImpl};
use crate::elf::{self, ElfError};
use crate::host;
use crate::layers::LayerInfo;
use crate::manifest::{Manifest, ManifestError};
use crate::one_line::{is_treacherous, one_line};
use crate::raw::{lend_text, read_sized, read_text, read_text_lossy, take_error};

/// Why a file is not a usable plugin.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LoadError {
    /// There is no such file.
    #[error("{}: the file cannot be read: {reason}", path.display())]
    Unreadable {
        /// File.
        path: PathBuf,
        /// What the system says.
        reason: String,
    },
    /// Its end is missing, as after a broken download.
    #[error("{}: the file is cut off: {problem}", path.display())]
    CutOff {
        /// File.
        path: PathBuf,
        /// Which part is missing.
        problem: String,
    },
    /// It is no shared library, or one that it needs is missing.
    #[error("{}: it cannot be loaded as a shared library: {reason}", path.display())]
    NotALibrary {
        /// File.
        path: PathBuf,
        /// What the file is instead, or what the dynamic linker says.
        reason: String,
    },
    /// It is a shared library of another kind.
    #[error("{}: it is not a DeepInfer plugin: it exports no {DI_ENTRY_SYMBOL}", path.display())]
    NotAPlugin {
        /// File.
        path: PathBuf,
    },
    /// It was built for another version of the boundary.
    #[error(
        "{}: the plugin speaks version {plugin} of the plugin ABI, the core version {core}; use a plugin that was built \
         for this core{}", path.display(), quoted(said)
    )]
    Version {
        /// File.
        path: PathBuf,
        /// What the plugin speaks or needs.
        plugin: String,
        /// What the core speaks.
        core: String,
        /// What the plugin said, or nothing.
        said: String,
    },
    /// It declined to start.
    #[error("{}: the plugin{} refused to start: {reason}", path.display(), spaced(name))]
    Refused {
        /// File.
        path: PathBuf,
        /// Name that it gave, or nothing.
        name: String,
        /// Its reason.
        reason: String,
    },
    /// Its reply breaks the rules of the header.
    #[error("{}: the plugin's reply is malformed: {problem}", path.display())]
    Malformed {
        /// File.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// It is running already, with other options.
    #[error(
        "{}: the plugin is already loaded with the options {running:?} and cannot start again with {wanted:?}; start \
         another process", path.display()
    )]
    OtherOptions {
        /// File.
        path: PathBuf,
        /// Options that it was started with.
        running: String,
        /// Options asked for.
        wanted: String,
    },
    /// Its manifest says why not, or cannot be used.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// It calls itself otherwise than its manifest does.
    #[error(
        "{}: the plugin calls itself {said}, but its manifest {} calls it {wanted}; one of them belongs to another plugin",
        path.display(), manifest.display()
    )]
    OtherName {
        /// File.
        path: PathBuf,
        /// File of the manifest.
        manifest: PathBuf,
        /// Name in the manifest.
        wanted: String,
        /// Name in the handshake.
        said: String,
    },
    /// It was to be a backend.
    #[error("{}: the plugin{} is a layer, not a backend; it goes into DEEPINFER_LAYERS", path.display(), spaced(name))]
    IsALayer {
        /// File.
        path: PathBuf,
        /// Name that it gave, or nothing.
        name: String,
    },
    /// It was to be a layer.
    #[error("{}: the plugin{} is a backend, not a layer; it goes into DEEPINFER_ACCELERATOR", path.display(), spaced(name))]
    IsNoLayer {
        /// File.
        path: PathBuf,
        /// Name that it gave, or nothing.
        name: String,
    },
}

fn quoted(said: &str) -> String {
    if said.is_empty() { String::new() } else { format!(" (it said: {said})") }
}

fn spaced(name: &str) -> String {
    if name.is_empty() { String::new() } else { format!(" {name}") }
}

/// A library of which the entry was called.
struct Started {
    entry: DiEntryFn,
    /// What came of it as a backend; its entry is called once per process.
    as_backend: Option<Outcome>,
    /// What came of it as a layer; its entry is called once for each backend that it wraps.
    as_layer: Vec<(*const DiBackendApi, Outcome)>,
}

// SAFETY: the pointers are compared, never read.
unsafe impl Send for Started {}

/// What came of a call of a plugin's entry.
struct Outcome {
    options: String,
    result: Result<&'static LoadedBackend, LoadError>,
}

impl Outcome {
    /// The backend of a start with these options, which happened before.
    fn again(&self, path: &Path, options: &str) -> Result<&'static LoadedBackend, LoadError> {
        if self.options != options && self.result.is_ok() {
            let (running, wanted) = (self.options.clone(), options.to_owned());
            return Err(LoadError::OtherOptions { path: path.to_owned(), running, wanted });
        }
        self.result.clone()
    }
}

/// Libraries whose entry was called, by device and inode: the dynamic linker, too, takes equal files for one library
/// whatever their paths.
static LIBRARIES: Mutex<Option<HashMap<(u64, u64), Started>>> = Mutex::new(None);

/// Loads a plugin and calls its entry with `options` (`key=value&key=value`, possibly empty). A file that is loaded
/// already gives the backend that it gave before.
///
/// The file's constructors and its entry run with all rights of this process: load only what you trust. If they abort,
/// fault or never return, so does the process; nothing here can contain that.
///
/// # Errors
/// See [`LoadError`]; none of them affects other plugins.
pub fn load(path: &Path, options: &str) -> Result<&'static LoadedBackend, LoadError> {
    with_library(path, |path, library| {
        if let Some(outcome) = &library.as_backend {
            return outcome.again(path, options);
        }
        if let Some(layer) = library.as_layer.iter().find_map(|(_, outcome)| outcome.result.as_ref().ok()) {
            let name = layer.layers.first().map(|layer| layer.name.clone()).unwrap_or_default();
            return Err(LoadError::IsALayer { path: path.to_owned(), name });
        }
        let result =
            shake_hands(path, library.entry, options, None).and_then(|reply| keep(path, &reply, options, None));
        library.as_backend = Some(Outcome { options: options.to_owned(), result: result.clone() });
        result
    })
}

/// As [`load`]; the name must be that of the manifest.
pub(crate) fn load_described(
    path: &Path,
    options: &str,
    manifest: &Manifest,
) -> Result<&'static LoadedBackend, LoadError> {
    let backend = load(path, options)?;
    check_against(manifest, path, &backend.name)?;
    Ok(backend)
}

/// Puts a layer over `inner`. The same layer with the same options gives what it gave before.
///
/// # Errors
/// See [`LoadError`].
pub(crate) fn wrap(
    path: &Path,
    manifest: Option<&Manifest>,
    options: &str,
    inner: &'static LoadedBackend,
) -> Result<&'static LoadedBackend, LoadError> {
    let wrapped = with_library(path, |path, library| {
        if let Some(Ok(backend)) = library.as_backend.as_ref().map(|outcome| &outcome.result) {
            return Err(LoadError::IsNoLayer { path: path.to_owned(), name: backend.name.clone() });
        }
        if let Some((_, outcome)) = library.as_layer.iter().find(|(next, _)| *next == inner.own_api) {
            return outcome.again(path, options);
        }
        let reply = shake_hands(path, library.entry, options, Some(inner));
        if let Some(reply) = reply.as_ref().ok().filter(|reply| reply.flags & DI_RF_IS_LAYER == 0) {
            // It has overlooked what it was to wrap, and has started.
            let result = keep(path, reply, options, None);
            library.as_backend = Some(Outcome { options: options.to_owned(), result });
            return Err(LoadError::IsNoLayer { path: path.to_owned(), name: name_of(reply) });
        }
        let result = reply.and_then(|reply| keep(path, &reply, options, Some(inner)));
        library.as_layer.push((inner.own_api, Outcome { options: options.to_owned(), result: result.clone() }));
        result
    })?;
    if let (Some(manifest), Some(layer)) = (manifest, wrapped.layers.first()) {
        check_against(manifest, path, &layer.name)?;
    }
    Ok(wrapped)
}

fn check_against(manifest: &Manifest, path: &Path, said: &str) -> Result<(), LoadError> {
    if manifest.name == said {
        return Ok(());
    }
    let (wanted, said) = (manifest.name.clone(), said.to_owned());
    Err(LoadError::OtherName { path: path.to_owned(), manifest: manifest.path.clone(), wanted, said })
}

/// Every backend that was loaded, layers before what they wrap.
pub(crate) fn loaded() -> Vec<&'static LoadedBackend> {
    let libraries = LIBRARIES.lock().unwrap_or_else(PoisonError::into_inner);
    let outcomes = libraries
        .iter()
        .flat_map(HashMap::values)
        .flat_map(|library| library.as_backend.iter().chain(library.as_layer.iter().map(|(_, outcome)| outcome)));
    let mut all: Vec<_> = outcomes.filter_map(|outcome| outcome.result.as_ref().ok().copied()).collect();
    all.sort_by_key(|backend| std::cmp::Reverse(backend.layers.len()));
    all
}

/// The backend of a successful reply, kept as long as the process.
fn keep(
    path: &Path,
    reply: &DiEntryReply,
    options: &str,
    inner: Option<&'static LoadedBackend>,
) -> Result<&'static LoadedBackend, LoadError> {
    let backend = read_reply(path, reply, options, inner)
        .map_err(|problem| LoadError::Malformed { path: path.to_owned(), problem })?;
    tracing::debug!("{backend:?} is loaded: {} op implementations, build {}", backend.ops.len(), backend.build);
    if let Some(difference) = backend.other_catalogue() {
        tracing::debug!("{backend:?} is {difference}");
    }
    Ok(Box::leak(Box::new(backend)))
}

/// Opens the library at `path` unless it is open, and calls `act` with its true path.
fn with_library<T>(path: &Path, act: impl FnOnce(&Path, &mut Started) -> Result<T, LoadError>) -> Result<T, LoadError> {
    let unreadable = |e: std::io::Error| LoadError::Unreadable { path: path.to_owned(), reason: e.to_string() };
    // An absolute path also keeps the dynamic linker from searching its own folders for a bare file name.
    let path = &path.canonicalize().map_err(unreadable)?;
    let meta = path.metadata().map_err(unreadable)?;
    let identity = (meta.dev(), meta.ino());

    let mut libraries = LIBRARIES.lock().unwrap_or_else(PoisonError::into_inner);
    let libraries = libraries.get_or_insert_default();
    if let Some(library) = libraries.get_mut(&identity) {
        return act(path, library);
    }
    let library = Started { entry: open(path)?, as_backend: None, as_layer: Vec::new() };
    act(path, libraries.entry(identity).or_insert(library))
}

/// Maps the library and finds its entry.
pub(crate) fn open(path: &Path) -> Result<DiEntryFn, LoadError> {
    let owned = path.to_owned();
    elf::check(path).map_err(|error| match error {
        ElfError::Unreadable(reason) => LoadError::Unreadable { path: owned, reason },
        ElfError::Other(reason) => LoadError::NotALibrary { path: owned, reason },
        ElfError::CutOff(problem) => LoadError::CutOff { path: owned, problem },
    })?;
    tracing::debug!("loading {}", path.display());
    // SAFETY: loading runs constructors of the file, which is what loading a plugin means; `load` says so.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }
        .map_err(|e| LoadError::NotALibrary { path: path.to_owned(), reason: linker_text(&e) })?;
    // Never closed: the plugin may have started threads, and thread-local destructors of it may be pending.
    let library = Box::leak(Box::new(library));
    // SAFETY: the name is reserved for this type, in every version of the ABI.
    let symbol = unsafe { library.get::<DiEntryFn>(DI_ENTRY_SYMBOL) };
    symbol.map(|entry| *entry).map_err(|_| LoadError::NotAPlugin { path: path.to_owned() })
}

fn linker_text(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// Calls the entry; gives its reply if it is a success. With `inner` the plugin is to be a layer over that.
fn shake_hands(
    path: &Path,
    entry: DiEntryFn,
    options: &str,
    inner: Option<&'static LoadedBackend>,
) -> Result<DiEntryReply, LoadError> {
    tracing::debug!("starting {}", path.display());
    let request = DiEntryRequest {
        struct_size: size_of::<DiEntryRequest>() as u32,
        min_major: DI_ABI_MAJOR,
        max_major: DI_ABI_MAJOR,
        minor: DI_ABI_MINOR,
        min_plugin_minor: 0,
        reserved0: 0,
        host: host::table(),
        next: inner.map_or(std::ptr::null(), |inner| inner.own_api),
        options: lend_text(options),
        ext: std::ptr::null(),
    };
    let none = DiStr { ptr: std::ptr::null(), len: 0 };
    let mut reply = DiEntryReply {
        struct_size: size_of::<DiEntryReply>() as u32,
        major: DI_ABI_MAJOR,
        minor: 0,
        min_core_minor: 0,
        reserved0: 0,
        flags: 0,
        name: none,
        version: none,
        build: none,
        api: std::ptr::null(),
        error: std::ptr::null_mut(),
    };
    // SAFETY: the symbol has this type; both structs are complete and live for the call.
    let code = unsafe { entry(&raw const request, &raw mut reply) };
    // SAFETY: null, or an error object that the entry hands over.
    let error = unsafe { take_error(reply.error) };

    let said = error.as_ref().map(|e| one_line(&e.message)).unwrap_or_default();
    let version = |plugin: String| LoadError::Version {
        path: path.to_owned(),
        plugin,
        core: format!("{DI_ABI_MAJOR}.{DI_ABI_MINOR}"),
        said: said.clone(),
    };
    // The head of the reply is the same in every major, so that this much can always be told.
    if reply.major != DI_ABI_MAJOR {
        return Err(version(format!("{}.{}", reply.major, reply.minor)));
    }
    if code == 0 && reply.min_core_minor > DI_ABI_MINOR {
        return Err(version(format!("{}.{} or later", reply.major, reply.min_core_minor)));
    }
    // A layer that is asked for a backend may decline or not: the sentence is the same.
    if reply.flags & DI_RF_IS_LAYER != 0 && inner.is_none() {
        return Err(LoadError::IsALayer { path: path.to_owned(), name: name_of(&reply) });
    }
    if code != 0 || error.is_some() {
        let reason = error.map_or_else(|| format!("it gave no reason, only the code {code}"), |e| e.to_string());
        return Err(LoadError::Refused { path: path.to_owned(), name: name_of(&reply), reason });
    }
    Ok(reply)
}

/// The name in a reply, for messages.
fn name_of(reply: &DiEntryReply) -> String {
    // SAFETY: a text of the reply, alive as long as the library, if it is set at all.
    one_line(&unsafe { read_text_lossy(reply.name) })
}

/// The backend that a successful reply describes, or what is wrong with the description.
fn read_reply(
    path: &Path,
    reply: &DiEntryReply,
    options: &str,
    inner: Option<&'static LoadedBackend>,
) -> Result<LoadedBackend, String> {
    // SAFETY: texts and tables of a successful reply live as long as the library, which is never unloaded.
    unsafe {
        let text = |what: &str, text: DiStr| read_text(text).map_err(|problem| format!("its {what} {problem}"));
        let name = text("name", reply.name)?;
        check_name(&name)?;
        let (version, build) = (text("version", reply.version)?, text("build", reply.build)?);
        let api = read_sized::<DiBackendApi>(reply.api).map_err(|problem| format!("the backend table {problem}"))?;
        let runtime =
            read_sized::<DiRuntimeApi>(api.runtime).map_err(|problem| format!("the runtime table {problem}"))?;
        check_functions(&runtime)?;
        let ops = read_ops(&api)?;
        let new = LoadedBackend {
            path: path.to_owned(),
            abi: (reply.major, reply.minor),
            raw: api.backend,
            table: api.table,
            shutdown: api.shutdown,
            own_api: reply.api,
            reply_flags: reply.flags,
            min_core_minor: reply.min_core_minor,
            layers: Vec::new(),
            life: Default::default(),
            name,
            version,
            build,
            runtime,
            ops,
        };
        let Some(inner) = inner else { return Ok(new) };
        if new.shutdown.is_none() {
            return Err("a layer without a shutdown function could not end what it wraps".to_owned());
        }
        // What the user selected is still the backend; only the calls go through the layer.
        let layer = LayerInfo { name: new.name, version: new.version, path: new.path, options: options.to_owned() };
        Ok(LoadedBackend {
            name: inner.name.clone(),
            version: inner.version.clone(),
            build: inner.build.clone(),
            path: inner.path.clone(),
            // A layer passes on what it sees.
            abi: (inner.abi.0, inner.abi.1.min(new.abi.1)),
            layers: std::iter::once(layer).chain(inner.layers.iter().cloned()).collect(),
            life: std::sync::Arc::clone(&inner.life),
            ..new
        })
    }
}

/// Refuses names that nobody could select, or that would garble what is printed.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    let problem = match name {
        "" => "it is empty",
        "auto" => "that word means the best backend",
        _ if name.contains(['/', ':', '?']) => "it contains one of / : ?",
        _ if name.contains(|c: char| is_treacherous(c) || c.is_whitespace()) => {
            "it contains a space or control character"
        }
        _ => return Ok(()),
    };
    Err(format!("its name {name:?} cannot be selected: {problem}"))
}

/// Refuses a runtime table with a gap. A plugin whose table is shorter than ours has gaps at its end.
fn check_functions(runtime: &DiRuntimeApi) -> Result<(), String> {
    macro_rules! absent {
        ($($function:ident),* $(,)?) => {
            [$((stringify!($function), runtime.$function.is_none())),*]
        };
    }
    let missing: Vec<&str> = absent![
        device_count,
        device_info,
        device_open,
        device_close,
        device_mem_info,
        alloc,
        free_,
        stream_create,
        stream_destroy,
        stream_sync,
        event_create,
        event_destroy,
        event_record,
        event_wait,
        event_query,
        event_sync,
        copy,
        fill,
    ]
    .into_iter()
    .filter_map(|(name, absent)| absent.then_some(name))
    .collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("the runtime table lacks {}", missing.join(", "))) }
}

/// Copies the op table, entry by entry at the plugin's own stride.
///
/// # Safety
/// `api.ops` has `n_ops` entries at a distance of `op_stride` bytes.
unsafe fn read_ops(api: &DiBackendApi) -> Result<Vec<OpImpl>, String> {
    let (count, stride) = (api.n_ops, api.op_stride);
    if count == 0 {
        return Ok(Vec::new());
    }
    if api.ops.is_null() {
        return Err(format!("{count} op entries are at no address"));
    }
    if stride % align_of::<DiOpEntry>() != 0 || count.checked_mul(stride).is_none_or(|b| b > isize::MAX as usize) {
        return Err(format!("{count} op entries at a distance of {stride} bytes are impossible"));
    }
    (0..count)
        .map(|index| {
            // SAFETY: within the table by the caller's contract; the texts live as long as the library.
            unsafe { read_op(api.ops.cast::<c_void>().byte_add(index * stride).cast(), stride) }
                .map_err(|problem| format!("op entry {index} of {count} {problem}"))
        })
        .collect()
}

/// # Safety
/// `at` points to an entry whose `struct_size` bytes are readable.
unsafe fn read_op(at: *const DiOpEntry, stride: usize) -> Result<OpImpl, String> {
    // SAFETY: the same contract.
    let entry = unsafe { read_sized(at) }?;
    if entry.struct_size as usize > stride {
        return Err(format!("has struct_size {}, but entries are {stride} bytes apart", entry.struct_size));
    }
    // SAFETY: texts of the entry live as long as the library.
    let (name, impl_name) = unsafe { (read_text(entry.name), read_text(entry.impl_name)) };
    let name = name.map_err(|problem| format!("has a name that {problem}"))?;
    let impl_name = impl_name.map_err(|problem| format!("({name}) has an implementation name that {problem}"))?;
    if entry.run.is_none() {
        return Err(format!("({name}) has no run function"));
    }
    if entry.plan.is_some() != entry.plan_destroy.is_some() {
        return Err(format!("({name}) has only one of plan and plan_destroy"));
    }
    Ok(OpImpl { name, impl_name, entry })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_cannot_be_selected() {
        for name in ["cpu", "my-npu_2", "größer"] {
            assert_eq!(check_name(name), Ok(()));
        }
        for (name, part) in [
            ("", "it is empty"),
            ("auto", "the best"),
            ("a/b", "/ : ?"),
            ("a:1", "/ : ?"),
            ("a?b", "/ : ?"),
            ("a b", "space"),
        ] {
            let problem = check_name(name).unwrap_err();
            assert!(problem.contains(part) && problem.contains(&format!("{name:?}")), "{problem}");
        }
        assert_eq!(check_name("\u{1b}[31m").unwrap_err().matches('\u{1b}').count(), 0);
    }

    #[test]
    fn a_refusal_without_a_name_is_still_a_sentence() {
        let of = |name: &str| {
            let (path, reason) = ("x.so".into(), "no licence".to_owned());
            LoadError::Refused { path, name: name.to_owned(), reason }.to_string()
        };
        assert_eq!(of(""), "x.so: the plugin refused to start: no licence");
        assert_eq!(of("npu"), "x.so: the plugin npu refused to start: no licence");
    }
}
