//! Files for dumps of the flight recorder.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Names that are tried for a dump before it is given up.
const MOST_NAMES: u32 = 10_000;

/// Why there is no dump.
#[derive(Debug, thiserror::Error)]
#[error("the flight recorder cannot write to {}: {source}; DEEPINFER_FLIGHT_RECORDER names another directory", path.display())]
pub struct DumpError {
    /// File, or directory if no file could be made there.
    pub path: PathBuf,
    /// What the system says.
    pub source: io::Error,
}

/// Writes a new file `deepinfer-flight-PID-N.jsonl` in `directory` and returns its path. Nothing that is there is replaced, and
/// no link is followed: the directory may be one that everybody writes to. Only its owner can read it.
pub(crate) fn write_new(
    directory: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<PathBuf, DumpError> {
    let (path, file) = create(directory)?;
    let mut out = BufWriter::new(file);
    match write(&mut out).and_then(|()| out.flush()) {
        Ok(()) => Ok(path),
        Err(source) => Err(DumpError { path, source }),
    }
}

fn create(directory: &Path) -> Result<(PathBuf, File), DumpError> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    for number in 1..=MOST_NAMES {
        let path = directory.join(format!("deepinfer-flight-{}-{number}.jsonl", std::process::id()));
        match options.open(&path) {
            Ok(file) => return Ok((path, file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(source) => return Err(DumpError { path: directory.to_owned(), source }),
        }
    }
    let source = io::Error::new(io::ErrorKind::AlreadyExists, format!("it holds {MOST_NAMES} dumps of this process"));
    Err(DumpError { path: directory.to_owned(), source })
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn nothing_is_replaced_and_no_link_followed() {
        let directory = tempfile::tempdir().expect("a directory");
        let name = |number| directory.path().join(format!("deepinfer-flight-{}-{number}.jsonl", std::process::id()));
        let elsewhere = directory.path().join("elsewhere");
        fs::write(name(1), "mine").expect("a file");
        symlink(&elsewhere, name(2)).expect("a link to nothing");
        let path = write_new(directory.path(), |out| out.write_all(b"dump")).expect("a dump");
        assert_eq!(path, name(3));
        assert_eq!(fs::read(&path).expect("the dump"), b"dump");
        assert_eq!(fs::metadata(&path).expect("the dump").permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read(name(1)).expect("the file"), b"mine");
        assert!(!elsewhere.exists());
    }

    #[test]
    fn a_directory_that_is_not_there_is_named() {
        let error = write_new(Path::new("/nonexistent/flights"), |_| Ok(())).expect_err("no directory");
        assert!(error.to_string().contains("/nonexistent/flights: No such file"), "{error}");
    }
}
