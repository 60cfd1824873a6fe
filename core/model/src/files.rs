//! Reading the files of a model directory, which may hold anything under the names that are looked for.

#![forbid(unsafe_code)]

use std::fs::{self, FileType};
use std::io;
use std::path::Path;

/// Whether there is a regular file at `path`, `false` if there is nothing. Anything else is not opened: a named pipe would
/// wait for a writer, and a device may never end.
///
/// # Errors
/// The path holds something else, or a symbolic link to nothing, or cannot be looked at.
pub(crate) fn is_there(path: &Path) -> io::Result<bool> {
    match fs::metadata(path) {
        Ok(found) if found.is_file() => Ok(true),
        Ok(found) => Err(io::Error::other(format!("it is {}, expected a regular file", kind(found.file_type())))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => match fs::read_link(path) {
            Ok(target) => Err(io::Error::other(format!(
                "it is a symbolic link to {}, which does not exist; copy or download the file again",
                target.display()
            ))),
            Err(_) => Ok(false),
        },
        Err(error) => Err(error),
    }
}

/// Text without the byte order mark that some editors put in front; JSON parsers do not expect one.
pub(crate) fn without_byte_order_mark(json: &[u8]) -> &[u8] {
    json.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(json)
}

fn kind(found: FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if found.is_fifo() {
            return "a named pipe";
        }
        if found.is_char_device() || found.is_block_device() {
            return "a device";
        }
        if found.is_socket() {
            return "a socket";
        }
    }
    if found.is_dir() { "a directory" } else { "no file" }
}
