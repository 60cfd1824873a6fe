//! CANN's compiler for the device.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::images::{Compiler, relative};

/// Where a toolkit keeps the compiler.
const PLACES: [&str; 3] = ["bin/bisheng", "compiler/ccec_compiler/bin/bisheng", "tools/bisheng_compiler/bin/bisheng"];

/// Contraction is off because the scalar pipe has to round as the contracts say.
const FLAGS: [&str; 7] = ["-x", "asc", "-O2", "-std=c++17", "-ffp-contract=off", "--npu-arch=dav-3510", "-shared"];

/// `bisheng` of an installed toolkit.
pub(crate) struct Bisheng {
    root: PathBuf,
    program: PathBuf,
    identity: String,
}

impl Bisheng {
    /// Looks below `ASCEND_HOME_PATH`.
    pub(crate) fn find(root: &Path) -> Result<Self, String> {
        const OTHERWISE: &str = "leave DEEPINFER_ASCEND unset for the host twin";
        let home = env::var_os("ASCEND_HOME_PATH").filter(|home| !home.is_empty()).map(PathBuf::from);
        let home = home.ok_or_else(|| {
            format!(
                "ASCEND_HOME_PATH, which names the CANN toolkit, is not set: source CANN's set_env.sh, or {OTHERWISE}"
            )
        })?;
        if !home.is_dir() {
            return Err(format!(
                "ASCEND_HOME_PATH is \"{}\", which is no folder: name that of the CANN toolkit, as its set_env.sh does, or {OTHERWISE}",
                home.display()
            ));
        }
        let program = PLACES.iter().map(|place| home.join(place)).find(|path| path.is_file());
        let program = program.ok_or_else(|| {
            format!(
                "the folder of ASCEND_HOME_PATH, \"{}\", has no compiler bisheng (looked for {}): install the development part of the \
                 CANN toolkit, or {OTHERWISE}",
                home.display(),
                PLACES.join(", ")
            )
        })?;
        println!("cargo::rerun-if-changed={}", program.display());
        let printed = Command::new(&program).arg("--version").output();
        let printed = printed.map_err(|e| format!("{} does not run: {e}; or {OTHERWISE}", program.display()))?;
        let identity = format!("{}{FLAGS:?}", String::from_utf8_lossy(&printed.stdout));
        Ok(Self { root: root.to_owned(), program, identity })
    }
}

impl Compiler for Bisheng {
    fn root(&self) -> &Path {
        &self.root
    }

    fn identity(&self) -> &str {
        &self.identity
    }

    fn shared(&self, _source: &Path) -> Vec<PathBuf> {
        vec![self.root.join("kernels/common")]
    }

    fn run(&self, source: &Path, image: &Path) -> Result<(), String> {
        let mut command = Command::new(&self.program);
        command.current_dir(&self.root).args(FLAGS).args(["-I", "kernels"]);
        let run = command.arg(relative(source, &self.root)).arg("-o").arg(image).output();
        let run = run.map_err(|e| format!("{} does not run: {e}", self.program.display()))?;
        if run.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&run.stderr);
        Err(format!("{} is not compiled ({}):\n{said}", relative(source, &self.root).display(), run.status))
    }
}
