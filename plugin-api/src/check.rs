//! Checks that both sides make on the arguments of an op, before anything is read.

use std::cell::Cell;
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
    /// A list whose tensors all have the extents of its first one, which then stands for all. Lists hold the experts of a
    /// layer: to look at each of them again for every rule is most of what the host does in a step.
    alike: Cell<Option<&'static str>>,
}

impl Checker {
    pub(crate) const fn new(op: &'static str) -> Self {
        Self { op, alike: Cell::new(None) }
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
        let mut alike = !list.is_empty();
        for i in 0..list.len() {
            self.tensor(name, list.get(i), rank, formats).map_err(|e| in_list(e, i))?;
            alike &= list.get(i).shape()[..rank] == list.get(0).shape()[..rank];
        }
        self.alike.set(alike.then_some(name));
        Ok(())
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
        let looked_at = if self.alike.get() == Some(name) { 1 } else { list.len() };
        (0..looked_at).try_for_each(|i| self.extent(name, list.get(i), dim, wanted, expr).map_err(|e| in_list(e, i)))
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

#[cfg(test)]
mod tests {
    use super::*;

    struct Row([i64; 2]);

    impl Shaped for Row {
        fn shape(&self) -> &[i64] {
            &self.0
        }

        fn format(&self) -> Option<Format> {
            Some(Format::F32)
        }
    }

    struct List(Vec<Row>);

    impl ShapedList for List {
        type Item = Row;

        fn len(&self) -> usize {
            self.0.len()
        }

        fn get(&self, index: usize) -> &Row {
            &self.0[index]
        }
    }

    fn list(rows: &[[i64; 2]]) -> List {
        List(rows.iter().copied().map(Row).collect())
    }

    /// The argument that is named when all of `rows` must be `[2, 3]`.
    fn wrong(rows: &[[i64; 2]]) -> Option<String> {
        let list = list(rows);
        let checker = Checker::new("op");
        checker.tensor_list("weight", &list, 2, Format::F32.mask()).unwrap();
        let checked = checker.list_extent("weight", &list, 0, 2, "O");
        checked.and_then(|()| checker.list_extent("weight", &list, 1, 3, "K")).err().map(|error| error.arg)
    }

    #[test]
    fn the_first_wrong_tensor_of_a_list_is_named() {
        assert_eq!(wrong(&[]), None);
        assert_eq!(wrong(&[[2, 3]; 4]), None);
        assert_eq!(wrong(&[[2, 4]; 4]).as_deref(), Some("weight[0]"));
        assert_eq!(wrong(&[[2, 3], [2, 3], [2, 4], [1, 3]]).as_deref(), Some("weight[3]"));
        assert_eq!(wrong(&[[2, 3], [2, 3], [2, 4], [2, 5]]).as_deref(), Some("weight[2]"));
        assert_eq!(wrong(&[[2, 4], [2, 3]]).as_deref(), Some("weight[0]"));
    }

    #[test]
    fn a_list_of_equal_tensors_says_nothing_about_another() {
        let (equal, other) = (list(&[[2, 3]; 2]), list(&[[2, 3], [2, 4]]));
        let checker = Checker::new("op");
        checker.tensor_list("other", &other, 2, Format::F32.mask()).unwrap();
        checker.tensor_list("equal", &equal, 2, Format::F32.mask()).unwrap();
        assert_eq!(checker.list_extent("other", &other, 1, 3, "K").unwrap_err().arg, "other[1]");
    }
}
