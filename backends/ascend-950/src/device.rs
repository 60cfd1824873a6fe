//! Devices: what the runtime says of them, and an opened one with its context, in which everything else lives.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::fmt::Display;
use std::sync::atomic::AtomicU32;
use std::sync::{Mutex, Once, OnceLock, PoisonError, RwLock};

use deepinfer_plugin_api::abi::{DI_DEVICE_ASCEND, DI_SPACE_DEVICE, DI_SPACE_HOST_PINNED};
use deepinfer_plugin_api::sdk::{DeviceInfo, Fault, FaultCode, LogLevel, SpaceInfo, log};

use crate::acl::sys::{self, aclError, aclrtContext};
use crate::acl::{acl, missing_to_open};
use crate::error::{self, check, fault};
use crate::image::{self, Binaries};
use crate::memory::GRANULARITY;
use crate::replacement::replacements;
use crate::vendor;

/// Huawei's number in the PCI registry.
const PCI_VENDOR: u32 = 0x19E5;

/// Most devices of a process.
pub(crate) const MOST_DEVICES: usize = 64;

/// Lists devices; creates no context.
///
/// # Errors
/// Says why there is none.
pub(crate) fn devices() -> Result<Vec<DeviceInfo>, Fault> {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        let said = image::other_mode(std::env::var_os("DEEPINFER_ASCEND"));
        said.into_iter().for_each(|text| log(LogLevel::Warn, text));
    });
    if let Some(problem) = image::problem() {
        return Err(problem);
    }
    let replaced = replacements()?.words();
    let acl = acl()?;
    let mut count = 0;
    // SAFETY: the address is writable.
    let code = unsafe { acl.aclrtGetDeviceCount(&mut count) };
    if code != sys::ACL_SUCCESS && code != sys::ACL_ERROR_RT_NO_DEVICE {
        return Err(fault("CANN is installed, but does not say how many devices there are", code));
    }
    if count == 0 {
        return Err(Fault::unsupported("CANN is installed, but it finds no Ascend device"));
    }
    let soc = soc(acl);
    // The twin has cores of this machine, whose numbers are not those of a device.
    let missing = vendor::missing();
    let without = if missing.is_empty() { String::new() } else { format!(", without {} of CANN", missing.join(", ")) };
    let which = if image::is_twin() { format!("950 (host twin, seed {})", image::seed()?) } else { soc.clone() };
    let name = format!("Ascend {which}{replaced}{without}");
    let arch = if image::is_twin() { "ascend950-host-twin".to_owned() } else { soc.to_lowercase() };
    let describe = |device: u32| {
        let mut name = name.clone();
        let mut known = |what: &str, which| {
            attribute(acl, device, which).unwrap_or_else(|fault| {
                name += &format!(", {what} unknown: {fault}");
                0
            })
        };
        let total_bytes = known("memory", sys::ACL_DEV_ATTR_TOTAL_GLOBAL_MEM_SIZE);
        let compute_units = known("cores", sys::ACL_DEV_ATTR_VECTOR_CORE_NUM) as u32;
        let space = |kind, total_bytes| SpaceInfo { kind, min_align: 64, granularity: GRANULARITY, total_bytes };
        DeviceInfo {
            device_type: DI_DEVICE_ASCEND,
            name,
            arch: arch.clone(),
            total_bytes,
            compute_units,
            pci_vendor: if image::is_twin() { 0 } else { PCI_VENDOR },
            is_emulated: image::is_twin(),
            spaces: vec![space(DI_SPACE_DEVICE, total_bytes), space(DI_SPACE_HOST_PINNED, 0)],
            ..DeviceInfo::default()
        }
    };
    Ok((0..count).map(describe).collect())
}

/// The chip, which AscendCL names once for all devices.
fn soc(acl: &sys::AscendCl) -> String {
    let Ok(get) = acl.aclrtGetSocName.as_ref() else { return "of an unknown kind".to_owned() };
    // SAFETY: null, or a text that lives as long as the library.
    unsafe {
        let name = get();
        if name.is_null() {
            "of an unknown kind".to_owned()
        } else {
            CStr::from_ptr(name).to_string_lossy().into_owned()
        }
    }
}

/// A number that describes a device.
fn attribute(acl: &sys::AscendCl, device: u32, which: sys::aclrtDevAttr) -> Result<u64, Fault> {
    let Ok(get) = acl.aclrtGetDeviceInfo.as_ref() else {
        return Err(Fault::unsupported("the CANN that is installed has no aclrtGetDeviceInfo"));
    };
    let mut value = 0;
    // SAFETY: the address is writable.
    let code = unsafe { get(device, which, &mut value) };
    check(format_args!("aclrtGetDeviceInfo of attribute {which}"), code)
        .map_err(|fault| note(device as usize, fault))?;
    u64::try_from(value)
        .map_err(|_| Fault::new(FaultCode::Internal, format!("aclrtGetDeviceInfo of attribute {which} gives {value}")))
}

/// Pinned memory of the host.
#[derive(Clone, Copy)]
pub(crate) struct Pinned {
    pub(crate) bytes: usize,
    /// Where kernels find it.
    pub(crate) on_device: usize,
}

/// An opened device. Its context is the one that other libraries of the process get for it; it is not given back, because
/// handles of functions and memory would die with it.
pub(crate) struct Device {
    ordinal: usize,
    context: aclrtContext,
    cores: u32,
    binaries: Binaries,
    /// Pinned memory of the host by its first address.
    pinned: RwLock<BTreeMap<usize, Pinned>>,
    /// Free words of pinned memory: see `faults`.
    slots: Mutex<Vec<&'static AtomicU32>>,
}

/// Why nothing can be done with a device any more in this process, by its number.
static LOST: [OnceLock<Fault>; MOST_DEVICES] = [const { OnceLock::new() }; MOST_DEVICES];

/// A fault of a call on device `ordinal`. One that says that the device is lost answers every later call; where it was lost before,
/// it is the fault that first said so.
fn note(ordinal: usize, fault: Fault) -> Fault {
    match LOST.get(ordinal) {
        Some(lost) if fault.code == FaultCode::DeviceLost => lost.get_or_init(|| fault).clone(),
        _ => fault,
    }
}

// SAFETY: a context may be made current on any thread, also on several at once.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// Opens device `ordinal`.
    pub(crate) fn open(ordinal: usize) -> Result<Self, Fault> {
        if ordinal >= MOST_DEVICES {
            return Err(Fault::unsupported(format!(
                "device {ordinal} is beyond the {MOST_DEVICES} that are looked after"
            )));
        }
        if let Some(fault) = LOST[ordinal].get() {
            return Err(fault.clone());
        }
        let acl = acl()?;
        let missing = missing_to_open(acl);
        if !missing.is_empty() {
            return Err(Fault::unsupported(format!("the CANN that is installed has no {}", missing.join(", "))));
        }
        let mut context: aclrtContext = std::ptr::null_mut();
        // SAFETY: the device was listed; the address is writable.
        let current = unsafe {
            check("the device", acl.aclrtSetDevice(ordinal as i32))
                .and_then(|()| check("the device's context", acl.aclrtGetCurrentContext(&mut context)))
        };
        current.map_err(|fault| note(ordinal, fault))?;
        // One block at a time gives the same bits, slowly: that is for a runtime that never tells, not for one that fails.
        let cores = match acl.aclrtGetDeviceInfo {
            Ok(_) => attribute(acl, ordinal as u32, sys::ACL_DEV_ATTR_VECTOR_CORE_NUM)?.max(1) as u32,
            Err(_) => 1,
        };
        Ok(Self {
            ordinal,
            context,
            cores,
            binaries: Binaries::default(),
            pinned: RwLock::default(),
            slots: Mutex::default(),
        })
    }

    /// Makes its context that of the calling thread. Every call of the runtime is made behind this: threads come from
    /// anywhere, and other libraries have contexts of their own.
    pub(crate) fn bind(&self) -> Result<&'static sys::AscendCl, Fault> {
        if let Some(fault) = LOST[self.ordinal].get() {
            return Err(fault.clone());
        }
        let acl = acl()?;
        // SAFETY: the context is kept for the life of the process.
        self.check("the device's context", unsafe { acl.aclrtSetCurrentContext(self.context) })?;
        Ok(acl)
    }

    /// A fault of a call on it: one that says that it is lost answers every later call. Whatever the runtime gives of a call on a
    /// device comes here, by this or by what follows, also where nobody is told.
    pub(crate) fn note(&self, fault: Fault) -> Fault {
        note(self.ordinal, fault)
    }

    /// The fault of a result that is not success.
    pub(crate) fn fault(&self, what: impl Display, code: aclError) -> Fault {
        self.note(fault(what, code))
    }

    /// `Ok` if the runtime says so.
    pub(crate) fn check(&self, what: impl Display, code: aclError) -> Result<(), Fault> {
        check(what, code).map_err(|fault| self.note(fault))
    }

    /// A wait for `what`, made again when it took too long.
    pub(crate) fn wait(&self, what: &str, once: impl FnMut() -> aclError) -> Result<(), Fault> {
        error::wait(what, once).map_err(|fault| self.note(fault))
    }

    /// Its number.
    pub(crate) fn ordinal(&self) -> usize {
        self.ordinal
    }

    /// Its vector cores: more blocks than these run one after the other.
    pub(crate) fn cores(&self) -> u32 {
        self.cores
    }

    /// Binaries that are loaded on it.
    pub(crate) fn binaries(&self) -> &Binaries {
        &self.binaries
    }

    /// Words of pinned memory that nobody uses.
    pub(crate) fn slots(&self) -> &Mutex<Vec<&'static AtomicU32>> {
        &self.slots
    }

    /// Notes pinned memory, or forgets it.
    pub(crate) fn note_pinned(&self, address: usize, pinned: Option<Pinned>) {
        let mut all = self.pinned.write().unwrap_or_else(PoisonError::into_inner);
        match pinned {
            Some(pinned) => all.insert(address, pinned),
            None => all.remove(&address),
        };
    }

    /// The pinned memory in which an address lies, and how far behind its beginning.
    pub(crate) fn pinned(&self, address: usize) -> Option<(Pinned, usize)> {
        let all = self.pinned.read().unwrap_or_else(PoisonError::into_inner);
        let (&begin, &pinned) = all.range(..=address).next_back()?;
        (address - begin < pinned.bytes).then(|| (pinned, address - begin))
    }

    /// Where kernels find what the boundary names by an address.
    pub(crate) fn for_kernels(&self, address: u64) -> u64 {
        self.pinned(address as usize).map_or(address, |(pinned, offset)| (pinned.on_device + offset) as u64)
    }
}

#[cfg(all(test, not(ascend_twin)))]
mod tests {
    use super::devices;

    /// Where there is a device, too, and whether or not CANN is installed.
    #[test]
    fn a_plugin_without_kernels_lists_no_device_and_says_why() {
        if crate::image::problem().is_none() {
            return eprintln!("skipped: this is a build for a device");
        }
        let text = devices().unwrap_err().to_string();
        let parts =
            ["this plugin was built without its Ascend kernels: ", "; build it again with ", "DEEPINFER_ASCEND=cann"];
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    }
}
