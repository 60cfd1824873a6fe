//! Views against a model of them: every element by its own offset.

use super::{FloatRowMut, In, InList, Out, View};
use crate::abi::{
    DI_CODE_E4M3FN, DI_CODE_E8M0FNU, DI_QO_MULTIPLY, DI_QS_BLOCK, DI_SL_ROW_MAJOR, DiQuant, DiTensor, DiTensorList,
};
use crate::check::Shaped;
use crate::format::Format;

/// What a descriptor points to.
struct Memory {
    shape: Vec<i64>,
    strides: Vec<i64>,
    /// Eight-byte words, so that every element type is aligned.
    words: Vec<u64>,
}

impl Memory {
    fn new(shape: &[i64], strides: &[i64], bytes: usize) -> Self {
        let words = (0..bytes.div_ceil(8) as u64).map(|w| w.wrapping_mul(0x0102_0408_1020_4081) ^ 0x5555).collect();
        Self { shape: shape.to_vec(), strides: strides.to_vec(), words }
    }

    fn tensor(&mut self, (code, bits): (u8, u8), nbytes: u64) -> DiTensor {
        DiTensor {
            data: self.words.as_mut_ptr().cast(),
            device_type: 1,
            device_id: 0,
            ndim: self.shape.len() as i32,
            code,
            bits,
            lanes: 1,
            shape: self.shape.as_mut_ptr(),
            strides: self.strides.as_mut_ptr(),
            byte_offset: 0,
            quant: std::ptr::null(),
            layout: 0,
            flags: 0,
            nbytes,
        }
    }
}

fn input(raw: &DiTensor) -> Result<In<'_>, String> {
    // SAFETY: the tests' descriptors point into `Memory` that outlives them, unless they must be refused before access.
    unsafe { In::new("op", "x", raw) }.map_err(|e| e.to_string())
}

fn output(raw: &DiTensor) -> Result<Out<'_>, String> {
    // SAFETY: as above; nothing else reads the memory meanwhile.
    unsafe { Out::new("op", "x", raw) }.map_err(|e| e.to_string())
}

#[test]
fn rows_are_found_under_every_arrangement_of_strides() {
    let cases: &[(&[i64], &[i64])] = &[
        (&[3, 5], &[5, 1]),
        (&[3, 5], &[9, 1]),
        (&[2, 3, 4], &[12, 4, 1]),
        (&[2, 3, 4], &[40, 7, 1]),
        (&[2, 3, 4], &[4, 8, 1]),
        (&[2, 1, 3, 2], &[100, 3, 9, 1]),
        (&[1, 4], &[777, 1]),
        (&[7], &[1]),
        (&[4, 3], &[0, 1]),
    ];
    for (shape, strides) in cases {
        let last: i64 = shape.iter().zip(*strides).map(|(e, s)| (e - 1) * s).sum();
        let mut memory = Memory::new(shape, strides, (last as usize + 1) * 4);
        let raw = memory.tensor(Format::I32.code_bits(), (last as u64 + 1) * 4);
        // SAFETY: `words` holds at least `last + 1` four-byte elements.
        let elements = unsafe { std::slice::from_raw_parts(raw.data.cast::<i32>(), last as usize + 1) };
        let rows = input(&raw).unwrap().rows::<i32>().unwrap();
        let leading = &shape[..shape.len() - 1];
        assert_eq!(rows.count() as i64, leading.iter().product::<i64>());
        for row in 0..rows.count() {
            let (mut rest, mut offset) = (row as i64, 0);
            for dim in (0..leading.len()).rev() {
                offset += rest % leading[dim] * strides[dim];
                rest /= leading[dim];
            }
            let columns = shape[shape.len() - 1] as usize;
            assert_eq!(rows.row(row), &elements[offset as usize..][..columns], "{shape:?} {strides:?} row {row}");
        }
    }
}

#[test]
fn a_slice_needs_rows_without_gaps() {
    let whole = |shape: &[i64], strides: &[i64]| {
        let mut memory = Memory::new(shape, strides, 400);
        let raw = memory.tensor(Format::F32.code_bits(), 400);
        input(&raw).unwrap().slice::<f32>().map(<[f32]>::len).map_err(|e| e.to_string())
    };
    assert_eq!(whole(&[3, 5], &[5, 1]), Ok(15));
    assert_eq!(whole(&[1, 3, 5], &[99, 5, 1]), Ok(15));
    assert_eq!(whole(&[0, 5], &[9, 1]), Ok(0));
    assert_eq!(whole(&[3, 5], &[6, 1]), Err("op: x must be contiguous, but has strides [6, 1]".to_owned()));
}

#[test]
fn descriptors_that_reach_too_far_are_refused() {
    let refusal = |shape: &[i64], strides: &[i64], nbytes: u64| {
        let mut memory = Memory::new(shape, strides, 64);
        let raw = memory.tensor(Format::F32.code_bits(), nbytes);
        input(&raw).err().unwrap_or_default()
    };
    assert_eq!(refusal(&[4, 4], &[4, 1], 64), "");
    assert!(refusal(&[4, 4], &[4, 1], 63).contains("needs 64 bytes"));
    assert!(refusal(&[2, 4], &[13, 1], 64).contains("needs 68 bytes"));
    assert!(refusal(&[2, 4], &[-4, 1], 64).contains("none negative"));
    assert!(refusal(&[4, 2], &[1, 4], 64).contains("the last must be 1"));
    assert!(refusal(&[i64::MAX, 2], &[i64::MAX, 1], 64).contains("beyond 2^63"));
    assert!(refusal(&[1, 1, 1, 1, 1], &[1; 5], 64).contains("5 dimensions"));
}

#[test]
fn writable_rows_never_share_an_element() {
    let rows = |shape: &[i64], strides: &[i64]| {
        let mut memory = Memory::new(shape, strides, 4000);
        let raw = memory.tensor(Format::F32.code_bits(), 4000);
        let mut out = output(&raw).unwrap();
        out.rows_mut::<f32>().map(|rows| rows.len()).map_err(|e| e.to_string())
    };
    assert_eq!(rows(&[3, 4], &[4, 1]), Ok(3));
    assert_eq!(rows(&[2, 3, 4], &[4, 8, 1]), Ok(6));
    for (shape, strides) in [(&[3, 4][..], &[3, 1][..]), (&[3, 4], &[0, 1]), (&[2, 3, 4], &[8, 4, 1])] {
        assert!(rows(shape, strides).unwrap_err().contains("overlapping rows"), "{shape:?} {strides:?}");
    }
}

#[test]
fn quantised_rows_find_their_codes_and_scales() {
    let format = Format::Fp4Row32;
    let mut codes = Memory::new(&[3, 64], &[96, 1], 3 * 48);
    let mut scales = Memory::new(&[3, 2], &[2, 1], 8);
    let scale = scales.tensor((format.scale().unwrap().code, 8), 6);
    let quant = DiQuant {
        struct_size: size_of::<DiQuant>() as u32,
        scheme: DI_QS_BLOCK,
        block: [1, 32, 1, 1],
        scale_layout: 0,
        scale_op: 0,
        scale: &raw const scale,
        global_scale: std::ptr::null(),
        zero_point: std::ptr::null(),
    };
    let mut raw = codes.tensor(format.code_bits(), 2 * 48 + 32);
    raw.quant = &raw const quant;
    let view = input(&raw).unwrap();
    assert_eq!(view.format(), Some(format));
    let (rows, scale_rows) = (view.codes().unwrap(), view.scales().unwrap());
    assert_eq!((rows.count(), rows.columns(), scale_rows.columns()), (3, 32, 2));
    // SAFETY: `words` of the codes hold 144 bytes.
    let bytes = unsafe { std::slice::from_raw_parts(raw.data.cast::<u8>(), 144) };
    assert_eq!(rows.row(2), &bytes[96..128]);

    // An odd row stride would begin a row in the middle of a byte.
    codes.strides[0] = 65;
    let odd = input(&raw).unwrap().codes().map(|_| ()).unwrap_err();
    assert!(odd.message.contains("even strides"), "{odd}");
    // Scales of another grid do not fit.
    (codes.strides[0], scales.shape[1]) = (96, 1);
    assert!(input(&raw).unwrap().scales().map(|_| ()).unwrap_err().message.contains("scales of shape [3, 1]"));
}

#[test]
fn absent_and_listed_tensors() {
    let mut memory = Memory::new(&[2], &[1], 8);
    let raw = memory.tensor(Format::F32.code_bits(), 8);
    let absent = DiTensor { data: std::ptr::null_mut(), ndim: 0, bits: 0, ..raw };
    // SAFETY: as in `input`.
    assert!(unsafe { In::optional("op", "x", &absent) }.unwrap().is_none());
    let tensors = [raw, raw];
    let list = DiTensorList { ptr: tensors.as_ptr(), len: 2 };
    // SAFETY: two descriptors, each valid.
    assert_eq!(unsafe { InList::new("op", "x", &list) }.unwrap().tensors().len(), 2);
    let nowhere = DiTensorList { ptr: std::ptr::null(), len: 2 };
    // SAFETY: refused before it is read.
    assert!(unsafe { InList::new("op", "x", &nowhere) }.is_err());
}

#[test]
fn float_rows_round_as_they_are_stored() {
    let mut memory = Memory::new(&[1, 3], &[3, 1], 8);
    let raw = memory.tensor(Format::Bf16.code_bits(), 6);
    let mut out = output(&raw).unwrap();
    let mut rows = out.float_rows_mut().unwrap();
    rows[0].store(&[1.0, 1.003_906_3, -0.0]);
    rows[0].set(1, 1.011_718_8);
    assert_eq!((rows[0].get(0), rows[0].get(1), rows[0].get(2).to_bits()), (1.0, 1.015_625, (-0.0_f32).to_bits()));
    assert!(matches!(rows[0], FloatRowMut::Bf16(_)));
    rows[0].zero();
    assert_eq!(rows[0].load(&mut Vec::new()), [0.0; 3]);
}

#[test]
fn a_view_is_aligned_at_the_last_dimension_and_has_the_scales() {
    assert_eq!(size_of::<View>(), 2 * 8 + 3 * 4 * 8 + 2 * 4);
    let (mut scales, mut codes) = (Memory::new(&[2, 2], &[2, 1], 4), Memory::new(&[2, 40], &[64, 1], 104));
    let scale = scales.tensor((DI_CODE_E8M0FNU, 8), 4);
    let quant = DiQuant {
        struct_size: size_of::<DiQuant>() as u32,
        scheme: DI_QS_BLOCK,
        block: [1, 32, 0, 0],
        scale_layout: DI_SL_ROW_MAJOR,
        scale_op: DI_QO_MULTIPLY,
        scale: &raw const scale,
        global_scale: std::ptr::null(),
        zero_point: std::ptr::null(),
    };
    let mut raw = codes.tensor((DI_CODE_E4M3FN, 8), 104);
    raw.quant = &raw const quant;
    let view = input(&raw).unwrap().view().unwrap();
    assert_eq!((view.shape, view.strides, view.scale_strides), ([1, 1, 2, 40], [0, 0, 64, 1], [0, 0, 2, 1]));
    assert_eq!((view.data, view.scale, view.rank), (raw.data.cast(), scale.data.cast(), 2));
    assert_eq!((view.format(), view.rows(), view.columns()), (Some(Format::Fp8Row32), 2, 40));
    assert_eq!(View::ABSENT.rows(), 0);
}
