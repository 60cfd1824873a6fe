//! What the layout of cache entries needs of the numbers of a call.

use deepinfer_plugin_api::CacheFormat;
use deepinfer_plugin_api::sdk::Fault;

/// Checks that `entries` entries of `dim` channels in format `format` fit the pages of argument `arg`, of `page_bytes`.
///
/// # Errors
/// The format does not exist, `dim` is no multiple of its group, or the entries do not fit.
pub(crate) fn check_layout(
    op: &str,
    arg: &str,
    format: u32,
    entries: u32,
    dim: usize,
    page_bytes: usize,
) -> Result<(), Fault> {
    let Some(layout) = CacheFormat::from_u32(format) else {
        return Err(Fault::invalid(format!("{op}: the entry format of {arg} is {format}; 0 to 4 are possible")));
    };
    let group = layout.group().max(1);
    if !dim.is_multiple_of(group) {
        return Err(Fault::invalid(format!(
            "{op}: entries of {arg} have {dim} channels, but format {format} needs a multiple of {group}"
        )));
    }
    if entries == 0 {
        return Err(Fault::invalid(format!("{op}: a page of {arg} holds 0 entries; at least 1 is needed")));
    }
    let needed = u128::from(entries) * layout.entry_bytes(dim) as u128;
    if needed > page_bytes as u128 {
        return Err(Fault::invalid(format!(
            "{op}: {entries} entries of {dim} channels in format {format} need pages of {needed} bytes, but {arg} has \
             pages of {page_bytes}"
        )));
    }
    Ok(())
}
