//! From JSON text to an unchecked [`ModelConfig`]: names, JSON types and defaults.

use serde_json::{Map, Value};

use super::validate::{MAX_LAYERS, MAX_STAGES};
use super::{ConfigError, ModelConfig, RopeScaling, ScoringFunc, VisionConfig, WEIGHT_GROUP};
use crate::files::without_byte_order_mark;

pub(super) fn parse(bytes: &[u8], origin: &str) -> Result<ModelConfig, ConfigError> {
    let not_json = |reason: String| ConfigError::Json { origin: origin.to_owned(), reason };
    let value: Value =
        serde_json::from_slice(without_byte_order_mark(bytes)).map_err(|error| not_json(error.to_string()))?;
    let Value::Object(top) = &value else {
        return Err(not_json(format!("the text is {}, not an object", shown(&value))));
    };
    let root = Keys { origin, scopes: vec![("", top)] };
    let text = root.nested("text_config")?;
    let quantization = root.nested("quantization_config")?;
    refuse_other_models(&root)?;
    refuse_other_variants(&text, &quantization)?;

    let scoring_func = scoring_func(&text)?;

    let layers = text.required_size("num_hidden_layers")?;
    let stages = text.size_or("num_nextn_predict_layers", 0)?;
    let mut compress_ratios = text.sizes("compress_ratios")?;
    // Some copies of the released file list the backbone layers only; draft stages always read their window alone.
    let listed = compress_ratios.len();
    compress_ratios.resize(listed.max(layers.saturating_add(stages).min(MAX_LAYERS + MAX_STAGES)), 0);

    let n_routed_experts = text.required_size("n_routed_experts")?;
    let num_experts_per_tok = text.required_size("num_experts_per_tok")?;
    let as_backbone_if_zero = |stage: usize, backbone: usize| if stage == 0 { backbone } else { stage };

    Ok(ModelConfig {
        vocab_size: text.required_size("vocab_size")?,
        hidden_size: text.required_size("hidden_size")?,
        moe_intermediate_size: text.required_size("moe_intermediate_size")?,
        num_hidden_layers: layers,
        num_nextn_predict_layers: stages,
        num_attention_heads: text.required_size("num_attention_heads")?,
        head_dim: text.required_size("head_dim")?,
        qk_rope_head_dim: text.size_or("qk_rope_head_dim", 64)?,
        q_lora_rank: text.required_size("q_lora_rank")?,
        o_lora_rank: text.required_size("o_lora_rank")?,
        o_groups: text.required_size("o_groups")?,
        sliding_window: text.size_or("sliding_window", 128)?,
        rms_norm_eps: text.number_or("rms_norm_eps", 1e-20)? as f32,
        max_position_embeddings: text.size_or("max_position_embeddings", 1 << 20)?,
        rope_theta: text.number_or("rope_theta", 10_000.0)?,
        compress_rope_theta: text.number_or("compress_rope_theta", 160_000.0)?,
        rope_scaling: rope_scaling(&text)?,
        compress_ratios,
        kv_source_layer_ids: text.sizes("kv_source_layer_ids")?,
        index_source_layer_ids: text.sizes("index_source_layer_ids")?,
        index_n_heads: text.size_or("index_n_heads", 32)?,
        index_head_dim: text.size_or("index_head_dim", 128)?,
        index_topk: text.size_or("index_topk", 512)?,
        candidate_source_layer_id: candidate_source(&text)?,
        candidate_topk_blocks: text.size_or("candidate_topk_blocks", 0)?,
        candidate_block_size: text.size_or("candidate_block_size", 0)?,
        n_routed_experts,
        n_shared_experts: text.size_or("n_shared_experts", 1)?,
        num_experts_per_tok,
        scoring_func,
        norm_topk_prob: text.bool_or("norm_topk_prob", true)?,
        routed_scaling_factor: text.number_or("routed_scaling_factor", 1.5)? as f32,
        swiglu_limit: text.number_or("swiglu_limit", 10.0)? as f32,
        hc_mult: text.size_or("hc_mult", 4)?,
        hc_sinkhorn_iters: text.size_or("hc_sinkhorn_iters", 20)?,
        hc_eps: text.number_or("hc_eps", 1e-6)? as f32,
        engram_layer_ids: text.sizes("engram_layer_ids")?,
        engram_num_embeddings: text.sizes("engram_num_embeddings")?,
        engram_max_ngram_size: text.size_or("engram_max_ngram_size", 4)?,
        engram_vocab_size: text.size_or("engram_vocab_size", 16_000_000)?,
        engram_n_heads: text.size_or("engram_n_heads", 8)?,
        engram_head_dim: text.size_or("engram_head_dim", 256)?,
        engram_pad_token_id: text.token_or("engram_pad_token_id", 2)?,
        engram_compressed_vocab_size: text.size_or("engram_compressed_vocab_size", 99_092)?,
        dspark_block_size: text.size_or("dspark_block_size", 0)?,
        dspark_noise_token_id: text.token_or("dspark_noise_token_id", 0)?,
        dspark_target_layer_ids: text.sizes("dspark_target_layer_ids")?,
        dspark_markov_rank: text.size_or("dspark_markov_rank", 256)?,
        dspark_n_routed_experts: as_backbone_if_zero(text.size_or("dspark_n_routed_experts", 0)?, n_routed_experts),
        dspark_num_experts_per_tok: as_backbone_if_zero(
            text.size_or("dspark_num_experts_per_tok", 0)?,
            num_experts_per_tok,
        ),
        bos_token_id: text.token_or("bos_token_id", 0)?,
        eos_token_id: text.token_or("eos_token_id", 1)?,
        pad_token_id: text.token_or("pad_token_id", 2)?,
        image_token_id: text.token_or("image_token_id", 129_264)?,
        use_fp4_sparse_kv: text.bool_or("use_fp4_sparse_kv", true)?,
        vision: vision(&root)?,
    })
}

/// Refuses the configuration of another model family, and token ids that the two layers of the file state differently:
/// programs that read only one of them would disagree about the model.
fn refuse_other_models(root: &Keys<'_>) -> Result<(), ConfigError> {
    const FAMILY: &str = "deepseek_v41";
    const TEXT_FAMILY: &str = "deepseek_v41_text";
    if root.find("text_config").is_none() {
        return root.only("model_type", &[FAMILY, TEXT_FAMILY]);
    }
    root.only("model_type", &[FAMILY])?;
    let text = root.inside("text_config")?;
    text.only("model_type", &[TEXT_FAMILY])?;
    for key in ["bos_token_id", "eos_token_id", "pad_token_id", "image_token_id"] {
        if let (Some(outer), Some(inner)) = (root.token(key)?, text.token(key)?)
            && outer != inner
        {
            return Err(ConfigError::Invalid {
                origin: root.origin.to_owned(),
                key: format!("text_config.{key}"),
                found: inner.to_string(),
                expected: format!("the top level gives `{key}` as {outer}; the two must be equal"),
            });
        }
    }
    Ok(())
}

/// Refuses values that select an architecture or a storage format other than the one implemented. Keys that this engine
/// would otherwise ignore are checked here too, so that no setting is dropped in silence.
fn refuse_other_variants(text: &Keys<'_>, quantization: &Keys<'_>) -> Result<(), ConfigError> {
    text.only("topk_method", &["noaux_tc"])?;
    text.only("hidden_act", &["silu"])?;
    quantization.only("quant_method", &["fp8"])?;
    quantization.only("activation_scheme", &["dynamic"])?;
    quantization.only("scale_fmt", &["ue8m0"])?;
    quantization.only("expert_dtype", &["fp4"])?;
    let block = quantization.sizes("weight_block_size")?;
    if !block.is_empty() && block != [WEIGHT_GROUP, WEIGHT_GROUP] {
        return Err(quantization.unsupported("weight_block_size", format!("{block:?}"), "[32, 32]"));
    }
    quantization.only_size("weight_block", WEIGHT_GROUP)?;
    text.only_size("num_key_value_heads", 1)?;
    text.only_bool("attention_bias", false)?;
    text.only_bool("tie_word_embeddings", false)?;
    text.only_bool("hc_shifted", true)?;
    text.only_bool("dspark_target_attn_input", true)?;
    let dropout = text.number_or("attention_dropout", 0.0)?;
    if dropout != 0.0 {
        return Err(text.unsupported("attention_dropout", dropout.to_string(), "0"));
    }
    let (keys, entries) = (text.sizes("index_k_source_layer_ids")?, text.sizes("kv_source_layer_ids")?);
    if !keys.is_empty() && keys != entries {
        let supported = format!("the KV sources {entries:?}");
        return Err(text.unsupported("index_k_source_layer_ids", format!("{keys:?}"), &supported));
    }
    Ok(())
}

fn scoring_func(text: &Keys<'_>) -> Result<ScoringFunc, ConfigError> {
    text.only("scoring_func", &["sqrtsoftplus", "sigmoid", "softmax"])?;
    Ok(match text.string("scoring_func")? {
        Some("sigmoid") => ScoringFunc::Sigmoid,
        Some("softmax") => ScoringFunc::Softmax,
        _ => ScoringFunc::SqrtSoftplus,
    })
}

fn rope_scaling(text: &Keys<'_>) -> Result<RopeScaling, ConfigError> {
    if text.find("rope_scaling").is_none() {
        return Ok(RopeScaling {
            factor: text.number_or("rope_factor", 16.0)?,
            original_max_position_embeddings: text.size_or("rope_original_max", 65_536)?,
            beta_fast: text.number_or("rope_beta_fast", 32.0)?,
            beta_slow: text.number_or("rope_beta_slow", 1.0)?,
        });
    }
    let scaling = text.inside("rope_scaling")?;
    scaling.only("rope_type", &["yarn"])?;
    scaling.only("type", &["yarn"])?;
    Ok(RopeScaling {
        factor: scaling.number("factor")?.ok_or_else(|| scaling.missing("factor"))?,
        original_max_position_embeddings: scaling.required_size("original_max_position_embeddings")?,
        beta_fast: scaling.number_or("beta_fast", 32.0)?,
        beta_slow: scaling.number_or("beta_slow", 1.0)?,
    })
}

/// The candidate source; files without two-level selection say -1 or nothing.
fn candidate_source(text: &Keys<'_>) -> Result<Option<usize>, ConfigError> {
    match text.number("candidate_source_layer_id")? {
        Some(id) if id < 0.0 => Ok(None),
        _ => text.size("candidate_source_layer_id"),
    }
}

fn vision(root: &Keys<'_>) -> Result<Option<VisionConfig>, ConfigError> {
    let nested = root.find("vision_config").is_some();
    if !nested && root.size_or("vision_layers", 0)? == 0 {
        return Ok(None);
    }
    let scope = if nested { root.inside("vision_config")? } else { root.clone() };
    // The flat spelling prefixes every name, and shortens two of them.
    let name = |nested_name: &'static str, flat_name: &'static str| if nested { nested_name } else { flat_name };
    Ok(Some(VisionConfig {
        num_hidden_layers: scope.size_or(name("num_hidden_layers", "vision_layers"), 32)?,
        hidden_size: scope.size_or(name("hidden_size", "vision_hidden_size"), 1024)?,
        num_attention_heads: scope.size_or(name("num_attention_heads", "vision_heads"), 16)?,
        intermediate_size: scope.size_or(name("intermediate_size", "vision_intermediate_size"), 2816)?,
        patch_size: scope.size_or(name("patch_size", "vision_patch_size"), 14)?,
        rope_theta: scope.number_or(name("rope_theta", "vision_rope_theta"), 10_000.0)?,
        downsample_ratio: scope.size_or(name("downsample_ratio", "vision_downsample_ratio"), 3)?,
        max_image_tokens: scope.size_or(name("max_image_tokens", "vision_max_image_tokens"), 1024)?,
        min_pixels: scope.size_or(name("min_pixels", "vision_min_pixels"), 295_936)?,
        max_wh_ratio: scope.number(name("max_wh_ratio", "vision_max_wh_ratio"))?,
    }))
}

/// Typed access to the keys of one or more JSON objects; an earlier object wins. `null` counts as absent.
#[derive(Clone)]
struct Keys<'a> {
    origin: &'a str,
    /// Name and content of each object, the most specific first; the top level has the empty name.
    scopes: Vec<(&'a str, &'a Map<String, Value>)>,
}

impl<'a> Keys<'a> {
    /// The keys of the object `name`, then those of the present scopes: the nested and the flat layout in one.
    fn nested(&self, name: &'a str) -> Result<Keys<'a>, ConfigError> {
        let mut keys = self.clone();
        if self.find(name).is_some() {
            keys.scopes.splice(0..0, self.inside(name)?.scopes);
        }
        Ok(keys)
    }

    /// The keys of the object `name` alone.
    fn inside(&self, name: &'a str) -> Result<Keys<'a>, ConfigError> {
        match self.find(name) {
            Some((_, Value::Object(map))) => Ok(Keys { origin: self.origin, scopes: vec![(name, map)] }),
            Some((key, value)) => Err(self.wrong_type(key, value, "an object")),
            None => Err(self.missing(name)),
        }
    }

    fn find(&self, key: &str) -> Option<(String, &'a Value)> {
        self.scopes.iter().find_map(|(scope, map)| {
            let value = map.get(key).filter(|value| !value.is_null())?;
            Some((if scope.is_empty() { key.to_owned() } else { format!("{scope}.{key}") }, value))
        })
    }

    fn typed<T>(
        &self,
        key: &str,
        expected: &'static str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        let Some((path, value)) = self.find(key) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| self.wrong_type(path, value, expected))
    }

    fn size(&self, key: &str) -> Result<Option<usize>, ConfigError> {
        self.typed(key, "a whole number that is not negative", whole)
    }

    fn size_or(&self, key: &str, default: usize) -> Result<usize, ConfigError> {
        Ok(self.size(key)?.unwrap_or(default))
    }

    fn required_size(&self, key: &str) -> Result<usize, ConfigError> {
        self.size(key)?.ok_or_else(|| self.missing(key))
    }

    fn sizes(&self, key: &str) -> Result<Vec<usize>, ConfigError> {
        let list = self.typed(key, "a list of whole numbers", |value| value.as_array()?.iter().map(whole).collect())?;
        Ok(list.unwrap_or_default())
    }

    fn token(&self, key: &str) -> Result<Option<u32>, ConfigError> {
        self.typed(key, "one token id", |value| u32::try_from(whole(value)?).ok())
    }

    fn token_or(&self, key: &str, default: u32) -> Result<u32, ConfigError> {
        Ok(self.token(key)?.unwrap_or(default))
    }

    fn number(&self, key: &str) -> Result<Option<f64>, ConfigError> {
        self.typed(key, "a number", Value::as_f64)
    }

    fn number_or(&self, key: &str, default: f64) -> Result<f64, ConfigError> {
        Ok(self.number(key)?.unwrap_or(default))
    }

    fn bool(&self, key: &str) -> Result<Option<bool>, ConfigError> {
        self.typed(key, "true or false", Value::as_bool)
    }

    fn bool_or(&self, key: &str, default: bool) -> Result<bool, ConfigError> {
        Ok(self.bool(key)?.unwrap_or(default))
    }

    fn string(&self, key: &str) -> Result<Option<&'a str>, ConfigError> {
        self.typed(key, "a string", Value::as_str)
    }

    fn only(&self, key: &str, supported: &[&str]) -> Result<(), ConfigError> {
        match self.string(key)? {
            Some(found) if !supported.contains(&found) => {
                Err(self.unsupported(key, format!("\"{found}\""), &supported.join(", ")))
            }
            _ => Ok(()),
        }
    }

    fn only_size(&self, key: &str, supported: usize) -> Result<(), ConfigError> {
        match self.size(key)? {
            Some(found) if found != supported => Err(self.unsupported(key, found.to_string(), &supported.to_string())),
            _ => Ok(()),
        }
    }

    fn only_bool(&self, key: &str, supported: bool) -> Result<(), ConfigError> {
        match self.bool(key)? {
            Some(found) if found != supported => Err(self.unsupported(key, found.to_string(), &supported.to_string())),
            _ => Ok(()),
        }
    }

    fn unsupported(&self, key: &str, found: String, supported: &str) -> ConfigError {
        let key = self.find(key).map_or_else(|| key.to_owned(), |(path, _)| path);
        ConfigError::Unsupported { origin: self.origin.to_owned(), key, found, supported: supported.to_owned() }
    }

    fn missing(&self, key: &str) -> ConfigError {
        let key = match self.scopes[0].0 {
            "" => key.to_owned(),
            scope => format!("{scope}.{key}"),
        };
        ConfigError::Missing { origin: self.origin.to_owned(), key }
    }

    fn wrong_type(&self, key: String, value: &Value, expected: &'static str) -> ConfigError {
        ConfigError::WrongType { origin: self.origin.to_owned(), key, found: shown(value), expected }
    }
}

/// A whole number, also when the writer spelled it as a float (`4096.0`).
fn whole(value: &Value) -> Option<usize> {
    let integer = value.as_u64().or_else(|| {
        // 2^53: up to here every whole float is exact.
        value.as_f64().filter(|f| (0.0..=9_007_199_254_740_992.0).contains(f) && f.fract() == 0.0).map(|f| f as u64)
    })?;
    usize::try_from(integer).ok()
}

/// A JSON value short enough for a message.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= 60 { text } else { text.chars().take(57).chain("...".chars()).collect() }
}
