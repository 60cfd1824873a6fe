//! Compiling and running C in tests.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Languages in which the header must compile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Language {
    C11,
    Cpp17,
}

/// The compiler with every warning an error and the present header, or `None`, with a line that says so, when the machine
/// has none.
pub(crate) fn compiler(language: Language) -> Option<Command> {
    compiler_with(language, &repository().join("plugin-api/include"))
}

/// As [`compiler`], with the header in another folder.
pub(crate) fn compiler_with(language: Language, include: &Path) -> Option<Command> {
    let target =
        format!("{}-unknown-linux-{}", std::env::consts::ARCH, if cfg!(target_env = "musl") { "musl" } else { "gnu" });
    let tool = cc::Build::new()
        .target(&target)
        .host(&target)
        .opt_level(1)
        .cargo_metadata(false)
        .cpp(language == Language::Cpp17)
        .try_get_compiler();
    let works = |path: &Path| Command::new(path).arg("--version").output().is_ok_and(|o| o.status.success());
    match tool {
        Ok(tool) if works(tool.path()) => {
            let mut command = tool.to_command();
            command.arg(if language == Language::C11 { "-std=c11" } else { "-std=c++17" });
            command.args(["-Wall", "-Wextra", "-Werror", "-I"]).arg(include);
            Some(command)
        }
        Ok(tool) => {
            eprintln!("skipped: {} does not run, so that {language:?} cannot be compiled", tool.path().display());
            None
        }
        Err(e) => {
            eprintln!("skipped: there is no compiler for {language:?}: {e}");
            None
        }
    }
}

/// Runs a command that must succeed and returns what it printed.
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|e| panic!("{:?}: {e}", command.get_program()));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (program, errors) = (command.get_program(), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program:?} {:?}:\n{text}{errors}", command.get_args());
    text
}

/// Root of the repository.
pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests crate lies in the repository").to_owned()
}
