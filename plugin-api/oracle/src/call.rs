//! A call of an op as host values.

use std::collections::BTreeMap;
use std::fmt;

use deepinfer_plugin_api::{ArgError, Arguments, Described, Extents, OpInfo};

use crate::tensor::HostTensor;

/// One argument.
#[derive(Clone, PartialEq)]
pub enum Value {
    /// A tensor.
    Tensor(HostTensor),
    /// A list of tensors.
    List(Vec<HostTensor>),
    /// A number or an extent.
    U32(u32),
    /// A number.
    I32(i32),
    /// A number.
    F32(f32),
    /// An optional tensor that is not given.
    Absent,
}

/// A call of an op with all its arguments. Outputs hold what is in their memory before the call.
#[derive(Clone)]
pub struct Call {
    /// Reflection row of the op.
    pub op: &'static OpInfo,
    /// Arguments by name.
    pub args: BTreeMap<&'static str, Value>,
}

impl Call {
    /// A call without arguments yet.
    pub fn new(op: &'static OpInfo) -> Self {
        Self { op, args: BTreeMap::new() }
    }

    /// Adds or replaces an argument.
    ///
    /// # Panics
    /// If the op has no argument of this name.
    pub fn set(&mut self, name: &'static str, value: Value) {
        assert!(self.op.args.iter().any(|arg| arg.name == name), "{} has no argument {name}", self.op.name);
        self.args.insert(name, value);
    }

    /// An argument.
    ///
    /// # Panics
    /// If it was not set.
    pub fn value(&self, name: &str) -> &Value {
        self.args.get(name).unwrap_or_else(|| panic!("{}: {name} is not set", self.op.name))
    }

    /// A tensor argument.
    ///
    /// # Panics
    /// If it is absent, was not set, or is no tensor.
    pub fn tensor(&self, name: &str) -> &HostTensor {
        self.optional(name).unwrap_or_else(|| panic!("{}: {name} is absent", self.op.name))
    }

    /// A tensor argument to change.
    ///
    /// # Panics
    /// If it is absent, was not set, or is no tensor.
    pub fn tensor_mut(&mut self, name: &str) -> &mut HostTensor {
        match self.args.get_mut(name) {
            Some(Value::Tensor(tensor)) => tensor,
            _ => panic!("{}: {name} is no tensor", self.op.name),
        }
    }

    /// An optional tensor argument.
    ///
    /// # Panics
    /// If it was not set or is no tensor.
    pub fn optional(&self, name: &str) -> Option<&HostTensor> {
        match self.value(name) {
            Value::Tensor(tensor) => Some(tensor),
            Value::Absent => None,
            _ => panic!("{}: {name} is no tensor", self.op.name),
        }
    }

    /// The tensors of a list argument.
    ///
    /// # Panics
    /// If it was not set or is no list.
    pub fn list(&self, name: &str) -> &[HostTensor] {
        match self.value(name) {
            Value::List(list) => list,
            _ => panic!("{}: {name} is no list", self.op.name),
        }
    }

    /// A scalar argument as a size.
    ///
    /// # Panics
    /// If it was not set or is no `u32`.
    pub fn size(&self, name: &str) -> usize {
        match self.value(name) {
            Value::U32(v) => *v as usize,
            _ => panic!("{}: {name} is no u32", self.op.name),
        }
    }

    /// A scalar argument in F64.
    ///
    /// # Panics
    /// If it was not set or is no `f32`.
    pub fn real(&self, name: &str) -> f64 {
        match self.value(name) {
            Value::F32(v) => f64::from(*v),
            _ => panic!("{}: {name} is no f32", self.op.name),
        }
    }

    /// An extent of a tensor argument.
    ///
    /// # Panics
    /// As [`Call::tensor`], or if there is no such dimension.
    pub fn dim(&self, name: &str, dim: usize) -> usize {
        self.tensor(name).shape[dim]
    }

    /// Keeps the slices `index` of every tensor dimension that the catalogue gives the extent `symbol`.
    ///
    /// # Panics
    /// As [`HostTensor::select`].
    pub fn select(&self, symbol: &str, index: &[usize]) -> Call {
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

    /// Checks formats, ranks and extents of the arguments, and gives the extents.
    ///
    /// # Errors
    /// Names the argument, what it has and what it needs.
    pub fn extents(&self) -> Result<Extents, ArgError> {
        let mut arguments = Arguments::default();
        let described = |tensor: &HostTensor| Described::new(tensor.format, &tensor.shape);
        for (&name, value) in &self.args {
            match value {
                Value::Tensor(tensor) => arguments.tensor(name, described(tensor)),
                Value::List(list) => arguments.list(name, list.iter().map(described).collect()),
                Value::U32(number) => arguments.number(name, *number),
                Value::I32(_) | Value::F32(_) | Value::Absent => {}
            }
        }
        (self.op.extents)(&arguments)
    }

    /// The extent that `symbol` has in this call.
    ///
    /// # Panics
    /// If no tensor of the call has it.
    pub fn extent(&self, symbol: &str) -> usize {
        let found = self.op.args.iter().find_map(|arg| {
            let dim = arg.shape.iter().position(|extent| *extent == symbol)?;
            match self.args.get(arg.name)? {
                Value::Tensor(tensor) => Some(tensor.shape[dim]),
                _ => None,
            }
        });
        found.unwrap_or_else(|| panic!("{} has no extent {symbol}", self.op.name))
    }

    /// Formats of the tensors whose format is a choice, as `x=BF16 out=F32`.
    pub fn formats(&self) -> String {
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
