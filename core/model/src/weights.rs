//! The text model's tensors on the device, in the formats in which they are stored.

use std::collections::HashMap;
use std::rc::Rc;

use deepinfer_ops::{Allocation, Device, Format, OpError, Tensor};

use crate::checkpoint::{Checkpoint, CheckpointError, Storage, StoredDtype, TensorSpec, tensor_specs};
use crate::config::ModelConfig;

/// Alignment of every tensor on the device.
const ALIGN: usize = 256;

/// Why weights could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The checkpoint is at fault.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The device is at fault.
    #[error("loading {tensor}: {source}")]
    Device {
        /// Tensor that was being loaded.
        tensor: String,
        /// What the device said.
        source: OpError,
    },
}

/// Where the Engram tables lie: most of a model that has them, and of which a token needs few rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TablePlace {
    /// In the device's memory.
    #[default]
    Device,
    /// In memory of the host that the device reads.
    Host,
}

/// All tensors of the text model.
pub(crate) struct Weights {
    pub(crate) embed: Tensor,
    pub(crate) norm: Tensor,
    pub(crate) head: Tensor,
    pub(crate) layers: Vec<LayerWeights>,
}

pub(crate) struct LayerWeights {
    pub(crate) attn_norm: Tensor,
    pub(crate) ffn_norm: Tensor,
    pub(crate) hc_attn: HyperConnectionWeights,
    pub(crate) hc_ffn: HyperConnectionWeights,
    pub(crate) attention: AttentionWeights,
    pub(crate) moe: MoeWeights,
    pub(crate) engram: Option<EngramWeights>,
}

pub(crate) struct HyperConnectionWeights {
    pub(crate) projection: Tensor,
    pub(crate) base: Tensor,
    pub(crate) scale: Tensor,
}

pub(crate) struct AttentionWeights {
    pub(crate) wq_a: Tensor,
    pub(crate) q_norm: Tensor,
    pub(crate) wq_b: Tensor,
    pub(crate) wkv: Tensor,
    pub(crate) kv_norm: Tensor,
    pub(crate) sink: Tensor,
    pub(crate) wo_a: Tensor,
    pub(crate) wo_b: Tensor,
    /// On KV sources.
    pub(crate) compressor: Option<CompressorWeights>,
    /// On index sources.
    pub(crate) indexer: Option<IndexerWeights>,
}

pub(crate) struct CompressorWeights {
    pub(crate) wkv: Tensor,
    /// Where several tokens are pooled.
    pub(crate) wgate: Option<Tensor>,
    pub(crate) norm: Tensor,
    pub(crate) key_projection: Tensor,
    pub(crate) key_norm: Tensor,
}

pub(crate) struct IndexerWeights {
    pub(crate) wq_b: Tensor,
    pub(crate) head_weights: Tensor,
}

pub(crate) struct MoeWeights {
    pub(crate) gate: Tensor,
    pub(crate) bias: Tensor,
    pub(crate) bias_vl: Option<Tensor>,
    pub(crate) w1: Vec<Tensor>,
    pub(crate) w2: Vec<Tensor>,
    pub(crate) w3: Vec<Tensor>,
    pub(crate) shared_w1: Tensor,
    pub(crate) shared_w2: Tensor,
    pub(crate) shared_w3: Tensor,
}

pub(crate) struct EngramWeights {
    pub(crate) table: Tensor,
    pub(crate) wkv: Tensor,
    pub(crate) q_weight: Tensor,
    pub(crate) k_weight: Tensor,
}

impl Weights {
    /// Copies the text model's tensors to the device, group by group; `progress` is told the bytes done and the total.
    /// The checkpoint was verified against `config`.
    pub(crate) fn load(
        device: &Rc<dyn Device>,
        checkpoint: &Checkpoint,
        config: &ModelConfig,
        tables: TablePlace,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, LoadError> {
        let total = tensor_specs(config)
            .iter()
            .filter(|spec| is_text(&spec.name))
            .filter_map(|spec| checkpoint.get(&spec.name))
            .map(|stored| stored.bytes.len() as u64)
            .sum();
        let source = Source::Checkpoint(checkpoint);
        Loader { device, source, config, tables, slab: None, done: 0, total, progress }.model()
    }

    /// The same tensors in the same memory, without content, of a checkpoint that holds `specs`.
    pub(crate) fn outline(
        device: &Rc<dyn Device>,
        config: &ModelConfig,
        specs: &[TensorSpec],
        tables: TablePlace,
    ) -> Result<Self, LoadError> {
        let source = Source::Outline(specs.iter().map(|spec| (spec.name.as_str(), spec)).collect());
        Loader { device, source, config, tables, slab: None, done: 0, total: 0, progress: &mut |_, _| {} }.model()
    }
}

/// Whether the text path needs a tensor: not the draft stages, not vision.
fn is_text(name: &str) -> bool {
    name.starts_with("layers.") || matches!(name, "embed.weight" | "norm.weight" | "head.weight")
}

/// Where tensors come from.
enum Source<'a> {
    Checkpoint(&'a Checkpoint),
    /// Their formats and shapes alone.
    Outline(HashMap<&'a str, &'a TensorSpec>),
}

/// A tensor of a [`Source`].
struct Found<'a> {
    dtype: StoredDtype,
    shape: Vec<usize>,
    len: usize,
    /// Absent in an outline.
    bytes: Option<&'a [u8]>,
}

impl<'a> Source<'a> {
    fn get(&self, name: &str) -> Option<Found<'a>> {
        let extents = |shape: &[u64]| shape.iter().map(|&extent| extent as usize).collect();
        match *self {
            Self::Checkpoint(checkpoint) => checkpoint.get(name).map(|stored| Found {
                dtype: stored.dtype,
                shape: extents(stored.shape),
                len: stored.bytes.len(),
                bytes: Some(stored.bytes),
            }),
            Self::Outline(ref specs) => specs.get(name).map(|spec| Found {
                dtype: spec.storage.dtype(),
                shape: extents(&spec.shape),
                len: spec.bytes() as usize,
                bytes: None,
            }),
        }
    }

    /// Refuses a tensor with values that are no numbers.
    fn check_values(&self, name: &str) -> Result<(), CheckpointError> {
        match self {
            Self::Checkpoint(checkpoint) => checkpoint.reject_non_finite(name),
            Self::Outline(_) => Ok(()),
        }
    }

    /// The values are not needed any more.
    fn release(&self, name: &str) {
        if let Self::Checkpoint(checkpoint) = self {
            checkpoint.release(name);
        }
    }
}

struct Loader<'a> {
    device: &'a Rc<dyn Device>,
    source: Source<'a>,
    config: &'a ModelConfig,
    tables: TablePlace,
    /// Memory of the present group, and the bytes of it that are taken.
    slab: Option<(Allocation, usize)>,
    done: u64,
    total: u64,
    progress: &'a mut dyn FnMut(u64, u64),
}

impl<'a> Loader<'a> {
    fn model(mut self) -> Result<Weights, LoadError> {
        let specs = tensor_specs(self.config);
        self.reserve(specs.iter().map(|s| s.name.as_str()).filter(|n| is_text(n) && !n.starts_with("layers.")))?;
        let embed = self.tensor("embed.weight")?;
        let norm = self.tensor("norm.weight")?;
        let head = self.tensor("head.weight")?;
        let mut layers = Vec::with_capacity(self.config.num_hidden_layers);
        for layer in 0..self.config.num_hidden_layers {
            let prefix = format!("layers.{layer}.");
            self.reserve(specs.iter().map(|s| s.name.as_str()).filter(|n| n.starts_with(&prefix)))?;
            layers.push(self.layer(layer)?);
        }
        Ok(Weights { embed, norm, head, layers })
    }

    /// Takes device memory for a group of tensors at once: a model has a hundred thousand of them.
    fn reserve<'n>(&mut self, names: impl Iterator<Item = &'n str>) -> Result<(), LoadError> {
        let mut first = String::new();
        let mut bytes = 0;
        for name in names.filter(|name| !self.is_on_host(name)) {
            if let Some(stored) = self.source.get(name) {
                // Small BF16 vectors that an op wants as F32 are widened.
                let room = if is_f32_vector(name) { stored.len * 2 } else { stored.len };
                bytes += room.next_multiple_of(ALIGN);
                if first.is_empty() {
                    name.clone_into(&mut first);
                }
            }
        }
        let memory = self.device.allocate(bytes).map_err(|source| LoadError::Device { tensor: first, source })?;
        self.slab = Some((memory, 0));
        Ok(())
    }

    fn layer(&mut self, layer: usize) -> Result<LayerWeights, LoadError> {
        let config = self.config;
        let name = |suffix: &str| format!("layers.{layer}.{suffix}");
        let hyper = |loader: &mut Self, kind: &str| {
            Ok::<_, LoadError>(HyperConnectionWeights {
                projection: loader.tensor(&name(&format!("hc_{kind}_fn")))?,
                base: loader.tensor(&name(&format!("hc_{kind}_base")))?,
                scale: loader.tensor(&name(&format!("hc_{kind}_scale")))?,
            })
        };
        let compressor = if config.is_kv_source(layer) {
            let pools = config.compress_ratios[layer] > 1;
            Some(CompressorWeights {
                wkv: self.tensor(&name("attn.compressor.wkv.weight"))?,
                wgate: pools.then(|| self.tensor(&name("attn.compressor.wgate.weight"))).transpose()?,
                norm: self.tensor(&name("attn.compressor.norm.weight"))?,
                key_projection: self.tensor(&name("attn.indexer.wk.weight"))?,
                key_norm: self.tensor(&name("attn.indexer.k_norm.weight"))?,
            })
        } else {
            None
        };
        let indexer = if config.is_index_source(layer) {
            Some(IndexerWeights {
                wq_b: self.tensor(&name("attn.indexer.wq_b.weight"))?,
                head_weights: self.tensor(&name("attn.indexer.weights_proj.weight"))?,
            })
        } else {
            None
        };
        let experts = |loader: &mut Self, matrix: &str| {
            (0..config.n_routed_experts)
                .map(|e| loader.tensor(&name(&format!("ffn.experts.{e}.{matrix}.weight"))))
                .collect::<Result<Vec<_>, _>>()
        };
        let engram = match config.engram_slot(layer) {
            None => None,
            Some(_) => Some(EngramWeights {
                table: self.table(&name("engram.embed.weight"))?,
                wkv: self.tensor(&name("engram.wkv.weight"))?,
                q_weight: self.tensor(&name("engram.q_weight"))?,
                k_weight: self.tensor(&name("engram.k_weight"))?,
            }),
        };
        Ok(LayerWeights {
            attn_norm: self.tensor(&name("attn_norm.weight"))?,
            ffn_norm: self.tensor(&name("ffn_norm.weight"))?,
            hc_attn: hyper(self, "attn")?,
            hc_ffn: hyper(self, "ffn")?,
            attention: AttentionWeights {
                wq_a: self.tensor(&name("attn.wq_a.weight"))?,
                q_norm: self.tensor(&name("attn.q_norm.weight"))?,
                wq_b: self.tensor(&name("attn.wq_b.weight"))?,
                wkv: self.tensor(&name("attn.wkv.weight"))?,
                kv_norm: self.tensor(&name("attn.kv_norm.weight"))?,
                sink: self.tensor(&name("attn.attn_sink"))?,
                wo_a: self.tensor(&name("attn.wo_a.weight"))?,
                wo_b: self.tensor(&name("attn.wo_b.weight"))?,
                compressor,
                indexer,
            },
            moe: MoeWeights {
                gate: self.tensor(&name("ffn.gate.weight"))?,
                bias: self.tensor(&name("ffn.gate.bias"))?,
                bias_vl: config.has_vision().then(|| self.tensor(&name("ffn.gate.bias_vl"))).transpose()?,
                w1: experts(self, "w1")?,
                w2: experts(self, "w2")?,
                w3: experts(self, "w3")?,
                shared_w1: self.tensor(&name("ffn.shared_experts.w1.weight"))?,
                shared_w2: self.tensor(&name("ffn.shared_experts.w2.weight"))?,
                shared_w3: self.tensor(&name("ffn.shared_experts.w3.weight"))?,
            },
            engram,
        })
    }

    /// Whether a tensor has memory of the host.
    fn is_on_host(&self, name: &str) -> bool {
        self.tables == TablePlace::Host && name.contains(".engram.embed.")
    }

    /// Copies an Engram table to where the tables lie.
    fn table(&mut self, name: &str) -> Result<Tensor, LoadError> {
        if !self.is_on_host(name) {
            return self.tensor(name);
        }
        let scales = self.source.get(&scale_name(name)).map_or(0, |scales| scales.len);
        let bytes = self.stored(name).len.next_multiple_of(ALIGN) + scales;
        let none = || OpError::Unsupported {
            backend: self.device.backend().to_owned(),
            op: "Engram tables in memory of the host".to_owned(),
            reason: "the device reads none".to_owned(),
        };
        let memory = self.device.allocate_host(bytes).and_then(|memory| memory.ok_or_else(none));
        let memory = memory.map_err(|source| LoadError::Device { tensor: name.to_owned(), source })?;
        let of_layer = self.slab.replace((memory, 0));
        let table = self.tensor(name);
        self.slab = of_layer;
        table
    }

    /// Copies one tensor, with its scales, to the present group's memory.
    fn tensor(&mut self, name: &str) -> Result<Tensor, LoadError> {
        let stored = self.stored(name);
        self.source.check_values(name)?;
        let format = match (stored.dtype, storage_of(name)) {
            (StoredDtype::F32, _) => Format::F32,
            (StoredDtype::Bf16, _) => Format::Bf16,
            (StoredDtype::I8, _) => Format::Fp4Row32,
            (_, Storage::Fp8Row) => Format::Fp8Row32,
            _ => Format::Fp8Tile32,
        };
        if is_f32_vector(name) && format == Format::Bf16 {
            return self.widened(name, &stored);
        }
        let (memory, at) = self.take(stored.len);
        let tensor = if format.scale().is_none() {
            let tensor = Tensor::plain(&memory, at, format, &stored.shape);
            self.copy(name, &tensor, stored.bytes)?;
            tensor
        } else {
            let mut logical = stored.shape;
            if format == Format::Fp4Row32 {
                logical[1] *= 2;
            }
            let scale_name = scale_name(name);
            let scales = self.stored(&scale_name);
            self.source.check_values(&scale_name)?;
            let (scale_memory, scale_at) = self.take(scales.len);
            let tensor = Tensor::quantized((&memory, at), (&scale_memory, scale_at), format, &logical);
            self.copy(name, &tensor, stored.bytes)?;
            self.copy(&scale_name, &tensor.scale_as_bytes(), scales.bytes)?;
            tensor
        };
        Ok(tensor)
    }

    /// A BF16 vector as F32.
    fn widened(&mut self, name: &str, stored: &Found<'_>) -> Result<Tensor, LoadError> {
        let widen = |bytes: &[u8]| bytes.chunks_exact(2).flat_map(|b| [0, 0, b[0], b[1]]).collect::<Vec<u8>>();
        let (memory, at) = self.take(2 * stored.len);
        let tensor = Tensor::plain(&memory, at, Format::F32, &stored.shape);
        self.copy(name, &tensor, stored.bytes.map(widen).as_deref())?;
        Ok(tensor)
    }

    fn stored(&self, name: &str) -> Found<'a> {
        self.source.get(name).unwrap_or_else(|| panic!("{name} is in the layout that was verified"))
    }

    fn take(&mut self, bytes: usize) -> (Allocation, usize) {
        let (memory, taken) = self.slab.as_mut().expect("a group was reserved");
        let at = *taken;
        *taken = (at + bytes).next_multiple_of(ALIGN);
        (memory.clone(), at)
    }

    /// Copies what there is of a tensor.
    fn copy(&mut self, name: &str, tensor: &Tensor, bytes: Option<&[u8]>) -> Result<(), LoadError> {
        let Some(bytes) = bytes else { return Ok(()) };
        self.device.upload(tensor, bytes).map_err(|source| LoadError::Device { tensor: name.to_owned(), source })?;
        self.source.release(name);
        self.done += bytes.len() as u64;
        (self.progress)(self.done, self.total);
        Ok(())
    }
}

/// Name of the scales of a quantised weight.
fn scale_name(name: &str) -> String {
    format!("{}.scale", name.strip_suffix(".weight").unwrap_or(name))
}

/// Storage of a quantised weight, from its name alone.
fn storage_of(name: &str) -> Storage {
    if name.ends_with("engram.embed.weight") { Storage::Fp8Row } else { Storage::Fp8Tile }
}

/// Vectors that ops take as F32 only. They are small, so that a checkpoint in BF16 costs nothing to widen.
fn is_f32_vector(name: &str) -> bool {
    ["_base", "_scale", "attn_sink", "gate.bias", "gate.bias_vl"].iter().any(|suffix| name.ends_with(suffix))
}
