//! From the bytes of a file to a bundle. Nothing in the file is believed: formats, sizes and shapes are checked against each
//! other, and the call against the catalogue.

use std::collections::BTreeSet;

use deepinfer_plugin_api::{ArgInfo, Format, Kind, OpInfo, Role, op_by_id, op_by_name};
use safetensors::{Dtype, SafeTensors};

use super::write::{dtype, stored_shape};
use super::{Argument, Bundle, BundleError, Document, Found, KEY, Named, Tensor, VERSION, Versioned};
use crate::call::{Call, Value};
use crate::judge::Outputs;
use crate::tensor::HostTensor;

/// Most dimensions of a tensor.
const MAX_RANK: usize = 4;

impl Bundle {
    /// Reads the bytes of a file.
    ///
    /// # Errors
    /// What they have and what a bundle needs. The call that is given is well formed: its arguments are those of the op in
    /// this catalogue, with formats, ranks and extents that agree. Values are not checked: an index may point anywhere.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, BundleError> {
        let container = |error: safetensors::SafeTensorError| BundleError::Container(error.to_string());
        let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(container)?;
        let text = metadata.metadata().as_ref().and_then(|map| map.get(KEY)).ok_or(BundleError::NoMetadata)?;
        let Versioned { version } = serde_json::from_str(text)?;
        if version != VERSION {
            return Err(BundleError::Version { found: version });
        }
        let document: Document = serde_json::from_str(text)?;
        let mut file = Tensors { file: SafeTensors::deserialize(bytes).map_err(container)?, read: BTreeSet::new() };
        let op = op_of(&document.op)?;
        if let Some(name) = document.arguments.keys().find(|name| op.args.iter().all(|arg| arg.name != **name)) {
            return Err(wrong(name, format!("is no argument of {}", op.name)));
        }
        let mut call = Call::new(op);
        for arg in op.args {
            let argument = document.arguments.get(arg.name).ok_or_else(|| wrong(arg.name, "is missing"))?;
            call.set(arg.name, value_of(&mut file, arg, argument)?);
        }
        call.extents()?;
        let found = match &document.found {
            None => None,
            Some(found) => {
                let mut outputs = Outputs::new();
                for name in &found.outputs {
                    let (name, before) = output_of(&call, name)?;
                    let described = Tensor { format: before.format.name().to_owned(), shape: before.shape.clone() };
                    outputs.insert(name, file.tensor(&format!("found.{name}"), &described)?);
                }
                Some(Found { backend: found.backend.clone(), outputs })
            }
        };
        file.has_nothing_else()?;
        let Document { case, seed, problem, .. } = document;
        Ok(Self { call, case, seed, problem, found })
    }
}

fn wrong(argument: &str, problem: impl Into<String>) -> BundleError {
    BundleError::Argument { argument: argument.to_owned(), problem: problem.into() }
}

/// The row of the op, if the catalogue has it with the same meaning.
fn op_of(named: &Named) -> Result<&'static OpInfo, BundleError> {
    let Named { name, id, version } = named;
    let here = op_by_name(name).or_else(|| op_by_id(*id));
    here.filter(|op| (op.name, op.id, op.version) == (name, *id, *version)).ok_or_else(|| BundleError::Op {
        name: name.clone(),
        id: *id,
        version: *version,
        here: here.map_or_else(
            || "no such op".to_owned(),
            |op| format!("{} (id {}, version {})", op.name, op.id, op.version),
        ),
    })
}

fn value_of(file: &mut Tensors<'_>, arg: &ArgInfo, argument: &Argument) -> Result<Value, BundleError> {
    let name = arg.name;
    let entry = format!("call.{name}");
    Ok(match (arg.kind, argument) {
        (Kind::Tensor, Argument::Tensor(described)) => Value::Tensor(file.tensor(&entry, described)?),
        (Kind::Tensor, Argument::Absent) if arg.optional => Value::Absent,
        (Kind::TensorList, Argument::List(list)) => {
            let mut tensors = Vec::new();
            for (i, described) in list.iter().enumerate() {
                tensors.push(file.tensor(&format!("{entry}.{i}"), described)?);
            }
            Value::List(tensors)
        }
        (Kind::U32, Argument::U32(number)) => Value::U32(*number),
        (Kind::I32, Argument::I32(number)) => Value::I32(*number),
        (Kind::F32, Argument::F32(text)) => {
            Value::F32(text.parse().map_err(|_| wrong(name, format!("is {text:?}, which is no number")))?)
        }
        (_, Argument::Absent) => return Err(wrong(name, "is absent, but must be there")),
        (kind, _) => return Err(wrong(name, format!("is of another kind than {kind:?}"))),
    })
}

/// The output of a name, as it was before the call.
fn output_of<'a>(call: &'a Call, name: &str) -> Result<(&'static str, &'a HostTensor), BundleError> {
    let arg = call.op.args.iter().find(|arg| arg.name == name && arg.role != Role::In);
    let arg = arg.ok_or_else(|| wrong(name, format!("is no output of {}", call.op.name)))?;
    match call.args.get(arg.name) {
        Some(Value::Tensor(before)) => Ok((arg.name, before)),
        _ => Err(wrong(name, "was found, but is absent in the call")),
    }
}

/// The tensors of a file, and which of them were read.
struct Tensors<'a> {
    file: SafeTensors<'a>,
    read: BTreeSet<String>,
}

impl Tensors<'_> {
    fn tensor(&mut self, name: &str, described: &Tensor) -> Result<HostTensor, BundleError> {
        let Tensor { format, shape } = described;
        let known = Format::ALL.into_iter().find(|known| known.name() == format);
        let format = known.ok_or_else(|| wrong(name, format!("has the unknown format {format:?}")))?;
        let least = if format.scale().is_some() { 2 } else { 1 };
        if !(least..=MAX_RANK).contains(&shape.len()) {
            return Err(wrong(name, format!("has shape {shape:?}, but {format} has {least} to {MAX_RANK} dimensions")));
        }
        // More elements than a file can hold are no elements that `Format::bytes` can count.
        // Extents are signed at the boundary; a zero beside them would hide one that is too large.
        let are_extents = shape.iter().all(|&extent| i64::try_from(extent).is_ok());
        let elements = shape.iter().try_fold(1usize, |product, &extent| product.checked_mul(extent));
        let elements = elements.filter(|_| are_extents);
        let elements = elements.filter(|&elements| elements < usize::MAX / 64);
        let elements = elements.ok_or_else(|| wrong(name, format!("has shape {shape:?}, which no memory holds")))?;
        let bytes = format.bytes(elements);
        let codes = self.bytes(name, dtype(format), &stored_shape(format, shape, bytes), bytes)?;
        let scales = match format.scale_grid(shape) {
            None => Vec::new(),
            Some(grid) => {
                let count = grid.iter().product();
                self.bytes(&format!("{name}.scale"), Dtype::U8, &[count], count)?
            }
        };
        Ok(HostTensor { format, shape: shape.clone(), codes, scales })
    }

    fn bytes(&mut self, name: &str, dtype: Dtype, shape: &[usize], bytes: usize) -> Result<Vec<u8>, BundleError> {
        let found = self.file.tensor(name).map_err(|_| wrong(name, "is not in the file"))?;
        if (found.dtype(), found.shape(), found.data().len()) != (dtype, shape, bytes) {
            let (was, of, data) = (found.dtype(), found.shape(), found.data().len());
            let problem = format!("is {was:?}{of:?} of {data} bytes in the file, but {dtype:?}{shape:?} of {bytes}");
            return Err(wrong(name, problem + " by its description"));
        }
        self.read.insert(name.to_owned());
        Ok(found.data().to_vec())
    }

    fn has_nothing_else(&self) -> Result<(), BundleError> {
        let other = self.file.names().into_iter().find(|name| !self.read.contains(*name));
        other.map_or(Ok(()), |name| Err(wrong(name, "is in the file, but no argument names it")))
    }
}
