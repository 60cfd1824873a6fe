//! `deepinfer plugin`: for authors of plugins.

mod new;

use crate::args::PluginCommand;
use crate::failure::Failure;

/// Runs the command.
///
/// # Errors
/// As the subcommand.
pub(crate) fn run(command: &PluginCommand) -> Result<(), Failure> {
    match command {
        PluginCommand::New(args) => new::run(args),
    }
}
