//! What every op of the catalogue must give.
//!
//! An [`Oracle`] takes a [`Call`] (an op with all its arguments as host values) and gives a [`Want`] for each output: bits
//! where the contract is EXACT, otherwise values in F64 with the error that the contract allows, by the numbers of the op's
//! reflection row. [`Call::judge`] holds what a backend wrote to it: it gives the largest error as a share of what is
//! allowed, or the worst element in a [`Mismatch`].
//!
//! The oracles are written from `plugin-api/OPS.md` and share no code with any kernel, not even number formats. They are
//! part of the boundary and not of a backend or of the core: a backend's author, a layer that watches another backend
//! and the conformance tests hold kernels to the same numbers.
//!
//! A [`Bundle`] is a call in a file.
//!
//! ```
//! use deepinfer_oracle::{Call, HostTensor, Outputs, Value};
//! use deepinfer_plugin_api::{Format, op_by_name};
//!
//! let mut call = Call::new(op_by_name("rstd").expect("an op of the catalogue"));
//! call.set("x", Value::Tensor(HostTensor::floats(Format::F32, &[1, 2], &[3.0, 4.0])));
//! call.set("eps", Value::F32(0.0));
//! call.set("out", Value::Tensor(HostTensor::filled(Format::F32, &[1], 0xFF)));
//!
//! let found = Outputs::from([("out", HostTensor::floats(Format::F32, &[1], &[0.282_842_7]))]);
//! assert!(call.judge(&found).expect("within the contract") <= 1.0);
//! ```

#![forbid(unsafe_code)]

mod bound;
pub mod bundle;
mod cache_entries;
mod call;
mod compare;
mod formats;
mod judge;
mod mismatch;
mod ops;
mod rows;
mod tensor;
mod want;

pub use bound::Bound;
pub use bundle::{Bundle, BundleError, Found};
pub use cache_entries::CacheEntries;
pub use call::{Call, Value};
pub use compare::{compare, first_difference};
pub use judge::{Disagreement, OracleError, Outputs};
pub use mismatch::{Distance, Mismatch};
pub use ops::{Oracle, oracle_of, oracle_of_id};
pub use tensor::HostTensor;
pub use want::{Element, Want, Wants};
