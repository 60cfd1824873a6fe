//! The model configuration: `config.json` of a checkpoint as a checked value.
//!
//! [`ModelConfig`] is the only description of the architecture that the rest of the crate sees. Reading one checks every rule
//! about its values, so the checkpoint layout, the forward pass and the memory plan divide, index and multiply its fields
//! without looking again.
//!
//! Two spellings are read: the nested layout of Hugging Face (`text_config`, `vision_config`, `quantization_config`), and
//! the same names flat at the top level. An optional key that is missing or `null` takes the value of the released
//! DeepSeek-V4.1-Flash unless its field says otherwise.
#![forbid(unsafe_code)]

mod parse;
mod validate;

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::engram_constants::{EngramConstants, EngramParams};
use crate::files;

/// Channels that share one scale in every stored weight format, and the side of an FP8 tile.
pub const WEIGHT_GROUP: usize = 32;

/// A checked model configuration. Fields carry the names of the Hugging Face `text_config`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelConfig {
    /// Number of token ids; rows of the embedding and of the head.
    pub vocab_size: usize,
    /// Width `d` of one copy of the residual stream.
    pub hidden_size: usize,
    /// Hidden width of one routed or shared expert.
    pub moe_intermediate_size: usize,
    /// Number of backbone layers, without the draft stages.
    pub num_hidden_layers: usize,
    /// Number of DSpark draft stages (`mtp.*`). Default 0.
    pub num_nextn_predict_layers: usize,
    /// Query heads of the attention.
    pub num_attention_heads: usize,
    /// Channels of a query head and of the one shared key/value head.
    pub head_dim: usize,
    /// Rotated channels at the end of each head. Default 64.
    pub qk_rope_head_dim: usize,
    /// Width of the query latent.
    pub q_lora_rank: usize,
    /// Output rank of each group of the output projection.
    pub o_lora_rank: usize,
    /// Groups of heads in the output projection.
    pub o_groups: usize,
    /// Positions that the window attention of each layer sees, the newest included. Default 128.
    pub sliding_window: usize,
    /// Epsilon of every RMSNorm of the text model. Default 1e-20.
    pub rms_norm_eps: f32,
    /// Longest sequence, prompt and output together, in tokens. Default 1048576.
    pub max_position_embeddings: usize,
    /// Rotary base of layers with ratio 0 and of the draft stages. Default 10000.
    pub rope_theta: f64,
    /// Rotary base of layers that read compressed entries. Default 160000.
    pub compress_rope_theta: f64,
    /// YaRN scaling of the layers that read compressed entries.
    pub rope_scaling: RopeScaling,
    /// Positions per compressed entry that each layer reads: 0 (none), 1 or 2. One item for each backbone layer, then one
    /// for each draft stage; a shorter list in the file is padded with 0. Default all 0.
    pub compress_ratios: Vec<usize>,
    /// Layers that produce compressed key/value entries, ascending. Default none.
    pub kv_source_layer_ids: Vec<usize>,
    /// Layers that select which compressed entries are read, ascending. Default none.
    pub index_source_layer_ids: Vec<usize>,
    /// Heads of the indexer. Default 32.
    pub index_n_heads: usize,
    /// Channels of an index query and of an index key. Default 128.
    pub index_head_dim: usize,
    /// Compressed entries that one query reads at most. Default 512.
    pub index_topk: usize,
    /// Index source that also chooses candidate blocks for the later index sources of the same entries; `None` where the
    /// file has no such key or a negative id.
    pub candidate_source_layer_id: Option<usize>,
    /// Candidate blocks kept per query. Default 0; positive with a candidate source.
    pub candidate_topk_blocks: usize,
    /// Consecutive compressed entries in a candidate block. Default 0; positive with a candidate source.
    pub candidate_block_size: usize,
    /// Routed experts of a backbone layer.
    pub n_routed_experts: usize,
    /// Shared experts of each layer; always 1.
    pub n_shared_experts: usize,
    /// Routed experts that a token visits.
    pub num_experts_per_tok: usize,
    /// How router logits become scores. Default `sqrtsoftplus`.
    pub scoring_func: ScoringFunc,
    /// Whether the scores of the chosen experts are divided by their sum. Default true.
    pub norm_topk_prob: bool,
    /// Factor on the route weights. Default 1.5.
    pub routed_scaling_factor: f32,
    /// Clamp inside the SwiGLU of experts: gate from above, up on both sides. Default 10.
    pub swiglu_limit: f32,
    /// Copies of the residual stream, 1 to 8. Default 4.
    pub hc_mult: usize,
    /// Row and column normalisations of the hyper-connection's mixing matrix. Default 20.
    pub hc_sinkhorn_iters: usize,
    /// Epsilon of the hyper-connection maps. Default 1e-6.
    pub hc_eps: f32,
    /// Layers before which an n-gram lookup is added, ascending. Default none.
    pub engram_layer_ids: Vec<usize>,
    /// Rows of each engram table, in the order of `engram_layer_ids`. Default: the sum of the layer's hash primes.
    pub engram_num_embeddings: Vec<usize>,
    /// Longest n-gram; tables exist for the sizes from 2 to this. Default 4.
    pub engram_max_ngram_size: usize,
    /// Lower bound of the primes that the n-gram hashes are reduced by. Default 16000000.
    pub engram_vocab_size: usize,
    /// Hash heads per n-gram size. Default 8.
    pub engram_n_heads: usize,
    /// Channels of a table row. Default 256.
    pub engram_head_dim: usize,
    /// Token id that stands before the start of a sequence in n-grams. Default 2.
    pub engram_pad_token_id: u32,
    /// Distinct ids after token normalisation. Default 99092.
    pub engram_compressed_vocab_size: usize,
    /// Tokens of a draft block; 0 (the default) means that the checkpoint has no drafter.
    pub dspark_block_size: usize,
    /// Token id that fills the unknown positions of a draft block. Default 0.
    pub dspark_noise_token_id: u32,
    /// Backbone layers whose inputs condition the drafter, ascending. Default none.
    pub dspark_target_layer_ids: Vec<usize>,
    /// Width of the Markov head. Default 256.
    pub dspark_markov_rank: usize,
    /// Routed experts of a draft stage. Default (and 0): as in the backbone.
    pub dspark_n_routed_experts: usize,
    /// Routed experts that a token visits in a draft stage. Default (and 0): as in the backbone.
    pub dspark_num_experts_per_tok: usize,
    /// First token of a sequence. Default 0.
    pub bos_token_id: u32,
    /// Token that ends a generation. Default 1.
    pub eos_token_id: u32,
    /// Padding token. Default 2.
    pub pad_token_id: u32,
    /// Token id at every position of an image span. Default 129264.
    pub image_token_id: u32,
    /// Whether compressed key/value entries are stored as FP4 (groups of 16, E4M3 scales) and not as FP8 (groups of 32).
    /// Default true.
    pub use_fp4_sparse_kv: bool,
    /// The vision tower; `None` for a text-only checkpoint.
    pub vision: Option<VisionConfig>,
}

/// YaRN scaling of rotary frequencies, `rope_scaling` in the file (or `rope_factor`, `rope_original_max`,
/// `rope_beta_fast`, `rope_beta_slow` flat).
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RopeScaling {
    /// Divisor of the slow frequencies. Default 16 where the file has no scaling at all.
    pub factor: f64,
    /// Context length, in tokens, that the unscaled frequencies were trained for. Default 65536.
    pub original_max_position_embeddings: usize,
    /// Rotations over the original context above which a frequency is left alone. Default 32.
    pub beta_fast: f64,
    /// Rotations over the original context below which a frequency is divided by the whole factor. Default 1.
    pub beta_slow: f64,
}

/// How router logits become scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ScoringFunc {
    /// `sqrt(ln(1 + e^z))`.
    SqrtSoftplus,
    /// `1 / (1 + e^-z)`.
    Sigmoid,
    /// Softmax over the experts.
    Softmax,
}

/// The vision tower and aligner, `vision_config` in the file (or the same names flat with the prefix `vision_`, and
/// `vision_layers`, `vision_heads`). Defaults are those of the released model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct VisionConfig {
    /// Transformer blocks.
    pub num_hidden_layers: usize,
    /// Width of the tower.
    pub hidden_size: usize,
    /// Attention heads.
    pub num_attention_heads: usize,
    /// Hidden width of a block's MLP.
    pub intermediate_size: usize,
    /// Side of a square patch, in pixels.
    pub patch_size: usize,
    /// Rotary base of the two-dimensional position code.
    pub rope_theta: f64,
    /// Patches per side that the aligner joins into one token.
    pub downsample_ratio: usize,
    /// Most tokens of one image, delimiters included.
    pub max_image_tokens: usize,
    /// Smaller images are scaled up to this many pixels.
    pub min_pixels: usize,
    /// Widest aspect ratio that is kept; `None` keeps all.
    pub max_wh_ratio: Option<f64>,
}

/// Why a configuration is refused. Each variant asks something different of whoever made the file.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read: give another path.
    #[error("cannot read the configuration {}: {source}", path.display())]
    Read {
        /// The path that was tried.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The file is not a JSON object: it is damaged or another kind of file.
    #[error("{origin} is not a JSON configuration: {reason}")]
    Json {
        /// Where the text came from.
        origin: String,
        /// What the JSON parser found, with line and column.
        reason: String,
    },
    /// A key without which nothing can run is missing: add it.
    #[error("{origin}: the key `{key}` is missing; it has no default because it shapes the weights")]
    Missing {
        /// Where the text came from.
        origin: String,
        /// The key.
        key: String,
    },
    /// A key holds another kind of JSON value than it should.
    #[error("{origin}: `{key}` is {found}, expected {expected}")]
    WrongType {
        /// Where the text came from.
        origin: String,
        /// The key.
        key: String,
        /// The value in the file.
        found: String,
        /// What it should be.
        expected: &'static str,
    },
    /// A value is meaningful but names a variant of the architecture that this engine does not run.
    #[error("{origin}: `{key}` is {found}, which is not supported; supported: {supported}")]
    Unsupported {
        /// Where the text came from.
        origin: String,
        /// The key.
        key: String,
        /// The value in the file.
        found: String,
        /// What this engine runs.
        supported: String,
    },
    /// A value contradicts another one or lies outside its range.
    #[error("{origin}: `{key}` is {found}, but {expected}")]
    Invalid {
        /// Where the text came from.
        origin: String,
        /// The key.
        key: String,
        /// The value in the file.
        found: String,
        /// The rule that it breaks, with the other value.
        expected: String,
    },
}

impl ModelConfig {
    /// Reads a configuration from JSON text; messages call it `config.json`.
    ///
    /// # Errors
    /// [`ConfigError`] when the text is not JSON, lacks a required key, or breaks a rule.
    pub fn from_json_str(text: &str) -> Result<Self, ConfigError> {
        Self::from_json_bytes(text.as_bytes(), "config.json")
    }

    /// Reads a configuration from the file at `path`.
    ///
    /// # Errors
    /// [`ConfigError`] when the file cannot be read or its text is refused, see [`ModelConfig::from_json_str`].
    pub fn from_file(path: &Path) -> Result<Self, ConfigError> {
        // Where nothing is, reading says so.
        let bytes = files::is_there(path).and_then(|_| std::fs::read(path));
        let bytes = bytes.map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        Self::from_json_bytes(&bytes, &path.display().to_string())
    }

    pub(crate) fn from_json_bytes(bytes: &[u8], origin: &str) -> Result<Self, ConfigError> {
        let mut config = parse::parse(bytes, origin)?;
        validate::validate(&config, origin)?;
        if config.engram_num_embeddings.is_empty() && !config.engram_layer_ids.is_empty() {
            config.engram_num_embeddings = config.derived_engram_rows(origin)?;
        }
        Ok(config)
    }

    /// The layer whose compressed entries `layer` reads: the last KV source that is not after it. `None` for a layer that
    /// reads its window only.
    ///
    /// # Panics
    /// If `layer` is neither a backbone layer nor a draft stage.
    pub fn kv_source_of(&self, layer: usize) -> Option<usize> {
        (self.compress_ratios[layer] > 0).then(|| last_not_after(&self.kv_source_layer_ids, layer)).flatten()
    }

    /// The layer whose selection `layer` reads: the last index source that is not after it. `None` for a layer that reads
    /// its window only.
    ///
    /// # Panics
    /// If `layer` is neither a backbone layer nor a draft stage.
    pub fn index_source_of(&self, layer: usize) -> Option<usize> {
        (self.compress_ratios[layer] > 0).then(|| last_not_after(&self.index_source_layer_ids, layer)).flatten()
    }

    /// Whether `layer` produces compressed entries and index keys.
    pub fn is_kv_source(&self, layer: usize) -> bool {
        self.kv_source_layer_ids.contains(&layer)
    }

    /// Whether `layer` has index queries of its own.
    pub fn is_index_source(&self, layer: usize) -> bool {
        self.index_source_layer_ids.contains(&layer)
    }

    /// Whether the selection of `layer` is restricted to the blocks that the candidate source chose: a later index source
    /// over the same compressed entries.
    pub fn selects_among_candidates(&self, layer: usize) -> bool {
        self.candidate_source_layer_id.is_some_and(|source| {
            layer > source && self.is_index_source(layer) && self.kv_source_of(layer) == self.kv_source_of(source)
        })
    }

    /// Position of `layer` in [`ModelConfig::engram_layer_ids`]; `None` where no n-gram lookup precedes the layer.
    pub fn engram_slot(&self, layer: usize) -> Option<usize> {
        self.engram_layer_ids.iter().position(|&id| id == layer)
    }

    /// Table rows that one token looks up per engram layer: hash heads times n-gram sizes.
    pub fn engram_columns(&self) -> usize {
        (self.engram_max_ngram_size - 1) * self.engram_n_heads
    }

    /// Whether the checkpoint holds a vision tower, image delimiters and image routing biases.
    pub fn has_vision(&self) -> bool {
        self.vision.is_some()
    }

    /// Draft stages whose weights the checkpoint holds: none unless it also states a draft block.
    pub fn draft_stages(&self) -> usize {
        if self.dspark_block_size > 0 { self.num_nextn_predict_layers } else { 0 }
    }

    /// Routed experts and experts per token, of a draft stage if `stage`, else of a backbone layer.
    pub fn moe_shape(&self, stage: bool) -> (usize, usize) {
        if stage {
            (self.dspark_n_routed_experts, self.dspark_num_experts_per_tok)
        } else {
            (self.n_routed_experts, self.num_experts_per_tok)
        }
    }

    /// Rows of a hyper-connection projection: collapse and expand weights of each copy, and the mixing matrix.
    pub fn hc_rows(&self) -> usize {
        self.hc_mult * (self.hc_mult + 2)
    }
}

impl ModelConfig {
    /// Rows of each engram table as the hash primes imply them.
    fn derived_engram_rows(&self, origin: &str) -> Result<Vec<usize>, ConfigError> {
        let constants = EngramConstants::derive(&EngramParams {
            layer_ids: self.engram_layer_ids.clone(),
            max_ngram_size: self.engram_max_ngram_size,
            vocab_size: self.engram_vocab_size,
            n_heads: self.engram_n_heads,
            compressed_vocab_size: self.engram_compressed_vocab_size,
            // The pad id takes part in hashing, not in the sizes of the tables.
            pad_compressed_id: 0,
        });
        let rows = constants.map(|constants| constants.table_rows().iter().map(|&rows| rows as usize).collect());
        rows.map_err(|error| ConfigError::Invalid {
            origin: origin.to_owned(),
            key: "engram_vocab_size".to_owned(),
            found: self.engram_vocab_size.to_string(),
            expected: format!("table sizes cannot be derived from it: {error}"),
        })
    }
}

fn last_not_after(ascending: &[usize], layer: usize) -> Option<usize> {
    ascending.iter().copied().take_while(|&id| id <= layer).last()
}
