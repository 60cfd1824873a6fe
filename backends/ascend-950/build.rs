//! Compiles the kernels: one image per file of `kernels/`, embedded in the library.
//!
//! - `DEEPINFER_ASCEND=twin`, which is the default: for the host twin, by the C++ compiler; the fake runtime is embedded, too.
//! - `DEEPINFER_ASCEND=cann`: for the device, by CANN's `bisheng` below `ASCEND_HOME_PATH`.
//! - `DEEPINFER_ASCEND=none`: a plugin without kernels, which lists no device and says why. So is one that was built for the twin
//!   where there is no C++ compiler.
//!
//! What the user can mend is an error of Cargo, one line for each of its own, and no panic.

#[path = "build/cann.rs"]
mod cann;
#[path = "build/images.rs"]
mod images;
#[path = "build/twin.rs"]
mod twin;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::{env, fs};

/// What `src/image.rs` includes.
struct Built {
    /// `twin`, `cann` or `none`, and why there is none.
    mode: &'static str,
    problem: String,
    /// One file per kernel, in their order.
    images: Vec<Option<PathBuf>>,
    /// The fake runtime.
    fake: Option<PathBuf>,
}

// A test calls it, too.
pub(crate) fn main() {
    // Cargo ends the build after an error, whatever the exit code; with one that says so, it prints all of the output once more.
    if let Err(problem) = build() {
        problem.lines().for_each(|line| println!("cargo::error={line}"));
    }
}

/// # Errors
/// The mode is unknown, CANN is not there, or a file does not compile.
fn build() -> Result<(), String> {
    for variable in ["DEEPINFER_ASCEND", "ASCEND_HOME_PATH", "CXX", "CXXFLAGS"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    for folder in ["kernels", "twin", "fake", "include", "build"] {
        println!("cargo::rerun-if-changed={folder}");
    }
    println!("cargo::rustc-check-cfg=cfg(ascend_twin)");
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("Cargo sets it"));
    let output = PathBuf::from(env::var_os("OUT_DIR").expect("Cargo sets it"));
    let names = images::names(&root.join("kernels"));
    let nothing = |problem: String| Built { mode: "none", problem, images: vec![None; names.len()], fake: None };
    let mode = env::var_os("DEEPINFER_ASCEND").filter(|mode| !mode.is_empty());
    let mode = mode.map_or("twin".into(), |mode| mode.to_string_lossy().into_owned());
    let built = match mode.as_str() {
        "none" => nothing(
            "DEEPINFER_ASCEND=none was set when it was built; build it again with DEEPINFER_ASCEND=cann for a device (that needs \
             CANN's compiler), or without the variable for the host twin"
                .to_owned(),
        ),
        "cann" => {
            let compiler = cann::Bisheng::find(&root).map_err(|problem| format!("DEEPINFER_ASCEND=cann: {problem}"))?;
            let images = images::compile(&compiler, &names, &output)?;
            Built { mode: "cann", problem: String::new(), images: images.into_iter().map(Some).collect(), fake: None }
        }
        "twin" => match twin::Gcc::find(&root, &output, cc::Build::new().opt_level(3).clone()) {
            Ok(compiler) => {
                println!("cargo::rustc-cfg=ascend_twin");
                let images = images::compile(&compiler, &names, &output)?.into_iter().map(Some).collect();
                let fake = Some(compiler.fake(&output)?);
                Built { mode: "twin", problem: String::new(), images, fake }
            }
            Err(problem) => {
                println!("cargo::warning=the ascend backend is built without its kernels: {problem}");
                nothing(format!(
                    "{problem}; build it again with GCC or Clang, which CXX names, for the host twin, or with \
                     DEEPINFER_ASCEND=cann for a device (that needs CANN's compiler)"
                ))
            }
        },
        other => {
            return Err(format!(
                "DEEPINFER_ASCEND is {other:?}: the values are twin (for the host twin, as without the variable), cann (for a device, \
                 by CANN's compiler) and none (no kernels)"
            ));
        }
    };
    fs::write(output.join("images.rs"), table(&names, &built)).expect("OUT_DIR is writable");
    Ok(())
}

/// A constant per kernel file, and what was built.
fn table(names: &[String], built: &Built) -> String {
    let bytes = |file: &Option<PathBuf>| match file {
        Some(path) => format!("include_bytes!({:?})", path.display().to_string()),
        None => "&[]".to_owned(),
    };
    let mut text = format!(
        "/// Kernel files.\npub(crate) const COUNT: usize = {};\n\
         /// `twin`, `cann` or `none`.\npub(crate) const MODE: &str = {:?};\n\
         /// Why there are no kernels.\npub(crate) const PROBLEM: &str = {:?};\n\
         /// The fake runtime, for the twin.\npub(crate) static FAKE: &[u8] = {};\n",
        names.len(),
        built.mode,
        built.problem,
        bytes(&built.fake)
    );
    for (index, (name, image)) in names.iter().zip(&built.images).enumerate() {
        writeln!(
            text,
            "/// `kernels/{name}.cpp`.\npub(crate) static {}: Image = Image {{ index: {index}, name: {name:?}, bytes: {} }};",
            name.to_uppercase(),
            bytes(image)
        )
        .expect("a string grows");
    }
    let all: Vec<String> = names.iter().map(|name| format!("&{}", name.to_uppercase())).collect();
    writeln!(text, "/// All of them, by their names.\npub(crate) static ALL: [&Image; COUNT] = [{}];", all.join(", "))
        .expect("a string grows");
    text
}
