//! What kernels find wrong in values.
//!
//! A stream has a word of device memory. A kernel that meets a wrong value writes there which op, which argument and how it is
//! wrong; of several, the largest number stays (`kernels/common/faults.h`). The host cannot read the word: whoever will wait for
//! the stream has it copied to a slot of pinned memory first, in the order of the stream.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use deepinfer_plugin_api::abi::DI_SPACE_DEVICE;
use deepinfer_plugin_api::generated::OPS;
use deepinfer_plugin_api::sdk::{Fault, FaultCode};

use crate::acl::sys::{self, aclrtStream};
use crate::device::Device;
use crate::memory::Buffer;

/// A line of the cache, so that a kernel that writes the word back writes nothing else.
const BYTES: usize = 64;

/// The word of a stream.
pub(crate) struct FaultWord {
    _memory: Buffer,
    address: *mut c_void,
    state: Mutex<State>,
    /// Whether the word was reported and still holds what it held.
    must_clear: AtomicBool,
}

// SAFETY: the address is only passed on; the host never reads there.
unsafe impl Send for FaultWord {}
// SAFETY: as above.
unsafe impl Sync for FaultWord {}

#[derive(Default)]
struct State {
    /// Copies that were queued.
    copied: u64,
    /// Copies up to this one show what was reported already.
    reported: u64,
}

impl FaultWord {
    /// A word that is zero when the stream comes to its first kernel.
    pub(crate) fn new(device: &Arc<Device>, stream: aclrtStream) -> Result<Self, Fault> {
        let (memory, address) = Buffer::new(device, DI_SPACE_DEVICE, BYTES as u64, BYTES as u64)?;
        let state = Mutex::default();
        let word = Self { _memory: memory, address, state, must_clear: AtomicBool::new(true) };
        word.prepare(device, stream)?;
        Ok(word)
    }

    /// Its address for kernels.
    pub(crate) fn address(&self) -> *mut u8 {
        self.address.cast()
    }

    /// Clears what was reported, before the stream's next work.
    pub(crate) fn prepare(&self, device: &Device, stream: aclrtStream) -> Result<(), Fault> {
        if !self.must_clear.load(Ordering::Relaxed) || !self.must_clear.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        let acl = device.bind()?;
        // SAFETY: our own memory; the stream is alive.
        device.check("the stream", unsafe { acl.aclrtMemsetAsync(self.address, BYTES, 0, BYTES, stream) })
    }

    /// Queues a copy to a slot, and says which copy it is.
    pub(crate) fn copy(&self, acl: &sys::AscendCl, stream: aclrtStream, slot: &Slot) -> Result<u64, Fault> {
        let number = {
            let mut state = self.lock();
            state.copied += 1;
            state.copied
        };
        let bytes = size_of::<u32>();
        // SAFETY: both ranges are ours; the slot is given back after the stream has passed.
        let code = unsafe {
            acl.aclrtMemcpyAsync(
                slot.word.as_ptr().cast(),
                bytes,
                self.address,
                bytes,
                sys::ACL_MEMCPY_DEVICE_TO_HOST,
                stream,
            )
        };
        slot.device.check("the stream", code).map(|()| number)
    }

    /// What copy `number` shows in its slot, unless it was reported before.
    pub(crate) fn take(&self, number: u64, slot: &Slot) -> Result<(), Fault> {
        let word = slot.word.load(Ordering::Acquire);
        if word == 0 {
            return Ok(());
        }
        let mut state = self.lock();
        if number <= state.reported {
            return Ok(());
        }
        state.reported = state.copied;
        self.must_clear.store(true, Ordering::Relaxed);
        Err(describe(word))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The sentence of a fault word: op id in the low 16 bits, then the place of the argument in the catalogue and of the rule
/// among its refusals, plus one, in a byte each.
fn describe(word: u32) -> Fault {
    let op = OPS.iter().find(|op| op.id == word & 0xFFFF);
    let Some(op) = op else {
        return Fault::new(FaultCode::Internal, format!("a kernel left the fault {word:#x}, which no op has"));
    };
    let argument = op.args.get((word >> 16 & 0xFF) as usize).map_or("an argument", |arg| arg.name);
    let rule = (word >> 24).checked_sub(1).and_then(|rule| op.refuses.get(rule as usize));
    let why = rule.map_or("a value is wrong", |rule| rule.when);
    Fault::invalid(format!("{argument}: {why}")).or_origin(op.name)
}

/// A word of pinned host memory, lent by a device.
pub(crate) struct Slot {
    device: Arc<Device>,
    word: &'static AtomicU32,
}

impl Slot {
    /// Takes a free one.
    pub(crate) fn new(device: &Arc<Device>) -> Result<Self, Fault> {
        let free = device.slots().lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some(word) = free {
            return Ok(Self { device: Arc::clone(device), word });
        }
        let acl = device.bind()?;
        let mut page: *mut c_void = std::ptr::null_mut();
        // SAFETY: the context is current; the address is writable.
        device.check("pinned memory", unsafe { acl.aclrtMallocHost(&mut page, PAGE) })?;
        // SAFETY: the page is ours for the life of the process, and zeroed before it is shared.
        let words = unsafe {
            page.cast::<u8>().write_bytes(0, PAGE);
            std::slice::from_raw_parts(page.cast::<AtomicU32>(), PAGE / size_of::<AtomicU32>())
        };
        // A copy may write a whole line of a cache.
        let mut lines = words.iter().step_by(BYTES / size_of::<AtomicU32>());
        let word = lines.next().ok_or_else(|| Fault::new(FaultCode::Internal, "an empty page of pinned memory"))?;
        device.slots().lock().unwrap_or_else(PoisonError::into_inner).extend(lines);
        Ok(Self { device: Arc::clone(device), word })
    }
}

/// Bytes that are pinned at once.
const PAGE: usize = 4096;

impl Drop for Slot {
    fn drop(&mut self) {
        self.word.store(0, Ordering::Relaxed);
        self.device.slots().lock().unwrap_or_else(PoisonError::into_inner).push(self.word);
    }
}
