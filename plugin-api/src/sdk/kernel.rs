//! Kernels: registration, and the function through which the core calls them.

#![allow(unsafe_code)]

use crate::abi::{DI_PF_BATCH_INVARIANT, DI_PF_DETERMINISTIC, DiBackend, DiError, DiOpHeader, DiPlan, DiStream};
use crate::reflection::{Op, OpInfo};
use crate::sdk::Fault;
use crate::sdk::backend::guard;

/// What a kernel knows besides its arguments.
pub struct Cx<'a> {
    backend: &'a (dyn std::any::Any + Send + Sync),
    stream: *mut DiStream,
}

impl<'a> Cx<'a> {
    /// The backend that runs the kernel.
    ///
    /// # Panics
    /// If `B` is not the exported backend.
    pub fn backend<B: 'static>(&self) -> &'a B {
        self.backend.downcast_ref().expect("a kernel runs on the backend that exports it")
    }

    /// The stream, as the backend made it.
    pub fn stream(&self) -> *mut DiStream {
        self.stream
    }
}

/// One implementation of one op; implemented by [`kernel!`](crate::kernel).
pub trait Kernel {
    /// The op.
    type Op: Op;
    /// Runs it.
    ///
    /// # Errors
    /// As the implementation says.
    fn run(cx: &Cx<'_>, args: <Self::Op as Op>::Args<'_>) -> Result<(), Fault>;
}

/// A registered kernel, collected by `inventory`. Constructors run when the library is loaded, before anything was
/// agreed, so this is constant data.
pub struct KernelEntry {
    /// Reflection row of the op.
    pub info: &'static OpInfo,
    /// Name of the implementation.
    pub impl_name: &'static str,
    /// Among several implementations the largest is tried first.
    pub priority: i32,
    /// `DI_PF_*` that hold for every call.
    pub flags: u32,
    /// Entry in the op table.
    pub run: unsafe extern "C" fn(*mut DiBackend, *mut DiPlan, *mut DiStream, *const DiOpHeader) -> *mut DiError,
}

inventory::collect!(KernelEntry);

impl KernelEntry {
    /// The entry of a kernel whose rows do not depend on each other and whose bits repeat.
    pub const fn of<K: Kernel>(impl_name: &'static str) -> Self {
        Self {
            info: <K::Op as Op>::INFO,
            impl_name,
            priority: 0,
            flags: DI_PF_BATCH_INVARIANT | DI_PF_DETERMINISTIC,
            run: run::<K>,
        }
    }
}

/// # Safety
/// `backend` is the one of the entry reply; `args` points to the argument struct of `K::Op`, `struct_size` bytes of it,
/// valid as [`Op::view`] wants.
unsafe extern "C" fn run<K: Kernel>(
    backend: *mut DiBackend,
    _plan: *mut DiPlan,
    stream: *mut DiStream,
    args: *const DiOpHeader,
) -> *mut DiError {
    let info = <K::Op as Op>::INFO;
    // SAFETY: `backend` is ours by the contract of this function.
    unsafe {
        guard(backend, info.name, |backend| {
            if args.is_null() || (*args).struct_size < size_of::<DiOpHeader>() as u32 {
                return Err(Fault::invalid(format!("{}: arguments are missing", info.name)));
            }
            let head = &*args;
            if head.op_id != info.id || head.op_version != info.version {
                return Err(Fault::invalid(format!(
                    "{} version {} was called with arguments of op {} version {}",
                    info.name, info.version, head.op_id, head.op_version
                )));
            }
            let known = size_of::<<K::Op as Op>::Raw>();
            let cx = Cx { backend, stream };
            if head.struct_size as usize >= known {
                return K::run(&cx, K::Op::view(&*args.cast())?);
            }
            // An older caller: the fields that it does not know are zero.
            let mut raw = std::mem::MaybeUninit::<<K::Op as Op>::Raw>::zeroed();
            std::ptr::copy_nonoverlapping(args.cast::<u8>(), raw.as_mut_ptr().cast(), head.struct_size as usize);
            // `RawArgs` promises that zeroed bytes are valid.
            let raw = raw.assume_init();
            K::run(&cx, K::Op::view(&raw)?)
        })
    }
}

/// Registers a function as the implementation of an op.
///
/// `kernel!(RmsNorm, rms_norm)` takes `fn rms_norm(&Cx, RmsNormArgs) -> Result<(), Fault>`; the op's type comes from
/// [`generated`](crate::generated).
#[macro_export]
macro_rules! kernel {
    ($op:ident, $function:path) => {
        const _: () = {
            struct Registered;
            impl $crate::sdk::Kernel for Registered {
                type Op = $crate::generated::$op;
                fn run(
                    cx: &$crate::sdk::Cx<'_>,
                    args: <Self::Op as $crate::Op>::Args<'_>,
                ) -> ::std::result::Result<(), $crate::sdk::Fault> {
                    $function(cx, args)
                }
            }
            $crate::inventory::submit! { $crate::sdk::KernelEntry::of::<Registered>("default") }
        };
    };
}
