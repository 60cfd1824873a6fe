//! The device that traces: it does what the device below it does, and reads back what ops have written.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use deepinfer_engine::{RequestId, StepPlan};
use deepinfer_ops::{Between, Device, OpCall, OpError, Part, Scope, Tensor};

use super::rows::{Layout, RowMaps};
use super::{CallKey, Log, Recorded, RecordedRow, Subject, Trace, values};
use crate::run::Digest;

/// A device that can trace; while it does not, it hands everything on.
pub(crate) struct TraceDevice {
    inner: Rc<dyn Device>,
    scope: Cell<Scope>,
    log: RefCell<Option<Log>>,
    /// Of the step that is being queued.
    maps: RefCell<RowMaps>,
    ordinals: RefCell<HashMap<(Scope, &'static str), usize>>,
}

impl TraceDevice {
    pub(crate) fn new(inner: Rc<dyn Device>) -> Self {
        Self {
            inner,
            scope: Cell::new(Scope::of(Part::Tokens)),
            log: RefCell::new(None),
            maps: RefCell::default(),
            ordinals: RefCell::default(),
        }
    }

    /// Traces from now on.
    pub(crate) fn start(&self, subject: Subject) {
        let log = Log { subject, names: Vec::new(), step: Vec::new(), trace: Trace::default() };
        *self.log.borrow_mut() = Some(log);
        self.forget_step();
    }

    /// Request `request` of the workload has this name in the engine.
    pub(crate) fn name(&self, request: usize, id: RequestId) {
        if let Some(log) = self.log.borrow_mut().as_mut().filter(|log| log.subject.request == request) {
            log.names.push(id.completion(log.subject.completion));
        }
    }

    /// The step that was queued last had these rows.
    pub(crate) fn end_step(&self, plan: &StepPlan) {
        if let Some(log) = self.log.borrow_mut().as_mut() {
            log.end_step(plan);
            self.forget_step();
        }
    }

    /// Ends the trace.
    pub(crate) fn finish(&self) -> Trace {
        self.log.borrow_mut().take().map(|log| log.trace).unwrap_or_default()
    }

    fn forget_step(&self) {
        *self.maps.borrow_mut() = RowMaps::default();
        self.ordinals.borrow_mut().clear();
    }

    /// Hashes what `call`, which has run, has written.
    fn record(&self, log: &mut Log, call: &dyn OpCall) -> Result<(), OpError> {
        let (scope, op) = (self.scope.get(), call.info().name);
        let mut ordinals = self.ordinals.borrow_mut();
        let ordinal = ordinals.entry((scope, op)).or_default();
        let key = |arg| CallKey { scope, op, ordinal: *ordinal, arg, expert: 0 };
        let mut maps = self.maps.borrow_mut();
        maps.learn(self.inner.as_ref(), scope, call)?;
        let mut failed = Ok(());
        call.tensors(&mut |arg, tensor| {
            let Some(layout) = maps.layout(scope, call, arg, tensor) else { return };
            let call = key(arg);
            let keeps = log.subject.keep.is_some_and(|spot| CallKey { expert: 0, ..spot.call } == call);
            match self.rows_of(tensor, &layout, keeps) {
                Ok(rows) => log.step.push(Recorded { call, rows }),
                Err(error) => failed = Err(error),
            }
        });
        *ordinal += 1;
        failed
    }

    fn rows_of(&self, tensor: &Tensor, layout: &Layout, keeps_values: bool) -> Result<Vec<RecordedRow>, OpError> {
        let contents = values::read(self.inner.as_ref(), tensor)?;
        let rows = layout.places.iter().enumerate().filter_map(|(at, place)| {
            let row = contents.row(at, layout);
            let values = keeps_values.then(|| row.values());
            place.map(|place| RecordedRow { place, digest: Digest::of(&row.bytes()), values })
        });
        Ok(rows.collect())
    }
}

impl Between for TraceDevice {
    fn inner(&self) -> &dyn Device {
        self.inner.as_ref()
    }

    fn on_dispatch(&self, call: &dyn OpCall) -> Result<(), OpError> {
        self.inner.dispatch(call)?;
        match self.log.borrow_mut().as_mut() {
            Some(log) => self.record(log, call),
            None => Ok(()),
        }
    }

    fn on_scope(&self, scope: Scope) {
        self.scope.set(scope);
        self.inner.scope(scope);
    }

    fn lets_record(&self) -> bool {
        self.log.borrow().is_none()
    }
}
