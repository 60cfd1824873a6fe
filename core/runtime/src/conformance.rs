//! What only C can present to a plugin, for tests of plugins: structs of every length that end where memory ends, values
//! that nobody knows, the handshake of another core, a stream that is destroyed with work in it.
//!
//! A model never does any of this. A plugin that reads beyond `struct_size` faults here, and the process with it: call
//! these functions in a process of their own.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fmt;
use std::mem::offset_of;
use std::path::Path;

use deepinfer_ops::{OpCall, OpError, Tensor};
use deepinfer_plugin_api::abi::{
    DI_ABI_MAJOR, DI_ABI_MINOR, DI_COPY_D2D, DI_SUPPORT_YES, DiBackendApi, DiDevice, DiDeviceInfo, DiEntryReply,
    DiEntryRequest, DiExt, DiHostApi, DiLinkInfo, DiOpHeader, DiPlanInfo, DiQuant, DiRuntimeApi, DiSpaceInfo,
    DiSupport, DiTensor,
};
use deepinfer_plugin_api::{Kind, OpInfo};
use memmap2::MmapMut;

use crate::backend::{LoadedBackend, PluginError, call};
use crate::device::OpenDevice;
use crate::memory::Buffer;
use crate::raw::{lend_text, read_sized, read_text_lossy, take_error};
use crate::{host, load};

/// A number that no field of this ABI has a meaning for.
const UNKNOWN: u32 = 0x7FFF_FFF0;

/// A zeroed struct at the end of a page, behind which nothing may be touched: who reads or writes beyond it faults.
struct Edge {
    memory: MmapMut,
    bytes: usize,
}

impl Edge {
    /// A multiple of the page size of every system.
    const HALF: usize = 1 << 16;

    /// Room for `bytes` bytes, at most [`Edge::HALF`]. It begins at a multiple of 8, so that up to 7 bytes that belong to
    /// nobody may lie between its end and the edge.
    fn new(bytes: usize) -> Result<Self, String> {
        unsafe extern "C" {
            fn mprotect(address: *mut c_void, bytes: usize, protection: i32) -> i32;
        }
        const PROT_NONE: i32 = 0;
        assert!(bytes <= Self::HALF, "{bytes} bytes are no struct");
        let text = |e: std::io::Error| format!("no memory for a struct at the end of a page: {e}");
        let mut memory = MmapMut::map_anon(2 * Self::HALF).map_err(text)?;
        // SAFETY: the upper half of a mapping of ours, which nothing refers to.
        if unsafe { mprotect(memory.as_mut_ptr().add(Self::HALF).cast(), Self::HALF, PROT_NONE) } != 0 {
            return Err(text(std::io::Error::last_os_error()));
        }
        let bytes = bytes.next_multiple_of(8);
        Ok(Self { memory, bytes })
    }

    /// A struct that says that it has `bytes` bytes.
    fn sized(bytes: usize) -> Result<Self, String> {
        let mut edge = Self::new(bytes)?;
        // SAFETY: every struct has room for its size.
        unsafe { edge.start().cast::<u32>().write(bytes as u32) };
        Ok(edge)
    }

    fn start(&mut self) -> *mut u8 {
        // SAFETY: within the mapping.
        unsafe { self.memory.as_mut_ptr().add(Self::HALF - self.bytes) }
    }

    /// `struct_size` as it is now: a plugin that fills the struct may lower it to what it knows.
    fn size(&mut self) -> u32 {
        // SAFETY: as in `sized`.
        unsafe { self.start().cast::<u32>().read() }
    }
}

/// Lengths of a struct: up to the beginning of each of these fields, whole, and as newer cores may make it.
macro_rules! lengths {
    ($Struct:ty: $($field:ident),*) => {{
        let whole = size_of::<$Struct>();
        vec![$(offset_of!($Struct, $field)),*, whole, whole + 8, whole + 64]
    }};
}

/// A struct that the plugin fills.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Filled {
    /// `DiDeviceInfo`.
    DeviceInfo,
    /// `DiSpaceInfo`, if the backend describes memory spaces.
    SpaceInfo,
    /// `DiLinkInfo`, if the backend describes links.
    LinkInfo,
}

impl Filled {
    /// All of them.
    pub const ALL: [Filled; 3] = [Filled::DeviceInfo, Filled::SpaceInfo, Filled::LinkInfo];

    /// Lengths at which a core may know it.
    pub fn lengths(self) -> Vec<usize> {
        match self {
            Self::DeviceInfo => lengths!(
                DiDeviceInfo: device_type, ordinal, pci_vendor, caps, dtype_mask, layout_mask, name, arch, uuid,
                total_bytes, numa_node, n_spaces, compute_units, isolation
            ),
            Self::SpaceInfo => lengths!(
                DiSpaceInfo: space_id, kind, flags, min_align, granularity, total_bytes
            ),
            Self::LinkInfo => lengths!(DiLinkInfo: link_class, flags, hops, bytes_per_s, latency_ns),
        }
    }
}

impl fmt::Display for Filled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DeviceInfo => "DiDeviceInfo",
            Self::SpaceInfo => "DiSpaceInfo",
            Self::LinkInfo => "DiLinkInfo",
        })
    }
}

/// Lets the plugin fill a struct of which this core knows only `bytes` bytes.
///
/// # Errors
/// The plugin declines, or says that it has written more than there is.
pub fn fill(backend: &LoadedBackend, device: u32, what: Filled, bytes: usize) -> Result<(), String> {
    let mut edge = Edge::sized(bytes)?;
    let out = edge.start();
    let raw = backend.raw;
    // SAFETY: of `out` as many bytes are writable as its `struct_size` says.
    let error = unsafe {
        take_error(match what {
            Filled::DeviceInfo => call!(backend, device_info, device, out.cast()),
            Filled::SpaceInfo => match backend.runtime.space_info {
                Some(space_info) => space_info(raw, device, 0, out.cast()),
                None => return Ok(()),
            },
            Filled::LinkInfo => match backend.runtime.device_link {
                Some(device_link) => device_link(raw, device, device, out.cast()),
                None => return Ok(()),
            },
        })
    };
    if let Some(error) = error {
        return Err(format!("{what} of {bytes} bytes is refused: {error}"));
    }
    match edge.size() as usize {
        said if said <= bytes => Ok(()),
        said => Err(format!("{what} of {bytes} bytes comes back with a struct_size of {said}")),
    }
}

/// A way to present a call of an op.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Presented {
    /// The argument struct ends after so many bytes: an older core's, the present one's, or a newer one's.
    Args(usize),
    /// `DiSupport` has so many bytes.
    Support(usize),
    /// `DiPlanInfo` has so many bytes.
    PlanInfo(usize),
    /// The op has an id that nobody knows.
    OpId,
    /// The op has a version that nobody knows.
    OpVersion,
    /// Flags that nobody knows are set.
    Flags,
    /// An extension is given that nobody knows.
    Extension,
    /// A tensor argument has an element type that nobody knows.
    ElementType(&'static str),
    /// A tensor argument has a layout that nobody knows.
    Layout(&'static str),
    /// The scales of a tensor argument have a meaning that nobody knows.
    Scheme(&'static str),
}

/// What became of a presented call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// It ran.
    Ran,
    /// It was planned, and not run: what the plan needs is not part of so short an answer.
    Planned,
    /// `supports` declined it.
    Declined,
    /// The call does not have the argument in question.
    Absent,
    /// It was refused by this function of the plugin.
    Refused(&'static str, PluginError),
}

impl Presented {
    /// What is presented to an op for the lengths of its structs.
    pub fn lengths_of(op: &OpInfo) -> Vec<Self> {
        let fields = op.args.iter().map(|arg| arg.offset).chain([op.args_size, op.args_size + 8, op.args_size + 512]);
        let args = [size_of::<DiOpHeader>()].into_iter().chain(fields.filter(|&at| at > size_of::<DiOpHeader>()));
        let support = lengths!(DiSupport: determinism, contract_id, reason, want_layout);
        let plan = lengths!(DiPlanInfo: flags, workspace_bytes, workspace_align, algo_id, est_flops, est_bytes);
        args.map(Self::Args)
            .chain(support.into_iter().map(Self::Support))
            .chain(plan.into_iter().map(Self::PlanInfo))
            .collect()
    }

    /// What is presented to an op in place of values that have a meaning.
    pub fn unknown_values_of(op: &OpInfo) -> Vec<Self> {
        let tensors = || op.args.iter().filter(|arg| arg.kind == Kind::Tensor).map(|arg| arg.name);
        let mut all = vec![Self::OpId, Self::OpVersion, Self::Flags, Self::Extension];
        all.extend(tensors().map(Self::ElementType));
        all.extend(tensors().map(Self::Layout));
        all.extend(tensors().map(Self::Scheme));
        all
    }
}

impl fmt::Display for Presented {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Args(bytes) => write!(f, "an argument struct of {bytes} bytes"),
            Self::Support(bytes) => write!(f, "a DiSupport of {bytes} bytes"),
            Self::PlanInfo(bytes) => write!(f, "a DiPlanInfo of {bytes} bytes"),
            Self::OpId => write!(f, "the arguments of an op that nobody knows"),
            Self::OpVersion => write!(f, "an op_version that nobody knows"),
            Self::Flags => write!(f, "flags that nobody knows"),
            Self::Extension => write!(f, "an extension that nobody knows"),
            Self::ElementType(arg) => write!(f, "{arg} with an element type that nobody knows"),
            Self::Layout(arg) => write!(f, "{arg} with a layout that nobody knows"),
            Self::Scheme(arg) => write!(f, "{arg} with a scale scheme that nobody knows"),
        }
    }
}

/// Presents a call to the first implementation of its op, and waits for the end of the work.
///
/// # Errors
/// The call is malformed, or there is no memory for it.
pub fn present(device: &OpenDevice, call: &dyn OpCall, how: Presented) -> Result<Answer, String> {
    let mut answer = Err("the backend has no implementation of it".to_owned());
    let checked = call.with_raw(device.place(), &mut |info, args| {
        // SAFETY: `with_raw` gives a complete struct of `info`, which it has checked.
        answer = unsafe { present_raw(device, info, args, how) };
    });
    checked.map_err(|error| error.to_string())?;
    answer
}

/// As [`present`], with another tensor in the place of an argument, which no check of the core has seen: of any format, rank
/// and extents. The plugin must refuse what does not fit.
///
/// # Errors
/// As [`present`].
///
/// # Panics
/// If the op has no tensor of this name.
pub fn present_instead(device: &OpenDevice, call: &dyn OpCall, arg: &str, tensor: &Tensor) -> Result<Answer, String> {
    let mut answer = Err("the backend has no implementation of it".to_owned());
    let checked = call.with_raw(device.place(), &mut |info, args| {
        let found = info.args.iter().find(|known| known.name == arg && known.kind == Kind::Tensor);
        let offset = found.expect("a tensor argument of the op").offset;
        tensor.with_raw(|raw| {
            // SAFETY: the offset is that of a tensor in the struct, which `with_raw` gives us to write; both descriptors live
            // until the closures return, and memory of what the new one describes is borrowed as long.
            unsafe {
                args.byte_add(offset).cast::<DiTensor>().write(*raw);
                answer = present_raw(device, info, args, Presented::Args(info.args_size));
            }
        });
    });
    checked.map_err(|error| error.to_string())?;
    answer
}

/// Whether the first implementation of an op makes plans: only then does it get a workspace.
pub fn has_plan(device: &OpenDevice, op: &OpInfo) -> bool {
    let ops = &device.loaded_backend().ops;
    device.first_implementation(op).is_some_and(|index| ops[index].entry.plan.is_some())
}

/// # Safety
/// `args` is a complete argument struct of `info`, of tensors that lie on the device.
unsafe fn present_raw(
    device: &OpenDevice,
    info: &OpInfo,
    args: *const DiOpHeader,
    how: Presented,
) -> Result<Answer, String> {
    let Some(index) = device.first_implementation(info) else { return Err("there is no implementation".to_owned()) };
    let (opened, backend) = (&device.stream().opened, device.loaded_backend());
    let entry = &backend.ops[index].entry;
    let bytes = match how {
        Presented::Args(bytes) => bytes,
        _ => info.args_size,
    };
    let mut edge = Edge::new(bytes)?;
    let head = edge.start().cast::<DiOpHeader>();
    let extension = DiExt { struct_size: size_of::<DiExt>() as u32, ext_id: UNKNOWN, next: std::ptr::null() };
    let mut quant = std::mem::MaybeUninit::<DiQuant>::zeroed();
    // SAFETY: both sides have as many bytes; what the struct points to lives until this function ends.
    unsafe {
        std::ptr::copy_nonoverlapping(args.cast::<u8>(), edge.start(), bytes.min(info.args_size));
        (*head).struct_size = bytes as u32;
        let tensor = |name: &str| {
            let arg = info.args.iter().find(|arg| arg.name == name).expect("an argument of the op");
            &mut *head.byte_add(arg.offset).cast::<DiTensor>()
        };
        if let Presented::ElementType(name) | Presented::Layout(name) | Presented::Scheme(name) = how
            && tensor(name).bits == 0
        {
            return Ok(Answer::Absent);
        }
        match how {
            Presented::OpId => (*head).op_id = UNKNOWN,
            Presented::OpVersion => (*head).op_version = UNKNOWN,
            Presented::Flags => (*head).flags |= 0xFFFF_0000,
            Presented::Extension => (*head).ext = &raw const extension,
            Presented::ElementType(name) => tensor(name).code = 0xF0,
            Presented::Layout(name) => tensor(name).layout = UNKNOWN,
            Presented::Scheme(name) => {
                let tensor = tensor(name);
                let quant = quant.as_mut_ptr();
                if tensor.quant.is_null() {
                    // A plain tensor gets scales that are the tensor itself.
                    (*quant).struct_size = size_of::<DiQuant>() as u32;
                    (*quant).scale =
                        args.byte_add(info.args.iter().find(|arg| arg.name == name).expect("found").offset).cast();
                } else {
                    quant.write(*tensor.quant);
                }
                (*quant).scheme = UNKNOWN;
                tensor.quant = quant;
            }
            Presented::Args(_) | Presented::Support(_) | Presented::PlanInfo(_) => {}
        }
    }
    let support_bytes = if let Presented::Support(bytes) = how { bytes } else { size_of::<DiSupport>() };
    let plan_bytes = if let Presented::PlanInfo(bytes) = how { bytes } else { size_of::<DiPlanInfo>() };

    // What asks about the form of a call is shown no content.
    let shown = info.args.iter().filter(|arg| arg.kind == Kind::Tensor && arg.offset + size_of::<DiTensor>() <= bytes);
    // SAFETY: these tensors lie within the struct.
    let contents: Vec<(*mut *mut c_void, *mut c_void)> = unsafe {
        let slots = shown.map(|arg| &raw mut (*head.byte_add(arg.offset).cast::<DiTensor>()).data);
        slots.map(|slot| (slot, slot.replace(std::ptr::null_mut()))).collect()
    };
    if let Some(supports) = entry.supports {
        let mut out = Edge::sized(support_bytes)?;
        // SAFETY: backend and device are alive; of `out` as much is writable as it says.
        if let Some(error) = unsafe { take_error(supports(backend.raw, opened.device, head, out.start().cast())) } {
            return Ok(Answer::Refused("supports", error));
        }
        // SAFETY: the verdict is part of every length that is presented.
        let verdict = unsafe { out.start().add(offset_of!(DiSupport, verdict)).cast::<u32>().read() };
        if verdict != DI_SUPPORT_YES {
            return Ok(Answer::Declined);
        }
    }
    let mut plan = std::ptr::null_mut();
    let mut _workspace = None;
    if let Some(make) = entry.plan {
        let mut out = Edge::sized(plan_bytes)?;
        // SAFETY: as above.
        let made = unsafe { take_error(make(backend.raw, opened.device, head, &raw mut plan, out.start().cast())) };
        if let Some(error) = made {
            return Ok(Answer::Refused("plan", error));
        }
        if plan_bytes < size_of::<DiPlanInfo>() {
            // A core that does not read how much workspace is wanted cannot run the plan; only making it is on trial.
            if let Some(destroy) = entry.plan_destroy.filter(|_| !plan.is_null()) {
                // SAFETY: just made, destroyed once.
                unsafe { destroy(backend.raw, plan) };
            }
            return Ok(Answer::Planned);
        }
        // SAFETY: as many bytes of it are readable as `struct_size` says.
        let plan_info = unsafe { read_sized::<DiPlanInfo>(out.start().cast()) }?;
        if plan_info.workspace_bytes > 0 {
            let align = u64::from(plan_info.workspace_align).max(256);
            let memory = Buffer::new(opened, plan_info.workspace_bytes, align).map_err(|e| e.to_string())?;
            // SAFETY: the head is part of every length that is presented.
            unsafe {
                (*head).workspace = memory.address();
                (*head).workspace_bytes = plan_info.workspace_bytes;
            }
            let stream = device.stream().for_work();
            // SAFETY: all of the workspace, which lives until the wait below. Zeroed, so that no answer is left to chance.
            let zeroed =
                unsafe { take_error(call!(backend, fill, stream, memory.address(), 0, 1, plan_info.workspace_bytes)) };
            if let Some(error) = zeroed {
                return Err(error.to_string());
            }
            _workspace = Some(memory);
        }
    }
    let run = entry.run.expect("`load` refuses entries without run");
    // SAFETY: the slots from which they were taken.
    contents.iter().for_each(|(slot, data)| unsafe { slot.write(*data) });
    // SAFETY: all that the call names lives until the wait below; this thread alone uses the stream.
    let ran = unsafe { take_error(run(backend.raw, plan, device.stream().for_work(), head)) };
    let late = device.stream().synchronize();
    if let Some(destroy) = entry.plan_destroy.filter(|_| !plan.is_null()) {
        // SAFETY: made above, destroyed once, after its work.
        unsafe { destroy(backend.raw, plan) };
    }
    Ok(match (ran, late) {
        (Some(error), _) => Answer::Refused("run", error),
        (None, Err(error)) => Answer::Refused("stream_sync", error),
        (None, Ok(())) => Answer::Ran,
    })
}

/// Values that nobody knows, given to the functions of the runtime table. None may be taken for something else.
///
/// # Errors
/// What was accepted that cannot be meant.
pub fn unknown_values(device: &OpenDevice, tensor: &Tensor) -> Result<(), String> {
    let (opened, backend) = (&device.stream().opened, device.loaded_backend());
    if Buffer::in_space(opened, UNKNOWN, 64, 64).is_ok() {
        return Err("memory is given in a space that does not exist".to_owned());
    }
    let (mut free, mut total) = (0, 0);
    // SAFETY: the device is open and both numbers are writable.
    let known =
        unsafe { take_error(call!(backend, device_mem_info, opened.device, UNKNOWN, &raw mut free, &raw mut total)) };
    if known.is_none() {
        return Err("device_mem_info describes a space that does not exist".to_owned());
    }
    // SAFETY: the function came with this backend.
    if backend.table.is_some_and(|table| !unsafe { table(backend.raw, UNKNOWN) }.is_null()) {
        return Err("a table is given for a number that has none".to_owned());
    }
    let at: *mut c_void = std::ptr::with_exposed_provenance_mut(tensor.address());
    let stream = device.stream();
    // SAFETY: the tensor has 64 bytes, more than one copy or pattern touches; the wait ends the work.
    let (copied, filled) = unsafe {
        let source = at.byte_add(32).cast_const();
        let copied = take_error(call!(backend, copy, stream.for_work(), at, source, 16, UNKNOWN));
        let filled = take_error(call!(backend, fill, stream.for_work(), at, 0, 3, 4));
        (copied, filled)
    };
    let late = stream.synchronize();
    if copied.is_none() && late.is_ok() {
        return Err(format!("a copy of kind {UNKNOWN:#x} is made, which is none of DI_COPY_*"));
    }
    if filled.is_none() && late.is_ok() {
        return Err("a fill with a pattern of 3 bytes is done; a pattern has 1, 2 or 4".to_owned());
    }
    Ok(())
}

/// Opens the device with an extension that nobody knows: it opens, or is refused as unsupported or invalid.
///
/// # Errors
/// The device is refused with another code.
pub fn open_with_unknown_extension(backend: &LoadedBackend, index: u32) -> Result<(), String> {
    let extension = DiExt { struct_size: size_of::<DiExt>() as u32, ext_id: UNKNOWN, next: std::ptr::null() };
    let mut device: *mut DiDevice = std::ptr::null_mut();
    // SAFETY: extension and out-pointer live for the call; what opens is closed.
    unsafe {
        match take_error(call!(backend, device_open, index, &raw const extension, &raw mut device)) {
            None => call!(backend, device_close, device),
            Some(error) => return expect_refusal("a device with an extension that nobody knows", &error),
        }
    }
    Ok(())
}

/// The code of a refusal is `DI_E_INVALID`, `DI_E_UNSUPPORTED` or `DI_E_ABI`: nothing is broken.
///
/// # Errors
/// It has another code.
pub fn expect_refusal(what: &str, error: &PluginError) -> Result<(), String> {
    use deepinfer_plugin_api::abi::{DI_E_ABI, DI_E_INVALID, DI_E_UNSUPPORTED};
    if matches!(error.code, DI_E_INVALID | DI_E_UNSUPPORTED | DI_E_ABI) && !error.is_lasting() {
        return Ok(());
    }
    Err(format!("{what} is refused with code {} ({error}), but must be invalid (1) or unsupported (2)", error.code))
}

/// Lets the stream wait for an event that was never recorded. It must not block.
///
/// # Errors
/// As the plugin says.
pub fn wait_for_unrecorded_event(device: &OpenDevice) -> Result<(), String> {
    let (opened, backend, stream) = (&device.stream().opened, device.loaded_backend(), device.stream());
    let mut event = std::ptr::null_mut();
    let text = |error: Option<PluginError>| error.map_or(Ok(()), |error| Err(error.to_string()));
    // SAFETY: the device is open, the event lives until it is destroyed, and this thread alone uses the stream.
    unsafe {
        text(take_error(call!(backend, event_create, opened.device, 0, &raw mut event)))?;
        let waited = text(take_error(call!(backend, event_wait, stream.for_work(), event)));
        let ended = stream.synchronize().map_err(|error| error.to_string());
        call!(backend, event_destroy, event);
        waited.and(ended)
    }
}

/// Copies `source` to `target` many times on a stream of its own, and destroys the stream at once. The work must come to
/// its end, which an event tells.
///
/// # Errors
/// As the plugin says.
pub fn destroy_busy_stream(device: &OpenDevice, target: &Tensor, source: &Tensor, copies: u32) -> Result<(), String> {
    let (opened, backend) = (&device.stream().opened, device.loaded_backend());
    assert_eq!(target.bytes(), source.bytes(), "as many bytes on both sides");
    let (mut stream, mut event) = (std::ptr::null_mut(), std::ptr::null_mut());
    let text = |error: Option<PluginError>| error.map_or(Ok(()), |error| Err(error.to_string()));
    let to: *mut c_void = std::ptr::with_exposed_provenance_mut(target.address());
    let from: *const c_void = std::ptr::with_exposed_provenance(source.address());
    // SAFETY: device, stream and event are alive where they are used, and destroyed once; the tensors are borrowed until
    // the event has come.
    unsafe {
        text(take_error(call!(backend, stream_create, opened.device, 0, 0, &raw mut stream)))?;
        let mut queued = text(take_error(call!(backend, event_create, opened.device, 0, &raw mut event)));
        if queued.is_ok() {
            for _ in 0..copies {
                let copy = take_error(call!(backend, copy, stream, to, from, target.bytes() as u64, DI_COPY_D2D));
                queued = queued.and(text(copy));
            }
            queued = queued.and(text(take_error(call!(backend, event_record, event, stream))));
        }
        call!(backend, stream_destroy, stream);
        if !event.is_null() {
            if queued.is_ok() {
                queued = text(take_error(call!(backend, event_sync, event)));
            }
            call!(backend, event_destroy, event);
        }
        queued
    }
}

/// Whether the backend has a function that ends it and joins its threads. Not known of one that layers are over: theirs
/// always have it.
pub fn has_shutdown(backend: &LoadedBackend) -> bool {
    backend.layers.is_empty() && backend.shutdown.is_some()
}

/// Fills the workspace of a stream, if there is one: what a planned op finds in it then.
///
/// # Errors
/// As [`deepinfer_ops::Device::fill`].
pub fn fill_workspace(device: &OpenDevice, byte: u8) -> Result<(), OpError> {
    device.fill_workspace(byte)
}

/// A core other than this one, as the entry of a plugin sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Core {
    /// The first minor, with the shorter table of the host.
    Older,
    /// A minor to come, with longer structs.
    Newer,
    /// A major to come, which this plugin cannot speak.
    OtherMajor,
}

impl Core {
    /// All of them.
    pub const ALL: [Core; 3] = [Core::Older, Core::Newer, Core::OtherMajor];

    /// Name in the name of a case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Older => "older-core",
            Self::Newer => "newer-core",
            Self::OtherMajor => "other-major",
        }
    }
}

/// Loads the library and shakes hands as another core would, with structs at the ends of pages. The entry of a plugin is
/// called once per process: nothing else may have loaded it.
///
/// # Errors
/// What the plugin did wrong. That it refuses an older or another core with a sentence is its right.
pub fn shake_hands_as(core: Core, path: &Path, options: &str) -> Result<(), String> {
    let path = path.canonicalize().map_err(|e| format!("{}: {e}", path.display()))?;
    let entry = load::open(&path).map_err(|e| e.to_string())?;
    let longer = if core == Core::Newer { 64 } else { 0 };
    let mut host_edge = Edge::sized(match core {
        Core::Older => offset_of!(DiHostApi, log_enabled),
        Core::Newer | Core::OtherMajor => size_of::<DiHostApi>() + longer,
    })?;
    let host_bytes = host_edge.size() as usize;
    // SAFETY: the host's table has as many bytes as are copied of it, and the edge has room for them.
    unsafe {
        let from = host::table().cast::<u8>().add(size_of::<u32>());
        let known = host_bytes.min(size_of::<DiHostApi>());
        std::ptr::copy_nonoverlapping(from, host_edge.start().add(size_of::<u32>()), known - size_of::<u32>());
    }
    // A plugin may keep the table as long as it lives.
    let host_edge = Box::leak(Box::new(host_edge));
    let mut request_edge = Edge::sized(size_of::<DiEntryRequest>() + longer)?;
    let mut reply_edge = Edge::sized(size_of::<DiEntryReply>() + longer)?;
    let (request, reply) = (request_edge.start().cast::<DiEntryRequest>(), reply_edge.start().cast::<DiEntryReply>());
    let major = if core == Core::OtherMajor { 9 } else { DI_ABI_MAJOR };
    // SAFETY: both structs have room for what this core knows of them; the entry has this type and is called once.
    let (code, answer) = unsafe {
        (*request).min_major = major;
        (*request).max_major = major;
        (*request).minor = match core {
            Core::Older => 0,
            Core::Newer => DI_ABI_MINOR + 7,
            Core::OtherMajor => 0,
        };
        (*request).host = host_edge.start().cast();
        (*request).options = lend_text(options);
        (*reply).major = major;
        let code = entry(request, reply);
        (code, reply.read())
    };
    // SAFETY: null, or an error object that the entry hands over.
    let error = unsafe { take_error(answer.error) };
    let what = core.name();
    if code != 0 || error.is_some() {
        let said = error.map(|error| error.message).unwrap_or_default();
        return match core {
            Core::Newer => Err(format!("a newer core of the same major is refused: {said:?} (code {code})")),
            _ if said.is_empty() => Err(format!("{what} is refused with code {code} and without a sentence")),
            _ => Ok(()),
        };
    }
    if core == Core::OtherMajor {
        return Err(format!("a core of major {major} is accepted by a plugin of major {}", answer.major));
    }
    // SAFETY: tables of a successful reply live as long as the library, which is never unloaded.
    unsafe {
        let api = read_sized::<DiBackendApi>(answer.api).map_err(|problem| format!("the backend table {problem}"))?;
        let runtime =
            read_sized::<DiRuntimeApi>(api.runtime).map_err(|problem| format!("the runtime table {problem}"))?;
        let count = runtime.device_count.ok_or("the runtime table has no device_count")?;
        let mut devices = 0;
        // That there is no device is no matter of the handshake.
        let _ = take_error(count(api.backend, &raw mut devices));
        if read_text_lossy(answer.name).is_empty() {
            return Err(format!("{what}: the plugin gives no name"));
        }
    }
    Ok(())
}
