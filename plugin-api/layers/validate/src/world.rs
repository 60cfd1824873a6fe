//! What exists: devices, memory, streams, events, plans; and which work may still be pending.
//!
//! Addresses of the backend's own objects are kept as numbers; nothing here dereferences anything.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use crate::clock::Clock;
use crate::handles::{Handle, Kind, Lost, Table};

/// Freed memory that is remembered for messages.
const REMEMBERED: usize = 256;

/// An open device.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) next: usize,
    /// Type and number, as tensors name it.
    pub(crate) id: (i32, i32),
    /// A stream of the layer's own on it; 0 where it needs none.
    pub(crate) own_stream: usize,
}

/// Memory that was allocated, reserved or imported.
#[derive(Debug)]
pub(crate) struct Buffer {
    pub(crate) next: usize,
    pub(crate) device: Handle,
    /// All that the backend gave.
    pub(crate) whole: Range<u64>,
    /// What the caller knows of.
    pub(crate) user: Range<u64>,
    /// Per stream the last work that used it.
    last_use: BTreeMap<usize, u64>,
}

/// A stream.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) next: usize,
    pub(crate) device: Handle,
    /// Pieces of work so far.
    submitted: u64,
    /// What is over before its next work.
    clock: Clock,
    /// Whether a thread is in a call with it.
    is_used: bool,
    /// Memory that was used since a capture began; `None` without one.
    pub(crate) captured: Option<BTreeSet<Handle>>,
}

/// An event.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) next: usize,
    pub(crate) device: Handle,
    /// What is over once it has passed.
    recorded: Clock,
}

/// A plan.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) next: usize,
    /// Index of the op entry that made it.
    pub(crate) entry: usize,
    pub(crate) device: Handle,
    pub(crate) signature: Vec<u64>,
    pub(crate) workspace_bytes: u64,
    pub(crate) workspace_align: u64,
    pub(crate) is_concurrent: bool,
    /// The last work that used it: stream and number.
    last_run: Option<(usize, u64)>,
}

impl Plan {
    pub(crate) fn new(next: usize, entry: usize, device: Handle, signature: Vec<u64>) -> Self {
        let (workspace_bytes, workspace_align, is_concurrent, last_run) = (0, 1, false, None);
        Self { next, entry, device, signature, workspace_bytes, workspace_align, is_concurrent, last_run }
    }
}

/// A captured graph, or one that can be launched.
#[derive(Clone, Debug)]
pub(crate) struct Graph {
    pub(crate) next: usize,
    pub(crate) device: Handle,
    /// Memory that its work uses.
    pub(crate) uses: BTreeSet<Handle>,
}

/// Everything that exists.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) devices: Table<Device>,
    pub(crate) buffers: Table<Buffer>,
    pub(crate) streams: Table<Stream>,
    pub(crate) events: Table<Event>,
    pub(crate) plans: Table<Plan>,
    pub(crate) graphs: Table<Graph>,
    pub(crate) execs: Table<Graph>,
    /// Buffers by their first address. Empty ones are not in it.
    memory: BTreeMap<u64, Handle>,
    freed: VecDeque<(Range<u64>, Handle)>,
    /// What the callers have waited for.
    host: Clock,
}

impl Default for World {
    fn default() -> Self {
        Self {
            devices: Table::new(Kind::Device),
            buffers: Table::new(Kind::Buffer),
            streams: Table::new(Kind::Stream),
            events: Table::new(Kind::Event),
            plans: Table::new(Kind::Plan),
            graphs: Table::new(Kind::Graph),
            execs: Table::new(Kind::Exec),
            memory: BTreeMap::new(),
            freed: VecDeque::new(),
            host: Clock::default(),
        }
    }
}

impl World {
    pub(crate) fn open_device(&mut self, device: Device) -> Handle {
        self.devices.insert(device)
    }

    /// The objects of a device that still exist, each with its name.
    pub(crate) fn on_device(&self, device: Handle) -> Vec<String> {
        let mut out = Vec::new();
        let mut add = |what: String, of: Handle| {
            if of == device {
                out.push(what);
            }
        };
        self.buffers.iter().for_each(|(h, b)| add(format!("{h} of {} bytes", b.user.end - b.user.start), b.device));
        self.streams.iter().for_each(|(h, s)| add(h.to_string(), s.device));
        self.events.iter().for_each(|(h, e)| add(h.to_string(), e.device));
        self.plans.iter().for_each(|(h, p)| add(h.to_string(), p.device));
        self.graphs.iter().for_each(|(h, g)| add(h.to_string(), g.device));
        self.execs.iter().for_each(|(h, g)| add(h.to_string(), g.device));
        out
    }

    /// Takes a device and all that is left of it out.
    pub(crate) fn close_device(&mut self, device: Handle) -> Option<Device> {
        fn of<T>(table: &Table<T>, is_mine: impl Fn(&T) -> bool) -> Vec<Handle> {
            table.iter().filter(|(_, object)| is_mine(object)).map(|(handle, _)| handle).collect()
        }
        for buffer in of(&self.buffers, |b| b.device == device) {
            self.free(buffer);
        }
        for stream in of(&self.streams, |s| s.device == device) {
            self.destroy_stream(stream);
        }
        for handle in of(&self.events, |e| e.device == device) {
            self.events.remove(handle);
        }
        for handle in of(&self.plans, |p| p.device == device) {
            self.plans.remove(handle);
        }
        for handle in of(&self.graphs, |g| g.device == device) {
            self.graphs.remove(handle);
        }
        for handle in of(&self.execs, |g| g.device == device) {
            self.execs.remove(handle);
        }
        self.devices.remove(device)
    }

    // ---- memory ----

    pub(crate) fn allocate(&mut self, next: usize, device: Handle, whole: Range<u64>, user: Range<u64>) -> Handle {
        let start = whole.start;
        let is_empty = whole.is_empty();
        self.freed.retain(|(old, _)| old.end <= whole.start || whole.end <= old.start);
        let handle = self.buffers.insert(Buffer { next, device, whole, user, last_use: BTreeMap::new() });
        if !is_empty {
            self.memory.insert(start, handle);
        }
        handle
    }

    pub(crate) fn free(&mut self, buffer: Handle) -> Option<Buffer> {
        let freed = self.buffers.remove(buffer)?;
        if !freed.whole.is_empty() {
            self.memory.remove(&freed.whole.start);
            self.freed.push_back((freed.whole.clone(), buffer));
            if self.freed.len() > REMEMBERED {
                self.freed.pop_front();
            }
        }
        Some(freed)
    }

    /// The buffer in which an address lies, redzones included.
    pub(crate) fn buffer_at(&self, address: u64) -> Option<(Handle, &Buffer)> {
        let (_, &handle) = self.memory.range(..=address).next_back()?;
        let buffer = self.buffers.get(handle)?;
        (address < buffer.whole.end).then_some((handle, buffer))
    }

    /// The buffer of a device that holds all of `range`; otherwise why not, as the end of a sentence.
    pub(crate) fn place(&self, device: Option<Handle>, range: &Range<u64>) -> Result<Handle, String> {
        let Range { start, end } = *range;
        let Some((handle, buffer)) = self.buffer_at(start) else {
            let freed = self.freed.iter().rev().find(|(old, _)| old.contains(&start));
            return Err(match freed {
                Some((_, old)) => format!("lies at {start:#x} in {old}, which was freed"),
                None => format!("lies at {start:#x}, which is in no allocation"),
            });
        };
        if device.is_some_and(|device| device != buffer.device) {
            return Err(format!("lies in {handle} of {}", buffer.device));
        }
        let user = &buffer.user;
        if start < user.start {
            return Err(format!("begins {} bytes before {handle}", user.start - start));
        }
        if end > user.end {
            let (over, size) = (end - user.end, user.end - user.start);
            return Err(format!("ends {over} bytes behind {handle} of {size} bytes"));
        }
        Ok(handle)
    }

    /// A stream whose pending work uses the buffer.
    pub(crate) fn pending_use(&self, buffer: Handle) -> Option<Handle> {
        let uses = &self.buffers.get(buffer)?.last_use;
        let pending = uses.iter().find(|&(&stream, &number)| {
            let handle = Handle { kind: Kind::Stream, number: stream };
            self.streams.get(handle).is_some() && !self.host.has_passed(stream, number)
        });
        pending.map(|(&number, _)| Handle { kind: Kind::Stream, number })
    }

    // ---- streams and events ----

    pub(crate) fn create_stream(&mut self, next: usize, device: Handle) -> Handle {
        let (clock, is_used, captured) = Default::default();
        self.streams.insert(Stream { next, device, submitted: 0, clock, is_used, captured })
    }

    pub(crate) fn destroy_stream(&mut self, stream: Handle) -> Option<Stream> {
        let gone = self.streams.remove(stream)?;
        self.host.forget(stream.number);
        self.streams.iter_mut().for_each(|(_, other)| other.clock.forget(stream.number));
        Some(gone)
    }

    /// A thread begins a call with the stream; `false` if another is in one.
    pub(crate) fn enter(&mut self, stream: Handle) -> bool {
        self.streams.get_mut(stream).is_none_or(|stream| !std::mem::replace(&mut stream.is_used, true))
    }

    /// It ends the call.
    pub(crate) fn leave(&mut self, stream: Handle) {
        if let Some(stream) = self.streams.get_mut(stream) {
            stream.is_used = false;
        }
    }

    /// Work that uses these buffers is added to the stream, or to what is captured there.
    pub(crate) fn submit(&mut self, stream: Handle, uses: &[Handle]) {
        let Some(at) = self.streams.get_mut(stream) else { return };
        if let Some(captured) = &mut at.captured {
            captured.extend(uses);
            return;
        }
        at.submitted += 1;
        let number = at.submitted;
        for &buffer in uses {
            if let Some(buffer) = self.buffers.get_mut(buffer) {
                buffer.last_use.insert(stream.number, number);
            }
        }
    }

    /// The caller has waited for all work of a stream.
    pub(crate) fn synchronize(&mut self, stream: Handle) {
        if let Some(at) = self.streams.get(stream) {
            self.host.merge(&at.clock);
            self.host.pass(stream.number, at.submitted);
        }
    }

    pub(crate) fn record(&mut self, event: Handle, stream: Handle) {
        let Some(at) = self.streams.get(stream) else { return };
        let mut clock = at.clock.clone();
        clock.merge(&self.host);
        clock.pass(stream.number, at.submitted);
        if let Some(event) = self.events.get_mut(event) {
            event.recorded = clock;
        }
    }

    pub(crate) fn create_event(&mut self, next: usize, device: Handle) -> Handle {
        self.events.insert(Event { next, device, recorded: Clock::default() })
    }

    /// Later work of the stream waits for the event.
    pub(crate) fn wait(&mut self, stream: Handle, event: Handle) {
        if let (Some(stream), Some(event)) = (self.streams.get_mut(stream), self.events.get(event)) {
            stream.clock.merge(&event.recorded);
        }
    }

    /// The caller knows that an event has passed.
    pub(crate) fn passed(&mut self, event: Handle) {
        if let Some(event) = self.events.get(event) {
            self.host.merge(&event.recorded);
        }
    }

    /// Whether no stream of the device but this one has pending work.
    pub(crate) fn is_quiet(&self, device: Handle, but: Handle) -> bool {
        self.streams.iter().all(|(handle, stream)| {
            stream.device != device || handle == but || self.host.has_passed(handle.number, stream.submitted)
        })
    }

    /// A number that changes with every piece of work on the other streams of a device.
    pub(crate) fn activity(&self, device: Handle, but: Handle) -> u64 {
        let others = self.streams.iter().filter(|(handle, stream)| stream.device == device && *handle != but);
        others.map(|(_, stream)| stream.submitted).sum()
    }

    /// A stream of the device that is captured.
    pub(crate) fn capturing(&self, device: Handle) -> Option<Handle> {
        self.streams.iter().find(|(_, s)| s.device == device && s.captured.is_some()).map(|(handle, _)| handle)
    }

    // ---- plans ----

    /// Notes that a plan runs as the last work of `stream`. Without `DI_PF_CONCURRENT` its last run must be over by then; if
    /// it is not, the stream of that run.
    pub(crate) fn run_plan(&mut self, plan: Handle, stream: Handle) -> Option<Handle> {
        let at = self.streams.get(stream)?;
        let (number, is_captured) = (at.submitted, at.captured.is_some());
        let plan = self.plans.get_mut(plan).filter(|_| !is_captured)?;
        let last = plan.last_run.replace((stream.number, number));
        let (other, number) = last.filter(|_| !plan.is_concurrent)?;
        let is_over = other == stream.number
            || at.clock.has_passed(other, number)
            || self.host.has_passed(other, number)
            || self.streams.get(Handle { kind: Kind::Stream, number: other }).is_none();
        (!is_over).then_some(Handle { kind: Kind::Stream, number: other })
    }

    /// Why an address is no live object, or its handle and the device that it belongs to.
    pub(crate) fn find(&self, kind: Kind, address: usize) -> Result<(Handle, Handle), Lost> {
        Ok(match kind {
            Kind::Device => self.devices.find(address).map(|h| (h, h))?,
            Kind::Buffer => on(&self.buffers, address, |b| b.device)?,
            Kind::Stream => on(&self.streams, address, |s| s.device)?,
            Kind::Event => on(&self.events, address, |e| e.device)?,
            Kind::Plan => on(&self.plans, address, |p| p.device)?,
            Kind::Graph => on(&self.graphs, address, |g| g.device)?,
            Kind::Exec => on(&self.execs, address, |g| g.device)?,
        })
    }
}

fn on<T>(table: &Table<T>, address: usize, device: impl Fn(&T) -> Handle) -> Result<(Handle, Handle), Lost> {
    let handle = table.find(address)?;
    Ok((handle, table.get(handle).map(device).ok_or(Lost::Gone(handle))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world() -> (World, Handle) {
        let mut world = World::default();
        let device = world.open_device(Device { next: 1, id: (1, 0), own_stream: 0 });
        (world, device)
    }

    #[test]
    fn places_in_memory() {
        let (mut world, device) = world();
        let buffer = world.allocate(1, device, 0x1000..0x2000, 0x1100..0x1f00);
        world.allocate(2, device, 0x3000..0x3000, 0x3000..0x3000);
        let place = |world: &World, range: Range<u64>| world.place(Some(device), &range).map_err(|e| e.to_string());
        assert_eq!(place(&world, 0x1100..0x1f00), Ok(buffer));
        assert_eq!(place(&world, 0x1f00..0x1f00), Ok(buffer), "nothing at the end");
        assert_eq!(place(&world, 0x10f0..0x1200).unwrap_err(), "begins 16 bytes before buffer #1");
        assert_eq!(place(&world, 0x1e00..0x1f04).unwrap_err(), "ends 4 bytes behind buffer #1 of 3584 bytes");
        assert_eq!(place(&world, 0x3000..0x3001).unwrap_err(), "lies at 0x3000, which is in no allocation");
        let other = world.open_device(Device { next: 2, id: (1, 1), own_stream: 0 });
        assert_eq!(world.place(Some(other), &(0x1100..0x1101)).unwrap_err(), "lies in buffer #1 of device #1");
        world.free(buffer);
        assert_eq!(place(&world, 0x1100..0x1101).unwrap_err(), "lies at 0x1100 in buffer #1, which was freed");
        world.allocate(3, device, 0x1000..0x1200, 0x1000..0x1200);
        assert!(place(&world, 0x1100..0x1101).is_ok(), "given again");
    }

    #[test]
    fn memory_is_in_use_until_somebody_has_waited_for_it() {
        let (mut world, device) = world();
        let buffer = world.allocate(1, device, 0..8, 0..8);
        let (a, b) = (world.create_stream(1, device), world.create_stream(2, device));
        assert_eq!(world.pending_use(buffer), None);
        world.submit(a, &[buffer]);
        assert_eq!(world.pending_use(buffer), Some(a));
        world.submit(b, &[]);
        world.synchronize(b);
        assert_eq!(world.pending_use(buffer), Some(a), "the wrong stream");
        // Waiting for what waits for it is enough.
        let event = world.create_event(1, device);
        world.record(event, a);
        world.wait(b, event);
        world.submit(b, &[]);
        world.synchronize(b);
        assert_eq!(world.pending_use(buffer), None);
        world.submit(a, &[buffer]);
        world.record(event, a);
        world.passed(event);
        assert_eq!(world.pending_use(buffer), None);
        world.submit(a, &[buffer]);
        world.destroy_stream(a);
        assert_eq!(world.pending_use(buffer), None);
    }

    #[test]
    fn a_plan_on_two_streams_needs_an_order_between_them() {
        let (mut world, device) = world();
        let (a, b) = (world.create_stream(1, device), world.create_stream(2, device));
        let plan = world.plans.insert(Plan::new(1, 0, device, Vec::new()));
        let run = |world: &mut World, stream| {
            world.submit(stream, &[]);
            world.run_plan(plan, stream)
        };
        assert_eq!(run(&mut world, a), None);
        assert_eq!(run(&mut world, a), None);
        assert_eq!(run(&mut world, b), Some(a));
        world.synchronize(b);
        assert_eq!(run(&mut world, a), None);
        let event = world.create_event(1, device);
        world.record(event, a);
        world.wait(b, event);
        assert_eq!(run(&mut world, b), None);
        world.plans.get_mut(plan).unwrap().is_concurrent = true;
        assert_eq!(run(&mut world, a), None);
    }

    #[test]
    fn a_device_is_quiet_when_the_others_were_waited_for() {
        let (mut world, device) = world();
        let (a, b) = (world.create_stream(1, device), world.create_stream(2, device));
        world.submit(a, &[]);
        assert!(world.is_quiet(device, a) && !world.is_quiet(device, b));
        world.synchronize(a);
        assert!(world.is_quiet(device, b));
    }

    #[test]
    fn what_is_left_on_a_device_is_named_and_goes_with_it() {
        let (mut world, device) = world();
        world.allocate(1, device, 0..8, 0..8);
        let stream = world.create_stream(1, device);
        world.create_event(1, device);
        assert_eq!(world.on_device(device), ["buffer #1 of 8 bytes", "stream #1", "event #1"]);
        world.close_device(device);
        assert_eq!(world.find(Kind::Stream, stream.address()), Err(Lost::Gone(stream)));
        assert!(world.buffer_at(0).is_none());
    }
}
