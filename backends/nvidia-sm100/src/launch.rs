//! Launches of kernels.

use std::ffi::c_void;

use cudarc::driver::sys;
use deepinfer_plugin_api::sdk::tensor::View;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::backend::Nvidia;
use crate::error::check;
use crate::image::Function;
use crate::stream::Stream;

/// Dynamic shared memory that a kernel has without being given more.
const PLAIN_SHARED_BYTES: u32 = 48 << 10;

/// A value that is passed to a kernel: plain data of the layout that its parameter has.
///
/// # Safety
/// Every byte pattern of the value means the same to the kernel's parameter type.
pub(crate) unsafe trait Param {}

// SAFETY: each is the C type of its name; `View` is laid out as `common/view.cuh` says.
unsafe impl Param for View {}
// SAFETY: as above.
unsafe impl Param for u32 {}
// SAFETY: as above.
unsafe impl Param for i32 {}
// SAFETY: as above.
unsafe impl Param for u64 {}
// SAFETY: as above.
unsafe impl Param for i64 {}
// SAFETY: as above.
unsafe impl Param for f32 {}

/// A grid of blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    pub(crate) blocks: (u32, u32, u32),
    pub(crate) threads: u32,
    /// Bytes of dynamic shared memory.
    pub(crate) shared_bytes: u32,
    /// Blocks of a cluster, which are neighbours in y.
    pub(crate) cluster: u32,
}

impl Grid {
    /// `blocks` blocks of `threads` threads.
    pub(crate) const fn new(blocks: u32, threads: u32) -> Self {
        Self { blocks: (blocks, 1, 1), threads, shared_bytes: 0, cluster: 1 }
    }

    /// A thread for each of `items`, in blocks of `threads`.
    ///
    /// # Errors
    /// There are more blocks than a grid has.
    pub(crate) fn of_items(items: i64, threads: u32) -> Result<Self, Fault> {
        let blocks = (items.max(0) as u64).div_ceil(u64::from(threads));
        let blocks = i32::try_from(blocks).map_err(|_| {
            Fault::unsupported(format!(
                "{items} items are more than a grid of 2^31 - 1 blocks of {threads} threads takes"
            ))
        })?;
        Ok(Self::new(blocks as u32, threads))
    }

    /// A warp for each of `warps`, which kernels count with 32 bits.
    ///
    /// # Errors
    /// There are more than that.
    pub(crate) fn of_warps(warps: i64, threads: u32) -> Result<Self, Fault> {
        const WARP: i64 = 32;
        if warps > i64::from(i32::MAX) / WARP {
            return Err(Fault::unsupported(format!("{warps} warps have more than 2^31 - 1 threads")));
        }
        Self::of_items(warps * WARP, threads)
    }
}

/// The least power of two, as its exponent, that is at least `count`, from `least` to `most`: lanes that share a row.
pub(crate) fn lanes_log2(count: i64, least: u32, most: u32) -> u32 {
    (count.max(1) as u64).next_power_of_two().trailing_zeros().clamp(least, most)
}

/// The stream of a call.
pub(crate) fn stream<'a>(cx: &Cx<'a>) -> Result<&'a Stream, Fault> {
    cx.stream_of::<Nvidia>()
}

/// Queues a kernel. An empty grid is nothing to do.
///
/// # Safety
/// The function takes exactly these parameters, and touches no memory but what the views and addresses among them name.
pub(crate) unsafe fn enqueue(
    stream: &Stream,
    function: &Function,
    grid: Grid,
    params: &mut [*mut c_void],
) -> Result<(), Fault> {
    let (x, y, z) = grid.blocks;
    if x == 0 || y == 0 || z == 0 {
        return Ok(());
    }
    let device = stream.device();
    device.bind()?;
    let function = function.on(device)?;
    if grid.shared_bytes > PLAIN_SHARED_BYTES {
        let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function belongs to the current context.
        let status = unsafe { sys::cuFuncSetAttribute(function, attribute, grid.shared_bytes as i32) };
        check("shared memory for a kernel", status)?;
    }
    let mut attribute = sys::CUlaunchAttribute {
        id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
        pad: [0; 4],
        value: sys::CUlaunchAttributeValue {
            clusterDim: sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: 1, y: grid.cluster, z: 1 },
        },
    };
    let config = sys::CUlaunchConfig {
        gridDimX: x,
        gridDimY: y,
        gridDimZ: z,
        blockDimX: grid.threads,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: grid.shared_bytes,
        hStream: stream.raw(),
        attrs: &raw mut attribute,
        numAttrs: u32::from(grid.cluster > 1),
    };
    // SAFETY: function and stream belong to the current context; the parameters are the caller's promise and, as the
    // attribute, are copied before the call returns.
    let status =
        unsafe { sys::cuLaunchKernelEx(&raw const config, function, params.as_mut_ptr(), std::ptr::null_mut()) };
    check("the launch of a kernel", status)
}

/// Queues a kernel with parameters that implement [`Param`], in their order, and the address of the stream's fault word
/// after them.
macro_rules! launch {
    ($stream:expr, $function:expr, $grid:expr, $($param:expr),+ $(,)?) => {{
        fn address<P: $crate::launch::Param>(value: &P) -> *mut ::std::ffi::c_void {
            (&raw const *value).cast_mut().cast()
        }
        let stream: &$crate::stream::Stream = $stream;
        let faults = stream.faults().address();
        // SAFETY: the kernel's parameters are declared in the file of its name in `kernels/`, in this order; the views
        // name memory that the boundary keeps until the stream has passed.
        // Temporaries among the parameters live until the call returns.
        unsafe { $crate::launch::enqueue(stream, &$function, $grid, &mut [$(address(&$param),)+ address(&faults)]) }
    }};
}
pub(crate) use launch;
