//! Copies of the arguments of a call, for whoever runs it after the caller has gone on.

#![allow(unsafe_code)]

use crate::abi::{DiOpHeader, DiQuant, DiTensor, DiTensorList};
use crate::reflection::{Kind, OpInfo};
use crate::sdk::Fault;

/// Most dimensions of a tensor.
const MAX_RANK: i32 = 4;

/// An argument struct with everything that it points to but the memory of tensors: shapes, strides, scales, lists.
/// Extensions are left out: they are borrowed for the call.
///
/// Which arguments there are is known from reflection rows alone, so that this serves any op.
pub struct OwnedArgs {
    /// The struct. All pointers in it lead into the other fields, whose buffers do not move with the value.
    words: Vec<u64>,
    tensors: Vec<DiTensor>,
    quants: Vec<DiQuant>,
    extents: Vec<i64>,
}

// SAFETY: the pointers lead into the value itself, or to memory of tensors, which is used as the caller of `copy` promised.
unsafe impl Send for OwnedArgs {}

impl OwnedArgs {
    /// Copies the arguments of an op of the catalogue. A struct that is longer is cut, a shorter one continued with zeros.
    ///
    /// # Errors
    /// As [`OwnedArgs::copy_rows`].
    ///
    /// # Safety
    /// As [`OwnedArgs::copy_rows`].
    pub unsafe fn copy(args: *const DiOpHeader, info: &OpInfo) -> Result<Self, Fault> {
        // SAFETY: the same contract; the rows are those of the struct.
        unsafe { Self::copy_rows(args, info.args_size, info.args.iter().map(|arg| (arg.offset, arg.kind))) }
    }

    /// Copies an argument struct of `size` bytes, given the offset and the kind of each argument.
    ///
    /// # Errors
    /// A tensor has more than four dimensions, or no shape or strides.
    ///
    /// # Safety
    /// `args` points to an argument struct, `struct_size` bytes of it, with these rows. Shapes, strides, scales and lists
    /// are readable now. Whoever uses the copy vouches for the memory of the tensors at that time.
    pub unsafe fn copy_rows(
        args: *const DiOpHeader,
        size: usize,
        rows: impl Iterator<Item = (usize, Kind)> + Clone,
    ) -> Result<Self, Fault> {
        // SAFETY: the caller's contract.
        let known = unsafe { (*args).struct_size as usize }.min(size);
        let mut words = vec![0_u64; size.div_ceil(size_of::<u64>())];
        // SAFETY: both hold `known` bytes.
        unsafe { std::ptr::copy_nonoverlapping(args.cast::<u8>(), words.as_mut_ptr().cast(), known) };
        let mut sizes = Sizes::default();
        let head = words.as_mut_ptr().cast::<DiOpHeader>();
        // SAFETY: `words` is the struct, of which `rows` says where tensors and lists are; zeros are absent ones. Nothing is
        // pushed beyond the capacity that was counted, so that no buffer moves.
        unsafe {
            (*head).struct_size = size as u32;
            (*head).ext = std::ptr::null();
            for_each_list(head, rows.clone(), &mut |list| {
                list.iter().try_for_each(|tensor| sizes.add(tensor))?;
                Ok(())
            })?;
            let lists = rows.clone().filter(|(_, kind)| *kind == Kind::TensorList);
            let listed: usize = lists.map(|(at, _)| (*head.byte_add(at).cast::<DiTensorList>()).len as usize).sum();
            let (tensors, quants) = (Vec::with_capacity(listed + sizes.tensors), Vec::with_capacity(sizes.quants));
            let mut owned = Self { words, tensors, quants, extents: Vec::with_capacity(sizes.extents) };
            let head = owned.words.as_mut_ptr().cast::<DiOpHeader>();
            for (at, kind) in rows {
                match kind {
                    Kind::Tensor => {
                        let tensor = head.byte_add(at).cast::<DiTensor>();
                        tensor.write(owned.own(&*tensor));
                    }
                    Kind::TensorList => {
                        let list = &mut *head.byte_add(at).cast::<DiTensorList>();
                        let copies: Vec<DiTensor> = tensors_of(list).iter().map(|tensor| owned.own(tensor)).collect();
                        list.ptr = push(&mut owned.tensors, &copies);
                    }
                    Kind::U32 | Kind::I32 | Kind::F32 => {}
                }
            }
            Ok(owned)
        }
    }

    /// The copy of the struct; valid as long as the value.
    pub fn head(&self) -> *const DiOpHeader {
        self.words.as_ptr().cast()
    }

    /// The tensor with its shape, strides and scales in this value.
    ///
    /// # Safety
    /// [`Sizes::add`] has accepted and counted it.
    unsafe fn own(&mut self, tensor: &DiTensor) -> DiTensor {
        let mut copy = *tensor;
        // SAFETY: the caller's contract.
        unsafe {
            if let Some((shape, strides)) = extents_of(tensor) {
                copy.shape = push(&mut self.extents, shape).cast_mut();
                copy.strides = push(&mut self.extents, strides).cast_mut();
            }
            if !tensor.quant.is_null() {
                let mut quant = read_quant(tensor.quant);
                for part in [&mut quant.scale, &mut quant.global_scale, &mut quant.zero_point] {
                    if let Some(tensor) = part.as_ref() {
                        let tensor = self.own(tensor);
                        *part = push(&mut self.tensors, &[tensor]);
                    }
                }
                copy.quant = push(&mut self.quants, &[quant]);
            }
        }
        copy
    }
}

/// Appends to a buffer that has room, and says where.
fn push<T: Copy>(buffer: &mut Vec<T>, values: &[T]) -> *const T {
    assert!(buffer.len() + values.len() <= buffer.capacity(), "the parts of a call were counted");
    let at = buffer.len();
    buffer.extend_from_slice(values);
    // Derived from the whole buffer, so that later appends leave it valid.
    buffer.as_mut_ptr().wrapping_add(at).cast_const()
}

/// What the tensors of a call need beside themselves.
#[derive(Default)]
struct Sizes {
    tensors: usize,
    quants: usize,
    extents: usize,
}

impl Sizes {
    /// # Safety
    /// The tensor points to its shape, strides and scales.
    unsafe fn add(&mut self, tensor: &DiTensor) -> Result<(), Fault> {
        if !(0..=MAX_RANK).contains(&tensor.ndim) {
            return Err(Fault::invalid(format!(
                "a tensor has {} dimensions; at most {MAX_RANK} are possible",
                tensor.ndim
            )));
        }
        if tensor.ndim > 0 && (tensor.shape.is_null() || tensor.strides.is_null()) {
            return Err(Fault::invalid(format!("a tensor of {} dimensions has no shape or strides", tensor.ndim)));
        }
        self.extents += 2 * tensor.ndim as usize;
        if !tensor.quant.is_null() {
            self.quants += 1;
            // SAFETY: the caller's contract. Scales have none of their own: a chain of them would have no end.
            unsafe {
                let quant = read_quant(tensor.quant);
                for part in [quant.scale, quant.global_scale, quant.zero_point] {
                    let Some(part) = part.as_ref() else { continue };
                    if !part.quant.is_null() {
                        return Err(Fault::invalid("the scales of a tensor are quantised themselves"));
                    }
                    self.tensors += 1;
                    self.add(part)?;
                }
            }
        }
        Ok(())
    }
}

/// Calls `visit` with the tensors of every argument, a single one as a list.
///
/// # Safety
/// `head` points to a struct with these rows.
unsafe fn for_each_list(
    head: *const DiOpHeader,
    rows: impl Iterator<Item = (usize, Kind)>,
    visit: &mut dyn FnMut(&[DiTensor]) -> Result<(), Fault>,
) -> Result<(), Fault> {
    for (at, kind) in rows {
        // SAFETY: the caller's contract.
        unsafe {
            match kind {
                Kind::Tensor => visit(std::slice::from_ref(&*head.byte_add(at).cast::<DiTensor>()))?,
                Kind::TensorList => visit(tensors_of(&*head.byte_add(at).cast::<DiTensorList>()))?,
                Kind::U32 | Kind::I32 | Kind::F32 => {}
            }
        }
    }
    Ok(())
}

/// # Safety
/// `list.ptr` is null or holds `list.len` tensors.
unsafe fn tensors_of<'a>(list: &DiTensorList) -> &'a [DiTensor] {
    if list.ptr.is_null() {
        return &[];
    }
    // SAFETY: the caller's contract.
    unsafe { std::slice::from_raw_parts(list.ptr, list.len as usize) }
}

/// Shape and strides; `None` without dimensions.
///
/// # Safety
/// [`Sizes::add`] has accepted the tensor.
unsafe fn extents_of(tensor: &DiTensor) -> Option<(&[i64], &[i64])> {
    if tensor.ndim == 0 {
        return None;
    }
    let rank = tensor.ndim as usize;
    // SAFETY: not null, and the tensor points to `ndim` of each.
    unsafe { Some((std::slice::from_raw_parts(tensor.shape, rank), std::slice::from_raw_parts(tensor.strides, rank))) }
}

/// The record as far as its writer knew it, zero behind.
///
/// # Safety
/// `struct_size` bytes are readable.
unsafe fn read_quant(quant: *const DiQuant) -> DiQuant {
    let mut whole = std::mem::MaybeUninit::<DiQuant>::zeroed();
    // SAFETY: the size comes first in every version; zeroed integers and pointers are valid.
    unsafe {
        let bytes = (quant.cast::<u32>().read() as usize).min(size_of::<DiQuant>());
        std::ptr::copy_nonoverlapping(quant.cast::<u8>(), whole.as_mut_ptr().cast(), bytes);
        whole.assume_init()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generated::{DiArgsGroupedLinearV1, GroupedLinear};
    use crate::reflection::Op;

    fn zeroed<T>() -> T {
        // SAFETY: used for structs of the boundary, which are valid when zeroed.
        unsafe { std::mem::zeroed() }
    }

    fn tensor(shape: &mut [i64], strides: &mut [i64], address: usize) -> DiTensor {
        DiTensor {
            data: std::ptr::without_provenance_mut(address),
            ndim: shape.len() as i32,
            bits: 8,
            shape: shape.as_mut_ptr(),
            strides: strides.as_mut_ptr(),
            ..zeroed()
        }
    }

    #[test]
    fn the_copy_keeps_nothing_of_the_caller() {
        let (mut shape, mut strides, mut grid) = (vec![2_i64, 64], vec![64_i64, 1], vec![2_i64, 2]);
        let scale = Box::new(tensor(&mut grid, &mut strides, 0x30));
        let mut quant =
            Box::new(DiQuant { struct_size: size_of::<DiQuant>() as u32, block: [1, 32, 0, 0], ..zeroed() });
        quant.scale = &raw const *scale;
        let mut args = DiArgsGroupedLinearV1 { x: tensor(&mut shape, &mut strides, 0x10), ..zeroed() };
        args.x.quant = &raw const *quant;
        let mut weights = vec![tensor(&mut shape, &mut strides, 0x20); 3];
        args.weight = DiTensorList { ptr: weights.as_ptr(), len: 3 };
        args.h.struct_size = size_of::<DiArgsGroupedLinearV1>() as u32;
        args.h.workspace_bytes = 7;
        // SAFETY: a complete struct whose parts are alive.
        let owned = unsafe { OwnedArgs::copy((&raw const args.h).cast(), GroupedLinear::INFO) }.unwrap();
        // The caller's structs change and go.
        weights.iter_mut().for_each(|w| w.data = std::ptr::null_mut());
        shape.iter_mut().chain(&mut grid).chain(&mut strides).for_each(|extent| *extent = -1);
        drop((shape, strides, grid, weights, scale, quant));
        let moved = std::thread::spawn(move || owned);
        let owned = moved.join().unwrap();
        // SAFETY: the copy is alive; tensors' memory is not touched.
        unsafe {
            let copy = &*owned.head().cast::<<GroupedLinear as Op>::Raw>();
            assert_eq!((copy.h.workspace_bytes, copy.x.data.addr()), (7, 0x10));
            assert_eq!(extents_of(&copy.x).unwrap(), (&[2, 64][..], &[64, 1][..]));
            let quant = &*copy.x.quant;
            assert_eq!((quant.block, (*quant.scale).data.addr()), ([1, 32, 0, 0], 0x30));
            assert_eq!(extents_of(&*quant.scale).unwrap(), (&[2, 2][..], &[64, 1][..]));
            let weights = tensors_of(&copy.weight);
            assert_eq!(weights.len(), 3);
            assert!(weights.iter().all(|w| w.data.addr() == 0x20 && extents_of(w).unwrap().0 == [2, 64]));
            // An absent tensor stays absent.
            assert!(copy.out.shape.is_null() && copy.out.bits == 0);
        }
    }

    #[test]
    fn impossible_tensors_are_refused_before_they_are_followed() {
        let (mut shape, mut strides) = ([1_i64], [1_i64]);
        let copy = |x: DiTensor| {
            let mut args = DiArgsGroupedLinearV1 { x, ..zeroed() };
            args.h.struct_size = size_of::<DiArgsGroupedLinearV1>() as u32;
            // SAFETY: what is wrong is found before it is read.
            unsafe { OwnedArgs::copy((&raw const args.h).cast(), GroupedLinear::INFO) }.map(drop).unwrap_err().message
        };
        let x = tensor(&mut shape, &mut strides, 0x10);
        assert!(copy(DiTensor { ndim: 5, ..x }).contains("has 5 dimensions"));
        assert!(copy(DiTensor { ndim: -1, ..x }).contains("has -1 dimensions"));
        assert!(copy(DiTensor { shape: std::ptr::null_mut(), ..x }).contains("no shape"));
        let mut quant = DiQuant { struct_size: size_of::<DiQuant>() as u32, ..zeroed() };
        let mut scale = x;
        scale.quant = &raw const quant;
        quant.scale = &raw const scale;
        scale.quant = &raw const quant;
        assert!(copy(scale).contains("quantised themselves"));
    }
}
