//! `deepinfer plugin`: for authors of plugins; and the processes in which plugins are loaded to be asked.

mod doctor;
pub(crate) mod inspect;
mod new;
pub(crate) mod probe;
pub(crate) mod survey;
pub(crate) mod worker;

pub(crate) use doctor::steps;

use crate::args::PluginCommand;
use crate::failure::Failure;

/// Runs the command.
///
/// # Errors
/// As the subcommand.
pub(crate) fn run(command: &PluginCommand) -> Result<(), Failure> {
    match command {
        PluginCommand::New(args) => new::run(args),
        PluginCommand::Inspect(args) => inspect::run(args),
        PluginCommand::Doctor(args) => doctor::run(args),
    }
}
