//! Device memory as bytes, through a stream of the backend.

#![allow(unsafe_code)]

use std::ops::Range;

use deepinfer_plugin_api::abi::{DI_COPY_D2H, DI_COPY_H2D, DiError, DiStream};
use deepinfer_plugin_api::sdk::{Fault, ForeignError};

use crate::next::Next;
use crate::ranges::Ranges;

/// A stream of the backend, to look at memory and to change it.
///
/// Allocations can lie side by side, and a range of several is then one range; but a copy or a fill must keep to one
/// allocation. So each is done in pieces.
pub(crate) struct Lane<'a> {
    next: &'a Next,
    stream: *mut DiStream,
    bounds: Bounds<'a>,
}

/// The allocation that an address lies in, if there is one.
pub(crate) type Bounds<'a> = &'a dyn Fn(u64) -> Option<Range<u64>>;

impl<'a> Lane<'a> {
    /// A lane on the stream at the exposed address `stream`. `bounds` knows the live allocations.
    ///
    /// # Safety
    /// As long as the lane is used, the stream is alive and nobody else uses it; all ranges that are given to the lane lie in
    /// live memory of its device.
    pub(crate) unsafe fn new(next: &'a Next, stream: usize, bounds: Bounds<'a>) -> Self {
        Self { next, stream: std::ptr::with_exposed_provenance_mut(stream), bounds }
    }

    /// Waits for the stream.
    ///
    /// # Errors
    /// The backend's own.
    pub(crate) fn sync(&self) -> Result<(), Fault> {
        let sync = self.next.runtime.stream_sync.expect("mandatory");
        // SAFETY: the stream is alive and ours, as `new` was promised.
        take(unsafe { sync(self.next.raw, self.stream) })
    }

    /// The bytes of several ranges, after the work so far.
    ///
    /// # Errors
    /// The backend's own.
    pub(crate) fn read(&self, ranges: &Ranges) -> Result<Image, Fault> {
        let copy = self.next.runtime.copy.expect("mandatory");
        let mut pieces: Vec<(Range<u64>, Vec<u8>)> = Vec::with_capacity(ranges.len());
        let mut outcome = Ok(());
        for range in ranges.iter() {
            let mut to = vec![0_u8; (range.end - range.start) as usize];
            outcome = by_allocation(range, self.bounds).try_for_each(|piece| {
                let from = std::ptr::with_exposed_provenance(piece.start as usize);
                let to = &mut to[(piece.start - range.start) as usize..(piece.end - range.start) as usize];
                let (at, bytes) = (to.as_mut_ptr().cast(), to.len() as u64);
                // SAFETY: the range is live device memory as `new` was promised; `to` has room and stays until the wait below.
                take(unsafe { copy(self.next.raw, self.stream, at, from, bytes, DI_COPY_D2H) })
            });
            pieces.push((range.clone(), to));
            if outcome.is_err() {
                break;
            }
        }
        // After a failed copy, too: the others may be on their way.
        self.sync().and(outcome)?;
        Ok(Image { pieces })
    }

    /// Writes bytes, and waits.
    ///
    /// # Errors
    /// The backend's own.
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        let copy = self.next.runtime.copy.expect("mandatory");
        let to = std::ptr::with_exposed_provenance_mut(address as usize);
        // SAFETY: as in `read`, with the sides exchanged.
        let copied = take(unsafe {
            copy(self.next.raw, self.stream, to, bytes.as_ptr().cast(), bytes.len() as u64, DI_COPY_H2D)
        });
        self.sync().and(copied)
    }

    /// Fills ranges with a byte, in stream order.
    ///
    /// # Errors
    /// The backend's own.
    pub(crate) fn fill(&self, ranges: &Ranges, byte: u8) -> Result<(), Fault> {
        let fill = self.next.runtime.fill.expect("mandatory");
        ranges.iter().flat_map(|range| by_allocation(range, self.bounds)).try_for_each(|range| {
            let at = std::ptr::with_exposed_provenance_mut(range.start as usize);
            // SAFETY: the range is live device memory as `new` was promised.
            take(unsafe { fill(self.next.raw, self.stream, at, u32::from(byte), 1, range.end - range.start) })
        })
    }
}

/// Cuts a range where one allocation ends and the next begins; what is in none stays whole.
fn by_allocation<'a>(range: &Range<u64>, bounds: Bounds<'a>) -> impl Iterator<Item = Range<u64>> + use<'a> {
    let Range { mut start, end } = *range;
    std::iter::from_fn(move || {
        let piece = start..bounds(start).map_or(end, |allocation| allocation.end.min(end));
        start = piece.end;
        (!piece.is_empty()).then_some(piece)
    })
}

/// Takes over what a function of the backend returned.
fn take(error: *mut DiError) -> Result<(), Fault> {
    // SAFETY: null, or an error object that was just handed over.
    unsafe { ForeignError::take(error) }.map_or(Ok(()), |error| Err(error.into()))
}

/// What was in memory.
#[derive(Debug)]
pub(crate) struct Image {
    pieces: Vec<(Range<u64>, Vec<u8>)>,
}

impl Image {
    #[cfg(test)]
    pub(crate) fn of(pieces: Vec<(Range<u64>, Vec<u8>)>) -> Self {
        Self { pieces }
    }

    /// The bytes of a range; `None` if it was not looked at as a whole.
    pub(crate) fn get(&self, range: &Range<u64>) -> Option<&[u8]> {
        if range.is_empty() {
            return Some(&[]);
        }
        let (at, bytes) = self.pieces.iter().find(|(at, _)| at.start <= range.start && range.end <= at.end)?;
        Some(&bytes[(range.start - at.start) as usize..(range.end - at.start) as usize])
    }

    /// The ranges and their bytes.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = (&Range<u64>, &[u8])> {
        self.pieces.iter().map(|(range, bytes)| (range, bytes.as_slice()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_cut_where_allocations_meet() {
        let allocations = [0x100..0x200, 0x200..0x300, 0x400..0x500];
        let bounds = |address| allocations.iter().find(|allocation| allocation.contains(&address)).cloned();
        let cut = |range: Range<u64>| by_allocation(&range, &bounds).collect::<Vec<_>>();
        assert_eq!(cut(0x180..0x280), [0x180..0x200, 0x200..0x280]);
        assert_eq!(cut(0x100..0x300), [0x100..0x200, 0x200..0x300]);
        assert_eq!(cut(0x410..0x420), std::slice::from_ref(&(0x410..0x420)));
        assert_eq!(cut(0x10..0x20), std::slice::from_ref(&(0x10..0x20)));
        assert!(cut(0x200..0x200).is_empty());
    }
}
