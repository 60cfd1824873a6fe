//! The list of mistakes, and a copy of the kernels with one of them.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// A mistake: a text of a file of `kernels/` that occurs once, and what stands there instead.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mutant {
    /// The file whose image is built: `kernels/KERNEL.cpp`.
    pub(crate) kernel: String,
    /// The file with the mistake, if it is another one, which the kernel includes.
    file: Option<String>,
    name: String,
    find: String,
    replace: String,
    /// The op whose cases notice it.
    pub(crate) ops: String,
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file.as_deref().unwrap_or(&self.kernel), self.name)
    }
}

impl Mutant {
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
struct File {
    mutant: Vec<Mutant>,
}

/// The mistakes of the backend that lies in a folder.
pub(crate) fn read(backend: &Path) -> Vec<Mutant> {
    let path = backend.join("mutants.toml");
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let file: File = toml::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    file.mutant
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
