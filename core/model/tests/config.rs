//! Reading, defaults and refusals of the model configuration.

use std::path::{Path, PathBuf};

use deepinfer_model::config::{ConfigError, ModelConfig, ScoringFunc};
use serde_json::{Value, json};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn released_path() -> PathBuf {
    repository().join("tests/fixtures/config.v41-flash.json")
}

fn released_json() -> Value {
    serde_json::from_slice(&std::fs::read(released_path()).unwrap()).unwrap()
}

/// The released configuration with the `text_config` keys of `changes` set, or removed where `null`.
fn changed(changes: &Value) -> Result<ModelConfig, ConfigError> {
    let mut json = released_json();
    let text = json["text_config"].as_object_mut().unwrap();
    for (key, value) in changes.as_object().unwrap() {
        if value.is_null() {
            text.remove(key);
        } else {
            text.insert(key.clone(), value.clone());
        }
    }
    ModelConfig::from_json_str(&json.to_string())
}

/// Asserts that `changes` are refused with a message that holds every word of `words`.
#[track_caller]
fn refused(changes: &Value, words: &[&str]) {
    let message = changed(changes).expect_err(&format!("{changes} was accepted")).to_string();
    for word in ["config.json"].iter().chain(words) {
        assert!(message.contains(word), "{changes}: `{word}` is not in: {message}");
    }
}

#[test]
fn released_file_has_the_roles_of_the_specification() {
    let config = ModelConfig::from_file(&released_path()).unwrap();
    assert_eq!((config.hidden_size, config.num_hidden_layers, config.vocab_size), (5120, 40, 129_280));
    assert_eq!(config.rms_norm_eps, 1e-20);
    assert_eq!(config.scoring_func, ScoringFunc::SqrtSoftplus);
    assert_eq!(config.rope_scaling.factor, 16.0);
    assert_eq!(config.rope_scaling.original_max_position_embeddings, 65_536);
    assert_eq!(config.moe_shape(false), (384, 6));
    assert_eq!(config.moe_shape(true), (128, 3));
    assert_eq!((config.hc_rows(), config.engram_columns(), config.draft_stages()), (24, 24, 3));
    assert!(config.has_vision());

    let sources = |layer| (config.kv_source_of(layer), config.index_source_of(layer));
    for layer in [0, 1, 40, 42] {
        assert_eq!(sources(layer), (None, None));
    }
    assert_eq!(sources(2), (Some(2), Some(2)));
    assert_eq!(sources(7), (Some(2), Some(2)));
    assert_eq!(sources(8), (Some(8), Some(8)));
    assert_eq!(sources(19), (Some(14), Some(14)));
    assert_eq!(sources(23), (Some(20), Some(20)));
    assert_eq!(sources(24), (Some(20), Some(24)));
    assert_eq!(sources(39), (Some(20), Some(36)));
    assert_eq!((config.engram_slot(1), config.engram_slot(14), config.engram_slot(2)), (Some(0), Some(1), None));
    let restricted: Vec<usize> = (0..40).filter(|&layer| config.selects_among_candidates(layer)).collect();
    assert_eq!(restricted, [24, 28, 32, 36]);
}

#[test]
fn flat_and_nested_spellings_agree() {
    for path in [
        "tests/fixtures/config.v41-flash.json",
        "tests/fixtures/golden/tiny_model/config.json",
        "tests/fixtures/golden/trained_model/config.json",
        "models/deepseek-v41-mini/config.json",
    ] {
        let path = repository().join(path);
        let nested: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let flat = flattened(&nested);
        let from_flat = ModelConfig::from_json_str(&flat.to_string()).unwrap();
        assert_eq!(from_flat, ModelConfig::from_file(&path).unwrap(), "{}", path.display());
    }
}

fn flattened(nested: &Value) -> Value {
    let mut flat = nested["text_config"].clone();
    let map = flat.as_object_mut().unwrap();
    let scaling = map.remove("rope_scaling").unwrap();
    map.insert("rope_factor".into(), scaling["factor"].clone());
    map.insert("rope_original_max".into(), scaling["original_max_position_embeddings"].clone());
    map.insert("rope_beta_fast".into(), scaling["beta_fast"].clone());
    map.insert("rope_beta_slow".into(), scaling["beta_slow"].clone());
    for key in ["bos_token_id", "eos_token_id", "pad_token_id", "image_token_id"] {
        map.insert(key.into(), nested[key].clone());
    }
    map.insert("weight_block".into(), json!(32));
    map.insert("expert_dtype".into(), json!("fp4"));
    for (key, value) in nested["vision_config"].as_object().into_iter().flatten() {
        let name = match key.as_str() {
            "num_hidden_layers" => "vision_layers".to_owned(),
            "num_attention_heads" => "vision_heads".to_owned(),
            other => format!("vision_{other}"),
        };
        map.insert(name, value.clone());
    }
    flat
}

#[test]
fn optional_keys_take_the_released_values() {
    let optional = [
        "qk_rope_head_dim",
        "sliding_window",
        "rms_norm_eps",
        "max_position_embeddings",
        "rope_theta",
        "compress_rope_theta",
        "rope_scaling",
        "index_n_heads",
        "index_head_dim",
        "index_topk",
        "n_shared_experts",
        "scoring_func",
        "norm_topk_prob",
        "routed_scaling_factor",
        "swiglu_limit",
        "hc_mult",
        "hc_sinkhorn_iters",
        "hc_eps",
        "engram_num_embeddings",
        "engram_max_ngram_size",
        "engram_vocab_size",
        "engram_n_heads",
        "engram_head_dim",
        "engram_pad_token_id",
        "engram_compressed_vocab_size",
        "dspark_markov_rank",
        "num_key_value_heads",
        "hidden_act",
        "topk_method",
    ];
    let without: Value =
        optional.iter().map(|&key| (key.to_owned(), Value::Null)).collect::<serde_json::Map<_, _>>().into();
    let config = changed(&without).unwrap();
    assert_eq!(config, ModelConfig::from_file(&released_path()).unwrap());
    assert_eq!(config.engram_num_embeddings, [384_006_168, 384_016_682]);

    let october = json!({
        "attention_dropout": 0.0, "tie_word_embeddings": false, "hc_shifted": true, "use_fp4_sparse_kv": true,
        "index_k_source_layer_ids": [2, 8, 14, 20], "dspark_target_attn_input": true,
    });
    assert_eq!(changed(&october).unwrap(), config);
}

#[test]
fn a_list_of_ratios_for_the_backbone_alone_is_padded() {
    let released = changed(&json!({})).unwrap();
    let short = changed(&json!({"compress_ratios": released.compress_ratios[..40]})).unwrap();
    assert_eq!(short, released);
}

#[test]
fn a_missing_drafter_leaves_no_stages() {
    let config = changed(&json!({"dspark_block_size": null, "dspark_target_layer_ids": null})).unwrap();
    assert_eq!(config.draft_stages(), 0);
    let config = changed(&json!({"dspark_n_routed_experts": null, "dspark_num_experts_per_tok": 0})).unwrap();
    assert_eq!(config.moe_shape(true), (384, 6));
}

#[test]
fn whole_floats_are_sizes() {
    assert_eq!(changed(&json!({"sliding_window": 128.0})).unwrap().sliding_window, 128);
    refused(&json!({"sliding_window": 128.5}), &["text_config.sliding_window", "128.5", "whole number"]);
    refused(&json!({"sliding_window": -1}), &["-1"]);
    refused(&json!({"hidden_size": "5120"}), &["text_config.hidden_size", "\"5120\""]);
    refused(&json!({"kv_source_layer_ids": [2, "8"]}), &["text_config.kv_source_layer_ids"]);
    refused(&json!({"eos_token_id": 4_294_967_296_u64}), &["eos_token_id", "one token id"]);
}

#[test]
fn required_keys_are_named() {
    for key in [
        "vocab_size",
        "hidden_size",
        "moe_intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "head_dim",
        "q_lora_rank",
        "o_lora_rank",
        "o_groups",
        "n_routed_experts",
        "num_experts_per_tok",
    ] {
        refused(&json!({ key: null }), &[key, "missing"]);
    }
}

#[test]
fn unknown_variants_are_refused_with_the_known_ones() {
    refused(&json!({"scoring_func": "tanh"}), &["text_config.scoring_func", "tanh", "sqrtsoftplus, sigmoid, softmax"]);
    refused(&json!({"topk_method": "greedy"}), &["topk_method", "greedy", "noaux_tc"]);
    refused(&json!({"hidden_act": "gelu"}), &["hidden_act", "gelu", "silu"]);
    refused(&json!({"rope_scaling": {"rope_type": "linear", "factor": 2}}), &["rope_scaling.rope_type", "linear"]);
    refused(&json!({"num_key_value_heads": 8}), &["num_key_value_heads", "8"]);
    refused(&json!({"tie_word_embeddings": true}), &["tie_word_embeddings"]);
    refused(&json!({"hc_shifted": false}), &["hc_shifted"]);
    refused(&json!({"index_k_source_layer_ids": [2]}), &["index_k_source_layer_ids", "[2, 8, 14, 20]"]);
    for (key, value) in
        [("quant_method", json!("gptq")), ("expert_dtype", json!("int4")), ("weight_block_size", json!([128, 128]))]
    {
        let mut json = released_json();
        json["quantization_config"][key] = value.clone();
        let message = ModelConfig::from_json_str(&json.to_string()).unwrap_err().to_string();
        assert!(message.contains(&format!("quantization_config.{key}")), "{message}");
    }
    let sigmoid = changed(&json!({"scoring_func": "sigmoid"})).unwrap();
    assert_eq!(sigmoid.scoring_func, ScoringFunc::Sigmoid);
}

#[test]
fn contradictions_are_refused_with_both_values() {
    let ratios = |changes: &[(usize, usize)]| {
        let mut ratios = changed(&json!({})).unwrap().compress_ratios;
        changes.iter().for_each(|&(layer, ratio)| ratios[layer] = ratio);
        json!({ "compress_ratios": ratios })
    };
    refused(&ratios(&[(5, 1)]), &["compress_ratios[5]", "KV source 2", "ratio is 2"]);
    refused(&ratios(&[(5, 4)]), &["compress_ratios[5]", "is 4"]);
    refused(&ratios(&[(1, 2)]), &["compress_ratios[1]", "no KV source"]);
    refused(&ratios(&[(41, 2)]), &["compress_ratios[41]", "draft"]);
    refused(&ratios(&[(2, 0)]), &["layer 3"]);
    refused(&json!({"compress_ratios": vec![0; 50]}), &["50 items", "40 layers"]);
    refused(&json!({"kv_source_layer_ids": [2, 14, 8, 20]}), &["ascend"]);
    refused(&json!({"index_source_layer_ids": [2, 8, 14, 20, 40]}), &["0 to 39"]);
    refused(&json!({"index_source_layer_ids": [2, 8, 20]}), &["layer 14", "KV source 14"]);
    refused(&json!({"candidate_source_layer_id": 21}), &["candidate_source_layer_id", "21", "index sources"]);
    refused(&json!({"candidate_block_size": 0}), &["candidate_block_size"]);
    refused(&json!({"index_topk": 0}), &["index_topk"]);
    refused(&json!({"hidden_size": 5000}), &["hidden_size", "5000", "multiple of 32"]);
    refused(&json!({"o_groups": 7}), &["o_groups", "7", "64"]);
    refused(&json!({"qk_rope_head_dim": 1024}), &["qk_rope_head_dim", "512"]);
    refused(&json!({"qk_rope_head_dim": 192}), &["qk_rope_head_dim", "128", "index_head_dim"]);
    refused(&json!({"hc_mult": 9}), &["hc_mult", "9", "between 1 and 8"]);
    refused(&json!({"num_experts_per_tok": 385}), &["num_experts_per_tok", "385", "384"]);
    refused(&json!({"n_routed_experts": 4000}), &["n_routed_experts", "4000", "160384"]);
    refused(&json!({"engram_layer_ids": [1, 40]}), &["engram_layer_ids"]);
    refused(&json!({"engram_num_embeddings": [1]}), &["engram_num_embeddings", "2 engram layers"]);
    refused(&json!({"dspark_target_layer_ids": []}), &["dspark_target_layer_ids"]);
    refused(&json!({"dspark_noise_token_id": 129_280}), &["dspark_noise_token_id", "129280"]);
    refused(&json!({"rms_norm_eps": -1.0}), &["rms_norm_eps"]);
    refused(&json!({"num_hidden_layers": u64::MAX}), &["num_hidden_layers"]);
}

#[test]
fn text_that_is_no_configuration_is_refused() {
    for text in ["", "[1]", "{\"text_config\": ", "null", "{\"text_config\": 3}"] {
        let message = ModelConfig::from_json_str(text).unwrap_err().to_string();
        assert!(message.contains("config.json"), "{message}");
    }
    let missing = ModelConfig::from_file(Path::new("/nonexistent/config.json")).unwrap_err();
    assert!(matches!(&missing, ConfigError::Read { .. }) && missing.to_string().contains("/nonexistent/config.json"));
}

#[test]
fn a_byte_order_mark_is_no_part_of_the_file() {
    let marked = format!("\u{FEFF}{}", released_json());
    assert_eq!(ModelConfig::from_json_str(&marked).unwrap(), ModelConfig::from_file(&released_path()).unwrap());
}

#[test]
fn other_model_families_are_refused() {
    let mut json = released_json();
    json["model_type"] = json!("llama");
    let message = ModelConfig::from_json_str(&json.to_string()).unwrap_err().to_string();
    assert!(message.contains("`model_type` is \"llama\"") && message.contains("deepseek_v41"), "{message}");
    refused(&json!({"model_type": "deepseek_v3_text"}), &["`text_config.model_type`", "deepseek_v3_text"]);
    refused(&json!({"model_type": 5}), &["`text_config.model_type`", "5"]);
    let mut flat = flattened(&released_json());
    for (family, accepted) in [("deepseek_v41", true), ("deepseek_v41_text", true), ("llama", false)] {
        flat["model_type"] = json!(family);
        assert_eq!(ModelConfig::from_json_str(&flat.to_string()).is_ok(), accepted, "{family}");
    }
    json.as_object_mut().unwrap().remove("model_type");
    assert!(ModelConfig::from_json_str(&json.to_string()).is_ok());
}

#[test]
fn contradictory_token_ids_are_refused() {
    for key in ["bos_token_id", "eos_token_id", "pad_token_id", "image_token_id"] {
        let words = [&format!("`text_config.{key}` is 77"), "the top level gives", "must be equal"];
        refused(&json!({key: 77}), &words);
        assert!(changed(&json!({key: released_json()[key]})).is_ok());
    }
}

#[test]
fn lists_that_each_row_of_a_step_has_are_bounded() {
    assert!(changed(&json!({"sliding_window": 65536, "candidate_block_size": 65536})).is_ok());
    refused(&json!({"sliding_window": 65537}), &["`sliding_window` is 65537", "between 1 and 65536"]);
    refused(&json!({"candidate_block_size": 65537}), &["`candidate_block_size` is 65537", "between 1 and 65536"]);
}

#[test]
fn layers_and_stages_have_bounds_of_their_own() {
    assert_eq!(changed(&json!({"num_hidden_layers": 512, "n_routed_experts": 16})).unwrap().num_hidden_layers, 512);
    refused(&json!({"num_hidden_layers": 513}), &["`num_hidden_layers` is 513", "between 1 and 512"]);
    refused(&json!({"num_nextn_predict_layers": 65}), &["`num_nextn_predict_layers` is 65", "between 0 and 64"]);
}

#[cfg(unix)]
#[test]
fn only_regular_files_are_opened() {
    let message = ModelConfig::from_file(Path::new("/dev/zero")).unwrap_err().to_string();
    assert!(message.contains("/dev/zero: it is a device, expected a regular file"), "{message}");
}
