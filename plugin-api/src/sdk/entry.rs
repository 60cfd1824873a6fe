//! The exported symbol: versions are agreed, then the tables are handed over.

#![allow(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use crate::CatalogueId;
use crate::abi::*;
use crate::reflection::OpInfo;
use crate::sdk::contain::panic_text;
use crate::sdk::runtime_table::{State, di_str, read_prefix, runtime_table, write_prefix};
use crate::sdk::vendor::{FIRST_VENDOR_ID, check_declared, ops_table};
use crate::sdk::{Backend, Fault, FaultCode, KernelEntry, extras, host};

/// What [`export_backend!`](crate::export_backend) passes on.
pub struct Export {
    /// Profile whose ops must all be registered, if any. A kernel crate that nothing refers to is dropped by the linker
    /// together with its registrations, which this check turns into a sentence.
    pub profile: Option<&'static str>,
}

/// The body of the exported symbol.
///
/// # Safety
/// `request` and `reply` are as the header says; called once.
pub unsafe fn entry<B: Backend>(request: *const DiEntryRequest, reply: *mut DiEntryReply, export: &Export) -> i32 {
    if request.is_null() || reply.is_null() {
        return DI_E_INVALID;
    }
    // Copies: an older core's structs end before ours, and what they lack is zero.
    // SAFETY: not null, and the header promises valid structs of `struct_size` bytes, for which zeros are valid.
    let (request, mut answer) = unsafe { (read_prefix(request), read_prefix(reply)) };
    let outcome = catch_unwind(AssertUnwindSafe(|| start::<B>(&request, &mut answer, export)))
        .unwrap_or_else(|payload| Err(Fault::new(FaultCode::Panic, format!("panic: {}", panic_text(&*payload)))));
    let code = match outcome {
        Ok(()) => 0,
        Err(fault) => {
            let code = fault.code.raw();
            answer.error = fault.into_raw(B::NAME);
            code
        }
    };
    // SAFETY: `struct_size` bytes of the reply are writable.
    unsafe { write_prefix(answer, reply) };
    code
}

/// The SDK and the catalogue that this library was built with.
fn build() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| format!("deepinfer-plugin-api {}, {}", env!("CARGO_PKG_VERSION"), CatalogueId::ours()))
}

fn start<B: Backend>(request: &DiEntryRequest, reply: &mut DiEntryReply, export: &Export) -> Result<(), Fault> {
    // What a refusal needs, too.
    reply.name = di_str(B::NAME);
    reply.version = di_str(B::VERSION);
    reply.build = di_str(build());
    reply.major = DI_ABI_MAJOR;
    reply.minor = DI_ABI_MINOR;
    reply.min_core_minor = 0;
    reply.flags = DI_RF_CONTAINS_PANICS;
    if !(request.min_major..=request.max_major).contains(&DI_ABI_MAJOR) {
        return Err(Fault::new(
            FaultCode::Unsupported,
            format!(
                "{} speaks ABI major {DI_ABI_MAJOR} only; the core speaks {} to {}",
                B::NAME,
                request.min_major,
                request.max_major
            ),
        ));
    }
    if !request.next.is_null() {
        return Err(Fault::unsupported(format!("{} is a backend, not a layer", B::NAME)));
    }
    // SAFETY: the header promises that the host table lives as long as the process.
    unsafe { host::connect(request.host, B::NAME) };

    let kernels: Vec<&KernelEntry> = op_table()?;
    check_declared(&kernels)?;
    if let Some(profile) = export.profile {
        let required = crate::profile(profile).ok_or_else(|| {
            Fault::new(FaultCode::Internal, format!("{} names the unknown profile {profile}", B::NAME))
        })?;
        let registered = |name: &str| kernels.iter().any(|kernel| kernel.info.name == name);
        let missing: Vec<&str> = required.iter().copied().filter(|name| !registered(name)).collect();
        if !missing.is_empty() {
            return Err(Fault::new(
                FaultCode::Internal,
                format!(
                    "{} promises the profile {profile} but was linked without a kernel for {}",
                    B::NAME,
                    missing.join(", ")
                ),
            ));
        }
    }

    // SAFETY: the header promises `len` bytes of UTF-8; invalid bytes are replaced.
    let options = unsafe { crate::sdk::error::text(request.options) };
    let ops = ops_table(kernels.iter().map(|kernel| kernel.info));
    let state = State::new(B::start(&options)?, ops);
    // Leaked on purpose: the library is never unloaded, and the core holds these addresses as long as it lives.
    let entries = kernels.iter().map(|kernel| kernel.raw()).collect::<Vec<_>>().leak();
    let runtime: &'static DiRuntimeApi = Box::leak(Box::new(runtime_table::<B>()));
    let has_tables = ops.is_some() || B::EXTRAS.graph.is_some() || B::EXTRAS.table.is_some();
    let api: &'static DiBackendApi = Box::leak(Box::new(DiBackendApi {
        struct_size: size_of::<DiBackendApi>() as u32,
        flags: 0,
        backend: Box::into_raw(Box::new(state)).cast(),
        runtime,
        ops: entries.as_ptr(),
        n_ops: entries.len(),
        op_stride: size_of::<DiOpEntry>(),
        table: has_tables.then_some(extras::table::<B>),
        shutdown: B::EXTRAS.shutdown.map(|_| extras::shutdown::<B> as _),
    }));
    reply.api = api;
    Ok(())
}

/// The registered kernels by op, then by priority: the order of registration is the linker's.
fn op_table() -> Result<Vec<&'static KernelEntry>, Fault> {
    let mut kernels: Vec<&KernelEntry> = inventory::iter::<KernelEntry>.into_iter().collect();
    kernels.sort_by_key(|k| (k.info.id, k.info.version, std::cmp::Reverse(k.priority), k.impl_name));
    for pair in kernels.windows(2) {
        let same = |k: &KernelEntry| (k.info.id, k.info.version, k.impl_name);
        if same(pair[0]) == same(pair[1]) {
            let (op, name) = (pair[0].info.name, pair[0].impl_name);
            let problem = format!("two implementations of {op} are called {name:?}; give one another impl_name");
            return Err(Fault::new(FaultCode::Internal, problem));
        }
    }
    // Tools and users name ops, not ids.
    let is_taken = |op: &&OpInfo| op.id >= FIRST_VENDOR_ID && crate::op_by_name(op.name).is_some();
    if let Some(op) = kernels.iter().map(|kernel| kernel.info).find(is_taken) {
        let problem =
            format!("the op {:#010x} of this plugin is called {}, as one of the catalogue; rename it", op.id, op.name);
        return Err(Fault::new(FaultCode::Internal, problem));
    }
    Ok(kernels)
}

/// Exports a backend: `export_backend!(MyNpu)` with the kernels that there are, `export_backend!(MyNpu, profile =
/// "v41-text")` for one that promises every op of a profile and refuses to start when one is missing.
///
/// Kernels register themselves; a kernel in another crate must be named once (`use my_kernels as _;`), or the linker
/// drops it.
#[macro_export]
macro_rules! export_backend {
    ($backend:ty) => {
        $crate::export_backend!(@entry $backend, None);
    };
    ($backend:ty, profile = $profile:literal) => {
        const _: () = assert!($crate::has_profile($profile), "the catalogue has no such profile");
        $crate::export_backend!(@entry $backend, Some($profile));
    };
    (@entry $backend:ty, $profile:expr) => {
        #[cfg(panic = "abort")]
        compile_error!("a plugin built with panic = \"abort\" cannot contain its panics");

        /// The only exported symbol of this library.
        ///
        /// # Safety
        /// As `include/deepinfer_plugin.h` says.
        #[unsafe(no_mangle)]
        #[allow(unsafe_code)]
        pub unsafe extern "C" fn deepinfer_backend_entry(
            request: *const $crate::abi::DiEntryRequest,
            reply: *mut $crate::abi::DiEntryReply,
        ) -> i32 {
            // SAFETY: the same contract.
            unsafe { $crate::sdk::entry::<$backend>(request, reply, &$crate::sdk::Export { profile: $profile }) }
        }
    };
}
