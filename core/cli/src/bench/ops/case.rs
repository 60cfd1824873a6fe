//! A case: one call of an op at a size of the released model, with what it must move and compute at least.

use deepinfer_ops::{CacheFormat, Format};
use deepinfer_parity::SplitMix64;
use deepinfer_plugin_api::{Role, op_by_name};
use serde::Serialize;

/// Integers of an argument: of each place, in order.
pub(super) type Integers = Box<dyn Fn(&mut SplitMix64, usize) -> i64>;

/// What stands in a tensor. Nothing is zero: zeros run faster than a model's numbers.
pub(super) enum Content {
    /// Normal numbers of this standard deviation; of a quantised format any codes but NaN, with scales around 2^-4.
    Random(f32),
    /// Numbers from the first to the second.
    Between(f32, f32),
    /// Integers.
    Integers(Integers),
    /// Cache entries of so many channels, so many in a page.
    Entries(CacheFormat, usize, usize),
}

/// A tensor that a call gets.
pub(super) struct Spec {
    pub(super) format: Format,
    pub(super) shape: Vec<usize>,
    pub(super) content: Content,
    /// Whether all sets of arguments share it: it is larger than any cache, and each set reads other parts of it.
    pub(super) is_shared: bool,
}

impl Spec {
    /// Bytes of its codes, and of its scales.
    pub(super) fn bytes(&self) -> (usize, usize) {
        let scales = self.format.scale_grid(&self.shape).map_or(0, |grid| grid.iter().product());
        (self.format.bytes(self.shape.iter().product()), scales)
    }
}

/// An argument.
pub(super) enum Arg {
    Tensor(Spec),
    /// So many tensors, each in memory of its own.
    List(Spec, usize),
    U32(u32),
    F32(f32),
}

/// One call of an op.
pub(super) struct Call {
    pub(super) op: &'static str,
    pub(super) args: Vec<(&'static str, Arg)>,
}

/// What a measured time is held against.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind", content = "value")]
pub(super) enum Bar {
    /// Microseconds, at most.
    Microseconds(f64),
    /// Share of the rate of a copy, at least.
    CopyShare(f64),
    /// TFLOP/s, at least.
    Teraflops(f64),
    /// Passes over what must be moved at the rate of a copy, at most.
    Passes(f64),
}

/// What a call is bound by, as far as its author knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Bound {
    /// The bytes that it moves.
    Memory,
    /// What it computes.
    Compute,
    /// Neither: it is small.
    Latency,
}

/// One or several calls that are timed as one, with a name.
pub(super) struct Case {
    /// The op; of several calls, a name for all of them.
    pub(super) op: &'static str,
    /// What is special about it among the cases of its op.
    pub(super) what: String,
    pub(super) calls: Vec<Call>,
    /// Least bytes that have to be read and written.
    pub(super) bytes: f64,
    /// Floating-point operations.
    pub(super) flops: f64,
    pub(super) bound: Bound,
    pub(super) bar: Option<Bar>,
}

impl Case {
    pub(super) fn new(op: &'static str, what: String) -> Self {
        let call = Call { op, args: Vec::new() };
        Self { op, what, calls: vec![call], bytes: 0.0, flops: 0.0, bound: Bound::Memory, bar: None }
    }

    /// Several cases timed as one.
    pub(super) fn chain(name: &'static str, what: String, cases: Vec<Case>) -> Self {
        let (bytes, flops) = cases.iter().fold((0.0, 0.0), |(b, f), case| (b + case.bytes, f + case.flops));
        let calls = cases.into_iter().flat_map(|case| case.calls).collect();
        Self { op: name, what, calls, bytes, flops, bound: Bound::Memory, bar: None }
    }

    /// Name, as it is selected and reported.
    pub(super) fn name(&self) -> String {
        format!("{}/{}", self.op, self.what)
    }

    fn push(mut self, name: &'static str, arg: Arg) -> Self {
        if let Some(call) = self.calls.last_mut() {
            call.args.push((name, arg));
        }
        self
    }

    fn add(mut self, name: &'static str, spec: Spec, moved: Option<f64>) -> Self {
        let op = self.calls.last().map_or("", |call| call.op);
        let role = op_by_name(op).and_then(|op| op.args.iter().find(|arg| arg.name == name)).map(|arg| arg.role);
        let (codes, scales) = spec.bytes();
        let passes = if role == Some(Role::InOut) { 2.0 } else { 1.0 };
        self.bytes += moved.unwrap_or((codes + scales) as f64 * passes);
        self.push(name, Arg::Tensor(spec))
    }

    /// A tensor all of which is read, written or both, as the catalogue says.
    pub(super) fn tensor(self, name: &'static str, format: Format, shape: &[usize], content: Content) -> Self {
        self.add(name, Spec { format, shape: shape.to_vec(), content, is_shared: false }, None)
    }

    /// A tensor of random numbers, or one that the op writes.
    pub(super) fn random(self, name: &'static str, format: Format, shape: &[usize]) -> Self {
        self.tensor(name, format, shape, Content::Random(1.0))
    }

    /// A tensor of integers.
    pub(super) fn integers(
        self,
        name: &'static str,
        shape: &[usize],
        of: impl Fn(&mut SplitMix64, usize) -> i64 + 'static,
    ) -> Self {
        self.tensor(name, Format::I32, shape, Content::Integers(Box::new(of)))
    }

    /// A tensor of which so many bytes are read or written.
    pub(super) fn partly(
        self,
        name: &'static str,
        format: Format,
        shape: &[usize],
        content: Content,
        moved: usize,
    ) -> Self {
        self.add(name, Spec { format, shape: shape.to_vec(), content, is_shared: false }, Some(moved as f64))
    }

    /// A tensor that all sets of arguments share, of which so many bytes are read or written.
    pub(super) fn shared(
        self,
        name: &'static str,
        format: Format,
        shape: &[usize],
        content: Content,
        moved: usize,
    ) -> Self {
        self.add(name, Spec { format, shape: shape.to_vec(), content, is_shared: true }, Some(moved as f64))
    }

    /// A list of so many tensors of one shape, all of which are read.
    pub(super) fn list(mut self, name: &'static str, len: usize, format: Format, shape: &[usize]) -> Self {
        let spec = Spec { format, shape: shape.to_vec(), content: Content::Random(1.0), is_shared: false };
        let (codes, scales) = spec.bytes();
        self.bytes += ((codes + scales) * len) as f64;
        self.push(name, Arg::List(spec, len))
    }

    pub(super) fn u32(self, name: &'static str, value: usize) -> Self {
        self.push(name, Arg::U32(value as u32))
    }

    pub(super) fn f32(self, name: &'static str, value: f32) -> Self {
        self.push(name, Arg::F32(value))
    }

    /// The pad of `engram_hash`: the one scalar of its type.
    pub(super) fn pad(self, value: u32) -> Self {
        self.push("pad", Arg::U32(value))
    }

    /// What it computes.
    pub(super) fn flops(self, flops: usize) -> Self {
        Self { flops: flops as f64, ..self }
    }

    pub(super) fn bound(self, bound: Bound) -> Self {
        Self { bound, ..self }
    }

    pub(super) fn bar(self, bar: Bar) -> Self {
        Self { bar: Some(bar), ..self }
    }
}

/// By how much the extents of the released model are divided: 1 but for trials.
#[derive(Clone, Copy)]
pub(super) struct Scale(pub(super) usize);

impl Scale {
    /// An extent.
    pub(super) fn of(self, extent: usize) -> usize {
        self.to(extent, 1)
    }

    /// An extent that is a multiple of something.
    pub(super) fn to(self, extent: usize, multiple: usize) -> usize {
        (extent / self.0 / multiple * multiple).max(multiple)
    }
}
