//! What a program that loads foreign code needs of the system to stay the master of its end, and of the processes that it
//! starts.
//!
//! Plugins exit, register functions for the end of the process, and start processes of their own. `exit` runs code of theirs,
//! so that a process which must end uses a signal instead, and one whose exit code matters sets it last.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI32, Ordering};

// POSIX; the numbers are those of every Linux.
const SIGKILL: c_int = 9;
#[cfg(any(target_arch = "mips", target_arch = "mips64"))]
const SIGCHLD: c_int = 18;
#[cfg(not(any(target_arch = "mips", target_arch = "mips64")))]
const SIGCHLD: c_int = 17;
const SIG_DFL: usize = 0;

// SAFETY: the declarations are those of POSIX. Those marked safe only take numbers, and change nothing that Rust relies upon.
unsafe extern "C" {
    safe fn kill(process: c_int, signal: c_int) -> c_int;
    safe fn getpgrp() -> c_int;
    fn signal(signal: c_int, handler: usize) -> usize;
    fn atexit(function: extern "C" fn()) -> c_int;
    fn _exit(code: c_int) -> !;
    fn fflush(stream: *mut c_void) -> c_int;
}

/// Exit code of this process, once it is known.
static CODE: AtomicI32 = AtomicI32::new(UNKNOWN);
const UNKNOWN: c_int = -1;
/// Exit code of a process that a plugin has ended.
const ENDED_BY_PLUGIN: c_int = 1;

/// Lets this process wait for those that it starts, although whoever started it ignores `SIGCHLD`, which is inherited.
pub fn expect_children() {
    // SAFETY: the default action is no code.
    unsafe { signal(SIGCHLD, SIG_DFL) };
}

/// Makes the exit code the program's own: that of [`set_exit_code`], or 1 with a sentence on standard error when somebody
/// calls `exit` before. Plugins that are loaded afterwards cannot change it by `exit`; destructors of libraries do not run.
pub fn own_exit_code() {
    // SAFETY: the function lives as long as the process and does not unwind. Should there be no room for it, exit codes are
    // what they are without.
    unsafe { atexit(end_with_own_code) };
}

/// The exit code of this process, see [`own_exit_code`].
pub fn set_exit_code(code: u8) {
    CODE.store(c_int::from(code), Ordering::SeqCst);
}

extern "C" fn end_with_own_code() {
    let mut code = CODE.load(Ordering::SeqCst);
    if code == UNKNOWN {
        use std::io::Write;
        code = ENDED_BY_PLUGIN;
        // Nothing can be done about a standard error that is closed.
        let _ = std::io::stderr().write_all(b"error: a plugin ended the process by exit; its work is not done\n");
    }
    // SAFETY: null means every stream of C; what plugins have printed there would be lost otherwise.
    unsafe {
        fflush(std::ptr::null_mut());
        _exit(code)
    }
}

/// Ends the process group whose leader is (or was) this child of ours, without a last word: the child and what it started.
pub fn kill_group(leader: u32) {
    // 0 and 1 would be this process's own group and everybody.
    if let Some(leader) = c_int::try_from(leader).ok().filter(|&leader| leader > 1) {
        kill(-leader, SIGKILL);
    }
}

/// Ends this process, and its process group if it leads one, without running any code of plugins, as `exit` would.
pub fn kill_self() -> ! {
    let own = std::process::id().cast_signed();
    kill(if getpgrp() == own { -own } else { own }, SIGKILL);
    // The signal cannot be blocked.
    std::process::abort()
}
