//! Plugins in C, built when a test runs.

use std::path::{Path, PathBuf};

use crate::c_compiler::{Language, compiler, repository, run};

/// Compiles `tests/plugins/SOURCE.c` with `switches` (`-DX`) to `folder/FILE`. `None` when there is no compiler.
pub(crate) fn plugin(folder: &Path, source: &str, file: &str, switches: &[&str]) -> Option<PathBuf> {
    let path = folder.join(file);
    let mut command = compiler(Language::C11)?;
    command.args(["-shared", "-fPIC", "-o"]).arg(&path).args(switches);
    run(command.arg(repository().join("tests/plugins").join(source)).arg("-lm"));
    Some(path)
}
