//! Tensors on a device, made from and read back as host values.

use std::rc::Rc;

use deepinfer_ops::{Device, Format, Tensor};

/// Makes tensors on a device.
#[derive(Clone)]
pub struct Tensors(pub Rc<dyn Device>);

impl Tensors {
    /// A tensor of a plain format with these bytes.
    ///
    /// # Panics
    /// If the device fails or the sizes differ.
    pub fn from_bytes(&self, format: Format, shape: &[usize], bytes: &[u8]) -> Tensor {
        let size = Tensor::bytes_of(format, shape);
        assert_eq!(bytes.len(), size, "{format}{shape:?}");
        let memory = self.0.allocate(size).expect("device memory");
        let tensor = Tensor::plain(&memory, 0, format, shape);
        self.0.upload(&tensor, bytes).expect("upload");
        tensor
    }

    /// A quantised tensor with these codes and scales.
    ///
    /// # Panics
    /// If the device fails or the sizes differ.
    pub fn quantized(&self, format: Format, shape: &[usize], codes: &[u8], scales: &[u8]) -> Tensor {
        let grid = Tensor::scale_shape(format, shape).expect("a quantised format");
        assert_eq!(scales.len(), grid.iter().product::<usize>());
        let code_memory = self.0.allocate(codes.len()).expect("device memory");
        let scale_memory = self.0.allocate(scales.len()).expect("device memory");
        let tensor = Tensor::quantized((&code_memory, 0), (&scale_memory, 0), format, shape);
        self.0.upload(&tensor, codes).expect("upload");
        self.0.upload(&tensor.scale_as_bytes(), scales).expect("upload");
        tensor
    }

    /// F32 values.
    pub fn f32(&self, shape: &[usize], values: &[f32]) -> Tensor {
        self.from_bytes(Format::F32, shape, &f32_bytes(values))
    }

    /// F32 values rounded to BF16.
    pub fn bf16(&self, shape: &[usize], values: &[f32]) -> Tensor {
        self.from_bytes(Format::Bf16, shape, &bf16_bytes(values))
    }

    /// I32 values.
    pub fn i32(&self, shape: &[usize], values: &[i32]) -> Tensor {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.from_bytes(Format::I32, shape, &bytes)
    }

    /// I64 values.
    pub fn i64(&self, shape: &[usize], values: &[i64]) -> Tensor {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.from_bytes(Format::I64, shape, &bytes)
    }

    /// A tensor whose bytes are all 0xFF: NaN, or -1.
    ///
    /// # Panics
    /// If the device fails.
    pub fn poisoned(&self, format: Format, shape: &[usize]) -> Tensor {
        let codes = vec![0xFF; Tensor::bytes_of(format, shape)];
        match Tensor::scale_shape(format, shape) {
            None => self.from_bytes(format, shape, &codes),
            Some(grid) => self.quantized(format, shape, &codes, &vec![0xFF; grid.iter().product()]),
        }
    }

    /// The bytes of a contiguous tensor, without its scales.
    ///
    /// # Panics
    /// If the device fails or the tensor is strided.
    pub fn bytes(&self, tensor: &Tensor) -> Vec<u8> {
        assert!(tensor.is_contiguous());
        let mut bytes = vec![0; tensor.bytes()];
        self.0.download(tensor, &mut bytes).expect("download");
        bytes
    }

    /// The values of an F32 or BF16 tensor.
    ///
    /// # Panics
    /// As [`Tensors::bytes`], or for another format.
    pub fn floats(&self, tensor: &Tensor) -> Vec<f32> {
        let bytes = self.bytes(tensor);
        match tensor.format() {
            Some(Format::F32) => bytes.chunks_exact(4).map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect(),
            Some(Format::Bf16) => bytes.chunks_exact(2).map(|c| f32::from_le_bytes([0, 0, c[0], c[1]])).collect(),
            other => panic!("{other:?} has no floats"),
        }
    }

    /// The values of an I32 tensor.
    ///
    /// # Panics
    /// As [`Tensors::bytes`], or for another format.
    pub fn ints(&self, tensor: &Tensor) -> Vec<i32> {
        assert_eq!(tensor.format(), Some(Format::I32));
        self.bytes(tensor).chunks_exact(4).map(|c| i32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect()
    }
}

/// Little-endian bytes of F32 values.
pub fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// Little-endian bytes of F32 values rounded to BF16, to nearest, ties to even. Not for NaN.
pub fn bf16_bytes(values: &[f32]) -> Vec<u8> {
    let round = |v: &f32| {
        let bits = v.to_bits();
        ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16) as u16
    };
    values.iter().flat_map(|v| round(v).to_le_bytes()).collect()
}
