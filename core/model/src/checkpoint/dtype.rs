//! Element types of stored tensors.

use std::fmt;

use safetensors::Dtype;

/// Element type of a stored tensor. The five named ones occur in a checkpoint of this model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredDtype {
    /// FP8 with 4 exponent and 3 mantissa bits, one byte.
    F8E4M3,
    /// A power of two, one byte: 2^(byte - 127).
    F8E8M0,
    /// One byte; in this model two packed E2M1 (FP4) codes.
    I8,
    /// The upper half of an f32, two bytes.
    Bf16,
    /// IEEE single precision, four bytes.
    F32,
    /// Any other safetensors type; never the type of a tensor that the model needs.
    Other(Dtype),
}

impl StoredDtype {
    /// Bits per element; whole bytes for all but some [`StoredDtype::Other`].
    pub fn bits(self) -> u64 {
        self.safetensors().bitsize() as u64
    }

    fn safetensors(self) -> Dtype {
        match self {
            Self::F8E4M3 => Dtype::F8_E4M3,
            Self::F8E8M0 => Dtype::F8_E8M0,
            Self::I8 => Dtype::I8,
            Self::Bf16 => Dtype::BF16,
            Self::F32 => Dtype::F32,
            Self::Other(dtype) => dtype,
        }
    }
}

impl From<Dtype> for StoredDtype {
    fn from(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F8_E4M3 => Self::F8E4M3,
            Dtype::F8_E8M0 => Self::F8E8M0,
            Dtype::I8 => Self::I8,
            Dtype::BF16 => Self::Bf16,
            Dtype::F32 => Self::F32,
            other => Self::Other(other),
        }
    }
}

impl fmt::Display for StoredDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.safetensors().fmt(f)
    }
}
