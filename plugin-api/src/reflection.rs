//! What tools and layers may know of an op without knowing the op.

use crate::abi::DiOpHeader;
use crate::check::ArgError;

/// Kind of an argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A `DiTensor`.
    Tensor,
    /// A `DiTensorList`.
    TensorList,
    /// A `u32`.
    U32,
    /// An `i32`.
    I32,
    /// An `f32`.
    F32,
}

/// What an op does with a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Reads it.
    In,
    /// Writes all of it that the semantics name.
    Out,
    /// Reads and writes it.
    InOut,
}

/// Class of a numerical contract.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// Equal bits.
    Exact,
    /// A distance from the correctly rounded result.
    Ulp,
    /// An error derived from the summed magnitudes, the length of the sum and the accumulator.
    Bound,
}

/// The numerical contract of an op, in the words of the catalogue.
#[derive(Clone, Copy, Debug)]
pub struct Contract {
    /// Class.
    pub class: Class,
    /// Size of the bound, where the class needs one.
    pub bound: &'static str,
    /// Accumulator.
    pub accumulator: &'static str,
    /// Where values are rounded.
    pub rounding: &'static str,
    /// NaN and infinity policy.
    pub nan: &'static str,
}

/// One argument.
#[derive(Clone, Copy, Debug)]
pub struct ArgInfo {
    /// Name.
    pub name: &'static str,
    /// Byte offset in the argument struct.
    pub offset: usize,
    /// Kind.
    pub kind: Kind,
    /// Role; `In` for scalars.
    pub role: Role,
    /// Whether it may be absent.
    pub optional: bool,
    /// Mask of accepted [`crate::Format`]s.
    pub formats: u32,
    /// Extents as the catalogue writes them.
    pub shape: &'static [&'static str],
    /// Argument whose format it shares, or empty.
    pub like: &'static str,
}

/// One op.
#[derive(Clone, Copy, Debug)]
pub struct OpInfo {
    /// Catalogue id.
    pub id: u32,
    /// Name.
    pub name: &'static str,
    /// Version.
    pub version: u32,
    /// Family, for lists and reports.
    pub family: &'static str,
    /// Profiles that require it.
    pub profiles: &'static [&'static str],
    /// Bytes of the argument struct.
    pub args_size: usize,
    /// Contract.
    pub contract: Contract,
    /// Arguments in struct order, after the head.
    pub args: &'static [ArgInfo],
}

/// A generated `repr(C)` argument struct: begins with [`DiOpHeader`] and is valid when zeroed.
pub trait RawArgs: Copy {}

/// An op at the type level: ties a kernel function to its argument struct.
pub trait Op {
    /// The C struct.
    type Raw: RawArgs;
    /// The checked view of it.
    type Args<'a>;
    /// Reflection row.
    const INFO: &'static OpInfo;

    /// Checks `raw` and wraps its tensors.
    ///
    /// # Errors
    /// Names the argument that breaks the catalogue's rules.
    ///
    /// # Safety
    /// For the lifetime of the view, every present tensor of `raw` has valid shape and stride arrays, and its `nbytes`
    /// bytes from `data + byte_offset` are readable; those of written arguments are writable and overlap no other
    /// argument. The memory is addressable by the caller's processor if the kernel dereferences it.
    #[allow(unsafe_code)]
    unsafe fn view(raw: &Self::Raw) -> Result<Self::Args<'_>, ArgError>;
}

// The head is read before the op is known.
const _: () = assert!(size_of::<DiOpHeader>() == 40);
