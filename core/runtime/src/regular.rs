//! Opening files that may be anything.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// `O_NONBLOCK` of Linux, where processors differ.
const NON_BLOCKING: i32 = if cfg!(any(target_arch = "mips", target_arch = "mips64")) {
    0o200
} else if cfg!(target_arch = "sparc64") {
    0o40000
} else {
    0o4000
};

/// Opens a regular file for reading; `None` for a directory, a device or a pipe. It waits for nobody: neither for the other
/// end of a pipe, nor, since the open file is asked and not its name, when the name changes its meaning meanwhile.
///
/// # Errors
/// It cannot be opened.
pub fn open_regular(path: &Path) -> io::Result<Option<File>> {
    let file = OpenOptions::new().read(true).custom_flags(NON_BLOCKING).open(path)?;
    Ok(file.metadata()?.is_file().then_some(file))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_pipe_without_a_writer_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert!(open_regular(&pipe).unwrap().is_none());
        assert!(open_regular(folder.path()).unwrap().is_none());
        assert!(open_regular(Path::new("/dev/zero")).unwrap().is_none());
        let file = folder.path().join("file");
        std::fs::write(&file, "x").unwrap();
        assert!(open_regular(&file).unwrap().is_some());
        assert!(open_regular(&folder.path().join("none")).is_err());
    }
}
