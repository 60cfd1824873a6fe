//! Calls of every op: argument sets over the shapes and formats that the catalogue gives.
//!
//! **A new op** needs an [`OpSpec`] in one of the tables here and an oracle in `plugin-api/oracle`; the parity test `every_op_of_the_catalogue_is_covered` fails until it has them.

mod cache;
mod dense;
mod engram;
mod moe;
mod sample;
mod select;

use std::collections::BTreeMap;

use deepinfer_ops::{Format, OpInfo};
use deepinfer_oracle::{Call, HostTensor, Value};
use deepinfer_plugin_api::{Kind, Role, op_by_name};
use serde::{Deserialize, Serialize};

use crate::rng::SplitMix64;

/// What is known of an op beyond its catalogue row.
pub(crate) struct OpSpec {
    pub(crate) name: &'static str,
    pub(crate) generate: fn(&mut Generator),
    pub(crate) rows: Rows,
    /// Extents that may be 0 whatever the other arguments are: no index points into them.
    pub(crate) empty: &'static [&'static str],
    /// Contents of the argument that [`Generator::subject`] makes.
    pub(crate) contents: &'static [Content],
    pub(crate) refusals: &'static [Refusal],
}

/// Which rows of a call do not depend on each other.
#[derive(Clone, Copy)]
pub(crate) enum Rows {
    /// Those of this extent, in any order, and one of them many times.
    Any(&'static str),
    /// Those of this extent, in ascending order.
    Ascending(&'static str),
    /// The rows of `grouped_linear`, with the first row of each expert beside them.
    OfExperts,
    /// None: the op moves rows.
    Dependent,
}

/// A change of a valid call after which it must be refused.
pub(crate) struct Refusal {
    /// Arguments of which the error must name one.
    pub(crate) names: &'static [&'static str],
    pub(crate) change: fn(&mut Call),
}

/// What stands in a float argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    /// Standard normal.
    Plain,
    /// Magnitudes from 2^-20 to 2^20 side by side.
    Wide,
    /// Magnitudes around the smallest F32 numbers, normal and not.
    Tiny,
    /// Magnitudes up to 3e38.
    Huge,
    /// One value everywhere.
    Equal,
    /// A few values, each in many places.
    Ties,
    /// F32 numbers half way between two neighbours in BF16.
    Halfway,
    /// Zeros of both signs.
    Zeros,
    /// Plain with NaN here and there.
    Nan,
    /// Plain with infinities here and there.
    Infinite,
}

impl Content {
    fn values(self, rng: &mut SplitMix64, count: usize) -> Vec<f32> {
        let common = rng.normal();
        let sign = |rng: &mut SplitMix64| if rng.one_in(2) { -1.0 } else { 1.0 };
        let power = |rng: &mut SplitMix64, low: i32, high: i32| {
            let exponent = low + rng.below((high - low) as usize) as i32;
            (1.0 + rng.unit()) * 2f64.powi(exponent)
        };
        (0..count)
            .map(|_| match self {
                Content::Plain => rng.normal(),
                Content::Wide => sign(rng) * power(rng, -20, 20) as f32,
                Content::Tiny => sign(rng) * power(rng, -149, -120) as f32,
                Content::Huge => sign(rng) * (3e38 * rng.unit()) as f32,
                Content::Equal => common,
                Content::Ties => rng.pick(&[-1.0, 0.0, -0.0, 1.0, 1.0, 2.0]),
                Content::Halfway => {
                    let number = sign(rng) * power(rng, -20, 20) as f32;
                    f32::from_bits(number.to_bits() & 0xFFFF_0000 | 0x8000)
                }
                Content::Zeros => sign(rng) * 0.0,
                Content::Nan if rng.one_in(20) => f32::from_bits(rng.pick(&[0x7FC0_0000, 0xFFC1_2345])),
                Content::Infinite if rng.one_in(20) => sign(rng) * f32::INFINITY,
                Content::Nan | Content::Infinite => rng.normal(),
            })
            .collect()
    }
}

/// How large a call is drawn.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    /// Small, at the edges of groups and words.
    Usual,
    /// More rows than a kernel takes in one turn of its blocks.
    ManyRows,
    /// Rows of the released model's lengths and beyond, which a kernel takes in pieces.
    LongRows,
}

/// Makes one call.
pub(crate) struct Generator {
    pub(crate) rng: SplitMix64,
    size: Size,
    call: Call,
    formats: BTreeMap<&'static str, Format>,
    /// Number of the call among those with the same formats.
    index: usize,
    content: Content,
}

impl Generator {
    /// One of a list, so that successive cases take all of it.
    pub(crate) fn turn<T: Copy>(&self, list: &[T]) -> T {
        list[self.index % list.len()]
    }

    /// A number of rows.
    pub(crate) fn rows(&mut self) -> usize {
        match self.size {
            Size::Usual => self.rng.pick(&[1, 2, 3, 5, 33]),
            Size::ManyRows => self.rng.pick(&[700, 1100]),
            Size::LongRows => self.rng.pick(&[1, 2, 3]),
        }
    }

    /// An extent that makes rows long: one of `usual`, or of `long` in a call of long rows.
    pub(crate) fn extent(&mut self, usual: &[usize], long: &[usize]) -> usize {
        self.extent_of(usual, usual, long)
    }

    /// An extent by the size of the call.
    pub(crate) fn extent_of(&mut self, usual: &[usize], of_many: &[usize], long: &[usize]) -> usize {
        self.rng.pick(match self.size {
            Size::Usual => usual,
            Size::ManyRows => of_many,
            Size::LongRows => long,
        })
    }

    /// A number of columns that is a multiple of `group`; once in a while a width of the released model.
    pub(crate) fn columns(&mut self, group: usize) -> usize {
        match group {
            0 | 1 if self.size == Size::LongRows => self.rng.pick(&[4097, 5120, 9001]),
            _ if self.size == Size::LongRows => group * (4096 / group + self.rng.pick(&[1, 32])),
            _ if self.rng.one_in(24) => 1280,
            0 | 1 => self.rng.pick(&[1, 2, 7, 31, 32, 33, 64, 257]),
            group => group * self.rng.pick(&[1, 2, 3, 8]),
        }
    }

    /// The format chosen for an argument.
    pub(crate) fn format(&self, name: &str) -> Format {
        self.formats[name]
    }

    /// The largest group of columns under one scale among these arguments; 1 without scales. Tiles may be partial.
    pub(crate) fn group_of(&self, names: &[&str]) -> usize {
        let columns = |name: &&str| self.format(name).scale().map_or(1, |s| if s.rows > 1 { 1 } else { s.columns });
        names.iter().map(columns).max().unwrap_or(1)
    }

    /// The content of the call, replaced where it is not one of those that `allowed` accepts.
    pub(crate) fn restrict_content(&mut self, allowed: impl Fn(Content) -> bool) {
        if !allowed(self.content) {
            self.content = Content::Plain;
        }
    }

    /// A float argument with the content of the call.
    pub(crate) fn subject(&mut self, name: &'static str, shape: &[usize]) {
        let content = self.content;
        self.float_with(name, shape, content);
    }

    /// A float argument with plain content.
    pub(crate) fn float(&mut self, name: &'static str, shape: &[usize]) {
        self.float_with(name, shape, Content::Plain);
    }

    pub(crate) fn float_with(&mut self, name: &'static str, shape: &[usize], content: Content) {
        let values = content.values(&mut self.rng, shape.iter().product());
        self.values(name, shape, &values);
    }

    /// A float argument with these values, rounded to its format.
    pub(crate) fn values(&mut self, name: &'static str, shape: &[usize], values: &[f32]) {
        let tensor = HostTensor::floats(self.format(name), shape, values);
        self.call.set(name, Value::Tensor(tensor));
    }

    /// Random values of a float format.
    pub(crate) fn random(&mut self, format: Format, shape: &[usize]) -> HostTensor {
        let values = Content::Plain.values(&mut self.rng, shape.iter().product());
        HostTensor::floats(format, shape, &values)
    }

    /// An I32 argument, element by element.
    pub(crate) fn ints(&mut self, name: &'static str, shape: &[usize], mut f: impl FnMut(&mut SplitMix64) -> i32) {
        let values: Vec<i32> = (0..shape.iter().product()).map(|_| f(&mut self.rng)).collect();
        self.call.set(name, Value::Tensor(HostTensor::i32(shape, &values)));
    }

    /// An I32 argument with these values.
    pub(crate) fn i32(&mut self, name: &'static str, shape: &[usize], values: &[i32]) {
        self.call.set(name, Value::Tensor(HostTensor::i32(shape, values)));
    }

    /// Random bytes.
    pub(crate) fn bytes(&mut self, name: &'static str, shape: &[usize]) {
        let bytes = (0..shape.iter().product()).map(|_| self.rng.next() as u8).collect();
        self.call.set(name, Value::Tensor(HostTensor::u8(shape, bytes)));
    }

    /// An optional mask with zeros and other numbers, or nothing.
    pub(crate) fn mask(&mut self, name: &'static str, len: usize) {
        let bytes = (0..len).map(|_| self.rng.pick(&[0, 0, 1, 255])).collect();
        let mask = Value::Tensor(HostTensor::u8(&[len], bytes));
        self.optional(name, mask);
    }

    /// An argument that half of the cases lack.
    pub(crate) fn optional(&mut self, name: &'static str, value: Value) {
        let value = if self.rng.one_in(2) { Value::Absent } else { value };
        self.call.set(name, value);
    }

    /// An output, poisoned.
    pub(crate) fn out(&mut self, name: &'static str, shape: &[usize]) {
        let tensor = HostTensor::filled(self.format(name), shape, 0xFF);
        self.call.set(name, Value::Tensor(tensor));
    }

    /// Any argument.
    pub(crate) fn set(&mut self, name: &'static str, value: Value) {
        self.call.set(name, value);
    }

    pub(crate) fn u32(&mut self, name: &'static str, value: usize) {
        self.call.set(name, Value::U32(value as u32));
    }

    pub(crate) fn f32(&mut self, name: &'static str, value: f32) {
        self.call.set(name, Value::F32(value));
    }

    /// Requests that share `rows` rows, some of them empty: `request_start` and `state_slot`, given to the call, and the
    /// request of each row. `slots` state slots are each used once at most.
    pub(crate) fn requests(&mut self, rows: usize, requests: usize, slots: usize) -> (Vec<i32>, Vec<i32>) {
        let mut start: Vec<i32> = (0..requests - 1).map(|_| self.rng.below(rows + 1) as i32).collect();
        start.extend([0, rows as i32]);
        start.sort_unstable();
        let slot: Vec<i32> = self.rng.permutation(slots)[..requests].iter().map(|&s| s as i32).collect();
        let owner = (0..requests).flat_map(|q| vec![q as i32; (start[q + 1] - start[q]) as usize]).collect();
        self.i32("request_start", &[requests + 1], &start);
        self.i32("state_slot", &[requests], &slot);
        (start, owner)
    }
}

/// All ops.
pub(crate) fn specs() -> impl Iterator<Item = &'static OpSpec> {
    [dense::SPECS, cache::SPECS, select::SPECS, moe::SPECS, engram::SPECS, sample::SPECS].into_iter().flatten()
}

/// Every combination of formats that the catalogue accepts, by argument.
fn format_combinations(op: &'static OpInfo) -> Vec<BTreeMap<&'static str, Format>> {
    let mut combinations = vec![BTreeMap::new()];
    for arg in op.args.iter().filter(|arg| matches!(arg.kind, Kind::Tensor | Kind::TensorList)) {
        let accepted: Vec<Format> = Format::ALL.into_iter().filter(|f| arg.formats & f.mask() != 0).collect();
        combinations = combinations
            .into_iter()
            .flat_map(|chosen| {
                let formats = if arg.like.is_empty() { accepted.clone() } else { vec![chosen[arg.like]] };
                formats.into_iter().map(move |format| {
                    let mut chosen = chosen.clone();
                    chosen.insert(arg.name, format);
                    chosen
                })
            })
            .collect();
    }
    if op.name == "gather" {
        // The catalogue's sentence on the dtype of out.
        let is_float = |f: Format| matches!(f, Format::F32 | Format::Bf16);
        combinations.retain(|f| f["table"] == f["out"] || (is_float(f["table"]) && is_float(f["out"])));
    }
    combinations
}

/// Fewest calls of an op, and of a combination of formats.
const CALLS: (usize, usize) = (64, 6);
/// Fewest large calls of an op, and most.
const LARGE: (usize, usize) = (8, 24);

/// The drawn calls of an op. A number means the same call in every run, however many are asked for.
pub(crate) struct Calls {
    spec: &'static OpSpec,
    op: &'static OpInfo,
    combinations: Vec<BTreeMap<&'static str, Format>>,
    seed: u64,
}

/// A drawn call and what was decided before it was drawn.
pub(crate) struct Drawn {
    pub(crate) call: Call,
    /// Content of its subject.
    pub(crate) content: Content,
}

impl Calls {
    pub(crate) fn new(spec: &'static OpSpec, seed: u64) -> Self {
        let op = op_by_name(spec.name).unwrap_or_else(|| panic!("no op {}", spec.name));
        Self { spec, op, combinations: format_combinations(op), seed }
    }

    /// The op.
    pub(crate) fn op(&self) -> &'static OpInfo {
        self.op
    }

    /// How many combinations of formats there are: calls whose numbers differ by this have the same formats.
    pub(crate) fn combinations(&self) -> usize {
        self.combinations.len()
    }

    /// How many calls cover the op: several of each combination of formats.
    pub(crate) fn len(&self) -> usize {
        CALLS.1.max(CALLS.0.div_ceil(self.combinations.len())) * self.combinations.len()
    }

    /// How many large calls an op has.
    pub(crate) fn large(&self) -> usize {
        (2 * self.combinations.len()).clamp(LARGE.0, LARGE.1)
    }

    /// One call. Successive numbers go through the combinations of formats, so that a few calls have many of them.
    pub(crate) fn draw(&self, number: usize) -> Drawn {
        self.draw_of(Size::Usual, number)
    }

    /// One large call: of many rows and of long rows by turns.
    pub(crate) fn draw_large(&self, number: usize) -> Drawn {
        let (c, index) = (number % self.combinations.len(), number / self.combinations.len());
        self.draw_of(if (c + index).is_multiple_of(2) { Size::LongRows } else { Size::ManyRows }, number)
    }

    fn draw_of(&self, size: Size, number: usize) -> Drawn {
        let (c, index) = (number % self.combinations.len(), number / self.combinations.len());
        // The seed is spread over all bits, and 0 changes nothing.
        let spread = self.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut rng = SplitMix64(spread ^ (u64::from(self.op.id) << 32 | (c as u64) << 16 | index as u64));
        let content = rng.pick(self.spec.contents);
        let formats = self.combinations[c].clone();
        let mut generator = Generator { rng, size, call: Call::new(self.op), formats, index, content };
        (self.spec.generate)(&mut generator);
        Drawn { call: generator.call, content: generator.content }
    }

    /// A call with a few rows, and with every optional argument where there is such a call.
    pub(crate) fn base(&self) -> Call {
        let has_rows = |call: &Call| match self.spec.rows {
            Rows::Any(symbol) | Rows::Ascending(symbol) => call.extent(symbol) >= 2,
            Rows::OfExperts | Rows::Dependent => true,
        };
        let absent = |call: &Call| call.args.values().filter(|value| matches!(value, Value::Absent)).count();
        let mut best: Option<Call> = None;
        for call in (0..self.len()).map(|number| self.draw(number).call).filter(has_rows) {
            if best.as_ref().is_none_or(|best| absent(&call) < absent(best)) {
                let is_complete = absent(&call) == 0;
                best = Some(call);
                if is_complete {
                    break;
                }
            }
        }
        best.expect("a call with two rows")
    }
}

/// The call with other bytes where outputs will be.
pub(crate) fn poisoned(call: &Call, byte: u8) -> Call {
    let mut call = call.clone();
    for arg in call.op.args.iter().filter(|arg| arg.role == Role::Out) {
        if let Some(Value::Tensor(tensor)) = call.args.get_mut(arg.name) {
            *tensor = HostTensor::filled(tensor.format, &tensor.shape, byte);
        }
    }
    call
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is refused is said once, in the catalogue, and tried once, here: in the same order, of the same arguments.
    #[test]
    fn what_the_catalogue_refuses_is_tried() {
        for spec in specs() {
            let said =
                op_by_name(spec.name).expect("an op of the catalogue").refuses.iter().map(|refusal| refusal.args);
            let tried = spec.refusals.iter().map(|refusal| refusal.names);
            assert_eq!(tried.collect::<Vec<_>>(), said.collect::<Vec<_>>(), "{}", spec.name);
        }
    }
}
