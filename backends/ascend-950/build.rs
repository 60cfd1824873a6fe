//! Compiles the kernels: one image per file of `kernels/`, embedded in the library.
//!
//! - `DEEPINFER_ASCEND=twin`, which is the default: for the host twin, by the C++ compiler; the fake runtime is embedded, too.
//! - `DEEPINFER_ASCEND=cann`: for the device, by CANN's `bisheng` below `ASCEND_HOME_PATH`.
//! - `DEEPINFER_ASCEND=none`: a plugin without kernels, which lists devices and opens none. So is one that was built for the
//!   twin where there is no C++ compiler.

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

fn main() {
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
    let mode = env::var("DEEPINFER_ASCEND").unwrap_or_else(|_| "twin".to_owned());
    let built = match mode.as_str() {
        "none" => nothing("DEEPINFER_ASCEND=none was set when it was built".to_owned()),
        "cann" => {
            let compiler =
                cann::Bisheng::find(&root).unwrap_or_else(|problem| panic!("DEEPINFER_ASCEND=cann: {problem}"));
            let images = images::compile(&compiler, &names, &output);
            Built { mode: "cann", problem: String::new(), images: images.into_iter().map(Some).collect(), fake: None }
        }
        "twin" => match twin::Gcc::find(&root, &output, cc::Build::new().opt_level(3).clone()) {
            Ok(compiler) => {
                println!("cargo::rustc-cfg=ascend_twin");
                let images = images::compile(&compiler, &names, &output).into_iter().map(Some).collect();
                let fake = Some(compiler.fake(&output));
                Built { mode: "twin", problem: String::new(), images, fake }
            }
            Err(problem) => {
                println!("cargo::warning=the ascend backend is built without its kernels: {problem}");
                nothing(problem)
            }
        },
        other => panic!("DEEPINFER_ASCEND={other}: there are twin (the default), cann and none"),
    };
    fs::write(output.join("images.rs"), table(&names, &built)).expect("OUT_DIR is writable");
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
    text
}
