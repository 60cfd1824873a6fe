//! Cases of a backend as a whole: what it says of itself (L0); memory, copies, streams and events (L1).
//!
//! They go through the loader and the device of `deepinfer-runtime`, as a model does. What only C can present to a plugin,
//! such as structs that end at every field, is not among them.

use std::time::{Duration, Instant};

use deepinfer_ops::{Allocation, Device, Format, OpError, Tensor};
use deepinfer_parity::{Check, Level, Outcome, cases, op_of, run_case};
use deepinfer_runtime::{OpenDevice, OpenError};

use super::task::WholeCase;
use super::worker::Target;

/// Ids from here on belong to vendors.
const VENDOR_OPS: u32 = 0x8000_0000;

macro_rules! whole_cases {
    ($(#[$doc:meta])* $list:ident: $($level:ident $subject:literal $name:literal $run:ident;)*) => {
        $(#[$doc])*
        pub(crate) const $list: &[WholeCase] = &[$(WholeCase {
            subject: $subject,
            name: $name,
            level: Level::$level,
            run: |target| $run(target).map_or_else(Outcome::failed, |()| Outcome::Passed { share: None }),
        }),*];
    };
}

whole_cases! {
    /// In the order in which they run.
    CASES:
    L0 "load" "describes-itself" describes_itself;
    L0 "load" "op-table" op_table_is_consistent;
    L0 "load" "open-and-close" opens_and_closes;
    L0 "load" "absent-device" absent_device_is_refused;
    L1 "memory" "figures" memory_figures_are_possible;
    L1 "memory" "placement" allocations_are_aligned_and_apart;
    L1 "memory" "copies" copies_come_back;
    L1 "memory" "parts" copies_stay_within_their_tensor;
    L1 "memory" "fills" fills_stay_within_their_tensor;
    L1 "memory" "too-much" too_much_memory_is_refused;
    L1 "memory" "reuse" freed_memory_can_be_had_again;
    L1 "stream" "order" work_runs_in_order;
    L1 "stream" "events" events_come_to_pass;
    L1 "device" "two-at-once" two_devices_do_not_mix;
}

whole_cases! {
    /// What is left after everything: they run last.
    LAST_CASES:
    L1 "device" "leaked threads" no_thread_is_left;
    L1 "device" "close" device_closes;
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn ensure(holds: bool, problem: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(problem()) }
}

fn describes_itself(target: &Target) -> Result<(), String> {
    let backend = target.backend;
    ensure(!backend.version().is_empty(), || "its version is empty".to_owned())?;
    ensure(!backend.build().is_empty(), || "its build is empty: it should say with what it was built".to_owned())?;
    for info in backend.device_infos().map_err(text)? {
        ensure(!info.name.is_empty(), || format!("device {} has no name", info.index))?;
        ensure(!info.arch.is_empty(), || format!("device {} has no architecture", info.index))?;
    }
    Ok(())
}

fn op_table_is_consistent(target: &Target) -> Result<(), String> {
    let ops = target.backend.ops();
    for (index, op) in ops.iter().enumerate() {
        let (id, name) = (op.op_id(), op.name());
        match op_of(id) {
            Some(known) => {
                ensure(known == name, || format!("op {id} is called {name}, but is {known} in the catalogue"))?
            }
            // An op of a newer catalogue is no fault.
            None => ensure(id != 0 && (id >= VENDOR_OPS || !name.is_empty()), || format!("op {name} has the id {id}"))?,
        }
        let key = |other: &deepinfer_runtime::OpImpl| (other.op_id(), other.version(), other.impl_name().to_owned());
        ensure(!ops[..index].iter().any(|other| key(other) == key(op)), || {
            format!("{name}@{} has two implementations called {:?}", op.version(), op.impl_name())
        })?;
    }
    Ok(())
}

fn opens_and_closes(target: &Target) -> Result<(), String> {
    for round in 1..=3 {
        let device = target.open().map_err(|error| format!("opening it for time {round}: {error}"))?;
        device.synchronize().map_err(text)?;
    }
    Ok(())
}

fn absent_device_is_refused(target: &Target) -> Result<(), String> {
    let count = target.backend.device_count().map_err(text)?;
    for index in [count, u32::MAX] {
        match target.backend.open(index) {
            Ok(_) => return Err(format!("device {index} opens, but there are {count}")),
            Err(error) => {
                let is_silent = matches!(&error, OpenError::Plugin(error) if error.message.is_empty());
                ensure(!is_silent, || format!("device {index} is refused without a sentence"))?
            }
        }
    }
    target.open().map(drop).map_err(|error| format!("after the refusal: {error}"))
}

fn memory_figures_are_possible(target: &Target) -> Result<(), String> {
    let (free, total) = target.open()?.memory().map_err(text)?;
    ensure(total > 0 && free <= total, || format!("{free} bytes are free of {total}"))
}

fn bytes(memory: &Allocation, offset: usize, len: usize) -> Tensor {
    Tensor::plain(memory, offset, Format::U8, &[len])
}

/// Bytes that look random; `salt` tells the patterns apart.
fn pattern(len: usize, salt: usize) -> Vec<u8> {
    (0..len).map(|i| ((i * 167 + salt * 59) >> 3 ^ i) as u8).collect()
}

fn download(device: &OpenDevice, tensor: &Tensor) -> Result<Vec<u8>, String> {
    let mut out = vec![0xEE; tensor.bytes()];
    device.download(tensor, &mut out).map_err(text)?;
    Ok(out)
}

fn expect_bytes(what: &str, found: &[u8], wanted: &[u8]) -> Result<(), String> {
    match found.iter().zip(wanted).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(i) => {
            Err(format!("{what}: byte {i} of {} is {:#04x}, expected {:#04x}", wanted.len(), found[i], wanted[i]))
        }
    }
}

fn allocations_are_aligned_and_apart(target: &Target) -> Result<(), String> {
    let device = target.open()?;
    let sizes = [1, 255, 256, 257, 4096, 1 << 20];
    let all = sizes.map(|size| device.allocate(size));
    let all: Vec<Allocation> = all.into_iter().collect::<Result<_, _>>().map_err(text)?;
    for (i, a) in all.iter().enumerate() {
        ensure(a.address.is_multiple_of(256), || {
            format!("{} bytes lie at {:#x}: not aligned to 256", a.bytes, a.address)
        })?;
        for b in &all[..i] {
            let apart = a.address + a.bytes <= b.address || b.address + b.bytes <= a.address;
            ensure(apart, || {
                format!("{} bytes at {:#x} and {} at {:#x} overlap", a.bytes, a.address, b.bytes, b.address)
            })?;
        }
    }
    // Nothing is a size, too.
    device.allocate(0).map(drop).map_err(text)
}

fn copies_come_back(target: &Target) -> Result<(), String> {
    let device = target.open()?;
    for size in [1, 3, 255, 256, 257, 65_537, 4 << 20] {
        let memory = device.allocate(size).map_err(text)?;
        let (tensor, sent) = (bytes(&memory, 0, size), pattern(size, size));
        device.upload(&tensor, &sent).map_err(text)?;
        expect_bytes(&format!("a copy of {size} bytes"), &download(&device, &tensor)?, &sent)?;
    }
    Ok(())
}

/// Writes the middle of a tensor and looks at what lies around it.
fn around(device: &OpenDevice, write: impl Fn(&Tensor) -> Result<Vec<u8>, OpError>) -> Result<(), String> {
    for (start, len) in [(0, 1), (1, 1), (7, 256), (300, 33), (1000, 24)] {
        let memory = device.allocate(1024).map_err(text)?;
        let (whole, mut wanted) = (bytes(&memory, 0, 1024), pattern(1024, start));
        device.upload(&whole, &wanted).map_err(text)?;
        let written = write(&bytes(&memory, start, len)).map_err(text)?;
        wanted[start..start + len].copy_from_slice(&written);
        expect_bytes(&format!("{len} bytes written at {start}"), &download(device, &whole)?, &wanted)?;
        let part = download(device, &bytes(&memory, start, len))?;
        expect_bytes(&format!("{len} bytes read at {start}"), &part, &written)?;
    }
    Ok(())
}

fn copies_stay_within_their_tensor(target: &Target) -> Result<(), String> {
    let device = target.open()?;
    around(&device, |part| {
        let sent = pattern(part.bytes(), 99);
        device.upload(part, &sent).map(|()| sent)
    })
}

fn fills_stay_within_their_tensor(target: &Target) -> Result<(), String> {
    let device = target.open()?;
    for byte in [0, 0x5A, 0xFF] {
        around(&device, |part| device.fill(part, byte).map(|()| vec![byte; part.bytes()]))?;
    }
    Ok(())
}

fn too_much_memory_is_refused(target: &Target) -> Result<(), String> {
    let device = target.open()?;
    match device.allocate(1 << 60) {
        Ok(_) => return Err("2^60 bytes are given".to_owned()),
        Err(error @ OpError::DeviceLost(_)) => return Err(format!("asking for 2^60 bytes: {error}")),
        Err(_) => {}
    }
    device.allocate(1 << 20).map(drop).map_err(|error| format!("after a refusal: {error}"))
}

fn freed_memory_can_be_had_again(target: &Target) -> Result<(), String> {
    let device = target.open()?;
    let (free, _) = device.memory().map_err(text)?;
    // In all more than there is, but never more than a part at once.
    let size = (free / 4).min(64 << 20) as usize;
    for round in 0..16 {
        let memory = device.allocate(size).map_err(|error| format!("allocation {round} of {size} bytes: {error}"))?;
        let (first, last) = (bytes(&memory, 0, 1.min(size)), bytes(&memory, size.saturating_sub(1), 1.min(size)));
        device.fill(&first, round).and_then(|()| device.fill(&last, round)).map_err(text)?;
        expect_bytes("the last byte", &download(&device, &last)?, &[round][..1.min(size)])?;
    }
    Ok(())
}

fn work_runs_in_order(target: &Target) -> Result<(), String> {
    const LEN: usize = 1 << 20;
    let device = target.open()?;
    let memory = device.allocate(LEN).map_err(text)?;
    let whole = bytes(&memory, 0, LEN);
    for round in 0..32u8 {
        // Each fill covers half of what the one before has written.
        device.fill(&whole, round).map_err(text)?;
        device.fill(&bytes(&memory, LEN / 2, LEN / 2), round.wrapping_add(100)).map_err(text)?;
        device.upload(&bytes(&memory, LEN / 4, 4), &[round ^ 0xFF; 4]).map_err(text)?;
        let mut wanted = vec![round; LEN];
        wanted[LEN / 2..].fill(round.wrapping_add(100));
        wanted[LEN / 4..LEN / 4 + 4].fill(round ^ 0xFF);
        expect_bytes(&format!("after round {round}"), &download(&device, &whole)?, &wanted)?;
    }
    Ok(())
}

fn events_come_to_pass(target: &Target) -> Result<(), String> {
    let device = target.open()?;
    let memory = device.allocate(1 << 20).map_err(text)?;
    let mut events = Vec::new();
    for round in 0..8 {
        device.fill(&bytes(&memory, 0, 1 << 20), round).map_err(text)?;
        events.push(device.record_event().map_err(text)?);
    }
    let last = events.last().expect("eight events");
    last.wait().map_err(text)?;
    for (i, event) in events.iter().enumerate() {
        ensure(event.is_done().map_err(text)?, || format!("the last of 8 events has come, but number {i} has not"))?;
    }
    device.synchronize().map_err(text)?;
    // An event may outlive the handle of its device.
    drop(device);
    ensure(events[0].is_done().map_err(text)?, || "an event is undone when its device is closed".to_owned())
}

fn two_devices_do_not_mix(target: &Target) -> Result<(), String> {
    let devices = [target.open()?, target.open()?];
    let mut tensors = Vec::new();
    for (device, byte) in devices.iter().zip([1, 2]) {
        let tensor = bytes(&device.allocate(4096).map_err(text)?, 0, 4096);
        device.fill(&tensor, byte).map_err(text)?;
        tensors.push(tensor);
    }
    expect_bytes("the first device", &download(&devices[0], &tensors[0])?, &[1; 4096])?;
    let [first, second] = devices;
    drop(first);
    expect_bytes("the second device, when the first is closed", &download(&second, &tensors[1])?, &[2; 4096])
}

/// Threads of this process; `None` where the system does not tell.
fn threads() -> Option<usize> {
    Some(std::fs::read_dir("/proc/self/task").ok()?.count())
}

/// Threads once those that are ending have ended, a moment later at most.
fn settled_threads(wanted: usize) -> Option<usize> {
    let until = Instant::now() + Duration::from_millis(100);
    loop {
        match threads() {
            Some(count) if count > wanted && Instant::now() < until => std::thread::sleep(Duration::from_millis(2)),
            count => return count,
        }
    }
}

/// Opens, works and closes several times. Threads that the first time leaves behind are a pool that is kept; more of them
/// each time are a leak.
fn no_thread_is_left(target: &Target) -> Result<(), String> {
    target.close_shared();
    let Some(before) = threads() else { return Ok(()) };
    let mut after = Vec::new();
    for _ in 0..4 {
        let device = target.open()?;
        let memory = device.allocate(4096).map_err(text)?;
        device.fill(&bytes(&memory, 0, 4096), 1).map_err(text)?;
        device.record_event().map_err(text)?.wait().map_err(text)?;
        for op in target.ops().filter(|op| !target.is_deadly(op)) {
            for case in cases(op, Check::Value, 0, Some(2)) {
                // Whether the result is right is the matter of the op's own cases.
                run_case(&device, &case);
            }
        }
        drop(memory);
        drop(device);
        after.extend(settled_threads(after.first().copied().unwrap_or(before)));
    }
    ensure(after.last() <= after.first(), || {
        format!(
            "the process has {before} threads before the device is opened, and after it is closed for the first, \
                 second, third and fourth time {after:?}"
        )
    })
}

fn device_closes(target: &Target) -> Result<(), String> {
    target.close_shared();
    Ok(())
}
