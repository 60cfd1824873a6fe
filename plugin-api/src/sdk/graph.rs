//! Graph capture of a backend written in Rust.

#![allow(unsafe_code)]

use crate::abi::*;
use crate::sdk::runtime_table::{boxed, object, unbox, with};
use crate::sdk::{Backend, Fault};

/// A backend that records the work of a stream and replays it. It says so in
/// [`Extras::graph`](crate::sdk::Extras::graph):
///
/// ```text
/// const EXTRAS: Extras<Self> = Extras { graph: Some(<Self as GraphBackend>::TABLE), ..Extras::NONE };
/// ```
///
/// While a stream is captured, what cannot be recorded fails with
/// [`FaultCode::NotCapturable`](crate::sdk::FaultCode::NotCapturable): allocations, waits, copies of pageable memory, and
/// kernels without `DI_PF_CAPTURABLE`.
pub trait GraphBackend: Backend {
    /// Recorded work.
    type Graph: Send + 'static;
    /// Recorded work that can be launched.
    type Executable: Send + 'static;

    /// Records the stream's work from here on instead of doing it.
    ///
    /// # Errors
    /// The stream is being captured already.
    fn begin_capture(&self, stream: &Self::Stream) -> Result<(), Fault>;

    /// Ends the recording.
    ///
    /// # Errors
    /// The stream is not being captured, or something in between could not be recorded.
    fn end_capture(&self, stream: &Self::Stream) -> Result<Self::Graph, Fault>;

    /// Makes recorded work launchable; may block.
    ///
    /// # Errors
    /// As the device says.
    fn instantiate(&self, graph: &Self::Graph) -> Result<Self::Executable, Fault>;

    /// Takes over addresses and scalars of a graph of the same form; `false` when the form is another one.
    ///
    /// # Errors
    /// As the device says.
    fn update(&self, _executable: &mut Self::Executable, _graph: &Self::Graph) -> Result<bool, Fault> {
        Ok(false)
    }

    /// Enqueues the recorded work.
    ///
    /// # Errors
    /// As the device says.
    fn launch(&self, executable: &Self::Executable, stream: &Self::Stream) -> Result<(), Fault>;

    /// The table of these functions.
    const TABLE: DiGraphApi = DiGraphApi {
        struct_size: size_of::<DiGraphApi>() as u32,
        reserved0: 0,
        begin: Some(begin::<Self>),
        end: Some(end::<Self>),
        instantiate: Some(instantiate::<Self>),
        update: Some(update::<Self>),
        launch: Some(launch::<Self>),
        graph_destroy: Some(graph_destroy::<Self>),
        exec_destroy: Some(exec_destroy::<Self>),
    };
}

// Every function below has the contract of `runtime_table`.

unsafe extern "C" fn begin<B: GraphBackend>(backend: *mut DiBackend, stream: *mut DiStream) -> *mut DiError {
    // SAFETY: the contract of `runtime_table`.
    unsafe { with::<B>(backend, "graph_begin", |b| b.begin_capture(object(stream, "stream")?)) }
}

unsafe extern "C" fn end<B: GraphBackend>(
    backend: *mut DiBackend,
    stream: *mut DiStream,
    out: *mut *mut DiGraph,
) -> *mut DiError {
    // SAFETY: the contract of `runtime_table`.
    unsafe {
        with::<B>(backend, "graph_end", |b| {
            *out = boxed(b.end_capture(object(stream, "stream")?)?);
            Ok(())
        })
    }
}

unsafe extern "C" fn instantiate<B: GraphBackend>(
    backend: *mut DiBackend,
    graph: *mut DiGraph,
    out: *mut *mut DiGraphExec,
) -> *mut DiError {
    // SAFETY: the contract of `runtime_table`.
    unsafe {
        with::<B>(backend, "graph_instantiate", |b| {
            *out = boxed(b.instantiate(object(graph, "graph")?)?);
            Ok(())
        })
    }
}

unsafe extern "C" fn update<B: GraphBackend>(
    backend: *mut DiBackend,
    executable: *mut DiGraphExec,
    graph: *mut DiGraph,
    updated: *mut i32,
) -> *mut DiError {
    // SAFETY: the contract of `runtime_table`; nobody else uses the executable during its update.
    unsafe {
        with::<B>(backend, "graph_update", |b| {
            let executable = executable.cast::<B::Executable>().as_mut();
            let executable = executable.ok_or_else(|| Fault::invalid("no executable graph was given"))?;
            *updated = i32::from(b.update(executable, object(graph, "graph")?)?);
            Ok(())
        })
    }
}

unsafe extern "C" fn launch<B: GraphBackend>(
    backend: *mut DiBackend,
    executable: *mut DiGraphExec,
    stream: *mut DiStream,
) -> *mut DiError {
    // SAFETY: the contract of `runtime_table`.
    unsafe {
        with::<B>(backend, "graph_launch", |b| {
            b.launch(object(executable, "executable graph")?, object(stream, "stream")?)
        })
    }
}

unsafe extern "C" fn graph_destroy<B: GraphBackend>(_: *mut DiBackend, graph: *mut DiGraph) {
    // SAFETY: the contract of `runtime_table`.
    unsafe { unbox::<B::Graph>(graph) }
}

unsafe extern "C" fn exec_destroy<B: GraphBackend>(_: *mut DiBackend, executable: *mut DiGraphExec) {
    // SAFETY: the contract of `runtime_table`.
    unsafe { unbox::<B::Executable>(executable) }
}
