//! Cores of other versions: a small host that shakes hands and calls ops itself, with structs of any size.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::c_void;
use std::mem::zeroed;
use std::path::Path;

use deepinfer_plugin_api::OpInfo;
use deepinfer_plugin_api::abi::*;
use deepinfer_tests::layouts::{argument_struct, argument_struct_name};

use crate::arguments::Arguments;
use crate::edge::AtEdge;

/// How large a core's structs are.
pub(crate) enum Sizes {
    /// As the present header says.
    Present,
    /// As a kept header says: sizes by name.
    Of(HashMap<String, usize>),
    /// Longer by so many bytes, which are junk.
    Longer(usize),
}

/// What a core says of itself.
pub(crate) struct Core {
    pub(crate) minor: u16,
    pub(crate) sizes: Sizes,
}

impl Core {
    /// The present one.
    pub(crate) fn present() -> Self {
        Self { minor: DI_ABI_MINOR, sizes: Sizes::Present }
    }

    /// Whether it has this struct at all.
    pub(crate) fn knows(&self, name: &str) -> bool {
        match &self.sizes {
            Sizes::Present | Sizes::Longer(_) => true,
            Sizes::Of(sizes) => sizes.contains_key(name),
        }
    }

    /// Whether it has the field at byte `offset` of this struct, which it has.
    pub(crate) fn knows_field(&self, name: &str, offset: usize) -> bool {
        match &self.sizes {
            Sizes::Present | Sizes::Longer(_) => true,
            Sizes::Of(sizes) => offset < sizes[name],
        }
    }

    fn size_of(&self, name: &str, present: usize) -> usize {
        match &self.sizes {
            Sizes::Present => present,
            Sizes::Of(sizes) => *sizes.get(name).unwrap_or_else(|| panic!("this core has no {name}")),
            Sizes::Longer(bytes) => present + bytes,
        }
    }
}

/// An error of a plugin, read and released.
#[derive(Clone, Debug)]
pub(crate) struct RawError {
    pub(crate) code: i32,
    pub(crate) message: String,
}

/// Reads an error that a plugin returned, and releases it.
///
/// # Safety
/// `error` is null or was just handed over.
unsafe fn taken(error: *mut DiError) -> Result<(), RawError> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: not null, hence an error whose texts live until it is released, once, here.
    unsafe {
        let message = text((*error).message);
        let read = RawError { code: (*error).code, message };
        (*error).release.expect("errors release themselves")(error);
        Err(read)
    }
}

/// # Safety
/// A text of the boundary.
unsafe fn text(text: DiStr) -> String {
    if text.len == 0 {
        return String::new();
    }
    // SAFETY: the caller's contract.
    let bytes = unsafe { std::slice::from_raw_parts(text.ptr, text.len) };
    String::from_utf8(bytes.to_vec()).expect("plugins speak UTF-8")
}

thread_local! {
    /// Lines that a plugin wrote to this thread's core.
    static LINES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

unsafe extern "C" fn log(_: *mut c_void, _: i32, _: DiStr, message: DiStr) {
    // SAFETY: the header says that it is borrowed text.
    let line = unsafe { text(message) };
    LINES.with_borrow_mut(|lines| lines.push(line));
}

unsafe extern "C" fn log_enabled(_: *mut c_void, _: i32, _: DiStr) -> i32 {
    1
}

/// Lines of the log since the last time.
pub(crate) fn take_lines() -> Vec<String> {
    LINES.take()
}

/// A plugin's device under such a core. Memory is the host's own.
pub(crate) struct RawBackend {
    core: Core,
    /// A struct that has another size than the core's, for now.
    odd: RefCell<Option<(String, usize)>>,
    api: &'static DiBackendApi,
    runtime: &'static DiRuntimeApi,
    device: *mut DiDevice,
    stream: *mut DiStream,
    /// Whether the first tensor of two or more dimensions gets a record of quantisation that it has no use for.
    quantises: Cell<bool>,
    /// What the last call of an op said.
    last: RefCell<Option<RawError>>,
    /// Whether the last call wrote behind the end of a struct.
    strayed: Cell<Option<&'static str>>,
}

/// Calls the entry of a library with a struct of another size, or none. A library must not be asked twice in a process.
pub(crate) fn enter(
    path: &Path,
    core: &Core,
    odd: Option<(&str, usize)>,
) -> Result<Option<&'static DiBackendApi>, RawError> {
    let size = |name: &str, present| match odd {
        Some((odd, size)) if odd == name => size,
        _ => core.size_of(name, present),
    };
    // SAFETY: a library of these tests, never unloaded; structs of numbers, pointers and functions, whose zeros are valid
    // and of which `struct_size` bytes exist; what was just handed over is read once.
    unsafe {
        let library = Box::leak(Box::new(libloading::Library::new(path).unwrap_or_else(|e| panic!("{e}"))));
        let entry = *library.get::<DiEntryFn>(DI_ENTRY_SYMBOL).expect("a plugin");
        let host =
            DiHostApi { struct_size: 0, reserved0: 0, user: zeroed(), log: Some(log), log_enabled: Some(log_enabled) };
        let mut request: DiEntryRequest = zeroed();
        (request.min_major, request.max_major, request.minor) = (DI_ABI_MAJOR, DI_ABI_MAJOR, core.minor);
        request.host = AtEdge::of(&host, size("DiHostApi", size_of::<DiHostApi>())).leak();
        let request = AtEdge::of(&request, size("DiEntryRequest", size_of::<DiEntryRequest>()));
        let reply = AtEdge::of(&zeroed::<DiEntryReply>(), size("DiEntryReply", size_of::<DiEntryReply>()));
        let code = entry(request.at(), reply.at());
        let strayed = !reply.is_junk_from(size_of::<DiEntryReply>());
        assert!(!strayed, "the entry wrote behind the end of DiEntryReply");
        let reply: DiEntryReply = reply.read();
        let outcome = taken(reply.error);
        // Without room for the error, the code is all there is.
        match (code, outcome) {
            (0, outcome) => outcome.map(|()| reply.api.as_ref()),
            (_, Err(error)) => Err(error),
            (code, Ok(())) => Err(RawError { code, message: String::new() }),
        }
    }
}

impl RawBackend {
    /// Starts a plugin and opens its first device.
    pub(crate) fn start(path: &Path, core: Core) -> Self {
        Self::start_with(path, core, None)
    }

    /// As [`RawBackend::start`], with a struct of another size in the handshake.
    pub(crate) fn start_with(path: &Path, core: Core, odd: Option<(&str, usize)>) -> Self {
        let api = enter(path, &core, odd).unwrap_or_else(|error| panic!("{}: {error:?}", path.display()));
        let api = api.expect("a backend that has started has a table");
        let (mut device, mut stream) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: tables live as long as the library; the outputs are writable; errors were just handed over.
        unsafe {
            let runtime = &*api.runtime;
            let open = runtime.device_open.expect("a required function");
            taken(open(api.backend, 0, std::ptr::null(), &raw mut device)).expect("device 0");
            let create = runtime.stream_create.expect("a required function");
            taken(create(api.backend, device, 0, 0, &raw mut stream)).expect("a stream");
            let (last, odd, strayed, quantises) = Default::default();
            Self { core, odd, quantises, api, runtime, device, stream, last, strayed }
        }
    }

    /// From now on, this struct has `size` bytes.
    pub(crate) fn set_odd(&self, name: &str, size: usize) {
        self.odd.replace(Some((name.to_owned(), size)));
    }

    /// Whether from now on the first tensor of two or more dimensions gets a record of quantisation, if it has none.
    pub(crate) fn set_quantises(&self, quantises: bool) {
        self.quantises.set(quantises);
    }

    fn size_of(&self, name: &str, present: usize) -> usize {
        match &*self.odd.borrow() {
            Some((odd, size)) if odd == name => *size,
            _ => self.core.size_of(name, present),
        }
    }

    /// Implementations of an op, the preferred one first.
    pub(crate) fn implementations(&self, info: &OpInfo) -> Vec<&'static DiOpEntry> {
        // SAFETY: the table of a plugin that has started, of the present version, read at its own stride.
        let entry = |i: usize| unsafe { &*self.api.ops.byte_add(i * self.api.op_stride) };
        let mut found: Vec<&DiOpEntry> = (0..self.api.n_ops).map(entry).collect();
        found.retain(|entry| (entry.op_id, entry.op_version) == (info.id, info.version));
        found.sort_by_key(|entry| std::cmp::Reverse(entry.priority));
        found
    }

    /// What the last op call said; `None` if it was accepted.
    pub(crate) fn last_error(&self) -> Option<RawError> {
        self.last.borrow().clone()
    }

    /// The struct behind whose end the plugin wrote since the last question.
    pub(crate) fn take_strayed(&self) -> Option<&'static str> {
        self.strayed.take()
    }

    /// Lets a function of the plugin fill a struct; gives what it filled in.
    ///
    /// # Safety
    /// `T` is the struct `name` of the boundary, and `fill` calls a function that writes one.
    unsafe fn filled<T>(&self, name: &'static str, fill: impl FnOnce(*mut T) -> *mut DiError) -> Result<T, RawError> {
        // SAFETY: the caller's contract; zeros are valid.
        unsafe {
            let out = AtEdge::of(&zeroed::<T>(), self.size_of(name, size_of::<T>()));
            let outcome = taken(fill(out.at()));
            if !out.is_junk_from(size_of::<T>()) {
                self.strayed.set(Some(name));
            }
            outcome.map(|()| out.read())
        }
    }

    /// Describes device 0, its first space and its link to itself, as far as the plugin does.
    pub(crate) fn describe(&self, name: &str) -> Result<(), RawError> {
        let backend = self.api.backend;
        // SAFETY: functions of the table, each with the struct that it fills.
        unsafe {
            match name {
                "DiDeviceInfo" => {
                    let f = self.runtime.device_info.expect("a required function");
                    self.filled::<DiDeviceInfo>("DiDeviceInfo", |out| f(backend, 0, out))?;
                }
                "DiSpaceInfo" => {
                    let Some(f) = self.runtime.space_info else { return Ok(()) };
                    self.filled::<DiSpaceInfo>("DiSpaceInfo", |out| f(backend, 0, 0, out))?;
                }
                "DiLinkInfo" => {
                    let Some(f) = self.runtime.device_link else { return Ok(()) };
                    self.filled::<DiLinkInfo>("DiLinkInfo", |out| f(backend, 0, 0, out))?;
                }
                other => panic!("no function fills {other}"),
            }
        }
        Ok(())
    }

    /// Calls the op: asks, plans and runs as its implementation wants. [`RawBackend::last_error`] remembers the outcome.
    ///
    /// # Safety
    /// `args` are complete and valid arguments of `info`.
    pub(crate) unsafe fn run(&self, info: &'static OpInfo, args: *const DiOpHeader) -> Result<(), RawError> {
        // SAFETY: the same contract.
        let outcome = unsafe { self.call(info, args) };
        self.last.replace(outcome.as_ref().err().cloned());
        outcome
    }

    /// # Safety
    /// As [`RawBackend::run`].
    unsafe fn call(&self, info: &'static OpInfo, args: *const DiOpHeader) -> Result<(), RawError> {
        // SAFETY: the caller's contract; functions of the table get what the header says.
        unsafe {
            let quant_size = self.size_of("DiQuant", size_of::<DiQuant>());
            let mut call = Arguments::copy(info, args, quant_size);
            if self.quantises.get() {
                call.quantise(info, quant_size);
            }
            let size = self.size_of(&argument_struct_name(info), argument_struct(info).size);
            let mut declined = RawError { code: DI_E_UNSUPPORTED, message: format!("there is no {}", info.name) };
            for entry in self.implementations(info) {
                let proto = call.at_edge(size);
                if let Some(supports) = entry.supports {
                    let fill = |out| supports(self.api.backend, self.device, proto.at(), out);
                    let support = self.filled::<DiSupport>("DiSupport", fill)?;
                    if support.verdict == DI_SUPPORT_NO {
                        declined.message = text(support.reason);
                        continue;
                    }
                }
                let mut plan = std::ptr::null_mut();
                // Lives until the call is over.
                let mut workspace = Vec::new();
                if let Some(make) = entry.plan {
                    let fill = |out| make(self.api.backend, self.device, proto.at(), &raw mut plan, out);
                    let needs = self.filled::<DiPlanInfo>("DiPlanInfo", fill)?;
                    let align = needs.workspace_align.max(1) as usize;
                    workspace.resize(needs.workspace_bytes as usize + align, 0u8);
                    let start = workspace.as_mut_ptr().align_offset(align);
                    call.set_workspace(workspace[start..].as_mut_ptr().cast(), needs.workspace_bytes);
                }
                let run = entry.run.expect("an implementation");
                let args = call.at_edge(size);
                let outcome = taken(run(self.api.backend, plan, self.stream, args.at()));
                let sync = self.runtime.stream_sync.expect("a required function");
                let outcome = outcome.and(taken(sync(self.api.backend, self.stream)));
                if let (Some(destroy), false) = (entry.plan_destroy, plan.is_null()) {
                    destroy(self.api.backend, plan);
                }
                return outcome;
            }
            Err(declined)
        }
    }
}
