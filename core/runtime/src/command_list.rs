//! Recorded work: everything that a sequence of calls needs, so that it can be queued again at the price of the calls of
//! the plugin alone.
//!
//! A list owns deep copies of the argument structs, the plans, a workspace, and a share of all memory that is touched.
//! Where the backend captures graphs, and every step may be captured, the list is one graph; else the core replays it.

#![allow(unsafe_code)]

use std::any::Any;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Arc;

use deepinfer_ops::{OpCall, OpError, Tensor};
use deepinfer_plugin_api::abi::{
    DI_E_NOT_CAPTURABLE, DI_PF_CAPTURABLE, DiBackend, DiError, DiGraphApi, DiGraphExec, DiOpHeader, DiPlan, DiQuant,
    DiRunFn, DiStream, DiTensor, DiTensorList,
};
use deepinfer_plugin_api::{Kind, OpInfo};

use crate::backend::{PluginError, call};
use crate::memory::{Buffer, Opened, Progress, Retired};
use crate::plan::Plan;
use crate::raw::take_error;
use crate::stream::Stream;

/// Recorded ops, fills and copies of one stream; see [`OpenDevice::record`](crate::OpenDevice::record).
///
/// The content of the memory may change between launches; where it lies, shapes and scalars may not.
pub struct CommandList {
    /// Of the stream on which it was recorded.
    stream: Arc<Progress>,
    steps: Vec<Step>,
    graph: Option<Graph>,
    /// Why the backend's own capture is not used, if it is not.
    not_captured: &'static str,
    /// What the steps point to; a backend may have kept the addresses in what it captured.
    _arguments: Storage,
    _plans: Vec<Arc<Plan>>,
    _workspace: Option<Buffer>,
    _memory: Vec<Arc<dyn Any + Send + Sync>>,
    /// Memory of other devices, which the stream keeps until a launch is done, should the list be dropped before.
    peers: Vec<Arc<dyn Any + Send + Sync>>,
}

// SAFETY: the pointers lead to memory that the list owns and to the plugin's objects, which the thread that uses the
// stream hands over in `launch`.
unsafe impl Send for CommandList {}

/// One thing to be queued.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) work: Work,
}

/// What is queued.
pub(crate) enum Work {
    /// An op. The index is that of the implementation in the backend's list.
    Op { run: DiRunFn, plan: *mut DiPlan, args: *const DiOpHeader, index: usize },
    /// Bytes set to a value.
    Fill { target: *mut c_void, byte: u8, bytes: u64 },
    /// Bytes copied within the backend, of a `DI_COPY_*` kind.
    Copy { target: *mut c_void, source: *const c_void, bytes: u64, kind: u32 },
}

/// A step that failed, with what the plugin said.
pub(crate) struct Failed<'a> {
    pub(crate) step: &'a Step,
    pub(crate) error: PluginError,
}

impl Step {
    /// Takes an error over that is not null.
    #[cold]
    #[inline(never)]
    fn failed(&self, error: *mut DiError) -> Failed<'_> {
        // SAFETY: an error that the plugin has just handed over.
        let error = unsafe { take_error(error) }.expect("an error that is not null");
        Failed { step: self, error }
    }

    /// Queues the step.
    ///
    /// # Safety
    /// All addresses of the step are alive, and this thread alone uses the stream.
    #[inline]
    pub(crate) unsafe fn queue(&self, stream: &Stream) -> Result<(), Failed<'_>> {
        let backend = stream.opened.backend;
        // SAFETY: the same contract.
        let error = unsafe {
            match self.work {
                Work::Op { run, plan, args, .. } => run(backend.raw, plan, stream.for_work(), args),
                Work::Fill { target, byte, bytes } => {
                    call!(backend, fill, stream.for_work(), target, u32::from(byte), 1, bytes)
                }
                Work::Copy { target, source, bytes, kind } => {
                    call!(backend, copy, stream.for_work(), target, source, bytes, kind)
                }
            }
        };
        if error.is_null() { Ok(()) } else { Err(self.failed(error)) }
    }
}

impl CommandList {
    /// Number of ops, fills and copies.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Names of the ops in order; `fill` and `copy` for the rest.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &'static str> + '_ {
        self.steps.iter().map(|step| step.name)
    }

    /// Whether the backend captured it, so that a launch is one call of the plugin.
    pub fn is_captured(&self) -> bool {
        self.graph.is_some()
    }

    /// Why the backend did not capture it, as the end of a sentence; empty when it did.
    pub fn why_not_captured(&self) -> &'static str {
        self.not_captured
    }

    /// Whether it was recorded on this stream.
    pub(crate) fn is_of(&self, stream: &Stream) -> bool {
        Arc::ptr_eq(&self.stream, &stream.progress)
    }

    /// Queues all of it.
    pub(crate) fn launch(&self, stream: &Stream) -> Result<(), Launch<'_>> {
        self.peers.iter().for_each(|owner| stream.keep(owner.clone()));
        if let Some(graph) = &self.graph {
            // SAFETY: the graph was made for this backend, and all that it touches is alive with the list.
            return match unsafe { take_error((graph.launch)(stream.opened.backend.raw, graph.exec, stream.for_work())) }
            {
                None => Ok(()),
                Some(error) => Err(Launch::Graph(error)),
            };
        }
        // SAFETY: the list owns the arguments and a share of all memory; the stream is this thread's.
        self.steps.iter().try_for_each(|step| unsafe { step.queue(stream) }.map_err(Launch::Step))
    }
}

impl std::fmt::Debug for CommandList {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let how = if self.is_captured() { "captured" } else { "replayed" };
        write!(f, "{} recorded steps, {how}", self.len())
    }
}

/// Why a launch failed.
pub(crate) enum Launch<'a> {
    /// The captured graph, as a whole.
    Graph(PluginError),
    /// One step; those before it are queued.
    Step(Failed<'a>),
}

/// A captured list of the backend.
struct Graph {
    opened: Arc<Opened>,
    exec: *mut DiGraphExec,
    launch: LaunchFn,
    destroy: DestroyFn,
}

type LaunchFn = unsafe extern "C" fn(*mut DiBackend, *mut DiGraphExec, *mut DiStream) -> *mut DiError;
type DestroyFn = unsafe extern "C" fn(*mut DiBackend, *mut DiGraphExec);

impl Drop for Graph {
    fn drop(&mut self) {
        self.opened.retire(Retired::Graph(self.destroy, self.exec));
    }
}

/// Memory for copies of structs, in blocks that never move.
#[derive(Default)]
struct Storage {
    blocks: Vec<Vec<u64>>,
}

impl Storage {
    /// Room for `words`, zeroed.
    fn take(&mut self, words: usize) -> *mut u64 {
        const BLOCK_WORDS: usize = 8192;
        let is_full = self.blocks.last().is_none_or(|block| block.capacity() - block.len() < words);
        if is_full {
            self.blocks.push(Vec::with_capacity(words.max(BLOCK_WORDS)));
        }
        let block = self.blocks.last_mut().expect("a block was just added");
        let start = block.len();
        block.resize(start + words, 0);
        // SAFETY: within the block, which has room for `words` more than it had, so that it did not move.
        unsafe { block.as_mut_ptr().add(start) }
    }

    /// A copy of `count` values of a `repr(C)` type.
    ///
    /// # Safety
    /// `from` points to `count` values, aligned to at most 8 bytes; a count of 0 may come with any pointer.
    unsafe fn copy<T: Copy>(&mut self, from: *const T, count: usize) -> *mut T {
        const { assert!(align_of::<T>() <= align_of::<u64>()) }
        let to = self.take((count * size_of::<T>()).div_ceil(size_of::<u64>())).cast::<T>();
        if count > 0 {
            // SAFETY: the same contract; there is room for as many.
            unsafe { std::ptr::copy_nonoverlapping(from, to, count) };
        }
        to
    }

    /// A deep copy of an argument struct.
    ///
    /// # Safety
    /// `args` is a complete argument struct of `info`.
    unsafe fn copy_args(&mut self, info: &OpInfo, args: *const DiOpHeader) -> *mut DiOpHeader {
        // SAFETY: every offset lies in the struct and has the type that its kind says.
        unsafe {
            let copy = self.copy(args.cast::<u64>(), info.args_size.div_ceil(size_of::<u64>())).cast::<DiOpHeader>();
            for arg in info.args {
                let at = copy.byte_add(arg.offset);
                match arg.kind {
                    Kind::Tensor => self.own(&mut *at.cast::<DiTensor>()),
                    Kind::TensorList => {
                        let list = &mut *at.cast::<DiTensorList>();
                        let tensors = self.copy(list.ptr, list.len as usize);
                        (0..list.len as usize).for_each(|i| self.own(&mut *tensors.add(i)));
                        list.ptr = tensors;
                    }
                    Kind::U32 | Kind::I32 | Kind::F32 => {}
                }
            }
            copy
        }
    }

    /// Replaces what a descriptor points to by copies.
    ///
    /// # Safety
    /// `tensor` points to its shape, strides and scales.
    unsafe fn own(&mut self, tensor: &mut DiTensor) {
        // SAFETY: the same contract; scales are tensors without scales of their own.
        unsafe {
            let rank = tensor.ndim as usize;
            tensor.shape = self.copy(tensor.shape, rank);
            tensor.strides = self.copy(tensor.strides, rank);
            if !tensor.quant.is_null() {
                let quant: *mut DiQuant = self.copy(tensor.quant, 1);
                for part in [&mut (*quant).scale, &mut (*quant).global_scale, &mut (*quant).zero_point] {
                    if !part.is_null() {
                        let copy = self.copy(*part, 1);
                        self.own(&mut *copy);
                        *part = copy;
                    }
                }
                tensor.quant = quant;
            }
        }
    }
}

/// A command list in the making.
#[derive(Default)]
pub(crate) struct Recorder {
    steps: Vec<Step>,
    storage: Storage,
    plans: Vec<Arc<Plan>>,
    memory: HashMap<*const (), Arc<dyn Any + Send + Sync>>,
    peers: Vec<Arc<dyn Any + Send + Sync>>,
    /// Argument structs that get the workspace, and the bytes that their plans want.
    wants_workspace: Vec<(*mut DiOpHeader, u64)>,
    workspace_align: u64,
    /// The first step that the backend does not declare capturable.
    not_capturable: Option<&'static str>,
}

// SAFETY: as `CommandList`, which it becomes; the keys of `memory` are compared, never read.
unsafe impl Send for Recorder {}

impl Recorder {
    /// Records an op of an implementation; `plan` is `None` when it is called directly.
    ///
    /// # Safety
    /// `args` is a complete argument struct of `info`.
    pub(crate) unsafe fn op(
        &mut self,
        info: &'static OpInfo,
        (run, index, flags): (DiRunFn, usize, u32),
        plan: Option<&Arc<Plan>>,
        args: *const DiOpHeader,
    ) {
        // SAFETY: the same contract.
        let args = unsafe { self.storage.copy_args(info, args) };
        if let Some(plan) = plan {
            if plan.workspace_bytes > 0 {
                self.wants_workspace.push((args, plan.workspace_bytes));
                self.workspace_align = self.workspace_align.max(plan.workspace_align);
            }
            self.plans.push(plan.clone());
        }
        if flags & DI_PF_CAPTURABLE == 0 {
            self.not_capturable.get_or_insert(info.name);
        }
        let raw = plan.map_or(std::ptr::null_mut(), |plan| plan.raw);
        self.steps.push(Step { name: info.name, work: Work::Op { run, plan: raw, args, index } });
    }

    /// Records a fill or a copy.
    pub(crate) fn step(&mut self, name: &'static str, work: Work) {
        self.steps.push(Step { name, work });
    }

    /// Keeps the memory of a tensor, and of its scales, as long as the list.
    pub(crate) fn keep(&mut self, tensor: &Tensor) {
        for tensor in [Some(tensor), tensor.scale()].into_iter().flatten() {
            let owner = tensor.memory().owner;
            self.memory.entry(Arc::as_ptr(&owner).cast()).or_insert(owner);
        }
    }

    /// Keeps memory of another device.
    pub(crate) fn keep_peer(&mut self, tensor: &Tensor) {
        self.peers.push(tensor.memory().owner);
    }

    /// Keeps all memory of a call.
    pub(crate) fn keep_all(&mut self, call: &dyn OpCall) {
        call.tensors(&mut |_, tensor| self.keep(tensor));
    }

    /// Ends the recording: gives the steps their workspace, and lets the backend capture them if it can.
    ///
    /// # Errors
    /// The workspace cannot be allocated, or a step fails while it is captured.
    pub(crate) fn finish(
        self,
        stream: &Stream,
        align: u64,
        error: impl Fn(&'static str, u64, &PluginError) -> OpError,
        failed: impl Fn(Failed<'_>) -> OpError,
    ) -> Result<CommandList, OpError> {
        let bytes = self.wants_workspace.iter().map(|&(_, bytes)| bytes).max().unwrap_or(0);
        let mut workspace = None;
        if bytes > 0 {
            let memory = Buffer::new(&stream.opened, bytes, align.max(self.workspace_align))
                .map_err(|e| error("alloc", bytes, &e))?;
            for (args, bytes) in self.wants_workspace {
                // SAFETY: a copy in `storage`, which nobody else refers to yet.
                unsafe { ((*args).workspace, (*args).workspace_bytes) = (memory.address(), bytes) };
            }
            workspace = Some(memory);
        }
        let mut list = CommandList {
            stream: stream.progress.clone(),
            steps: self.steps,
            graph: None,
            not_captured: "",
            _arguments: self.storage,
            _plans: self.plans,
            _workspace: workspace,
            _memory: self.memory.into_values().collect(),
            peers: self.peers,
        };
        let backend = stream.opened.backend;
        match (backend.graph(), self.not_capturable) {
            (None, _) => list.not_captured = "the backend has no graphs",
            (Some(_), Some(op)) => {
                list.not_captured = "an implementation does not declare that it can be captured";
                tracing::info!("{}: a list is replayed step by step: {op} cannot be captured", backend.name());
            }
            (Some(table), None) => match capture(&list.steps, &table, stream) {
                Ok(graph) => list.graph = Some(graph),
                Err(NotCaptured::Step(Failed { error, .. }) | NotCaptured::Graph(_, error))
                    if error.code == DI_E_NOT_CAPTURABLE =>
                {
                    list.not_captured = "a step cannot be captured";
                    tracing::info!("{}: a list is replayed step by step: {error}", backend.name());
                }
                Err(NotCaptured::Step(step)) => return Err(failed(step)),
                Err(NotCaptured::Graph(function, e)) => return Err(error(function, 0, &e)),
            },
        }
        Ok(list)
    }
}

/// Why there is no graph.
enum NotCaptured<'a> {
    /// A step failed.
    Step(Failed<'a>),
    /// A function of the graph table failed.
    Graph(&'static str, PluginError),
}

/// Has the backend capture the steps. They do not run.
fn capture<'a>(steps: &'a [Step], table: &DiGraphApi, stream: &Stream) -> Result<Graph, NotCaptured<'a>> {
    const WHOLE: &str = "`LoadedBackend::graph` refuses tables with gaps";
    let raw = stream.opened.backend.raw;
    let (mut graph, mut exec) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the table is the backend's; stream, steps and out-pointers are alive; a graph is destroyed once.
    unsafe {
        let destroy_graph = table.graph_destroy.expect(WHOLE);
        let taken = |function, error| take_error(error).map_or(Ok(()), |e| Err(NotCaptured::Graph(function, e)));
        taken("graph begin", table.begin.expect(WHOLE)(raw, stream.for_work()))?;
        let queued = steps.iter().try_for_each(|step| step.queue(stream)).map_err(NotCaptured::Step);
        // A capture must be ended whatever came of it, or the stream stays unusable.
        let ended = taken("graph end", table.end.expect(WHOLE)(raw, stream.raw, &raw mut graph));
        let instantiated = queued
            .and(ended)
            .and_then(|()| taken("graph instantiate", table.instantiate.expect(WHOLE)(raw, graph, &raw mut exec)));
        if !graph.is_null() {
            destroy_graph(raw, graph);
        }
        instantiated?;
    }
    let (launch, destroy) = (table.launch.expect(WHOLE), table.exec_destroy.expect(WHOLE));
    Ok(Graph { opened: stream.opened.clone(), exec, launch, destroy })
}
