//! Where panics end: nothing may unwind across the boundary.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::abi::DiError;
use crate::sdk::{Fault, FaultCode};

/// Runs what a plugin does for its caller and turns panics into faults. After a panic the plugin's state is unknown:
/// it is *poisoned*, and everything but waiting is refused.
pub struct Containment {
    name: &'static str,
    poisoned: AtomicBool,
    /// Message of the first panic, which every refusal repeats: the caller may meet the refusal first.
    cause: OnceLock<String>,
}

impl Containment {
    /// For the plugin of this name.
    pub const fn new(name: &'static str) -> Self {
        Self { name, poisoned: AtomicBool::new(false), cause: OnceLock::new() }
    }

    /// Name of the plugin.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Whether there was a panic.
    pub fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Relaxed)
    }

    /// Runs `body`, which is the function or op `what` of the boundary.
    ///
    /// # Errors
    /// The fault of the body; [`FaultCode::Panic`] when it panics, and from then on.
    pub fn run<T>(&self, what: &str, body: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
        self.refuse_poisoned()?;
        self.catch(what, body)
    }

    /// As [`Containment::run`], for a function that waits: after a panic, too, there may be work to wait for, whose
    /// memory the caller is about to free.
    ///
    /// # Errors
    /// As [`Containment::run`].
    pub fn wait(&self, what: &str, body: impl FnOnce() -> Result<(), Fault>) -> Result<(), Fault> {
        self.catch(what, body).and_then(|()| self.refuse_poisoned())
    }

    /// As [`Containment::run`], with the outcome as the boundary wants it: null, or an error whose origin is `name/what`.
    /// This is on the path of every call: success is a null pointer all the way.
    #[inline]
    pub fn call(&self, what: &str, body: impl FnOnce() -> Result<(), Fault>) -> *mut DiError {
        self.call_part("", what, body)
    }

    /// As [`Containment::call`], for one of several functions of `what`: a panic in `part` names it, as in "panic in plan
    /// of rstd".
    #[inline]
    pub fn call_part(&self, part: &str, what: &str, body: impl FnOnce() -> Result<(), Fault>) -> *mut DiError {
        if self.is_poisoned() {
            return self.to_raw(what, self.refuse_poisoned());
        }
        let result = catch_unwind(AssertUnwindSafe(|| match body() {
            Ok(()) => std::ptr::null_mut(),
            Err(fault) => self.to_raw(what, self.note_panic(Err(fault))),
        }));
        result.unwrap_or_else(|payload| {
            let place = if part.is_empty() { what.to_owned() } else { format!("{part} of {what}") };
            self.to_raw(what, self.note_panic(Err(panic_fault(&place, &*payload))))
        })
    }

    /// An outcome of [`Containment::run`] or [`Containment::wait`] as the boundary wants it.
    #[cold]
    pub fn to_raw(&self, what: &str, outcome: Result<(), Fault>) -> *mut DiError {
        match outcome {
            Ok(()) => std::ptr::null_mut(),
            Err(fault) => fault.or_origin(what).into_raw(self.name),
        }
    }

    fn refuse_poisoned(&self) -> Result<(), Fault> {
        if !self.is_poisoned() {
            return Ok(());
        }
        let cause = match self.cause.get() {
            Some(cause) if cause.starts_with("panic") => format!("a {cause}"),
            Some(cause) => format!("a panic: {cause}"),
            None => "a panic".to_owned(),
        };
        let name = self.name;
        Err(Fault::new(FaultCode::Panic, format!("{name} is unusable after {cause}; restart the process")))
    }

    fn catch<T>(&self, what: &str, body: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
        let result = catch_unwind(AssertUnwindSafe(body));
        self.note_panic(result.unwrap_or_else(|payload| Err(panic_fault(what, &*payload))))
    }

    /// Poisons if there was a panic; one that was caught on another thread arrives as a fault.
    fn note_panic<T>(&self, result: Result<T, Fault>) -> Result<T, Fault> {
        if let Err(fault) = &result
            && fault.code == FaultCode::Panic
        {
            self.cause.get_or_init(|| fault.message.clone());
            self.poisoned.store(true, Ordering::Relaxed);
        }
        result
    }
}

thread_local! {
    /// Where the panic arose that this thread is about to catch.
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// The fault of a panic in `what` that this thread has just caught.
#[cold]
pub(crate) fn panic_fault(what: &str, payload: &(dyn std::any::Any + Send)) -> Fault {
    Fault::new(FaultCode::Panic, format!("panic in {what}: {}", panic_text(payload)))
}

/// Text of a panic that this thread has just caught, on one line, with file and line of the source where they are known:
/// [`connect`](crate::sdk::connect) sees to that.
pub fn panic_text(payload: &(dyn std::any::Any + Send)) -> String {
    // A thread that is ending has no such variable any more.
    let place = PLACE.try_with(|place| place.take()).ok().flatten();
    match place {
        Some(place) => format!("{} ({place})", message_of(payload)),
        None => message_of(payload),
    }
}

/// Remembers where a panic arose, for [`panic_text`]; gives a line for the log.
pub(crate) fn note_place(info: &PanicHookInfo<'_>) -> String {
    let message = message_of(info.payload());
    let Some(at) = info.location().map(|at| format!("{}:{}", at.file(), at.line())) else { return message };
    let line = format!("panic at {at}: {message}");
    // As above.
    let _ = PLACE.try_with(|place| place.replace(Some(at)));
    line
}

/// What a panic says, its lines joined: those of `assert_eq!` are three.
fn message_of(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let lines = text.unwrap_or("a panic without a message").lines().map(str::trim);
    lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_panic_only_waiting_is_left() {
        let containment = Containment::new("npu");
        assert_eq!(containment.run("gather", || Ok(3)).unwrap(), 3);
        assert_eq!(containment.run::<()>("gather", || Err(Fault::invalid("index"))).unwrap_err().message, "index");
        assert!(!containment.is_poisoned());
        let fault = containment.run::<()>("gather", || panic!("row {}", 7)).unwrap_err();
        assert_eq!((fault.code, fault.message.as_str()), (FaultCode::Panic, "panic in gather: row 7"));
        let refusal = "npu is unusable after a panic in gather: row 7; restart the process";
        assert_eq!(containment.run("rope", || Ok(())).unwrap_err().message, refusal);
        let mut waited = false;
        let fault = containment.wait("stream_sync", || {
            waited = true;
            Ok(())
        });
        assert_eq!((waited, fault.unwrap_err().message.as_str()), (true, refusal));
    }

    #[test]
    fn the_text_of_a_panic_is_one_line() {
        let caught = catch_unwind(|| assert_eq!(1 + 1, 3, "rows")).unwrap_err();
        assert_eq!(panic_text(&*caught), "assertion `left == right` failed: rows, left: 2, right: 3");
    }

    #[test]
    fn a_panic_of_another_thread_poisons_when_it_is_reported() {
        let containment = Containment::new("npu");
        let fault = containment.wait("stream_sync", || Err(Fault::new(FaultCode::Panic, "panic in gather: x")));
        assert_eq!(fault.unwrap_err().message, "panic in gather: x");
        assert!(containment.is_poisoned());
    }
}
