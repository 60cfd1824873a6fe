//! Calls of kernels in tests, through the tables that the core uses.
//!
//! ```ignore
//! let x = Tensor::f32(&[2, 4], &[1.0; 8]);
//! let mut out = Tensor::unwritten(Format::F32, &[2, 4]);
//! call::<RmsNorm>(|a| {
//!     (a.x, a.weight, a.eps) = (x.input(), weight.input(), 1e-6);
//!     a.out = out.output();
//! })?;
//! assert_eq!(out.floats(), [...]);
//! ```
//! Arguments that the closure leaves alone are absent or zero.

#![allow(unsafe_code)]

use std::sync::OnceLock;

use deepinfer_plugin_api::abi::*;
use deepinfer_plugin_api::numerics::{Bf16, Fp4Scale, block, e4m3, group, ue8m0};
use deepinfer_plugin_api::sdk::tensor::In;
use deepinfer_plugin_api::sdk::{Export, entry};
use deepinfer_plugin_api::{Format, Op};

use crate::CpuReference;

/// A tensor that owns its memory, contiguous unless [`Tensor::padded`] spread its rows.
pub(crate) struct Tensor {
    /// Eight bytes each, so that every element type is aligned.
    words: Vec<u64>,
    bytes: usize,
    shape: Vec<i64>,
    strides: Vec<i64>,
    format: Format,
    scale: Option<Scale>,
}

/// Scales, at addresses that do not move with the tensor.
struct Scale {
    values: Box<Tensor>,
    raw: Box<DiTensor>,
    quant: Box<DiQuant>,
}

impl Tensor {
    fn new(format: Format, shape: &[usize], bytes: &[u8], scale: Option<Tensor>) -> Self {
        let elements: usize = shape.iter().product();
        let row = shape.last().copied().unwrap_or(1);
        let rows = elements.checked_div(row).unwrap_or(0);
        assert_eq!(bytes.len(), rows * format.bytes(row), "{format} of shape {shape:?}");
        let mut strides = vec![1; shape.len()];
        for dim in (0..shape.len().saturating_sub(1)).rev() {
            strides[dim] = strides[dim + 1] * shape[dim + 1] as i64;
        }
        let word = |chunk: &[u8]| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_ne_bytes(word)
        };
        let mut tensor = Self {
            words: bytes.chunks(8).map(word).collect(),
            bytes: bytes.len(),
            shape: shape.iter().map(|&e| e as i64).collect(),
            strides,
            format,
            scale: None,
        };
        if let Some(info) = format.scale() {
            let mut values = Box::new(scale.expect("a scaled format has scales"));
            let mut raw = Box::new(values.output());
            raw.code = info.code;
            let mut extents = [1; 4];
            let leading = shape.len() - 2;
            (extents[leading], extents[leading + 1]) = (info.rows as i32, info.columns as i32);
            let quant = Box::new(DiQuant {
                struct_size: size_of::<DiQuant>() as u32,
                scheme: DI_QS_BLOCK,
                block: extents,
                scale_layout: DI_SL_ROW_MAJOR,
                scale_op: DI_QO_MULTIPLY,
                scale: &raw const *raw,
                global_scale: std::ptr::null(),
                zero_point: std::ptr::null(),
            });
            tensor.scale = Some(Scale { values, raw, quant });
        }
        tensor
    }

    /// F32 values.
    pub(crate) fn f32(shape: &[usize], values: &[f32]) -> Self {
        Self::new(Format::F32, shape, &bytes(values, |v| v.to_ne_bytes()), None)
    }

    /// BF16 values, rounded from F32.
    pub(crate) fn bf16(shape: &[usize], values: &[f32]) -> Self {
        Self::new(Format::Bf16, shape, &bytes(values, |&v| Bf16::from_f32(v).0.to_ne_bytes()), None)
    }

    /// 32-bit integers.
    pub(crate) fn i32(shape: &[usize], values: &[i32]) -> Self {
        Self::new(Format::I32, shape, &bytes(values, |v| v.to_ne_bytes()), None)
    }

    /// 64-bit integers.
    pub(crate) fn i64(shape: &[usize], values: &[i64]) -> Self {
        Self::new(Format::I64, shape, &bytes(values, |v| v.to_ne_bytes()), None)
    }

    /// Bytes.
    pub(crate) fn u8(shape: &[usize], values: &[u8]) -> Self {
        Self::new(Format::U8, shape, values, None)
    }

    /// Codes and scales of a scaled format.
    pub(crate) fn scaled(format: Format, shape: &[usize], codes: &[u8], scales: &[u8]) -> Self {
        let info = format.scale().expect("a scaled format");
        let mut grid = shape.to_vec();
        let leading = shape.len() - 2;
        grid[leading] = shape[leading].div_ceil(info.rows);
        grid[leading + 1] = shape[leading + 1].div_ceil(info.columns);
        Self::new(format, shape, codes, Some(Self::u8(&grid, scales)))
    }

    /// `values` in any floating-point format; quantised as `deepinfer_numerics` does.
    pub(crate) fn floating(format: Format, shape: &[usize], values: &[f32]) -> Self {
        let columns = shape.last().copied().unwrap_or(1);
        let (mut codes, mut scales) = (vec![0; format.bytes(values.len())], Vec::new());
        match format {
            Format::F32 => return Self::f32(shape, values),
            Format::Bf16 => return Self::bf16(shape, values),
            Format::Fp8Row32 => {
                scales.resize(values.len() / 32, 0);
                group::quantize_fp8(values, &mut codes, &mut scales);
            }
            Format::Fp8Tile32 => {
                let rows = values.len() / columns;
                scales.resize(rows.div_ceil(32) * columns.div_ceil(32), 0);
                block::quantize_fp8_tiles(values, rows, columns, &mut codes, &mut scales);
            }
            Format::Fp4Row32 => {
                scales.resize(values.len() / 32, 0);
                group::quantize_fp4(values, &mut codes, &mut scales, Fp4Scale::Ue8m0);
            }
            Format::Fp4Row16 => {
                scales.resize(values.len() / 16, 0);
                group::quantize_fp4(values, &mut codes, &mut scales, Fp4Scale::E4m3);
            }
            _ => panic!("{format} is not a floating-point format"),
        }
        Self::scaled(format, shape, &codes, &scales)
    }

    /// A tensor to write, filled with bytes that a test would notice: NaN, or a large negative integer.
    pub(crate) fn unwritten(format: Format, shape: &[usize]) -> Self {
        const GARBAGE: u8 = 0xFF;
        let columns = shape.last().copied().unwrap_or(1);
        let rows: usize = shape[..shape.len().saturating_sub(1)].iter().product();
        let codes = vec![GARBAGE; rows * format.bytes(columns)];
        match format.scale() {
            None => Self::new(format, shape, &codes, None),
            Some(info) => {
                assert_eq!(info.rows, 1, "kernels write no tiles");
                Self::scaled(format, shape, &codes, &vec![GARBAGE; rows * columns.div_ceil(info.columns)])
            }
        }
    }

    /// The same plain values with every row `padding` elements apart, and NaN bytes between.
    pub(crate) fn padded(&self, padding: usize) -> Self {
        let columns = *self.shape.last().expect("a tensor with rows") as usize;
        let (row, gap) = (self.format.bytes(columns), self.format.bytes(padding));
        let mut spread = Vec::new();
        for chunk in self.to_bytes().chunks(row) {
            spread.extend_from_slice(chunk);
            spread.resize(spread.len() + gap, 0xFF);
        }
        let rows = self.to_bytes().len() / row;
        let mut tensor = Self::new(self.format, &[rows, columns + padding], &spread, None);
        tensor.shape.clone_from(&self.shape);
        tensor.strides.clone_from(&self.strides);
        let leading = tensor.strides.len() - 1;
        tensor.strides[..leading].iter_mut().for_each(|s| *s = *s / columns as i64 * (columns + padding) as i64);
        tensor
    }

    fn descriptor(&self, data: *mut u64) -> DiTensor {
        let (code, bits) = self.format.code_bits();
        DiTensor {
            data: data.cast(),
            device_type: DI_DEVICE_CPU,
            device_id: 0,
            ndim: self.shape.len() as i32,
            code,
            bits,
            lanes: 1,
            shape: self.shape.as_ptr().cast_mut(),
            strides: self.strides.as_ptr().cast_mut(),
            byte_offset: 0,
            quant: self.scale.as_ref().map_or(std::ptr::null(), |s| &raw const *s.quant),
            layout: 0,
            flags: 0,
            nbytes: self.bytes as u64,
        }
    }

    /// The descriptor of an argument that is read. It is valid as long as the tensor.
    pub(crate) fn input(&self) -> DiTensor {
        self.descriptor(self.words.as_ptr().cast_mut())
    }

    /// The descriptor of an argument that is written. It is valid until the tensor is used otherwise.
    pub(crate) fn output(&mut self) -> DiTensor {
        let data = self.words.as_mut_ptr();
        self.descriptor(data)
    }

    /// The bytes of the values.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.words.iter().flat_map(|w| w.to_ne_bytes()).collect();
        bytes.truncate(self.bytes);
        bytes
    }

    /// The bytes of the scales; empty for a plain format.
    pub(crate) fn scale_bytes(&self) -> Vec<u8> {
        self.scale.as_ref().map_or(Vec::new(), |s| {
            debug_assert!(!s.raw.data.is_null());
            s.values.to_bytes()
        })
    }

    /// The values of a floating-point tensor.
    pub(crate) fn floats(&self) -> Vec<f32> {
        let (bytes, scales) = (self.to_bytes(), self.scale_bytes());
        let columns = self.shape.last().copied().unwrap_or(1) as usize;
        match self.format {
            Format::F32 => bytes.as_chunks().0.iter().map(|&b| f32::from_ne_bytes(b)).collect(),
            Format::Bf16 => bytes.as_chunks().0.iter().map(|&b| Bf16(u16::from_ne_bytes(b)).to_f32()).collect(),
            Format::Fp8Row32 => {
                let scale = |i: usize| ue8m0::decode(scales[i / 32]);
                bytes.iter().enumerate().map(|(i, &code)| e4m3::decode(code) * scale(i)).collect()
            }
            Format::Fp8Tile32 => {
                let mut out = vec![0.0; bytes.len()];
                block::dequantize_fp8_tiles(&bytes, &scales, bytes.len() / columns, columns, &mut out);
                out
            }
            Format::Fp4Row32 | Format::Fp4Row16 => {
                let kind = if self.format == Format::Fp4Row32 { Fp4Scale::Ue8m0 } else { Fp4Scale::E4m3 };
                let mut out = vec![0.0; bytes.len() * 2];
                group::dequantize_fp4(&bytes, &scales, &mut out, kind);
                out
            }
            _ => panic!("{} is not a floating-point format", self.format),
        }
    }

    /// The values of a tensor of 32-bit integers.
    pub(crate) fn ints(&self) -> Vec<i32> {
        assert_eq!(self.format, Format::I32);
        self.to_bytes().as_chunks().0.iter().map(|&b| i32::from_ne_bytes(b)).collect()
    }
}

fn bytes<T, const N: usize>(values: &[T], to_bytes: impl Fn(&T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(to_bytes).collect()
}

/// A view of an argument, for tests below the level of a kernel. `raw` comes from [`Tensor::input`] of a tensor that
/// outlives the view.
pub(crate) fn view(raw: &DiTensor) -> In<'_> {
    // SAFETY: `Tensor` made the descriptor; the caller keeps the tensor.
    unsafe { In::new("test", "tensor", raw) }.expect("tensors of tests are consistent")
}

/// Runs the kernel of `O` with the arguments that `fill` sets.
///
/// # Errors
/// The sentence of the kernel.
pub(crate) fn call<O: Op>(fill: impl FnOnce(&mut O::Raw)) -> Result<(), String> {
    let api = api();
    // SAFETY: `RawArgs` promises that zeroed bytes are valid.
    let mut raw: O::Raw = unsafe { std::mem::zeroed() };
    fill(&mut raw);
    let head = (&raw mut raw).cast::<DiOpHeader>();
    // SAFETY: every argument struct begins with the head.
    unsafe {
        (*head).struct_size = size_of::<O::Raw>() as u32;
        (*head).op_id = O::INFO.id;
        (*head).op_version = O::INFO.version;
    }
    // SAFETY: the entry made the table; tensors come from `Tensor`, which the caller keeps for the call.
    unsafe {
        let entries = std::slice::from_raw_parts(api.ops, api.n_ops);
        let entry = entries.iter().find(|e| e.op_id == O::INFO.id).expect("the op has a kernel");
        let run = entry.run.expect("a kernel has a function");
        let error = run(api.backend, std::ptr::null_mut(), std::ptr::null_mut(), head);
        let Some(fault) = error.as_ref() else { return Ok(()) };
        let message = std::slice::from_raw_parts(fault.message.ptr, fault.message.len);
        let message = String::from_utf8_lossy(message).into_owned();
        fault.release.expect("errors free themselves")(error);
        Err(message)
    }
}

/// The tables of this backend.
fn api() -> &'static DiBackendApi {
    struct Tables(&'static DiBackendApi);
    // SAFETY: the tables are constant and their functions may be called from any thread.
    unsafe impl Send for Tables {}
    // SAFETY: as above.
    unsafe impl Sync for Tables {}
    static TABLES: OnceLock<Tables> = OnceLock::new();
    TABLES
        .get_or_init(|| {
            // The entry sends panics to the core's log; here the test harness shall print them.
            let hook = std::panic::take_hook();
            // SAFETY: all fields may be zero or null.
            let mut request: DiEntryRequest = unsafe { std::mem::zeroed() };
            request.struct_size = size_of::<DiEntryRequest>() as u32;
            (request.min_major, request.max_major) = (DI_ABI_MAJOR, DI_ABI_MAJOR);
            // SAFETY: as above.
            let mut reply: DiEntryReply = unsafe { std::mem::zeroed() };
            reply.struct_size = size_of::<DiEntryReply>() as u32;
            let export = Export { profile: Some("v41-text") };
            // SAFETY: both structs are valid, and this initialiser runs once.
            let code = unsafe { entry::<CpuReference>(&raw const request, &raw mut reply, &export) };
            std::panic::set_hook(hook);
            assert_eq!(code, 0, "the backend starts");
            // SAFETY: the entry succeeded, so the table is there for the life of the process.
            Tables(unsafe { &*reply.api })
        })
        .0
}
