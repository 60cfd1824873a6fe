//! The validation layer over real backends: silent over those that are right, a sentence for whoever is not.

#![allow(unsafe_code)]

#[path = "../c_compiler/mod.rs"]
mod c_compiler;
#[path = "../c_plugin/mod.rs"]
mod c_plugin;
mod caller;
mod capture;
mod faulty;
mod miniature;
mod plans;
mod vendor;
mod wrong_calls;

use std::path::{Path, PathBuf};

use deepinfer_runtime::{Layers, OpenDevice, SearchPath, load};
use serde_json::Value;

/// A library that Cargo has built beside this test.
fn built(name: &str) -> PathBuf {
    let path = std::env::current_exe().expect("this program").with_file_name(format!("lib{name}.so"));
    assert!(path.is_file(), "{} is not there", path.display());
    path
}

/// A device of a backend behind the layer, which reports to `folder`.
fn open(folder: &Path, backend: &Path, backend_options: &str, options: &str) -> OpenDevice {
    // Over one backend a library starts with one set of options; a copy is another library.
    let layer = folder.join("libdeepinfer_validate.so");
    std::fs::copy(built("deepinfer_validate"), &layer).expect("a copy");
    let report = folder.join("report");
    let text = format!("{}:{options},report={}", layer.display(), report.display());
    let layers = Layers::parse(&text).expect("a layer");
    let backend = load(backend, backend_options).unwrap_or_else(|e| panic!("{e}"));
    let layered = layers.wrap(backend, &SearchPath::of([])).unwrap_or_else(|e| panic!("{e}"));
    layered.open(0).unwrap_or_else(|e| panic!("{e}"))
}

/// The findings that were reported to a folder.
fn findings(folder: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(folder.join("report")).expect("the report is created at the start");
    text.lines().map(|line| serde_json::from_str(line).expect("a line is an object")).collect()
}
