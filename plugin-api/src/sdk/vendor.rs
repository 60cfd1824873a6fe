//! Ops of a backend's own, outside the catalogue: declared once, seen by layers and tools through reflection rows.

#![allow(unsafe_code)]

use crate::abi::*;
use crate::check::ArgError;
use crate::contract::{Class, Contract, Terms};
use crate::extents::{Arguments, Extents};
use crate::reflection::{Kind, OpInfo, Role};
use crate::sdk::runtime_table::di_str;
use crate::sdk::{Fault, FaultCode, KernelEntry};

/// An op that [`vendor_op!`](crate::vendor_op) declares, collected by `inventory`.
#[doc(hidden)]
pub struct DeclaredOp(pub &'static OpInfo);

inventory::collect!(DeclaredOp);

/// Every declared op must have a kernel.
///
/// # Errors
/// Names the op that has none.
pub(crate) fn check_declared(kernels: &[&KernelEntry]) -> Result<(), Fault> {
    let identity = |op: &OpInfo| (op.id, op.version);
    let has_kernel = |op: &DeclaredOp| kernels.iter().any(|kernel| identity(kernel.info) == identity(op.0));
    match inventory::iter::<DeclaredOp>.into_iter().find(|op| !has_kernel(op)) {
        None => Ok(()),
        Some(DeclaredOp(op)) => {
            let problem =
                format!("vendor_op! declares {}, but it has no kernel: register one with kernel!(vendor ..)", op.name);
            Err(Fault::new(FaultCode::Internal, problem))
        }
    }
}

/// Ids from here on belong to vendors.
pub const FIRST_VENDOR_ID: u32 = 0x8000_0000;

impl Contract {
    /// Equal bits.
    pub const EXACT: Self = Self {
        class: Class::Exact,
        ulps: 0,
        factor: 0.0,
        terms: Terms::NONE,
        bound: "",
        accumulator: "",
        rounding: "",
        denormals: "",
        nan: "",
        duplicates: "",
    };

    /// At most `ulps` units in the last place of F32 from the exact result.
    pub const fn within_ulps(ulps: u32) -> Self {
        Self { class: Class::Ulp, ulps, ..Self::EXACT }
    }
}

/// The extents of an op whose shapes no catalogue describes: none. Its kernel checks them.
#[doc(hidden)]
pub fn no_extents(_: &Arguments) -> Result<Extents, ArgError> {
    Ok(Extents::new([]))
}

/// The table of a backend's own ops, for the life of the process; `None` without any.
pub(crate) fn ops_table(infos: impl Iterator<Item = &'static OpInfo>) -> Option<&'static DiOpsTable> {
    let mut infos: Vec<&OpInfo> = infos.filter(|info| info.id >= FIRST_VENDOR_ID).collect();
    infos.sort_by_key(|info| (info.id, info.version));
    infos.dedup_by_key(|info| (info.id, info.version));
    if infos.is_empty() {
        return None;
    }
    let ops: &'static [DiOpInfo] = infos.into_iter().map(row).collect::<Vec<_>>().leak();
    Some(Box::leak(Box::new(DiOpsTable {
        struct_size: size_of::<DiOpsTable>() as u32,
        reserved0: 0,
        ops: ops.as_ptr(),
        n_ops: ops.len(),
        op_stride: size_of::<DiOpInfo>(),
    })))
}

fn row(info: &'static OpInfo) -> DiOpInfo {
    let args = info.args.iter().map(|arg| DiArgInfo {
        struct_size: size_of::<DiArgInfo>() as u32,
        offset: arg.offset as u32,
        kind: match arg.kind {
            Kind::Tensor => DI_ARG_TENSOR,
            Kind::TensorList => DI_ARG_TENSOR_LIST,
            Kind::U32 => DI_ARG_U32,
            Kind::I32 => DI_ARG_I32,
            Kind::F32 => DI_ARG_F32,
        },
        role: match arg.role {
            Role::In => DI_ROLE_IN,
            Role::Out => DI_ROLE_OUT,
            Role::InOut => DI_ROLE_INOUT,
        },
        optional: u32::from(arg.optional),
        reserved0: 0,
        name: di_str(arg.name),
    });
    let args: &'static [DiArgInfo] = args.collect::<Vec<_>>().leak();
    DiOpInfo {
        struct_size: size_of::<DiOpInfo>() as u32,
        op_id: info.id,
        op_version: info.version,
        args_size: info.args_size as u32,
        contract: match info.contract.class {
            Class::Exact => DI_CONTRACT_EXACT,
            Class::Ulp => DI_CONTRACT_ULP,
            Class::Bound => DI_CONTRACT_BOUND,
            Class::Dist => DI_CONTRACT_DIST,
        },
        reserved0: 0,
        name: di_str(info.name),
        args: args.as_ptr(),
        n_args: args.len(),
        arg_stride: size_of::<DiArgInfo>(),
        ulps: info.contract.ulps as f32,
        reserved1: 0,
    }
}

/// Declares an op outside the catalogue, with an id from 0x80000000. Model code that uses it ships with the plugin.
///
/// The parts of the head come in the order of the example. The id is one of the vendor's own, the name none of the catalogue,
/// and a kernel must be registered; otherwise the plugin does not start. The
/// arguments are those of the C struct, in its order, after the head: `In`, `Out` and `InOut` tensors, `u32`, `i32` and `f32`. Formats and shapes are the kernel's to check. The macro makes `Scale` for
/// [`kernel!`](crate::kernel)`(vendor Scale, ..)`, the C struct, and the views that kernel, `supports` and `plan` get; the
/// reflection rows reach the caller through the table `DI_TABLE_OPS`.
///
/// ```
/// use deepinfer_plugin_api::sdk::{Cx, Fault};
/// use deepinfer_plugin_api::{Contract, kernel, vendor_op};
///
/// vendor_op! {
///     /// Multiplies by a factor.
///     pub Scale "npu_scale" id 0x8000_0001 version 1 contract Contract::EXACT,
///     raw DiArgsScaleV1, args ScaleArgs, proto ScaleProto {
///         /// Values.
///         x: In,
///         /// Factor.
///         factor: f32,
///         /// Products.
///         out: Out,
///     }
/// }
///
/// fn scale(_: &Cx<'_>, mut a: ScaleArgs<'_>) -> Result<(), Fault> {
///     let x = a.x.slice::<f32>()?;
///     let out = a.out.slice_mut::<f32>()?;
///     if x.len() != out.len() {
///         return Err(Fault::invalid(format!("npu_scale: out has {} elements, but x has {}", out.len(), x.len())));
///     }
///     out.iter_mut().zip(x).for_each(|(out, x)| *out = x * a.factor);
///     Ok(())
/// }
/// kernel!(vendor Scale, scale);
/// ```
#[macro_export]
macro_rules! vendor_op {
    (
        $(#[$doc:meta])*
        $vis:vis $op:ident $name:literal id $id:literal version $version:literal contract $contract:expr,
        raw $raw:ident, args $args:ident, proto $proto:ident {
            $($(#[$arg_doc:meta])* $arg:ident: $kind:ident),* $(,)?
        }
    ) => {
        const _: () = assert!($id >= $crate::sdk::FIRST_VENDOR_ID, "ids of vendors begin at 0x80000000");

        /// The arguments as they cross the boundary.
        #[repr(C)]
        #[derive(Clone, Copy)]
        $vis struct $raw {
            /// Head.
            $vis h: $crate::abi::DiOpHeader,
            $($(#[$arg_doc])* $vis $arg: $crate::vendor_op!(@raw $kind),)*
        }

        /// The arguments of one call, for a kernel.
        $vis struct $args<'a> {
            $($(#[$arg_doc])* $vis $arg: $crate::vendor_op!(@view 'a $kind),)*
            /// Keeps the lifetime in use when there is no tensor.
            $vis life: ::std::marker::PhantomData<&'a ()>,
        }

        /// Shapes, formats and scalars of a call, for `supports` and `plan`.
        $vis struct $proto<'a> {
            $($(#[$arg_doc])* $vis $arg: $crate::vendor_op!(@proto 'a $kind),)*
            /// Keeps the lifetime in use when there is no tensor.
            $vis life: ::std::marker::PhantomData<&'a ()>,
        }

        $(#[$doc])*
        $vis struct $op;

        $crate::inventory::submit! { $crate::sdk::DeclaredOp(<$op as $crate::Op>::INFO) }

        impl $crate::reflection::RawArgs for $raw {}

        impl $crate::Op for $op {
            type Raw = $raw;
            type Args<'a> = $args<'a>;
            type Proto<'a> = $proto<'a>;
            const INFO: &'static $crate::OpInfo = &$crate::OpInfo {
                id: $id,
                name: $name,
                version: $version,
                family: "vendor",
                profiles: &[],
                args_size: ::std::mem::size_of::<$raw>(),
                contract: $contract,
                extents: $crate::sdk::no_extents,
                args: &[$($crate::ArgInfo {
                    name: ::std::stringify!($arg),
                    offset: ::std::mem::offset_of!($raw, $arg),
                    kind: $crate::vendor_op!(@kind $kind),
                    role: $crate::vendor_op!(@role $kind),
                    optional: false,
                    since: 0,
                    formats: !0,
                    shape: &[],
                    like: "",
                }),*],
                refuses: &[],
            };

            #[allow(unsafe_code)]
            unsafe fn view(raw: &$raw) -> ::std::result::Result<$args<'_>, $crate::ArgError> {
                // SAFETY: the caller vouches for every tensor of `raw`; each is wrapped once.
                unsafe {
                    ::std::result::Result::Ok($args {
                        $($arg: $crate::vendor_op!(@wrap_view $name, $arg, raw, $kind),)*
                        life: ::std::marker::PhantomData,
                    })
                }
            }

            #[allow(unsafe_code)]
            unsafe fn proto(raw: &$raw) -> ::std::result::Result<$proto<'_>, $crate::ArgError> {
                // SAFETY: as above, without the memory.
                unsafe {
                    ::std::result::Result::Ok($proto {
                        $($arg: $crate::vendor_op!(@wrap_proto $name, $arg, raw, $kind),)*
                        life: ::std::marker::PhantomData,
                    })
                }
            }
        }
    };
    (@raw In) => { $crate::abi::DiTensor };
    (@raw Out) => { $crate::abi::DiTensor };
    (@raw InOut) => { $crate::abi::DiTensor };
    (@raw $scalar:ident) => { $scalar };
    (@view $life:lifetime In) => { $crate::sdk::tensor::In<$life> };
    (@view $life:lifetime Out) => { $crate::sdk::tensor::Out<$life> };
    (@view $life:lifetime InOut) => { $crate::sdk::tensor::Out<$life> };
    (@view $life:lifetime $scalar:ident) => { $scalar };
    (@proto $life:lifetime In) => { $crate::sdk::tensor::Desc<$life> };
    (@proto $life:lifetime Out) => { $crate::sdk::tensor::Desc<$life> };
    (@proto $life:lifetime InOut) => { $crate::sdk::tensor::Desc<$life> };
    (@proto $life:lifetime $scalar:ident) => { $scalar };
    (@kind In) => { $crate::Kind::Tensor };
    (@kind Out) => { $crate::Kind::Tensor };
    (@kind InOut) => { $crate::Kind::Tensor };
    (@kind u32) => { $crate::Kind::U32 };
    (@kind i32) => { $crate::Kind::I32 };
    (@kind f32) => { $crate::Kind::F32 };
    (@kind $other:ident) => {
        ::std::compile_error!(::std::concat!(
            "vendor_op!: an argument is In, Out, InOut, u32, i32 or f32, but not ",
            ::std::stringify!($other)
        ))
    };
    (@role Out) => { $crate::Role::Out };
    (@role InOut) => { $crate::Role::InOut };
    (@role $other:ident) => { $crate::Role::In };
    (@wrap_view $op:literal, $arg:ident, $raw:ident, In) => {
        $crate::sdk::tensor::In::new($op, ::std::stringify!($arg), &$raw.$arg)?
    };
    (@wrap_view $op:literal, $arg:ident, $raw:ident, Out) => {
        $crate::sdk::tensor::Out::new($op, ::std::stringify!($arg), &$raw.$arg)?
    };
    (@wrap_view $op:literal, $arg:ident, $raw:ident, InOut) => {
        $crate::sdk::tensor::Out::new($op, ::std::stringify!($arg), &$raw.$arg)?
    };
    (@wrap_view $op:literal, $arg:ident, $raw:ident, $scalar:ident) => { $raw.$arg };
    (@wrap_proto $op:literal, $arg:ident, $raw:ident, In) => {
        $crate::sdk::tensor::Desc::new($op, ::std::stringify!($arg), &$raw.$arg)?
    };
    (@wrap_proto $op:literal, $arg:ident, $raw:ident, Out) => {
        $crate::sdk::tensor::Desc::new($op, ::std::stringify!($arg), &$raw.$arg)?
    };
    (@wrap_proto $op:literal, $arg:ident, $raw:ident, InOut) => {
        $crate::sdk::tensor::Desc::new($op, ::std::stringify!($arg), &$raw.$arg)?
    };
    (@wrap_proto $op:literal, $arg:ident, $raw:ident, $scalar:ident) => { $raw.$arg };
    ($($other:tt)*) => {
        ::std::compile_error!(
            "vendor_op! takes, in this order: pub Op \"name\" id 0x8000_0001 version 1 contract Contract::EXACT, raw RawStruct, \
             args ArgsStruct, proto ProtoStruct { argument: In, .. }"
        );
    };
}
