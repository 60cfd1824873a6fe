//! Graphs: recorded work of a stream, launched again with one call.

use std::sync::Arc;

use deepinfer_plugin_api::sdk::{Fault, GraphBackend};

use crate::acl::has_graphs;
use crate::acl::sys::{self, aclmdlRI};
use crate::backend::Ascend;
use crate::device::Device;
use crate::faults::FaultWord;
use crate::stream::Stream;

/// What a capture made. AscendCL gives one handle, which is launchable as it is.
struct Recording {
    device: Arc<Device>,
    raw: aclmdlRI,
    /// Known to the kernels in it.
    _faults: Arc<FaultWord>,
}

// SAFETY: a recording belongs to no thread.
unsafe impl Send for Recording {}
// SAFETY: as above; the boundary launches it from one thread at a time.
unsafe impl Sync for Recording {}

impl Drop for Recording {
    fn drop(&mut self) {
        let Ok(acl) = self.device.bind() else { return };
        if let Ok(destroy) = acl.aclmdlRIDestroy.as_ref() {
            // SAFETY: made by the end of a capture, destroyed once, when no launch is pending.
            let code = unsafe { destroy(self.raw) };
            let _ = self.device.check("the end of a graph", code);
        }
    }
}

/// Recorded work.
pub(crate) struct Graph(Arc<Recording>);

/// Recorded work that can be launched.
pub(crate) struct Executable(Arc<Recording>);

impl GraphBackend for Ascend {
    type Graph = Graph;
    type Executable = Executable;

    fn begin_capture(&self, stream: &Stream) -> Result<(), Fault> {
        let acl = stream.begin()?;
        if !has_graphs(acl) {
            return Err(Fault::unsupported("the CANN that is installed records no work of streams"));
        }
        // Other threads may allocate meanwhile; what this one does is its own affair.
        let mode = sys::ACL_MODEL_RI_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive.
        let code = unsafe { acl.aclmdlRICaptureBegin(stream.raw(), mode) };
        stream.device().check("the begin of a capture", code)?;
        stream.set_captured(true);
        Ok(())
    }

    fn end_capture(&self, stream: &Stream) -> Result<Graph, Fault> {
        let acl = stream.begin()?;
        if !has_graphs(acl) {
            return Err(Fault::unsupported("the CANN that is installed records no work of streams"));
        }
        stream.set_captured(false);
        let raw = end(acl, stream)?;
        let (device, faults) = (Arc::clone(stream.device()), Arc::clone(stream.faults()));
        Ok(Graph(Arc::new(Recording { device, raw, _faults: faults })))
    }

    fn instantiate(&self, graph: &Graph) -> Result<Executable, Fault> {
        Ok(Executable(Arc::clone(&graph.0)))
    }

    fn launch(&self, executable: &Executable, stream: &Stream) -> Result<(), Fault> {
        let acl = stream.begin()?;
        // SAFETY: both are alive.
        let code = unsafe { acl.aclmdlRIExecuteAsync(executable.0.raw, stream.raw()) };
        stream.device().check("the launch of a graph", code)
    }
}

/// Ends the capture of a stream. Where that fails, it is ended once more, and what that gives is not used: a stream that stayed
/// captured would answer every later call with errors of a capture that is over for its user.
fn end(acl: &sys::AscendCl, stream: &Stream) -> Result<aclmdlRI, Fault> {
    let once = || {
        let mut raw: aclmdlRI = std::ptr::null_mut();
        // SAFETY: the stream is alive; the address is writable.
        let code = unsafe { acl.aclmdlRICaptureEnd(stream.raw(), &mut raw) };
        (code, raw)
    };
    let (code, raw) = once();
    if code == sys::ACL_SUCCESS {
        return Ok(raw);
    }
    let fault = stream.device().fault("the end of a capture", code);
    match once() {
        (sys::ACL_SUCCESS, raw) => {
            // SAFETY: just made, launched nowhere.
            let code = unsafe { acl.aclmdlRIDestroy(raw) };
            let _ = stream.device().check("the end of a graph", code);
            Err(fault)
        }
        (sys::ACL_ERROR_RT_STREAM_NOT_CAPTURED | sys::ACL_ERROR_RT_STREAM_CAPTURE_INVALIDATED, _) => Err(fault),
        _ => Err(stream.give_up(fault)),
    }
}
