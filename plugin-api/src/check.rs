//! Checks that both sides make on the arguments of an op, before anything is read.

use std::fmt;

use crate::format::Format;

/// Anything with a shape and a format.
pub trait Shaped {
    /// Extents in logical elements.
    fn shape(&self) -> &[i64];
    /// Format, or `None` when the catalogue has no such format.
    fn format(&self) -> Option<Format>;
}

/// A list of tensors.
pub trait ShapedList {
    /// Number of tensors.
    fn len(&self) -> usize;
    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// One tensor.
    ///
    /// # Panics
    /// If `index` is not below [`ShapedList::len`].
    fn get(&self, index: usize) -> &dyn Shaped;
    /// An extent of one tensor, or 0 when the list is shorter.
    fn extent(&self, index: usize, dim: usize) -> i64 {
        if index < self.len() { self.get(index).shape()[dim] } else { 0 }
    }
}

/// An argument breaks the catalogue's rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArgError {
    /// Op.
    pub op: &'static str,
    /// Argument, with its index if it is in a list.
    pub arg: String,
    /// What it has and what it needs.
    pub problem: String,
}

impl fmt::Display for ArgError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} {}", self.op, self.arg, self.problem)
    }
}

impl std::error::Error for ArgError {}

/// Collects the checks of one call; used by generated code.
pub(crate) struct Checker {
    op: &'static str,
}

impl Checker {
    pub(crate) fn new(op: &&'static str) -> Self {
        Self { op }
    }

    pub(crate) fn tensor(&self, name: &str, tensor: &dyn Shaped, rank: usize, formats: u32) -> Result<(), ArgError> {
        let shape = tensor.shape();
        if shape.len() != rank {
            return Err(self.error(name, format!("has shape {shape:?}, but {rank} dimensions are needed")));
        }
        if shape.iter().any(|&extent| extent < 0) {
            return Err(self.error(name, format!("has a negative extent in {shape:?}")));
        }
        match tensor.format() {
            Some(format) if format.mask() & formats != 0 => Ok(()),
            found => {
                let found = found.map_or("an unknown format".to_owned(), |f| f.to_string());
                let accepted: Vec<&str> =
                    Format::ALL.iter().filter(|f| f.mask() & formats != 0).map(|f| f.name()).collect();
                Err(self.error(name, format!("is {found}, but must be {}", accepted.join(" or "))))
            }
        }
    }

    pub(crate) fn optional_tensor(
        &self,
        name: &str,
        tensor: Option<&dyn Shaped>,
        rank: usize,
        formats: u32,
    ) -> Result<(), ArgError> {
        tensor.map_or(Ok(()), |t| self.tensor(name, t, rank, formats))
    }

    pub(crate) fn tensor_list(
        &self,
        name: &str,
        list: &dyn ShapedList,
        rank: usize,
        formats: u32,
    ) -> Result<(), ArgError> {
        // The indexed name is made only when a check fails: lists are long and the check is on every call.
        (0..list.len()).try_for_each(|i| {
            self.tensor(name, list.get(i), rank, formats).map_err(|e| ArgError { arg: format_index(name, i), ..e })
        })
    }

    pub(crate) fn extent(
        &self,
        name: &str,
        tensor: &dyn Shaped,
        dim: usize,
        wanted: i64,
        expr: &str,
    ) -> Result<(), ArgError> {
        let shape = tensor.shape();
        if shape[dim] == wanted {
            return Ok(());
        }
        Err(self.error(name, format!("has shape {shape:?}, but dimension {dim} must be {expr} = {wanted}")))
    }

    pub(crate) fn optional_extent(
        &self,
        name: &str,
        tensor: Option<&dyn Shaped>,
        dim: usize,
        wanted: i64,
        expr: &str,
    ) -> Result<(), ArgError> {
        tensor.map_or(Ok(()), |t| self.extent(name, t, dim, wanted, expr))
    }

    pub(crate) fn list_extent(
        &self,
        name: &str,
        list: &dyn ShapedList,
        dim: usize,
        wanted: i64,
        expr: &str,
    ) -> Result<(), ArgError> {
        (0..list.len()).try_for_each(|i| {
            self.extent(name, list.get(i), dim, wanted, expr).map_err(|e| ArgError { arg: format_index(name, i), ..e })
        })
    }

    pub(crate) fn like(
        &self,
        name: &str,
        tensor: &dyn Shaped,
        other_name: &str,
        other: &dyn Shaped,
    ) -> Result<(), ArgError> {
        let (found, wanted) = (tensor.format(), other.format());
        if found == wanted {
            return Ok(());
        }
        let text = |f: Option<Format>| f.map_or("an unknown format", Format::name);
        Err(self.error(name, format!("is {}, but must be {} as {other_name}", text(found), text(wanted))))
    }

    pub(crate) fn optional_like(
        &self,
        name: &str,
        tensor: Option<&dyn Shaped>,
        other_name: &str,
        other: &dyn Shaped,
    ) -> Result<(), ArgError> {
        tensor.map_or(Ok(()), |t| self.like(name, t, other_name, other))
    }

    #[cold]
    fn error(&self, arg: &str, problem: String) -> ArgError {
        ArgError { op: self.op, arg: arg.to_owned(), problem }
    }
}

fn format_index(name: &str, index: usize) -> String {
    format!("{name}[{index}]")
}

/// Extent of an optional tensor; 0 when it is absent.
pub(crate) fn extent_or_zero(tensor: Option<&dyn Shaped>, dim: usize) -> i64 {
    tensor.map_or(0, |t| t.shape()[dim])
}

/// Smallest integer >= a / b; 0 when b is 0.
pub(crate) fn ceil_div(a: i64, b: i64) -> i64 {
    if b <= 0 { 0 } else { (a + b - 1) / b }
}
