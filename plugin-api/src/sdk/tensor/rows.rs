//! Rows of tensors: shared, of any floating-point format, and writable.

use std::marker::PhantomData;

use deepinfer_numerics::{Bf16, e2m1, e4m3, ue8m0};

use crate::sdk::Fault;

use super::Element;
use super::meta::{Meta, RowLayout};

/// Rows of a tensor that is read. Leading dimensions are counted as one.
#[derive(Clone, Copy)]
pub struct Rows<'a, T> {
    base: *const T,
    layout: RowLayout,
    life: PhantomData<&'a [T]>,
}

// SAFETY: a shared view of memory that nobody writes during the call.
unsafe impl<T: Element> Send for Rows<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Element> Sync for Rows<'_, T> {}

impl<'a, T: Element> Rows<'a, T> {
    /// The rows of a tensor, `per_element` logical elements to a `T`.
    pub(super) fn of(meta: &Meta<'a>, per_element: usize) -> Result<Self, Fault> {
        Ok(Rows { base: meta.address().cast(), layout: meta.rows::<T>(per_element)?, life: PhantomData })
    }

    /// All rows as one slice, if they follow each other in memory.
    pub(super) fn whole(&self) -> Option<&'a [T]> {
        let elements = self.layout.count * self.layout.columns;
        if elements == 0 {
            return Some(&[]);
        }
        // SAFETY: contiguous, and bounded by `nbytes` as in `row`.
        self.layout.is_contiguous().then(|| unsafe { std::slice::from_raw_parts(self.base, elements) })
    }

    /// Number of rows.
    pub fn count(&self) -> usize {
        self.layout.count
    }

    /// Elements in a row (bytes, for packed formats).
    pub fn columns(&self) -> usize {
        self.layout.columns
    }

    /// One row.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, row: usize) -> &'a [T] {
        let offset = self.layout.offset(row);
        if self.layout.columns == 0 {
            return &[];
        }
        // SAFETY: `Meta::check_memory` bounded every row by `nbytes`, which the maker of the view vouched for.
        unsafe { std::slice::from_raw_parts(self.base.add(offset), self.layout.columns) }
    }
}

/// Rows of any floating-point format.
#[derive(Clone, Copy)]
pub enum FloatRows<'a> {
    /// F32 rows.
    F32(Rows<'a, f32>),
    /// BF16 rows.
    Bf16(Rows<'a, Bf16>),
    /// E4M3 codes and UE8M0 scales per 32.
    Fp8(Rows<'a, u8>, Rows<'a, u8>),
    /// Packed E2M1 codes, scales, and the group: 32 with UE8M0 scales, 16 with E4M3 scales.
    Fp4(Rows<'a, u8>, Rows<'a, u8>, usize),
}

impl<'a> FloatRows<'a> {
    /// Number of rows.
    pub fn count(&self) -> usize {
        match self {
            FloatRows::F32(rows) => rows.count(),
            FloatRows::Bf16(rows) => rows.count(),
            FloatRows::Fp8(codes, _) | FloatRows::Fp4(codes, ..) => codes.count(),
        }
    }

    /// Row `row` as F32: the row itself when it is F32, else decoded into `scratch`, which is resized. Every value is
    /// `element * scale`, one F32 product.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn load<'s>(&self, row: usize, scratch: &'s mut Vec<f32>) -> &'s [f32]
    where
        'a: 's,
    {
        match self {
            FloatRows::F32(rows) => rows.row(row),
            FloatRows::Bf16(rows) => {
                scratch.clear();
                scratch.extend(rows.row(row).iter().map(|v| v.to_f32()));
                scratch
            }
            FloatRows::Fp8(codes, scales) => {
                let (codes, scales) = (codes.row(row), scales.row(row));
                scratch.clear();
                for (group, &scale) in codes.chunks(32).zip(scales) {
                    let scale = ue8m0::decode(scale);
                    scratch.extend(group.iter().map(|&code| e4m3::TABLE[code as usize] * scale));
                }
                scratch
            }
            FloatRows::Fp4(codes, scales, group) => {
                let (codes, scales) = (codes.row(row), scales.row(row));
                scratch.clear();
                for (bytes, &scale) in codes.chunks(group / 2).zip(scales) {
                    let scale = if *group == 32 { ue8m0::decode(scale) } else { e4m3::decode(scale) };
                    for &byte in bytes {
                        let [low, high] = e2m1::PAIRS[byte as usize];
                        scratch.extend([low * scale, high * scale]);
                    }
                }
                scratch
            }
        }
    }
}

/// Splits a written tensor into its rows.
pub(super) fn split_rows<'s, T: Element>(meta: &Meta<'_>, per_element: usize) -> Result<Vec<&'s mut [T]>, Fault> {
    let layout = meta.rows::<T>(per_element)?;
    if !layout.is_disjoint() {
        return Err(meta
            .error(format!("has overlapping rows: shape {:?}, strides {:?}", meta.shape, meta.strides))
            .into());
    }
    let base = meta.address().cast::<T>();
    Ok((0..layout.count)
        .map(|row| {
            let offset = layout.offset(row);
            if layout.columns == 0 {
                return &mut [][..];
            }
            // SAFETY: within `nbytes` by `Meta::check_memory`; rows are disjoint; the callers take `&mut self`, so that
            // the rows are the only live view, and bound `'s` to that borrow.
            unsafe { std::slice::from_raw_parts_mut(base.add(offset), layout.columns) }
        })
        .collect())
}

/// A writable row of F32 or BF16.
pub enum FloatRowMut<'a> {
    /// F32.
    F32(&'a mut [f32]),
    /// BF16.
    Bf16(&'a mut [Bf16]),
}

impl FloatRowMut<'_> {
    /// Elements.
    pub fn len(&self) -> usize {
        match self {
            FloatRowMut::F32(row) => row.len(),
            FloatRowMut::Bf16(row) => row.len(),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Element `index` as F32.
    ///
    /// # Panics
    /// If there is no such element.
    pub fn get(&self, index: usize) -> f32 {
        match self {
            FloatRowMut::F32(row) => row[index],
            FloatRowMut::Bf16(row) => row[index].to_f32(),
        }
    }

    /// Rounds `value` into element `index`.
    ///
    /// # Panics
    /// If there is no such element.
    pub fn set(&mut self, index: usize, value: f32) {
        match self {
            FloatRowMut::F32(row) => row[index] = value,
            FloatRowMut::Bf16(row) => row[index] = Bf16::from_f32(value),
        }
    }

    /// Rounds `values` into the row.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn store(&mut self, values: &[f32]) {
        assert_eq!(self.len(), values.len());
        match self {
            FloatRowMut::F32(row) => row.copy_from_slice(values),
            FloatRowMut::Bf16(row) => row.iter_mut().zip(values).for_each(|(o, &v)| *o = Bf16::from_f32(v)),
        }
    }

    /// Writes zeros.
    pub fn zero(&mut self) {
        match self {
            FloatRowMut::F32(row) => row.fill(0.0),
            FloatRowMut::Bf16(row) => row.fill(Bf16(0)),
        }
    }

    /// The row as F32, appended to `scratch` after clearing it.
    pub fn load<'s>(&'s self, scratch: &'s mut Vec<f32>) -> &'s [f32] {
        match self {
            FloatRowMut::F32(row) => row,
            FloatRowMut::Bf16(row) => {
                scratch.clear();
                scratch.extend(row.iter().map(|v| v.to_f32()));
                scratch
            }
        }
    }
}
