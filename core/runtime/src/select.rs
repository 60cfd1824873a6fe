//! What the user asks for, and the backend and device that it means.

use std::path::PathBuf;

use crate::backend::{LoadedBackend, describe_missing, missing_ops};
use crate::decide::{Decision, Tried, Verdict, decide};
use crate::find::{Candidate, Origin, PATH_VARIABLE, SearchPath, privileges_are_raised};
use crate::implementations::{OpenError, OpenOptions};
use crate::layers::{LayerError, Layers};
use crate::load::LoadError;
use crate::one_line::one_line;
use crate::topology::pci_ids;
use crate::{OpenDevice, TEXT_PROFILE};

/// Selection of a backend, as [`Selection::parse`] reads it.
pub(crate) const VARIABLE: &str = "DEEPINFER_ACCELERATOR";

/// What stands for the best that works, in the place of a name.
pub(crate) const AUTO: &str = "auto";

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
            AUTO if head != AUTO || !options.is_empty() => {
                return Err(malformed("auto takes no device and no options; name a backend".to_owned()));
            }
            AUTO => Choice::Auto,
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
    #[error("there is no accelerator backend {name:?}{}{}", instead(nearest.as_deref()), because(rejected, searched))]
    UnknownName {
        /// Name.
        name: String,
        /// What there is, if its name is much like it: a backend, or `auto`.
        nearest: Option<String>,
        /// Candidates, each with what it is instead.
        rejected: Vec<Rejection>,
        /// Directories that were searched.
        searched: Vec<PathBuf>,
    },
    /// The file that was named is no usable plugin.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The file that was named was refused in another process.
    #[error("{0}")]
    RefusedElsewhere(String),
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
        /// Why.
        reason: Box<OpenError>,
    },
    /// A layer cannot be put over the backend.
    #[error(transparent)]
    Layer(#[from] LayerError),
    /// Trying a plugin ended the process that tried it, or never came to an end. Whoever loads it shares its fate.
    #[error("{}: {how}; a process that loads this plugin cannot contain that", path.display())]
    Fatal {
        /// File.
        path: PathBuf,
        /// What happened.
        how: String,
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

/// What was probably meant, as part of a sentence.
fn instead(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |name| format!("; perhaps {:?} is meant", one_line(name)))
}

/// The end of a sentence about candidates that do not fit.
fn because(rejected: &[Rejection], searched: &[PathBuf]) -> String {
    if rejected.is_empty() {
        let places: String =
            searched.iter().map(|folder| format!("\n  {}", one_line(&folder.display().to_string()))).collect();
        return format!(
            "; no plugin (*.deepinfer.json, lib*deepinfer_*.so) was found in{places}\n  or in {PATH_VARIABLE}"
        );
    }
    let reasons: String = rejected.iter().map(|r| format!("\n  {}", one_line(&r.reason))).collect();
    format!("; these plugins were found:{reasons}")
}

/// The plugins of this process.
#[derive(Clone, Debug)]
pub struct Runtime {
    search: SearchPath,
    layers: Layers,
}

impl Runtime {
    /// A runtime that searches `search` and puts no layer over a backend.
    pub fn new(search: SearchPath) -> Self {
        Self { search, layers: Layers::default() }
    }

    /// What programs want: [`SearchPath::from_environment`] and [`Layers::from_env`].
    ///
    /// # Errors
    /// `DEEPINFER_LAYERS` cannot be understood.
    pub fn from_environment() -> Result<Self, SelectError> {
        Ok(Self::new(SearchPath::from_environment()).with_layers(Layers::from_env()?))
    }

    /// The same with these layers over every backend that it selects.
    pub fn with_layers(self, layers: Layers) -> Self {
        Self { layers, ..self }
    }

    /// Where it searches.
    pub fn search(&self) -> &SearchPath {
        &self.search
    }

    /// What it puts over backends.
    pub fn layers(&self) -> &Layers {
        &self.layers
    }

    /// Opens a device of a backend that can run the text model (profile `v41-text`).
    ///
    /// # Errors
    /// As [`Runtime::select`]; the backend that was named lacks ops; the device does not open.
    pub fn open(&self, selection: &Selection) -> Result<OpenDevice, SelectError> {
        self.open_text(selection, None)
    }

    /// As [`Runtime::open`], with other options than the environment's.
    ///
    /// # Errors
    /// As [`Runtime::open`].
    pub fn open_with(&self, selection: &Selection, options: &OpenOptions) -> Result<OpenDevice, SelectError> {
        self.open_text(selection, Some(options))
    }

    fn open_text(&self, selection: &Selection, options: Option<&OpenOptions>) -> Result<OpenDevice, SelectError> {
        let (backend, device) = self.select_for_text(selection)?;
        let (name, path) = (backend.title(), backend.path().to_owned());
        let opened = match options {
            Some(options) => backend.open_with(device, options),
            None => backend.open(device),
        };
        opened.map_err(|reason| SelectError::Open { name, path, device, reason: Box::new(reason) })
    }

    /// As [`Runtime::select`], and the backend can run the text model.
    ///
    /// # Errors
    /// As [`Runtime::select`]; the backend that was named lacks ops.
    fn select_for_text(&self, selection: &Selection) -> Result<(&'static LoadedBackend, u32), SelectError> {
        let (backend, device) = self.select(selection)?;
        let missing = missing_ops(backend, TEXT_PROFILE);
        if missing.is_empty() {
            return Ok((backend, device));
        }
        let ops = missing.into_iter().map(str::to_owned).collect();
        Err(SelectError::MissingOps { name: backend.title(), path: backend.path().to_owned(), ops })
    }

    /// The backend and device that a selection means, with the layers over it; opens no device.
    ///
    /// `auto` takes the candidate of the highest priority that loads, has a device and implements the text profile;
    /// priorities come from manifests and are 0 without one. Among equals, devices go before the host's own processor, then
    /// the search path decides. Candidates of a lower priority are not loaded, nor are those of which a manifest names
    /// PCI devices that this machine does not have. Why others were passed over is logged: with a warning if the plugin
    /// comes from a directory that the user named and is broken or incomplete, rather than without a device here.
    ///
    /// A name or path is never replaced by another backend, and a layer is never left out.
    ///
    /// # Errors
    /// Why the choice is impossible, with the reason for every candidate.
    pub fn select(&self, selection: &Selection) -> Result<(&'static LoadedBackend, u32), SelectError> {
        let candidates = self.candidates_for(selection);
        let mut loaded = vec![None; candidates.len()];
        let decision =
            decide(selection, &candidates, &self.search, pci_ids().as_deref(), &mut |index, options| match candidates
                [index]
                .load(options)
            {
                Ok(backend) => {
                    loaded[index] = Some(backend);
                    Tried::of(backend)
                }
                Err(LoadError::IsALayer { name, .. }) => Tried::Layer { name },
                Err(error) => Tried::Refused(error),
            });
        log(selection, &decision, &candidates);
        let chosen = decision.chosen?;
        let bare = loaded[chosen.index].expect("what is chosen was tried and has loaded");
        let backend = self.layers.wrap(bare, &self.search)?;
        if selection.choice == Choice::Auto || !self.layers.is_empty() {
            tracing::info!("selected: {backend:?}");
        }
        Ok((backend, chosen.device))
    }

    /// Candidates for a selection: a file that it names, or what the search finds.
    pub fn candidates_for(&self, selection: &Selection) -> Vec<Candidate> {
        match &selection.choice {
            Choice::Path(path) => vec![Candidate::of_path(path)],
            Choice::Auto | Choice::Name(_) => self.search.candidates(),
        }
    }

    /// As [`Runtime::select`], its log included, without loading anything here: `try_one` says what becomes of a candidate, by its index in
    /// [`Runtime::candidates_for`] and with the options that it is to get. For programs that try plugins in other
    /// processes, where one that ends its process is passed over like any other that is broken.
    pub fn decide(
        &self,
        selection: &Selection,
        candidates: &[Candidate],
        try_one: &mut dyn FnMut(usize, &str) -> Tried,
    ) -> Decision {
        let decision = decide(selection, candidates, &self.search, pci_ids().as_deref(), try_one);
        log(selection, &decision, candidates);
        decision
    }
}

/// Errors of an explicit choice tell all of this themselves.
fn log(selection: &Selection, decision: &Decision, candidates: &[Candidate]) {
    if selection.choice != Choice::Auto {
        return;
    }

    for (step, candidate) in decision.steps.iter().zip(candidates) {
        match &step.verdict {
            Verdict::PassedOver { reason, is_at_fault } => {
                if *is_at_fault && candidate.origin() == Origin::Named {
                    tracing::warn!("passed over: {}", one_line(reason));
                } else {
                    tracing::info!("passed over: {}", one_line(reason));
                }
            }
            Verdict::NotNeeded { reason } => tracing::debug!("not needed: {}", one_line(reason)),
            Verdict::Selected { .. } | Verdict::NotAsked => {}
        }
    }
}

/// Ends every backend of this process through its layers; see [`LoadedBackend::shutdown`]. Those with open devices stay.
/// What goes wrong is logged.
pub fn shutdown_all() {
    for backend in crate::load::loaded() {
        if let Err(error) = backend.shutdown() {
            tracing::warn!("{} does not shut down: {error}", backend.title());
        }
    }
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
