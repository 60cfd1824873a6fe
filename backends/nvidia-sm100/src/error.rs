//! What the driver's errors mean to a caller.

use std::fmt::Display;

use cudarc::driver::DriverError;
use cudarc::driver::sys::CUresult;
use deepinfer_plugin_api::sdk::{Fault, FaultCode};

/// A fault of `what`, from a status of the driver.
pub(crate) fn fault(what: impl Display, status: CUresult) -> Fault {
    // The name of an error is text of the driver, which may be older than the error.
    let error = DriverError(status);
    let name = error.error_name().map_or_else(|_| "unknown error".to_owned(), |n| n.to_string_lossy().into_owned());
    let advice = match code(status) {
        FaultCode::DeviceLost => "; nothing works on this device any more in this process: start it again",
        _ => "",
    };
    let mut fault = Fault::new(code(status), format!("{what}: {name}{advice}"));
    fault.vendor_code = status as i32;
    fault
}

/// `Ok` if the driver says so.
pub(crate) fn check(what: &str, status: CUresult) -> Result<(), Fault> {
    match status {
        CUresult::CUDA_SUCCESS => Ok(()),
        status => Err(fault(what, status)),
    }
}

/// What the caller can do. After an error of the third kind the context is lost: the driver gives it again at every call.
fn code(status: CUresult) -> FaultCode {
    match status {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => FaultCode::OutOfMemory,
        CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
        | CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
        | CUresult::CUDA_ERROR_STREAM_CAPTURE_MERGE
        | CUresult::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED
        | CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED
        | CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION
        | CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
        | CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD
        | CUresult::CUDA_ERROR_CAPTURED_EVENT => FaultCode::NotCapturable,
        CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
        | CUresult::CUDA_ERROR_LAUNCH_TIMEOUT
        | CUresult::CUDA_ERROR_LAUNCH_FAILED
        | CUresult::CUDA_ERROR_ASSERT
        | CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR
        | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
        | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
        | CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE
        | CUresult::CUDA_ERROR_INVALID_PC
        | CUresult::CUDA_ERROR_ECC_UNCORRECTABLE
        | CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE
        | CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED
        | CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE => FaultCode::DeviceLost,
        _ => FaultCode::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_what_the_caller_can_do_about_it() {
        let cases = [
            (CUresult::CUDA_ERROR_OUT_OF_MEMORY, FaultCode::OutOfMemory),
            (CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, FaultCode::DeviceLost),
            (CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, FaultCode::NotCapturable),
            (CUresult::CUDA_ERROR_INVALID_VALUE, FaultCode::Internal),
        ];
        for (status, wanted) in cases {
            assert_eq!(code(status), wanted, "{status:?}");
        }
    }
}
