//! The list of mistakes and of spare orders, and a copy of the kernels with one of the mistakes.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// A mistake: a text of a file of `kernels/` that occurs once, and what stands there instead.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mutant {
    /// The file whose image is built: `kernels/KERNEL.cpp`.
    kernel: String,
    /// The file with the mistake, if it is another one, which the kernel includes.
    file: Option<String>,
    name: String,
    find: String,
    replace: String,
}

/// An order between instructions that may be left out: nothing notices it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Spare {
    /// Its file below `kernels/`.
    pub(crate) file: String,
    /// A text that occurs once in it, with this order alone.
    pub(crate) find: String,
    /// Why it stands there all the same.
    pub(crate) why: String,
}

/// Whose image is built, and what runs with it.
pub(crate) struct Subject {
    /// The file: `kernels/KERNEL.cpp`.
    pub(crate) kernel: String,
    /// The op whose cases run.
    pub(crate) op: String,
    /// Settings of the fake runtime with which they do.
    pub(crate) fake: &'static str,
}

impl Subject {
    /// A kernel file and the op that it is of. Copies and fills are no ops, and have tests of their own.
    pub(crate) fn of(kernel: &str) -> Option<Self> {
        let (op, fake) = match kernel {
            "copy" | "fill" => return None,
            // They prepare calls of the vendor's ops.
            "spread_scales" => ("linear", "opapi=all"),
            "expert_ends" => ("grouped_linear", "opapi=all"),
            op => (op, ""),
        };
        Some(Self { kernel: kernel.to_owned(), op: op.to_owned(), fake })
    }
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file.as_deref().unwrap_or(&self.kernel), self.name)
    }
}

impl Mutant {
    /// What notices it.
    ///
    /// # Panics
    /// If its kernel is of no op.
    pub(crate) fn subject(&self) -> Subject {
        Subject::of(&self.kernel).unwrap_or_else(|| panic!("{self}: {} is of no op", self.kernel))
    }

    /// The file below `kernels` that has the mistake, and its text with it.
    pub(crate) fn changed(&self, kernels: &Path) -> Result<(PathBuf, String), String> {
        let path = kernels.join(self.file.clone().unwrap_or_else(|| format!("{}.cpp", self.kernel)));
        let text = fs::read_to_string(&path).map_err(|error| format!("{self}: {}: {error}", path.display()))?;
        match text.matches(&self.find).count() {
            1 => Ok((path, text.replace(&self.find, &self.replace))),
            count => Err(format!("{self}: the text to be found must occur once, not {count} times: {:?}", self.find)),
        }
    }

    /// Makes the mistake in a copy of the kernels.
    pub(crate) fn make(&self, kernels: &Path) -> Result<(), String> {
        let (path, text) = self.changed(kernels)?;
        fs::write(path, text).map_err(|error| format!("{self}: {error}"))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct List {
    pub(crate) mutant: Vec<Mutant>,
    #[serde(default)]
    pub(crate) spare: Vec<Spare>,
}

/// The list of the backend that lies in a folder.
pub(crate) fn read(backend: &Path) -> List {
    let path = backend.join("mutants.toml");
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    toml::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Copies a folder and what lies in it.
pub(crate) fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}
