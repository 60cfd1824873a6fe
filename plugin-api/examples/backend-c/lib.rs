//! A small backend in C (`src/*.c`), built when this crate is. The crate itself only says where the library is.

#![forbid(unsafe_code)]

use std::path::Path;

/// The shared library, or `None` if this machine had no C compiler when the crate was built.
pub fn library() -> Option<&'static Path> {
    let path = Path::new(env!("C_EXAMPLE_LIBRARY"));
    path.is_file().then_some(path)
}
