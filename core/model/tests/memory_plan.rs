//! The memory plan: figures of the released model and of the miniature, and what is refused.

use std::path::{Path, PathBuf};

use deepinfer_model::cache_format::RequestState;
use deepinfer_model::checkpoint::{Checkpoint, Group, tensor_specs};
use deepinfer_model::config::ModelConfig;
use deepinfer_model::memory_plan::{DevicePlan, FreeMemory, MemoryNeeds, MemoryPlanError, MemoryRequest, StepLimits};
use deepinfer_model::{KvCache, Numerics, TablePlace};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn released() -> ModelConfig {
    ModelConfig::from_file(&repository().join("tests/fixtures/config.v41-flash.json")).unwrap()
}

const LIMITS: StepLimits = StepLimits { rows: 256, requests: 64, logit_rows: 64, tokens: 4096 };

/// 1,000,000 bytes for 10 slots and checkpoints of 1,000 and pages of 2,000.
const NEEDS: MemoryNeeds =
    MemoryNeeds { weights: 800_000, tables: 500_000, temporaries: 100_000, slot: 1_000, page: 2_000 };

fn request(utilization: f64, pages: Option<usize>, tokens: usize) -> MemoryRequest {
    MemoryRequest { utilization, slots: 6, checkpoints: 4, pages, limits: StepLimits { tokens, ..LIMITS } }
}

#[test]
fn what_is_left_becomes_pages() {
    let plan = DevicePlan::new(2_000_000, NEEDS, request(0.5, None, 128)).unwrap();
    assert_eq!((plan.budget(), plan.fixed_bytes(), plan.pages), (1_000_000, 910_000, 45));
    assert_eq!(plan.total_bytes(), 1_000_000);
    assert_eq!(DevicePlan::new(2_000_000, NEEDS, request(0.5, Some(7), 896)).unwrap().pages, 7);
    let table = plan.to_string();
    for part in ["pages", "90,000 bytes", "45 of 2,000, 5,760 tokens", "4 of 1,000", "reserve", "1,000,000 bytes"] {
        assert!(table.contains(part), "{part}:\n{table}");
    }
    assert_eq!(table.lines().count(), 8);
}

#[test]
fn what_does_not_fit_is_refused_with_the_value_that_does() {
    let sentence = |free, request| DevicePlan::new(free, NEEDS, request).unwrap_err().to_string();
    let pages = sentence(2_000_000, request(0.5, Some(46), 128));
    assert_eq!(pages, "46 pages need 92,000 bytes, but 90,000 are left for them; 45 pages fit");
    let context = sentence(2_000_000, request(0.5, None, 45 * 128 + 1));
    assert!(context.contains("5761 tokens needs 46 pages, but there are 45") && context.contains("5760"), "{context}");

    let used = sentence(1_000_000, request(0.5, None, 128));
    assert!(
        used.contains("910,000 bytes, but 500,000 of the device's 1,000,000 free") && used.contains("0.91"),
        "{used}"
    );
    DevicePlan::new(1_000_000, NEEDS, request(0.92, None, 128)).unwrap();
    let slots = sentence(905_000, request(1.0, None, 128));
    assert!(slots.contains("5 state slots and checkpoints together fit, not 10"), "{slots}");
    let rows = sentence(850_000, request(1.0, None, 128));
    assert!(rows.contains("a step of 256 rows takes 100,000 bytes"), "{rows}");
    assert!(sentence(800_000, request(1.0, None, 128)).contains("the weights alone do not fit"));
    for utilization in [0.0, -1.0, 1.1, f64::NAN] {
        let error = DevicePlan::new(u64::MAX, NEEDS, request(utilization, None, 128)).unwrap_err();
        assert!(matches!(error, MemoryPlanError::Utilization { .. }), "{error}");
    }
}

#[test]
fn tables_that_do_not_fit_lie_in_memory_of_the_host() {
    let plan = |device, host| DevicePlan::new(FreeMemory { device, host }, NEEDS, request(1.0, None, 128));
    // They fit: it does not matter what the host has.
    let whole = plan(912_000, Some(1 << 40)).unwrap();
    assert_eq!((whole.tables, whole.pages, whole.weights()), (TablePlace::Device, 1, 800_000));
    // No page would be left.
    let split = plan(911_000, Some(500_000)).unwrap();
    assert_eq!((split.tables, split.weights(), split.fixed_bytes()), (TablePlace::Host, 300_000, 410_000));
    assert_eq!((split.pages, split.total_bytes() <= 911_000), (250, true));
    assert!(split.to_string().contains("besides 500,000 of Engram tables in memory of the host"), "{split}");
    // The host has no room for them, or the device reads none of its memory.
    assert_eq!(plan(911_000, Some(499_999)), plan(911_000, None));
    assert!(plan(911_000, None).is_err() && plan(411_000, Some(1 << 40)).is_err());
    let half = DevicePlan::new(FreeMemory { device: 1_000_000, host: Some(999_999) }, NEEDS, request(0.5, None, 128));
    assert!(half.is_err(), "of the host, too, only a part may be used");
}

#[test]
fn needs_are_those_of_the_listed_tensors_and_caches() {
    let config = released();
    let needs = MemoryNeeds::of_config(&config, Numerics::DEPLOY, &LIMITS).unwrap();
    let listed: u64 = tensor_specs(&config)
        .iter()
        .filter(|spec| !matches!(spec.group, Group::Draft | Group::Vision))
        .map(|spec| spec.bytes())
        .sum();
    // Besides alignment, and selection biases for images: hash tables, rotary frequencies, token ids.
    assert!(needs.weights >= listed && needs.weights - listed < 64 << 20, "{} for {listed}", needs.weights);
    assert_eq!(needs.page, 114_048);
    // FP8 values with a scale for 32 of them.
    let table = |&rows: &usize| (rows as u64 * (256 + 8)).next_multiple_of(256);
    assert_eq!(needs.tables, config.engram_num_embeddings.iter().map(table).sum::<u64>());
    assert_eq!(needs.slot, KvCache::slot_bytes(&config, &Numerics::DEPLOY));
    let parts = 40 * 70_752 + 3 * 28_672 + 12;
    assert!((parts..parts + 4224 + 64).contains(&needs.slot), "{}", needs.slot);
    // `inspect` prints the same slot.
    let formats = Numerics::DEPLOY.cache_formats(&config);
    assert_eq!(RequestState::new(&config, formats, 6).slot_bytes as u64, needs.slot);
}

#[test]
fn temporaries_grow_with_the_step() {
    let config = released();
    let temporaries = |limits| MemoryNeeds::of_config(&config, Numerics::DEPLOY, &limits).unwrap().temporaries;
    let one = temporaries(LIMITS);
    let logits = temporaries(StepLimits { logit_rows: 128, ..LIMITS }) - one;
    // The logits come last: what layers need may be more.
    assert!(logits <= 64 * config.vocab_size as u64 * 4 + 4096, "{logits}");
    assert!(temporaries(StepLimits { rows: 512, ..LIMITS }) > one * 3 / 2);
    // Scores of index sources: rows times entries.
    assert!(temporaries(StepLimits { tokens: 1 << 16, ..LIMITS }) > one);
}

#[test]
fn a_checkpoint_needs_what_it_stores() {
    let checkpoint = Checkpoint::open(&repository().join("models/deepseek-v41-mini")).unwrap();
    let limits = StepLimits { rows: 64, requests: 8, logit_rows: 8, tokens: 640 };
    let stored = MemoryNeeds::of_checkpoint(&checkpoint, Numerics::DEPLOY, &limits).unwrap();
    let released = MemoryNeeds::of_config(checkpoint.config(), Numerics::DEPLOY, &limits).unwrap();
    assert_eq!((stored.slot, stored.page), (released.slot, released.page));
    assert!(stored.weights > 0 && stored.temporaries > 0);
    let exact = MemoryNeeds::of_checkpoint(&checkpoint, Numerics::EXACT, &limits).unwrap();
    assert_eq!(exact.weights, stored.weights);
    assert!(exact.slot > stored.slot && exact.page > stored.page && exact.temporaries > stored.temporaries);
}
