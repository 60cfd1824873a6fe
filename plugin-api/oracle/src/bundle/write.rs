//! From a bundle to the bytes of its file.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use deepinfer_plugin_api::Format;
use safetensors::{Dtype, View};

use super::{Argument, Bundle, BundleError, Document, FoundBy, KEY, Named, Tensor, VERSION};
use crate::call::Value;
use crate::tensor::HostTensor;

/// Element type of a format in the file.
pub(super) fn dtype(format: Format) -> Dtype {
    match format {
        Format::F32 => Dtype::F32,
        Format::Bf16 => Dtype::BF16,
        Format::I32 => Dtype::I32,
        Format::I64 => Dtype::I64,
        Format::Fp8Row32 | Format::Fp8Tile32 => Dtype::F8_E4M3,
        Format::U8 | Format::Fp4Row32 | Format::Fp4Row16 => Dtype::U8,
    }
}

/// Shape of the elements in the file: that of the tensor, or a row of bytes for packed ones.
pub(super) fn stored_shape(format: Format, shape: &[usize], bytes: usize) -> Vec<usize> {
    if format.code_bits().1 < 8 { vec![bytes] } else { shape.to_vec() }
}

/// Bytes as an entry of the file.
struct Entry<'a> {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: &'a [u8],
}

impl View for Entry<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self.bytes)
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

fn add<'a>(entries: &mut BTreeMap<String, Entry<'a>>, name: &str, tensor: &'a HostTensor) -> Tensor {
    let HostTensor { format, shape, codes, scales } = tensor;
    let stored = Entry { dtype: dtype(*format), shape: stored_shape(*format, shape, codes.len()), bytes: codes };
    entries.insert(name.to_owned(), stored);
    if format.scale().is_some() {
        // E4M3 and UE8M0 alike: the format says which.
        let stored = Entry { dtype: Dtype::U8, shape: vec![scales.len()], bytes: scales };
        entries.insert(format!("{name}.scale"), stored);
    }
    Tensor { format: format.name().to_owned(), shape: shape.clone() }
}

impl Bundle {
    /// The bytes of its file.
    ///
    /// # Errors
    /// The call is malformed.
    pub fn to_bytes(&self) -> Result<Vec<u8>, BundleError> {
        let Self { call, case, seed, problem, found } = self;
        call.extents()?;
        let mut entries = BTreeMap::new();
        let mut arguments = BTreeMap::new();
        for (&name, value) in &call.args {
            let argument = match value {
                Value::Tensor(tensor) => Argument::Tensor(add(&mut entries, &format!("call.{name}"), tensor)),
                Value::List(list) => {
                    let tensors = list.iter().enumerate();
                    Argument::List(tensors.map(|(i, t)| add(&mut entries, &format!("call.{name}.{i}"), t)).collect())
                }
                Value::U32(number) => Argument::U32(*number),
                Value::I32(number) => Argument::I32(*number),
                Value::F32(number) => Argument::F32(number.to_string()),
                Value::Absent => Argument::Absent,
            };
            arguments.insert(name.to_owned(), argument);
        }
        let found = found.as_ref().map(|found| {
            for (name, tensor) in &found.outputs {
                add(&mut entries, &format!("found.{name}"), tensor);
            }
            let outputs = found.outputs.keys().map(|name| (*name).to_owned()).collect();
            FoundBy { backend: found.backend.clone(), outputs }
        });
        let op = Named { name: call.op.name.to_owned(), id: call.op.id, version: call.op.version };
        let (case, problem) = (case.clone(), problem.clone());
        let document = Document { version: VERSION, op, arguments, case, seed: *seed, problem, found };
        let metadata = HashMap::from([(KEY.to_owned(), serde_json::to_string(&document)?)]);
        safetensors::serialize(entries, Some(metadata)).map_err(|error| BundleError::Container(error.to_string()))
    }
}
