//! What tools and layers may know of an op without knowing the op.

use crate::abi::DiOpHeader;
use crate::check::ArgError;
use crate::contract::Contract;
use crate::extents::{Arguments, Extents};

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
    /// Writes all of it.
    Out,
    /// Reads it or writes a part of it: what was there before can matter afterwards.
    InOut,
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
    /// Minor of the ABI that brought it, 0 if it is as old as the op. A plugin of an earlier minor does not see it.
    pub since: u16,
    /// Mask of accepted [`crate::Format`]s.
    pub formats: u32,
    /// Extents as the catalogue writes them.
    pub shape: &'static [&'static str],
    /// Argument whose format it shares, or empty.
    pub like: &'static str,
}

/// A wrong value, beyond formats, ranks and extents: a call with it is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// Arguments of which the error names one.
    pub args: &'static [&'static str],
    /// When they are wrong, in words.
    pub when: &'static str,
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
    /// Checks formats, ranks and extents of a call and gives its extents. The error names the argument, what it has and what
    /// it needs.
    pub extents: fn(&Arguments) -> Result<Extents, ArgError>,
    /// Arguments in struct order, after the head.
    pub args: &'static [ArgInfo],
    /// Wrong values; none are known of a vendor's op.
    pub refuses: &'static [Refusal],
}

/// A generated `repr(C)` argument struct: begins with [`DiOpHeader`] and is valid when zeroed.
pub trait RawArgs: Copy {}

/// An op at the type level: ties a kernel function to its argument struct.
pub trait Op {
    /// The C struct.
    type Raw: RawArgs;
    /// The checked view of it.
    type Args<'a>;
    /// The checked view of its shapes, formats and scalars.
    type Proto<'a>;
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

    /// Checks `raw` and describes its tensors, whose addresses may be null.
    ///
    /// # Errors
    /// As [`Op::view`].
    ///
    /// # Safety
    /// For the lifetime of the description, every present tensor of `raw` has valid shape and stride arrays, and scales as
    /// [`Desc::new`](crate::sdk::tensor::Desc::new) wants them.
    #[allow(unsafe_code)]
    unsafe fn proto(raw: &Self::Raw) -> Result<Self::Proto<'_>, ArgError>;
}

// The head is read before the op is known.
const _: () = assert!(size_of::<DiOpHeader>() == 40);
