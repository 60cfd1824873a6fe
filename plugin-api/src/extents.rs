//! Checking a call of an op that is known by its reflection row only, and the extents that it has.

use crate::check::{ArgError, Shaped, ShapedList};
use crate::format::Format;

/// Format and shape of a tensor, without its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    format: Format,
    shape: Vec<i64>,
}

impl Described {
    /// A tensor of this format and these extents. One beyond `i64` counts as the largest.
    pub fn new(format: Format, shape: &[usize]) -> Self {
        Self { format, shape: shape.iter().map(|&extent| i64::try_from(extent).unwrap_or(i64::MAX)).collect() }
    }
}

impl Shaped for Described {
    fn shape(&self) -> &[i64] {
        &self.shape
    }

    fn format(&self) -> Option<Format> {
        Some(self.format)
    }
}

/// A list of described tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DescribedList(Vec<Described>);

impl ShapedList for DescribedList {
    type Item = Described;

    fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&self, index: usize) -> &Described {
        &self.0[index]
    }
}

/// The arguments of a call that decide whether it is well formed, by name. What is not set is absent.
#[derive(Clone, Debug, Default)]
pub struct Arguments {
    tensors: Vec<(&'static str, Described)>,
    lists: Vec<(&'static str, DescribedList)>,
    numbers: Vec<(&'static str, u32)>,
}

impl Arguments {
    /// Adds a tensor.
    pub fn tensor(&mut self, name: &'static str, tensor: Described) {
        self.tensors.push((name, tensor));
    }

    /// Adds a list of tensors.
    pub fn list(&mut self, name: &'static str, tensors: Vec<Described>) {
        self.lists.push((name, DescribedList(tensors)));
    }

    /// Adds a `u32`.
    pub fn number(&mut self, name: &'static str, value: u32) {
        self.numbers.push((name, value));
    }
}

/// The value of every symbol of an op's shapes, and of its `u32` arguments, in a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extents(Vec<(&'static str, usize)>);

impl Extents {
    pub(crate) fn new<const N: usize>(values: [(&'static str, usize); N]) -> Self {
        Self(values.to_vec())
    }

    /// The extent of this name; `None` if the op has none.
    pub fn get(&self, name: &str) -> Option<usize> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }

    /// The extent of a name that the generator has checked.
    pub(crate) fn of(&self, name: &str) -> i64 {
        self.get(name).map_or_else(|| panic!("the op has no extent {name}"), |value| value as i64)
    }
}

/// Arguments as the generated check takes them.
pub(crate) struct Named<'a> {
    op: &'static str,
    arguments: &'a Arguments,
}

impl<'a> Named<'a> {
    pub(crate) fn new(op: &'static str, arguments: &'a Arguments) -> Self {
        Self { op, arguments }
    }

    pub(crate) fn optional(&self, name: &str) -> Option<&'a Described> {
        find(&self.arguments.tensors, name)
    }

    pub(crate) fn tensor(&self, name: &str) -> Result<&'a Described, ArgError> {
        self.optional(name).ok_or_else(|| self.missing(name, "tensor"))
    }

    pub(crate) fn list(&self, name: &str) -> Result<&'a DescribedList, ArgError> {
        find(&self.arguments.lists, name).ok_or_else(|| self.missing(name, "list of tensors"))
    }

    pub(crate) fn number(&self, name: &str) -> Result<u32, ArgError> {
        find(&self.arguments.numbers, name).copied().ok_or_else(|| self.missing(name, "u32"))
    }

    fn missing(&self, name: &str, kind: &str) -> ArgError {
        ArgError { op: self.op, arg: name.to_owned(), problem: format!("is missing, but a {kind} is needed") }
    }
}

fn find<'a, T>(list: &'a [(&'static str, T)], name: &str) -> Option<&'a T> {
    list.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op_by_name;

    #[test]
    fn a_call_is_checked_through_its_row() {
        let op = op_by_name("rms_norm").expect("an op of the catalogue");
        let mut call = Arguments::default();
        call.tensor("x", Described::new(Format::Bf16, &[3, 64]));
        call.tensor("weight", Described::new(Format::F32, &[64]));
        let missing = (op.extents)(&call).expect_err("there is no output");
        assert_eq!(missing.to_string(), "rms_norm: out is missing, but a tensor is needed");
        let mut wrong = call.clone();
        wrong.tensor("out", Described::new(Format::Bf16, &[3, 65]));
        assert!((op.extents)(&wrong).expect_err("65 columns").to_string().contains("dimension 1 must be N = 64"));
        call.tensor("out", Described::new(Format::Bf16, &[3, 64]));
        let extents = (op.extents)(&call).expect("a call that is right");
        assert_eq!((extents.get("T"), extents.get("N"), extents.get("K")), (Some(3), Some(64), None));
        assert_eq!((op.contract.terms.count)(&extents), 66, "{}", op.contract.terms.text);
    }
}
