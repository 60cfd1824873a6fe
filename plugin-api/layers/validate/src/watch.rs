//! Memory around the written arguments of a call, which the call must leave as it is.

use std::ops::Range;

use deepinfer_plugin_api::Role;

use crate::call::{Call, Tensor};
use crate::lane::Image;
use crate::ranges::Ranges;

/// Bytes before and behind a written tensor that are watched, and that redzones have.
pub(crate) const MARGIN: u64 = 256;

/// The byte that poisons: in every float format and scale a NaN (in E2M1, which has none, the largest value), in integers
/// -1 or the largest.
pub(crate) const POISON: u8 = 0xFF;

/// The addresses to look at before and after a call: the gaps of written tensors and `margin` bytes around each, as far as
/// `bounds` lets it; with `whole` their elements, too. `bounds` gives the allocation of an address.
pub(crate) fn watched(call: &Call, margin: u64, whole: bool, bounds: impl Fn(u64) -> Option<Range<u64>>) -> Ranges {
    let mut out = Vec::new();
    for part in written_parts(call) {
        let span = part.span();
        let Some(bounds) = bounds(span.start).filter(|_| !span.is_empty()) else { continue };
        let around =
            span.start.saturating_sub(margin).max(bounds.start)..span.end.saturating_add(margin).min(bounds.end);
        if whole || part.addresses().len() > 1 {
            out.push(around);
        } else {
            out.extend([around.start..span.start, span.end..around.end]);
        }
    }
    Ranges::of(out)
}

fn written_parts(call: &Call) -> Vec<Tensor> {
    let tensors = call.tensors();
    let written = tensors.iter().filter(|named| named.role != Role::In);
    written.flat_map(|named| named.tensor.parts().cloned()).collect()
}

/// The addresses of arguments that a call writes without reading them.
pub(crate) fn outputs(call: &Call) -> Ranges {
    let tensors = call.tensors();
    let parts = tensors.iter().filter(|named| named.role == Role::Out).flat_map(|named| named.tensor.parts());
    Ranges::of(parts.flat_map(|part| part.addresses().iter().cloned().collect::<Vec<_>>()).collect())
}

/// The addresses of everything that a call reads or writes, from the first to the last element of each tensor.
pub(crate) fn everything(call: &Call) -> Vec<Range<u64>> {
    call.tensors().iter().flat_map(|named| named.tensor.parts().map(Tensor::span)).collect()
}

/// The addresses of arguments that a call only reads.
pub(crate) fn inputs(call: &Call) -> Vec<Range<u64>> {
    let tensors = call.tensors();
    let parts = tensors.iter().filter(|named| named.role == Role::In).flat_map(|named| named.tensor.parts());
    parts.flat_map(|part| part.addresses().iter().cloned().collect::<Vec<_>>()).collect()
}

/// The argument that is only read and has this address, unless a write beyond a written one would end there, too.
pub(crate) fn input_at(call: &Call, address: u64) -> Option<String> {
    let is_close = |span: Range<u64>| address + MARGIN >= span.start && address < span.end.saturating_add(MARGIN);
    if written_parts(call).iter().any(|part| is_close(part.span())) {
        return None;
    }
    let has = |part: &Tensor| part.addresses().iter().any(|range| range.contains(&address));
    let tensors = call.tensors();
    let named = tensors.iter().find(|named| named.role == Role::In && named.tensor.parts().any(has))?;
    Some(named.name.clone())
}

/// A byte that changed: address, before, after.
pub(crate) type Change = (u64, u8, u8);

/// The first byte outside of `written` that differs.
pub(crate) fn change(written: &Ranges, before: &Image, after: &Image) -> Option<Change> {
    after.pieces().find_map(|(range, after)| {
        let before = before.get(range)?;
        written.gaps_in(range.clone()).into_iter().find_map(|gap| {
            let at = (gap.start - range.start) as usize..(gap.end - range.start) as usize;
            let (old, new) = (&before[at.clone()], &after[at]);
            let index = old.iter().zip(new).position(|(a, b)| a != b)?;
            Some((gap.start + index as u64, old[index], new[index]))
        })
    })
}

/// Where an address lies as seen from the written arguments: which one is nearest, and how.
pub(crate) fn describe(call: &Call, address: u64) -> (String, String) {
    let mut best: Option<(u64, String, String)> = None;
    for named in call.tensors().iter().filter(|named| named.role != Role::In) {
        for (part, tensor) in named.tensor.parts().enumerate() {
            let span = tensor.span();
            let name = if part == 0 { named.name.clone() } else { format!("scales of {}", named.name) };
            let (distance, text) = if address >= span.end {
                (address - span.end + 1, format!("{} bytes behind the end", address - span.end))
            } else if address < span.start {
                (span.start - address, format!("{} bytes before the begin", span.start - address))
            } else {
                (0, format!("in a gap between rows, {} bytes from the begin", address - span.start))
            };
            if best.as_ref().is_none_or(|(least, ..)| distance < *least) {
                best = Some((distance, name, text));
            }
        }
    }
    best.map_or_else(|| (String::new(), format!("at {address:#x}")), |(_, name, text)| (name, text))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::call::Value;
    use crate::call::tests::tensor;
    use crate::check::tests::call;
    use crate::check::written;

    fn with_output(output: Tensor) -> Call {
        let (mut call, ..) = call();
        call.values[3] = Value::Tensor(output);
        call
    }

    fn ranges(ranges: &Ranges) -> Vec<Range<u64>> {
        ranges.iter().cloned().collect()
    }

    #[test]
    fn margins_end_at_the_allocation_and_gaps_are_watched() {
        let call = with_output(tensor(0x3080, &[2, 4], &[4, 1]));
        let bounds = |_| Some(0x3000..0x3110);
        assert_eq!(ranges(&watched(&call, 256, false, bounds)), [0x3000..0x3080, 0x30a0..0x3110]);
        assert_eq!(ranges(&watched(&call, 0, true, bounds)), [0x3080..0x30a0]);
        let gapped = with_output(tensor(0x3080, &[2, 4], &[6, 1]));
        assert_eq!(ranges(&watched(&gapped, 0, false, bounds)), [0x3080..0x30a8]);
        assert_eq!(watched(&with_output(tensor(0x3080, &[2, 4], &[4, 1])), 0, false, bounds).len(), 0);
        assert_eq!(watched(&with_output(tensor(0x3080, &[0, 4], &[4, 1])), 256, false, bounds).len(), 0);
    }

    #[test]
    fn a_change_is_placed() {
        let call = with_output(tensor(0x3080, &[2, 4], &[6, 1]));
        let place = |address| describe(&call, address);
        assert_eq!(place(0x30a8), ("out".into(), "0 bytes behind the end".into()));
        assert_eq!(place(0x307f), ("out".into(), "1 bytes before the begin".into()));
        assert_eq!(place(0x3092), ("out".into(), "in a gap between rows, 18 bytes from the begin".into()));
    }

    #[test]
    fn an_input_is_named_unless_an_output_is_close() {
        let call = with_output(tensor(0x3080, &[2, 4], &[4, 1]));
        let tensors = call.tensors();
        let input = tensors.iter().find(|named| named.role == Role::In).unwrap();
        let start = input.tensor.span().start;
        assert!(inputs(&call).iter().any(|range| range.contains(&start)));
        assert_eq!(input_at(&call, start), Some(input.name.clone()));
        assert_eq!(input_at(&call, 0x30a8), None);
        assert_eq!(input_at(&with_output(tensor(start - 64, &[2, 4], &[4, 1])), start), None);
    }

    proptest! {
        #[test]
        fn a_write_is_found_exactly_where_nothing_may_be_written(at in 0..300_u64, stride in 4..9_i64) {
            let call = with_output(tensor(0x3080, &[3, 4], &[stride, 1]));
            let bounds = |_| Some(0x3000..0x3180);
            let watched = watched(&call, 40, false, bounds);
            let image = |edit: bool| Image::of(watched.iter().map(|range| {
                let mut bytes = vec![7; (range.end - range.start) as usize];
                if edit && range.contains(&(0x3050 + at)) {
                    bytes[(0x3050 + at - range.start) as usize] = 8;
                }
                (range.clone(), bytes)
            }).collect());
            let address = 0x3050 + at;
            let is_element = written(&call).iter().any(|range| range.contains(&address));
            let is_watched = watched.iter().any(|range| range.contains(&address));
            let found = change(&written(&call), &image(false), &image(true));
            prop_assert_eq!(found, (is_watched && !is_element).then_some((address, 7, 8)));
        }
    }
}
