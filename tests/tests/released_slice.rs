//! Two layers of the released dimensions, with fewer experts and tokens: random weights in the released formats, caches full of
//! random entries, a prompt of 512 tokens and single tokens far behind it. A backend is compared with cpu-reference twice: op
//! by op, when the layer `validate:shadow=1/1,on=error` stands over it, and by what comes out at the end.
//!
//! With small dimensions this runs everywhere; the released ones need a GB of weights and a fast host:
//! `DEEPINFER_ACCELERATOR=nvidia DEEPINFER_LAYERS=validate:shadow=1/1,on=error cargo test --release -p deepinfer-tests --test
//! released_slice -- --ignored --nocapture`.

#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::path::Path;
use std::rc::Rc;
use std::time::Instant;

use deepinfer_model::cache_format::{
    DEFAULT_BACKTRACKING, DEFAULT_DRAFT_TOKENS, PageLayout, StateLayout, rollback_positions,
};
use deepinfer_model::checkpoint::{Checkpoint, Storage, TensorSpec, tensor_specs};
use deepinfer_model::config::ModelConfig;
use deepinfer_model::{KvCache, Model, Numerics, RequestRows};
use deepinfer_ops::{CacheFormat, Device};
use deepinfer_runtime::{Runtime, SearchPath, Selection};
use deepinfer_tests::random::{Random, entries, number};
use deepinfer_tests::{Tensors, device, miniature};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

/// Of so many values one is rounded the other way where sums are made in another order.
const MOVED: u64 = 64;
/// Most that logits may differ, as a share of their length, whatever the processor's own are like: what has little in common with
/// the right result is at 1 and above.
const MOST: f64 = 0.25;

/// Content for a tensor: values near those of a trained model, so that no sum overflows and none vanishes.
fn content(spec: &TensorSpec, random: &mut Random) -> Vec<u8> {
    let mut bytes = vec![0; spec.bytes() as usize];
    let inputs = *spec.dense_shape().last().expect("a tensor has a dimension") as f32;
    // Gains are about 1, matrices keep the size of their input.
    let is_gain = spec.name.ends_with("norm.weight");
    let is_vector = spec.shape.len() == 1;
    let mut value = || match (is_gain, is_vector) {
        (true, _) => 1.0 + 0.1 * random.normal(),
        (_, true) => 0.5 * random.normal(),
        _ => random.normal() / inputs.sqrt(),
    };
    match spec.storage {
        Storage::F32 => {
            bytes.chunks_exact_mut(4).for_each(|out| out.copy_from_slice(&value().to_le_bytes()));
        }
        Storage::Bf16 => {
            bytes.chunks_exact_mut(2).for_each(|out| out.copy_from_slice(&value().to_le_bytes()[2..]));
        }
        Storage::Fp8Tile | Storage::Fp8Row => random.bytes(&mut bytes, number),
        Storage::Fp4 => random.bytes(&mut bytes, |byte| byte),
        // Random E4M3 codes have a root mean square near 2^7, E2M1 codes of 3: with these scales a matrix of a few thousand
        // inputs keeps the size of its input.
        Storage::Ue8m0 => {
            let middle = if spec.name.contains(".experts.") { 127 - 8 } else { 127 - 13 };
            random.bytes(&mut bytes, |byte| middle + byte % 3 - 1);
        }
    }
    bytes
}

/// The configuration of a slice: the miniature's with other sizes, two layers, no n-gram tables and no drafts.
fn config(sizes: &[(&str, Value)], roles: &[(&str, Value)]) -> String {
    let text = std::fs::read_to_string(miniature().join("config.json")).expect("the miniature");
    let mut config: Value = serde_json::from_str(&text).expect("the configuration");
    let fixed = [
        ("num_hidden_layers", json!(2)),
        ("num_nextn_predict_layers", json!(0)),
        ("dspark_target_layer_ids", json!([])),
        ("engram_layer_ids", json!([])),
        ("engram_num_embeddings", json!([])),
    ];
    for (key, value) in fixed.iter().chain(sizes).chain(roles) {
        config["text_config"][*key] = value.clone();
    }
    config.to_string()
}

/// The released sizes, apart from experts and vocabulary.
fn released() -> Vec<(&'static str, Value)> {
    vec![
        ("hidden_size", json!(5120)),
        ("moe_intermediate_size", json!(2304)),
        ("num_attention_heads", json!(64)),
        ("head_dim", json!(512)),
        ("qk_rope_head_dim", json!(64)),
        ("q_lora_rank", json!(1280)),
        ("o_lora_rank", json!(1024)),
        ("o_groups", json!(8)),
        ("sliding_window", json!(128)),
        ("max_position_embeddings", json!(1_048_576)),
        ("index_n_heads", json!(32)),
        ("index_head_dim", json!(128)),
        ("index_topk", json!(512)),
        ("candidate_topk_blocks", json!(2048)),
        ("candidate_block_size", json!(8)),
        ("n_routed_experts", json!(16)),
        ("num_experts_per_tok", json!(6)),
    ]
}

/// A layer that pools two tokens before one that does not.
fn pooling() -> [(&'static str, Value); 4] {
    [
        ("compress_ratios", json!([2, 1])),
        ("kv_source_layer_ids", json!([0, 1])),
        ("index_source_layer_ids", json!([0, 1])),
        ("candidate_source_layer_id", json!(null)),
    ]
}

/// A layer that selects among the candidates of the one before it.
fn candidates() -> [(&'static str, Value); 4] {
    [
        ("compress_ratios", json!([1, 1])),
        ("kv_source_layer_ids", json!([0])),
        ("index_source_layer_ids", json!([0, 1])),
        ("candidate_source_layer_id", json!(0)),
    ]
}

/// Its name in a safetensors file.
fn dtype(storage: Storage) -> Dtype {
    match storage {
        Storage::Fp8Tile | Storage::Fp8Row => Dtype::F8_E4M3,
        Storage::Fp4 => Dtype::I8,
        Storage::Ue8m0 => Dtype::F8_E8M0,
        Storage::Bf16 => Dtype::BF16,
        Storage::F32 => Dtype::F32,
    }
}

/// Writes a checkpoint of this configuration. `moved`: one in [`MOVED`] of the embedding's values is the BF16 number beside it,
/// which is what another order of its sum does to an op's result.
fn write_checkpoint(folder: &Path, config: &str, moved: bool) {
    std::fs::write(folder.join("config.json"), config).expect("a writable folder");
    let parsed = ModelConfig::from_json_str(config).unwrap_or_else(|e| panic!("{e}"));
    let mut random = Random::new(7);
    let tensors: Vec<(TensorSpec, Vec<u8>)> = tensor_specs(&parsed)
        .into_iter()
        .map(|spec| {
            let mut bytes = content(&spec, &mut random);
            if moved && spec.name.ends_with("embed.weight") {
                assert_eq!(spec.storage, Storage::Bf16, "the embedding");
                let mut coin = Random::new(13);
                bytes.chunks_exact_mut(2).for_each(|value| value[0] ^= u8::from(coin.bits().is_multiple_of(MOVED)));
            }
            (spec, bytes)
        })
        .collect();
    let views: HashMap<String, TensorView<'_>> = tensors
        .iter()
        .map(|(spec, bytes)| {
            let shape = spec.shape.iter().map(|&dim| dim as usize).collect();
            let view = TensorView::new(dtype(spec.storage), shape, bytes).expect("sizes agree");
            (spec.name.clone(), view)
        })
        .collect();
    safetensors::serialize_to_file(views, None, &folder.join("model.safetensors")).expect("a writable folder");
}

/// Fills all pages and slots with entries that a model could have written; the same for every device.
fn fill(cache: &KvCache, tensors: &Tensors, config: &ModelConfig, numerics: &Numerics) {
    let formats = numerics.cache_formats(config);
    let rollback = rollback_positions(DEFAULT_BACKTRACKING, DEFAULT_DRAFT_TOKENS);
    let (page, state) = (PageLayout::new(config, formats), StateLayout::new(config, formats, rollback));
    let mut random = Random::new(11);
    for number in 0..cache.pages() {
        let mut bytes = vec![0; page.bytes];
        for source in &page.sources {
            let keys = entries(formats.index, source.entries, config.index_head_dim, &mut random);
            bytes[source.index_offset..source.index_offset + keys.len()].copy_from_slice(&keys);
            let values = entries(formats.main, source.entries, config.head_dim, &mut random);
            bytes[source.main_offset..source.main_offset + values.len()].copy_from_slice(&values);
        }
        tensors.0.upload(&cache.page(number), &bytes).expect("upload");
    }
    for number in 0..cache.slots() {
        let mut bytes = vec![0; state.bytes];
        let ring = state.ring_bytes / formats.window.entry_bytes(config.head_dim);
        for layer in 0..config.num_hidden_layers {
            let window = entries(formats.window, ring, config.head_dim, &mut random);
            let at = state.window_offset(layer);
            bytes[at..at + window.len()].copy_from_slice(&window);
        }
        for groups in &state.open_groups {
            let open = entries(CacheFormat::F32, groups.rows * 2, config.head_dim, &mut random);
            bytes[groups.offset..groups.offset + open.len()].copy_from_slice(&open);
        }
        tensors.0.upload(&cache.slot(number), &bytes).expect("upload");
    }
}

/// What a device makes of a prompt, and of a token of each of these requests far behind one, all in a step.
fn logits(device: Rc<dyn Device>, folder: &Path, prompt: usize, contexts: &[usize]) -> (Vec<f32>, Vec<f32>) {
    let start = Instant::now();
    let checkpoint = Checkpoint::open(folder).unwrap_or_else(|e| panic!("{e}"));
    let numerics = Numerics::DEPLOY;
    let model = Model::load(device, &checkpoint, numerics, &mut |_, _| {}).unwrap_or_else(|e| panic!("{e}")).0;
    let config = model.config().clone();
    let tensors = Tensors(model.device().clone());
    println!("  loaded after {:.1} s", start.elapsed().as_secs_f64());

    let run = |cache: &KvCache, requests: &[RequestRows<'_>], wanted: &[usize]| {
        tensors.floats(&model.step(cache, requests, wanted, None).unwrap_or_else(|e| panic!("{e}")))
    };
    let token = |i: usize| (i * 7919 % config.vocab_size) as u32;
    let pages: Vec<u32> = (0..KvCache::pages_for(prompt) as u32).collect();
    let cache = KvCache::new(model.device(), &config, &numerics, pages.len(), 1).expect("caches");
    let tokens: Vec<u32> = (0..prompt).map(token).collect();
    let request = RequestRows { tokens: &tokens, start: 0, slot: 0, pages: &pages, image_mask: &[] };
    let wanted: Vec<usize> = (0..prompt).step_by(prompt.div_ceil(8)).chain([prompt - 1]).collect();
    let of_prompt = run(&cache, &[request], &wanted);
    println!("  prompt of {prompt} after {:.1} s", start.elapsed().as_secs_f64());

    let ends: Vec<usize> = contexts
        .iter()
        .scan(0, |end, &context| {
            *end += KvCache::pages_for(context);
            Some(*end)
        })
        .collect();
    let all = *ends.last().expect("a context");
    let cache = KvCache::new(model.device(), &config, &numerics, all, contexts.len()).expect("caches");
    fill(&cache, &tensors, &config, &numerics);
    // Pages lie in no order.
    let pages: Vec<u32> = (0..all).map(|i| (i * 5 % all) as u32).collect();
    assert_eq!(pages.iter().collect::<std::collections::HashSet<_>>().len(), all, "{all} is a multiple of 5");
    let tokens: Vec<u32> = (0..contexts.len()).map(|i| token(i + 3)).collect();
    let requests: Vec<RequestRows<'_>> = contexts
        .iter()
        .enumerate()
        .map(|(i, &context)| RequestRows {
            tokens: &tokens[i..=i],
            start: context - 1,
            slot: i,
            pages: &pages[ends[i] - KvCache::pages_for(context)..ends[i]],
            image_mask: &[],
        })
        .collect();
    let wanted: Vec<usize> = (0..contexts.len()).collect();
    let of_decode = run(&cache, &requests, &wanted);
    println!("  tokens behind {contexts:?} after {:.1} s", start.elapsed().as_secs_f64());
    (of_prompt, of_decode)
}

/// Length of the difference in units of the length of what is right.
fn relative(found: &[f32], right: &[f32]) -> f64 {
    assert_eq!(found.len(), right.len());
    let length = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let difference = length(&mut found.iter().zip(right).map(|(a, b)| f64::from(a - b)));
    difference / length(&mut right.iter().map(|&v| f64::from(v)))
}

fn agrees(what: &str, config: &str, prompt: usize, contexts: &[usize]) {
    // Without layers, which stand over what is tested only.
    let cpu = Selection::parse("cpu").expect("a selection");
    let runtime = Runtime::new(SearchPath::from_environment());
    let reference = || -> Rc<dyn Device> { Rc::new(runtime.open(&cpu).unwrap_or_else(|e| panic!("{e}"))) };
    let folder = tempfile::tempdir().expect("a folder");
    write_checkpoint(folder.path(), config, true);
    println!("{what}, cpu, one in {MOVED} values of the embedding rounded the other way:");
    let moved = logits(reference(), folder.path(), prompt, contexts);
    write_checkpoint(folder.path(), config, false);
    println!("{what}, cpu:");
    let right = logits(reference(), folder.path(), prompt, contexts);
    println!("{what}, {}:", std::env::var("DEEPINFER_ACCELERATOR").unwrap_or_else(|_| "cpu".to_owned()));
    let tested = device();
    let is_itself = tested.backend() == "cpu";
    let found = logits(tested, folder.path(), prompt, contexts);
    let parts = [("prompt", &found.0, &right.0, &moved.0), ("decode", &found.1, &right.1, &moved.1)];
    let differences = parts.map(|(part, found, right, moved)| {
        assert!(right.iter().all(|v| v.is_finite()), "{what}, {part}: the reference is not finite");
        let size = (right.iter().map(|v| v * v).sum::<f32>() / right.len() as f32).sqrt();
        let (difference, sway) = (relative(found, right), relative(moved, right));
        println!(
            "{what}, {part}: {} logits of size {size:.3}, relative difference {difference:.2e}; the processor's own after \
             roundings of the embedding {sway:.2e}",
            right.len()
        );
        (part, difference, sway)
    });
    // Each op is judged by the layer. What comes out drifts apart even where all of them are right: rows go from op to op in FP8 and
    // BF16, one that was rounded the other way rounds further ones the other way, and a choice among nearly equal scores may differ.
    // So it is held to what roundings of one op make of the processor's own result. The reference repeats its own bits.
    for (part, difference, sway) in differences {
        assert!(sway > 0.0, "{what}, {part}: the embedding decides nothing");
        let most = if is_itself { 0.0 } else { (2.0 * sway).min(MOST) };
        assert!(difference <= most, "{what}, {part}: {difference} of at most {most}");
    }
}

#[test]
fn small_slices_agree() {
    // Of cpu-reference this shows that the slices run, give numbers and repeat them; another backend is compared with it.
    agrees("pooling", &config(&[], &pooling()), 150, &[300, 1000]);
    agrees("candidates", &config(&[], &candidates()), 150, &[300, 1000]);
}

#[test]
#[ignore = "a GB of weights; see the head of this file"]
fn released_slices_agree() {
    agrees("pooling", &config(&released(), &pooling()), 512, &[8192, 65536, 8192, 65536]);
    agrees("candidates", &config(&released(), &candidates()), 512, &[8192, 65536]);
}
