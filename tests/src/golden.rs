//! Golden files: safetensors made by an independent implementation.

use std::path::Path;

use safetensors::{Dtype, SafeTensors};

use crate::fixture;

/// An opened golden file.
pub struct Golden {
    name: String,
    bytes: Vec<u8>,
}

impl Golden {
    /// Opens `tests/fixtures/golden/NAME.safetensors`.
    ///
    /// # Panics
    /// If it cannot be read.
    pub fn open(name: &str) -> Self {
        let path = fixture("golden").join(format!("{name}.safetensors"));
        Self { name: name.to_owned(), bytes: read(&path) }
    }

    fn tensor<T>(&self, name: &str, dtype: Dtype, decode: impl Fn(&[u8]) -> Vec<T>) -> (Vec<T>, Vec<usize>) {
        let file = SafeTensors::deserialize(&self.bytes).unwrap_or_else(|e| panic!("{}: {e}", self.name));
        let view = file.tensor(name).unwrap_or_else(|e| panic!("{}, {name}: {e}", self.name));
        assert_eq!(view.dtype(), dtype, "{}, {name}", self.name);
        (decode(view.data()), view.shape().to_vec())
    }

    /// Names of all tensors.
    pub fn names(&self) -> Vec<String> {
        let file = SafeTensors::deserialize(&self.bytes).unwrap_or_else(|e| panic!("{}: {e}", self.name));
        file.names().into_iter().map(str::to_owned).collect()
    }

    /// An F32 tensor and its shape.
    pub fn f32(&self, name: &str) -> (Vec<f32>, Vec<usize>) {
        self.tensor(name, Dtype::F32, |b| {
            b.chunks_exact(4).map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect()
        })
    }

    /// The bits of a BF16 tensor and its shape.
    pub fn bf16(&self, name: &str) -> (Vec<u16>, Vec<usize>) {
        self.tensor(name, Dtype::BF16, |b| b.chunks_exact(2).map(|c| u16::from_le_bytes([c[0], c[1]])).collect())
    }

    /// An I64 tensor and its shape.
    pub fn i64(&self, name: &str) -> (Vec<i64>, Vec<usize>) {
        let decode =
            |b: &[u8]| b.chunks_exact(8).map(|c| i64::from_le_bytes(c.try_into().expect("eight bytes"))).collect();
        self.tensor(name, Dtype::I64, decode)
    }

    /// An I32 tensor and its shape.
    pub fn i32(&self, name: &str) -> (Vec<i32>, Vec<usize>) {
        self.tensor(name, Dtype::I32, |b| {
            b.chunks_exact(4).map(|c| i32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect()
        })
    }

    /// A U8 tensor and its shape.
    pub fn u8(&self, name: &str) -> (Vec<u8>, Vec<usize>) {
        self.tensor(name, Dtype::U8, <[u8]>::to_vec)
    }
}

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}
