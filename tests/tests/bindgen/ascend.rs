//! The ascend backend's own headers of CANN: what is checked in is what `bindgen` makes of them, and, where a real header of
//! AscendCL is at hand, ours agrees with it. Real headers are found below `DEEPINFER_ACL_INCLUDE`, else `ASCEND_HOME_PATH`; a folder `include` of
//! an unpacked torch-npu wheel will do. Nothing of them is kept.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::path::{Path, PathBuf};

use bindgen::{Builder, EnumVariation};

use crate::c_compiler::repository;
use crate::header;

/// A header of ours, and what is made of it.
struct Own {
    header: &'static str,
    bindings: &'static str,
    library: &'static str,
    items: &'static str,
}

const ACL: Own = Own { header: "di_acl.h", bindings: "src/acl/sys.rs", library: "AscendCl", items: "acl.*|ACL_.*" };
const ACLNN: Own = Own {
    header: "di_aclnn.h",
    bindings: "src/vendor/sys.rs",
    library: "OpApi",
    items: "aclnn.*|ACLNN_.*|acl(Create|Destroy)Tensor(List)?|acl(DataType|Format|Tensor|OpExecutor)|ACL_(FLOAT|INT64|BF16|FORMAT).*",
};

impl Own {
    fn folder() -> PathBuf {
        repository().join("backends/ascend-950")
    }

    fn header(&self) -> PathBuf {
        Self::folder().join("include").join(self.header)
    }
}

/// How a header is imported, but for the functions.
fn importing(path: &Path, items: &str) -> Option<Builder> {
    let formatted = header(path)?.rustfmt_configuration_file(Some(repository().join("rustfmt.toml")));
    Some(
        formatted
            .allowlist_item(items)
            .default_enum_style(EnumVariation::Consts)
            .prepend_enum_name(false)
            .generate_comments(false),
    )
}

fn text(builder: Builder) -> String {
    builder.generate().unwrap_or_else(|e| panic!("{}: {e}", bindgen::clang_version().full)).to_string()
}

/// `DEEPINFER_WRITE_ACL_BINDINGS=1` writes what is made.
#[test]
fn the_bindings_of_cann_are_those_of_our_headers() {
    for own in [ACL, ACLNN] {
        let Some(builder) = importing(&own.header(), own.items) else { return };
        let made = text(builder.disable_header_comment().dynamic_library_name(own.library));
        // libloading 0.9 has a trait of its own for names of files.
        let made = made.replace("P: AsRef<::std::ffi::OsStr>", "P: ::libloading::AsFilename");
        let title = format!("// Made by bindgen from include/{}: see tests/tests/bindgen/ascend.rs.", own.header);
        let made = format!("{title}\n\n{made}");
        let file = Own::folder().join(own.bindings);
        if env::var_os("DEEPINFER_WRITE_ACL_BINDINGS").is_some() {
            std::fs::write(&file, &made).unwrap();
        }
        // Line breaks are rustfmt's affair.
        let words = |text: &str| text.replace(',', " ").split_whitespace().collect::<Vec<_>>().join(" ");
        let kept = std::fs::read_to_string(&file).unwrap();
        assert!(
            words(&kept) == words(&made),
            "{} is stale: DEEPINFER_WRITE_ACL_BINDINGS=1 writes it when this test runs",
            file.display()
        );
    }
}

/// What an import says of functions, constants and layouts, in forms that can be compared.
struct Import {
    /// Types of parameters and result, by name.
    functions: BTreeMap<String, String>,
    constants: BTreeMap<String, String>,
    /// "Size of X", "Offset of field: X::y", each with its number.
    layouts: BTreeSet<String>,
}

impl Import {
    fn of(text: &str) -> Self {
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut import = Self { functions: BTreeMap::new(), constants: BTreeMap::new(), layouts: BTreeSet::new() };
        for part in text.split("pub fn ").skip(1) {
            let Some((name, rest)) = part.split_once('(') else { continue };
            let Some((declared, _)) = rest.split_once(';') else { continue };
            let (parameters, result) = declared.rsplit_once(')').unwrap_or((declared, ""));
            let types: Vec<&str> =
                parameters.split(',').filter_map(|one| one.split_once(':')).map(|(_, ty)| ty.trim()).collect();
            import.functions.insert(name.to_owned(), format!("({}){result}", types.join(", ")));
        }
        for part in text.split("pub const ").skip(1) {
            let Some((name, rest)) = part.split_once(':') else { continue };
            let value = rest.split_once('=').and_then(|(_, value)| value.split_once(';'));
            if let Some((value, _)) = value {
                import.constants.insert(name.to_owned(), value.trim().to_owned());
            }
        }
        for part in text.split("[\"").skip(1) {
            let Some((what, rest)) = part.split_once("\"]") else { continue };
            let number = rest.split_once("- ").and_then(|(_, number)| number.split_once(']'));
            if let Some((number, _)) = number {
                import.layouts.insert(format!("{what} {number}"));
            }
        }
        import
    }

    /// What of `self` another import lacks or says otherwise.
    fn differences(&self, other: &Self) -> Vec<String> {
        let mut found = Vec::new();
        for (ours, theirs) in [(&self.functions, &other.functions), (&self.constants, &other.constants)] {
            for (name, wanted) in ours {
                match theirs.get(name) {
                    None => found.push(format!("{name} is not there")),
                    Some(actual) if actual != wanted => found.push(format!("{name}: {wanted}, but really {actual}")),
                    Some(_) => {}
                }
            }
        }
        found.extend(self.layouts.difference(&other.layouts).map(|line| format!("not so: {line}")));
        found
    }
}

/// A folder in which `acl/acl.h` is.
fn real_headers() -> Option<PathBuf> {
    let named = env::var_os("DEEPINFER_ACL_INCLUDE").map(PathBuf::from);
    let installed = env::var_os("ASCEND_HOME_PATH").map(|home| Path::new(&home).join("include"));
    let found = [named, installed].into_iter().flatten().find(|folder| folder.join("acl/acl.h").is_file());
    if found.is_none() {
        eprintln!("skipped: no real header");
    }
    found
}

#[test]
fn the_header_of_ascendcl_says_what_a_real_one_says() {
    let Some(folder) = real_headers() else { return };
    let Some(builder) = importing(&ACL.header(), ACL.items) else { return };
    let ours = Import::of(&text(builder));
    assert!(ours.functions.len() > 30 && ours.constants.len() > 40 && ours.layouts.len() > 8, "little was imported");
    let real = importing(&folder.join("acl/acl.h"), ACL.items).expect("libclang is there");
    let real = Import::of(&text(real.clang_arg("-I").clang_arg(folder.to_string_lossy())));
    let differences = ours.differences(&real);
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    eprintln!(
        "compared {} functions, {} constants and {} sizes and offsets",
        ours.functions.len(),
        ours.constants.len(),
        ours.layouts.len()
    );
}

/// The comparison finds what differs: a control.
#[test]
fn the_comparison_of_headers_finds_differences() {
    let real = Import::of("pub fn a(x: u32, y: *mut u8) -> i32; pub const B: u32 = 7; [\"Size of C\"][f() - 8usize];");
    let same = Import::of("pub fn a(p: u32, q: *mut u8) -> i32; pub const B: i32 = 7;");
    assert!(same.differences(&real).is_empty());
    let other = Import::of(
        "pub fn a(x: u64, y: *mut u8) -> i32; pub fn d(); pub const B: u32 = 8; [\"Size of C\"][f() - 4usize];",
    );
    assert_eq!(
        other.differences(&real),
        [
            "a: (u64, *mut u8) -> i32, but really (u32, *mut u8) -> i32",
            "d is not there",
            "B: 8, but really 7",
            "not so: Size of C 4usize"
        ]
    );
}
