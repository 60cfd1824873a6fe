//! Kernels: registration, and the functions through which the core calls them.

#![allow(unsafe_code)]

use crate::abi::*;
use crate::reflection::{Op, OpInfo};
use crate::sdk::owned_args::OwnedArgs;
use crate::sdk::plan::{PlanObject, intern, lacking, required};
use crate::sdk::runtime_table::{State, boxed, di_str, object, unbox, write_prefix};
use crate::sdk::{Backend, Fault, Plan, PlanCx, Planned, Support};

/// What a kernel knows besides its arguments.
pub struct Cx<'a> {
    state: &'a State,
    stream: *mut DiStream,
}

impl<'a> Cx<'a> {
    /// The backend that runs the kernel.
    ///
    /// # Panics
    /// If `B` is not the exported backend.
    pub fn backend<B: 'static>(&self) -> &'a B {
        self.state.backend.downcast_ref().expect("a kernel runs on the backend that exports it")
    }

    /// The stream, as the boundary names it.
    pub fn stream(&self) -> *mut DiStream {
        self.stream
    }

    /// The stream, as the backend made it.
    ///
    /// # Errors
    /// The caller names none.
    ///
    /// # Panics
    /// If `B` is not the exported backend.
    pub fn stream_of<B: Backend>(&self) -> Result<&'a B::Stream, Fault> {
        self.backend::<B>();
        // SAFETY: the boundary promises a live stream of the backend, which is a `B`.
        unsafe { object::<B::Stream>(self.stream, "stream") }
    }
}

/// Promises of an implementation that says nothing else: rows do not depend on each other and bits repeat.
const USUAL: u32 = DI_PF_BATCH_INVARIANT | DI_PF_DETERMINISTIC;

/// [`Kernel::SUPPORTS`].
pub type SupportsFn<O> = fn(&PlanCx<'_>, &<O as Op>::Proto<'_>) -> Support;
/// [`Kernel::PLAN`].
pub type PlanFn<O, P> = fn(&PlanCx<'_>, &<O as Op>::Proto<'_>) -> Result<Plan<P>, Fault>;

/// One implementation of one op; implemented by [`kernel!`](crate::kernel).
pub trait Kernel: 'static {
    /// The op.
    type Op: Op;
    /// What [`Kernel::PLAN`] makes; `()` where there is none.
    type Plan: Send + Sync + 'static;
    /// Name among the backend's implementations of the op.
    const IMPL_NAME: &'static str = "default";
    /// Among several implementations the largest is tried first.
    const PRIORITY: i32 = 0;
    /// `DI_PF_*` that hold for every call.
    const FLAGS: u32 = USUAL;
    /// Whether it takes a call. `None`: it takes every call of the catalogue, or the plan decides.
    const SUPPORTS: Option<SupportsFn<Self::Op>> = None;
    /// How it will run a call; [`FaultCode::Unsupported`](crate::sdk::FaultCode::Unsupported) declines it. `None`: without
    /// a state and without a workspace.
    const PLAN: Option<PlanFn<Self::Op, Self::Plan>> = None;

    /// Runs it. `planned` is there exactly if there is a [`Kernel::PLAN`].
    ///
    /// # Errors
    /// As the implementation says.
    fn run(
        cx: &Cx<'_>,
        planned: Option<Planned<'_, Self::Plan>>,
        args: <Self::Op as Op>::Args<'_>,
    ) -> Result<(), Fault>;
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
    /// The functions of the op table.
    pub functions: Functions,
}

/// The functions of an entry of the op table.
#[derive(Clone, Copy)]
pub struct Functions {
    /// Absent where every call is taken, or the plan decides.
    pub supports: Option<DiSupportsFn>,
    /// Absent without a plan.
    pub plan: Option<DiPlanFn>,
    /// Runs the kernel.
    pub run: DiRunFn,
    /// Absent without a plan.
    pub plan_destroy: Option<DiPlanDestroyFn>,
}

inventory::collect!(KernelEntry);

impl KernelEntry {
    /// The entry of a kernel.
    pub const fn of<K: Kernel>() -> Self {
        // Without a plan somebody must decline a call that requires more than the implementation promises.
        let asks = K::SUPPORTS.is_some() || (K::PLAN.is_none() && K::FLAGS & USUAL != USUAL);
        let plans = K::PLAN.is_some();
        Self {
            info: <K::Op as Op>::INFO,
            impl_name: K::IMPL_NAME,
            priority: K::PRIORITY,
            flags: K::FLAGS,
            functions: Functions {
                supports: if asks { Some(supports::<K>) } else { None },
                plan: if plans { Some(plan::<K>) } else { None },
                run: run::<K>,
                plan_destroy: if plans { Some(plan_destroy::<K>) } else { None },
            },
        }
    }

    /// The entry in the op table.
    pub(crate) fn raw(&self) -> DiOpEntry {
        DiOpEntry {
            struct_size: size_of::<DiOpEntry>() as u32,
            op_id: self.info.id,
            op_version: self.info.version,
            flags: self.flags,
            name: di_str(self.info.name),
            impl_name: di_str(self.impl_name),
            priority: self.priority,
            reserved0: 0,
            supports: self.functions.supports,
            plan: self.functions.plan,
            run: Some(self.functions.run),
            plan_destroy: self.functions.plan_destroy,
        }
    }
}

/// Gives `body` the whole argument struct of `O`.
///
/// # Safety
/// `args` is null, or points to `struct_size` bytes of an argument struct.
#[inline]
unsafe fn with_raw<O: Op, T>(
    args: *const DiOpHeader,
    body: impl FnOnce(&O::Raw) -> Result<T, Fault>,
) -> Result<T, Fault> {
    let info = O::INFO;
    // SAFETY: the caller's contract.
    unsafe {
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
        if head.struct_size as usize >= size_of::<O::Raw>() {
            return body(&*args.cast());
        }
        // An older caller: the fields that it does not know are zero.
        let mut raw = std::mem::MaybeUninit::<O::Raw>::zeroed();
        std::ptr::copy_nonoverlapping(args.cast::<u8>(), raw.as_mut_ptr().cast(), head.struct_size as usize);
        // `RawArgs` promises that zeroed bytes are valid.
        body(&raw.assume_init())
    }
}

/// The head of an argument struct.
fn head<O: Op>(raw: &O::Raw) -> &DiOpHeader {
    // SAFETY: `RawArgs` promises that the struct begins with it.
    unsafe { &*(&raw const *raw).cast() }
}

/// # Safety
/// `backend` is the one of the entry reply, `device` one of its devices; `proto` points to an argument struct of `K::Op`,
/// `struct_size` bytes of it, valid as [`Op::proto`] wants; `out.struct_size` bytes of `out` are writable.
unsafe extern "C" fn supports<K: Kernel>(
    backend: *mut DiBackend,
    device: *mut DiDevice,
    proto: *const DiOpHeader,
    out: *mut DiSupport,
) -> *mut DiError {
    let name = <K::Op as Op>::INFO.name;
    // SAFETY: the contract of this function.
    unsafe {
        let state = State::of(backend);
        state.containment.call_part("supports", name, || {
            let (support, required) = with_raw::<K::Op, _>(proto, |raw| {
                let required = required(head::<K::Op>(raw).flags);
                let cx = PlanCx { state, device, required };
                let proto = K::Op::proto(raw)?;
                Ok((K::SUPPORTS.map_or(Support::Yes, |supports| supports(&cx, &proto)), required))
            })?;
            let flags = match support {
                Support::YesWith(flags) => K::FLAGS | flags,
                _ => K::FLAGS,
            };
            let refusal = match support {
                Support::No(reason) => Some(reason),
                _ => lacking(K::IMPL_NAME, required, flags).map(Into::into),
            };
            let verdict = if refusal.is_some() { DI_SUPPORT_NO } else { DI_SUPPORT_YES };
            let full = DiSupport {
                struct_size: size_of::<DiSupport>() as u32,
                verdict,
                determinism: flags & USUAL,
                contract_id: 0,
                reason: di_str(refusal.map_or("", intern)),
                want_layout: [0; 8],
            };
            write_prefix(full, out);
            Ok(())
        })
    }
}

/// # Safety
/// As [`supports`]; `out` is writable, and so are `info.struct_size` bytes of `info`.
unsafe extern "C" fn plan<K: Kernel>(
    backend: *mut DiBackend,
    device: *mut DiDevice,
    proto: *const DiOpHeader,
    out: *mut *mut DiPlan,
    info: *mut DiPlanInfo,
) -> *mut DiError {
    let name = <K::Op as Op>::INFO.name;
    // SAFETY: the contract of this function.
    unsafe {
        let state = State::of(backend);
        state.containment.call_part("plan", name, || {
            let made = with_raw::<K::Op, _>(proto, |raw| {
                let make = K::PLAN.ok_or_else(|| Fault::unsupported(format!("{} has no plans", K::IMPL_NAME)))?;
                let required = required(head::<K::Op>(raw).flags);
                let plan = make(&PlanCx { state, device, required }, &K::Op::proto(raw)?)?;
                let (info, object) = plan.split(K::FLAGS);
                match lacking(K::IMPL_NAME, required, object.flags) {
                    Some(reason) => Err(Fault::unsupported(reason)),
                    None => Ok((info, object)),
                }
            });
            let (full, object) = made?;
            write_prefix(full, info);
            *out = boxed(object);
            Ok(())
        })
    }
}

/// # Safety
/// `plan` is null or came from [`plan`] of the same kernel; no work that uses it is pending.
unsafe extern "C" fn plan_destroy<K: Kernel>(_: *mut DiBackend, plan: *mut DiPlan) {
    // SAFETY: the contract of this function.
    unsafe { unbox::<PlanObject<K::Plan>>(plan) }
}

/// # Safety
/// `backend` is the one of the entry reply; `plan` is null or came from [`plan`] of this kernel and is alive until the
/// work is done; `args` points to the argument struct of `K::Op`, `struct_size` bytes of it, valid as [`Op::view`] wants
/// until the work is done.
unsafe extern "C" fn run<K: Kernel>(
    backend: *mut DiBackend,
    plan: *mut DiPlan,
    stream: *mut DiStream,
    args: *const DiOpHeader,
) -> *mut DiError {
    let name = <K::Op as Op>::INFO.name;
    // SAFETY: the contract of this function.
    unsafe {
        let state = State::of(backend);
        state.containment.call(name, || {
            with_raw::<K::Op, _>(args, |raw| {
                if state.has_queues() {
                    return run_on_stream::<K>(state, plan, stream, raw);
                }
                run_now::<K>(state, plan, stream, raw)
            })
        })
    }
}

/// The plan and workspace of a call.
///
/// # Safety
/// As [`run`].
#[inline]
unsafe fn planned<'a, K: Kernel>(plan: *mut DiPlan, head: &DiOpHeader) -> Result<Option<Planned<'a, K::Plan>>, Fault> {
    let (flags, planned) = if K::PLAN.is_some() {
        // SAFETY: the caller's contract.
        unsafe {
            let object = object::<PlanObject<K::Plan>>(plan, "plan")?;
            (object.flags, Some(object.with_workspace(head)?))
        }
    } else {
        (K::FLAGS, None)
    };
    match required(head.flags) & !flags {
        0 => Ok(planned),
        missing => Err(Fault::unsupported(lacking(K::IMPL_NAME, missing, flags).unwrap_or_default())),
    }
}

/// # Safety
/// As [`run`].
#[inline]
unsafe fn run_now<K: Kernel>(
    state: &'static State,
    plan: *mut DiPlan,
    stream: *mut DiStream,
    raw: &<K::Op as Op>::Raw,
) -> Result<(), Fault> {
    // SAFETY: the caller's contract.
    unsafe {
        let planned = planned::<K>(plan, head::<K::Op>(raw))?;
        K::run(&Cx { state, stream }, planned, K::Op::view(raw)?)
    }
}

/// Checks the call now and runs it on the stream's queue, if it has one.
///
/// # Safety
/// As [`run`].
#[cold]
#[inline(never)]
unsafe fn run_on_stream<K: Kernel>(
    state: &'static State,
    plan: *mut DiPlan,
    stream: *mut DiStream,
    raw: &<K::Op as Op>::Raw,
) -> Result<(), Fault> {
    let info = <K::Op as Op>::INFO;
    // SAFETY: the caller's contract, which holds until the work is done; the struct is whole.
    let (queue, args) = unsafe {
        let Some(queue) = state.queue(stream)? else { return run_now::<K>(state, plan, stream, raw) };
        K::Op::view(raw)?;
        planned::<K>(plan, head::<K::Op>(raw))?;
        (queue, OwnedArgs::copy(head::<K::Op>(raw), info)?)
    };
    let (plan, stream) = (plan.expose_provenance(), stream.expose_provenance());
    queue.submit(info.name, move || {
        state.containment.run(info.name, || {
            let (plan, stream) =
                (std::ptr::with_exposed_provenance_mut(plan), std::ptr::with_exposed_provenance_mut(stream));
            // SAFETY: as above; a stream finishes its work before it is destroyed.
            unsafe { run_now::<K>(state, plan, stream, &*args.head().cast()) }
        })
    });
    Ok(())
}

/// Registers a function as an implementation of an op.
///
/// `kernel!(RmsNorm, rms_norm)` takes `fn rms_norm(&Cx, RmsNormArgs) -> Result<(), Fault>`; the op's type comes from
/// [`generated`](crate::generated). Options may follow, in any order:
///
/// - `impl_name = "tiled"`, for a second implementation of the op;
/// - `priority = 10`: the largest is tried first;
/// - `flags = DI_PF_DETERMINISTIC`: what holds for every call, instead of `DI_PF_DETERMINISTIC |
///   DI_PF_BATCH_INVARIANT`. A call that requires more is declined before it runs;
/// - `supports = fits`: `fn fits(&PlanCx, &RmsNormProto) -> Support` says whether it takes a call;
/// - `plan = tiles -> Tiles`: `fn tiles(&PlanCx, &RmsNormProto) -> Result<Plan<Tiles>, Fault>` decides once for all calls
///   of the same shapes. The kernel is then `fn rms_norm(&Cx, &Tiles, Workspace, RmsNormArgs) -> Result<(), Fault>`.
///
/// `kernel!(vendor Scale, ..)` is the same for an op of [`vendor_op!`](crate::vendor_op).
///
/// An `rstd` for rows of at most 1024 values, with a partial sum per row in its workspace:
///
/// ```
/// use deepinfer_plugin_api::generated::{RstdArgs, RstdProto};
/// use deepinfer_plugin_api::sdk::{Cx, Fault, Plan, PlanCx, Support, Workspace};
///
/// /// Elements in a row.
/// struct Columns(usize);
///
/// fn fits(_: &PlanCx<'_>, a: &RstdProto<'_>) -> Support {
///     if a.dims.n <= 1024 { Support::Yes } else { Support::no("rows are longer than 1024") }
/// }
///
/// fn plan(_: &PlanCx<'_>, a: &RstdProto<'_>) -> Result<Plan<Columns>, Fault> {
///     let bytes = a.dims.t * size_of::<f64>();
///     Ok(Plan::new(Columns(a.dims.n)).workspace(bytes as u64, align_of::<f64>() as u32))
/// }
///
/// fn rstd(_: &Cx<'_>, columns: &Columns, mut scratch: Workspace<'_>, mut a: RstdArgs<'_>) -> Result<(), Fault> {
///     let (x, mut buffer) = (a.x.floats()?, Vec::new());
///     let sums = scratch.slice_mut::<f64>()?;
///     for (row, sum) in sums.iter_mut().enumerate() {
///         *sum = x.load(row, &mut buffer).iter().map(|&v| f64::from(v).powi(2)).sum();
///     }
///     for (out, sum) in a.out.slice_mut::<f32>()?.iter_mut().zip(sums) {
///         *out = (*sum / columns.0 as f64 + f64::from(a.eps)).sqrt().recip() as f32;
///     }
///     Ok(())
/// }
///
/// deepinfer_plugin_api::kernel!(Rstd, rstd, impl_name = "planned", priority = 5, supports = fits, plan = plan -> Columns);
/// ```
#[macro_export]
macro_rules! kernel {
    (vendor $op:path, $($rest:tt)*) => {
        $crate::kernel!(@op ($op) $($rest)*);
    };
    // The macro that is generated knows the catalogue, and says so where it does not know the op.
    ($op:ident, $($rest:tt)*) => {
        $crate::__kernel_of_catalogue!($op, $($rest)*);
    };
    (@op ($op:path) $function:path $(, $($options:tt)*)?) => {
        $crate::kernel!(@of [($op) $function] [] [] [] [] [] $($($options)*)?);
    };

    // One option after the other goes to its place: name, priority, flags, supports, plan. A place is taken once.
    (@of $of:tt [] $p:tt $f:tt $s:tt $l:tt impl_name = $new:expr $(, $($rest:tt)*)?) => {
        $crate::kernel!(@of $of [$new] $p $f $s $l $($($rest)*)?);
    };
    (@of $of:tt $n:tt [] $f:tt $s:tt $l:tt priority = $new:expr $(, $($rest:tt)*)?) => {
        $crate::kernel!(@of $of $n [$new] $f $s $l $($($rest)*)?);
    };
    (@of $of:tt $n:tt $p:tt [] $s:tt $l:tt flags = $new:expr $(, $($rest:tt)*)?) => {
        $crate::kernel!(@of $of $n $p [$new] $s $l $($($rest)*)?);
    };
    (@of $of:tt $n:tt $p:tt $f:tt [] $l:tt supports = $new:path $(, $($rest:tt)*)?) => {
        $crate::kernel!(@of $of $n $p $f [$new] $l $($($rest)*)?);
    };
    (@of $of:tt $n:tt $p:tt $f:tt $s:tt [] plan = $new:ident -> $state:ty $(, $($rest:tt)*)?) => {
        $crate::kernel!(@of $of $n $p $f $s [$new, $state] $($($rest)*)?);
    };

    (@of [($op:path) $function:path] [$($name:expr)?] [$($priority:expr)?] [$($flags:expr)?] [$($supports:path)?] []) => {
        const _: () = {
            struct Registered;
            impl $crate::sdk::Kernel for Registered {
                type Op = $op;
                type Plan = ();
                $(const IMPL_NAME: &'static str = $name;)?
                $(const PRIORITY: i32 = $priority;)?
                $(const FLAGS: u32 = $flags;)?
                $(const SUPPORTS: ::std::option::Option<$crate::sdk::SupportsFn<$op>> =
                    ::std::option::Option::Some($supports);)?
                fn run(
                    cx: &$crate::sdk::Cx<'_>,
                    _: ::std::option::Option<$crate::sdk::Planned<'_, ()>>,
                    args: <Self::Op as $crate::Op>::Args<'_>,
                ) -> ::std::result::Result<(), $crate::sdk::Fault> {
                    $function(cx, args)
                }
            }
            $crate::inventory::submit! { $crate::sdk::KernelEntry::of::<Registered>() }
        };
    };
    (@of [($op:path) $function:path] [$($name:expr)?] [$($priority:expr)?] [$($flags:expr)?] [$($supports:path)?]
        [$plan:ident, $state:ty]
    ) => {
        const _: () = {
            struct Registered;
            impl $crate::sdk::Kernel for Registered {
                type Op = $op;
                type Plan = $state;
                $(const IMPL_NAME: &'static str = $name;)?
                $(const PRIORITY: i32 = $priority;)?
                $(const FLAGS: u32 = $flags;)?
                $(const SUPPORTS: ::std::option::Option<$crate::sdk::SupportsFn<$op>> =
                    ::std::option::Option::Some($supports);)?
                const PLAN: ::std::option::Option<$crate::sdk::PlanFn<$op, $state>> =
                    ::std::option::Option::Some($plan);
                fn run(
                    cx: &$crate::sdk::Cx<'_>,
                    planned: ::std::option::Option<$crate::sdk::Planned<'_, $state>>,
                    args: <Self::Op as $crate::Op>::Args<'_>,
                ) -> ::std::result::Result<(), $crate::sdk::Fault> {
                    let planned = planned.expect("a kernel with a plan is called with one");
                    $function(cx, planned.plan, planned.workspace, args)
                }
            }
            $crate::inventory::submit! { $crate::sdk::KernelEntry::of::<Registered>() }
        };
    };
    (@of $of:tt $n:tt $p:tt $f:tt $s:tt $l:tt $($rest:tt)+) => {
        ::std::compile_error!(::std::concat!(
            "kernel!: `",
            ::std::stringify!($($rest)+),
            "` is no option, or given twice; there are impl_name = \"tiled\", priority = 10, flags = DI_PF_DETERMINISTIC, \
             supports = function and plan = function -> Type"
        ));
    };
    ($($other:tt)*) => {
        ::std::compile_error!(
            "kernel! takes an op and its function, kernel!(Rstd, rstd) or kernel!(vendor Scale, scale), and then options"
        );
    };
}
