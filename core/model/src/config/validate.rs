//! The rules that make a configuration runnable, each with the sentence that a user reads when it is broken.
//!
//! Upper bounds are far above any real model. They exist so that products of sizes fit in 64 bits and a hostile file
//! cannot make the layout of the checkpoint exhaust memory.

use std::fmt::Debug;
use std::ops::RangeInclusive;

use super::{ConfigError, ModelConfig, VisionConfig, WEIGHT_GROUP};

/// Most backbone layers, and most layers of the vision tower.
pub(super) const MAX_LAYERS: usize = 512;
/// Most draft stages.
pub(super) const MAX_STAGES: usize = 64;

const MAX_WIDTH: usize = 1 << 18;
const MAX_EXPERTS: usize = 4096;
/// Most routed experts of all layers and stages together; each has six tensors.
const MAX_EXPERTS_IN_ALL: usize = 1 << 17;
const MAX_VOCABULARY: usize = 1 << 24;
const MAX_ENGRAM_ROWS: usize = 1 << 36;
const MAX_CONTEXT: usize = 1 << 30;
/// Widest window and candidate block. Each row of a step lists this many entries.
const MAX_WINDOW: usize = 1 << 16;

pub(super) fn validate(config: &ModelConfig, origin: &str) -> Result<(), ConfigError> {
    let rules = Rules { origin };
    text_sizes(config, &rules)?;
    experts(config, &rules)?;
    layer_roles(config, &rules)?;
    indexer(config, &rules)?;
    engram(config, &rules)?;
    drafter(config, &rules)?;
    token_ids(config, &rules)?;
    config.vision.as_ref().map_or(Ok(()), |vision| vision_tower(vision, &rules))
}

struct Rules<'a> {
    origin: &'a str,
}

impl Rules<'_> {
    fn require(
        &self,
        holds: bool,
        key: &str,
        found: impl Debug,
        expected: impl FnOnce() -> String,
    ) -> Result<(), ConfigError> {
        if holds {
            return Ok(());
        }
        Err(ConfigError::Invalid {
            origin: self.origin.to_owned(),
            key: key.to_owned(),
            found: format!("{found:?}"),
            expected: expected(),
        })
    }

    fn range(&self, key: &str, found: usize, range: RangeInclusive<usize>) -> Result<(), ConfigError> {
        let expected = || format!("it must be between {} and {}", range.start(), range.end());
        self.require(range.contains(&found), key, found, expected)
    }

    fn multiple_of_group(&self, key: &str, found: usize, reason: &str) -> Result<(), ConfigError> {
        let expected = || format!("it must be a multiple of {WEIGHT_GROUP}: {reason}");
        self.require(found.is_multiple_of(WEIGHT_GROUP), key, found, expected)
    }

    fn positive(&self, key: &str, found: f64) -> Result<(), ConfigError> {
        self.require(found.is_finite() && found > 0.0, key, found, || "it must be a positive number".to_owned())
    }

    /// Layer ids must ascend without repetition and name backbone layers.
    fn layer_ids(&self, key: &str, ids: &[usize], layers: usize) -> Result<(), ConfigError> {
        let ascending = ids.windows(2).all(|pair| pair[0] < pair[1]);
        self.require(ascending, key, ids, || "layer ids must ascend without repetition".to_owned())?;
        let in_range = ids.last().is_none_or(|&last| last < layers);
        self.require(in_range, key, ids, || format!("the model has only the layers 0 to {}", layers.wrapping_sub(1)))
    }
}

fn text_sizes(config: &ModelConfig, rules: &Rules<'_>) -> Result<(), ConfigError> {
    rules.range("num_hidden_layers", config.num_hidden_layers, 1..=MAX_LAYERS)?;
    rules.range("num_nextn_predict_layers", config.num_nextn_predict_layers, 0..=MAX_STAGES)?;
    rules.range("vocab_size", config.vocab_size, 1..=MAX_VOCABULARY)?;
    rules.range("hidden_size", config.hidden_size, 1..=MAX_WIDTH)?;
    rules.range("num_attention_heads", config.num_attention_heads, 1..=1024)?;
    rules.range("head_dim", config.head_dim, 1..=8192)?;
    rules.range("q_lora_rank", config.q_lora_rank, 1..=MAX_WIDTH)?;
    rules.range("o_lora_rank", config.o_lora_rank, 1..=MAX_WIDTH)?;
    rules.range("o_groups", config.o_groups, 1..=config.num_attention_heads)?;
    rules.range("sliding_window", config.sliding_window, 1..=MAX_WINDOW)?;
    rules.range("max_position_embeddings", config.max_position_embeddings, 1..=MAX_CONTEXT)?;
    rules.range("hc_mult", config.hc_mult, 1..=8)?;
    rules.range("hc_sinkhorn_iters", config.hc_sinkhorn_iters, 1..=1000)?;

    rules.multiple_of_group("hidden_size", config.hidden_size, "inputs of FP8 matrices are quantised in groups")?;
    rules.multiple_of_group("q_lora_rank", config.q_lora_rank, "inputs of FP8 matrices are quantised in groups")?;
    rules.multiple_of_group("head_dim", config.head_dim, "window entries are stored in FP8 groups")?;
    rules.require(config.num_attention_heads.is_multiple_of(config.o_groups), "o_groups", config.o_groups, || {
        format!("it must divide the {} attention heads", config.num_attention_heads)
    })?;
    let joined = config.o_groups * config.o_lora_rank;
    rules.require(joined.is_multiple_of(WEIGHT_GROUP), "o_lora_rank", config.o_lora_rank, || {
        format!(
            "with {} groups the output projection has {joined} inputs, not a multiple of {WEIGHT_GROUP}",
            config.o_groups
        )
    })?;
    let rotated = config.qk_rope_head_dim;
    rules.require(rotated.is_multiple_of(2) && rotated > 0, "qk_rope_head_dim", rotated, || {
        "channels are rotated in pairs, so it must be even and positive".to_owned()
    })?;
    rules.require(rotated <= config.head_dim, "qk_rope_head_dim", rotated, || {
        format!("a head has only {} channels (`head_dim`)", config.head_dim)
    })?;

    rules.positive("rms_norm_eps", config.rms_norm_eps.into())?;
    rules.positive("hc_eps", config.hc_eps.into())?;
    rules.positive("rope_theta", config.rope_theta)?;
    rules.positive("compress_rope_theta", config.compress_rope_theta)?;
    rules.positive("rope_scaling.factor", config.rope_scaling.factor)?;
    rules.positive("rope_scaling.beta_fast", config.rope_scaling.beta_fast)?;
    rules.positive("rope_scaling.beta_slow", config.rope_scaling.beta_slow)?;
    let original = config.rope_scaling.original_max_position_embeddings;
    rules.range("rope_scaling.original_max_position_embeddings", original, 1..=MAX_CONTEXT)
}

fn experts(config: &ModelConfig, rules: &Rules<'_>) -> Result<(), ConfigError> {
    rules.range("moe_intermediate_size", config.moe_intermediate_size, 1..=MAX_WIDTH)?;
    rules.multiple_of_group(
        "moe_intermediate_size",
        config.moe_intermediate_size,
        "FP4 experts have one scale per group of inputs",
    )?;
    rules.range("n_shared_experts", config.n_shared_experts, 1..=1)?;
    for (stage, total_key, chosen_key) in [
        (false, "n_routed_experts", "num_experts_per_tok"),
        (true, "dspark_n_routed_experts", "dspark_num_experts_per_tok"),
    ] {
        let (total, chosen) = config.moe_shape(stage);
        rules.range(total_key, total, 1..=MAX_EXPERTS)?;
        let expected = || format!("a token visits at least one and at most all {total} experts (`{total_key}`)");
        rules.require((1..=total).contains(&chosen), chosen_key, chosen, expected)?;
    }
    let total = config.num_hidden_layers * config.n_routed_experts
        + config.num_nextn_predict_layers * config.dspark_n_routed_experts;
    rules.require(total <= MAX_EXPERTS_IN_ALL, "n_routed_experts", config.n_routed_experts, || {
        format!("all layers together would have {total} experts, more than {MAX_EXPERTS_IN_ALL}")
    })?;
    rules.positive("routed_scaling_factor", config.routed_scaling_factor.into())?;
    rules.positive("swiglu_limit", config.swiglu_limit.into())
}

/// Every layer that reads compressed entries must find a source of them, and a selection made among just those entries.
fn layer_roles(config: &ModelConfig, rules: &Rules<'_>) -> Result<(), ConfigError> {
    let layers = config.num_hidden_layers;
    rules.layer_ids("kv_source_layer_ids", &config.kv_source_layer_ids, layers)?;
    rules.layer_ids("index_source_layer_ids", &config.index_source_layer_ids, layers)?;

    let ratios = &config.compress_ratios;
    let entries = layers + config.num_nextn_predict_layers;
    rules.require(ratios.len() == entries, "compress_ratios", format_args!("{} items long", ratios.len()), || {
        format!("there are {layers} layers and {} draft stages", config.num_nextn_predict_layers)
    })?;
    for (layer, &ratio) in ratios.iter().enumerate() {
        let key = format!("compress_ratios[{layer}]");
        rules.require(ratio <= 2, &key, ratio, || "only the ratios 0, 1 and 2 exist".to_owned())?;
        rules.require(ratio == 0 || layer < layers, &key, ratio, || {
            "draft stages read their window alone, so it must be 0".to_owned()
        })?;
        let Some(source) = config.kv_source_of(layer) else {
            rules.require(ratio == 0, &key, ratio, || format!("no KV source precedes layer {layer}"))?;
            continue;
        };
        rules.require(ratios[source] == ratio, &key, ratio, || {
            format!("layer {layer} reads the entries of KV source {source}, whose ratio is {}", ratios[source])
        })?;
        let selection_source = config.index_source_of(layer).and_then(|index| config.kv_source_of(index));
        rules.require(
            selection_source == Some(source),
            "index_source_layer_ids",
            &config.index_source_layer_ids,
            || format!("layer {layer} reads the entries of KV source {source} and no selection among them precedes it"),
        )?;
    }
    for (key, sources) in [
        ("kv_source_layer_ids", &config.kv_source_layer_ids),
        ("index_source_layer_ids", &config.index_source_layer_ids),
    ] {
        for &source in sources {
            rules.require(ratios[source] > 0, key, sources, || {
                format!("layer {source} has compression ratio 0 and so cannot be such a source")
            })?;
        }
    }
    Ok(())
}

fn indexer(config: &ModelConfig, rules: &Rules<'_>) -> Result<(), ConfigError> {
    if config.index_source_layer_ids.is_empty() {
        let found = config.candidate_source_layer_id;
        return rules
            .require(found.is_none(), "candidate_source_layer_id", found, || "there is no index source".to_owned());
    }
    rules.range("index_n_heads", config.index_n_heads, 1..=1024)?;
    rules.range("index_head_dim", config.index_head_dim, 1..=8192)?;
    rules.multiple_of_group("index_head_dim", config.index_head_dim, "index keys are stored in FP4 groups")?;
    rules.require(
        config.qk_rope_head_dim <= config.index_head_dim,
        "qk_rope_head_dim",
        config.qk_rope_head_dim,
        || format!("an index key has only {} channels (`index_head_dim`)", config.index_head_dim),
    )?;
    rules.range("index_topk", config.index_topk, 1..=MAX_CONTEXT)?;
    if let Some(source) = config.candidate_source_layer_id {
        rules.require(config.is_index_source(source), "candidate_source_layer_id", source, || {
            format!("it must be one of the index sources {:?}", config.index_source_layer_ids)
        })?;
        rules.range("candidate_topk_blocks", config.candidate_topk_blocks, 1..=MAX_CONTEXT)?;
        rules.range("candidate_block_size", config.candidate_block_size, 1..=MAX_WINDOW)?;
    }
    Ok(())
}

fn engram(config: &ModelConfig, rules: &Rules<'_>) -> Result<(), ConfigError> {
    rules.layer_ids("engram_layer_ids", &config.engram_layer_ids, config.num_hidden_layers)?;
    rules.range("engram_max_ngram_size", config.engram_max_ngram_size, 2..=16)?;
    if config.engram_layer_ids.is_empty() {
        return Ok(());
    }
    rules.range("engram_n_heads", config.engram_n_heads, 1..=64)?;
    rules.range("engram_head_dim", config.engram_head_dim, 1..=8192)?;
    rules.multiple_of_group("engram_head_dim", config.engram_head_dim, "table rows have one scale per group")?;
    rules.range("engram_vocab_size", config.engram_vocab_size, 1..=1 << 30)?;
    rules.range("engram_compressed_vocab_size", config.engram_compressed_vocab_size, 1..=MAX_VOCABULARY)?;
    // An empty list is filled from the hash primes after these checks.
    let tables = config.engram_num_embeddings.len();
    let layers = config.engram_layer_ids.len();
    rules.require(tables == 0 || tables == layers, "engram_num_embeddings", &config.engram_num_embeddings, || {
        format!("there are {layers} engram layers, and each needs a table size")
    })?;
    config
        .engram_num_embeddings
        .iter()
        .try_for_each(|&rows| rules.range("engram_num_embeddings", rows, 1..=MAX_ENGRAM_ROWS))
}

fn drafter(config: &ModelConfig, rules: &Rules<'_>) -> Result<(), ConfigError> {
    rules.layer_ids("dspark_target_layer_ids", &config.dspark_target_layer_ids, config.num_hidden_layers)?;
    if config.draft_stages() == 0 {
        return Ok(());
    }
    rules.range("dspark_block_size", config.dspark_block_size, 1..=1024)?;
    rules.range("dspark_markov_rank", config.dspark_markov_rank, 1..=MAX_WIDTH)?;
    let targets = &config.dspark_target_layer_ids;
    rules.require(!targets.is_empty(), "dspark_target_layer_ids", targets, || {
        "the drafter needs at least one backbone layer to look at".to_owned()
    })
}

fn token_ids(config: &ModelConfig, rules: &Rules<'_>) -> Result<(), ConfigError> {
    let in_vocabulary = |key: &str, id: u32| {
        rules.require((id as usize) < config.vocab_size, key, id, || {
            format!("the vocabulary has {} ids (`vocab_size`)", config.vocab_size)
        })
    };
    in_vocabulary("bos_token_id", config.bos_token_id)?;
    in_vocabulary("eos_token_id", config.eos_token_id)?;
    in_vocabulary("pad_token_id", config.pad_token_id)?;
    if !config.engram_layer_ids.is_empty() {
        in_vocabulary("engram_pad_token_id", config.engram_pad_token_id)?;
    }
    if config.draft_stages() > 0 {
        in_vocabulary("dspark_noise_token_id", config.dspark_noise_token_id)?;
    }
    if config.has_vision() {
        in_vocabulary("image_token_id", config.image_token_id)?;
    }
    Ok(())
}

fn vision_tower(vision: &VisionConfig, rules: &Rules<'_>) -> Result<(), ConfigError> {
    rules.range("vision_config.num_hidden_layers", vision.num_hidden_layers, 1..=MAX_LAYERS)?;
    rules.range("vision_config.hidden_size", vision.hidden_size, 1..=MAX_WIDTH)?;
    rules.range("vision_config.intermediate_size", vision.intermediate_size, 1..=MAX_WIDTH)?;
    rules.range("vision_config.patch_size", vision.patch_size, 1..=256)?;
    rules.range("vision_config.downsample_ratio", vision.downsample_ratio, 1..=16)?;
    // One token, its newline, and the two delimiters.
    rules.range("vision_config.max_image_tokens", vision.max_image_tokens, 4..=MAX_CONTEXT)?;
    rules.range("vision_config.num_attention_heads", vision.num_attention_heads, 1..=1024)?;
    let (width, heads) = (vision.hidden_size, vision.num_attention_heads);
    rules.require(width.is_multiple_of(4 * heads), "vision_config.num_attention_heads", heads, || {
        format!("the {width} channels must split into heads of a multiple of 4 (row and column halves, in pairs)")
    })?;
    rules.positive("vision_config.rope_theta", vision.rope_theta)?;
    vision.max_wh_ratio.map_or(Ok(()), |ratio| rules.positive("vision_config.max_wh_ratio", ratio))
}
