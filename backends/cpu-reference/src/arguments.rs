//! Checks of argument values that shapes cannot make, with the sentences of their refusals.

use deepinfer_plugin_api::sdk::Fault;

/// Element `at` of `arg`, which must name one of `len` things.
///
/// # Errors
/// The value is negative or not below `len`.
#[inline]
pub(crate) fn index(op: &str, arg: &str, at: &[usize], value: i32, len: usize) -> Result<usize, Fault> {
    match usize::try_from(value) {
        Ok(index) if index < len => Ok(index),
        _ => Err(out_of_range(op, arg, at, value, len)),
    }
}

#[cold]
fn out_of_range(op: &str, arg: &str, at: &[usize], value: i32, len: usize) -> Fault {
    Fault::invalid(format!("{op}: {arg}{at:?} is {value}, but must be at least 0 and below {len}"))
}

/// A scalar that must be at least 1.
///
/// # Errors
/// It is 0.
pub(crate) fn positive(op: &str, arg: &str, value: u32) -> Result<usize, Fault> {
    match value {
        0 => Err(Fault::invalid(format!("{op}: {arg} is 0, but must be at least 1"))),
        _ => Ok(value as usize),
    }
}

/// A scalar that switches something on with 1 and off with 0.
///
/// # Errors
/// It is neither.
pub(crate) fn switch(op: &str, arg: &str, value: u32) -> Result<bool, Fault> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Fault::invalid(format!("{op}: {arg} is {value}, but must be 0 or 1"))),
    }
}

/// Columns of a format with one scale per `group`, which must be whole groups.
///
/// # Errors
/// They are not.
pub(crate) fn whole_groups(op: &str, arg: &str, columns: usize, group: usize) -> Result<(), Fault> {
    if group == 0 || columns.is_multiple_of(group) {
        return Ok(());
    }
    Err(Fault::invalid(format!("{op}: {arg} has {columns} columns, but the format needs a multiple of {group}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_outside_is_named() {
        assert_eq!(index("gather", "index", &[2], 4, 5).unwrap(), 4);
        for (value, len) in [(5, 5), (-1, 5), (0, 0)] {
            let message = index("moe_dispatch", "experts", &[2, 1], value, len).unwrap_err().message;
            let expected = format!("moe_dispatch: experts[2, 1] is {value}, but must be at least 0 and below {len}");
            assert_eq!(message, expected);
        }
    }

    #[test]
    fn scalars_outside_are_named() {
        assert_eq!(positive("topk_select", "k", 3).unwrap(), 3);
        assert!(
            positive("op", "block_size", 0).unwrap_err().message.ends_with("block_size is 0, but must be at least 1")
        );
        assert!(switch("op", "inverse", 1).unwrap() && !switch("op", "inverse", 0).unwrap());
        assert!(switch("op", "inverse", 2).unwrap_err().message.ends_with("inverse is 2, but must be 0 or 1"));
        assert!(whole_groups("op", "x", 96, 32).is_ok() && whole_groups("op", "x", 40, 0).is_ok());
        let message = whole_groups("op", "x", 40, 32).unwrap_err().message;
        assert_eq!(message, "op: x has 40 columns, but the format needs a multiple of 32");
    }
}
