//! Cases as data: which op, which property, which number.

use std::fmt;
use std::str::FromStr;

use deepinfer_oracle::{Bundle, Call, HostTensor, Value};
use deepinfer_plugin_api::{ArgInfo, Format, Kind};
use deepinfer_runtime::conformance::Presented;
use serde::{Deserialize, Serialize};

use crate::generate::{Calls, Content, OpSpec, Rows, poisoned, specs};
use crate::refuse;

/// Levels of conformance.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Level {
    /// Loading, negotiation and refusals of a whole backend.
    L0,
    /// Memory, copies, streams and events.
    L1,
    /// Ops against their oracles.
    L2,
    /// A model end to end.
    L3,
    /// Properties of bits: determinism, batch invariance, strides, outputs written whole.
    L4,
    /// Recorded work and its replay.
    L5,
}

impl Level {
    /// All levels, lowest first.
    pub const ALL: [Level; 6] = [Level::L0, Level::L1, Level::L2, Level::L3, Level::L4, Level::L5];
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl FromStr for Level {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = Level::ALL.into_iter().find(|level| level.to_string().eq_ignore_ascii_case(text));
        named.ok_or_else(|| format!("{text:?} is no level; there are L0 to L5"))
    }
}

/// The property that a case checks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Check {
    /// Structs of every length are taken, and nothing beyond them is touched.
    StructSize,
    /// Values that nobody knows are refused.
    UnknownValue,
    /// A call that is accepted is not declined when it is run.
    Honesty,
    /// Outputs agree with the oracle within the contract.
    Value,
    /// So they do in calls of many rows, and of rows as long as the released model's and longer.
    Large,
    /// Empty tensors are accepted.
    Empty,
    /// A wrong value is refused, and the device works on.
    Refusal,
    /// A wrong format, rank or extent is refused, and the device works on.
    Malformed,
    /// Nothing outside of the tensors is written.
    Bounds,
    /// Outputs agree with the oracle whatever lies in their memory before.
    Poison,
    /// Tensors with gaps between their rows give the same bits, and the gaps stay as they are.
    Strided,
    /// A row gives the same bits alone, in other company, in another order and in a long call.
    Rows,
    /// The same call gives the same bits again.
    Twice,
    /// The same bits whatever lies in the workspace.
    Workspace,
    /// Two streams at once give the bits that each gives alone.
    Streams,
    /// Recorded calls give the bits of the calls, also on other contents.
    Replay,
}

impl Check {
    /// All checks of an op, in the order in which they run.
    pub const ALL: [Check; 16] = [
        Check::StructSize,
        Check::UnknownValue,
        Check::Honesty,
        Check::Value,
        Check::Large,
        Check::Empty,
        Check::Refusal,
        Check::Malformed,
        Check::Bounds,
        Check::Twice,
        Check::Strided,
        Check::Poison,
        Check::Workspace,
        Check::Rows,
        Check::Streams,
        Check::Replay,
    ];

    /// Name in the name of a case.
    pub fn name(self) -> &'static str {
        match self {
            Check::StructSize => "struct-size",
            Check::UnknownValue => "unknown-value",
            Check::Honesty => "honesty",
            Check::Bounds => "bounds",
            Check::Workspace => "workspace",
            Check::Streams => "streams",
            Check::Replay => "replay",
            Check::Value => "value",
            Check::Large => "large",
            Check::Empty => "empty",
            Check::Refusal => "refusal",
            Check::Malformed => "malformed",
            Check::Poison => "poison",
            Check::Strided => "strided",
            Check::Rows => "rows",
            Check::Twice => "twice",
        }
    }

    /// Whether it holds each call that it makes to the oracle, so that one of them alone shows what it shows. The others
    /// compare several calls, or make one in a way of their own.
    pub fn judges_each_call(self) -> bool {
        matches!(self, Check::Value | Check::Large | Check::Poison | Check::Empty)
    }

    /// Its level.
    pub fn level(self) -> Level {
        match self {
            Check::StructSize | Check::UnknownValue | Check::Honesty => Level::L0,
            Check::Value | Check::Large | Check::Empty | Check::Refusal | Check::Malformed | Check::Bounds => Level::L2,
            Check::Poison | Check::Strided | Check::Rows | Check::Twice | Check::Workspace | Check::Streams => {
                Level::L4
            }
            Check::Replay => Level::L5,
        }
    }
}

/// A check of an op: what [`crate::run_case`] runs. It means the same in every process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Case {
    /// Op.
    pub op: &'static str,
    /// What is checked.
    pub check: Check,
    /// Which of the calls that the seed draws; or which empty extent, or which wrong argument.
    pub number: usize,
    /// Seed of the arguments.
    pub seed: u64,
}

impl fmt::Display for Case {
    /// `op/check/number`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.op, self.check.name(), self.number)
    }
}

/// What the shapes of a call are like: kernels differ at their edges.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ShapeClass {
    /// Some extent is 0.
    Empty,
    /// One row.
    OneRow,
    /// Rows of a multiple of 32 elements.
    Aligned,
    /// Rows of another length.
    Ragged,
    /// Rows of 1024 elements and more.
    Wide,
}

impl ShapeClass {
    /// All classes.
    pub const ALL: [ShapeClass; 5] = [Self::Empty, Self::OneRow, Self::Aligned, Self::Ragged, Self::Wide];

    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::OneRow => "one row",
            Self::Aligned => "aligned",
            Self::Ragged => "ragged",
            Self::Wide => "wide",
        }
    }

    fn of(call: &Call, rows: Rows) -> Self {
        let tensors = || {
            call.args.values().filter_map(|value| match value {
                Value::Tensor(tensor) => Some(tensor),
                _ => None,
            })
        };
        let width = width(call);
        let count = count_rows(call, rows);
        match () {
            () if tensors().any(|tensor| tensor.shape.contains(&0)) => Self::Empty,
            () if width >= 1024 => Self::Wide,
            () if count == Some(1) => Self::OneRow,
            () if width.is_multiple_of(32) => Self::Aligned,
            () => Self::Ragged,
        }
    }
}

/// The first tensor. Tables and lists of indices beside the data say little about a kernel's tiles.
fn subject(call: &Call) -> Option<&HostTensor> {
    let of = |arg: &ArgInfo| call.args.get(arg.name).filter(|_| arg.kind == Kind::Tensor);
    match call.op.args.iter().find_map(of) {
        Some(Value::Tensor(tensor)) => Some(tensor),
        _ => None,
    }
}

/// Rows of a call, where they do not depend on each other.
fn count_rows(call: &Call, rows: Rows) -> Option<usize> {
    match rows {
        Rows::Any(symbol) | Rows::Ascending(symbol) => Some(call.extent(symbol)),
        Rows::OfExperts => Some(call.extent("M")),
        Rows::Dependent => None,
    }
}

/// Elements in a row of the subject.
fn width(call: &Call) -> usize {
    subject(call).and_then(|tensor| tensor.shape.last().copied()).unwrap_or(1)
}

/// Whether the subject has a NaN, and whether two values of a row are equal.
fn peculiarities(call: &Call) -> (bool, bool) {
    let floats = subject(call).filter(|tensor| matches!(tensor.format, Format::F32 | Format::Bf16));
    let Some(values) = floats.map(HostTensor::values) else { return (false, false) };
    let has_ties = values.chunks(width(call).max(1)).any(|row| {
        let mut seen: Vec<f32> = row.iter().copied().filter(|&value| value > f32::NEG_INFINITY).collect();
        seen.sort_unstable_by(f32::total_cmp);
        // +0 and -0 are equal, and stand side by side.
        seen.windows(2).any(|pair| pair[0] == pair[1])
    });
    (values.iter().any(|value| value.is_nan()), has_ties)
}

/// What a person needs to know of a case that fails, and a report to class it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Facts {
    /// Formats of the arguments that have a choice, as `x=BF16 out=F32`; empty when none has.
    pub formats: String,
    /// Class of its shapes.
    pub shape: ShapeClass,
    /// Elements in a row of its subject.
    pub width: usize,
    /// Rows, where they do not depend on each other.
    pub rows: Option<usize>,
    /// Whether the subject has a NaN.
    pub has_nan: bool,
    /// Whether a row of the subject has two equal values above -infinity.
    pub has_ties: bool,
    /// What stands in its subject; `None` for wrong and empty arguments.
    pub content: Option<Content>,
    /// All arguments with formats, shapes and scalars.
    pub call: String,
}

impl Case {
    /// The case of a name, as [`Case`] displays it. The number is not checked: only a run knows how many there are.
    pub fn parse(name: &str, seed: u64) -> Option<Self> {
        let mut parts = name.split('/');
        let (op, check, number) = (parts.next()?, parts.next()?, parts.next()?.parse().ok()?);
        let op = specs().find(|spec| spec.name == op)?.name;
        let check = Check::ALL.into_iter().find(|known| known.name() == check)?;
        parts.next().is_none().then_some(Self { op, check, number, seed })
    }

    /// What the op is known by.
    ///
    /// # Panics
    /// If the catalogue has no such op, or it has no cases.
    pub(crate) fn spec(&self) -> &'static OpSpec {
        specs().find(|spec| spec.name == self.op).unwrap_or_else(|| panic!("no cases of {}", self.op))
    }

    /// The call as a bundle, without what a backend gave; `None` where it is wrong on purpose.
    ///
    /// # Panics
    /// As [`Case::facts`].
    pub fn bundle(&self) -> Option<Bundle> {
        let call = match self.check {
            Check::Refusal | Check::Malformed | Check::UnknownValue => return None,
            Check::Poison => poisoned(&self.call().0, 0xA5),
            _ => self.call().0,
        };
        Some(Bundle { case: Some(self.to_string()), seed: Some(self.seed), ..Bundle::new(call) })
    }

    /// The call that is made, or from which those that are made derive, and its content.
    ///
    /// # Panics
    /// If the op has no case of this check and number.
    pub fn call(&self) -> (Call, Option<Content>) {
        let (spec, calls) = (self.spec(), Calls::new(self.spec(), self.seed));
        match self.check {
            Check::Honesty
            | Check::Value
            | Check::Bounds
            | Check::Poison
            | Check::Strided
            | Check::Rows
            | Check::Twice
            | Check::Workspace
            | Check::Streams
            | Check::Replay => {
                let drawn = calls.draw(self.number);
                (drawn.call, Some(drawn.content))
            }
            Check::Large => {
                let drawn = calls.draw_large(self.number);
                (drawn.call, Some(drawn.content))
            }
            Check::StructSize | Check::UnknownValue => (calls.base(), None),
            Check::Empty => (calls.base().select(spec.empty[self.number], &[]), None),
            Check::Refusal => (refuse::wrong_values(spec, &calls.base()).swap_remove(self.number).call, None),
            Check::Malformed => (refuse::wrong_tensors(&calls.base()).swap_remove(self.number).call, None),
        }
    }

    /// The call, and the next one with the same formats.
    pub(crate) fn pair(&self) -> [Call; 2] {
        let calls = Calls::new(self.spec(), self.seed);
        [self.number, self.number + calls.combinations()].map(|number| calls.draw(number).call)
    }

    /// Formats, shapes and contents.
    ///
    /// # Panics
    /// If the op has no case of this check and number.
    pub fn facts(&self) -> Facts {
        let (call, content) = self.call();
        // A wrong rank has no class; the call is right but for one argument.
        let right = (self.check == Check::Malformed).then(|| Calls::new(self.spec(), self.seed).base());
        let (shaped, rows) = (right.as_ref().unwrap_or(&call), self.spec().rows);
        let (shape, rows) = (ShapeClass::of(shaped, rows), count_rows(shaped, rows));
        let (has_nan, has_ties) = peculiarities(&call);
        Facts {
            formats: call.formats(),
            shape,
            width: width(&call),
            rows,
            has_nan,
            has_ties,
            content,
            call: call.to_string(),
        }
    }
}

/// Fewest calls of a check that needs each combination of formats once, and those whose rows come many times.
pub(crate) const FEW: usize = 8;

/// The cases of one check of an op: as many as cover it. `limit` draws as many calls as it says, fewer or more, and is the
/// most for checks that have no more cases.
///
/// # Panics
/// If there is no such op.
pub fn cases(op: &str, check: Check, seed: u64, limit: Option<usize>) -> Vec<Case> {
    let spec = specs().find(|spec| spec.name == op).unwrap_or_else(|| panic!("no cases of {op}"));
    let calls = Calls::new(spec, seed);
    let count = match check {
        Check::Rows if matches!(spec.rows, Rows::Dependent) => 0,
        Check::Value | Check::Bounds | Check::Poison | Check::Strided | Check::Rows | Check::Twice => {
            limit.unwrap_or_else(|| calls.len())
        }
        Check::Large => calls.large(),
        Check::Honesty | Check::Workspace | Check::Streams | Check::Replay => calls.combinations().max(FEW),
        Check::StructSize => Presented::lengths_of(calls.op()).len(),
        Check::UnknownValue => Presented::unknown_values_of(calls.op()).len(),
        Check::Empty => spec.empty.len(),
        Check::Refusal => spec.refusals.len(),
        Check::Malformed => refuse::wrong_tensors(&calls.base()).len(),
    };
    (0..count.min(limit.unwrap_or(count))).map(|number| Case { op: spec.name, check, number, seed }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_case_and_the_case_is_the_same_however_many_there_are() {
        let all = cases("rstd", Check::Twice, 7, None);
        assert_eq!(Case::parse("rstd/twice/5", 7), Some(all[5]));
        assert_eq!(cases("rstd", Check::Twice, 7, Some(3)), all[..3]);
        assert_eq!(cases("rstd", Check::Twice, 7, Some(1000))[..all.len()], all);
        assert_eq!(all[5].facts(), Case::parse(&all[5].to_string(), 7).unwrap().facts());
        assert_ne!(all[5].facts().call, Case::parse("rstd/twice/5", 8).unwrap().facts().call);
        for text in ["rstd", "rstd/twice", "rstd/twice/x", "rstd/once/1", "rsdt/twice/1", "rstd/twice/1/2"] {
            assert_eq!(Case::parse(text, 7), None, "{text}");
        }
    }

    #[test]
    fn every_class_of_shapes_occurs() {
        let of = |check| crate::ops().flat_map(move |op| cases(op, check, 0, None)).map(|case| case.facts().shape);
        let found: std::collections::BTreeSet<ShapeClass> = of(Check::Value).chain(of(Check::Empty)).collect();
        assert_eq!(found.len(), ShapeClass::ALL.len(), "{found:?}");
    }
}
