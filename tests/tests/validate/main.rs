//! The validation layer over real backends: silent over those that are right, a sentence for whoever is not.

#![allow(unsafe_code)]

#[path = "../c_compiler/mod.rs"]
mod c_compiler;
#[path = "../c_plugin/mod.rs"]
mod c_plugin;
mod caller;
mod faulty;
mod miniature;
mod wrong_calls;

use std::path::PathBuf;

use deepinfer_runtime::{Layers, OpenDevice, Runtime, SearchPath, Selection};
use serde_json::Value;

/// A library that Cargo has built beside this test.
fn built(name: &str) -> PathBuf {
    let path = std::env::current_exe().expect("this program").with_file_name(format!("lib{name}.so"));
    assert!(path.is_file(), "{} is not there", path.display());
    path
}

/// A device behind the layer.
fn open(backend: &str, options: &str) -> OpenDevice {
    let layer = built("deepinfer_validate");
    let layers = Layers::parse(&format!("{}:{options}", layer.display())).expect("a layer");
    let runtime = Runtime::new(SearchPath::from_environment()).with_layers(layers);
    runtime.open(&Selection::parse(backend).expect("a selection")).unwrap_or_else(|e| panic!("{e}"))
}

/// The findings of a report.
fn findings(report: &std::path::Path) -> Vec<Value> {
    let text = std::fs::read_to_string(report).expect("the report is created at the start");
    text.lines().map(|line| serde_json::from_str(line).expect("a line is an object")).collect()
}
