//! Where results go: standard output or a file.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, IsTerminal, Write, stdin, stdout};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::anyhow;

use crate::failure::Failure;

/// A place for results. Everything that is written goes out at once, so that a reader sees it as it comes and an
/// interrupted run loses nothing.
pub(crate) struct Output {
    name: String,
    sink: File,
    kind: Kind,
}

enum Kind {
    /// What was there stays: the caller's shell decides whether to append.
    Stdout,
    /// A file that is to be replaced.
    Existing,
    /// A file that was not there, to be removed again if nothing is put in it.
    New(PathBuf),
    /// A file that is being written.
    Begun,
}

impl Output {
    /// Standard output, by its descriptor: the standard library's own handle takes a descriptor that cannot be written for
    /// one that nobody wants.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub(crate) fn stdout() -> Result<Self, Failure> {
        let name = "standard output".to_owned();
        match stdout().as_fd().try_clone_to_owned() {
            Ok(descriptor) => Ok(Self { name, sink: descriptor.into(), kind: Kind::Stdout }),
            Err(e) => Err(Failure::of_write(&name, &e)),
        }
    }

    /// Opens the file at `path` for writing; `-` is standard output. What the file holds stays until [`Output::begin`];
    /// a file that was not there is gone again if it never comes to that.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn create(path: &Path) -> Result<Self, Failure> {
        if path == Path::new("-") {
            return Self::stdout();
        }
        let name = path.display().to_string();
        let opened = match OpenOptions::new().write(true).create_new(true).open(path) {
            Ok(sink) => Ok((sink, Kind::New(path.to_owned()))),
            // The second attempt may create it all the same, behind a symbolic link.
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {
                let existing = OpenOptions::new().write(true).create(true).truncate(false).open(path);
                existing.map(|sink| (sink, Kind::Existing))
            }
            Err(e) => Err(e),
        };
        match opened {
            Ok((sink, kind)) => Ok(Self { name, sink, kind }),
            Err(e) => Err(Failure::Input(anyhow!("cannot write {name}: {e}"))),
        }
    }

    /// The name by which it was opened.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether this is the file at `path`, by whatever name; `-` is standard input.
    pub(crate) fn is_file_at(&self, path: &Path) -> bool {
        let other = if path == Path::new("-") {
            stdin().as_fd().try_clone_to_owned().and_then(|descriptor| File::from(descriptor).metadata())
        } else {
            path.metadata()
        };
        let (Ok(own), Ok(other)) = (self.sink.metadata(), other) else { return false };
        own.is_file() && (own.dev(), own.ino()) == (other.dev(), other.ino())
    }

    /// Whether both are one file.
    pub(crate) fn is_same_file(&self, other: &Self) -> bool {
        let (Ok(own), Ok(other)) = (self.sink.metadata(), other.sink.metadata()) else { return false };
        own.is_file() && (own.dev(), own.ino()) == (other.dev(), other.ino())
    }

    /// Empties the file, now that there is something to put in it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn begin(&mut self) -> Result<(), Failure> {
        if matches!(self.kind, Kind::Stdout) {
            return Ok(());
        }
        self.kind = Kind::Begun;
        // Pipes and devices have nothing to empty.
        let emptied = self.sink.metadata().and_then(|meta| if meta.is_file() { self.sink.set_len(0) } else { Ok(()) });
        emptied.map_err(|e| Failure::of_write(&self.name, &e))
    }

    /// Writes `text`.
    ///
    /// # Errors
    /// The text cannot be written, or nobody reads it any more.
    pub(crate) fn write(&mut self, text: &str) -> Result<(), Failure> {
        self.sink.write_all(text.as_bytes()).map_err(|e| Failure::of_write(&self.name, &e))
    }

    /// Whether it is standard output.
    pub(crate) fn is_stdout(&self) -> bool {
        matches!(self.kind, Kind::Stdout)
    }

    /// The file itself, for one who writes to it without waiting for each piece to go out.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub(crate) fn file(&self) -> Result<File, Failure> {
        self.sink.try_clone().map_err(|e| Failure::of_write(&self.name, &e))
    }

    /// Whether results and progress bars share the screen.
    pub(crate) fn is_terminal(&self) -> bool {
        self.sink.is_terminal()
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Kind::New(path) = &self.kind {
            // If it cannot be removed, an empty file stays, which does no harm.
            let _ = std::fs::remove_file(path);
        }
    }
}
