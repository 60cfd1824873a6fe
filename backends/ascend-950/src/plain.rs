//! The boundary's fill and copy, where the runtime's own do not do: kernels that are no ops.

use std::ffi::c_void;

use deepinfer_plugin_api::sdk::Fault;

use crate::image::{Function, images};
use crate::launch::{blocks, launch, tiling};
use crate::stream::Stream;

static COPY: Function = Function::new(&images::COPY, c"copy");
static FILL: Function = Function::new(&images::FILL, c"fill");
/// What a block writes at a time.
const PIECE: usize = 32_768;

tiling! {
    struct FillTiling: 16 { bytes: i64, pattern: i32, reserved: i32 }
}

tiling! {
    struct CopyTiling: 8 { bytes: i64 }
}

/// Copies within the device, from any address to any, in the stream's order.
///
/// # Safety
/// The bytes are readable and writable until the stream has passed, and the two places do not overlap.
pub(crate) unsafe fn copy(stream: &Stream, dst: *mut c_void, src: *const c_void, bytes: usize) -> Result<(), Fault> {
    let pieces = blocks(stream, bytes.div_ceil(PIECE) as i64);
    launch!(stream, COPY, pieces, [src.cast_mut().cast::<u8>(), dst.cast::<u8>()], CopyTiling { bytes: bytes as i64 })
}

/// Writes `pattern`, of 1, 2 or 4 bytes, over `bytes` bytes, in the stream's order.
///
/// # Safety
/// The bytes are writable until the stream has passed.
pub(crate) unsafe fn fill(stream: &Stream, dst: *mut c_void, pattern: &[u8], bytes: usize) -> Result<(), Fault> {
    if stream.device().pinned(dst.addr()).is_some() {
        // The processor writes, when it is the fill's turn.
        stream.sync()?;
        // SAFETY: the caller's contract; it is memory of the host.
        let target = unsafe { std::slice::from_raw_parts_mut(dst.cast::<u8>(), bytes) };
        target.chunks_mut(pattern.len()).for_each(|chunk| chunk.copy_from_slice(&pattern[..chunk.len()]));
        return Ok(());
    }
    if pattern.iter().all(|byte| *byte == pattern[0]) {
        let acl = stream.begin()?;
        // SAFETY: the caller's contract.
        let code = unsafe { acl.aclrtMemsetAsync(dst, bytes, i32::from(pattern[0]), bytes, stream.raw()) };
        return stream.device().check("a fill", code);
    }
    let mut whole = [0; 4];
    whole.chunks_mut(pattern.len()).for_each(|chunk| chunk.copy_from_slice(pattern));
    let tiling = FillTiling { bytes: bytes as i64, pattern: i32::from_le_bytes(whole), reserved: 0 };
    launch!(stream, FILL, blocks(stream, bytes.div_ceil(PIECE) as i64), [dst.cast::<u8>()], tiling)
}
