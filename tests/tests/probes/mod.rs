//! Counters of plugins in C.

use std::path::Path;

/// A counter of a plugin, read through the library that is already loaded.
#[allow(unsafe_code)]
pub(crate) fn probe(path: &Path, counter: &str) -> i32 {
    // SAFETY: the library is loaded and stays so; its counters are functions of this type.
    unsafe {
        let library = libloading::os::unix::Library::new(path).unwrap();
        let symbol = library.get::<unsafe extern "C" fn() -> i32>(counter).unwrap();
        symbol()
    }
}
