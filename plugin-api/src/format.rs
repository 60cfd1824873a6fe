//! Formats of tensors and of cache entries.

use std::fmt;

use crate::abi::{
    DI_CODE_BFLOAT, DI_CODE_E2M1FN, DI_CODE_E4M3FN, DI_CODE_E8M0FNU, DI_CODE_FLOAT, DI_CODE_INT, DI_CODE_UINT,
};

/// Element type and scaling of a tensor, as the catalogue names them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Format {
    /// IEEE binary32.
    F32 = 0,
    /// bfloat16.
    Bf16 = 1,
    /// 32-bit integers.
    I32 = 2,
    /// 64-bit integers.
    I64 = 3,
    /// Bytes.
    U8 = 4,
    /// E4M3 with one UE8M0 scale per row and 32 columns.
    Fp8Row32 = 5,
    /// E4M3 with one UE8M0 scale per tile of 32 x 32.
    Fp8Tile32 = 6,
    /// Packed E2M1 with one UE8M0 scale per row and 32 columns.
    Fp4Row32 = 7,
    /// Packed E2M1 with one E4M3 scale per row and 16 columns.
    Fp4Row16 = 8,
}

impl Format {
    /// All formats; the position is the bit in masks.
    pub const ALL: [Format; 9] = [
        Format::F32,
        Format::Bf16,
        Format::I32,
        Format::I64,
        Format::U8,
        Format::Fp8Row32,
        Format::Fp8Tile32,
        Format::Fp4Row32,
        Format::Fp4Row16,
    ];

    /// Name in the catalogue.
    pub const fn name(self) -> &'static str {
        match self {
            Format::F32 => "F32",
            Format::Bf16 => "BF16",
            Format::I32 => "I32",
            Format::I64 => "I64",
            Format::U8 => "U8",
            Format::Fp8Row32 => "FP8_ROW32",
            Format::Fp8Tile32 => "FP8_TILE32",
            Format::Fp4Row32 => "FP4_ROW32",
            Format::Fp4Row16 => "FP4_ROW16",
        }
    }

    /// Bit in a format mask.
    pub const fn mask(self) -> u32 {
        1 << self as u8
    }

    /// Type code and bits of an element, as in `DiTensor`.
    pub const fn code_bits(self) -> (u8, u8) {
        match self {
            Format::F32 => (DI_CODE_FLOAT, 32),
            Format::Bf16 => (DI_CODE_BFLOAT, 16),
            Format::I32 => (DI_CODE_INT, 32),
            Format::I64 => (DI_CODE_INT, 64),
            Format::U8 => (DI_CODE_UINT, 8),
            Format::Fp8Row32 | Format::Fp8Tile32 => (DI_CODE_E4M3FN, 8),
            Format::Fp4Row32 | Format::Fp4Row16 => (DI_CODE_E2M1FN, 4),
        }
    }

    /// Bytes that `elements` take when contiguous; an odd FP4 element takes a byte of its own.
    pub const fn bytes(self, elements: usize) -> usize {
        (elements * self.code_bits().1 as usize).div_ceil(8)
    }

    /// Rows and columns under one scale, and the type code and bits of the scale; `None` for plain formats.
    pub const fn scale(self) -> Option<ScaleInfo> {
        let (rows, columns, code) = match self {
            Format::Fp8Row32 | Format::Fp4Row32 => (1, 32, DI_CODE_E8M0FNU),
            Format::Fp8Tile32 => (32, 32, DI_CODE_E8M0FNU),
            Format::Fp4Row16 => (1, 16, DI_CODE_E4M3FN),
            _ => return None,
        };
        Some(ScaleInfo { rows, columns, code })
    }

    /// Shape of the scales of a tensor, one byte each, in row-major order; `None` for plain formats.
    ///
    /// # Panics
    /// If the format is quantised and `shape` has fewer than two dimensions.
    pub fn scale_grid(self, shape: &[usize]) -> Option<Vec<usize>> {
        let info = self.scale()?;
        let rank = shape.len();
        assert!(rank >= 2, "quantised tensors have at least two dimensions");
        let mut grid = shape.to_vec();
        grid[rank - 2] = grid[rank - 2].div_ceil(info.rows);
        grid[rank - 1] = grid[rank - 1].div_ceil(info.columns);
        Some(grid)
    }

    /// The format with these element codes and this block of the last two dimensions, if the catalogue has it.
    pub fn from_parts(code: u8, bits: u8, scale: Option<ScaleInfo>) -> Option<Format> {
        Format::ALL.into_iter().find(|f| f.code_bits() == (code, bits) && f.scale() == scale)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What stands under one scale. Scales are one byte each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScaleInfo {
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub columns: usize,
    /// Type code of the scale.
    pub code: u8,
}

/// Layout of a cache entry; the discriminant is the `format` argument of the cache ops.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum CacheFormat {
    /// F32 values.
    F32 = 0,
    /// BF16 values.
    Bf16 = 1,
    /// E4M3 values, then their UE8M0 scales, one per 32 channels.
    Fp8 = 2,
    /// Packed E2M1 values, then their E4M3 scales, one per 16 channels.
    Fp4Row16 = 3,
    /// Packed E2M1 values of the whole page, then their UE8M0 scales, one per 32 channels.
    Fp4Row32 = 4,
}

impl CacheFormat {
    /// Name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            CacheFormat::F32 => "F32",
            CacheFormat::Bf16 => "BF16",
            CacheFormat::Fp8 => "FP8",
            CacheFormat::Fp4Row16 => "FP4_ROW16",
            CacheFormat::Fp4Row32 => "FP4_ROW32",
        }
    }

    /// The format with this number.
    pub const fn from_u32(number: u32) -> Option<CacheFormat> {
        Some(match number {
            0 => CacheFormat::F32,
            1 => CacheFormat::Bf16,
            2 => CacheFormat::Fp8,
            3 => CacheFormat::Fp4Row16,
            4 => CacheFormat::Fp4Row32,
            _ => return None,
        })
    }

    /// Bytes of the values of one entry of `dim` channels.
    ///
    /// # Panics
    /// If `dim` is not a multiple of the format's group.
    pub const fn value_bytes(self, dim: usize) -> usize {
        assert!(self.group() == 0 || dim.is_multiple_of(self.group()), "a cache entry consists of whole scale groups");
        match self {
            CacheFormat::F32 => dim * 4,
            CacheFormat::Bf16 => dim * 2,
            CacheFormat::Fp8 => dim,
            CacheFormat::Fp4Row16 | CacheFormat::Fp4Row32 => dim / 2,
        }
    }

    /// Channels under one scale; 0 for plain values.
    pub const fn group(self) -> usize {
        match self {
            CacheFormat::F32 | CacheFormat::Bf16 => 0,
            CacheFormat::Fp8 | CacheFormat::Fp4Row32 => 32,
            CacheFormat::Fp4Row16 => 16,
        }
    }

    /// Bytes of the scales of one entry of `dim` channels.
    pub const fn scale_bytes(self, dim: usize) -> usize {
        match self.group() {
            0 => 0,
            group => dim / group,
        }
    }

    /// Bytes of one entry of `dim` channels.
    pub const fn entry_bytes(self, dim: usize) -> usize {
        self.value_bytes(dim) + self.scale_bytes(dim)
    }

    /// Offsets of the values and of the scales of entry `index` within a page of `entries`.
    pub const fn offsets(self, dim: usize, entries: usize, index: usize) -> (usize, usize) {
        match self {
            CacheFormat::Fp4Row32 => {
                (index * self.value_bytes(dim), entries * self.value_bytes(dim) + index * self.scale_bytes(dim))
            }
            _ => {
                let start = index * self.entry_bytes(dim);
                (start, start + self.value_bytes(dim))
            }
        }
    }
}
