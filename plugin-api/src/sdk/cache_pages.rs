//! What the layout of cache entries needs of the numbers of a call.

use crate::CacheFormat;
use crate::sdk::Fault;

/// The format of `entries` entries of `dim` channels in the pages of argument `arg` of op `op`, of `page_bytes` each. `number` is the
/// number that came with it.
///
/// # Errors
/// The format does not exist, `dim` is no multiple of its group, or the entries do not fit.
pub fn cache_format(
    (op, arg): (&str, &str),
    number: u32,
    entries: u32,
    dim: usize,
    page_bytes: usize,
) -> Result<CacheFormat, Fault> {
    let Some(format) = CacheFormat::from_u32(number) else {
        return Err(Fault::invalid(format!("{op}: the entry format of {arg} is {number}; 0 to 4 are possible")));
    };
    let group = format.group().max(1);
    if !dim.is_multiple_of(group) {
        return Err(Fault::invalid(format!(
            "{op}: entries of {arg} have {dim} channels, but format {number} needs a multiple of {group}"
        )));
    }
    if entries == 0 {
        return Err(Fault::invalid(format!("{op}: a page of {arg} holds 0 entries; at least 1 is needed")));
    }
    let needed = u128::from(entries) * format.entry_bytes(dim) as u128;
    if needed > page_bytes as u128 {
        return Err(Fault::invalid(format!(
            "{op}: {entries} entries of {dim} channels in format {number} need pages of {needed} bytes, but {arg} has \
             pages of {page_bytes}"
        )));
    }
    Ok(format)
}
