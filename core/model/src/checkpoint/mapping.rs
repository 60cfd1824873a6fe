//! The bytes of a checkpoint file: a memory map, or data embedded in the binary.
//!
//! The one module of this crate with `unsafe` code, because mapping a file is: the compiler cannot know that nobody
//! changes the file while it is mapped.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::path::Path;

use memmap2::Mmap;

/// Read-only bytes of a whole file.
#[derive(Debug)]
pub(super) enum Bytes {
    Mapped(Mmap),
    Embedded(&'static [u8]),
}

impl Bytes {
    /// Maps the file at `path`. Pages are read when they are first touched.
    pub(super) fn map(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        // SAFETY: the map is private to this value and only read. Soundness needs the file to stay unchanged while it is
        // mapped; that is the documented condition of `Checkpoint::open`, as for every engine that maps its weights.
        let map = unsafe { Mmap::map(&file)? };
        Ok(Self::Mapped(map))
    }

    /// Tells the operating system that the pages of `range` will not be read soon. They stay valid and are read from the
    /// file again if needed, so a failure is without consequence and not reported.
    pub(super) fn release(&self, range: Range<usize>) {
        #[cfg(unix)]
        if let Self::Mapped(map) = self
            && !range.is_empty()
            && range.end <= map.len()
        {
            // SAFETY: `DontNeed` drops pages of a mapping that is read-only and backed by a file: the next access finds
            // the same bytes, so no reference into the map sees a change.
            let result =
                unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, range.start, range.len()) };
            if let Err(error) = result {
                tracing::debug!(%error, "could not release pages of a mapped checkpoint");
            }
        }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Embedded(bytes) => bytes,
        }
    }
}
