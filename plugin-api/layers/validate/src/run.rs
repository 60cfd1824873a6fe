//! One op call: checked, and as asked for poisoned, shadowed, recorded, delayed.

#![allow(unsafe_code)]

use std::ops::Range;

use deepinfer_oracle::{Call as HostCall, Outputs};
use deepinfer_plugin_api::Role;
use deepinfer_plugin_api::abi::{DI_E_UNSUPPORTED, DiError, DiOpHeader, DiPlan, DiStream};
use deepinfer_plugin_api::sdk::{Fault, ForeignError, OwnedArgs};

use crate::call::Call;
use crate::check::{self, Broken};
use crate::finding::{Culprit, Finding, Rule};
use crate::handles::{Handle, Kind};
use crate::lane::{Image, Lane};
use crate::layer::Layer;
use crate::next::{Entry, error_problem};
use crate::ranges::Ranges;
use crate::read;
use crate::shadow;
use crate::watch::{self, MARGIN, POISON};

/// A call that was checked, ready to run.
struct Job {
    index: usize,
    number: u64,
    call: Call,
    /// The backend's plan and stream.
    next_plan: usize,
    next_stream: usize,
    stream: Handle,
    device: Handle,
    sampled: bool,
    /// Whether its tensors lie where they may be looked at.
    is_placed: bool,
    /// Whether `supports` or `plan` took the call.
    was_accepted: bool,
}

impl Layer {
    /// What an implementation is called in messages.
    fn entry(&self, index: usize) -> &Entry {
        &self.next.entries[index]
    }

    fn finding(&self, index: usize, number: u64, by: Culprit, broken: Broken) -> Finding {
        let Broken { rule, argument, problem } = broken;
        Finding {
            implementation: self.entry(index).implementation.to_owned(),
            number,
            seed: self.options.seed,
            ..Finding::new(rule, by, self.entry(index).name, problem).about(&argument)
        }
    }

    /// Takes over an error of the backend, which must be a whole object.
    ///
    /// # Errors
    /// It is not, and findings are errors.
    ///
    /// # Safety
    /// `error` is null or what a function of the backend has just returned.
    pub(crate) unsafe fn took(&self, what: &str, error: *mut DiError) -> Result<*mut DiError, Fault> {
        if error.is_null() {
            return Ok(error);
        }
        // SAFETY: the caller's contract; at least the size of the object is there.
        if let Some(problem) = unsafe { error_problem(error) } {
            let problem = format!("its error object {problem}");
            return Err(self.reporter.refuse(&Finding::new(Rule::ErrorObject, Culprit::Backend, what, problem)));
        }
        Ok(error)
    }

    /// The head of the arguments of implementation `index`, and what they are.
    ///
    /// # Errors
    /// They cannot be read as such, which is a finding.
    ///
    /// # Safety
    /// `args` is null or points to the arguments of an op, as the header says.
    pub(crate) unsafe fn arguments(
        &self,
        index: usize,
        number: u64,
        args: *const DiOpHeader,
    ) -> Result<Option<Call>, Fault> {
        let entry = self.entry(index);
        let refuse = |problem: String| {
            let broken = Broken::new(Rule::Struct, "", problem);
            Err(self.reporter.refuse(&self.finding(index, number, Culprit::Core, broken)))
        };
        if args.is_null() {
            return refuse("there are no arguments".to_owned());
        }
        // SAFETY: not null; every struct begins with its size.
        let size = unsafe { args.cast::<u32>().read() } as usize;
        if size < size_of::<DiOpHeader>() {
            return refuse(format!(
                "the arguments have struct_size {size}, but their head alone has {} bytes",
                size_of::<DiOpHeader>()
            ));
        }
        // SAFETY: the head is there.
        let (id, version) = unsafe { ((*args).op_id, (*args).op_version) };
        if (id, version) != (entry.raw.op_id, entry.raw.op_version) {
            return refuse(format!(
                "the arguments are those of op {id} version {version}, but this is op {} version {}",
                entry.raw.op_id, entry.raw.op_version
            ));
        }
        // SAFETY: arguments of this op, by their id and the caller's contract.
        Ok(entry.op.map(|op| unsafe { read::call(args, op) }))
    }

    /// A broken rule of the arguments.
    ///
    /// # Errors
    /// Findings are errors.
    pub(crate) fn broken(
        &self,
        index: usize,
        number: u64,
        by: Culprit,
        outcome: Result<(), Broken>,
    ) -> Result<bool, Fault> {
        match outcome {
            Ok(()) => Ok(true),
            Err(broken) => self.reporter.report(&self.finding(index, number, by, broken)).map(|()| false),
        }
    }

    /// Runs implementation `index`.
    ///
    /// # Errors
    /// A finding, or what running it in a delayed queue needs is not there.
    ///
    /// # Safety
    /// `plan` and `stream` are handles; `args` is null or points to arguments as the header says.
    pub(crate) unsafe fn run(
        &'static self,
        index: usize,
        plan: *mut DiPlan,
        stream: *mut DiStream,
        args: *const DiOpHeader,
    ) -> Result<*mut DiError, Fault> {
        let number = self.number();
        let name = self.entry(index).name;
        // SAFETY: the same contract.
        let call = unsafe { self.arguments(index, number, args) }?;
        let (stream, device) = self.find(name, Kind::Stream, stream.addr())?;
        if !self.world().enter(stream) {
            let broken = Broken::new(Rule::Thread, "", format!("{stream} is in use by another thread"));
            // What happens now is anybody's guess; the other thread leaves the stream.
            return Err(self.reporter.refuse(&self.finding(index, number, Culprit::Core, broken)));
        }
        // SAFETY: the same contract.
        let outcome = unsafe { self.run_alone(index, number, plan, (stream, device), args, call) };
        self.world().leave(stream);
        outcome
    }

    /// [`Layer::run`], with the stream to itself.
    ///
    /// # Safety
    /// As [`Layer::run`].
    unsafe fn run_alone(
        &'static self,
        index: usize,
        number: u64,
        plan: *mut DiPlan,
        (stream, device): (Handle, Handle),
        args: *const DiOpHeader,
        call: Option<Call>,
    ) -> Result<*mut DiError, Fault> {
        let entry = self.entry(index);
        let (next_plan, is_good_plan) = self.check_plan(index, number, plan.addr(), (stream, device), call.as_ref())?;
        let mut uses = Vec::new();
        let mut is_placed = is_good_plan && call.is_some();
        if let Some(call) = &call {
            is_placed &= self.broken(index, number, Culprit::Core, check::descriptors(call))?;
            let placement = {
                let world = self.world();
                let id = world.devices.get(device).map_or((0, 0), |device| device.id);
                check::placement(call, &world, device, id)
            };
            let placement = placement.map(|found| uses = found);
            is_placed &= self.broken(index, number, Culprit::Core, placement)?;
        }
        let (next_stream, is_captured) = {
            let mut world = self.world();
            world.submit(stream, &uses);
            world.streams.get(stream).map_or((0, false), |s| (s.next, s.captured.is_some()))
        };
        if let Some(other) = (plan.addr() != 0).then(|| self.busy_plan(plan.addr(), stream)).flatten() {
            let problem = format!("the plan runs on {other} at the same time, but is not DI_PF_CONCURRENT");
            self.broken(index, number, Culprit::Core, Err(Broken::new(Rule::Plan, "", problem)))?;
        }
        self.reporter.tally(|tally| tally.checked += 1);
        let next_plan_ptr = std::ptr::with_exposed_provenance_mut(next_plan);
        let next_stream_ptr = std::ptr::with_exposed_provenance_mut(next_stream);
        let run = entry.raw.run.expect("entries without run are refused");
        let Some(call) = call.filter(|_| !is_captured) else {
            // An op of which nothing is known, or work that is only recorded.
            // SAFETY: plan and stream are the backend's own of the handles given; the arguments are the caller's.
            return unsafe { self.took(entry.name, run(self.next.raw, next_plan_ptr, next_stream_ptr, args)) };
        };
        let sampled = is_placed && self.samples(call.op.id, entry.name, index, call.class());
        let was_accepted =
            entry.raw.plan.is_some() || entry.raw.supports.is_none() || self.has_promised(index, call.signature());
        let job = Job { index, number, call, next_plan, next_stream, stream, device, sampled, is_placed, was_accepted };
        match self.queue(stream) {
            // SAFETY: the head was read before.
            Some(queue) if unsafe { (*args).ext.is_null() } => {
                let op = job.call.op;
                let rows = op.args.iter().map(|arg| (arg.offset, arg.kind));
                // SAFETY: the arguments are those of the op; the caller keeps the memory of the tensors until the stream
                // has passed, as the header demands.
                let owned = unsafe { OwnedArgs::copy_rows(args, op.args_size, rows) }?;
                queue.submit(entry.name, move || {
                    // SAFETY: as above; the queue's thread alone uses the backend's stream until somebody waits.
                    unsafe {
                        let owned = owned;
                        self.settle(self.execute(&job, owned.head())?)?;
                        self.settle_stream(job.next_stream)
                    }
                });
                Ok(std::ptr::null_mut())
            }
            queue => {
                // Extensions are borrowed for the call.
                queue.map_or(Ok(()), |queue| queue.sync())?;
                // SAFETY: the arguments are the caller's, and this thread alone uses the stream.
                unsafe { self.execute(&job, args) }
            }
        }
    }

    /// Turns an error of the backend into one of the queue.
    ///
    /// # Safety
    /// `error` is null or a live error object that nobody else uses.
    pub(crate) unsafe fn settle(&self, error: *mut DiError) -> Result<(), Fault> {
        // SAFETY: the same contract.
        unsafe { ForeignError::take(error) }.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Waits for a stream of the backend.
    ///
    /// # Safety
    /// It is alive, and nobody else uses it.
    pub(crate) unsafe fn settle_stream(&self, next_stream: usize) -> Result<(), Fault> {
        let sync = self.next.runtime.stream_sync.expect("mandatory");
        // SAFETY: the same contract.
        unsafe { self.settle(sync(self.next.raw, std::ptr::with_exposed_provenance_mut(next_stream))) }
    }

    /// The plan must be one of this implementation, this device and this signature, and the workspace what it asked for.
    fn check_plan(
        &self,
        index: usize,
        number: u64,
        plan: usize,
        (stream, device): (Handle, Handle),
        call: Option<&Call>,
    ) -> Result<(usize, bool), Fault> {
        let entry = self.entry(index);
        let wrong = |problem: &str| {
            let broken = Broken::new(Rule::Plan, "", problem);
            self.reporter.report(&self.finding(index, number, Culprit::Core, broken))
        };
        if plan == 0 {
            if entry.raw.plan.is_some() {
                wrong("there is no plan, but this implementation makes one for each signature")?;
            }
            return Ok((0, entry.raw.plan.is_none()));
        }
        let found = self.find(entry.name, Kind::Plan, plan)?;
        let outcome = {
            let world = self.world();
            let Some(plan) = world.plans.get(found.0) else { return Ok((0, false)) };
            let problem = if plan.entry != index {
                let other = self.entry(plan.entry);
                Err(Broken::new(
                    Rule::Plan,
                    "",
                    format!("{} was made by {} ({})", found.0, other.name, other.implementation),
                ))
            } else if call.is_some_and(|call| call.signature() != plan.signature) {
                Err(Broken::new(
                    Rule::Plan,
                    "",
                    format!("{} was made for other shapes, strides, formats or numbers", found.0),
                ))
            } else {
                call.map_or(Ok(()), |call| check::workspace(call, plan.workspace_bytes, plan.workspace_align))
            };
            (plan.next, problem)
        };
        self.same_device(entry.name, found, (stream, device))?;
        let is_good = self.broken(index, number, Culprit::Core, outcome.1)?;
        Ok((outcome.0, is_good))
    }

    fn busy_plan(&self, plan: usize, stream: Handle) -> Option<Handle> {
        let mut world = self.world();
        let plan = world.plans.find(plan).ok()?;
        world.run_plan(plan, stream)
    }

    /// The call itself, with all that looks at memory around it.
    ///
    /// # Safety
    /// `args` is complete and its memory may be touched; nobody else uses the backend's stream.
    unsafe fn execute(&self, job: &Job, args: *const DiOpHeader) -> Result<*mut DiError, Fault> {
        let records = job.is_placed.then(|| self.records(job.call.op.id, self.entry(job.index).name)).flatten();
        if !(job.is_placed && (self.options.poison || job.sampled || records.is_some())) {
            // SAFETY: the same contract.
            return unsafe { self.call_next(job, args) };
        }
        let bounds = |address| self.world().buffer_at(address).map(|(_, buffer)| buffer.whole.clone());
        // SAFETY: the stream is this call's alone; what is looked at lies in live memory, as `placement` has checked.
        let lane = unsafe { Lane::new(&self.next, job.next_stream, &bounds) };
        let takes_all = job.sampled || records.is_some();
        let written = check::written(&job.call);
        let calm = Calm::before(self, job);
        let mut held = None;
        if self.options.poison {
            let outputs = watch::outputs(&job.call);
            let before = lane.read(&written)?;
            lane.fill(&outputs, POISON)?;
            held = Some(Held { outputs, before });
            lane.fill(&Ranges::of(vec![job.call.workspace.clone()]), POISON)?;
        }
        let mut watched = self.watched(job, takes_all);
        if takes_all {
            // What is only read is copied anyway, and must be the same afterwards.
            watched = Ranges::of(watched.iter().cloned().chain(watch::inputs(&job.call)).collect());
        }
        let mut looked_at: Vec<Range<u64>> = watched.iter().cloned().collect();
        if takes_all {
            looked_at.extend(watch::everything(&job.call));
        }
        let before = lane.read(&Ranges::of(looked_at))?;
        // SAFETY: the same contract.
        let outcome = unsafe { self.call_next(job, args) };
        let has_run = matches!(&outcome, Ok(error) if error.is_null());
        if let Some(held) = held.as_ref().filter(|_| !has_run) {
            held.put_back_untouched(&lane);
        }
        let error = outcome?;
        let after = lane.read(&watched);
        if let Some(held) = held.as_ref().filter(|_| has_run && after.is_err()) {
            held.put_back(&lane);
        }
        // A call that failed may have written its outputs, but nothing else; with an error of its own to report, the
        // finding is in the report and in the log.
        let change = after
            .as_ref()
            .ok()
            .filter(|_| calm.has_lasted(self))
            .and_then(|after| watch::change(&written, &before, after));
        if let Some(change) = change {
            let finding = self.finding(job.index, job.number, Culprit::Backend, out_of_bounds(&job.call, change));
            if !error.is_null() {
                self.reporter.mention(&finding);
                return Ok(error);
            }
            self.reporter.report(&finding)?;
        }
        if !error.is_null() {
            return Ok(error);
        }
        let after = after?;
        if takes_all {
            // SAFETY: the same contract.
            unsafe { self.look(job, args, &lane, (&before, &after), records, calm.has_lasted(self)) }?;
        }
        Ok(std::ptr::null_mut())
    }

    /// Calls the backend, and looks at its error.
    ///
    /// # Safety
    /// As [`Layer::execute`].
    unsafe fn call_next(&self, job: &Job, args: *const DiOpHeader) -> Result<*mut DiError, Fault> {
        let entry = self.entry(job.index);
        let run = entry.raw.run.expect("entries without run are refused");
        let (plan, stream) = (
            std::ptr::with_exposed_provenance_mut(job.next_plan),
            std::ptr::with_exposed_provenance_mut(job.next_stream),
        );
        // SAFETY: plan and stream are the backend's own of the handles given; the rest is the caller's.
        let error = unsafe { self.took(entry.name, run(self.next.raw, plan, stream, args)) }?;
        // SAFETY: a whole error object, or null.
        let declined = unsafe { ForeignError::read(error) }.filter(|error| error.code == DI_E_UNSUPPORTED);
        if let Some(declined) = declined.filter(|_| job.was_accepted) {
            let said = match (&entry.raw.supports, &entry.raw.plan) {
                (Some(_), _) => "supports said yes",
                (None, Some(_)) => "plan took it",
                (None, None) => "without a supports function it takes every call",
            };
            let problem = format!("{said}, but run declined: {}", declined.message);
            let finding =
                self.finding(job.index, job.number, Culprit::Backend, Broken::new(Rule::Honesty, "", problem));
            match self.reporter.report(&finding) {
                Ok(()) => {}
                Err(fault) => {
                    // SAFETY: ours, and nobody else has it.
                    drop(unsafe { ForeignError::take(error) });
                    return Err(fault);
                }
            }
        }
        Ok(error)
    }

    /// What of device memory is looked at before and after.
    fn watched(&self, job: &Job, whole: bool) -> Ranges {
        let margin = if self.options.poison { MARGIN } else { 0 };
        let world = self.world();
        let bounds = |address| world.buffer_at(address).map(|(_, buffer)| buffer.whole.clone());
        let mut watched = watch::watched(&job.call, margin, whole, bounds);
        // Behind the workspace, too.
        let workspace = &job.call.workspace;
        if let Some(whole) = (margin > 0 && !workspace.is_empty()).then(|| bounds(workspace.start)).flatten() {
            let behind = workspace.end..workspace.end.saturating_add(margin).min(whole.end);
            let all = watched.iter().cloned().chain(std::iter::once(behind)).collect();
            watched = Ranges::of(all);
        }
        watched
    }

    /// Records and shadows.
    ///
    /// # Safety
    /// As [`Layer::execute`].
    unsafe fn look(
        &self,
        job: &Job,
        args: *const DiOpHeader,
        lane: &Lane<'_>,
        (before, after): (&Image, &Image),
        records: Option<u64>,
        is_calm: bool,
    ) -> Result<(), Fault> {
        let name = self.entry(job.index).name;
        let skip = |reason| self.reporter.tally(|tally| tally.not_shadowed(name, reason));
        if !shadow::has_oracle(job.call.op) {
            skip("there is no oracle");
            return Ok(());
        }
        let host = shadow::host_call(&job.call, before).zip(shadow::found(&job.call, after));
        let Some((call, found)) = host else {
            skip("a tensor has elements apart from each other");
            return Ok(());
        };
        if let (Some(count), Some(folder)) = (records, &self.options.record) {
            let file = format!("{name}-{count}.{}", deepinfer_oracle::bundle::EXTENSION);
            self.bundle(folder.join(file), &call, Some(&found), None);
        }
        if !job.sampled {
            return Ok(());
        }
        // What is only partly written may change under our eyes.
        if !is_calm && job.call.op.args.iter().any(|arg| arg.role == Role::InOut) {
            skip("other streams were at work");
            return Ok(());
        }
        let Some(judgement) = shadow::judge(&call, &found) else {
            skip("the oracle cannot judge the call");
            return Ok(());
        };
        self.reporter.tally(|tally| tally.shadowed += 1);
        let Err(broken) = judgement else { return Ok(()) };
        // SAFETY: the same contract.
        let broken = unsafe { self.blame_workspace(job, args, lane, before, &call, broken) };
        let mut finding = self.finding(job.index, job.number, Culprit::Backend, broken);
        if let Some(path) = self.finding_path(name, job.number) {
            finding.bundle = self.bundle(path, &call, Some(&found), Some(finding.problem.clone()));
        }
        self.reporter.report(&finding)
    }

    /// If the result is right once the workspace is zeroed, the op depends on what the workspace held.
    ///
    /// # Safety
    /// As [`Layer::execute`].
    unsafe fn blame_workspace(
        &self,
        job: &Job,
        args: *const DiOpHeader,
        lane: &Lane<'_>,
        before: &Image,
        call: &HostCall,
        broken: Broken,
    ) -> Broken {
        if job.call.workspace.is_empty() || broken.rule != Rule::Value {
            return broken;
        }
        // SAFETY: the same contract.
        match unsafe { self.run_zeroed(job, args, lane, before) } {
            Some(found) if shadow::judge(call, &found).is_some_and(|judged| judged.is_ok()) => {
                let problem = format!(
                    "{}; with a zeroed workspace it is right: it reads what it did not write there",
                    broken.problem
                );
                Broken { rule: Rule::StaleWorkspace, problem, ..broken }
            }
            _ => broken,
        }
    }

    /// What the call gives once more, from the same memory but with a zeroed workspace. `None` if that fails.
    ///
    /// # Safety
    /// As [`Layer::execute`].
    unsafe fn run_zeroed(
        &self,
        job: &Job,
        args: *const DiOpHeader,
        lane: &Lane<'_>,
        before: &Image,
    ) -> Option<Outputs> {
        let written = check::written(&job.call);
        for range in written.iter() {
            lane.write(range.start, before.get(range)?).ok()?;
        }
        lane.fill(&Ranges::of(vec![job.call.workspace.clone()]), 0).ok()?;
        // SAFETY: the same contract.
        let error = unsafe { self.call_next(job, args) }.ok()?;
        // SAFETY: null, or handed over.
        unsafe { self.settle(error) }.ok()?;
        let after = lane.read(&self.watched(job, true)).ok()?;
        shadow::found(&job.call, &after)
    }
}

/// What the poison has to make good: a call that is refused has written nothing.
struct Held {
    outputs: Ranges,
    before: Image,
}

impl Held {
    /// Outputs that are still as they were poisoned get what they held before.
    fn put_back_untouched(&self, lane: &Lane<'_>) {
        // On a device that is lost there is nothing to be put back.
        let Ok(now) = lane.read(&self.outputs) else { return };
        for range in self.outputs.iter() {
            if let (Some(now), Some(bytes)) = (now.get(range), self.before.get(range))
                && now.iter().all(|&byte| byte == POISON)
                && lane.write(range.start, bytes).is_err()
            {
                return;
            }
        }
    }

    /// All that a call writes gets what it held before: the call has failed when its work was waited for here, which its
    /// caller is told as if it had been refused.
    fn put_back(&self, lane: &Lane<'_>) {
        // As above.
        let _ = self.before.pieces().try_for_each(|(range, bytes)| lane.write(range.start, bytes));
    }
}

/// Whether other streams of the device are at work: then memory that a call does not write may change beside it.
struct Calm {
    device: Handle,
    stream: Handle,
    was_quiet: bool,
    activity: u64,
}

impl Calm {
    fn before(layer: &Layer, job: &Job) -> Self {
        let world = layer.world();
        let (device, stream) = (job.device, job.stream);
        Self { device, stream, was_quiet: world.is_quiet(device, stream), activity: world.activity(device, stream) }
    }

    fn has_lasted(&self, layer: &Layer) -> bool {
        self.was_quiet && layer.world().activity(self.device, self.stream) == self.activity
    }
}

fn out_of_bounds(call: &Call, (address, old, new): watch::Change) -> Broken {
    if !call.workspace.is_empty() && address >= call.workspace.end && address < call.workspace.end + MARGIN {
        let behind = address - call.workspace.end;
        let problem = format!("was exceeded: {new:#04x} was written over {old:#04x}, {behind} bytes behind its end");
        return Broken::new(Rule::OutOfBounds, "workspace", problem);
    }
    if let Some(input) = watch::input_at(call, address) {
        let problem = format!("was written, but may only be read: {new:#04x} stands where {old:#04x} was");
        return Broken::new(Rule::InputWritten, &input, problem);
    }
    let (argument, place) = watch::describe(call, address);
    Broken::new(Rule::OutOfBounds, &argument, format!("was exceeded: {new:#04x} was written over {old:#04x}, {place}"))
}
