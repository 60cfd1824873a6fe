//! Processes that are started to contain what a plugin does.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// How a process ended, in words.
pub(crate) fn how_it_ended(status: ExitStatus) -> String {
    let Some(signal) = status.signal() else {
        return format!("the process exited with code {}", status.code().unwrap_or(-1));
    };
    // Those that a program brings upon itself; their numbers are the same on every Linux.
    let name = match signal {
        4 => " (SIGILL)",
        6 => " (SIGABRT)",
        7 => " (SIGBUS)",
        8 => " (SIGFPE)",
        9 => " (SIGKILL)",
        11 => " (SIGSEGV)",
        _ => "",
    };
    format!("killed by signal {signal}{name}")
}
