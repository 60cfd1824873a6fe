//! Choosing a backend and one of its devices.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::backend::{LoadedBackend, PluginError, describe_missing, missing_ops};
use crate::find::{PATH_VARIABLE, SearchPath, privileges_are_raised};
use crate::load::{LoadError, load};
use crate::one_line::one_line;
use crate::{OpenDevice, TEXT_PROFILE};

/// Selection of a backend, as [`Selection::parse`] reads it.
const VARIABLE: &str = "DEEPINFER_ACCELERATOR";

/// What the user asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// Which backend.
    pub choice: Choice,
    /// Which of its devices.
    pub device: u32,
    /// `key=value&key=value` for the plugin, or empty.
    pub options: String,
}

/// Which backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The best that works.
    Auto,
    /// The one of this name, found on the search path.
    Name(String),
    /// The one in this file.
    Path(PathBuf),
}

impl Default for Selection {
    fn default() -> Self {
        Self { choice: Choice::Auto, device: 0, options: String::new() }
    }
}

impl Selection {
    /// Reads `auto`, `NAME` or `PATH`, then optionally `:device`, then optionally `?key=value&key=value`. A text with a
    /// `/`, or that ends in `.so`, is a path.
    ///
    /// # Errors
    /// [`SelectError::Malformed`].
    pub fn parse(text: &str) -> Result<Self, SelectError> {
        let malformed = |problem: String| SelectError::Malformed { text: text.to_owned(), problem };
        let (head, options) = text.split_once('?').unwrap_or((text, ""));
        for pair in options.split('&').filter(|_| text.contains('?')) {
            if pair.split_once('=').is_none_or(|(key, _)| key.is_empty()) {
                return Err(malformed(format!("the option {pair:?} is not of the form key=value")));
            }
        }
        // A colon may also be part of a path; then what follows contains a slash or is the file name.
        let (target, device) = match head.rsplit_once(':') {
            Some((target, device)) if !device.contains('/') && !device.ends_with(".so") => {
                let index = device.parse().map_err(|_| {
                    malformed(format!("{device:?} is not the number of a device; one device can be chosen"))
                })?;
                (target, index)
            }
            _ => (head, 0),
        };
        let choice = match target {
            "" => return Err(malformed("the name of the backend is missing".to_owned())),
            "auto" if head != "auto" || !options.is_empty() => {
                return Err(malformed("auto takes no device and no options; name a backend".to_owned()));
            }
            "auto" => Choice::Auto,
            path if path.contains('/') || path.ends_with(".so") => Choice::Path(path.into()),
            name => Choice::Name(name.to_owned()),
        };
        Ok(Self { choice, device, options: options.to_owned() })
    }

    /// Reads the variable `DEEPINFER_ACCELERATOR`; `auto` when it is unset or empty, or when the process runs with raised
    /// privileges.
    ///
    /// # Errors
    /// [`SelectError::Malformed`].
    pub fn from_env() -> Result<Self, SelectError> {
        match std::env::var_os(VARIABLE).filter(|text| !text.is_empty() && !privileges_are_raised()) {
            Some(text) => Self::parse(&text.to_string_lossy()),
            None => Ok(Self::default()),
        }
    }
}

/// A candidate that was not taken.
#[derive(Clone, Debug)]
pub struct Rejection {
    /// File.
    pub path: PathBuf,
    /// Why, in one sentence that names the file.
    pub reason: String,
}

/// Why no backend could be chosen.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SelectError {
    /// The text is no selection.
    #[error("the accelerator {text:?} cannot be understood: {problem}")]
    Malformed {
        /// Text.
        text: String,
        /// What is wrong.
        problem: String,
    },
    /// The plugin of this name was refused.
    #[error("the accelerator backend {name:?} cannot be used: {reason}")]
    Refused {
        /// Name.
        name: String,
        /// Why, in one sentence that names the file.
        reason: String,
    },
    /// No candidate has the name.
    #[error("there is no accelerator backend {name:?}{}", because(rejected, searched))]
    UnknownName {
        /// Name.
        name: String,
        /// Candidates, each with what it is instead.
        rejected: Vec<Rejection>,
        /// Directories that were searched.
        searched: Vec<PathBuf>,
    },
    /// The file that was named is no usable plugin.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The backend that was named has no device.
    #[error("{}: the backend {name} has no device: {reason}", path.display())]
    NoDevice {
        /// Backend.
        name: String,
        /// Its file.
        path: PathBuf,
        /// Its reason.
        reason: String,
    },
    /// The backend that was named has other devices.
    #[error("{}: the backend {name} has no device {device}; it has {count}, counted from 0", path.display())]
    UnknownDevice {
        /// Backend.
        name: String,
        /// Its file.
        path: PathBuf,
        /// Device asked for.
        device: u32,
        /// Devices that there are.
        count: u32,
    },
    /// The backend that was named cannot run the model.
    #[error("{}: the backend {name} cannot run the model: it does not implement {}", path.display(),
        describe_missing(ops, TEXT_PROFILE))]
    MissingOps {
        /// Backend.
        name: String,
        /// Its file.
        path: PathBuf,
        /// Ops of the profile that it lacks.
        ops: Vec<String>,
    },
    /// The device does not open.
    #[error("{}: device {device} of the backend {name} cannot be opened: {reason}", path.display())]
    Open {
        /// Backend.
        name: String,
        /// Its file.
        path: PathBuf,
        /// Device.
        device: u32,
        /// The plugin's reason.
        reason: PluginError,
    },
    /// `auto` found nothing that works.
    #[error("no accelerator backend can run the model{}", because(rejected, searched))]
    NoneUsable {
        /// Candidates, each with the reason.
        rejected: Vec<Rejection>,
        /// Directories that were searched.
        searched: Vec<PathBuf>,
    },
}

/// The end of a sentence about candidates that do not fit.
fn because(rejected: &[Rejection], searched: &[PathBuf]) -> String {
    if rejected.is_empty() {
        let places: String =
            searched.iter().map(|folder| format!("\n  {}", one_line(&folder.display().to_string()))).collect();
        return format!("; no plugin (lib*deepinfer_*.so) was found in{places}\n  or in {PATH_VARIABLE}");
    }
    let reasons: String = rejected.iter().map(|r| format!("\n  {}", one_line(&r.reason))).collect();
    format!("; these plugins were found:{reasons}")
}

/// The plugins of this process.
#[derive(Clone, Debug)]
pub struct Runtime {
    search: SearchPath,
}

impl Runtime {
    /// A runtime that searches `search`; [`SearchPath::from_environment`] is what programs want.
    pub fn new(search: SearchPath) -> Self {
        Self { search }
    }

    /// Where it searches.
    pub fn search(&self) -> &SearchPath {
        &self.search
    }

    /// Opens a device of a backend that can run the text model (profile `v41-text`).
    ///
    /// # Errors
    /// As [`Runtime::select`]; the backend that was named lacks ops; the device does not open.
    pub fn open(&self, selection: &Selection) -> Result<OpenDevice, SelectError> {
        let (backend, device) = self.select(selection)?;
        let missing = missing_ops(backend, TEXT_PROFILE);
        let (name, path) = (backend.name().to_owned(), backend.path().to_owned());
        if !missing.is_empty() {
            let ops = missing.into_iter().map(str::to_owned).collect();
            return Err(SelectError::MissingOps { name, path, ops });
        }
        backend.open(device).map_err(|reason| SelectError::Open { name, path, device, reason })
    }

    /// The backend and device that a selection means; opens nothing.
    ///
    /// `auto` takes the first candidate that loads, has a device and implements the text profile, devices before the
    /// host's own processor, and logs why others were passed over: with a warning if it comes from a directory that the
    /// user named in `DEEPINFER_PLUGIN_PATH` and is broken or incomplete, rather than without a device here. A name or path is never replaced by another backend.
    ///
    /// # Errors
    /// Why the choice is impossible, with the reason for every candidate.
    pub fn select(&self, selection: &Selection) -> Result<(&'static LoadedBackend, u32), SelectError> {
        let backend = match &selection.choice {
            Choice::Auto => return self.select_auto(),
            Choice::Path(path) => load(path, &selection.options)?,
            Choice::Name(name) => self.find(name, &selection.options)?,
        };
        let (name, path) = (backend.name().to_owned(), backend.path().to_owned());
        let device = selection.device;
        match device_count(backend) {
            Err(reason) => Err(SelectError::NoDevice { name, path, reason }),
            Ok(count) if device >= count => Err(SelectError::UnknownDevice { name, path, device, count }),
            Ok(_) => Ok((backend, device)),
        }
    }

    fn select_auto(&self) -> Result<(&'static LoadedBackend, u32), SelectError> {
        let (mut usable, mut rejected) = (Vec::new(), Vec::new());
        for path in self.search.candidates() {
            match usable_for_text(&path) {
                Ok(found) => usable.push(found),
                Err(Unfit { reason, is_at_fault }) => {
                    if is_at_fault && self.search.is_of_variable(&path) {
                        tracing::warn!("passed over: {}", one_line(&reason));
                    } else {
                        tracing::info!("passed over: {}", one_line(&reason));
                    }
                    rejected.push(Rejection { path, reason });
                }
            }
        }
        // Stable, so that the search path decides among equals.
        usable.sort_by_key(|&(_, is_cpu)| is_cpu);
        let Some(&(backend, _)) = usable.first() else {
            return Err(SelectError::NoneUsable { rejected, searched: self.search.directories().to_vec() });
        };
        tracing::info!("selected: {backend:?}");
        for (other, _) in &usable[1..] {
            tracing::debug!("not needed: {other:?}");
        }
        Ok((backend, 0))
    }

    /// The first candidate of a name: the backend's own, or the file's between `libdeepinfer_` and `.so`. Files whose own
    /// name contains it are tried first, so that other plugins are not loaded without need; only they get the options,
    /// which mean nothing to others.
    fn find(&self, name: &str, options: &str) -> Result<&'static LoadedBackend, SelectError> {
        let in_file = name.replace('-', "_");
        let (likely, others): (Vec<PathBuf>, Vec<PathBuf>) =
            self.search.candidates().into_iter().partition(|path| stem(path).contains(&in_file));
        let file_is_named = |path: &Path| stem(path).strip_prefix("libdeepinfer_") == Some(&in_file);
        let mut rejected = Vec::new();
        let likely = likely.into_iter().map(|path| (path, options));
        for (path, options) in likely.chain(others.into_iter().map(|path| (path, ""))) {
            let reason = match load(&path, options) {
                Ok(backend) if backend.name() == name || file_is_named(&path) => return Ok(backend),
                Ok(backend) => format!("{}: this is the backend {}", path.display(), backend.name()),
                Err(e) => e.to_string(),
            };
            rejected.push(Rejection { path, reason });
        }
        // A plugin that calls itself so, but does not start, is the one that was meant.
        let meant =
            |r: &&Rejection| file_is_named(&r.path) || stem(&r.path).starts_with(&format!("libdeepinfer_{in_file}_"));
        if let Some(refused) = rejected.iter().find(meant).filter(|r| !r.reason.contains("this is the backend")) {
            return Err(SelectError::Refused { name: name.to_owned(), reason: refused.reason.clone() });
        }
        let searched = self.search.directories().to_vec();
        Err(SelectError::UnknownName { name: name.to_owned(), rejected, searched })
    }
}

/// Why `auto` does not take a candidate.
struct Unfit {
    /// One sentence that names the file.
    reason: String,
    /// The plugin is broken or incomplete; otherwise this machine merely has no device for it.
    is_at_fault: bool,
}

/// Loads a candidate of `auto`; also says whether its first device is the host's processor.
fn usable_for_text(path: &Path) -> Result<(&'static LoadedBackend, bool), Unfit> {
    let faulty = |reason: String| Unfit { reason, is_at_fault: true };
    let backend = load(path, "").map_err(|e| faulty(e.to_string()))?;
    let describe = |text: fmt::Arguments<'_>| format!("{}: {text}", path.display());
    let name = backend.name();
    device_count(backend).map_err(|reason| Unfit {
        reason: describe(format_args!("the backend {name} has no device: {reason}")),
        is_at_fault: false,
    })?;
    let missing = missing_ops(backend, TEXT_PROFILE);
    if !missing.is_empty() {
        let missing = describe_missing(&missing, TEXT_PROFILE);
        return Err(faulty(describe(format_args!("the backend {name} does not implement {missing}"))));
    }
    let first = backend
        .device_info(0)
        .map_err(|e| faulty(describe(format_args!("the backend {name} cannot describe its first device: {e}"))))?;
    Ok((backend, first.is_cpu()))
}

/// Number of devices, at least 1, or why there is none.
fn device_count(backend: &LoadedBackend) -> Result<u32, String> {
    match backend.device_count() {
        Ok(0) => Err("it found none".to_owned()),
        Ok(count) => Ok(count),
        Err(error) => Err(error.to_string()),
    }
}

fn stem(path: &Path) -> String {
    path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selections() {
        let of = |choice, device, options: &str| Selection { choice, device, options: options.to_owned() };
        let name = |n: &str| Choice::Name(n.to_owned());
        let path = |p: &str| Choice::Path(p.into());
        for (text, wanted) in [
            ("auto", of(Choice::Auto, 0, "")),
            ("cpu", of(name("cpu"), 0, "")),
            ("nvidia:3", of(name("nvidia"), 3, "")),
            ("cpu?threads=2&mode=a=b", of(name("cpu"), 0, "threads=2&mode=a=b")),
            ("/opt/x/libx.so:1?mode=sim", of(path("/opt/x/libx.so"), 1, "mode=sim")),
            ("libx.so", of(path("libx.so"), 0, "")),
            ("/opt/a:b/libx.so", of(path("/opt/a:b/libx.so"), 0, "")),
            ("./plugin", of(path("./plugin"), 0, "")),
        ] {
            assert_eq!(Selection::parse(text).unwrap(), wanted, "{text}");
        }
    }

    #[test]
    fn malformed_selections_say_what_is_wrong() {
        for (text, part) in [
            ("", "missing"),
            (":1", "missing"),
            ("nvidia:0-7", "\"0-7\" is not the number of a device"),
            ("nvidia:", "\"\" is not the number"),
            ("cpu?threads", "\"threads\" is not of the form key=value"),
            ("cpu?", "key=value"),
            ("auto:1", "auto takes no device"),
            ("auto?a=b", "auto takes no device and no options"),
        ] {
            let error = Selection::parse(text).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains(&format!("{text:?}")), "{text:?}: {error}");
        }
    }
}
