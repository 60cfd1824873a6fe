//! Graphs: recorded work of a stream, launched again with one call.

use std::sync::Arc;

use cudarc::driver::sys::{self, CUgraph, CUgraphExec};
use deepinfer_plugin_api::sdk::{Fault, GraphBackend};

use crate::backend::Nvidia;
use crate::error::check;
use crate::stream::{FaultWord, Stream};

/// Recorded work, and the fault word that its kernels know.
pub(crate) struct Graph(CUgraph, Arc<FaultWord>);

// SAFETY: a graph is a description that belongs to no thread.
unsafe impl Send for Graph {}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made by the end of a capture, destroyed once.
        let _ = unsafe { sys::cuGraphDestroy(self.0) };
    }
}

/// Recorded work that can be launched, with that fault word.
pub(crate) struct Executable(CUgraphExec, #[allow(dead_code)] Arc<FaultWord>);

// SAFETY: as for graphs; the boundary launches it from one thread at a time.
unsafe impl Send for Executable {}

impl Drop for Executable {
    fn drop(&mut self) {
        // SAFETY: made by the instantiation, destroyed once, when no launch is pending.
        let _ = unsafe { sys::cuGraphExecDestroy(self.0) };
    }
}

impl GraphBackend for Nvidia {
    type Graph = Graph;
    type Executable = Executable;

    fn begin_capture(&self, stream: &Stream) -> Result<(), Fault> {
        stream.device().bind()?;
        // Other threads may allocate meanwhile; what this one does is its own affair.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive.
        check("the begin of a capture", unsafe { sys::cuStreamBeginCapture_v2(stream.raw(), mode) })
    }

    fn end_capture(&self, stream: &Stream) -> Result<Graph, Fault> {
        stream.device().bind()?;
        let mut graph: CUgraph = std::ptr::null_mut();
        // SAFETY: the stream is alive; the address is writable.
        check("the end of a capture", unsafe { sys::cuStreamEndCapture(stream.raw(), &mut graph) })?;
        Ok(Graph(graph, Arc::clone(stream.faults())))
    }

    fn instantiate(&self, graph: &Graph) -> Result<Executable, Fault> {
        let mut executable: CUgraphExec = std::ptr::null_mut();
        // SAFETY: the graph is alive; the address is writable.
        let status = unsafe { sys::cuGraphInstantiateWithFlags(&mut executable, graph.0, 0) };
        check("the instantiation of a graph", status)?;
        Ok(Executable(executable, Arc::clone(&graph.1)))
    }

    fn update(&self, executable: &mut Executable, graph: &Graph) -> Result<bool, Fault> {
        // SAFETY: a struct of numbers and null addresses.
        let mut result: sys::CUgraphExecUpdateResultInfo = unsafe { std::mem::zeroed() };
        // SAFETY: both are alive, and no launch runs during an update.
        match unsafe { sys::cuGraphExecUpdate_v2(executable.0, graph.0, &mut result) } {
            sys::CUresult::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE => Ok(false),
            status => check("the update of a graph", status).map(|()| true),
        }
    }

    fn launch(&self, executable: &Executable, stream: &Stream) -> Result<(), Fault> {
        stream.device().bind()?;
        // SAFETY: both are alive.
        check("the launch of a graph", unsafe { sys::cuGraphLaunch(executable.0, stream.raw()) })
    }
}
