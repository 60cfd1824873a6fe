//! The optional tables: capture is followed, the others are passed on with the backend's own objects in place of handles.
//!
//! A table that this version does not know is not offered: its functions would be called with the layer's pointer. Nor is
//! that of other processes' memory, since an imported buffer does not say how large it is, and nothing about it could be
//! checked.

#![allow(unsafe_code)]

use std::ffi::c_void;

use deepinfer_plugin_api::abi::*;
use deepinfer_plugin_api::sdk::Fault;

use crate::boundary::{exposed, guard, guard_void, layer, pointer};
use crate::finding::{Culprit, Finding, Rule};
use crate::handles::Kind;
use crate::layer::Layer;
use crate::next::Next;
use crate::world::Graph;

/// The optional tables of the backend, and those that the layer offers in their place.
pub(crate) struct Tables {
    graph: Option<(DiGraphApi, DiGraphApi)>,
    collective: Option<(DiCollectiveApi, DiCollectiveApi)>,
    prepack: Option<(DiPrepackApi, DiPrepackApi)>,
    profile: Option<(DiProfileApi, DiProfileApi)>,
    vmm: Option<(DiVmmApi, DiVmmApi)>,
}

impl Tables {
    pub(crate) fn of(next: &Next, is_delayed: bool) -> Self {
        Self {
            // Delayed work is not on the backend's stream when a capture ends.
            graph: next.optional(DI_TABLE_GRAPH).filter(|_| !is_delayed).map(|below| (below, graph_over(&below))),
            collective: next.optional(DI_TABLE_COLLECTIVE).map(|below| (below, collective_over(&below))),
            prepack: next.optional(DI_TABLE_PREPACK).map(|below| (below, prepack_over(&below))),
            profile: next.optional(DI_TABLE_PROFILE).map(|below| (below, profile_over(&below))),
            vmm: next.optional(DI_TABLE_VMM).map(|below| (below, vmm_over(&below))),
        }
    }
}

/// # Safety
/// `backend` is the layer's.
pub(crate) unsafe extern "C" fn table(backend: *mut DiBackend, id: u32) -> *const c_void {
    // SAFETY: the caller's contract; the layer lives as long as the process.
    let layer = unsafe { layer(backend) };
    fn over<T>(table: &Option<(T, T)>) -> *const c_void {
        table.as_ref().map_or(std::ptr::null(), |(_, over)| std::ptr::from_ref(over).cast())
    }
    match id {
        DI_TABLE_GRAPH => over(&layer.tables.graph),
        DI_TABLE_COLLECTIVE => over(&layer.tables.collective),
        DI_TABLE_PREPACK => over(&layer.tables.prepack),
        DI_TABLE_PROFILE => over(&layer.tables.profile),
        DI_TABLE_VMM => over(&layer.tables.vmm),
        DI_TABLE_OPS => layer.next.ops_table(),
        _ => std::ptr::null(),
    }
}

/// What is passed on in place of an argument.
trait Below: Sized {
    fn below(self, _: &'static Layer, _: &str) -> Result<Self, Fault> {
        Ok(self)
    }
}

macro_rules! as_they_are {
    ($($type:ty),*) => { $(impl Below for $type {})* };
}
as_they_are!(
    u32,
    u64,
    *const u8,
    *mut u8,
    *const u64,
    *mut u64,
    *mut c_void,
    *const DiTensor,
    *mut DiComm,
    *mut *mut DiComm
);
as_they_are!(*mut DiPrepackInfo, *mut DiProfileRecord, *mut DiRange, *mut DiPhysical, *mut *mut DiPhysical);

impl Below for *mut DiDevice {
    fn below(self, layer: &'static Layer, what: &str) -> Result<Self, Fault> {
        layer.device(what, self.addr()).map(|(_, next)| exposed(next))
    }
}

impl Below for *mut DiStream {
    /// Work of such a function is on the stream; what was delayed goes first.
    fn below(self, layer: &'static Layer, what: &str) -> Result<Self, Fault> {
        let (stream, _) = layer.find(what, Kind::Stream, self.addr())?;
        layer.queue(stream).map_or(Ok(()), |queue| queue.sync())?;
        let mut world = layer.world();
        world.submit(stream, &[]);
        Ok(exposed(world.streams.get(stream).map_or(0, |stream| stream.next)))
    }
}

/// Functions that pass on what they get.
macro_rules! pass_on {
    ($table:ident, $over:ident: $Api:ident { $($function:ident($($arg:ident: $type:ty),*);)* } own { $($own:ident),* }) => {
        fn $over(below: &$Api) -> $Api {
            $(
                unsafe extern "C" fn $function(backend: *mut DiBackend, $($arg: $type),*) -> *mut DiError {
                    // SAFETY: the header's contract; handles are looked up before they are passed on.
                    unsafe {
                        guard(backend, stringify!($function), |layer| {
                            let (below, _) = layer.tables.$table.as_ref().expect("the layer offers it");
                            $(let $arg = $arg.below(layer, stringify!($function))?;)*
                            let function = below.$function.expect("there, as the layer's is");
                            layer.took(stringify!($function), function(layer.next.raw, $($arg),*))
                        })
                    }
                }
            )*
            $Api {
                struct_size: size_of::<$Api>() as u32,
                reserved0: 0,
                $($function: below.$function.map(|_| $function as _),)*
                $($own: below.$own.map(|_| $own as _),)*
            }
        }
    };
}

/// A function that destroys an object of which the layer keeps nothing.
macro_rules! pass_on_void {
    ($table:ident, $function:ident($arg:ident: $type:ty)) => {
        unsafe extern "C" fn $function(backend: *mut DiBackend, $arg: $type) {
            // SAFETY: the header's contract.
            unsafe {
                guard_void(backend, stringify!($function), |layer| {
                    let (below, _) = layer.tables.$table.as_ref().expect("the layer offers it");
                    let function = below.$function.expect("there, as the layer's is");
                    function(layer.next.raw, $arg);
                    Ok(())
                });
            }
        }
    };
}

pass_on!(collective, collective_over: DiCollectiveApi {
    group_id(id: *mut u8, bytes: *mut u64);
    comm_create(device: *mut DiDevice, id: *const u8, bytes: u64, rank: u32, ranks: u32, flags: u32, out: *mut *mut DiComm);
    all_reduce(comm: *mut DiComm, stream: *mut DiStream, input: *const DiTensor, output: *const DiTensor, reduce: u32);
    all_gather(comm: *mut DiComm, stream: *mut DiStream, input: *const DiTensor, output: *const DiTensor);
    reduce_scatter(comm: *mut DiComm, stream: *mut DiStream, input: *const DiTensor, output: *const DiTensor, reduce: u32);
    all_to_all(
        comm: *mut DiComm, stream: *mut DiStream, input: *const DiTensor, to: *const u64, output: *const DiTensor,
        from: *const u64
    );
    send(comm: *mut DiComm, stream: *mut DiStream, tensor: *const DiTensor, to: u32);
    recv(comm: *mut DiComm, stream: *mut DiStream, tensor: *const DiTensor, from: u32);
} own { comm_destroy });
pass_on_void!(collective, comm_destroy(comm: *mut DiComm));

pass_on!(prepack, prepack_over: DiPrepackApi {
    query(device: *mut DiDevice, op: u32, version: u32, arg: u32, canonical: *const DiTensor, out: *mut DiPrepackInfo);
    pack(stream: *mut DiStream, canonical: *const DiTensor, layout: u32, dst: *mut c_void, bytes: u64);
} own {});

pass_on!(profile, profile_over: DiProfileApi {
    begin(stream: *mut DiStream);
    end(stream: *mut DiStream, records: *mut u64);
    record(stream: *mut DiStream, index: u64, out: *mut DiProfileRecord);
} own {});

pass_on!(vmm, vmm_over: DiVmmApi {
    create(device: *mut DiDevice, space: u32, bytes: u64, out: *mut *mut DiPhysical);
    map(range: *mut DiRange, offset: u64, physical: *mut DiPhysical);
    unmap(range: *mut DiRange, offset: u64, bytes: u64);
} own { reserve, unreserve, release });
pass_on_void!(vmm, release(physical: *mut DiPhysical));

/// Reserved addresses count as memory, whether something is mapped there or not.
unsafe extern "C" fn reserve(
    backend: *mut DiBackend,
    device: *mut DiDevice,
    bytes: u64,
    out: *mut *mut DiRange,
    address: *mut *mut c_void,
) -> *mut DiError {
    // SAFETY: the header's contract.
    unsafe {
        guard(backend, "reserve", |layer| {
            let (below, _) = layer.tables.vmm.as_ref().expect("the layer offers it");
            let (device, next) = layer.device("reserve", device.addr())?;
            let function = below.reserve.expect("there, as the layer's is");
            let error = layer.took("reserve", function(layer.next.raw, exposed(next), bytes, out, address))?;
            if error.is_null() {
                let start = (*address).expose_provenance() as u64;
                let all = start..start.saturating_add(bytes);
                layer.world().allocate((*out).expose_provenance(), device, all.clone(), all);
            }
            Ok(error)
        })
    }
}

unsafe extern "C" fn unreserve(backend: *mut DiBackend, range: *mut DiRange) {
    // SAFETY: the header's contract.
    unsafe {
        guard_void(backend, "unreserve", |layer| {
            let (below, _) = layer.tables.vmm.as_ref().expect("the layer offers it");
            let mut world = layer.world();
            let reserved =
                world.buffers.iter().find(|(_, buffer)| buffer.next == range.addr()).map(|(handle, _)| handle);
            reserved.map(|handle| world.free(handle));
            drop(world);
            let function = below.unreserve.expect("there, as the layer's is");
            function(layer.next.raw, range);
            Ok(())
        });
    }
}

fn graph_over(below: &DiGraphApi) -> DiGraphApi {
    DiGraphApi {
        struct_size: size_of::<DiGraphApi>() as u32,
        reserved0: 0,
        begin: below.begin.map(|_| capture_begin as _),
        end: below.end.map(|_| capture_end as _),
        instantiate: below.instantiate.map(|_| instantiate as _),
        update: below.update.map(|_| update as _),
        launch: below.launch.map(|_| launch as _),
        graph_destroy: below.graph_destroy.map(|_| graph_destroy as _),
        exec_destroy: below.exec_destroy.map(|_| exec_destroy as _),
    }
}

/// A function of the backend's graph table.
macro_rules! below_graph {
    ($layer:expr, $function:ident, $($arg:expr),*) => {{
        let (below, _) = $layer.tables.graph.as_ref().expect("the layer offers it");
        let function = below.$function.expect("there, as the layer's is");
        $layer.took(stringify!($function), function($layer.next.raw, $($arg),*))
    }};
}

unsafe extern "C" fn capture_begin(backend: *mut DiBackend, stream: *mut DiStream) -> *mut DiError {
    // SAFETY: the header's contract.
    unsafe {
        guard(backend, "begin", |layer| {
            layer.on_stream("begin", stream.addr(), |stream, _, next| {
                layer.warn_of_capture();
                let error = below_graph!(layer, begin, exposed(next))?;
                if let (true, Some(stream)) = (error.is_null(), layer.world().streams.get_mut(stream)) {
                    stream.captured = Some(Default::default());
                }
                Ok(error)
            })
        })
    }
}

unsafe extern "C" fn capture_end(
    backend: *mut DiBackend,
    stream: *mut DiStream,
    out: *mut *mut DiGraph,
) -> *mut DiError {
    // SAFETY: the header's contract.
    unsafe {
        guard(backend, "end", |layer| {
            layer.on_stream("end", stream.addr(), |stream, device, next| {
                let mut raw = std::ptr::null_mut();
                let error = below_graph!(layer, end, exposed(next), &raw mut raw)?;
                let uses = layer.world().streams.get_mut(stream).and_then(|stream| stream.captured.take());
                if !error.is_null() {
                    return Ok(error);
                }
                let Some(uses) = uses else {
                    let problem = format!("{stream} was not captured, but end succeeded");
                    return Err(layer.reporter.refuse(&Finding::new(Rule::Capture, Culprit::Backend, "end", problem)));
                };
                let next = layer.made("end", raw, Kind::Graph)?;
                out.write(pointer(layer.world().graphs.insert(Graph { next, device, uses })));
                Ok(error)
            })
        })
    }
}

unsafe extern "C" fn instantiate(
    backend: *mut DiBackend,
    graph: *mut DiGraph,
    out: *mut *mut DiGraphExec,
) -> *mut DiError {
    // SAFETY: the header's contract.
    unsafe {
        guard(backend, "instantiate", |layer| {
            let graph = layer.graph("instantiate", graph.addr())?;
            let mut raw = std::ptr::null_mut();
            let error = below_graph!(layer, instantiate, exposed(graph.next), &raw mut raw)?;
            if error.is_null() {
                let next = layer.made("instantiate", raw, Kind::Exec)?;
                out.write(pointer(layer.world().execs.insert(Graph { next, ..graph })));
            }
            Ok(error)
        })
    }
}

unsafe extern "C" fn update(
    backend: *mut DiBackend,
    exec: *mut DiGraphExec,
    graph: *mut DiGraph,
    updated: *mut i32,
) -> *mut DiError {
    // SAFETY: the header's contract.
    unsafe {
        guard(backend, "update", |layer| {
            let (handle, _) = layer.find("update", Kind::Exec, exec.addr())?;
            let graph = layer.graph("update", graph.addr())?;
            let next = layer.world().execs.get(handle).map_or(0, |exec| exec.next);
            let error = below_graph!(layer, update, exposed(next), exposed(graph.next), updated)?;
            if let (true, Some(exec)) = (error.is_null() && *updated != 0, layer.world().execs.get_mut(handle)) {
                exec.uses = graph.uses;
            }
            Ok(error)
        })
    }
}

unsafe extern "C" fn launch(backend: *mut DiBackend, exec: *mut DiGraphExec, stream: *mut DiStream) -> *mut DiError {
    // SAFETY: the header's contract.
    unsafe {
        guard(backend, "launch", |layer| {
            let exec = layer.find("launch", Kind::Exec, exec.addr())?;
            layer.on_stream("launch", stream.addr(), |stream, device, next| {
                layer.same_device("launch", exec, (stream, device))?;
                let Some(graph) = layer.world().execs.get(exec.0).cloned() else { return Ok(std::ptr::null_mut()) };
                let freed = graph.uses.iter().find(|&&buffer| layer.world().buffers.get(buffer).is_none()).copied();
                if let Some(buffer) = freed {
                    let problem = format!("{} uses {buffer}, which was freed", exec.0);
                    layer.reporter.report(&Finding::new(Rule::Memory, Culprit::Core, "launch", problem))?;
                }
                layer.world().submit(stream, &graph.uses.into_iter().collect::<Vec<_>>());
                below_graph!(layer, launch, exposed(graph.next), exposed(next))
            })
        })
    }
}

unsafe extern "C" fn graph_destroy(backend: *mut DiBackend, graph: *mut DiGraph) {
    // SAFETY: the header's contract.
    unsafe {
        guard_void(backend, "graph_destroy", |layer| {
            let (graph, _) = layer.find("graph_destroy", Kind::Graph, graph.addr())?;
            let gone = layer.world().graphs.remove(graph);
            let (below, _) = layer.tables.graph.as_ref().expect("the layer offers it");
            if let (Some(gone), Some(destroy)) = (gone, below.graph_destroy) {
                destroy(layer.next.raw, exposed(gone.next));
            }
            Ok(())
        });
    }
}

unsafe extern "C" fn exec_destroy(backend: *mut DiBackend, exec: *mut DiGraphExec) {
    // SAFETY: the header's contract.
    unsafe {
        guard_void(backend, "exec_destroy", |layer| {
            let (exec, _) = layer.find("exec_destroy", Kind::Exec, exec.addr())?;
            let gone = layer.world().execs.remove(exec);
            let (below, _) = layer.tables.graph.as_ref().expect("the layer offers it");
            if let (Some(gone), Some(destroy)) = (gone, below.exec_destroy) {
                destroy(layer.next.raw, exposed(gone.next));
            }
            Ok(())
        });
    }
}

impl Layer {
    fn graph(&self, what: &str, address: usize) -> Result<Graph, Fault> {
        let (graph, _) = self.find(what, Kind::Graph, address)?;
        let found = self.world().graphs.get(graph).cloned();
        found.ok_or_else(|| Fault::invalid(format!("{what}: {graph} went while it was used")))
    }
}
