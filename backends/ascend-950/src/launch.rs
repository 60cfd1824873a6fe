//! Launches of kernels.
//!
//! A kernel takes addresses of the device and nothing else: those of its tensors in the order of its file, and the address of
//! its tiling struct, which is passed by value. A kernel that may find a wrong value takes [`Stream::fault_word`] among them.

use deepinfer_plugin_api::abi::{DI_PF_BATCH_INVARIANT, DI_PF_CAPTURABLE, DI_PF_DETERMINISTIC};
use deepinfer_plugin_api::sdk::tensor::{In, View};
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::acl::sys;
use crate::backend::Ascend;
use crate::image::Function;
use crate::stream::Stream;

/// What an op of kernels promises of every call: the usual, and that it can be recorded, since arguments go by value.
pub(crate) const PROMISES: u32 = DI_PF_BATCH_INVARIANT | DI_PF_DETERMINISTIC | DI_PF_CAPTURABLE;

/// The tiling struct begins and ends at multiples of this, so that a kernel may copy it in blocks.
const BLOCK: usize = 32;
/// Most addresses of a launch, that of the tiling struct among them.
const MOST_ADDRESSES: usize = 32;
/// The largest tiling struct.
const MOST_TILING: usize = 4096;
/// Most blocks of a launch.
const MOST_BLOCKS: u32 = 65_535;

/// Plain numbers of the layout that the struct of a kernel's file has; made by [`tiling!`].
///
/// # Safety
/// `repr(C)`, of fields of fixed width, of the size that the kernel's file states.
pub(crate) unsafe trait Tiling: Copy {}

/// A tiling struct and its size in bytes, which the kernel's file states, too:
///
/// ```text
/// tiling! {
///     struct RstdTiling: 16 { rows: i64, eps: f32, format: i32 }
/// }
/// ```
macro_rules! tiling {
    ($(#[$meta:meta])* struct $name:ident: $bytes:literal { $($(#[$of:meta])* $field:ident: $ty:ty),+ $(,)? }) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy)]
        #[allow(dead_code)]
        struct $name {
            $($(#[$of])* $field: $ty,)+
        }
        const _: () = assert!(size_of::<$name>() == $bytes, "the kernel's file states another size");
        // SAFETY: plain numbers in the order of C; the size is asserted on both sides.
        unsafe impl $crate::launch::Tiling for $name {}
    };
}
pub(crate) use tiling;

/// The view of an argument that may be absent: its address is null.
#[allow(dead_code)]
pub(crate) fn optional(argument: &Option<In<'_>>) -> Result<View, Fault> {
    argument.as_ref().map_or(Ok(View::ABSENT), In::view)
}

/// The stream of a call.
pub(crate) fn stream<'a>(cx: &Cx<'a>) -> Result<&'a Stream, Fault> {
    cx.stream_of::<Ascend>()
}

/// Blocks for so many pieces of work that do not depend on each other: one each, and no more than there are cores. The bits
/// of a result must not depend on it.
pub(crate) fn blocks(stream: &Stream, pieces: i64) -> u32 {
    pieces.clamp(0, i64::from(stream.device().cores())) as u32
}

/// Queues a kernel on `blocks` blocks. None is nothing to do.
///
/// # Safety
/// The kernel takes these addresses and this tiling struct, and touches no memory but what they name.
pub(crate) unsafe fn enqueue<T: Tiling>(
    stream: &Stream,
    function: &Function,
    blocks: u32,
    addresses: &[*mut u8],
    tiling: &T,
) -> Result<(), Fault> {
    if blocks == 0 {
        return Ok(());
    }
    let count = addresses.len() + 1;
    let (begin, bytes) = ((count * 8).next_multiple_of(BLOCK), size_of::<T>());
    if blocks > MOST_BLOCKS || count > MOST_ADDRESSES || bytes > MOST_TILING {
        let name = function.name();
        return Err(Fault::unsupported(format!(
            "{name}: {blocks} blocks, {count} addresses and {bytes} bytes of tiling; a launch takes {MOST_BLOCKS}, \
             {MOST_ADDRESSES} and {MOST_TILING}"
        )));
    }
    let acl = stream.begin()?;
    let handle = function.on(stream.device())?;
    let mut words = [0_u64; (MOST_ADDRESSES * 8 + MOST_TILING) / 8];
    for (word, address) in words.iter_mut().zip(addresses) {
        *word = stream.device().for_kernels(address.expose_provenance() as u64);
    }
    // SAFETY: the sizes were checked; a tiling struct is plain data.
    unsafe {
        let to = words.as_mut_ptr().cast::<u8>().add(begin);
        std::ptr::copy_nonoverlapping((&raw const *tiling).cast::<u8>(), to, bytes);
    }
    let size = begin + bytes.next_multiple_of(BLOCK);
    let mut holder = sys::aclrtPlaceHolderInfo { addrOffset: ((count - 1) * 8) as u32, dataOffset: begin as u32 };
    // SAFETY: the function belongs to the current context, and the stream, too; arguments are copied before the call returns;
    // what the kernel does with them is the caller's promise.
    let code = unsafe {
        acl.aclrtLaunchKernelWithHostArgs(
            handle,
            blocks,
            stream.raw(),
            std::ptr::null_mut(),
            words.as_mut_ptr().cast(),
            size,
            &raw mut holder,
            1,
        )
    };
    stream.device().check(format_args!("the launch of {}", function.name()), code)
}

/// Queues a kernel: stream, function, blocks, addresses of its tensors in their order, tiling struct.
macro_rules! launch {
    ($stream:expr, $function:expr, $blocks:expr, [$($address:expr),* $(,)?], $tiling:expr $(,)?) => {{
        let stream: &$crate::stream::Stream = $stream;
        // SAFETY: the kernel's parameters are declared in the file of its name in `kernels/`, in this order; the addresses are
        // those of views, whose memory the boundary keeps until the stream has passed.
        unsafe { $crate::launch::enqueue(stream, &$function, $blocks, &[$($address),*], &$tiling) }
    }};
}
pub(crate) use launch;
