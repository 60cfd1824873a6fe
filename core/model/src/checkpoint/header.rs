//! The safetensors header: eight bytes of length, then JSON that places each tensor in the rest of the file.
//!
//! A header is untrusted input. Everything that later code relies on is checked here: lengths fit the file, each tensor
//! has the bytes that its type and shape need, and the tensors tile the data without overlap or gap.

use std::collections::HashSet;
use std::fmt;
use std::ops::Range;

use safetensors::Dtype;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use serde_json::Value;

use super::dtype::StoredDtype;
use super::error::CheckpointError;

/// Bytes of the header's length field.
const LENGTH_BYTES: usize = 8;

/// Longest header that the safetensors format allows.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Where a tensor lies in its file, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) dtype: StoredDtype,
    pub(super) shape: Vec<u64>,
    /// Byte range, counted from the start of the file.
    pub(super) range: Range<usize>,
}

/// Reads the header of the safetensors file `bytes`; `file` names it in messages. The entries come in file order.
pub(super) fn read_header(file: &str, bytes: &[u8]) -> Result<Vec<(String, Entry)>, CheckpointError> {
    let json = json_part(file, bytes)?;
    let header: RawHeader = serde_json::from_slice(json)
        .map_err(|error| CheckpointError::DamagedHeader { file: file.to_owned(), reason: error.to_string() })?;
    let data_start = LENGTH_BYTES + json.len();
    let data_len = (bytes.len() - data_start) as u64;

    let mut placed = Vec::with_capacity(header.0.len());
    for (name, value) in header.0 {
        let placement = placement(&value)
            .and_then(|placement| placement.has_the_bytes_of_its_shape().map(|()| placement))
            .map_err(|reason| CheckpointError::DamagedTensor { file: file.to_owned(), tensor: name.clone(), reason })?;
        if placement.end > data_len {
            return Err(CheckpointError::Truncated {
                file: file.to_owned(),
                what: format!("tensor `{name}`"),
                needed: placement.end.saturating_add(data_start as u64),
                available: bytes.len() as u64,
            });
        }
        placed.push((name, placement));
    }
    placed.sort_by_key(|(_, placement)| (placement.begin, placement.end));
    check_tiling(file, &placed, data_len)?;

    // Ends are at most `data_len`, which came from a `usize`.
    let absolute = |offset: u64| data_start + offset as usize;
    let entry = |p: Placement| Entry { dtype: p.dtype, shape: p.shape, range: absolute(p.begin)..absolute(p.end) };
    Ok(placed.into_iter().map(|(name, placement)| (name, entry(placement))).collect())
}

/// The JSON text between the length field and the data.
fn json_part<'a>(file: &str, bytes: &'a [u8]) -> Result<&'a [u8], CheckpointError> {
    let not_safetensors = |reason: String| CheckpointError::NotSafetensors { file: file.to_owned(), reason };
    let Some((length, rest)) = bytes.split_first_chunk::<LENGTH_BYTES>() else {
        let found = bytes.len();
        return Err(not_safetensors(format!("it is {found} bytes long, expected at least {LENGTH_BYTES}")));
    };
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER_BYTES {
        return Err(not_safetensors(format!(
            "its first 8 bytes give a header of {length} bytes, expected at most {MAX_HEADER_BYTES}"
        )));
    }
    match rest.first() {
        Some(b'{') | None => {}
        Some(&other) => {
            return Err(not_safetensors(format!("the byte after the length is {other:#04x}, expected 0x7b (`{{`)")));
        }
    }
    rest.get(..length as usize).ok_or_else(|| CheckpointError::Truncated {
        file: file.to_owned(),
        what: "the header".to_owned(),
        needed: LENGTH_BYTES as u64 + length,
        available: bytes.len() as u64,
    })
}

/// Sorted by offset, each tensor must begin where the one before it ends, and the last must end with the file.
fn check_tiling(file: &str, sorted: &[(String, Placement)], data_len: u64) -> Result<(), CheckpointError> {
    let mut end = 0;
    let mut previous = None;
    for (name, placement) in sorted {
        if let (Some(first), true) = (previous, placement.begin < end) {
            return Err(CheckpointError::Overlap {
                file: file.to_owned(),
                first: String::clone(first),
                second: name.clone(),
                first_end: end,
                second_begin: placement.begin,
            });
        }
        if placement.begin > end {
            return Err(CheckpointError::Gap { file: file.to_owned(), begin: end, end: placement.begin });
        }
        end = placement.end;
        previous = Some(name);
    }
    if end < data_len {
        return Err(CheckpointError::Gap { file: file.to_owned(), begin: end, end: data_len });
    }
    Ok(())
}

/// A header entry with understood fields; offsets count from the end of the header.
struct Placement {
    dtype: StoredDtype,
    shape: Vec<u64>,
    begin: u64,
    end: u64,
}

impl Placement {
    fn has_the_bytes_of_its_shape(&self) -> Result<(), String> {
        let Self { dtype, shape, begin, end } = self;
        // A dimension of 0 must not hide that the others are no sizes of a tensor: later products leave none out.
        let sizes = shape.iter().map(|&size| size.max(1));
        let Some(bits) = sizes.into_iter().try_fold(dtype.bits(), u64::checked_mul) else {
            return Err(format!("its shape {shape:?} is larger than any file can hold"));
        };
        let bits = if shape.contains(&0) { 0 } else { bits };
        if bits % 8 != 0 {
            return Err(format!("{dtype} elements of shape {shape:?} do not make a whole number of bytes"));
        }
        match end.checked_sub(*begin) {
            Some(found) if found == bits / 8 => Ok(()),
            Some(found) => Err(format!(
                "its offsets {begin} to {end} cover {found} bytes, expected {} for {dtype} {shape:?}",
                bits / 8
            )),
            None => Err(format!("its data offsets run backwards, from {begin} to {end}")),
        }
    }
}

fn placement(value: &Value) -> Result<Placement, String> {
    let field = |name: &str| value.get(name).ok_or_else(|| format!("`{name}` is missing"));
    let numbers = |name: &str| -> Result<Vec<u64>, String> {
        let value = field(name)?;
        let list = value.as_array().and_then(|list| list.iter().map(Value::as_u64).collect());
        list.ok_or_else(|| format!("`{name}` is {value}, expected a list of whole numbers"))
    };
    let name = field("dtype")?;
    let dtype = Dtype::deserialize(name).map_err(|_| format!("the element type {name} is unknown"))?;
    let offsets = numbers("data_offsets")?;
    let &[begin, end] = offsets.as_slice() else {
        return Err(format!("`data_offsets` has {} items, expected 2", offsets.len()));
    };
    Ok(Placement { dtype: dtype.into(), shape: numbers("shape")?, begin, end })
}

/// The tensors of a header, without its free-form `__metadata__`. JSON maps usually let the last of two equal keys win;
/// here that would hide a tensor, so it is an error.
struct RawHeader(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(RawHeaderVisitor)
    }
}

struct RawHeaderVisitor;

impl<'de> Visitor<'de> for RawHeaderVisitor {
    type Value = RawHeader;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with one entry per tensor")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
        let mut seen = HashSet::new();
        let mut tensors = Vec::new();
        while let Some((name, value)) = map.next_entry::<String, Value>()? {
            if !seen.insert(name.clone()) {
                return Err(A::Error::custom(format!("tensor `{name}` is listed twice")));
            }
            if name != "__metadata__" {
                tensors.push((name, value));
            }
        }
        Ok(RawHeader(tensors))
    }
}
