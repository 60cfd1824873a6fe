//! A loaded backend: its identity, its devices and its table of op implementations.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use deepinfer_plugin_api::CatalogueId;
use deepinfer_plugin_api::abi::{
    DI_CAP_EMULATED, DI_DEVICE_CPU, DI_E_DEVICE_LOST, DI_E_INTERNAL, DI_E_PANIC, DI_EF_POISONED, DI_EF_STICKY,
    DI_PF_BATCH_INVARIANT, DI_PF_CAPTURABLE, DI_PF_CONCURRENT, DI_PF_DETERMINISTIC, DI_TABLE_GRAPH, DiBackend,
    DiBackendApi, DiDeviceInfo, DiError, DiGraphApi, DiOpEntry, DiRuntimeApi,
};
use serde::{Deserialize, Serialize};

use crate::layers::LayerInfo;
use crate::lifecycle::{Lease, Lifecycle};
use crate::one_line::one_line;
use crate::raw::{blank, read_sized, read_text_lossy, take_error};

/// More devices than a machine has: a plugin that reports more has counted wrongly, and each would be asked what it is.
const MOST_DEVICES: u32 = 4096;

/// Gives an optional table by its number.
pub(crate) type DiTableFn = unsafe extern "C" fn(*mut DiBackend, u32) -> *const c_void;

/// A plugin after the handshake. It stays loaded as long as the process.
pub struct LoadedBackend {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) build: String,
    pub(crate) path: PathBuf,
    pub(crate) abi: (u16, u16),
    pub(crate) raw: *mut DiBackend,
    /// Every function is present: `load` refuses a table with a gap.
    pub(crate) runtime: DiRuntimeApi,
    /// Gives optional tables; see [`LoadedBackend::graph`].
    pub(crate) table: Option<DiTableFn>,
    pub(crate) shutdown: Option<unsafe extern "C" fn(*mut DiBackend) -> *mut DiError>,
    pub(crate) ops: Vec<OpImpl>,
    /// The plugin's own table, which a layer over it gets.
    pub(crate) own_api: *const DiBackendApi,
    /// `DI_RF_*` of the handshake.
    pub(crate) reply_flags: u32,
    /// Smallest minor of the core that the plugin needs.
    pub(crate) min_core_minor: u16,
    /// Outermost first.
    pub(crate) layers: Vec<LayerInfo>,
    /// Shared with what it wraps.
    pub(crate) life: Arc<Lifecycle>,
}

// SAFETY: `raw` is only passed back to the plugin, whose table takes calls of `device_*`, `alloc` and `free_` from any
// thread; streams are confined to one thread at a time by `OpenDevice`.
unsafe impl Send for LoadedBackend {}
// SAFETY: as above.
unsafe impl Sync for LoadedBackend {}

/// Calls a function of the runtime table; evaluates to its result.
macro_rules! call {
    ($backend:expr, $function:ident $(, $argument:expr)*) => {
        ($backend.runtime.$function.expect("`load` refuses tables with gaps"))($backend.raw $(, $argument)*)
    };
}
pub(crate) use call;

/// One implementation of one op.
pub struct OpImpl {
    pub(crate) name: String,
    pub(crate) impl_name: String,
    pub(crate) entry: DiOpEntry,
}

impl OpImpl {
    /// Name of the op.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Name of this implementation within the backend.
    pub fn impl_name(&self) -> &str {
        &self.impl_name
    }

    /// Catalogue id of the op.
    pub fn op_id(&self) -> u32 {
        self.entry.op_id
    }

    /// Version of the op.
    pub fn version(&self) -> u32 {
        self.entry.op_version
    }

    /// Among several implementations the largest is tried first.
    pub fn priority(&self) -> i32 {
        self.entry.priority
    }

    /// Whether it declares for every call that a row's result depends on that row alone. A plan may declare it for its
    /// own calls where the implementation does not.
    pub fn is_batch_invariant(&self) -> bool {
        self.entry.flags & DI_PF_BATCH_INVARIANT != 0
    }

    /// Whether it declares for every call that equal arguments give equal bits. As with batch invariance, a plan may add it.
    pub fn is_deterministic(&self) -> bool {
        self.entry.flags & DI_PF_DETERMINISTIC != 0
    }

    /// Whether it declares for every call that it can be captured into a graph. As with batch invariance, a plan may add
    /// it.
    pub fn is_capturable(&self) -> bool {
        self.entry.flags & DI_PF_CAPTURABLE != 0
    }

    /// Whether it declares for every call that it may run on two streams at once.
    pub fn is_concurrent(&self) -> bool {
        self.entry.flags & DI_PF_CONCURRENT != 0
    }
}

/// What a device is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// Number within the backend.
    pub index: u32,
    /// Marketing name.
    pub name: String,
    /// Architecture.
    pub arch: String,
    /// `DI_DEVICE_*`.
    pub device_type: i32,
    /// Bytes of its memory.
    pub memory_bytes: u64,
    /// Multiprocessors, AI cores or CPU threads.
    pub compute_units: u32,
    /// PCI vendor id, or 0.
    pub pci_vendor: u32,
    /// NUMA node, or -1.
    pub numa_node: i32,
    /// Whether it is a model of a device that runs on the host's processor.
    pub is_emulated: bool,
}

impl DeviceInfo {
    /// Whether this is the host's own processor.
    pub fn is_cpu(&self) -> bool {
        self.device_type == DI_DEVICE_CPU
    }
}

/// An error that a plugin returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginError {
    /// `DI_E_*`.
    pub code: i32,
    /// `DI_EF_*` bits.
    pub flags: u32,
    /// Code of the vendor's library, or 0.
    pub vendor_code: i32,
    /// A sentence, as the plugin wrote it.
    pub message: String,
    /// `backend/op`.
    pub origin: String,
}

impl PluginError {
    /// Whether the device is unusable from now on.
    pub fn is_lasting(&self) -> bool {
        matches!(self.code, DI_E_DEVICE_LOST | DI_E_PANIC) || self.flags & (DI_EF_STICKY | DI_EF_POISONED) != 0
    }

    /// Whether the plugin caught a panic or an exception of its own.
    pub fn is_panic(&self) -> bool {
        self.code == DI_E_PANIC
    }
}

impl fmt::Display for PluginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.message.is_empty() {
            write!(f, "error code {} without a message", self.code)?;
        } else {
            f.write_str(&one_line(&self.message))?;
        }
        if self.vendor_code != 0 {
            write!(f, " (code {} of the vendor's library)", self.vendor_code)?;
        }
        Ok(())
    }
}

impl std::error::Error for PluginError {}

impl LoadedBackend {
    /// Name by which users select it; of the backend, whatever layers are over it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Layers over the backend, outermost first.
    pub fn layers(&self) -> &[LayerInfo] {
        &self.layers
    }

    /// Name of the backend and of the layers over it, from the inside outwards: `cpu + validate`.
    pub fn title(&self) -> String {
        let layers: String = self.layers.iter().rev().map(|layer| format!(" + {}", layer.name)).collect();
        format!("{}{layers}", self.name)
    }

    /// Version of the plugin.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// A sentence if the plugin was built from another catalogue than this core; `None` also if it does not say. It may run all
    /// the same: an op is refused only where its version or its arguments differ.
    pub fn other_catalogue(&self) -> Option<String> {
        let ours = CatalogueId::ours();
        CatalogueId::find(&self.build).and_then(|theirs| ours.difference(&theirs))
    }

    /// Toolchain and build, in the plugin's words.
    pub fn build(&self) -> &str {
        &self.build
    }

    /// File.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Major and minor of the ABI that both sides agreed on; the minor is the plugin's.
    pub fn abi(&self) -> (u16, u16) {
        self.abi
    }

    /// Implementations, in the order of the plugin's table.
    pub fn ops(&self) -> &[OpImpl] {
        &self.ops
    }

    /// The functions that capture a stream's work, if the backend offers them all. A table with a gap is as good as none.
    pub(crate) fn graph(&self) -> Option<DiGraphApi> {
        // SAFETY: the function is of a table that lives as long as the library, and takes the backend that came with it.
        let at = unsafe { self.table?(self.raw, DI_TABLE_GRAPH) }.cast::<DiGraphApi>();
        if at.is_null() {
            return None;
        }
        // SAFETY: a table that the plugin gives has `struct_size` readable bytes and lives as long as the backend.
        let table = unsafe { read_sized(at) };
        let is_whole = |t: &DiGraphApi| {
            t.begin.is_some()
                && t.end.is_some()
                && t.instantiate.is_some()
                && t.launch.is_some()
                && t.graph_destroy.is_some()
                && t.exec_destroy.is_some()
        };
        let whole = table.ok().filter(is_whole);
        if whole.is_none() {
            tracing::warn!("{}: its table of graph functions has gaps and is not used", self.name);
        }
        whole
    }

    /// Number of devices; opens none.
    ///
    /// # Errors
    /// The plugin's reason why there is none: no driver, for example. Or it reports more than 4096 devices.
    pub fn device_count(&self) -> Result<u32, PluginError> {
        self.life.check()?;
        let mut count = 0;
        // SAFETY: `raw` is the plugin's and `count` is writable.
        match unsafe { take_error(call!(self, device_count, &raw mut count)) } {
            Some(error) => Err(error),
            None if count > MOST_DEVICES => Err(PluginError {
                code: DI_E_INTERNAL,
                flags: 0,
                vendor_code: 0,
                message: format!("the plugin reports {count} devices, but at most {MOST_DEVICES} are believed"),
                origin: String::new(),
            }),
            None => Ok(count),
        }
    }

    /// Describes every device; opens none.
    ///
    /// # Errors
    /// As [`LoadedBackend::device_count`].
    pub fn device_infos(&self) -> Result<Vec<DeviceInfo>, PluginError> {
        (0..self.device_count()?).map(|index| self.device_info(index)).collect()
    }

    /// Describes one device.
    ///
    /// # Errors
    /// There is no such device.
    pub fn device_info(&self, index: u32) -> Result<DeviceInfo, PluginError> {
        self.life.check()?;
        let mut info: DiDeviceInfo = blank();
        // SAFETY: `raw` is the plugin's, and `info` says how many bytes of it may be written.
        if let Some(error) = unsafe { take_error(call!(self, device_info, index, &raw mut info)) } {
            return Err(error);
        }
        // SAFETY: the header says that the texts live as long as the backend.
        let (name, arch) = unsafe { (read_text_lossy(info.name), read_text_lossy(info.arch)) };
        Ok(DeviceInfo {
            index,
            name,
            arch,
            device_type: info.device_type,
            memory_bytes: info.total_bytes,
            compute_units: info.compute_units,
            pci_vendor: info.pci_vendor,
            numa_node: info.numa_node,
            is_emulated: info.caps & u64::from(DI_CAP_EMULATED) != 0,
        })
    }
}

impl LoadedBackend {
    /// Keeps the backend from being shut down as long as a device is open.
    ///
    /// # Errors
    /// It was shut down.
    pub(crate) fn lease(&self) -> Result<Lease, PluginError> {
        self.life.lease()
    }

    /// Ends the backend through all layers: its threads are joined, and it opens no device any more. The code stays loaded.
    /// Of several stacks of layers over one backend, the first that is asked ends it. A second call does nothing.
    ///
    /// # Errors
    /// A device is open; or the plugin says that something went wrong, and has ended all the same.
    pub fn shutdown(&self) -> Result<(), PluginError> {
        let (true, Some(shutdown)) = (self.life.end()?, self.shutdown) else { return Ok(()) };
        // SAFETY: `raw` is the plugin's. No device is open, and the state says that none will be. `load` refuses a layer
        // without this function: it alone can end what it wraps.
        unsafe { take_error(shutdown(self.raw)) }.map_or(Ok(()), Err)
    }
}

impl fmt::Debug for LoadedBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ({})", self.title(), self.version, self.path.display())
    }
}

/// Ops of a profile for which the backend has no implementation of the catalogue's version.
///
/// # Panics
/// If the catalogue has no such profile.
pub fn missing_ops(backend: &LoadedBackend, profile: &str) -> Vec<&'static str> {
    let required =
        deepinfer_plugin_api::profile(profile).unwrap_or_else(|| panic!("the catalogue has no profile {profile:?}"));
    let has = |name: &str| {
        deepinfer_plugin_api::op_by_name(name).is_some_and(|info| {
            backend.ops.iter().any(|op| op.entry.op_id == info.id && op.entry.op_version == info.version)
        })
    };
    required.iter().copied().filter(|name| !has(name)).collect()
}

/// Names missing ops in a sentence that says what a backend does not implement; a backend without kernels lacks them all.
pub(crate) fn describe_missing<S: AsRef<str>>(missing: &[S], profile: &str) -> String {
    match deepinfer_plugin_api::profile(profile) {
        Some(all) if all.len() == missing.len() => format!("any of the {} ops of {profile}", all.len()),
        _ => missing.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(", "),
    }
}
