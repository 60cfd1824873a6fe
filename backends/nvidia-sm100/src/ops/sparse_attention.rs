//! `sparse_attention`: attention of each row over listed cache entries, with a sink.
//!
//! BF16 queries of 512 channels with rounded probabilities, as the released model has them, go to the matrix units of Hopper;
//! everything else, and other devices, to a kernel that adds in F64. Which of the two is a matter of formats and extents alone.

use deepinfer_plugin_api::generated::SparseAttentionArgs;
use deepinfer_plugin_api::sdk::tensor::View;
use deepinfer_plugin_api::sdk::{Cx, Fault, cache_format};
use deepinfer_plugin_api::{CacheFormat, Format};

use crate::image::{Function, images};
use crate::launch::{Grid, Param, launch, stream};
use crate::stream::Stream;

deepinfer_plugin_api::kernel!(SparseAttention, sparse_attention, flags = super::FLAGS);

static SPARSE_ATTENTION: Function = Function::new(&images::SPARSE_ATTENTION, c"sparse_attention");
static SPARSE_ATTENTION_LONG: Function = Function::new(&images::SPARSE_ATTENTION, c"sparse_attention_long");
const OP: &str = "sparse_attention";
const THREADS: u32 = 256;
/// Heads of a block.
const HEADS: usize = 8;
/// Dynamic shared memory of a block: 48 KiB without the kernel's own.
const SHARED_BYTES: usize = (48 << 10) - 256;
/// Entries whose scores, addresses and distances fit into it.
const MOST_ENTRIES: usize = SHARED_BYTES / bytes_of(1) / 32 * 32;

/// A cache, and the entries of each row in it, as the kernels have it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Source {
    cache: View,
    slots: View,
    format: u32,
    entries: u32,
}

// SAFETY: laid out as in the kernels.
unsafe impl Param for Source {}

/// Bytes of shared memory that `entries` entries need: a score per head, an address, a distance.
const fn bytes_of(entries: usize) -> usize {
    entries * (HEADS * size_of::<f64>() + size_of::<u64>() + size_of::<u32>())
}

fn sparse_attention(cx: &Cx<'_>, a: SparseAttentionArgs<'_>) -> Result<(), Fault> {
    let d = a.dims;
    if a.round_probs > 1 {
        return Err(Fault::invalid(format!("round_probs is {}, but must be 0 or 1", a.round_probs)));
    }
    // A cache without pages has entries of any size.
    let page_bytes = |pages: usize, bytes: usize| if pages == 0 { usize::MAX } else { bytes };
    let (format, entries) = (a.window_format, a.window_entries_per_page);
    cache_format((OP, "window"), format, entries, d.d, page_bytes(d.p, d.b))?;
    let window = Source { cache: a.window.view()?, slots: a.window_slots.view()?, format, entries };
    let global = match (&a.global, &a.global_slots) {
        (Some(pages), Some(slots)) => {
            let (format, entries) = (a.global_format, a.global_entries_per_page);
            cache_format((OP, "global"), format, entries, d.d, page_bytes(d.g, d.a))?;
            Source { cache: pages.view()?, slots: slots.view()?, format, entries }
        }
        (None, None) => {
            Source { cache: View::ABSENT, slots: View::ABSENT, format: CacheFormat::Bf16 as u32, entries: 1 }
        }
        _ => return Err(Fault::invalid("global and global_slots must be present together")),
    };
    let stream = stream(cx)?;
    let call = Call { q: a.q.view()?, window, global, sink: a.sink.view()?, out: a.out.view()?, scale: a.scale };
    if d.t > 0 && stream.device().is_hopper() && call.suits_matrix_units(a.round_probs == 1) {
        return call.multiply(stream);
    }
    let listed = (window.slots.columns() + global.slots.columns()) as usize;
    let (function, most) =
        if listed <= MOST_ENTRIES { (&SPARSE_ATTENTION, listed) } else { (&SPARSE_ATTENTION_LONG, MOST_ENTRIES) };
    // Without heads a slot can still be wrong: every row has a block.
    let blocks = d.t as i64 * d.h.div_ceil(HEADS).max(1) as i64;
    let mut grid = Grid::of_items(blocks * i64::from(THREADS), THREADS)?;
    grid.shared_bytes = bytes_of(most) as u32;
    let Call { q, sink, out, scale, .. } = call;
    launch!(stream, function, grid, q, window, global, sink, out, most as i32, HEADS as u32, scale, a.round_probs)
}

/// What every kernel takes.
struct Call {
    q: View,
    window: Source,
    global: Source,
    sink: View,
    out: View,
    scale: f32,
}

/// What the kernels for the matrix units are made for: channels, heads of a block, entries of a chunk, chunks of a row that
/// `sparse_attention_tiles.cu` takes (`sparse_attention_long.cu` takes rows of more), and the threads of a block.
mod matrix {
    pub(super) const DIM: i64 = 512;
    pub(super) const HEADS: i64 = 64;
    pub(super) const CHUNK: i64 = 64;
    pub(super) const SHORT_CHUNKS: i64 = 10;
    pub(super) const THREADS: u32 = 512;
    /// Boundary of entries and rows.
    pub(super) const BOUNDARY: i64 = 16;
}

/// A kernel for the matrix units, the blocks of its clusters, and the shared memory of each.
struct Clustered {
    function: Function,
    blocks: i64,
    shared_bytes: u32,
}

impl Clustered {
    const fn tiles(name: &'static std::ffi::CStr, blocks: i64) -> Self {
        Self { function: Function::new(&images::SPARSE_ATTENTION_TILES, name), blocks, shared_bytes: 221_696 }
    }

    const fn long(name: &'static std::ffi::CStr) -> Self {
        Self { function: Function::new(&images::SPARSE_ATTENTION_LONG, name), blocks: 1, shared_bytes: 218_144 }
    }
}

/// From the largest cluster on.
static SHORT: [Clustered; 3] = [
    Clustered::tiles(c"sparse_attention_tiles_4", 4),
    Clustered::tiles(c"sparse_attention_tiles_2", 2),
    Clustered::tiles(c"sparse_attention_tiles_1", 1),
];
/// For rows of more chunks.
static LONG: Clustered = Clustered::long(c"sparse_attention_long");
/// Both for tensors anywhere.
static SHORT_ANYWHERE: [Clustered; 1] = [Clustered::tiles(c"sparse_attention_tiles_any", 1)];
static LONG_ANYWHERE: Clustered = Clustered::long(c"sparse_attention_long_any");

impl Call {
    /// Whether formats and extents are those of the kernels for the matrix units.
    fn suits_matrix_units(&self, rounds_probabilities: bool) -> bool {
        let suits = |source: &Source| {
            matches!(
                CacheFormat::from_u32(source.format),
                Some(CacheFormat::Bf16 | CacheFormat::Fp8 | CacheFormat::Fp4Row16)
            )
        };
        let is_q = self.q.format() == Some(Format::Bf16) && self.q.columns() == matrix::DIM;
        is_q && rounds_probabilities && suits(&self.window) && suits(&self.global)
    }

    /// Whether all entries and rows begin on a boundary of 16 bytes, and the caches have fewer than 2^32 such units.
    fn is_aligned(&self) -> bool {
        let lies_on = |view: &View, strides: &[i64], bytes: i64| {
            view.data.addr().is_multiple_of(matrix::BOUNDARY as usize)
                && strides.iter().all(|stride| (stride * bytes) % matrix::BOUNDARY == 0)
        };
        let cache = |source: &Source| {
            let view = &source.cache;
            let units = i128::from(view.shape[2]) * i128::from(view.strides[2]) / i128::from(matrix::BOUNDARY);
            lies_on(view, &view.strides[2..3], 1) && (0..i128::from(u32::MAX)).contains(&units)
        };
        let rows = |view: &View| lies_on(view, &view.strides[1..3], 2);
        rows(&self.q) && rows(&self.out) && cache(&self.window) && cache(&self.global)
    }

    /// Queues the kernels for the matrix units. Those of tiles give the same bits: few rows get large clusters. Where lists have
    /// room for more chunks than they take, the kernel for long rows runs behind them; which of the two takes a row is decided
    /// by what the row lists, so that its bits do not depend on the width of the lists.
    fn multiply(&self, stream: &Stream) -> Result<(), Fault> {
        let chunks = |source: &Source| (source.slots.columns() + matrix::CHUNK - 1) / matrix::CHUNK;
        let has_room = chunks(&self.window) + chunks(&self.global) > matrix::SHORT_CHUNKS;
        let clusters = self.q.shape[1] * ((self.q.shape[2] + matrix::HEADS - 1) / matrix::HEADS).max(1);
        let room = i64::from(stream.device().multiprocessors());
        let (kernels, long): (&[Clustered], _) =
            if self.is_aligned() { (&SHORT, &LONG) } else { (&SHORT_ANYWHERE, &LONG_ANYWHERE) };
        let fits = |kernel: &&Clustered| clusters * kernel.blocks <= room;
        let kernel = kernels.iter().find(fits).unwrap_or(&kernels[kernels.len() - 1]);
        let &Self { q, window, global, sink, out, scale } = self;
        let queue = |kernel: &Clustered| {
            let threads = matrix::THREADS;
            let mut grid = Grid::of_items(clusters * kernel.blocks * i64::from(threads), threads)?;
            grid.shared_bytes = kernel.shared_bytes;
            launch!(stream, kernel.function, grid, q, window, global, sink, out, scale)
        };
        queue(kernel)?;
        if has_room {
            queue(long)?;
        }
        Ok(())
    }
}
