//! Key figures of the released model and of the miniature.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use deepinfer_model::cache_format::{CacheFormats, PageLayout, ring_entries, rollback_positions};
use deepinfer_model::checkpoint::{Checkpoint, Group, Storage};
use deepinfer_model::config::ModelConfig;
use deepinfer_model::inspect::{ModelSummary, PlanInput, render};
use deepinfer_ops::CacheFormat;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn released() -> (ModelConfig, ModelSummary) {
    let config = ModelConfig::from_file(&repository().join("tests/fixtures/config.v41-flash.json")).unwrap();
    let summary = ModelSummary::of_config(&config, PlanInput::for_full_context(&config));
    (config, summary)
}

#[test]
fn entry_sizes_are_those_of_the_specification() {
    assert_eq!(CacheFormat::Fp8.entry_bytes(512), 528);
    assert_eq!(CacheFormat::Fp4Row16.entry_bytes(512), 288);
    assert_eq!(CacheFormat::Fp4Row32.entry_bytes(128), 68);
    assert_eq!(CacheFormat::F32.entry_bytes(512), 2048);
    for format in [CacheFormat::F32, CacheFormat::Fp8, CacheFormat::Fp4Row16, CacheFormat::Fp4Row32] {
        assert_eq!(format.value_bytes(96) + format.scale_bytes(96), format.entry_bytes(96));
    }
}

#[test]
#[should_panic(expected = "whole scale groups")]
fn an_entry_of_partial_groups_is_a_bug() {
    CacheFormat::Fp8.entry_bytes(48);
}

#[test]
fn rings_hold_the_window_and_the_largest_rollback() {
    assert_eq!(rollback_positions(6, 5), 6);
    assert_eq!(rollback_positions(0, 7), 8);
    assert_eq!(ring_entries(128, rollback_positions(6, 5)), 134);
}

#[test]
fn released_caches_cost_what_the_specification_says() {
    let (_, summary) = released();
    assert_eq!(summary.cache.kv_bytes_per_token, 890.0);
    assert_eq!(summary.cache.page.used_bytes, 113_920);
    assert_eq!(summary.cache.page.bytes, 114_048);
    assert_eq!(summary.request_state.ring_entries, 134);
    assert_eq!(summary.request_state.window_ring_bytes, 40 * 70_752);
    assert_eq!(summary.request_state.draft_ring_bytes, 3 * 70_752);
    assert_eq!(summary.request_state.compressor_bytes, 3 * 28_672);
    assert_eq!(summary.request_state.ngram_history_bytes, 12);
}

#[test]
fn parts_of_a_page_are_aligned_and_disjoint() {
    for path in ["tests/fixtures/config.v41-flash.json", "models/deepseek-v41-mini/config.json"] {
        let config = ModelConfig::from_file(&repository().join(path)).unwrap();
        for formats in [CacheFormats::deployed(&config), CacheFormats::UNROUNDED] {
            let page = PageLayout::new(&config, formats);
            let layers: Vec<usize> = page.sources.iter().map(|source| source.layer).collect();
            assert_eq!(layers, config.kv_source_layer_ids);
            let mut end = 0;
            for source in &page.sources {
                assert_eq!(source.entries * config.compress_ratios[source.layer], 128);
                assert_eq!(source.main_bytes, source.entries * formats.main.entry_bytes(config.head_dim));
                assert_eq!(source.index_bytes, source.entries * formats.index.entry_bytes(config.index_head_dim));
                for (offset, bytes) in
                    [(source.index_offset, source.index_bytes), (source.main_offset, source.main_bytes)]
                {
                    assert!(offset >= end && offset.is_multiple_of(32), "{source:?}");
                    end = offset + bytes;
                }
            }
            assert!(page.bytes >= end && page.bytes.is_multiple_of(128));
            assert_eq!(page.bytes % formats.main.entry_bytes(config.head_dim), 0);
        }
    }
}

#[test]
fn released_layers_have_their_roles() {
    let roles = released().1.architecture.roles;
    assert_eq!(roles.window, [0, 1]);
    assert_eq!(roles.full, [2, 8, 14, 20]);
    assert_eq!(roles.reindex, [24, 28, 32, 36]);
    assert_eq!(roles.reuse.len(), 30);
    assert_eq!(roles.candidate_source, Some(20));
}

#[test]
fn totals_agree_however_they_are_summed() {
    let (_, summary) = released();
    assert_eq!((summary.total.tensors, summary.total.bytes), (96_085, 510_286_023_000));
    for sums in [
        summary.groups.iter().map(|entry| entry.totals).collect::<Vec<_>>(),
        summary.groups.iter().flat_map(|entry| &entry.formats).map(|entry| entry.totals).collect(),
        summary.formats.iter().map(|entry| entry.totals).collect(),
    ] {
        assert_eq!(sums.iter().map(|totals| totals.tensors).sum::<u64>(), summary.total.tensors);
        assert_eq!(sums.iter().map(|totals| totals.parameters).sum::<u64>(), summary.total.parameters);
        assert_eq!(sums.iter().map(|totals| totals.bytes).sum::<u64>(), summary.total.bytes);
    }
    let tables = summary.groups.iter().find(|entry| entry.group == Group::EngramTable).unwrap();
    assert_eq!(tables.totals.bytes, (384_006_168 + 384_016_682) * 264);
    let plan = &summary.plan;
    assert_eq!(plan.pages, (1 << 20) / 128);
    assert_eq!(plan.total_bytes, plan.weight_bytes + plan.page_bytes + plan.state_bytes);
    let draft_weights = plan.drafter_bytes - summary.request_state.draft_ring_bytes as u64;
    assert_eq!(plan.weight_bytes + draft_weights + plan.vision_bytes, summary.total.bytes);
}

#[test]
fn a_plan_grows_with_requests_and_whole_pages() {
    let (config, one) = released();
    let plan = |context_tokens, requests| {
        let input = PlanInput { context_tokens, requests, ..one.plan.input };
        ModelSummary::of_config(&config, input).plan
    };
    assert_eq!(plan(129, 1).pages, 2);
    assert_eq!(plan(128, 5).pages, 5);
    assert_eq!(plan(128, 5).state_bytes, 5 * one.plan.state_bytes);
}

/// The tensor table is that of the released checkpoint, line by line.
#[test]
fn tensor_families_are_the_released_table() {
    let table = std::fs::read_to_string(repository().join("tests/fixtures/tensors.tsv")).unwrap();
    let released_lines: BTreeSet<String> =
        table.lines().skip(1).map(|line| line.split('\t').take(4).collect::<Vec<_>>().join("\t")).collect();
    let (_, summary) = released();
    let ours: BTreeSet<String> = summary
        .tensors
        .iter()
        .map(|family| {
            let shape = format!("{:?}", family.shape).replace(' ', "");
            format!("{}\t{}\t{}\t{shape}", family.pattern, family.count, family.dtype)
        })
        .collect();
    assert_eq!(ours.len(), summary.tensors.len());
    assert_eq!(ours, released_lines);
}

#[test]
fn the_text_shows_the_key_figures() {
    let text = render(&released().1);
    for line in [
        "hidden size         5,120 x 4 copies",
        "window only       0-1",
        "full              2, 8, 14, 20",
        "reuse             3-7, 9-13, 15-19, 21-23, 25-27, 29-31, 33-35, 37-39",
        "vision              32 blocks of width 1,024, patches of 14 pixels",
        "KV bytes per token      890  891 with page padding",
        "page                114,048  bytes for 128 tokens",
        "padding               128  bytes",
        "window rings      2,830,080  bytes, 134 entries per layer",
        "8,192 pages         934,281,216  891.00 MiB",
    ] {
        assert!(text.contains(line), "`{line}` is not in:\n{text}");
    }
    let total = text.lines().find(|line| line.trim_start().starts_with("total")).unwrap();
    assert!(total.contains("96,085") && total.ends_with("510,286,023,000"), "{total}");
    assert!(text.lines().all(|line| line.trim_end() == line));
}

#[test]
fn json_has_the_same_figures() {
    let json = serde_json::to_value(released().1).unwrap();
    assert_eq!(json["total"]["bytes"], 510_286_023_000_u64);
    assert_eq!(json["cache"]["kv_bytes_per_token"], 890.0);
    assert_eq!(json["cache"]["page"]["bytes"], 114_048);
    assert_eq!(json["groups"][0]["group"], "embedding");
    assert_eq!(json["groups"][0]["formats"][0]["storage"], "bf16");
    assert_eq!(json["groups"][0]["parameters"], 129_280 * 5120);
}

#[test]
fn a_checkpoint_in_the_released_formats_has_the_summary_of_its_configuration() {
    for path in ["models/deepseek-v41-mini", "tests/fixtures/golden/tiny_model"] {
        let checkpoint = Checkpoint::open(&repository().join(path)).unwrap();
        let plan = PlanInput::for_full_context(checkpoint.config());
        let stored = ModelSummary::of_checkpoint(&checkpoint, plan);
        assert_eq!(stored, ModelSummary::of_config(checkpoint.config(), plan), "{path}");
        assert_eq!(stored.total.bytes, checkpoint.total_bytes());
    }
}

#[test]
fn tensors_stored_in_another_format_are_counted_as_stored() {
    let header = serde_json::json!({
        "layers.0.ffn.experts.0.w1.weight": {"dtype": "BF16", "shape": [64, 128], "data_offsets": [0, 16384]},
    });
    let header = header.to_string();
    let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &[0; 16384]].concat();
    let config: &[u8] = include_bytes!("../../../tests/fixtures/golden/tiny_model/config.json");
    let files = [("config.json", config), ("model.safetensors", Box::leak(bytes.into_boxed_slice()))];
    let checkpoint = Checkpoint::from_embedded(&files).unwrap();
    let summary = ModelSummary::of_checkpoint(&checkpoint, PlanInput::for_full_context(checkpoint.config()));
    assert_eq!((summary.total.tensors, summary.total.parameters, summary.total.bytes), (1, 64 * 128, 16384));
    assert_eq!(summary.formats[0].storage, Storage::Bf16);
}
