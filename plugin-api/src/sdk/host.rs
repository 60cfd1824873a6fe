//! What the core offers to a plugin: its log.

#![allow(unsafe_code)]

use std::fmt::Display;
use std::mem::offset_of;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::abi::{DI_LOG_DEBUG, DI_LOG_ERROR, DI_LOG_INFO, DI_LOG_WARN, DiHostApi, DiStr};
use crate::sdk::contain::note_place;

/// How much a log line matters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogLevel {
    /// Something failed.
    Error,
    /// Something is not as it should be.
    Warn,
    /// What a user may want to know.
    Info,
    /// What a developer may want to know.
    Debug,
}

impl LogLevel {
    const fn raw(self) -> i32 {
        match self {
            LogLevel::Error => DI_LOG_ERROR,
            LogLevel::Warn => DI_LOG_WARN,
            LogLevel::Info => DI_LOG_INFO,
            LogLevel::Debug => DI_LOG_DEBUG,
        }
    }
}

/// Writes a line to the core's log, with the plugin's name. Any thread; before the core has called the entry, nothing is
/// written. A line that the core would drop is not composed, where the core says so beforehand (ABI 0.2).
pub fn log(level: LogLevel, message: impl Display) {
    if let Some(host) = connected() {
        host.log(level, &message);
    }
}

/// The core's functions, and the name under which this plugin uses them.
struct Host {
    api: *const DiHostApi,
    name: &'static str,
}

static HOST: AtomicPtr<Host> = AtomicPtr::new(std::ptr::null_mut());

fn connected() -> Option<&'static Host> {
    // SAFETY: null or leaked by `connect`.
    unsafe { HOST.load(Ordering::Acquire).as_ref() }
}

impl Host {
    fn log(&self, level: LogLevel, message: &dyn Display) {
        let (target, level) = (lend(self.name), level.raw());
        // SAFETY: `connect` was promised a table that lives as long as the process, `struct_size` bytes of it; its
        // functions take borrowed text from any thread.
        unsafe {
            let known = (&raw const (*self.api).struct_size).read() as usize;
            let has = |offset: usize| known >= offset + size_of::<usize>();
            if has(offset_of!(DiHostApi, log_enabled))
                && let Some(is_enabled) = (*self.api).log_enabled
                && is_enabled((*self.api).user, level, target) == 0
            {
                return;
            }
            if has(offset_of!(DiHostApi, log))
                && let Some(log) = (*self.api).log
            {
                let text = message.to_string();
                log((*self.api).user, level, target, lend(&text));
            }
        }
    }
}

/// Connects [`log`] with the core, and sends the text of panics there: the library has its own standard library, whose
/// hook the core does not see, and whose default prints into the middle of the core's output.
/// [`entry`](crate::sdk::entry) does this for a backend; a layer does it when it starts. Of several plugins in one library
/// the last one gives the name.
///
/// # Safety
/// `host` is null, or the table of the entry request, which lives as long as the process.
pub unsafe fn connect(host: *const DiHostApi, name: &'static str) {
    static HOOK: Once = Once::new();
    if host.is_null() {
        HOST.store(std::ptr::null_mut(), Ordering::Release);
    } else {
        // Leaked: another thread may be writing a line.
        HOST.store(Box::leak(Box::new(Host { api: host, name })), Ordering::Release);
    }
    HOOK.call_once(|| std::panic::set_hook(Box::new(|info| log(LogLevel::Error, note_place(info)))));
}

fn lend(text: &str) -> DiStr {
    DiStr { ptr: text.as_ptr(), len: text.len() }
}

#[cfg(test)]
mod tests {
    use std::ffi::c_void;
    use std::sync::Mutex;

    use super::*;
    use crate::sdk::error::text;

    static LINES: Mutex<Vec<(i32, String, String)>> = Mutex::new(Vec::new());

    unsafe extern "C" fn write(_: *mut c_void, level: i32, target: DiStr, message: DiStr) {
        // SAFETY: borrowed text.
        let line = unsafe { (level, text(target), text(message)) };
        LINES.lock().unwrap().push(line);
    }

    unsafe extern "C" fn not_debug(_: *mut c_void, level: i32, _: DiStr) -> i32 {
        i32::from(level < DI_LOG_DEBUG)
    }

    struct Composed(&'static Mutex<u32>);

    impl Display for Composed {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            *self.0.lock().unwrap() += 1;
            f.write_str("line")
        }
    }

    #[test]
    fn lines_reach_the_core_unless_it_would_drop_them() {
        static COUNT: Mutex<u32> = Mutex::new(0);
        let user = std::ptr::null_mut();
        let (log, log_enabled) = (Some(write as _), Some(not_debug as _));
        let mut api = DiHostApi { struct_size: size_of::<DiHostApi>() as u32, reserved0: 0, user, log, log_enabled };
        let host = Host { api: &raw const api, name: "npu" };
        host.log(LogLevel::Debug, &Composed(&COUNT));
        assert_eq!(*COUNT.lock().unwrap(), 0);
        host.log(LogLevel::Warn, &Composed(&COUNT));
        // A core of 0.1, whose table ends before `log_enabled`.
        api.struct_size = offset_of!(DiHostApi, log_enabled) as u32;
        let host = Host { api: &raw const api, name: "npu" };
        host.log(LogLevel::Debug, &format_args!("{} of {}", 1, 2));
        let line = |level, text: &str| (level, "npu".to_owned(), text.to_owned());
        assert_eq!(*LINES.lock().unwrap(), [line(DI_LOG_WARN, "line"), line(DI_LOG_DEBUG, "1 of 2")]);
    }
}
