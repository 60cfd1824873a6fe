//! Running the binary.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// Variables that change what the command does, besides those that begin with [`PREFIX`].
const VARIABLES: [&str; 2] = ["RUST_LOG", "NO_COLOR"];
/// Those of the program, and of plugins.
const PREFIX: &[u8] = b"DEEPINFER_";

/// What a finished command left.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// The command, on the processor and otherwise without settings from outside.
pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_deepinfer"));
    let ours = std::env::vars_os().map(|(name, _)| name).filter(|name| name.as_bytes().starts_with(PREFIX));
    for name in ours.chain(VARIABLES.map(OsString::from)) {
        command.env_remove(name);
    }
    // What the user has installed is none of a test's business.
    command.env("XDG_DATA_HOME", "/nonexistent");
    // Faults on purpose leave dumps.
    command.env("DEEPINFER_FLIGHT_RECORDER", env!("CARGO_TARGET_TMPDIR"));
    command.env("DEEPINFER_ACCELERATOR", "cpu").args(args).stdin(Stdio::null());
    command
}

/// Runs the command.
pub(crate) fn deepinfer(args: &[&str]) -> Run {
    finish(&mut command(args))
}

/// Runs the command with `input` on its standard input.
pub(crate) fn deepinfer_reading(args: &[&str], input: &[u8]) -> Run {
    let mut child = command(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    // Beside the reading, so that neither side waits for the other.
    let writer = std::thread::spawn(move || {
        // A command that refuses its arguments does not read.
        let _ = stdin.write_all(&input);
    });
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    run_of(output)
}

/// Runs a prepared command.
pub(crate) fn finish(command: &mut Command) -> Run {
    run_of(command.output().unwrap())
}

fn run_of(output: Output) -> Run {
    let text = |bytes| String::from_utf8(bytes).expect("the command writes UTF-8");
    Run { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

impl Run {
    /// The command did its work; returns standard output.
    #[track_caller]
    pub(crate) fn succeeded(&self) -> &str {
        assert!(
            !self.stderr.contains("there is no accelerator backend \"cpu\""),
            "the plugin is not built; run `cargo build -p deepinfer-cpu-reference`, or the tests of the whole workspace"
        );
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        &self.stdout
    }

    /// The command did its work and had nothing to say about it.
    #[track_caller]
    pub(crate) fn succeeded_quietly(&self) -> &str {
        let stdout = self.succeeded();
        assert_eq!(self.stderr, "");
        stdout
    }

    /// The command refused its input with one sentence that has all these parts, and printed nothing else.
    #[track_caller]
    pub(crate) fn refused(&self, parts: &[&str]) {
        let Self { code, stdout, stderr } = self;
        assert_eq!(*code, Some(2), "{stderr}");
        assert_eq!(stdout, "", "{stderr}");
        assert!(stderr.starts_with("error: "), "{stderr}");
        assert_eq!(stderr.matches("error:").count(), 1, "one error: {stderr}");
        assert!(!stderr.contains("panicked"), "{stderr}");
        for part in parts {
            assert!(stderr.contains(part), "{part:?} is missing in: {stderr}");
        }
    }

    /// The lines of JSON that the command printed.
    #[track_caller]
    pub(crate) fn lines(&self) -> Vec<Value> {
        json_lines(self.succeeded())
    }
}

#[track_caller]
pub(crate) fn json_lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

/// A file of the repository.
pub(crate) fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}
