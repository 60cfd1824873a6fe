//! Copies and fills of plain memory.

#![allow(unsafe_code)]

use std::ffi::c_void;

/// Copies `bytes`; the ranges may overlap.
///
/// # Safety
/// `bytes` are readable at `src` and writable at `dst`.
pub(crate) unsafe fn copy(dst: *mut c_void, src: *const c_void, bytes: u64) {
    // A null pointer is allowed with nothing to copy, but not to `ptr::copy`.
    if bytes > 0 {
        // SAFETY: the caller's contract; what is addressable fits `usize`.
        unsafe { std::ptr::copy(src.cast::<u8>(), dst.cast::<u8>(), bytes as usize) };
    }
}

/// Writes `count` times the low `pattern_bytes` (1, 2 or 4) of `pattern`, lowest byte first.
///
/// # Safety
/// `count * pattern_bytes` bytes are writable at `dst`.
pub(crate) unsafe fn fill(dst: *mut c_void, pattern: u32, pattern_bytes: u32, count: u64) {
    if count == 0 {
        return;
    }
    let bytes = pattern_bytes as usize;
    // SAFETY: the caller's contract; nobody else uses the range during the call.
    let range = unsafe { std::slice::from_raw_parts_mut(dst.cast::<u8>(), count as usize * bytes) };
    let pattern = pattern.to_le_bytes();
    range.chunks_exact_mut(bytes).for_each(|chunk| chunk.copy_from_slice(&pattern[..bytes]));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_may_overlap() {
        let mut bytes: Vec<u8> = (0..10).collect();
        let base = bytes.as_mut_ptr();
        // SAFETY: both ranges lie within the vector.
        unsafe { copy(base.add(2).cast(), base.cast(), 8) };
        assert_eq!(bytes, [0, 1, 0, 1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn patterns_are_little_endian() {
        let mut bytes = [0_u8; 9];
        for (width, expected) in [(1, [4_u8, 4, 4, 4]), (2, [4, 3, 4, 3]), (4, [4, 3, 2, 1])] {
            // SAFETY: eight of the nine bytes, from an odd address on.
            unsafe { fill(bytes.as_mut_ptr().add(1).cast(), 0x0102_0304, width, 8 / u64::from(width)) };
            assert_eq!((bytes[0], &bytes[1..5], &bytes[5..9]), (0, &expected[..], &expected[..]));
        }
    }
}
