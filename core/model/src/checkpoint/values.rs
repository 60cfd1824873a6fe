//! Values that no weight may have.
//!
//! A NaN in one weight need not reach the logits: choices such as the top-k of the indexer pass over it, and the text goes on
//! without what it should have read. So every value is looked at once, while it is copied to the device.

use super::dtype::StoredDtype;
use super::error::CheckpointError;
use super::reader::Checkpoint;

impl Checkpoint {
    /// Refuses the tensor `name` if it holds NaN or infinity. Reads all of it.
    ///
    /// # Errors
    /// [`CheckpointError::NotFinite`] with the place of the first such value.
    pub fn reject_non_finite(&self, name: &str) -> Result<(), CheckpointError> {
        let Some(stored) = self.get(name) else { return Ok(()) };
        let Some(index) = first_non_finite(stored.dtype, stored.bytes) else { return Ok(()) };
        let file = self.file_of(name).unwrap_or_default();
        Err(CheckpointError::NotFinite { file, tensor: name.to_owned(), dtype: stored.dtype, index })
    }
}

/// Place of the first value that is NaN or infinite.
fn first_non_finite(dtype: StoredDtype, bytes: &[u8]) -> Option<usize> {
    let (size, is_bad): (usize, fn(&[u8]) -> bool) = match dtype {
        StoredDtype::F8E8M0 => (1, |b| b[0] == 0xFF),
        StoredDtype::F8E4M3 => (1, |b| b[0] & 0x7F == 0x7F),
        StoredDtype::Bf16 => (2, |b| b[1] & 0x7F == 0x7F && b[0] & 0x80 == 0x80),
        StoredDtype::F32 => (4, |b| b[3] & 0x7F == 0x7F && b[2] & 0x80 == 0x80),
        // Every FP4 code is a number.
        StoredDtype::I8 | StoredDtype::Other(_) => return None,
    };
    // Blocks without an early exit are what the compiler turns into vector code; the place is looked for only then.
    const BLOCK: usize = 4096;
    for (block, values) in bytes.chunks(BLOCK).enumerate() {
        if values.chunks_exact(size).fold(false, |bad, value| bad | is_bad(value)) {
            let within = values.chunks_exact(size).position(is_bad).unwrap_or(0);
            return Some(block * BLOCK / size + within);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All `good` values pass in every place, and the first of each of the `bad` ones is named.
    fn check(dtype: StoredDtype, good: &[&[u8]], bad: &[&[u8]]) {
        let size = good[0].len();
        for place in [0, 1, 4095, 4096, 9999] {
            let mut bytes = vec![0; 10_000 * size];
            for value in good {
                bytes[place * size..][..size].copy_from_slice(value);
                assert_eq!(first_non_finite(dtype, &bytes), None, "{dtype} {value:?}");
            }
            for value in bad {
                bytes[place * size..][..size].copy_from_slice(value);
                assert_eq!(first_non_finite(dtype, &bytes), Some(place), "{dtype} {value:?}");
            }
        }
    }

    #[test]
    fn the_first_value_that_is_no_number_is_named() {
        check(StoredDtype::F8E8M0, &[&[0xFE], &[0]], &[&[0xFF]]);
        check(StoredDtype::F8E4M3, &[&[0x7E], &[0xFE]], &[&[0x7F], &[0xFF]]);
        check(StoredDtype::Bf16, &[&[0x7F, 0x7F], &[0xFF, 0x00]], &[&[0x80, 0x7F], &[0xC0, 0xFF]]);
        check(StoredDtype::F32, &[&[0xFF, 0xFF, 0x7F, 0x7F]], &[&[0, 0, 0x80, 0x7F], &[1, 0, 0xC0, 0xFF]]);
        assert_eq!(first_non_finite(StoredDtype::I8, &[0xFF; 64]), None);
    }
}
