//! A call as plain data: what the layer has read from an argument struct.

use std::ops::Range;

use deepinfer_plugin_api::{Arguments, Described, Format, OpInfo, Role};

use crate::ranges::Ranges;

/// A tensor argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tensor {
    /// Address of the first element.
    pub(crate) address: u64,
    /// Bytes that may be touched from there.
    pub(crate) nbytes: u64,
    /// Type and number of its device.
    pub(crate) device: (i32, i32),
    pub(crate) code: u8,
    pub(crate) bits: u8,
    pub(crate) lanes: u16,
    pub(crate) layout: u32,
    pub(crate) is_read_only: bool,
    pub(crate) shape: Vec<i64>,
    /// In elements.
    pub(crate) strides: Vec<i64>,
    /// `None` if the catalogue has no such format.
    pub(crate) format: Option<Format>,
    pub(crate) scale: Option<Box<Tensor>>,
}

impl Tensor {
    /// Number of elements; an impossible shape has none.
    pub(crate) fn elements(&self) -> u64 {
        let mut extents = self.shape.iter().map(|&extent| u64::try_from(extent).ok());
        extents.try_fold(1_u64, |all, extent| all.checked_mul(extent?)).unwrap_or(0)
    }

    /// Bytes from the first element to the end of the last one. Where an extent or a stride is impossible: why, as the end
    /// of a sentence.
    pub(crate) fn reach(&self) -> Result<u64, String> {
        if let Some(extent) = self.shape.iter().find(|extent| **extent < 0) {
            return Err(format!("has the extent {extent} in shape {:?}", self.shape));
        }
        if self.shape.contains(&0) {
            return Ok(0);
        }
        let mut last = 0_i64;
        for (&extent, &stride) in self.shape.iter().zip(&self.strides) {
            if stride < 0 && extent > 1 {
                return Err(format!("has the stride {stride} in strides {:?}", self.strides));
            }
            let step = (extent - 1).checked_mul(stride).and_then(|step| last.checked_add(step));
            last = step.ok_or_else(|| format!("reaches beyond 2^63 elements with strides {:?}", self.strides))?;
        }
        let bytes = ((last as u128 + 1) * u128::from(self.bits)).div_ceil(8);
        u64::try_from(bytes).map_err(|_| format!("reaches beyond 2^64 bytes with strides {:?}", self.strides))
    }

    /// The addresses from the first element to the end of the last one; empty where there is no such thing.
    pub(crate) fn span(&self) -> Range<u64> {
        let reach = self.reach().unwrap_or(0);
        self.address..self.address.saturating_add(reach)
    }

    /// The bytes of the rows along the last dimension, in row-major order, as offsets from the first element. Rows that
    /// follow each other are one.
    ///
    /// `None` for packed elements that do not begin at a byte, and for a last dimension with gaps between its elements.
    pub(crate) fn rows(&self) -> Option<Vec<Range<u64>>> {
        if self.elements() == 0 {
            return Some(Vec::new());
        }
        let (columns, stride) = match (self.shape.last(), self.strides.last()) {
            (Some(&columns), Some(&stride)) => (columns, stride),
            _ => (1, 1),
        };
        if columns > 1 && stride != 1 {
            return None;
        }
        let bits = u64::from(self.bits);
        let row_bits = columns as u64 * bits;
        let rows = self.elements() / columns as u64;
        let leading = self.shape.len().saturating_sub(1);
        let mut out: Vec<Range<u64>> = Vec::new();
        let mut index = vec![0_i64; leading];
        for _ in 0..rows {
            let first: i64 = index.iter().zip(&self.strides).map(|(i, stride)| i * stride).sum();
            let start = first as u64 * bits;
            if !start.is_multiple_of(8) || (rows > 1 && !row_bits.is_multiple_of(8)) {
                return None;
            }
            let row = start / 8..start / 8 + row_bits.div_ceil(8);
            match out.last_mut() {
                Some(last) if last.end == row.start => last.end = row.end,
                _ => out.push(row),
            }
            for dim in (0..leading).rev() {
                index[dim] += 1;
                if index[dim] < self.shape[dim] {
                    break;
                }
                index[dim] = 0;
            }
        }
        Some(out)
    }

    /// The addresses of all elements. Where [`Tensor::rows`] has none: all from the first to the last.
    pub(crate) fn addresses(&self) -> Ranges {
        let at = self.address;
        match self.rows() {
            Some(rows) => Ranges::of(rows.into_iter().map(|row| at + row.start..at + row.end).collect()),
            None => Ranges::of(vec![self.span()]),
        }
    }

    /// Itself and its scales.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &Tensor> {
        std::iter::once(self).chain(self.scale.as_deref())
    }

    fn described(&self) -> Option<Described> {
        let shape: Option<Vec<usize>> = self.shape.iter().map(|&extent| usize::try_from(extent).ok()).collect();
        Some(Described::new(self.format?, &shape?))
    }
}

/// The value of an argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Tensor(Tensor),
    Absent,
    List(Vec<Tensor>),
    /// The bits of a number.
    Number(u32),
    /// The descriptor cannot be followed; the end of a sentence.
    Broken(String),
}

/// A call of an op.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) op: &'static OpInfo,
    /// `DI_OPF_*`.
    pub(crate) flags: u32,
    pub(crate) workspace: Range<u64>,
    /// In the order of the op's arguments.
    pub(crate) values: Vec<Value>,
}

/// A tensor of a call, with the argument that it belongs to.
pub(crate) struct Named<'a> {
    /// Name, with the index in a list.
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) tensor: &'a Tensor,
}

impl Call {
    /// All tensors, without their scales.
    pub(crate) fn tensors(&self) -> Vec<Named<'_>> {
        let mut out = Vec::new();
        for (arg, value) in self.op.args.iter().zip(&self.values) {
            let mut add = |name: String, tensor| out.push(Named { name, role: arg.role, tensor });
            match value {
                Value::Tensor(tensor) => add(arg.name.to_owned(), tensor),
                Value::List(list) => list.iter().enumerate().for_each(|(i, t)| add(format!("{}[{i}]", arg.name), t)),
                Value::Absent | Value::Number(_) | Value::Broken(_) => {}
            }
        }
        out
    }

    /// What decides whether the call is well formed. An argument whose format is in no catalogue is named instead.
    pub(crate) fn arguments(&self) -> Result<Arguments, String> {
        let mut arguments = Arguments::default();
        let unknown = |name: &str| format!("{name} is of no format of the catalogue");
        for (arg, value) in self.op.args.iter().zip(&self.values) {
            match value {
                Value::Tensor(tensor) => {
                    arguments.tensor(arg.name, tensor.described().ok_or_else(|| unknown(arg.name))?);
                }
                Value::List(list) => {
                    let described: Option<Vec<_>> = list.iter().map(Tensor::described).collect();
                    arguments.list(arg.name, described.ok_or_else(|| unknown(arg.name))?);
                }
                Value::Number(bits) => arguments.number(arg.name, *bits),
                Value::Absent | Value::Broken(_) => {}
            }
        }
        Ok(arguments)
    }

    /// All of the call that a plan may depend on: everything but addresses. Different calls give different words.
    pub(crate) fn signature(&self) -> Vec<u64> {
        let mut words = vec![u64::from(self.op.id) << 32 | u64::from(self.op.version), u64::from(self.flags)];
        for value in &self.values {
            match value {
                Value::Tensor(tensor) => write_signature(&mut words, tensor),
                Value::List(list) => {
                    words.push(list.len() as u64);
                    list.iter().for_each(|tensor| write_signature(&mut words, tensor));
                }
                Value::Number(bits) => words.push(u64::from(*bits)),
                Value::Absent | Value::Broken(_) => words.push(u64::MAX),
            }
        }
        words
    }

    /// Formats, ranks and presence of the arguments: calls of one class go the same way through a kernel.
    pub(crate) fn class(&self) -> Vec<u64> {
        let of = |tensor: &Tensor| tensor.format.map_or(99, |f| f as u64) << 8 | tensor.shape.len() as u64;
        let word = |value: &Value| match value {
            Value::Tensor(tensor) => of(tensor),
            Value::List(list) => list.first().map_or(0, of),
            Value::Number(_) => 0,
            Value::Absent | Value::Broken(_) => u64::MAX,
        };
        self.values.iter().map(word).collect()
    }
}

fn write_signature(words: &mut Vec<u64>, tensor: &Tensor) {
    let has_scale = u64::from(tensor.scale.is_some());
    let rank = tensor.shape.len() as u64;
    words.push(
        u64::from(tensor.code)
            | u64::from(tensor.bits) << 8
            | rank << 16
            | has_scale << 24
            | u64::from(tensor.layout) << 32,
    );
    words.extend(tensor.shape.iter().chain(&tensor.strides).map(|&extent| extent as u64));
    if let Some(scale) = &tensor.scale {
        write_signature(words, scale);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A tensor of F32 at an address, as the caller of an op would describe it.
    pub(crate) fn tensor(address: u64, shape: &[i64], strides: &[i64]) -> Tensor {
        let (shape, strides) = (shape.to_vec(), strides.to_vec());
        let mut tensor = Tensor {
            address,
            nbytes: 0,
            device: (1, 0),
            code: 2,
            bits: 32,
            lanes: 1,
            layout: 0,
            is_read_only: false,
            shape,
            strides,
            format: Some(Format::F32),
            scale: None,
        };
        tensor.nbytes = tensor.reach().unwrap();
        tensor
    }

    #[test]
    fn rows_that_follow_each_other_are_one() {
        let rows = |shape: &[i64], strides: &[i64]| tensor(64, shape, strides).rows().unwrap();
        assert_eq!(rows(&[3, 4, 5], &[20, 5, 1]), [0..240]);
        assert_eq!(rows(&[2, 4], &[7, 1]), [0..16, 28..44]);
        assert_eq!(rows(&[2, 2, 3], &[3, 10, 1]), [0..12, 40..52, 12..24, 52..64], "in row-major order");
        assert_eq!(rows(&[0, 4], &[4, 1]), []);
        assert_eq!(rows(&[], &[]), [0..4]);
        assert_eq!(rows(&[3, 1], &[1, 9]), [0..12], "the stride of a single element says nothing");
        assert_eq!(tensor(0, &[2, 2], &[1, 2]).rows(), None);
    }

    #[test]
    fn packed_rows_begin_at_bytes() {
        let packed = |strides: &[i64]| Tensor { bits: 4, ..tensor(0, &[2, 6], strides) };
        assert_eq!(packed(&[6, 1]).rows().unwrap(), [0..6]);
        assert_eq!(packed(&[8, 1]).rows().unwrap(), [0..3, 4..7]);
        assert_eq!(packed(&[7, 1]).rows(), None);
    }

    #[test]
    fn what_cannot_be_reached_is_said() {
        let of = |shape: &[i64], strides: &[i64]| Tensor {
            shape: shape.to_vec(),
            strides: strides.to_vec(),
            ..tensor(0, &[], &[])
        };
        assert_eq!(of(&[2, -1], &[1, 1]).reach().unwrap_err(), "has the extent -1 in shape [2, -1]");
        assert_eq!(of(&[2, 2], &[-2, 1]).reach().unwrap_err(), "has the stride -2 in strides [-2, 1]");
        assert!(of(&[i64::MAX, 3], &[i64::MAX, 1]).reach().unwrap_err().contains("beyond 2^63"));
    }

    proptest! {
        #[test]
        fn rows_cover_every_element_and_end_at_the_reach(
            shape in prop::collection::vec(0..4_i64, 0..4),
            gaps in prop::collection::vec(0..3_i64, 4),
        ) {
            let mut strides = vec![1_i64; shape.len()];
            for dim in (0..shape.len().saturating_sub(1)).rev() {
                strides[dim] = strides[dim + 1] * shape[dim + 1].max(1) + gaps[dim];
            }
            let tensor = tensor(0, &shape, &strides);
            let rows = tensor.rows().unwrap();
            let bytes: u64 = rows.iter().map(|row| row.end - row.start).sum();
            prop_assert_eq!(bytes, tensor.elements() * 4);
            prop_assert_eq!(rows.iter().map(|row| row.end).max().unwrap_or(0), tensor.reach().unwrap());
            prop_assert_eq!(tensor.addresses().iter().map(|r| r.end - r.start).sum::<u64>(), bytes);
        }
    }
}
