//! Ops against golden vectors of an independent implementation, through a loaded plugin.
//!
//! Tolerances are those that `tests/fixtures/golden/README.md` states for each file.

#![forbid(unsafe_code)]

mod attention;
mod compressor;
mod dense;
mod engram;
mod moe;
mod quant;

use std::rc::Rc;

use deepinfer_model::config::ModelConfig;
use deepinfer_model::rope;
use deepinfer_ops::traits::*;
use deepinfer_ops::{CacheFormat, Device, Format, Tensor, args};
use deepinfer_tests::{Golden, Tensors, device, fixture};

/// Epsilon of every norm in the golden files.
const EPS: f32 = 1e-20;

/// A device with the few ops that most files need, each giving a new F32 tensor.
struct Bench {
    device: Rc<dyn Device>,
    tensors: Tensors,
}

impl Bench {
    fn new() -> Self {
        let device = device();
        Self { tensors: Tensors(device.clone()), device }
    }

    /// An F32 tensor of a golden file under another shape.
    fn load(&self, golden: &Golden, name: &str, shape: &[usize]) -> Tensor {
        self.tensors.f32(shape, &golden.f32(name).0)
    }

    /// An F32 matrix of a golden file.
    fn matrix(&self, golden: &Golden, name: &str) -> Tensor {
        let (values, shape) = golden.f32(name);
        self.tensors.f32(&shape, &values)
    }

    /// A quantised matrix from the stored codes and scales of a golden file.
    fn quantized(&self, golden: &Golden, name: &str, format: Format, shape: &[usize]) -> Tensor {
        let (codes, scales) = (golden.u8(&format!("{name}.weight")).0, golden.u8(&format!("{name}.scale")).0);
        self.tensors.quantized(format, shape, &codes, &scales)
    }

    fn empty(&self, shape: &[usize]) -> Tensor {
        self.tensors.poisoned(Format::F32, shape)
    }

    fn linear(&self, x: &Tensor, weight: &Tensor) -> Tensor {
        let out = self.empty(&[x.dim(0), weight.dim(0)]);
        self.device.linear(&args::Linear { x, weight, groups: 1, out: &out }).expect("linear");
        out
    }

    fn rms_norm(&self, x: &Tensor, weight: &Tensor) -> Tensor {
        let out = self.empty(&[x.dim(0), x.dim(1)]);
        self.device.rms_norm(&args::RmsNorm { x, weight, eps: EPS, out: &out }).expect("rms_norm");
        out
    }

    /// Rotates `[T, H*D]` rows in place.
    fn rope(&self, x: &Tensor, heads: usize, positions: &[i32], freqs: &[f32], inverse: bool) {
        let x = x.reshape(&[positions.len(), heads, x.dim(1) / heads]);
        let positions = self.tensors.i32(&[positions.len()], positions);
        let freqs = self.tensors.f32(&[freqs.len()], freqs);
        let args = args::Rope { x: &x, positions: &positions, freqs: &freqs, inverse: u32::from(inverse) };
        self.device.rope(&args).expect("rope");
    }

    fn quantize(&self, x: &Tensor, format: Format) -> Tensor {
        let out = self.tensors.poisoned(format, &[x.dim(0), x.dim(1)]);
        self.device.quantize(&args::Quantize { x, out: &out }).expect("quantize");
        out
    }

    /// A cache that holds the rows of `kv` in the slots 0, 1, ... of pages of `entries_per_page`.
    fn store(&self, kv: &Tensor, format: CacheFormat, entries_per_page: usize) -> Tensor {
        let (rows, dim) = (kv.dim(0), kv.dim(1));
        let page = entries_per_page * format.entry_bytes(dim);
        let cache = self.tensors.poisoned(Format::U8, &[rows.div_ceil(entries_per_page), page]);
        let slots: Vec<i32> = (0..rows as i32).collect();
        let args = args::StoreKvCache {
            kv,
            slots: &self.tensors.i32(&[rows], &slots),
            cache: &cache,
            format: format as u32,
            entries_per_page: entries_per_page as u32,
            rounded: None,
        };
        self.device.store_kv_cache(&args).expect("store_kv_cache");
        cache
    }

    /// The values of the first `rows` slots of a cache.
    fn read(&self, cache: &Tensor, format: CacheFormat, entries_per_page: usize, rows: usize, dim: usize) -> Vec<f32> {
        let out = self.empty(&[rows, dim]);
        let slots: Vec<i32> = (0..rows as i32).collect();
        let args = args::LoadPagedKvCache {
            cache,
            slots: &self.tensors.i32(&[rows], &slots),
            format: format as u32,
            entries_per_page: entries_per_page as u32,
            out: &out,
        };
        self.device.load_paged_kv_cache(&args).expect("load_paged_kv_cache");
        self.floats(&out)
    }

    fn floats(&self, tensor: &Tensor) -> Vec<f32> {
        self.tensors.floats(tensor)
    }
}

/// The values of an I64 tensor, which must fit.
fn ints(golden: &Golden, name: &str) -> Vec<i32> {
    golden.i64(name).0.into_iter().map(|v| i32::try_from(v).unwrap_or_else(|e| panic!("{name}: {e}"))).collect()
}

/// Frequencies of a compressed layer of the tiny model that most files were made with.
fn tiny_compressed_frequencies() -> Vec<f32> {
    let config = ModelConfig::from_file(&fixture("golden/tiny_model/config.json")).expect("the tiny configuration");
    rope::compressed_frequencies(&config)
}
