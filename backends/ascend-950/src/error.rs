//! What the runtime's results mean to a caller.

use std::fmt::Display;

use deepinfer_plugin_api::sdk::{Fault, FaultCode};

use crate::acl::sys::{self, aclError};
use crate::acl::{acl, recent};

/// What can be done about a result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    /// It took too long. A wait is made again; of another call it is not known what it did.
    Retry,
    /// Free memory or ask for less.
    OutOfMemory,
    /// The call cannot be part of a capture.
    Capture,
    /// A mistake of this backend or of its caller.
    Programming,
    /// Nothing works on the device any more.
    DeviceLost,
    /// Anything else.
    Other,
}

/// The class of a result that is not success.
pub(crate) const fn class(code: aclError) -> Class {
    match code {
        sys::ACL_ERROR_RT_WAIT_TIMEOUT
        | sys::ACL_ERROR_RT_STREAM_SYNC_TIMEOUT
        | sys::ACL_ERROR_RT_EVENT_SYNC_TIMEOUT => Class::Retry,
        sys::ACL_ERROR_RT_MEMORY_ALLOCATION | sys::ACL_ERROR_RT_DEVICE_OOM => Class::OutOfMemory,
        107_024..=107_032 | 107_036 | 107_038 | 107_041 | sys::ACL_ERROR_RT_STREAM_CAPTURE_INVALIDATED => {
            Class::Capture
        }
        // Work that was aborted, on the device or in a stream, leaves memory in an unknown state.
        sys::ACL_ERROR_RT_DEVICE_TASK_ABORT | sys::ACL_ERROR_RT_STREAM_ABORT => Class::DeviceLost,
        100_000..=100_999 | 107_000..=107_999 | sys::ACL_ERROR_RT_FEATURE_NOT_SUPPORT => Class::Programming,
        sys::ACL_ERROR_RT_LOST_HEARTBEAT
        | 507_014..=507_018
        | 507_034..=507_036
        | 507_042..=507_045
        | 507_048..=507_057
        | sys::ACL_ERROR_RT_DRV_INTERNAL_ERROR
        | sys::ACL_ERROR_RT_SOCKET_CLOSE => Class::DeviceLost,
        _ => Class::Other,
    }
}

/// What a result is called: the cases that a user may see.
const fn name(code: aclError) -> &'static str {
    match code {
        sys::ACL_ERROR_UNINITIALIZE => "the runtime was not initialised",
        sys::ACL_ERROR_RT_CONTEXT_NULL => "the thread has no context",
        sys::ACL_ERROR_RT_STREAM_CONTEXT => "the stream is of another context",
        sys::ACL_ERROR_RT_WAIT_TIMEOUT
        | sys::ACL_ERROR_RT_STREAM_SYNC_TIMEOUT
        | sys::ACL_ERROR_RT_EVENT_SYNC_TIMEOUT => "it took too long",
        sys::ACL_ERROR_RT_TASK_TIMEOUT => "a task took too long",
        sys::ACL_ERROR_RT_STREAM_CAPTURED => "the stream is captured",
        sys::ACL_ERROR_RT_STREAM_CAPTURE_INVALIDATED => "the capture became invalid",
        sys::ACL_ERROR_RT_FEATURE_NOT_SUPPORT => "not supported here",
        sys::ACL_ERROR_RT_MEMORY_ALLOCATION => "out of memory",
        sys::ACL_ERROR_RT_DEVICE_OOM => "out of memory on the device",
        sys::ACL_ERROR_RT_NO_DEVICE => "no device",
        sys::ACL_ERROR_RT_NO_STREAM_RESOURCE => "no streams are left",
        sys::ACL_ERROR_RT_LOST_HEARTBEAT => "the device lost its heartbeat",
        sys::ACL_ERROR_RT_AICORE_TIMEOUT => "a kernel of the AI cores did not come to an end",
        sys::ACL_ERROR_RT_AICORE_EXCEPTION => "a kernel of the AI cores failed",
        sys::ACL_ERROR_RT_KERNEL_LOOKUP => "no such kernel",
        sys::ACL_ERROR_RT_VECTOR_CORE_TIMEOUT => "a kernel of the vector cores did not come to an end",
        sys::ACL_ERROR_RT_VECTOR_CORE_EXCEPTION => "a kernel of the vector cores failed",
        sys::ACL_ERROR_RT_DRV_INTERNAL_ERROR => "an error of the driver",
        sys::ACL_ERROR_RT_SOCKET_CLOSE => "the connection to the device is closed",
        _ => match class(code) {
            Class::Capture => "not possible in a capture",
            Class::Programming => "a wrong call",
            Class::DeviceLost => "the device failed",
            _ => "an error of the runtime",
        },
    }
}

/// What the user of a lost device does.
pub(crate) const LOST: &str = "; nothing works on this device any more in this process: start it again";

/// A fault of `what`, from a result of the runtime.
pub(crate) fn fault(what: impl Display, code: aclError) -> Fault {
    let (class, name) = (class(code), name(code));
    let said = acl().ok().and_then(recent).map_or(String::new(), |text| format!(": {text}"));
    let advice = match class {
        Class::DeviceLost => LOST,
        _ => "",
    };
    let kind = match class {
        Class::OutOfMemory => FaultCode::OutOfMemory,
        Class::Capture => FaultCode::NotCapturable,
        Class::DeviceLost => FaultCode::DeviceLost,
        Class::Retry | Class::Programming | Class::Other => FaultCode::Internal,
    };
    let mut fault = Fault::new(kind, format!("{what}: {name} ({code}){said}{advice}"));
    fault.vendor_code = code;
    fault
}

/// `Ok` if the runtime says so.
pub(crate) fn check(what: impl Display, code: aclError) -> Result<(), Fault> {
    match code {
        sys::ACL_SUCCESS => Ok(()),
        code => Err(fault(what, code)),
    }
}

/// How often a wait that took too long is made again.
const WAITS: usize = 3;

/// A wait for `what`, made again when it took too long.
pub(crate) fn wait(what: &str, mut once: impl FnMut() -> aclError) -> Result<(), Fault> {
    let mut code = once();
    for _ in 1..WAITS {
        if code == sys::ACL_SUCCESS || class(code) != Class::Retry {
            return check(what, code);
        }
        code = once();
    }
    match class(code) {
        Class::Retry => Err(fault(format_args!("the wait for {what}, made {WAITS} times"), code)),
        _ => check(what, code),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_what_the_caller_can_do_about_it() {
        let cases = [
            (107_019, Class::Retry),
            (507_046, Class::Retry),
            (207_001, Class::OutOfMemory),
            (207_018, Class::OutOfMemory),
            (107_027, Class::Capture),
            (507_903, Class::Capture),
            (107_002, Class::Programming),
            (100_001, Class::Programming),
            (207_000, Class::Programming),
            (507_010, Class::DeviceLost),
            (507_015, Class::DeviceLost),
            (507_035, Class::DeviceLost),
            (507_057, Class::DeviceLost),
            (507_899, Class::DeviceLost),
            (507_901, Class::DeviceLost),
            (500_000, Class::Other),
        ];
        for (code, wanted) in cases {
            assert_eq!(class(code), wanted, "{code}");
        }
    }

    #[test]
    fn a_wait_is_made_again_only_when_it_took_too_long() {
        let mut calls = 0;
        let slow = || {
            calls += 1;
            if calls < 3 { sys::ACL_ERROR_RT_STREAM_SYNC_TIMEOUT } else { sys::ACL_SUCCESS }
        };
        assert!(wait("the stream", slow).is_ok());
        assert_eq!(calls, 3);
        calls = 0;
        let lost = || {
            calls += 1;
            sys::ACL_ERROR_RT_LOST_HEARTBEAT
        };
        assert_eq!(wait("the stream", lost).unwrap_err().code, FaultCode::DeviceLost);
        assert_eq!(calls, 1);
    }
}
