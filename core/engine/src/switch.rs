//! Variables of the environment that are on or off.

/// Reads a switch: `1` is on, `0` is off; a variable that is empty or not set leaves the `default`.
///
/// # Errors
/// It is anything else.
pub fn switch(name: &'static str, default: bool) -> Result<bool, SwitchError> {
    Ok(switch_if_set(name)?.unwrap_or(default))
}

/// As [`switch`]; `None` if the variable is empty or not set.
pub(crate) fn switch_if_set(name: &'static str) -> Result<Option<bool>, SwitchError> {
    let value = std::env::var_os(name).unwrap_or_default();
    match value.to_str() {
        Some("") => Ok(None),
        Some("0") => Ok(Some(false)),
        Some("1") => Ok(Some(true)),
        _ => Err(SwitchError { name, value: value.to_string_lossy().into_owned() }),
    }
}

/// A variable of the environment is no switch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the variable {name} is {value:?}, but must be 0 or 1")]
pub struct SwitchError {
    /// Variable.
    pub name: &'static str,
    /// What it is.
    pub value: String,
}
