//! Files of golden vectors, which the PyTorch reference of the model wrote.

use std::path::Path;

use deepinfer_plugin_api::numerics::Bf16;
use safetensors::{Dtype, SafeTensors};

/// One file.
pub(crate) struct Golden {
    name: &'static str,
    bytes: Vec<u8>,
}

impl Golden {
    /// Opens `name.safetensors` of the fixtures.
    pub(crate) fn open(name: &'static str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/golden");
        let path = folder.join(name).with_extension("safetensors");
        Self { name, bytes: std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())) }
    }

    fn elements<const N: usize>(&self, tensor: &str, dtype: Dtype) -> Vec<[u8; N]> {
        let file = SafeTensors::deserialize(&self.bytes).unwrap();
        let view = file.tensor(tensor).unwrap_or_else(|error| panic!("{} of {}: {error}", tensor, self.name));
        assert_eq!(view.dtype(), dtype, "{tensor}");
        view.data().as_chunks::<N>().0.to_vec()
    }

    /// F32 values.
    pub(crate) fn f32(&self, tensor: &str) -> Vec<f32> {
        self.elements(tensor, Dtype::F32).into_iter().map(f32::from_le_bytes).collect()
    }

    /// BF16 values as F32.
    pub(crate) fn bf16(&self, tensor: &str) -> Vec<f32> {
        self.elements(tensor, Dtype::BF16).into_iter().map(|b| Bf16(u16::from_le_bytes(b)).to_f32()).collect()
    }

    /// 32-bit integers.
    pub(crate) fn i32(&self, tensor: &str) -> Vec<i32> {
        self.elements(tensor, Dtype::I32).into_iter().map(i32::from_le_bytes).collect()
    }

    /// 64-bit integers.
    pub(crate) fn i64(&self, tensor: &str) -> Vec<i64> {
        self.elements(tensor, Dtype::I64).into_iter().map(i64::from_le_bytes).collect()
    }

    /// 64-bit integers that are small.
    pub(crate) fn small(&self, tensor: &str) -> Vec<i32> {
        self.i64(tensor).into_iter().map(|v| i32::try_from(v).expect("a small integer")).collect()
    }

    /// Bytes.
    pub(crate) fn u8(&self, tensor: &str) -> Vec<u8> {
        self.elements::<1>(tensor, Dtype::U8).into_iter().flatten().collect()
    }
}

/// Checks `|ours - golden| <= absolute + relative * |golden|` for every element.
#[track_caller]
pub(crate) fn assert_close(ours: &[f32], golden: &[f32], absolute: f32, relative: f32) {
    assert_eq!(ours.len(), golden.len());
    for (i, (ours, golden)) in ours.iter().zip(golden).enumerate() {
        let bound = absolute + relative * golden.abs();
        assert!((ours - golden).abs() <= bound, "element {i}: {ours} instead of {golden}, beyond {bound:e}");
    }
}
