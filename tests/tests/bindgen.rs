//! The C header as `bindgen` imports it: what a Rust author who knows only the header gets is what this repository's Rust
//! side says, struct by struct, field by field and constant by constant.
//!
//! `bindgen` takes longer to compile than the rest of these tests, so that they are behind the feature `bindgen`:
//! `cargo test -p deepinfer-tests --features bindgen --test bindgen`. It loads libclang when it runs (Debian: libclang-dev);
//! where there is none the test says `skipped: no libclang` and passes.

#![forbid(unsafe_code)]

#[path = "bindgen/ascend.rs"]
mod ascend;
mod c_compiler;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use bindgen::Builder;
use c_compiler::{Language, compiler, repository, run};
use deepinfer_tests::layouts::{self, Layout, argument_structs, constants, fixed_structs};

/// A header to import, or `None`, with a line that says so, without libclang.
fn header(path: &Path) -> Option<Builder> {
    // Asking for the version is the first thing that loads libclang; that it cannot be found is a panic.
    if std::panic::catch_unwind(bindgen::clang_version).is_err() {
        eprintln!("skipped: no libclang");
        return None;
    }
    let builder = Builder::default().header(path.to_string_lossy());
    // A libclang without the headers of its compiler has no stddef.h; that of the C compiler will do.
    Some(match compiler(Language::C11) {
        Some(mut compiler) => builder.clang_args(["-idirafter", run(compiler.arg("-print-file-name=include")).trim()]),
        None => builder,
    })
}

/// The imported header, or `None`, with a line that says so, without libclang.
fn import() -> Option<String> {
    let path = repository().join("plugin-api/include/deepinfer_plugin.h");
    let builder = header(&path)?.allowlist_item("Di.*|DI_.*").generate_cstr(true);
    Some(builder.generate().unwrap_or_else(|e| panic!("{}: {e}", bindgen::clang_version().full)).to_string())
}

/// A program that prints what [`layouts::lines`] says, of imported types. Its layout assertions, made by clang, hold if it
/// compiles.
fn program(imported: &str) -> String {
    let mut source = format!("{imported}\nuse std::mem::{{align_of, offset_of, size_of}};\nfn main() {{\n");
    for Layout { name, fields, .. } in fixed_structs().into_iter().chain(argument_structs()) {
        writeln!(source, "    println!(\"{name} {{}} {{}}\", size_of::<{name}>(), align_of::<{name}>());").unwrap();
        for (field, _) in fields {
            writeln!(source, "    println!(\"{name}.{field} {{}}\", offset_of!({name}, {field}));").unwrap();
        }
    }
    for (name, _) in constants() {
        writeln!(source, "    println!(\"{name} {{}}\", {name} as i64);").unwrap();
    }
    source + "    println!(\"{}\", DI_ENTRY_SYMBOL.to_str().unwrap());\n}\n"
}

#[test]
fn the_imported_header_has_the_layout_and_the_constants_of_the_rust_side() {
    let Some(imported) = import() else { return };
    assert!(imported.contains("Offset of field: DiTensor::quant"), "bindgen states no layouts");
    let folder = tempfile::tempdir().unwrap();
    let (source, binary) = (folder.path().join("imported.rs"), folder.path().join("imported"));
    std::fs::write(&source, program(&imported)).unwrap();
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    run(Command::new(rustc).args(["--edition", "2021", "-A", "warnings", "-o"]).arg(&binary).arg(&source));
    let (printed, wanted) = (run(&mut Command::new(&binary)), layouts::lines());
    for (theirs, ours) in printed.lines().zip(wanted.lines()) {
        assert_eq!(theirs, ours, "bindgen (left) and Rust (right) disagree");
    }
    assert_eq!(printed.lines().count(), wanted.lines().count());
}

#[test]
fn the_rust_side_leaves_nothing_of_the_header_out() {
    let Some(imported) = import() else { return };
    let lines: Vec<&str> = imported.lines().collect();
    // A struct that is declared and never defined has one private field.
    let is_defined = |pair: &&[&str]| !pair[1].contains("_unused");
    let structs = lines.windows(2).filter(is_defined).filter_map(|pair| pair[0].strip_prefix("pub struct "));
    let found: BTreeSet<String> = structs.map(|rest| rest.split([' ', '{']).next().unwrap().to_owned()).collect();
    let known: BTreeSet<String> = fixed_structs().into_iter().chain(argument_structs()).map(|s| s.name).collect();
    assert_eq!(found, known);

    let names = lines.iter().filter_map(|line| line.strip_prefix("pub const DI_")?.split_once(':'));
    let found: BTreeSet<String> = names.map(|(name, _)| format!("DI_{name}")).collect();
    let mut known: BTreeSet<String> = constants().into_iter().map(|(name, _)| name).collect();
    known.insert("DI_ENTRY_SYMBOL".to_owned());
    assert_eq!(found, known);
}
