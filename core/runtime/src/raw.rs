//! Reading what a plugin wrote: structs that may be shorter or longer than ours, borrowed text, error objects.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use deepinfer_plugin_api::abi::{
    DiArgInfo, DiBackendApi, DiDeviceInfo, DiError, DiGraphApi, DiLinkInfo, DiOpEntry, DiOpInfo, DiOpsTable,
    DiPlanInfo, DiRuntimeApi, DiSpaceInfo, DiStr, DiSupport,
};

use crate::backend::PluginError;

/// Most bytes of a text; more are a wild length, or nothing for people to read.
const MOST_TEXT: usize = 1 << 16;

/// A C struct that begins with `struct_size: u32`.
///
/// # Safety
/// The struct is `repr(C)`, its first field is the `u32` named `struct_size`, and all-zero bytes are a valid value.
pub(crate) unsafe trait Sized32: Sized {}

// SAFETY: integers, raw pointers and optional functions, behind a `u32`; see `plugin-api`.
unsafe impl Sized32 for DiBackendApi {}
// SAFETY: as above.
unsafe impl Sized32 for DiRuntimeApi {}
// SAFETY: as above.
unsafe impl Sized32 for DiOpEntry {}
// SAFETY: as above.
unsafe impl Sized32 for DiError {}
// SAFETY: as above.
unsafe impl Sized32 for DiDeviceInfo {}
// SAFETY: as above.
unsafe impl Sized32 for DiPlanInfo {}
// SAFETY: as above.
unsafe impl Sized32 for DiSupport {}
// SAFETY: as above.
unsafe impl Sized32 for DiGraphApi {}
// SAFETY: as above.
unsafe impl Sized32 for DiSpaceInfo {}
// SAFETY: as above.
unsafe impl Sized32 for DiLinkInfo {}
// SAFETY: as above.
unsafe impl Sized32 for DiOpsTable {}
// SAFETY: as above.
unsafe impl Sized32 for DiOpInfo {}
// SAFETY: as above.
unsafe impl Sized32 for DiArgInfo {}

/// A zeroed struct that says how much of it we know, for a plugin to fill.
pub(crate) fn blank<T: Sized32>() -> T {
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: `Sized32` promises the `u32` at the start, and that the other bytes may be zero.
    unsafe {
        value.as_mut_ptr().cast::<u32>().write(size_of::<T>() as u32);
        value.assume_init()
    }
}

/// Copies a struct of the plugin: no more than it has, no more than we know; the rest is zero.
///
/// # Errors
/// What is wrong with it, as the end of a sentence: "the op table is at no address".
///
/// # Safety
/// A non-null, aligned `ptr` points to a struct of which `struct_size` bytes are readable.
pub(crate) unsafe fn read_sized<T: Sized32>(ptr: *const T) -> Result<T, String> {
    if ptr.is_null() {
        return Err("is at no address".to_owned());
    }
    if !ptr.is_aligned() {
        return Err(format!("is at {ptr:p}, which is not aligned to {} bytes", align_of::<T>()));
    }
    // SAFETY: `Sized32` puts the size first, and the caller vouches for the pointer.
    let size = unsafe { ptr.cast::<u32>().read() } as usize;
    if size < size_of::<u32>() {
        return Err(format!("has struct_size {size}, which does not even hold struct_size itself"));
    }
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: both sides hold the smaller of the two sizes; the bytes that are not copied stay zero, which is valid.
    unsafe {
        std::ptr::copy_nonoverlapping(ptr.cast::<u8>(), value.as_mut_ptr().cast::<u8>(), size.min(size_of::<T>()));
        Ok(value.assume_init())
    }
}

/// Text of a plugin.
///
/// # Errors
/// What is wrong with it, as the end of a sentence.
///
/// # Safety
/// A non-null `text.ptr` has `text.len` readable bytes.
pub(crate) unsafe fn read_text(text: DiStr) -> Result<String, String> {
    // SAFETY: the same contract.
    let bytes = unsafe { read_bytes(text) }.ok_or_else(|| format!("claims {} bytes at no address", text.len))?;
    if text.len > MOST_TEXT {
        return Err(format!("has {} bytes, but no text has more than {MOST_TEXT}", text.len));
    }
    String::from_utf8(bytes.to_vec()).map_err(|e| format!("is not UTF-8: {:?}", String::from_utf8_lossy(e.as_bytes())))
}

/// Text of a plugin for a message: invalid bytes are replaced, absent text is empty, and what is too long ends in `...`.
///
/// # Safety
/// As [`read_text`].
pub(crate) unsafe fn read_text_lossy(text: DiStr) -> String {
    // SAFETY: the same contract.
    let mut read = String::from_utf8_lossy(unsafe { read_bytes(text) }.unwrap_or_default()).into_owned();
    if text.len > MOST_TEXT && !read.is_empty() {
        read.push_str("...");
    }
    read
}

/// The first [`MOST_TEXT`] bytes at most; `None` for text at no address.
///
/// # Safety
/// As [`read_text`].
unsafe fn read_bytes<'a>(text: DiStr) -> Option<&'a [u8]> {
    if text.len == 0 {
        return Some(&[]);
    }
    if text.ptr.is_null() {
        return None;
    }
    // SAFETY: not null, of a possible length, and the caller vouches for the bytes.
    Some(unsafe { std::slice::from_raw_parts(text.ptr, text.len.min(MOST_TEXT)) })
}

/// Takes an error object over: copies what it says and releases it. `None` for null, which is success.
///
/// # Safety
/// `error` is null, or a live error object that nobody uses afterwards.
pub(crate) unsafe fn take_error(error: *mut DiError) -> Option<PluginError> {
    if error.is_null() {
        return None;
    }
    // SAFETY: the caller vouches for the object; its strings live until it is released, below and once.
    unsafe {
        let taken = match read_sized(error) {
            Ok(raw) => {
                let taken = PluginError {
                    code: raw.code,
                    flags: raw.flags,
                    vendor_code: raw.vendor_code,
                    message: read_text_lossy(raw.message),
                    origin: read_text_lossy(raw.origin),
                };
                if let Some(release) = raw.release {
                    release(error);
                }
                taken
            }
            // Too broken to be released.
            Err(problem) => PluginError {
                code: deepinfer_plugin_api::abi::DI_E_INTERNAL,
                flags: 0,
                vendor_code: 0,
                message: format!("the plugin's error object {problem}"),
                origin: String::new(),
            },
        };
        Some(taken)
    }
}

/// Borrows text for a call.
pub(crate) fn lend_text(text: &str) -> DiStr {
    DiStr { ptr: text.as_ptr(), len: text.len() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C)]
    #[derive(Debug, PartialEq, Clone, Copy)]
    struct Known {
        struct_size: u32,
        first: u32,
        second: u64,
    }
    // SAFETY: integers, the first of them `struct_size`.
    unsafe impl Sized32 for Known {}

    #[test]
    fn a_shorter_struct_reads_as_zeros_at_its_end_and_a_longer_one_is_cut() {
        // Bytes behind `struct_size` are junk that must not be read as fields.
        let short = Known { struct_size: 8, first: 7, second: u64::MAX };
        // SAFETY: all of `short` is readable.
        let read = unsafe { read_sized(&raw const short) }.unwrap();
        assert_eq!(read, Known { struct_size: 8, first: 7, second: 0 });

        let long = [Known { struct_size: 32, first: 1, second: 2 }, Known { struct_size: 9, first: 9, second: 9 }];
        // SAFETY: 32 bytes are readable.
        let read = unsafe { read_sized(long.as_ptr()) }.unwrap();
        assert_eq!(read, Known { struct_size: 32, first: 1, second: 2 });
    }

    #[test]
    fn impossible_structs_are_refused_before_they_are_read() {
        // SAFETY: null and misaligned pointers are not read; the last one is readable.
        unsafe {
            assert!(read_sized::<Known>(std::ptr::null()).unwrap_err().contains("no address"));
            assert!(read_sized(std::ptr::without_provenance::<Known>(0x1001)).unwrap_err().contains("aligned"));
            let tiny = Known { struct_size: 3, first: 0, second: 0 };
            assert!(read_sized(&raw const tiny).unwrap_err().contains("struct_size 3"));
        }
    }

    #[test]
    fn text_that_cannot_be_is_refused() {
        // SAFETY: null is not read; the other bytes are.
        unsafe {
            assert_eq!(read_text(DiStr { ptr: std::ptr::null(), len: 0 }).unwrap(), "");
            assert!(read_text(DiStr { ptr: std::ptr::null(), len: 5 }).unwrap_err().contains("5 bytes at no address"));
            assert!(read_text(DiStr { ptr: [0xFF_u8].as_ptr(), len: 1 }).unwrap_err().contains("not UTF-8"));
        }
    }

    #[test]
    fn text_without_end_is_refused_and_cut_in_messages() {
        let memory = vec![b'n'; MOST_TEXT];
        for len in [MOST_TEXT + 1, 1 << 62, usize::MAX] {
            let text = DiStr { ptr: memory.as_ptr(), len };
            // SAFETY: no more than `MOST_TEXT` bytes are read.
            let (error, cut) = unsafe { (read_text(text).unwrap_err(), read_text_lossy(text)) };
            assert_eq!(error, format!("has {len} bytes, but no text has more than 65536"));
            assert_eq!((cut.len(), &cut[MOST_TEXT - 1..]), (MOST_TEXT + 3, "n..."));
        }
        // SAFETY: all bytes are readable.
        assert_eq!(unsafe { read_text(lend_text(str::from_utf8(&memory).unwrap())) }.unwrap().len(), MOST_TEXT);
    }
}
