//! Tensors and calls as host values: what generators make, oracles read and devices are given.

use std::collections::BTreeMap;
use std::fmt;

use deepinfer_ops::{Format, OpInfo, Tensor};
use deepinfer_plugin_api::op_by_name;

use crate::oracle::formats;

/// A contiguous tensor of any format.
#[derive(Clone, PartialEq)]
pub(crate) struct HostTensor {
    pub(crate) format: Format,
    pub(crate) shape: Vec<usize>,
    pub(crate) codes: Vec<u8>,
    /// Empty for plain formats.
    pub(crate) scales: Vec<u8>,
}

impl HostTensor {
    /// A tensor whose bytes are all `byte`.
    pub(crate) fn filled(format: Format, shape: &[usize], byte: u8) -> Self {
        let scales = Tensor::scale_shape(format, shape).map_or(0, |grid| grid.iter().product());
        Self {
            format,
            shape: shape.to_vec(),
            codes: vec![byte; Tensor::bytes_of(format, shape)],
            scales: vec![byte; scales],
        }
    }

    /// Values rounded to a float format, plain or quantised.
    pub(crate) fn floats(format: Format, shape: &[usize], values: &[f32]) -> Self {
        assert_eq!(values.len(), shape.iter().product::<usize>());
        let mut out = Self::filled(format, shape, 0);
        match format {
            Format::F32 => out.codes = values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            Format::Bf16 => out.codes = values.iter().flat_map(|&v| formats::bf16_bits(v).to_le_bytes()).collect(),
            _ => formats::quantize(values, &mut out),
        }
        out
    }

    pub(crate) fn i32(shape: &[usize], values: &[i32]) -> Self {
        assert_eq!(values.len(), shape.iter().product::<usize>());
        let codes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Self { format: Format::I32, shape: shape.to_vec(), codes, scales: Vec::new() }
    }

    pub(crate) fn i64(shape: &[usize], values: &[i64]) -> Self {
        assert_eq!(values.len(), shape.iter().product::<usize>());
        let codes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Self { format: Format::I64, shape: shape.to_vec(), codes, scales: Vec::new() }
    }

    pub(crate) fn u8(shape: &[usize], codes: Vec<u8>) -> Self {
        assert_eq!(codes.len(), shape.iter().product::<usize>());
        Self { format: Format::U8, shape: shape.to_vec(), codes, scales: Vec::new() }
    }

    /// Number of elements.
    pub(crate) fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// The values that a float format stands for; a product with a scale is rounded to F32 as the catalogue says.
    pub(crate) fn values(&self) -> Vec<f32> {
        match self.format {
            Format::F32 => self.words().map(f32::from_bits).collect(),
            Format::Bf16 => {
                self.codes.chunks_exact(2).map(|c| f32::from_bits(u32::from_le_bytes([0, 0, c[0], c[1]]))).collect()
            }
            _ => formats::dequantize(self),
        }
    }

    /// [`HostTensor::values`] in f64.
    pub(crate) fn wide(&self) -> Vec<f64> {
        self.values().into_iter().map(f64::from).collect()
    }

    /// The values of an integer format.
    pub(crate) fn ints(&self) -> Vec<i64> {
        match self.format {
            Format::I32 => self.words().map(|w| i64::from(w as i32)).collect(),
            Format::I64 => {
                self.codes.chunks_exact(8).map(|c| i64::from_le_bytes(c.try_into().expect("eight bytes"))).collect()
            }
            Format::U8 => self.codes.iter().map(|&b| i64::from(b)).collect(),
            other => panic!("{other} has no integers"),
        }
    }

    fn words(&self) -> impl Iterator<Item = u32> {
        self.codes.chunks_exact(4).map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]]))
    }

    /// Bytes of one element; FP4 has none.
    pub(crate) fn element_bytes(&self) -> Option<usize> {
        let bits = self.format.code_bits().1 as usize;
        (bits >= 8).then_some(bits / 8)
    }

    /// The slices `index` of dimension `dim`, in that order. The last dimension of a quantised tensor and a dimension
    /// under tile scales stay whole or become empty.
    pub(crate) fn select(&self, dim: usize, index: &[usize]) -> Self {
        let mut shape = self.shape.clone();
        shape[dim] = index.len();
        let pick = |bytes: &[u8]| {
            let outer: usize = self.shape[..dim].iter().product();
            // Bytes under one index of `dim`; zero when nothing is left to pick.
            let chunk = if bytes.is_empty() { 0 } else { bytes.len() / (outer * self.shape[dim]) };
            let mut out = Vec::with_capacity(outer * index.len() * chunk);
            for o in 0..outer {
                for &i in index {
                    out.extend_from_slice(&bytes[(o * self.shape[dim] + i) * chunk..][..chunk]);
                }
            }
            out
        };
        Self { format: self.format, codes: pick(&self.codes), scales: pick(&self.scales), shape }
    }

    /// Whether both have the same bits, but for sign and payload of a NaN: arithmetic does not define them.
    pub(crate) fn same_but_nan(&self, other: &Self) -> bool {
        if self == other {
            return true;
        }
        let is_nan: Vec<[bool; 2]> = match self.format {
            Format::F32 | Format::Bf16 => {
                self.values().iter().zip(other.values()).map(|(a, b)| [a.is_nan(), b.is_nan()]).collect()
            }
            Format::Fp8Row32 => {
                self.codes.iter().zip(&other.codes).map(|(a, b)| [a | 0x80 == 0xFF, b | 0x80 == 0xFF]).collect()
            }
            _ => return false,
        };
        (self.format, &self.shape, &self.scales) == (other.format, &other.shape, &other.scales)
            && is_nan.iter().enumerate().all(|(i, nan)| *nan == [true; 2] || self.element(i) == other.element(i))
    }

    /// The byte range of element `i` of a format of whole bytes.
    pub(crate) fn element(&self, i: usize) -> &[u8] {
        let size = self.element_bytes().expect("whole bytes");
        &self.codes[i * size..(i + 1) * size]
    }

    /// Overwrites element `i` of a format of whole bytes.
    pub(crate) fn set_element(&mut self, i: usize, bytes: &[u8]) {
        self.codes[i * bytes.len()..(i + 1) * bytes.len()].copy_from_slice(bytes);
    }
}

/// One argument.
#[derive(Clone)]
pub(crate) enum Value {
    Tensor(HostTensor),
    List(Vec<HostTensor>),
    U32(u32),
    I32(i32),
    F32(f32),
    /// An optional tensor that is not given.
    Absent,
}

/// A call of an op with all its arguments. Outputs hold what is in their memory before the call.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) op: &'static OpInfo,
    pub(crate) args: BTreeMap<&'static str, Value>,
}

impl Call {
    /// A call without arguments yet.
    pub(crate) fn new(op: &str) -> Self {
        Self { op: op_by_name(op).unwrap_or_else(|| panic!("no op {op}")), args: BTreeMap::new() }
    }

    /// Adds or replaces an argument.
    pub(crate) fn set(&mut self, name: &'static str, value: Value) {
        assert!(self.op.args.iter().any(|arg| arg.name == name), "{} has no argument {name}", self.op.name);
        self.args.insert(name, value);
    }

    pub(crate) fn value(&self, name: &str) -> &Value {
        self.args.get(name).unwrap_or_else(|| panic!("the generator of {} makes no {name}", self.op.name))
    }

    /// A tensor argument.
    pub(crate) fn tensor(&self, name: &str) -> &HostTensor {
        self.optional(name).unwrap_or_else(|| panic!("{}: {name} is absent", self.op.name))
    }

    /// A tensor argument to change.
    pub(crate) fn tensor_mut(&mut self, name: &str) -> &mut HostTensor {
        match self.args.get_mut(name) {
            Some(Value::Tensor(tensor)) => tensor,
            _ => panic!("{}: {name} is no tensor", self.op.name),
        }
    }

    /// An optional tensor argument.
    pub(crate) fn optional(&self, name: &str) -> Option<&HostTensor> {
        match self.value(name) {
            Value::Tensor(tensor) => Some(tensor),
            Value::Absent => None,
            _ => panic!("{}: {name} is no tensor", self.op.name),
        }
    }

    /// The tensors of a list argument.
    pub(crate) fn list(&self, name: &str) -> &[HostTensor] {
        match self.value(name) {
            Value::List(list) => list,
            _ => panic!("{}: {name} is no list", self.op.name),
        }
    }

    /// A scalar argument as a size.
    pub(crate) fn size(&self, name: &str) -> usize {
        match self.value(name) {
            Value::U32(v) => *v as usize,
            _ => panic!("{}: {name} is no u32", self.op.name),
        }
    }

    /// A scalar argument in f64.
    pub(crate) fn real(&self, name: &str) -> f64 {
        match self.value(name) {
            Value::F32(v) => f64::from(*v),
            _ => panic!("{}: {name} is no f32", self.op.name),
        }
    }

    /// An extent of a tensor argument.
    pub(crate) fn dim(&self, name: &str, dim: usize) -> usize {
        self.tensor(name).shape[dim]
    }

    /// Keeps the slices `index` of every tensor dimension that the catalogue gives the extent `symbol`.
    pub(crate) fn select(&self, symbol: &str, index: &[usize]) -> Call {
        let mut out = self.clone();
        for arg in self.op.args {
            for (dim, extent) in arg.shape.iter().enumerate() {
                match out.args.get_mut(arg.name) {
                    _ if *extent != symbol => {}
                    Some(Value::Tensor(tensor)) => *tensor = tensor.select(dim, index),
                    Some(Value::List(list)) => list.iter_mut().for_each(|tensor| *tensor = tensor.select(dim, index)),
                    _ => {}
                }
            }
        }
        out
    }

    /// The extent that `symbol` has in this call.
    pub(crate) fn extent(&self, symbol: &str) -> usize {
        let found = self.op.args.iter().find_map(|arg| {
            let dim = arg.shape.iter().position(|extent| *extent == symbol)?;
            match self.args.get(arg.name)? {
                Value::Tensor(tensor) => Some(tensor.shape[dim]),
                _ => None,
            }
        });
        found.unwrap_or_else(|| panic!("{} has no extent {symbol}", self.op.name))
    }
}

impl Call {
    /// Formats of the tensors whose format is a choice, as `x=BF16 out=F32`.
    pub(crate) fn formats(&self) -> String {
        let mut parts = Vec::new();
        for arg in self.op.args.iter().filter(|arg| arg.formats.count_ones() > 1) {
            match self.args.get(arg.name) {
                Some(Value::Tensor(tensor)) => parts.push(format!("{}={}", arg.name, tensor.format)),
                // The first one is the one that is drawn from all formats.
                Some(Value::List(list)) => parts.extend(list.first().map(|t| format!("{}={}", arg.name, t.format))),
                _ => {}
            }
        }
        parts.join(" ")
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.op.name)?;
        for (name, value) in self.op.args.iter().filter_map(|arg| self.args.get_key_value(arg.name)) {
            match value {
                Value::Tensor(t) => write!(f, " {name}={}{:?}", t.format, t.shape)?,
                Value::List(list) => {
                    let formats: Vec<&str> = list.iter().map(|t| t.format.name()).collect();
                    write!(f, " {name}={formats:?}")?;
                }
                Value::U32(v) => write!(f, " {name}={v}")?,
                Value::I32(v) => write!(f, " {name}={v}")?,
                Value::F32(v) => write!(f, " {name}={v:e}")?,
                Value::Absent => write!(f, " {name}=absent")?,
            }
        }
        Ok(())
    }
}
