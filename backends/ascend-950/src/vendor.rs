//! The vendor's own ops (aclnn), where an installation has them: found by name, called in two phases.
//!
//! - `vendor/sys`: what bindgen makes of `include/di_aclnn.h`; `vendor/call`: tensors and the two phases;
//!   `vendor/linear`: `linear` by matrix products of the vendor; `vendor/grouped_linear`: `grouped_linear` by grouped ones.
//!
//! They promise neither that a row depends on that row alone nor that bits repeat, and they are not recorded into graphs: a call
//! that requires either gets a kernel of this backend.

pub(crate) mod call;
mod grouped_linear;
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

const LIBRARY: &CStr = c"libopapi.so";

/// An op of the vendor: what this backend calls, and for what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum VendorOp {
    /// `linear` of BF16 or of F32.
    Matmul,
    /// `linear` of FP8 rows with FP8 or FP4 weights.
    QuantMatmul,
    /// `grouped_linear` of BF16 or of F32.
    GroupedMatmul,
}

impl VendorOp {
    pub(crate) const ALL: [VendorOp; 3] = [VendorOp::Matmul, VendorOp::QuantMatmul, VendorOp::GroupedMatmul];

    /// Names of its two phases, and before them of what else it needs. One without the others is of no use.
    const fn functions(self) -> &'static [&'static CStr] {
        match self {
            VendorOp::Matmul => &[c"aclnnMatmulGetWorkspaceSize", c"aclnnMatmul"],
            VendorOp::QuantMatmul => &[c"aclnnQuantMatmulV5GetWorkspaceSize", c"aclnnQuantMatmulV5"],
            VendorOp::GroupedMatmul => &[
                c"aclCreateTensorList",
                c"aclDestroyTensorList",
                c"aclnnGroupedMatmulV5GetWorkspaceSize",
                c"aclnnGroupedMatmulV5",
            ],
        }
    }
}

/// What every op needs.
const TENSORS: [&CStr; 2] = [c"aclCreateTensor", c"aclDestroyTensor"];

/// All functions.
fn names() -> impl Iterator<Item = &'static CStr> {
    TENSORS.into_iter().chain(VendorOp::ALL.into_iter().flat_map(VendorOp::functions).copied())
}

/// The library of the vendor's ops.
pub(crate) struct Vendor {
    api: sys::OpApi,
    /// Functions that it lacks.
    lacks: Vec<&'static CStr>,
}

impl Vendor {
    /// The library, if it is there: opened when it is asked about first, and never closed.
    pub(crate) fn get() -> Option<&'static Self> {
        static VENDOR: OnceLock<Option<Vendor>> = OnceLock::new();
        VENDOR
            .get_or_init(|| if is_twin() { Self::of_twin(said_by_fake) } else { Self::of(open()?, |_, _| true) })
            .as_ref()
    }

    /// The fake ops; `has` says whether the library is there, and which functions.
    pub(crate) fn of_twin(has: impl Fn(&Library, &CStr) -> bool) -> Option<Self> {
        let library = image::fake().ok()?;
        if has(&library, LIBRARY) { Self::of(library, has) } else { None }
    }

    fn of(library: Library, has: impl Fn(&Library, &CStr) -> bool) -> Option<Self> {
        let wanted: Vec<bool> = names().map(|name| has(&library, name)).collect();
        // SAFETY: the types are those of `di_aclnn.h`, which says what the vendor's functions take.
        let api = unsafe { sys::OpApi::from_library(library) }.ok()?;
        let there = [
            api.aclCreateTensor.is_ok(),
            api.aclDestroyTensor.is_ok(),
            api.aclnnMatmulGetWorkspaceSize.is_ok(),
            api.aclnnMatmul.is_ok(),
            api.aclnnQuantMatmulV5GetWorkspaceSize.is_ok(),
            api.aclnnQuantMatmulV5.is_ok(),
            api.aclCreateTensorList.is_ok(),
            api.aclDestroyTensorList.is_ok(),
            api.aclnnGroupedMatmulV5GetWorkspaceSize.is_ok(),
            api.aclnnGroupedMatmulV5.is_ok(),
        ];
        let has_it = wanted.into_iter().zip(there).map(|(wanted, there)| wanted && there);
        let lacks = names().zip(has_it).filter(|(_, has_it)| !has_it).map(|(name, _)| name).collect();
        Some(Self { api, lacks })
    }

    /// The first function that an op needs and the library lacks.
    pub(crate) fn lacks(&self, op: VendorOp) -> Option<&'static str> {
        let needed = TENSORS.into_iter().chain(op.functions().iter().copied());
        needed.into_iter().find(|name| self.lacks.contains(name)).map(text)
    }

    /// Whether an op is installed.
    pub(crate) fn has(&self, op: VendorOp) -> bool {
        self.lacks(op).is_none()
    }

    /// Its functions.
    pub(crate) fn api(&self) -> &sys::OpApi {
        &self.api
    }
}

fn text(name: &'static CStr) -> &'static str {
    name.to_str().unwrap_or_default()
}

/// What this backend would use of the vendor's ops and the installation lacks, for a person: functions, or the library. The twin
/// lacks nothing where no op was asked for.
pub(crate) fn missing() -> Vec<&'static str> {
    let Some(vendor) = Vendor::get() else { return vec![text(LIBRARY)] };
    if is_twin() && vendor.lacks.len() == names().count() {
        return Vec::new();
    }
    vendor.lacks.iter().copied().map(text).collect()
}

/// Whether the fake runtime was told to have a function, or the library.
fn said_by_fake(library: &Library, name: &CStr) -> bool {
    // SAFETY: the type is that of the function in `fake/opapi.cpp`.
    let has = unsafe { library.get::<unsafe extern "C" fn(*const c_char) -> c_int>("di_fake_has") };
    // SAFETY: the name is terminated.
    has.is_ok_and(|has| unsafe { has(name.as_ptr()) } != 0)
}

/// Opens the library: where the system finds it, else in the toolkit's own folder.
fn open() -> Option<Library> {
    let in_toolkit = toolkit().map(|folder| folder.join("lib64").join(text(LIBRARY)));
    let paths = [Some(text(LIBRARY).into()), in_toolkit].into_iter().flatten();
    // SAFETY: opens the vendor's library, as every CANN program does.
    paths.into_iter().find_map(|path: std::path::PathBuf| unsafe { Library::new(path) }.ok())
}
