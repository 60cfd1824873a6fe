//! Seeds of requests that bring none.

use crate::error::RequestError;

/// A seed from the operating system, below 2^53 so that JSON readers that take numbers for doubles keep it whole.
pub(crate) fn draw_seed() -> Result<u64, RequestError> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|e| RequestError::InvalidParameter {
        name: "seed",
        value: format!("not given, and the operating system gives no randomness ({e})"),
        wanted: "given",
    })?;
    Ok(u64::from_le_bytes(bytes) >> 11)
}
