//! Streams, events, devices side by side.

use deepinfer_ops::{Device, Tensor};
use deepinfer_runtime::{OpenDevice, conformance};

use super::{Problem, bytes, download, ensure, expect_bytes, pattern, text};
use crate::parity::worker::Target;

pub(super) fn work_runs_in_order(target: &Target) -> Result<(), Problem> {
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

pub(super) fn events_come_to_pass(target: &Target) -> Result<(), Problem> {
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

pub(super) fn two_devices_do_not_mix(target: &Target) -> Result<(), Problem> {
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

/// A tensor of bytes in memory of its own.
fn fresh(device: &OpenDevice, len: usize) -> Result<Tensor, Problem> {
    Ok(bytes(&device.allocate(len).map_err(text)?, 0, len))
}

/// Much work on one stream, and on another a copy of its result that waits for the event behind it. A stream that does not
/// wait copies what was there before.
pub(super) fn a_stream_waits_for_an_event(target: &Target) -> Result<(), Problem> {
    const LEN: usize = 4 << 20;
    const MUCH: u8 = 16;
    let first = target.open()?;
    let second = first.new_stream().map_err(text)?;
    let (source, copied) = (fresh(&first, LEN)?, fresh(&first, LEN)?);
    for round in 1..=4u8 {
        first.fill(&source, 0xEE).map_err(text)?;
        first.synchronize().map_err(text)?;
        (0..MUCH).try_for_each(|turn| first.fill(&source, 0x80 + turn)).map_err(text)?;
        first.fill(&source, round).map_err(text)?;
        let event = first.record_event().map_err(text)?;
        second.wait_event(&event).map_err(text)?;
        // The event may go as soon as the wait for it is queued.
        drop(event);
        second.copy(&copied, &source).map_err(text)?;
        expect_bytes(
            "a copy on a stream that waits for an event behind the work of another stream",
            &download(&second, &copied)?,
            &[round; LEN],
        )?;
    }
    Ok(())
}

pub(super) fn an_unrecorded_event_holds_nobody_up(target: &Target) -> Result<(), Problem> {
    Ok(conformance::wait_for_unrecorded_event(&target.open()?)?)
}

/// Turn by turn, work is queued on two streams and never waited for; each has memory of its own.
pub(super) fn two_streams_do_not_mix(target: &Target) -> Result<(), Problem> {
    const LEN: usize = 1 << 18;
    let first = target.open()?;
    let streams = [first.new_stream().map_err(text)?, first.new_stream().map_err(text)?];
    let mut tensors = Vec::new();
    for stream in &streams {
        tensors.push([fresh(stream, LEN)?, fresh(stream, LEN)?]);
    }
    for round in 0..32u8 {
        for (index, (stream, [a, b])) in streams.iter().zip(&tensors).enumerate() {
            let byte = round * 2 + index as u8;
            stream.fill(a, byte).and_then(|()| stream.copy(b, a)).and_then(|()| stream.fill(a, !byte)).map_err(text)?;
        }
    }
    for (index, (stream, [a, b])) in streams.iter().zip(&tensors).enumerate() {
        let byte = 62 + index as u8;
        expect_bytes(&format!("the copy on stream {index}"), &download(stream, b)?, &[byte; LEN])?;
        expect_bytes(&format!("the fill on stream {index}"), &download(stream, a)?, &[!byte; LEN])?;
    }
    Ok(())
}

pub(super) fn work_survives_its_stream(target: &Target) -> Result<(), Problem> {
    const LEN: usize = 1 << 20;
    let device = target.open()?;
    let (source, copied) = (fresh(&device, LEN)?, fresh(&device, LEN)?);
    let sent = pattern(LEN, 7);
    device.upload(&source, &sent).and_then(|()| device.fill(&copied, 0)).map_err(text)?;
    device.synchronize().map_err(text)?;
    conformance::destroy_busy_stream(&device, &copied, &source, 32)?;
    expect_bytes("a copy on a stream that was destroyed at once", &download(&device, &copied)?, &sent)
}
