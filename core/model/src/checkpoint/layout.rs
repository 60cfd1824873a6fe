//! The list of tensors that a checkpoint of a given configuration holds.
//!
//! This is the only place that knows tensor names. Verification, inspection and the upload of weights all walk the list
//! that [`tensor_specs`] derives (model specification, checkpoint).

use serde::Serialize;

use super::dtype::StoredDtype;
use crate::config::{ModelConfig, VisionConfig, WEIGHT_GROUP};

/// One tensor that the checkpoint should hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// Name in the safetensors header.
    pub name: String,
    /// Storage format of the released checkpoint.
    pub storage: Storage,
    /// Shape in that format, outermost dimension first. An FP4 matrix `[o, i]` is stored as `[o, i/2]` bytes.
    pub shape: Vec<u64>,
    /// Part of the model that the tensor belongs to.
    pub group: Group,
}

/// How the elements of a tensor are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Storage {
    /// E4M3 matrix with one UE8M0 scale per 32 x 32 tile.
    Fp8Tile,
    /// E4M3 table with one UE8M0 scale per row and 32 channels.
    Fp8Row,
    /// E2M1 matrix, two codes per byte along the input, with one UE8M0 scale per row and 32 inputs.
    Fp4,
    /// The UE8M0 scales of one of the above.
    Ue8m0,
    /// bfloat16.
    Bf16,
    /// IEEE single precision.
    F32,
}

/// Part of the model, as memory is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// Token embedding.
    Embedding,
    /// Output head and final norm.
    Head,
    /// Query, window and output projections with their norms and sinks, and the norms before each sublayer.
    Attention,
    /// Compressor and indexer.
    Compression,
    /// Maps of the hyper-connections.
    HyperConnection,
    /// Router weights and selection biases.
    Router,
    /// Routed experts.
    RoutedExperts,
    /// Shared experts.
    SharedExperts,
    /// N-gram tables.
    EngramTable,
    /// Projection and gate of the n-gram lookup.
    Engram,
    /// All of the DSpark draft stages.
    Draft,
    /// Vision tower, aligner, image delimiters and selection biases for image positions.
    Vision,
}

impl Storage {
    /// Element type of the stored tensor.
    pub fn dtype(self) -> StoredDtype {
        match self {
            Self::Fp8Tile | Self::Fp8Row => StoredDtype::F8E4M3,
            Self::Fp4 => StoredDtype::I8,
            Self::Ue8m0 => StoredDtype::F8E8M0,
            Self::Bf16 => StoredDtype::Bf16,
            Self::F32 => StoredDtype::F32,
        }
    }

    /// Whether a `.scale` tensor stands beside the `.weight`.
    pub fn is_quantised(self) -> bool {
        matches!(self, Self::Fp8Tile | Self::Fp8Row | Self::Fp4)
    }
}

impl TensorSpec {
    /// Bytes of the tensor in its released format.
    pub fn bytes(&self) -> u64 {
        self.shape.iter().product::<u64>() * self.storage.dtype().bits() / 8
    }

    /// Model parameters in the tensor: an FP4 byte holds two, a scale none.
    pub fn parameters(&self) -> u64 {
        match self.storage {
            Storage::Ue8m0 => 0,
            _ => self.dense_shape().iter().product(),
        }
    }

    /// Shape of the tensor when it is stored in BF16 or F32 instead.
    pub fn dense_shape(&self) -> Vec<u64> {
        let mut shape = self.shape.clone();
        if let (Storage::Fp4, Some(packed)) = (self.storage, shape.last_mut()) {
            *packed *= 2;
        }
        shape
    }

    /// For a scale tensor, the name of the weight that it scales.
    pub fn scaled_weight(&self) -> Option<String> {
        match self.storage {
            Storage::Ue8m0 => self.name.strip_suffix(".scale").map(|stem| format!("{stem}.weight")),
            _ => None,
        }
    }
}

/// All tensors of a checkpoint of `config`: text model, n-gram tables, draft stages (if it has a drafter) and vision (if
/// it has a tower), layer by layer. A scale follows its weight. No name occurs twice.
pub fn tensor_specs(config: &ModelConfig) -> Vec<TensorSpec> {
    let mut list = List { config, specs: Vec::new() };
    let hidden = config.hidden_size;
    list.bf16("embed.weight", &[config.vocab_size, hidden], Group::Embedding);
    for layer in 0..config.num_hidden_layers {
        list.backbone_layer(layer);
    }
    list.bf16("norm.weight", &[hidden], Group::Head);
    list.bf16("head.weight", &[config.vocab_size, hidden], Group::Head);
    for stage in 0..config.draft_stages() {
        list.draft_stage(stage);
    }
    if let Some(vision) = &config.vision {
        list.vision(vision);
    }
    list.specs
}

struct List<'a> {
    config: &'a ModelConfig,
    specs: Vec<TensorSpec>,
}

impl List<'_> {
    fn backbone_layer(&mut self, layer: usize) {
        let prefix = format!("layers.{layer}");
        if let Some(slot) = self.config.engram_slot(layer) {
            self.engram(&prefix, self.config.engram_num_embeddings[slot]);
        }
        self.block(&prefix, false);
        if self.config.is_kv_source(layer) {
            self.compressor(&prefix, self.config.compress_ratios[layer]);
        }
        if self.config.is_index_source(layer) {
            self.index_queries(&prefix);
        }
    }

    /// What backbone layers and draft stages have in common: norms, hyper-connections, attention, experts.
    fn block(&mut self, prefix: &str, stage: bool) {
        let config = self.config;
        let group = |backbone| if stage { Group::Draft } else { backbone };
        let (hidden, heads) = (config.hidden_size, config.num_attention_heads);

        for sublayer in ["attn", "ffn"] {
            self.bf16(&format!("{prefix}.{sublayer}_norm.weight"), &[hidden], group(Group::Attention));
            let map = |part| format!("{prefix}.hc_{sublayer}_{part}");
            let rows = config.hc_rows();
            self.f32(&map("fn"), &[rows, config.hc_mult * hidden], group(Group::HyperConnection));
            self.f32(&map("base"), &[rows], group(Group::HyperConnection));
            // One gain each for the collapse weights, the expand weights and the mixing matrix.
            self.f32(&map("scale"), &[3], group(Group::HyperConnection));
        }

        let attention = group(Group::Attention);
        let heads_width = heads * config.head_dim;
        self.fp8_tile(&format!("{prefix}.attn.wq_a"), config.q_lora_rank, hidden, attention);
        self.bf16(&format!("{prefix}.attn.q_norm.weight"), &[config.q_lora_rank], attention);
        self.fp8_tile(&format!("{prefix}.attn.wq_b"), heads_width, config.q_lora_rank, attention);
        self.fp8_tile(&format!("{prefix}.attn.wkv"), config.head_dim, hidden, attention);
        self.bf16(&format!("{prefix}.attn.kv_norm.weight"), &[config.head_dim], attention);
        self.f32(&format!("{prefix}.attn.attn_sink"), &[heads], attention);
        let latent = config.o_groups * config.o_lora_rank;
        self.fp8_tile(&format!("{prefix}.attn.wo_a"), latent, heads_width / config.o_groups, attention);
        self.fp8_tile(&format!("{prefix}.attn.wo_b"), hidden, latent, attention);

        let (experts, _) = config.moe_shape(stage);
        self.bf16(&format!("{prefix}.ffn.gate.weight"), &[experts, hidden], group(Group::Router));
        self.f32(&format!("{prefix}.ffn.gate.bias"), &[experts], group(Group::Router));
        if config.has_vision() {
            self.f32(&format!("{prefix}.ffn.gate.bias_vl"), &[experts], group(Group::Vision));
        }
        let width = config.moe_intermediate_size;
        let matrices = [("w1", width, hidden), ("w3", width, hidden), ("w2", hidden, width)];
        for expert in 0..experts {
            for (matrix, outputs, inputs) in matrices {
                let name = format!("{prefix}.ffn.experts.{expert}.{matrix}");
                self.fp4(&name, outputs, inputs, group(Group::RoutedExperts));
            }
        }
        for (matrix, outputs, inputs) in matrices {
            let name = format!("{prefix}.ffn.shared_experts.{matrix}");
            self.fp8_tile(&name, outputs, inputs, group(Group::SharedExperts));
        }
    }

    /// A KV source's compressor and the key side of its indexer.
    fn compressor(&mut self, prefix: &str, ratio: usize) {
        let (hidden, latent, key) = (self.config.hidden_size, self.config.head_dim, self.config.index_head_dim);
        self.bf16(&format!("{prefix}.attn.compressor.wkv.weight"), &[latent, hidden], Group::Compression);
        if ratio > 1 {
            // At ratio 1 there is nothing to pool, hence no pooling gate.
            self.bf16(&format!("{prefix}.attn.compressor.wgate.weight"), &[latent, hidden], Group::Compression);
        }
        self.bf16(&format!("{prefix}.attn.compressor.norm.weight"), &[latent], Group::Compression);
        self.bf16(&format!("{prefix}.attn.indexer.wk.weight"), &[key, latent], Group::Compression);
        self.bf16(&format!("{prefix}.attn.indexer.k_norm.weight"), &[key], Group::Compression);
    }

    /// The query side of an index source.
    fn index_queries(&mut self, prefix: &str) {
        let heads = self.config.index_n_heads;
        let width = heads * self.config.index_head_dim;
        self.fp8_tile(&format!("{prefix}.attn.indexer.wq_b"), width, self.config.q_lora_rank, Group::Compression);
        let shape = [heads, self.config.hidden_size];
        self.bf16(&format!("{prefix}.attn.indexer.weights_proj.weight"), &shape, Group::Compression);
    }

    fn engram(&mut self, prefix: &str, rows: usize) {
        let config = self.config;
        let (hidden, copies, width) = (config.hidden_size, config.hc_mult, config.engram_head_dim);
        let table = format!("{prefix}.engram.embed");
        self.push(format!("{table}.weight"), Storage::Fp8Row, &[rows, width], Group::EngramTable);
        self.push(format!("{table}.scale"), Storage::Ue8m0, &[rows, width / WEIGHT_GROUP], Group::EngramTable);
        // One key for each copy of the stream and one value for all of them.
        let outputs = (copies + 1) * hidden;
        self.fp8_tile(&format!("{prefix}.engram.wkv"), outputs, config.engram_columns() * width, Group::Engram);
        self.bf16(&format!("{prefix}.engram.q_weight"), &[copies, hidden], Group::Engram);
        self.bf16(&format!("{prefix}.engram.k_weight"), &[copies, hidden], Group::Engram);
    }

    fn draft_stage(&mut self, stage: usize) {
        let config = self.config;
        let prefix = format!("mtp.{stage}");
        let (hidden, vocab, rank) = (config.hidden_size, config.vocab_size, config.dspark_markov_rank);
        if stage == 0 {
            let inputs = config.dspark_target_layer_ids.len() * hidden;
            self.fp8_tile(&format!("{prefix}.main_proj"), hidden, inputs, Group::Draft);
            self.bf16(&format!("{prefix}.main_norm.weight"), &[hidden], Group::Draft);
        }
        self.block(&prefix, true);
        if stage + 1 == config.draft_stages() {
            self.bf16(&format!("{prefix}.norm.weight"), &[hidden], Group::Draft);
            self.bf16(&format!("{prefix}.markov_head.embed.weight"), &[vocab, rank], Group::Draft);
            self.bf16(&format!("{prefix}.markov_head.head.weight"), &[vocab, rank], Group::Draft);
            self.bf16(&format!("{prefix}.confidence_head.proj.weight"), &[1, hidden + rank], Group::Draft);
        }
    }

    fn vision(&mut self, vision: &VisionConfig) {
        let (text, width, mlp) = (self.config.hidden_size, vision.hidden_size, vision.intermediate_size);
        let patch = 3 * vision.patch_size * vision.patch_size;
        let cell = width * vision.downsample_ratio * vision.downsample_ratio;
        self.bf16("vision.patch_embed.proj.weight", &[width, patch], Group::Vision);
        self.bf16("vision.patch_embed.proj.bias", &[width], Group::Vision);
        for block in 0..vision.num_hidden_layers {
            let name = |part: &str| format!("vision.blocks.{block}.{part}");
            self.bf16(&name("norm1.weight"), &[width], Group::Vision);
            self.bf16(&name("norm2.weight"), &[width], Group::Vision);
            self.bf16(&name("attn.wqkv.weight"), &[3 * width, width], Group::Vision);
            self.bf16(&name("attn.wqkv.bias"), &[3 * width], Group::Vision);
            self.bf16(&name("attn.wo.weight"), &[width, width], Group::Vision);
            self.bf16(&name("attn.wo.bias"), &[width], Group::Vision);
            // Gate and up in one matrix.
            self.bf16(&name("mlp.w1.weight"), &[2 * mlp, width], Group::Vision);
            self.bf16(&name("mlp.w2.weight"), &[width, mlp], Group::Vision);
        }
        self.bf16("vision.norm.weight", &[width], Group::Vision);
        self.bf16("aligner.w1.weight", &[text, cell], Group::Vision);
        self.bf16("aligner.w1.bias", &[text], Group::Vision);
        self.bf16("aligner.w2.weight", &[text, text], Group::Vision);
        self.bf16("aligner.w2.bias", &[text], Group::Vision);
        for delimiter in ["image_start", "image_end", "image_newline"] {
            self.bf16(delimiter, &[text], Group::Vision);
        }
    }

    fn bf16(&mut self, name: &str, shape: &[usize], group: Group) {
        self.push(name.to_owned(), Storage::Bf16, shape, group);
    }

    fn f32(&mut self, name: &str, shape: &[usize], group: Group) {
        self.push(name.to_owned(), Storage::F32, shape, group);
    }

    fn fp8_tile(&mut self, stem: &str, outputs: usize, inputs: usize, group: Group) {
        let tiles = [outputs.div_ceil(WEIGHT_GROUP), inputs.div_ceil(WEIGHT_GROUP)];
        self.push(format!("{stem}.weight"), Storage::Fp8Tile, &[outputs, inputs], group);
        self.push(format!("{stem}.scale"), Storage::Ue8m0, &tiles, group);
    }

    fn fp4(&mut self, stem: &str, outputs: usize, inputs: usize, group: Group) {
        self.push(format!("{stem}.weight"), Storage::Fp4, &[outputs, inputs / 2], group);
        self.push(format!("{stem}.scale"), Storage::Ue8m0, &[outputs, inputs / WEIGHT_GROUP], group);
    }

    fn push(&mut self, name: String, storage: Storage, shape: &[usize], group: Group) {
        let shape = shape.iter().map(|&size| size as u64).collect();
        self.specs.push(TensorSpec { name, storage, shape, group });
    }
}
