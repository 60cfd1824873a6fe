//! What the core offers to plugins: its log.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};

use deepinfer_plugin_api::abi::{DI_LOG_DEBUG, DI_LOG_ERROR, DI_LOG_INFO, DI_LOG_WARN, DiHostApi, DiStr};

use crate::one_line::one_line;
use crate::raw::read_text_lossy;

/// The table that every plugin gets. It lives as long as the process.
pub(crate) fn table() -> *const DiHostApi {
    struct Table(DiHostApi);
    // SAFETY: constant data; `user` is null.
    unsafe impl Sync for Table {}
    static TABLE: Table = Table(DiHostApi {
        struct_size: size_of::<DiHostApi>() as u32,
        reserved0: 0,
        user: std::ptr::null_mut(),
        log: Some(log),
        log_enabled: Some(log_enabled),
    });
    &raw const TABLE.0
}

/// A line of a plugin becomes an event of `tracing`: the plugin has its own copy of `tracing`, which reaches nobody.
unsafe extern "C" fn log(_user: *mut c_void, level: i32, target: DiStr, message: DiStr) {
    // A subscriber that panics must not unwind into the plugin.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: the header says that both are borrowed UTF-8 text.
        let (plugin, message) = unsafe { (one_line(&read_text_lossy(target)), one_line(&read_text_lossy(message))) };
        match level {
            DI_LOG_ERROR => tracing::error!(target: "deepinfer::plugin", plugin, "{message}"),
            DI_LOG_WARN => tracing::warn!(target: "deepinfer::plugin", plugin, "{message}"),
            DI_LOG_INFO => tracing::info!(target: "deepinfer::plugin", plugin, "{message}"),
            DI_LOG_DEBUG => tracing::debug!(target: "deepinfer::plugin", plugin, "{message}"),
            _ => tracing::trace!(target: "deepinfer::plugin", plugin, "{message}"),
        }
    }));
}

/// The target that a plugin names is part of the line, not of the filter: all plugins share one target.
unsafe extern "C" fn log_enabled(_user: *mut c_void, level: i32, _target: DiStr) -> i32 {
    let enabled = catch_unwind(|| match level {
        DI_LOG_ERROR => tracing::enabled!(target: "deepinfer::plugin", tracing::Level::ERROR),
        DI_LOG_WARN => tracing::enabled!(target: "deepinfer::plugin", tracing::Level::WARN),
        DI_LOG_INFO => tracing::enabled!(target: "deepinfer::plugin", tracing::Level::INFO),
        DI_LOG_DEBUG => tracing::enabled!(target: "deepinfer::plugin", tracing::Level::DEBUG),
        _ => tracing::enabled!(target: "deepinfer::plugin", tracing::Level::TRACE),
    });
    i32::from(enabled.unwrap_or(false))
}
