//! The C header and the Rust types are the same bytes: size, alignment and offset of every field, and every constant, as
//! the C and C++ compilers see them.

#![forbid(unsafe_code)]

mod c_compiler;

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::mem::offset_of;
use std::path::{Path, PathBuf};

use c_compiler::{Language, compiler, run};
use deepinfer_plugin_api::abi::{DI_ABI_MAJOR, DI_ABI_MINOR, DiTensor};
use deepinfer_plugin_api::generated::OPS;
use deepinfer_tests::layouts::{self, Layout, argument_struct_name, argument_structs, constants, fixed_structs};

/// A program in C and C++ that prints what [`layouts::lines`] says.
fn program() -> String {
    let mut source = String::from(
        "#include <stdio.h>\n#include <string.h>\n#include \"deepinfer_plugin.h\"\n\
         #ifdef __cplusplus\n#define ALIGN(T) alignof(T)\n#else\n#define ALIGN(T) _Alignof(T)\n#endif\n\
         int main(void) {\n",
    );
    for Layout { name, fields, .. } in fixed_structs().into_iter().chain(argument_structs()) {
        writeln!(source, "  printf(\"{name} %zu %zu\\n\", sizeof({name}), ALIGN({name}));").unwrap();
        for (field, _) in fields {
            writeln!(source, "  printf(\"{name}.{field} %zu\\n\", offsetof({name}, {field}));").unwrap();
        }
    }
    for (name, _) in constants() {
        writeln!(source, "  printf(\"{name} %lld\\n\", (long long){name});").unwrap();
    }
    source + "  puts(DI_ENTRY_SYMBOL);\n  return 0;\n}\n"
}

fn compare(language: Language, extension: &str) {
    let Some(mut compiler) = compiler(language) else { return };
    let folder = tempfile::tempdir().unwrap();
    let (source, wanted) = (program(), layouts::lines());
    let (file, binary) = (folder.path().join(format!("layout.{extension}")), folder.path().join("layout"));
    std::fs::write(&file, source).unwrap();
    run(compiler.arg(&file).arg("-o").arg(&binary));
    let printed = run(&mut std::process::Command::new(&binary));
    for (theirs, ours) in printed.lines().zip(wanted.lines()) {
        assert_eq!(theirs, ours, "{language:?} (left) and Rust (right) disagree");
    }
    assert_eq!(printed.lines().count(), wanted.lines().count());
}

#[test]
fn c11_sees_the_same_layout() {
    compare(Language::C11, "c");
}

#[test]
fn cpp17_sees_the_same_layout() {
    compare(Language::Cpp17, "cpp");
}

/// Folder of the snapshots, one per `major.minor`.
fn snapshots() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../plugin-api/abi")
}

/// What a released header promised stays true within its major: fields keep their offsets, constants their values, and
/// structs only grow. `DEEPINFER_WRITE_ABI_SNAPSHOT=1` writes the snapshot of the present version.
#[test]
fn nothing_moves_within_a_major_version() {
    let now = layouts::lines();
    let present = snapshots().join(format!("{DI_ABI_MAJOR}.{DI_ABI_MINOR}"));
    if std::env::var_os("DEEPINFER_WRITE_ABI_SNAPSHOT").is_some() {
        std::fs::create_dir_all(&present).unwrap();
        std::fs::write(present.join("layout.txt"), &now).unwrap();
        let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plugin-api/include/deepinfer_plugin.h");
        std::fs::copy(header, present.join("deepinfer_plugin.h")).unwrap();
    }
    assert!(present.is_dir(), "{} has no snapshot", present.display());
    let now: HashMap<&str, &str> = now.lines().filter_map(|line| line.split_once(' ')).collect();
    for folder in std::fs::read_dir(snapshots()).unwrap() {
        let folder = folder.unwrap().path();
        let version = folder.file_name().unwrap().to_string_lossy().into_owned();
        if !version.starts_with(&format!("{DI_ABI_MAJOR}.")) {
            continue;
        }
        let then = std::fs::read_to_string(folder.join("layout.txt")).unwrap();
        for (name, old) in then.lines().filter_map(|line| line.split_once(' ')) {
            if name == "DI_ABI_MINOR" {
                continue;
            }
            let new = *now.get(name).unwrap_or_else(|| panic!("{name} of version {version} is gone"));
            let struct_size = |text: &str| text.split_once(' ').map(|(size, _)| size.parse::<usize>().unwrap());
            match (struct_size(old), struct_size(new)) {
                (Some(old), Some(new)) => assert!(new >= old, "{name} shrank from {old} bytes in {version} to {new}"),
                _ => assert_eq!(new, old, "{name} has moved since version {version}"),
            }
        }
    }
}

/// The minor that an argument names is the first one whose struct has it.
#[test]
fn arguments_know_the_minor_that_brought_them() {
    for minor in 1..=DI_ABI_MINOR {
        let then = std::fs::read_to_string(snapshots().join(format!("{DI_ABI_MAJOR}.{minor}/layout.txt"))).unwrap();
        let then: HashSet<&str> = then.lines().filter_map(|line| line.split(' ').next()).collect();
        for op in OPS {
            let name = argument_struct_name(op);
            for arg in op.args.iter().filter(|_| then.contains(name.as_str())) {
                let had_it = then.contains(format!("{name}.{}", arg.name).as_str());
                assert_eq!(had_it, arg.since <= minor, "{name}.{} since {} in minor {minor}", arg.name, arg.since);
            }
        }
    }
}

#[test]
fn the_head_of_a_tensor_is_a_dlpack_tensor() {
    // DLTensor: data 0, device 8 (type, id), ndim 16, dtype 20 (code, bits, lanes), shape 24, strides 32, byte_offset 40.
    let dlpack = [
        (0, offset_of!(DiTensor, data)),
        (8, offset_of!(DiTensor, device_type)),
        (12, offset_of!(DiTensor, device_id)),
        (16, offset_of!(DiTensor, ndim)),
        (20, offset_of!(DiTensor, code)),
        (21, offset_of!(DiTensor, bits)),
        (22, offset_of!(DiTensor, lanes)),
        (24, offset_of!(DiTensor, shape)),
        (32, offset_of!(DiTensor, strides)),
        (40, offset_of!(DiTensor, byte_offset)),
        (48, offset_of!(DiTensor, quant)),
    ];
    for (wanted, found) in dlpack {
        assert_eq!(wanted, found);
    }
}
