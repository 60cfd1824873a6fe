//! Reads C structs of either side into plain data.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use deepinfer_plugin_api::abi::{DI_TF_READ_ONLY, DiOpHeader, DiTensor, DiTensorList};
use deepinfer_plugin_api::format::ScaleInfo;
use deepinfer_plugin_api::{Format, Kind, OpInfo};

use crate::call::{Call, Tensor, Value};

/// Most dimensions of a tensor.
const MAX_RANK: i32 = 4;
/// Most ops of a backend and arguments of an op; more are taken for a wild number.
const MOST_ROWS: usize = 1 << 16;
/// Most tensors of a list; more are taken for a wild length.
const MAX_LIST: u64 = 1 << 20;

/// Reads the arguments of a call by the reflection row of its op. Descriptors that cannot be followed become
/// [`Value::Broken`]; of a shorter struct the missing arguments are absent or zero.
///
/// # Safety
/// `args` points to `struct_size` readable bytes, at least those of the head, of an argument struct of `op`. Pointers in it
/// are null or lead to what the header says.
pub(crate) unsafe fn call(args: *const DiOpHeader, op: &'static OpInfo) -> Call {
    let mut words = vec![0_u64; op.args_size.max(size_of::<DiOpHeader>()).div_ceil(size_of::<u64>())];
    // SAFETY: both sides hold the smaller of the two sizes; the caller vouches for what the struct points to. Zeroed bytes
    // are valid values of every argument.
    unsafe {
        let known = ((*args).struct_size as usize).min(words.len() * size_of::<u64>());
        std::ptr::copy_nonoverlapping(args.cast::<u8>(), words.as_mut_ptr().cast(), known);
        let base = words.as_ptr().cast::<u8>();
        let head = &*base.cast::<DiOpHeader>();
        let start = head.workspace.addr() as u64;
        let values = op.args.iter().map(|arg| {
            let at = base.add(arg.offset);
            match arg.kind {
                Kind::Tensor => {
                    let raw = &*at.cast::<DiTensor>();
                    // The header's form of an absent tensor; in an argument that must be there it is reported as missing.
                    if raw.data.is_null() && raw.ndim == 0 && raw.bits == 0 {
                        return Value::Absent;
                    }
                    tensor(raw).map_or_else(Value::Broken, Value::Tensor)
                }
                Kind::TensorList => list(&*at.cast::<DiTensorList>()),
                Kind::U32 | Kind::I32 | Kind::F32 => Value::Number(at.cast::<u32>().read()),
            }
        });
        let values = values.collect();
        Call { op, flags: head.flags, workspace: start..start.saturating_add(head.workspace_bytes), values }
    }
}

/// # Safety
/// A non-null pointer of the list holds `len` tensors as [`tensor`] wants them.
unsafe fn list(raw: &DiTensorList) -> Value {
    if raw.len > MAX_LIST || (raw.ptr.is_null() && raw.len > 0) {
        return Value::Broken(format!("claims {} tensors at {:p}", raw.len, raw.ptr));
    }
    // SAFETY: the caller's contract.
    let tensors: Result<Vec<Tensor>, String> =
        (0..raw.len as usize).map(|i| unsafe { tensor(&*raw.ptr.add(i)) }).collect();
    tensors.map_or_else(Value::Broken, Value::List)
}

/// # Safety
/// Non-null `shape` and `strides` hold `ndim` extents; `quant` is null or leads to a record with its scale tensor.
pub(crate) unsafe fn tensor(raw: &DiTensor) -> Result<Tensor, String> {
    if !(0..=MAX_RANK).contains(&raw.ndim) {
        return Err(format!("has {} dimensions; at most {MAX_RANK} are possible", raw.ndim));
    }
    let rank = raw.ndim as usize;
    if rank > 0 && (raw.shape.is_null() || raw.strides.is_null()) {
        return Err("has dimensions but no shape or strides".to_owned());
    }
    let extents = |at: *mut i64| match rank {
        0 => Vec::new(),
        // SAFETY: not null, `ndim` extents by the caller's contract.
        _ => unsafe { std::slice::from_raw_parts(at.cast_const(), rank) }.to_vec(),
    };
    // SAFETY: a record by the caller's contract, as far as its writer knew it.
    let quant = (!raw.quant.is_null()).then(|| unsafe { sized(raw.quant) });
    let (mut scale, mut info) = (None, None);
    if let Some(quant) = quant {
        // SAFETY: as above; scales have no scales.
        let raw_scale = unsafe { quant.scale.as_ref() }.ok_or("is quantised but has no scales")?;
        if !raw_scale.quant.is_null() {
            return Err("has scales that are quantised themselves".to_owned());
        }
        // SAFETY: as above.
        scale = Some(Box::new(
            unsafe { tensor(raw_scale) }.map_err(|problem| format!("has scales of which one {problem}"))?,
        ));
        if rank >= 2 {
            let block = |dim: usize| usize::try_from(quant.block[dim]).unwrap_or(0);
            info = Some(ScaleInfo { rows: block(rank - 2), columns: block(rank - 1), code: raw_scale.code });
        }
    }
    let format = if raw.layout == 0 { Format::from_parts(raw.code, raw.bits, info) } else { None };
    Ok(Tensor {
        address: (raw.data.addr() as u64).wrapping_add(raw.byte_offset),
        nbytes: raw.nbytes,
        device: (raw.device_type, raw.device_id),
        code: raw.code,
        bits: raw.bits,
        lanes: raw.lanes,
        layout: raw.layout,
        is_read_only: raw.flags & DI_TF_READ_ONLY != 0,
        shape: extents(raw.shape),
        strides: extents(raw.strides),
        format,
        scale,
    })
}

/// Copies a struct that begins with its `struct_size`: no more than it has, no more than we know, zero behind.
///
/// # Safety
/// `from` points to a struct of the header whose first field is its `struct_size`, so many bytes of it readable. Such a struct
/// owns nothing, and zeroed bytes are a valid one.
pub(crate) unsafe fn sized<T>(from: *const T) -> T {
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: both sides hold the smaller of the two sizes.
    unsafe {
        let size = (from.cast::<u32>().read() as usize).min(size_of::<T>());
        std::ptr::copy_nonoverlapping(from.cast::<u8>(), value.as_mut_ptr().cast(), size);
        value.assume_init()
    }
}

/// As [`sized`] for a struct of a plugin that nobody has looked at.
///
/// # Errors
/// What is wrong with its place or its size, as the end of a sentence.
///
/// # Safety
/// As [`sized`], if `from` is not null and aligned.
pub(crate) unsafe fn checked<T>(from: *const T) -> Result<T, String> {
    if from.is_null() {
        return Err("is at no address".to_owned());
    }
    if !from.is_aligned() {
        return Err(format!("is at {from:p}, which is not aligned to {} bytes", align_of::<T>()));
    }
    // SAFETY: the caller's contract.
    match unsafe { from.cast::<u32>().read() } {
        size if (size as usize) < size_of::<u32>() => Err(format!("has struct_size {size}, which holds nothing")),
        // SAFETY: as above.
        _ => Ok(unsafe { sized(from) }),
    }
}

/// Copies an array of structs at the plugin's own stride.
///
/// # Errors
/// As [`checked`]; the array cannot be.
///
/// # Safety
/// A non-null `from` has `count` structs at a distance of `stride` bytes, each as [`checked`] wants it.
pub(crate) unsafe fn rows<T>(from: *const T, count: usize, stride: usize) -> Result<Vec<T>, String> {
    if count > MOST_ROWS || !stride.is_multiple_of(align_of::<T>()) || (count > 1 && stride == 0) {
        return Err(format!("has {count} entries at a distance of {stride} bytes, which is impossible"));
    }
    let row = |index| {
        let at = from.wrapping_byte_add(if from.is_null() { 0 } else { index * stride });
        // SAFETY: within the array, by the caller's contract.
        unsafe { checked(at) }.map_err(|problem| format!("has an entry {index} that {problem}"))
    };
    (0..count).map(row).collect()
}
