//! The backend under test: a device in host memory with every optional part, two implementations of one op, and an op of
//! its own.

use std::ffi::c_void;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use deepinfer_plugin_api::abi::*;
use deepinfer_plugin_api::generated::{GatherArgs, RstdArgs, RstdProto};
use deepinfer_plugin_api::sdk::{
    Backend, Cx, Delays, DeviceInfo, Extras, Fault, FaultCode, GraphBackend, HostEvent, HostMemory, HostQueue,
    LinkInfo, Plan, PlanCx, Rows2d, SpaceInfo, Support, Workspace,
};
use deepinfer_plugin_api::{Contract, kernel, vendor_op};

/// The backend. With the option `queued` its streams are queues.
pub(crate) struct Npu {
    queued: bool,
    is_shut_down: AtomicBool,
}

/// An open device.
pub(crate) struct Device {
    /// Longest row that its kernels take.
    longest_row: usize,
}

/// A stream, which may be recording.
pub(crate) struct Stream {
    queue: Option<HostQueue>,
    recorded: Mutex<Option<Vec<Fill>>>,
}

/// A fill of bytes, the only work that this device can record.
#[derive(Clone, Copy)]
pub(crate) struct Fill {
    address: usize,
    byte: u8,
    count: usize,
}

impl Fill {
    fn run(self) {
        let address = std::ptr::with_exposed_provenance_mut::<u8>(self.address);
        // SAFETY: the contract of the boundary's `fill`.
        unsafe { address.write_bytes(self.byte, self.count) }
    }
}

impl Backend for Npu {
    const NAME: &'static str = "npu";
    const VERSION: &'static str = "1.2.3";
    const EXTRAS: Extras<Self> = Extras {
        device_link: Some(|_, a, b| {
            let class = if a == b { DI_LINK_SELF } else { DI_LINK_PCIE };
            Ok(LinkInfo { class, flags: DI_LF_PEER_COPY, hops: 2, bytes_per_s: 64_000_000_000, latency_ns: 900 })
        }),
        stream_native: Some(|_, stream| Ok((&raw const *stream).cast_mut().cast())),
        event_elapsed: Some(|_, from, to| Ok(HostEvent::elapsed(from, to)?.as_secs_f32() * 1e3)),
        copy_2d: Some(Self::copy_rows),
        graph: Some(<Self as GraphBackend>::TABLE),
        table: Some(|_, id| if id == DI_TABLE_PROFILE { std::ptr::dangling() } else { std::ptr::null() }),
        shutdown: Some(|npu| {
            npu.is_shut_down.store(true, Ordering::Relaxed);
            Ok(())
        }),
    };
    type Device = Device;
    type Buffer = HostMemory;
    type Stream = Stream;
    type Event = HostEvent;

    fn start(options: &str) -> Result<Self, Fault> {
        Ok(Self { queued: options == "queued", is_shut_down: AtomicBool::new(false) })
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>, Fault> {
        let host = SpaceInfo { kind: DI_SPACE_HOST_PINNED, min_align: 64, granularity: 4096, total_bytes: 0 };
        let own = SpaceInfo { kind: DI_SPACE_DEVICE, total_bytes: 1 << 30, ..host };
        let info = DeviceInfo { name: "NPU".to_owned(), total_bytes: 1 << 30, uuid: [7; 16], ..DeviceInfo::default() };
        Ok(vec![DeviceInfo { spaces: vec![own, host], is_partition: true, ..info.clone() }, info])
    }

    fn open_device(&self, index: u32) -> Result<Device, Fault> {
        Ok(Device { longest_row: if index == 0 { 64 } else { 16 } })
    }

    fn memory(&self, _: &Device, _: u32) -> Result<(u64, u64), Fault> {
        match self.is_shut_down.load(Ordering::Relaxed) {
            true => Err(Fault::invalid("the backend is shut down")),
            false => Ok((1 << 29, 1 << 30)),
        }
    }

    fn alloc(&self, _: &Device, _: u32, bytes: u64, align: u64) -> Result<(HostMemory, *mut c_void), Fault> {
        let memory = HostMemory::new(bytes, align)?;
        let address = memory.address();
        Ok((memory, address))
    }

    fn create_stream(&self, _: &Device) -> Result<Stream, Fault> {
        let queue = self.queued.then(|| HostQueue::start("npu", Some(Delays::seeded(11)))).transpose()?;
        Ok(Stream { queue, recorded: Mutex::new(None) })
    }

    fn sync_stream(&self, stream: &Stream) -> Result<(), Fault> {
        stream.queue.as_ref().map_or(Ok(()), HostQueue::sync)
    }

    fn create_event(&self, _: &Device) -> Result<HostEvent, Fault> {
        Ok(HostEvent::new())
    }

    fn record_event(&self, event: &HostEvent, stream: &Stream) -> Result<(), Fault> {
        stream.queue.as_ref().map_or_else(|| event.record_now(), |queue| queue.record(event));
        Ok(())
    }

    fn wait_event(&self, stream: &Stream, event: &HostEvent) -> Result<(), Fault> {
        stream.queue.iter().for_each(|queue| queue.wait(event));
        Ok(())
    }

    fn query_event(&self, event: &HostEvent) -> Result<bool, Fault> {
        event.query()
    }

    fn sync_event(&self, event: &HostEvent) -> Result<(), Fault> {
        event.sync()
    }

    unsafe fn copy(&self, s: &Stream, _: *mut c_void, _: *const c_void, _: u64, _: u32) -> Result<(), Fault> {
        match *s.recorded.lock().unwrap() {
            Some(_) => Err(Fault::new(FaultCode::NotCapturable, "copies are not recorded")),
            None => Err(Fault::unsupported("this test copies nothing")),
        }
    }

    unsafe fn fill(&self, s: &Stream, dst: *mut c_void, pattern: u32, size: u32, count: u64) -> Result<(), Fault> {
        let fill = Fill { address: dst.expose_provenance(), byte: pattern as u8, count: count as usize };
        if size != 1 {
            return Err(Fault::unsupported(format!("a pattern of {size} bytes")));
        }
        match &mut *s.recorded.lock().unwrap() {
            Some(recorded) => recorded.push(fill),
            None => fill.run(),
        }
        Ok(())
    }

    fn queue<'a>(&self, stream: &'a Stream) -> Option<&'a HostQueue> {
        stream.queue.as_ref()
    }
}

impl Npu {
    /// # Safety
    /// As `Copy2d` says.
    unsafe fn copy_rows(&self, _: &Stream, rows: Rows2d) -> Result<(), Fault> {
        for row in 0..rows.height as usize {
            let (dst, src) = (row * rows.dst_pitch as usize, row * rows.src_pitch as usize);
            // SAFETY: the same contract.
            unsafe {
                let (dst, src) = (rows.dst.cast::<u8>().add(dst), rows.src.cast::<u8>().add(src));
                std::ptr::copy(src, dst, rows.width as usize);
            }
        }
        Ok(())
    }
}

impl GraphBackend for Npu {
    type Graph = Vec<Fill>;
    type Executable = Vec<Fill>;

    fn begin_capture(&self, stream: &Stream) -> Result<(), Fault> {
        match stream.recorded.lock().unwrap().replace(Vec::new()) {
            None => Ok(()),
            Some(_) => Err(Fault::invalid("the stream is being captured already")),
        }
    }

    fn end_capture(&self, stream: &Stream) -> Result<Vec<Fill>, Fault> {
        stream.recorded.lock().unwrap().take().ok_or_else(|| Fault::invalid("the stream is not being captured"))
    }

    fn instantiate(&self, graph: &Vec<Fill>) -> Result<Vec<Fill>, Fault> {
        Ok(graph.clone())
    }

    fn update(&self, executable: &mut Vec<Fill>, graph: &Vec<Fill>) -> Result<bool, Fault> {
        let same_form = executable.len() == graph.len();
        if same_form {
            executable.clone_from(graph);
        }
        Ok(same_form)
    }

    fn launch(&self, executable: &Vec<Fill>, _: &Stream) -> Result<(), Fault> {
        executable.iter().for_each(|fill| fill.run());
        Ok(())
    }
}

/// A backend with nothing optional.
pub(crate) struct Plain;

impl Backend for Plain {
    const NAME: &'static str = "plain";
    const VERSION: &'static str = "0";
    type Device = ();
    type Buffer = HostMemory;
    type Stream = ();
    type Event = ();

    fn start(_: &str) -> Result<Self, Fault> {
        Ok(Self)
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>, Fault> {
        Ok(vec![DeviceInfo { total_bytes: 4096, ..DeviceInfo::default() }])
    }

    fn open_device(&self, _: u32) -> Result<(), Fault> {
        Ok(())
    }

    fn memory(&self, (): &(), _: u32) -> Result<(u64, u64), Fault> {
        Ok((4096, 4096))
    }

    fn alloc(&self, (): &(), _: u32, bytes: u64, align: u64) -> Result<(HostMemory, *mut c_void), Fault> {
        let memory = HostMemory::new(bytes, align)?;
        let address = memory.address();
        Ok((memory, address))
    }

    fn create_stream(&self, (): &()) -> Result<(), Fault> {
        Ok(())
    }

    fn sync_stream(&self, (): &()) -> Result<(), Fault> {
        Ok(())
    }

    fn create_event(&self, (): &()) -> Result<(), Fault> {
        Ok(())
    }

    fn record_event(&self, (): &(), (): &()) -> Result<(), Fault> {
        Ok(())
    }

    fn wait_event(&self, (): &(), (): &()) -> Result<(), Fault> {
        Ok(())
    }

    fn query_event(&self, (): &()) -> Result<bool, Fault> {
        Ok(true)
    }

    fn sync_event(&self, (): &()) -> Result<(), Fault> {
        Ok(())
    }

    unsafe fn copy(&self, (): &(), _: *mut c_void, _: *const c_void, _: u64, _: u32) -> Result<(), Fault> {
        Ok(())
    }

    unsafe fn fill(&self, (): &(), _: *mut c_void, _: u32, _: u32, _: u64) -> Result<(), Fault> {
        Ok(())
    }
}

/// The plan of the tiled implementation.
struct Tiles {
    /// Columns that are squared into the workspace at once.
    columns: usize,
}

fn fits(cx: &PlanCx<'_>, a: &RstdProto<'_>) -> Support {
    let longest = cx.device::<Npu>().map_or(0, |device| device.longest_row);
    if a.dims.n > longest {
        return Support::no(format!("rows of more than {longest}"));
    }
    match a.x.is_contiguous() {
        true => Support::YesWith(DI_PF_BATCH_INVARIANT),
        false => Support::no("rows with gaps"),
    }
}

fn tile(_: &PlanCx<'_>, a: &RstdProto<'_>) -> Result<Plan<Tiles>, Fault> {
    if a.dims.t == 0 {
        return Err(Fault::unsupported("there is nothing to tile"));
    }
    // A single row has no neighbours, so that nothing depends on them.
    let flags = if a.dims.t == 1 { DI_PF_BATCH_INVARIANT } else { 0 };
    let (elements, columns) = (a.x.elements() as u64, a.dims.n.min(8));
    let plan = Plan::new(Tiles { columns }).workspace(4 * columns as u64, 32).promising(flags);
    Ok(plan.cost(2 * elements, 4 * elements).algorithm(8))
}

fn tiled(cx: &Cx<'_>, tiles: &Tiles, mut scratch: Workspace<'_>, mut a: RstdArgs<'_>) -> Result<(), Fault> {
    cx.stream_of::<Npu>()?;
    let (n, eps) = (a.dims.n, a.eps);
    let x = a.x.rows::<f32>()?;
    let (words, rest) = scratch.bytes_mut().as_chunks_mut::<4>();
    assert!(words.len() == tiles.columns && rest.is_empty());
    for (row, out) in a.out.slice_mut::<f32>()?.iter_mut().enumerate() {
        // The workspace holds what others left there.
        words.fill([0; 4]);
        for columns in x.row(row).chunks(tiles.columns) {
            for (word, v) in words.iter_mut().zip(columns) {
                *word = (f32::from_ne_bytes(*word) + v * v).to_ne_bytes();
            }
        }
        let sum: f32 = words.iter().map(|&word| f32::from_ne_bytes(word)).sum();
        *out = (sum / n as f32 + eps).sqrt().recip();
    }
    Ok(())
}
kernel!(
    Rstd,
    tiled,
    impl_name = "tiled",
    priority = 10,
    flags = DI_PF_DETERMINISTIC | DI_PF_CAPTURABLE,
    supports = fits,
    plan = tile -> Tiles
);

fn simple(_: &Cx<'_>, mut a: RstdArgs<'_>) -> Result<(), Fault> {
    let (n, eps) = (a.dims.n, a.eps);
    let x = a.x.rows::<f32>()?;
    for (row, out) in a.out.slice_mut::<f32>()?.iter_mut().enumerate() {
        let sum: f32 = x.row(row).iter().map(|v| v * v).sum();
        *out = (sum / n as f32 + eps).sqrt().recip();
    }
    Ok(())
}
kernel!(Rstd, simple, impl_name = "simple", flags = DI_PF_BATCH_INVARIANT);

/// Rows by index, with one index that is a bug.
fn gather(_: &Cx<'_>, mut a: GatherArgs<'_>) -> Result<(), Fault> {
    let (table, index) = (a.table.rows::<f32>()?, a.index.slice::<i32>()?);
    for (out, &row) in a.out.rows_mut::<f32>()?.into_iter().zip(index) {
        assert_ne!(row, 13, "unlucky row");
        let row = usize::try_from(row).ok().filter(|&row| row < table.count());
        let row = row.ok_or_else(|| Fault::invalid(format!("gather: index holds {index:?}")))?;
        out.copy_from_slice(table.row(row));
    }
    Ok(())
}
kernel!(Gather, gather);

vendor_op! {
    /// Multiplies by a factor.
    pub(crate) Scale "npu_scale" id 0x8000_0010 version 2 contract Contract::within_ulps(1),
    raw DiArgsScaleV2, args ScaleArgs, proto ScaleProto {
        /// Values.
        x: In,
        /// Factor.
        factor: f32,
        /// Products.
        out: Out,
    }
}

fn scale(_: &Cx<'_>, mut a: ScaleArgs<'_>) -> Result<(), Fault> {
    let (x, out) = (a.x.slice::<f32>()?, a.out.slice_mut::<f32>()?);
    out.iter_mut().zip(x).for_each(|(out, x)| *out = x * a.factor);
    Ok(())
}

fn scales(_: &PlanCx<'_>, a: &ScaleProto<'_>) -> Support {
    if a.x.shape() == a.out.shape() { Support::Yes } else { Support::no("x and out of different shapes") }
}
kernel!(vendor Scale, scale, supports = scales);
