//! Where results go: standard output or a file.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, IsTerminal, Write, stdout};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::anyhow;

use crate::failure::Failure;

/// A place for results. Everything that is written is flushed at once, so that a reader sees it as it comes and an
/// interrupted run loses nothing.
pub(crate) struct Output {
    name: String,
    sink: Sink,
}

enum Sink {
    Stdout,
    File(File),
}

impl Output {
    pub(crate) fn stdout() -> Self {
        Self { name: "standard output".to_owned(), sink: Sink::Stdout }
    }

    /// Opens the file at `path` for writing; `-` is standard output. What the file holds stays until [`Output::begin`].
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn create(path: &Path) -> Result<Self, Failure> {
        if path == Path::new("-") {
            return Ok(Self::stdout());
        }
        let name = path.display().to_string();
        match OpenOptions::new().write(true).create(true).truncate(false).open(path) {
            Ok(file) => Ok(Self { name, sink: Sink::File(file) }),
            Err(e) => Err(Failure::Input(anyhow!("cannot write {name}: {e}"))),
        }
    }

    /// Whether this is the regular file at `path`, by whatever name.
    pub(crate) fn is_file_at(&self, path: &Path) -> bool {
        let Sink::File(file) = &self.sink else { return false };
        let (Ok(own), Ok(other)) = (file.metadata(), path.metadata()) else { return false };
        own.is_file() && (own.dev(), own.ino()) == (other.dev(), other.ino())
    }

    /// Empties the file, now that there is something to put in it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn begin(&mut self) -> Result<(), Failure> {
        let Sink::File(file) = &self.sink else { return Ok(()) };
        // Pipes and devices have nothing to empty.
        let emptied = file.metadata().and_then(|meta| if meta.is_file() { file.set_len(0) } else { Ok(()) });
        emptied.map_err(|e| self.failure(&e))
    }

    /// Writes `text` and flushes it.
    ///
    /// # Errors
    /// The text cannot be written, or nobody reads it any more.
    pub(crate) fn write(&mut self, text: &str) -> Result<(), Failure> {
        let written = match &mut self.sink {
            Sink::Stdout => {
                let mut stdout = stdout().lock();
                stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush())
            }
            Sink::File(file) => file.write_all(text.as_bytes()),
        };
        written.map_err(|e| self.failure(&e))
    }

    /// Whether results and progress bars share the screen.
    pub(crate) fn is_terminal(&self) -> bool {
        match &self.sink {
            Sink::Stdout => stdout().is_terminal(),
            Sink::File(file) => file.is_terminal(),
        }
    }

    fn failure(&self, error: &std::io::Error) -> Failure {
        match error.kind() {
            ErrorKind::BrokenPipe => Failure::ReaderGone,
            _ => Failure::Fault(anyhow!("cannot write {}: {error}", self.name)),
        }
    }
}
