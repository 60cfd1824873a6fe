//! Structs that end where memory ends.

use std::ffi::c_void;

const PAGE: usize = 4096;
/// Pages of a struct: more than the largest one and what a newer core adds take.
const PAGES: usize = 4;
/// What lies behind the known end of a struct.
pub(crate) const JUNK: u8 = 0xA5;

const PROT_NONE: i32 = 0;
const PROT_READ_WRITE: i32 = 3;
const MAP_PRIVATE_ANONYMOUS: i32 = 0x22;

unsafe extern "C" {
    fn mmap(address: *mut c_void, bytes: usize, protection: i32, flags: i32, file: i32, offset: i64) -> *mut c_void;
    fn mprotect(address: *mut c_void, bytes: usize, protection: i32) -> i32;
    fn munmap(address: *mut c_void, bytes: usize) -> i32;
}

/// A struct of which exactly `size` bytes exist: behind them comes a page that cannot be touched. A size that is no
/// multiple of 8, which no C compiler gives a struct that holds a pointer, is followed by junk up to the next multiple, so
/// that the struct is aligned.
pub(crate) struct AtEdge {
    mapping: *mut u8,
    at: *mut u8,
    size: usize,
}

impl AtEdge {
    /// A copy of the first `size` bytes of `content`, whose `struct_size` says `size`. What is longer than `content` is
    /// junk: fields that this reader cannot know.
    pub(crate) fn new(content: &[u8], size: usize) -> Self {
        let room = size.next_multiple_of(8);
        assert!((4..=PAGES * PAGE).contains(&room), "a struct of {size} bytes");
        // SAFETY: a new mapping; its last page is taken away, the bytes before it are written within their pages.
        unsafe {
            let mapping = mmap(std::ptr::null_mut(), (PAGES + 1) * PAGE, PROT_READ_WRITE, MAP_PRIVATE_ANONYMOUS, -1, 0)
                .cast::<u8>();
            assert_ne!(mapping.addr(), usize::MAX, "mmap: {}", std::io::Error::last_os_error());
            let end = mapping.add(PAGES * PAGE);
            assert_eq!(mprotect(end.cast(), PAGE, PROT_NONE), 0, "mprotect: {}", std::io::Error::last_os_error());
            let at = end.sub(room);
            at.write_bytes(JUNK, room);
            at.copy_from_nonoverlapping(content.as_ptr(), content.len().min(size));
            at.cast::<u32>().write(size as u32);
            Self { mapping, at, size }
        }
    }

    /// As [`AtEdge::new`], of a struct.
    pub(crate) fn of<T>(value: &T, size: usize) -> Self {
        // SAFETY: structs of the boundary whose padding, if any, is copied and never looked at.
        let bytes = unsafe { std::slice::from_raw_parts((&raw const *value).cast::<u8>(), size_of::<T>()) };
        Self::new(bytes, size)
    }

    /// Its address; it lives as long as this value.
    pub(crate) fn at<T>(&self) -> *mut T {
        self.at.cast()
    }

    /// The struct as its owner knows it: what does not exist is zero.
    ///
    /// # Safety
    /// `T` is a struct of the boundary, for which zeros are valid.
    pub(crate) unsafe fn read<T>(&self) -> T {
        // SAFETY: the smaller of both sizes is copied.
        unsafe {
            let mut value = std::mem::MaybeUninit::<T>::zeroed();
            let bytes = self.size.min(size_of::<T>());
            value.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(self.at, bytes);
            value.assume_init()
        }
    }

    /// Whether everything from byte `known` on is still junk.
    pub(crate) fn is_junk_from(&self, known: usize) -> bool {
        let known = known.min(self.size);
        // SAFETY: within the room of the struct.
        let rest = unsafe { std::slice::from_raw_parts(self.at.add(known), self.size.next_multiple_of(8) - known) };
        rest.iter().all(|&byte| byte == JUNK)
    }

    /// Leaves the memory in place, for a struct that a plugin keeps.
    pub(crate) fn leak<T>(self) -> *mut T {
        let at = self.at();
        std::mem::forget(self);
        at
    }
}

impl Drop for AtEdge {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, which nobody uses any more.
        unsafe { munmap(self.mapping.cast(), (PAGES + 1) * PAGE) };
    }
}
