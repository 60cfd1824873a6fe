//! The command line.

mod generate;
pub(crate) mod model;
pub(crate) mod sampling;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use deepinfer_runtime::TEXT_PROFILE;

use crate::numbers::whole;
use crate::parity::{Levels, levels};
use crate::telemetry::TelemetryArgs;

pub(crate) use self::generate::GenerateArgs;
pub(crate) use self::model::ModelArgs;

/// Most cases of one check.
const MOST_CASES: u64 = 1 << 20;
/// Longest time limit.
const MOST_SECONDS: u64 = 86_400;
/// Most requests of a memory plan.
const MOST_REQUESTS: u64 = 1 << 20;

/// Runs DeepSeek-V4.1-Flash on accelerator plugins.
#[derive(Debug, Parser)]
#[command(name = "deepinfer", version, arg_required_else_help = true)]
#[command(after_help = "\
Exit codes: 0 done (also when the reader of the output goes away), 1 a fault while running, 2 bad input.
RUST_LOG sets what is logged to standard error, for example RUST_LOG=info; warnings by default.")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Generate(Box<GenerateArgs>),
    #[cfg(feature = "chat")]
    Chat(crate::chat::ChatArgs),
    Inspect(InspectArgs),
    Backends(BackendsArgs),
    Doctor(DoctorArgs),
    Parity(ParityArgs),
    Replay(ReplayArgs),
    Verify(crate::verify::VerifyArgs),
    /// Measure speed
    #[command(subcommand)]
    Bench(crate::bench::BenchCommand),
    /// For authors of plugins
    #[command(subcommand)]
    Plugin(PluginCommand),
    /// Runs cases for `parity`, which starts it
    #[command(hide = true)]
    ParityWorker,
    /// Loads one plugin for reports, which start it
    #[command(hide = true)]
    PluginWorker(PluginWorkerArgs),
    /// Runs a cell for `verify`, which starts it
    #[command(hide = true)]
    VerifyWorker(crate::verify::VerifyWorkerArgs),
}

impl Command {
    /// What is told of the engine, if the command runs one.
    pub(crate) fn telemetry(&self) -> Option<&TelemetryArgs> {
        match self {
            Self::Generate(args) => Some(&args.telemetry),
            #[cfg(feature = "chat")]
            Self::Chat(args) => Some(&args.telemetry),
            _ => None,
        }
    }
}

/// Report what a model is made of and the memory it takes
///
/// Reads the configuration and the headers of the weight files, no weights.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deepinfer inspect /models/v41-flash --check
  deepinfer inspect config.json --context 32768 --requests 8
  deepinfer inspect --json")]
pub(crate) struct InspectArgs {
    /// Directory of a model, or a config.json alone
    ///
    /// The default is the directory in DEEPINFER_HF_MODEL_DIR, else the small model that is part of the program.
    #[arg(value_name = "DIR|config.json")]
    pub(crate) path: Option<PathBuf>,

    /// Verify name, shape and format of every tensor, no values; the exit code is 2 if one is wrong
    #[arg(long)]
    pub(crate) check: bool,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Tokens of a request in the memory plan [default: the whole context of the model]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole::<usize>(1..=u64::MAX))]
    pub(crate) context: Option<usize>,

    /// Requests in memory at once in the memory plan
    #[arg(long, value_name = "N", default_value = "1", allow_negative_numbers = true, value_parser = whole::<usize>(1..=MOST_REQUESTS))]
    pub(crate) requests: usize,
}

/// Report the accelerator plugins that are found, their devices and ops, why any is refused, and which one is selected
#[derive(Debug, Args)]
#[command(after_help = "\
Plugins are manifests (NAME.deepinfer.json) with the library that they name, and libraries without one whose
name is lib*deepinfer_*.so. They are searched in the directories of DEEPINFER_PLUGIN_PATH (absolute,
colon-separated); in deepinfer/plugins of $XDG_DATA_HOME, else of ~/.local/share; in the folder deps beside the
program; beside the program; in ../lib/deepinfer/plugins from there, /usr/local/lib/deepinfer/plugins and
/usr/lib/deepinfer/plugins. A plugin that is selected by its path is reported first, wherever it lies. The last
line tells what is selected. Each plugin is loaded in a process of its own: one that crashes or hangs is refused.")]
pub(crate) struct BackendsArgs {
    /// Select this instead of DEEPINFER_ACCELERATOR: auto, NAME or PATH, as in `generate`
    #[arg(long, value_name = "NAME|PATH")]
    pub(crate) accelerator: Option<String>,

    /// Longest time for one plugin to load
    #[arg(long, value_name = "SECONDS", default_value = "60", allow_negative_numbers = true, value_parser = whole::<u64>(1..=MOST_SECONDS))]
    pub(crate) timeout: u64,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Report the machine, its drivers, the plugins, and what is selected with the present settings
#[derive(Debug, Args)]
#[command(after_help = "\
Reads /sys and /proc, loads every plugin in a process of its own, and never fails because a part does.
DEEPINFER_ACCELERATOR, DEEPINFER_LAYERS and DEEPINFER_PLUGIN_PATH are shown and used. `deepinfer plugin doctor`
explains the selection alone, `deepinfer plugin inspect` one plugin.")]
pub(crate) struct DoctorArgs {
    /// Longest time for one plugin to load
    #[arg(long, value_name = "SECONDS", default_value = "60", allow_negative_numbers = true, value_parser = whole::<u64>(1..=MOST_SECONDS))]
    pub(crate) timeout: u64,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Longest time for a case of parity, in seconds, where nothing is said.
pub(crate) const CASE_SECONDS: u64 = 10;

/// Test a backend: every op against oracles, memory and streams, determinism, a small model
#[derive(Debug, Args)]
#[command(after_help = "\
Levels:
  L0  loading, other cores, structs of every length, unknown values, promises that are kept
  L1  memory, copies, fills, streams, events, threads
  L2  ops against oracles in 64-bit floats; empty, wrong and malformed arguments; memory around the tensors
  L3  the small model in the program makes the tokens that it makes on the processor
  L4  the same bits again, with strides, over any memory and workspace, for a row alone and in company, on two streams
  L5  recorded work and its replay; memory that is given back; threads after the shutdown

Failures of one cause are one line FOUND, with the name of the kind of fault.

The cases run in a worker process. One that crashes or hangs is a failure by its name, and a new worker does the others.
A form of an op that the backend declines is not supported, which is no failure, unless nothing is left of an
op that the profile requires.

Exit codes: 0 all as expected, 1 something failed, passed unexpectedly or is missing, 2 wrong arguments, or the
backend does not load.

Examples:
  deepinfer parity --backend cpu
  deepinfer parity --backend ./libdeepinfer_mine.so --level L0,L1 --profile none
  deepinfer parity --backend mine --expect-failures known.txt --junit parity.xml --html parity.html")]
pub(crate) struct ParityArgs {
    /// Backend: its name or the path of the plugin, as in `generate`
    #[arg(long, value_name = "NAME|PATH")]
    pub(crate) backend: String,

    /// Ops to test, or `load`, `memory`, `stream`, `device`, `miniature`: names apart by commas; * and ? are wildcards
    #[arg(long, value_name = "GLOB,..", default_value = "*", hide_default_value = true, value_delimiter = ',')]
    pub(crate) ops: Vec<String>,

    /// Cases to run: OP/CHECK/N as a failure names it, CHECK/N, or N alone for every check; * and ? are wildcards
    #[arg(long, value_name = "GLOB")]
    pub(crate) case: Option<String>,

    /// Print the names of the cases that would run, one a line, and run none
    #[arg(long)]
    pub(crate) list: bool,

    /// Levels, as L0,L2 or L0..L5
    #[arg(long, value_name = "LEVELS", default_value = "L0..L5", value_parser = levels)]
    pub(crate) level: Levels,

    /// Seed of the arguments
    #[arg(long, value_name = "S", default_value = "0", allow_negative_numbers = true, value_parser = whole::<u64>(0..=u64::MAX))]
    pub(crate) seed: u64,

    /// Cases of each check of an op [default: as many as cover its formats]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole::<usize>(1..=MOST_CASES))]
    pub(crate) cases: Option<usize>,

    /// Longest time for one case
    #[arg(long, value_name = "SECONDS", default_value_t = CASE_SECONDS, allow_negative_numbers = true, value_parser = whole::<u64>(1..=MOST_SECONDS))]
    pub(crate) timeout: u64,

    /// Write the results as JSON; - is standard output, and the figures for people then go to standard error
    #[arg(long, value_name = "FILE.json")]
    pub(crate) report: Option<PathBuf>,

    /// Write the results as JUnit XML
    #[arg(long, value_name = "FILE.xml")]
    pub(crate) junit: Option<PathBuf>,

    /// Write the results as a page with a heat map of errors
    #[arg(long, value_name = "FILE.html")]
    pub(crate) html: Option<PathBuf>,

    /// Layers over the backend, as in DEEPINFER_LAYERS, which counts without this option; what they report is a failure
    #[arg(long, value_name = "LAYERS")]
    pub(crate) layers: Option<String>,

    /// Keep the call of every op case that fails as a file in this folder, for `replay`
    ///
    /// The reports name the files. Calls that are wrong on purpose are not kept.
    #[arg(long, value_name = "DIR")]
    pub(crate) bundles: Option<PathBuf>,

    /// Failures that are known: a file of lines `op[/case] # reason`, with wildcards
    #[arg(long, value_name = "FILE")]
    pub(crate) expect_failures: Option<PathBuf>,

    /// Profile whose ops the backend must have; `none` requires nothing
    #[arg(long, value_name = "PROFILE", default_value = TEXT_PROFILE)]
    pub(crate) profile: String,
}

/// Make one recorded call again and hold the result to the oracle
///
/// Bundles are files that `parity --bundles` and the validation layer write: a call of an op with all its arguments,
/// and what a backend gave for it. The call is made in another process.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 the result is within the contract of the op (and has the bits of the other backend), 1 it is not,
or the call failed, 2 the bundle or a backend is refused, or the backend declines the call.

Examples:
  deepinfer replay rstd.value.3.seed-0.dibundle.safetensors --backend ./libdeepinfer_mine.so
  deepinfer replay rstd.value.3.seed-0.dibundle.safetensors --backend mine --against cpu --json")]
pub(crate) struct ReplayArgs {
    /// File with the call
    #[arg(value_name = "BUNDLE")]
    pub(crate) bundle: PathBuf,

    /// Backend: its name or the path of the plugin, as in `generate`
    #[arg(long, value_name = "NAME|PATH")]
    pub(crate) backend: String,

    /// Compare the bits with those of this backend
    #[arg(long, value_name = "NAME|PATH")]
    pub(crate) against: Option<String>,

    /// Longest time for the call
    #[arg(long, value_name = "SECONDS", default_value = "10", allow_negative_numbers = true, value_parser = whole::<u64>(1..=MOST_SECONDS))]
    pub(crate) timeout: u64,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PluginCommand {
    New(PluginNewArgs),
    Inspect(PluginInspectArgs),
    Doctor(PluginDoctorArgs),
}

/// Report everything that one plugin says of itself
///
/// The handshake, devices and their memory spaces and links, every op implementation, what is missing of each profile,
/// the plugin's own ops, optional tables. The plugin is loaded in a process of its own.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 it loads, 2 it does not; standard error says why.

Examples:
  deepinfer plugin inspect mine
  deepinfer plugin inspect ./libdeepinfer_mine.so
  deepinfer plugin inspect mine.deepinfer.json --json")]
pub(crate) struct PluginInspectArgs {
    /// Name of a backend that is found, or the file of a plugin: its library or its manifest
    #[arg(value_name = "NAME|FILE")]
    pub(crate) plugin: String,

    /// Options that it gets, as key=value&key=value
    #[arg(long, value_name = "OPTIONS", default_value = "", hide_default_value = true)]
    pub(crate) options: String,

    /// Longest time for the plugin to load
    #[arg(long, value_name = "SECONDS", default_value = "60", allow_negative_numbers = true, value_parser = whole::<u64>(1..=MOST_SECONDS))]
    pub(crate) timeout: u64,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Explain how a backend is selected: every candidate in the order of the search, and why it is taken or not
#[derive(Debug, Args)]
pub(crate) struct PluginDoctorArgs {
    /// Select this instead of DEEPINFER_ACCELERATOR: auto, NAME or PATH, as in `generate`
    #[arg(long, value_name = "NAME|PATH")]
    pub(crate) accelerator: Option<String>,

    /// Longest time for one plugin to load
    #[arg(long, value_name = "SECONDS", default_value = "60", allow_negative_numbers = true, value_parser = whole::<u64>(1..=MOST_SECONDS))]
    pub(crate) timeout: u64,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PluginWorkerArgs {
    /// Library or manifest
    pub(crate) path: PathBuf,

    /// Options that it gets
    #[arg(long, default_value = "")]
    pub(crate) options: String,

    /// Put the layers of DEEPINFER_LAYERS over it
    #[arg(long)]
    pub(crate) layers: bool,
}

/// Write a project of a backend that builds at once: one working op, and the list of the others
///
/// The project has the devices, memory and streams of a backend in host memory, the op gather, a manifest, a CI
/// job, and a file that lists every other op of the text model with its signature, meaning and contract.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  deepinfer plugin new my-npu --lang c
  deepinfer plugin new my-npu --lang rust --dir ~/src/deepinfer-my-npu")]
pub(crate) struct PluginNewArgs {
    /// Name of the backend, by which it is selected: lower-case words with hyphens, as my-npu
    pub(crate) name: String,

    /// Language
    #[arg(long, value_name = "LANG", value_enum)]
    pub(crate) lang: Language,

    /// Folder to write, which must not exist or be empty [default: NAME in the current folder]
    #[arg(long, value_name = "PATH")]
    pub(crate) dir: Option<PathBuf>,

    /// Of a Rust project, the folder plugin-api of DeepInfer [default: that from which this program was built]
    #[arg(long, value_name = "PATH")]
    pub(crate) sdk: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Language {
    Rust,
    /// C11
    C,
    /// C++17
    Cpp,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Arguments::command().debug_assert();
    }
}
