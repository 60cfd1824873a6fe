//! The vendor's own ops (aclnn), where an installation has them: found by name, called in two phases.
//!
//! - `vendor/sys`: what bindgen makes of `include/di_aclnn.h`; `vendor/call`: tensors and the two phases;
//!   `vendor/linear`: `linear` by matrix products of the vendor.
//!
//! They promise neither that a row depends on that row alone nor that bits repeat, and they are not recorded into graphs: a call
//! that requires either gets a kernel of this backend.

pub(crate) mod call;
mod linear;
/// What bindgen makes of `include/di_aclnn.h`; a test keeps it fresh.
#[rustfmt::skip]
#[allow(non_camel_case_types, non_snake_case, non_upper_case_globals, dead_code, missing_docs, unreachable_pub)]
#[allow(unsafe_op_in_unsafe_fn, clippy::all, clippy::undocumented_unsafe_blocks)]
pub(crate) mod sys;
#[cfg(all(test, ascend_twin))]
mod tests;

use std::ffi::{CStr, c_char, c_int};
use std::sync::OnceLock;

use libloading::Library;

use crate::acl::toolkit;
use crate::image::{self, is_twin};

const LIBRARY: &str = "libopapi.so";

/// An op of the vendor: what this backend calls, and for what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum VendorOp {
    /// `linear` of BF16 or of F32.
    Matmul,
    /// `linear` of FP8 rows with FP8 or FP4 weights.
    QuantMatmul,
}

impl VendorOp {
    pub(crate) const ALL: [VendorOp; 2] = [VendorOp::Matmul, VendorOp::QuantMatmul];

    /// The vendor's name.
    pub(crate) const fn name(self) -> &'static CStr {
        match self {
            VendorOp::Matmul => c"aclnnMatmul",
            VendorOp::QuantMatmul => c"aclnnQuantMatmulV5",
        }
    }
}

/// The library of the vendor's ops.
pub(crate) struct Vendor {
    api: sys::OpApi,
    has: [bool; VendorOp::ALL.len()],
}

impl Vendor {
    /// The library, if it is there: opened when it is asked about first, and never closed.
    pub(crate) fn get() -> Option<&'static Self> {
        static VENDOR: OnceLock<Option<Vendor>> = OnceLock::new();
        VENDOR
            .get_or_init(|| if is_twin() { Self::of_twin(said_by_fake) } else { Self::of(open()?, |_, _| true) })
            .as_ref()
    }

    /// The fake ops, of which `has` says which there are.
    pub(crate) fn of_twin(has: impl Fn(&Library, &CStr) -> bool) -> Option<Self> {
        Self::of(image::fake().ok()?, has)
    }

    fn of(library: Library, has: impl Fn(&Library, &CStr) -> bool) -> Option<Self> {
        let wanted = VendorOp::ALL.map(|op| has(&library, op.name()));
        // SAFETY: the types are those of `di_aclnn.h`, which says what the vendor's functions take.
        let api = unsafe { sys::OpApi::from_library(library) }.ok()?;
        let has_tensors = api.aclCreateTensor.is_ok() && api.aclDestroyTensor.is_ok();
        let there = VendorOp::ALL.map(|op| match op {
            VendorOp::Matmul => api.aclnnMatmulGetWorkspaceSize.is_ok() && api.aclnnMatmul.is_ok(),
            VendorOp::QuantMatmul => api.aclnnQuantMatmulV5GetWorkspaceSize.is_ok() && api.aclnnQuantMatmulV5.is_ok(),
        });
        let mut has = [false; VendorOp::ALL.len()];
        for (has, (wanted, there)) in has.iter_mut().zip(wanted.into_iter().zip(there)) {
            *has = has_tensors && wanted && there;
        }
        Some(Self { api, has })
    }

    /// Whether an op is installed.
    pub(crate) fn has(&self, op: VendorOp) -> bool {
        self.has[op as usize]
    }

    /// Its functions.
    pub(crate) fn api(&self) -> &sys::OpApi {
        &self.api
    }
}

/// The vendor's ops that this backend would use and that the installation lacks, for a person. The twin lacks none that were not
/// asked for.
pub(crate) fn missing() -> Vec<&'static str> {
    let vendor = Vendor::get();
    let missing = VendorOp::ALL.into_iter().filter(|op| !vendor.is_some_and(|vendor| vendor.has(*op)));
    let missing: Vec<&str> = missing.map(|op| op.name().to_str().unwrap_or_default()).collect();
    if is_twin() && missing.len() == VendorOp::ALL.len() { Vec::new() } else { missing }
}

/// Whether the fake runtime was told to have an op.
fn said_by_fake(library: &Library, name: &CStr) -> bool {
    // SAFETY: the type is that of the function in `fake/opapi.cpp`.
    let has = unsafe { library.get::<unsafe extern "C" fn(*const c_char) -> c_int>("di_fake_has") };
    // SAFETY: the name is terminated.
    has.is_ok_and(|has| unsafe { has(name.as_ptr()) } != 0)
}

/// Opens the library: where the system finds it, else in the toolkit's own folder.
fn open() -> Option<Library> {
    let in_toolkit = toolkit().map(|folder| folder.join("lib64").join(LIBRARY));
    let paths = [Some(LIBRARY.into()), in_toolkit].into_iter().flatten();
    // SAFETY: opens the vendor's library, as every CANN program does.
    paths.into_iter().find_map(|path: std::path::PathBuf| unsafe { Library::new(path) }.ok())
}
