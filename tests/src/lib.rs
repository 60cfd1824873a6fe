//! What the cross-crate tests share: a device, tensors on it, the golden files, the layout of the plugin boundary, the test
//! of a distribution, and random cache entries.

#![forbid(unsafe_code)]

pub mod distribution;
mod golden;
pub mod layouts;
pub mod random;
mod tensors;

use std::path::PathBuf;
use std::rc::Rc;

use deepinfer_ops::Device;
use deepinfer_runtime::{OpenDevice, Runtime, Selection};

pub use golden::Golden;
pub use tensors::{Tensors, bf16_bytes, f32_bytes};

/// A device of the backend that `DEEPINFER_ACCELERATOR` names, or of cpu-reference, under the layers of
/// `DEEPINFER_LAYERS`.
///
/// # Panics
/// If there is none, with the reason.
pub fn device() -> Rc<dyn Device> {
    Rc::new(open_device())
}

/// As [`device`], as what it is.
///
/// # Panics
/// As [`device`].
pub fn open_device() -> OpenDevice {
    let name = std::env::var("DEEPINFER_ACCELERATOR").unwrap_or_else(|_| "cpu".to_owned());
    let selection = Selection::parse(&name).unwrap_or_else(|e| panic!("{e}"));
    let runtime = Runtime::from_environment().unwrap_or_else(|e| panic!("{e}"));
    runtime.open(&selection).unwrap_or_else(|e| panic!("{e}"))
}

/// Where this package lies: where cargo says when it runs a test, or whoever runs one on another machine.
fn package() -> PathBuf {
    std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into()).into()
}

/// A file of `tests/fixtures`.
pub fn fixture(name: &str) -> PathBuf {
    package().join("fixtures").join(name)
}

/// The miniature checkpoint.
pub fn miniature() -> PathBuf {
    package().join("../models/deepseek-v41-mini")
}

/// Largest absolute difference of two slices, and where it is.
///
/// # Panics
/// If the lengths differ.
pub fn worst(found: &[f32], wanted: &[f32]) -> (f32, usize) {
    assert_eq!(found.len(), wanted.len());
    let mut worst = (0.0, 0);
    for (index, (a, b)) in found.iter().zip(wanted).enumerate() {
        let difference = if a == b { 0.0 } else { (a - b).abs() };
        // A NaN on one side is the worst of all.
        if difference > worst.0 || difference.is_nan() {
            worst = (if difference.is_nan() { f32::INFINITY } else { difference }, index);
        }
    }
    worst
}

/// Asserts that every element is within `absolute + relative * |wanted|`.
///
/// # Panics
/// If one is not, with its place and both values.
pub fn assert_close(what: &str, found: &[f32], wanted: &[f32], absolute: f32, relative: f32) {
    assert_eq!(found.len(), wanted.len(), "{what}: lengths");
    for (index, (a, b)) in found.iter().zip(wanted).enumerate() {
        let bound = absolute + relative * b.abs();
        assert!(
            a == b || (a - b).abs() <= bound,
            "{what}[{index}] is {a}, expected {b} within {bound}; worst of all: {:?}",
            worst(found, wanted)
        );
    }
}
