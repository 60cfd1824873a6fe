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
    /// A tensor of the list.
    type Item: Shaped;
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
    fn get(&self, index: usize) -> &Self::Item;
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

/// What came of one check. The error is boxed, so that success is a register; it is opened where a function of the
/// catalogue returns it.
type Checked = Result<(), Box<ArgError>>;

impl From<Box<ArgError>> for ArgError {
    fn from(boxed: Box<ArgError>) -> Self {
        *boxed
    }
}

/// Collects the checks of one call; used by generated code. They are on the path of every call, on both sides of the
/// boundary: each is a few comparisons that are inlined, and what composes a sentence stands apart.
pub(crate) struct Checker {
    op: &'static str,
}

impl Checker {
    pub(crate) const fn new(op: &'static str) -> Self {
        Self { op }
    }

    #[inline]
    pub(crate) fn tensor(&self, name: &'static str, tensor: &impl Shaped, rank: usize, formats: u32) -> Checked {
        let shape = tensor.shape();
        let format = tensor.format();
        // The rank is a constant, so that the loop is none; the sign of the union is that of any negative extent.
        let is_good = shape.len() == rank
            && shape[..rank].iter().fold(0, |union, &extent| union | extent) >= 0
            && format.is_some_and(|format| format.mask() & formats != 0);
        if is_good { Ok(()) } else { Err(self.wrong_tensor(name, shape, format, rank, formats)) }
    }

    #[inline]
    pub(crate) fn optional_tensor(
        &self,
        name: &'static str,
        tensor: Option<&impl Shaped>,
        rank: usize,
        formats: u32,
    ) -> Checked {
        match tensor {
            None => Ok(()),
            Some(t) => self.tensor(name, t, rank, formats),
        }
    }

    #[inline]
    pub(crate) fn tensor_list(&self, name: &'static str, list: &impl ShapedList, rank: usize, formats: u32) -> Checked {
        (0..list.len()).try_for_each(|i| self.tensor(name, list.get(i), rank, formats).map_err(|e| in_list(e, i)))
    }

    #[inline]
    pub(crate) fn extent(
        &self,
        name: &'static str,
        tensor: &impl Shaped,
        dim: usize,
        wanted: i64,
        expr: &'static str,
    ) -> Checked {
        let shape = tensor.shape();
        if shape[dim] == wanted { Ok(()) } else { Err(self.wrong_extent(name, shape, dim, wanted, expr)) }
    }

    #[inline]
    pub(crate) fn optional_extent(
        &self,
        name: &'static str,
        tensor: Option<&impl Shaped>,
        dim: usize,
        wanted: i64,
        expr: &'static str,
    ) -> Checked {
        match tensor {
            None => Ok(()),
            Some(t) => self.extent(name, t, dim, wanted, expr),
        }
    }

    #[inline]
    pub(crate) fn list_extent(
        &self,
        name: &'static str,
        list: &impl ShapedList,
        dim: usize,
        wanted: i64,
        expr: &'static str,
    ) -> Checked {
        (0..list.len()).try_for_each(|i| self.extent(name, list.get(i), dim, wanted, expr).map_err(|e| in_list(e, i)))
    }

    #[inline]
    pub(crate) fn like(
        &self,
        name: &'static str,
        tensor: &impl Shaped,
        other_name: &'static str,
        other: &impl Shaped,
    ) -> Checked {
        let (found, wanted) = (tensor.format(), other.format());
        if found == wanted { Ok(()) } else { Err(self.unlike(name, found, other_name, wanted)) }
    }

    #[inline]
    pub(crate) fn optional_like(
        &self,
        name: &'static str,
        tensor: Option<&impl Shaped>,
        other_name: &'static str,
        other: &impl Shaped,
    ) -> Checked {
        match tensor {
            None => Ok(()),
            Some(t) => self.like(name, t, other_name, other),
        }
    }

    #[cold]
    #[inline(never)]
    fn wrong_tensor(
        &self,
        name: &str,
        shape: &[i64],
        format: Option<Format>,
        rank: usize,
        formats: u32,
    ) -> Box<ArgError> {
        if shape.len() != rank {
            return self.error(name, format!("has shape {shape:?}, but {rank} dimensions are needed"));
        }
        if shape.iter().any(|&extent| extent < 0) {
            return self.error(name, format!("has a negative extent in {shape:?}"));
        }
        let found = format.map_or("an unknown format", Format::name);
        let accepted: Vec<&str> = Format::ALL.iter().filter(|f| f.mask() & formats != 0).map(|f| f.name()).collect();
        self.error(name, format!("is {found}, but must be {}", accepted.join(" or ")))
    }

    #[cold]
    #[inline(never)]
    fn wrong_extent(&self, name: &str, shape: &[i64], dim: usize, wanted: i64, expr: &str) -> Box<ArgError> {
        self.error(name, format!("has shape {shape:?}, but dimension {dim} must be {expr} = {wanted}"))
    }

    #[cold]
    #[inline(never)]
    fn unlike(&self, name: &str, found: Option<Format>, other_name: &str, wanted: Option<Format>) -> Box<ArgError> {
        let text = |f: Option<Format>| f.map_or("an unknown format", Format::name);
        self.error(name, format!("is {}, but must be {} as {other_name}", text(found), text(wanted)))
    }

    fn error(&self, arg: &str, problem: String) -> Box<ArgError> {
        Box::new(ArgError { op: self.op, arg: arg.to_owned(), problem })
    }
}

/// Says which tensor of the list it was.
#[cold]
fn in_list(mut error: Box<ArgError>, index: usize) -> Box<ArgError> {
    error.arg = format!("{}[{index}]", error.arg);
    error
}

/// Extent of an optional tensor; 0 when it is absent.
#[inline]
pub(crate) fn extent_or_zero(tensor: Option<&impl Shaped>, dim: usize) -> i64 {
    tensor.map_or(0, |t| t.shape()[dim])
}

/// Smallest integer >= a / b; 0 when b is 0.
#[inline]
pub(crate) fn ceil_div(a: i64, b: i64) -> i64 {
    if b <= 0 { 0 } else { (a + b - 1) / b }
}
