//! Plugins and cores of different versions: structs that end early, go on longer, or end where memory does.
//!
//! A reader that looks behind the end of a struct dies in these tests, since a page follows that cannot be touched. It does
//! so in a child process, whose last words say which struct, of what size, and in which function of which plugin.

#![allow(unsafe_code)]

mod arguments;
#[path = "../c_compiler/mod.rs"]
mod c_compiler;
#[path = "../c_plugin/mod.rs"]
mod c_plugin;
mod edge;
mod host_device;
mod other_cores;
mod plugins_at_edges;
mod raw_host;
mod steps;
mod tables_at_edges;

use std::path::PathBuf;

/// A library that Cargo has built beside this test.
fn built(name: &str) -> PathBuf {
    let path = std::env::current_exe().expect("this program").with_file_name(format!("lib{name}.so"));
    assert!(path.is_file(), "{} is not there", path.display());
    path
}
