//! Memory, copies and fills.

use deepinfer_ops::{Allocation, Device, OpError, Tensor};
use deepinfer_runtime::OpenDevice;

use super::{Problem, bytes, download, ensure, expect_bytes, pattern};
use crate::parity::worker::Target;

/// Rounds in which memory is taken and given back, and those before, in which a pool may grow.
const ROUNDS: (usize, usize) = (8, 3);
/// How often it is looked whether memory is gone.
const TRIES: usize = 3;
/// Bytes per round.
const PER_ROUND: usize = 16 << 20;

/// Whatever fails here is what is looked for.
fn text(error: impl std::fmt::Display) -> Problem {
    Problem::Found(error.to_string())
}

pub(super) fn figures_are_possible(target: &Target) -> Result<(), Problem> {
    let (free, total) = target.open()?.memory().map_err(text)?;
    ensure(total > 0 && free <= total, || format!("{free} bytes are free of {total}"))
}

pub(super) fn allocations_are_aligned_and_apart(target: &Target) -> Result<(), Problem> {
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

pub(super) fn copies_come_back(target: &Target) -> Result<(), Problem> {
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
fn around(device: &OpenDevice, write: impl Fn(&Tensor) -> Result<Vec<u8>, OpError>) -> Result<(), Problem> {
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

pub(super) fn copies_stay_within_their_tensor(target: &Target) -> Result<(), Problem> {
    let device = target.open()?;
    around(&device, |part| {
        let sent = pattern(part.bytes(), 99);
        device.upload(part, &sent).map(|()| sent)
    })
}

pub(super) fn fills_stay_within_their_tensor(target: &Target) -> Result<(), Problem> {
    let device = target.open()?;
    for byte in [0, 0x5A, 0xFF] {
        around(&device, |part| device.fill(part, byte).map(|()| vec![byte; part.bytes()]))?;
    }
    Ok(())
}

pub(super) fn too_much_is_refused(target: &Target) -> Result<(), Problem> {
    let device = target.open()?;
    match device.allocate(1 << 60) {
        Ok(_) => return Err("2^60 bytes are given".to_owned().into()),
        Err(error @ OpError::DeviceLost(_)) => return Err(format!("asking for 2^60 bytes: {error}").into()),
        Err(_) => {}
    }
    Ok(device.allocate(1 << 20).map(drop).map_err(|error| format!("after a refusal: {error}"))?)
}

pub(super) fn freed_memory_can_be_had_again(target: &Target) -> Result<(), Problem> {
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

/// Opens the device, takes memory, gives it back and closes, again and again. Neither the free memory of the device nor the
/// memory of this process may go with it; a pool keeps what it has, and does not grow.
pub(super) fn memory_is_given_back(target: &Target) -> Result<(), Problem> {
    let round = || -> Result<u64, Problem> {
        let device = target.open()?;
        for byte in 0..4 {
            let memory = device.allocate(PER_ROUND / 4).map_err(text)?;
            // Memory that nobody has written may not be there yet.
            device.fill(&bytes(&memory, 0, PER_ROUND / 4), byte).map_err(text)?;
            device.synchronize().map_err(text)?;
        }
        device.synchronize().map_err(text)?;
        Ok(device.memory().map_err(text)?.0)
    };
    (0..ROUNDS.1).try_for_each(|_| round().map(drop))?;
    // Others may take memory of the device or of the machine meanwhile: what is not given back is gone every time.
    let mut found = nothing_is_gone(&round);
    for _ in 1..TRIES {
        if found.is_err() {
            found = nothing_is_gone(&round);
        }
    }
    found
}

/// Some rounds, each of which gives the free memory of the device, cost neither its memory nor that of this process.
fn nothing_is_gone(round: &dyn Fn() -> Result<u64, Problem>) -> Result<(), Problem> {
    let (free, resident) = (round()?, resident_bytes());
    let mut free_at_last = free;
    for _ in 0..ROUNDS.0 {
        free_at_last = round()?;
    }
    let (taken, mib) = ((ROUNDS.0 * PER_ROUND) as u64, |bytes: u64| bytes >> 20);
    let problem = |whose: &str, more: u64| {
        let (taken, more) = (mib(taken), mib(more));
        format!("{taken} MiB were taken and given back in {} rounds, and {more} MiB of {whose} are gone", ROUNDS.0)
    };
    // Half of all that was taken is more than chance.
    let lost = free.saturating_sub(free_at_last);
    ensure(lost < taken / 2, || problem("the device's memory", lost))?;
    let (Some(before), Some(after)) = (resident, resident_bytes()) else { return Ok(()) };
    let grown = after.saturating_sub(before);
    ensure(grown < taken / 2, || problem("the memory of the process", grown))
}

/// Memory of this process that is there, in bytes; `None` where the system does not tell.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}
