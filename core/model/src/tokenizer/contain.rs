//! A fence around code of others that may panic on unusual input.

use std::any::Any;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    static CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`; a panic becomes its message. The panic hook stays silent meanwhile, since the message goes into an error.
/// The first call puts a hook in front of the one that is set then.
///
/// `work` must leave nothing broken behind that is used after a panic.
pub(super) fn contain<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    static SILENCED: Once = Once::new();
    SILENCED.call_once(|| {
        let reported = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !CONTAINED.get() {
                reported(info);
            }
        }));
    });
    CONTAINED.set(true);
    let outcome = panic::catch_unwind(AssertUnwindSafe(work));
    CONTAINED.set(false);
    outcome.map_err(|payload| message(payload.as_ref()))
}

fn message(payload: &(dyn Any + Send)) -> String {
    let literal = payload.downcast_ref::<&str>().map(|&text| text.to_owned());
    literal.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no reason given".to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_contained_panic_is_an_error_and_reaches_no_hook() {
        static REPORTS: AtomicUsize = AtomicUsize::new(0);
        let standard = panic::take_hook();
        panic::set_hook(Box::new(move |info| match info.payload().downcast_ref::<&str>() {
            Some(text) if text.starts_with("counted") => {
                REPORTS.fetch_add(1, Ordering::Relaxed);
            }
            _ => standard(info),
        }));
        assert_eq!(contain(|| 7), Ok(7));
        assert_eq!(contain(|| -> u8 { panic!("counted inside") }), Err("counted inside".to_owned()));
        let number = 3;
        assert_eq!(contain(|| -> u8 { panic!("item {number}") }), Err("item 3".to_owned()));
        assert_eq!(REPORTS.load(Ordering::Relaxed), 0);
        // Other panics are reported as before.
        assert!(panic::catch_unwind(|| panic!("counted outside")).is_err());
        assert_eq!(REPORTS.load(Ordering::Relaxed), 1);
    }
}
