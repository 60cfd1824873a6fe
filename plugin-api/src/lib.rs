//! The boundary between DeepInfer and an accelerator backend.
//!
//! - [`abi`]: the C types, bit for bit; `include/deepinfer_plugin.h` for everybody else.
//! - [`generated`]: the op catalogue: argument structs, reflection rows, shape checks. `OPS.md` is the same for readers.
//! - [`sdk`]: what a backend written in Rust implements; it contains panics, checks arguments and fills the tables.
//! - [`numerics`]: the number formats, shared by both sides.
//!
//! Start with the [`guide`]; [`kernel!`] and [`sdk`] are its reference in Rust. Each op is a type of
//! [`generated`] with its meaning, shapes, formats, contract and refusals: [`generated::Rstd`], for instance.
//!
//! A backend depends on this crate and on nothing else of DeepInfer. A kernel is a function, here for all formats that the
//! catalogue allows:
//!
//! ```
//! use deepinfer_plugin_api::generated::RstdArgs;
//! use deepinfer_plugin_api::sdk::{Cx, Fault};
//!
//! fn rstd(_: &Cx<'_>, mut a: RstdArgs<'_>) -> Result<(), Fault> {
//!     // Rows of F32 or BF16, each as F32 values, wherever it lies.
//!     let (x, mut buffer) = (a.x.floats()?, Vec::new());
//!     for (row, out) in a.out.slice_mut::<f32>()?.iter_mut().enumerate() {
//!         let squares: f64 = x.load(row, &mut buffer).iter().map(|&v| f64::from(v).powi(2)).sum();
//!         *out = (squares / a.dims.n as f64 + f64::from(a.eps)).sqrt().recip() as f32;
//!     }
//!     Ok(())
//! }
//! deepinfer_plugin_api::kernel!(Rstd, rstd);
//! ```
//!
//! and one [`export_backend!`] for the type that implements [`sdk::Backend`].

#![deny(unsafe_code)]

pub mod abi;
mod catalogue_id;
pub mod check;
pub mod contract;
pub mod extents;
pub mod format;
pub mod generated;
/// The guide for authors, `README.md` of this crate's folder.
// Its examples are tested where plugins are built: most are commands, C or JSON.
#[cfg_attr(not(doctest), doc = "", doc = include_str!("../README.md"))]
pub mod guide {}
pub mod reflection;
pub mod sdk;

pub use catalogue_id::CatalogueId;
pub use check::{ArgError, Shaped, ShapedList};
pub use contract::{Class, Contract, Terms};
pub use deepinfer_numerics as numerics;
pub use extents::{Arguments, Described, Extents};
pub use format::{CacheFormat, Format};
pub use reflection::{ArgInfo, Kind, Op, OpInfo, Refusal, Role};

/// Used by the macros of [`sdk`].
#[doc(hidden)]
pub use inventory;

/// The reflection row of an op by its name.
pub fn op_by_name(name: &str) -> Option<&'static OpInfo> {
    generated::OPS.iter().copied().find(|op| op.name == name)
}

/// The reflection row of an op by its id.
pub fn op_by_id(id: u32) -> Option<&'static OpInfo> {
    generated::OPS.iter().copied().find(|op| op.id == id)
}

/// Whether the catalogue has a profile of this name; for checks at compile time.
pub const fn has_profile(name: &str) -> bool {
    let mut index = 0;
    while index < generated::PROFILES.len() {
        if const_eq(generated::PROFILES[index].0.as_bytes(), name.as_bytes()) {
            return true;
        }
        index += 1;
    }
    false
}

const fn const_eq(a: &[u8], b: &[u8]) -> bool {
    let mut index = 0;
    while index < a.len() && index < b.len() && a[index] == b[index] {
        index += 1;
    }
    a.len() == b.len() && index == a.len()
}

/// The ops that a profile requires.
pub fn profile(name: &str) -> Option<&'static [&'static str]> {
    generated::PROFILES.iter().find(|(profile, _)| *profile == name).map(|(_, ops)| *ops)
}
