//! The whole tiny model against golden tensors: logits, every sublayer's input and output, selections.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::rc::Rc;

use deepinfer_engine::{Engine, EngineConfig, Request, SamplingParams};
use deepinfer_model::checkpoint::Checkpoint;
use deepinfer_model::{KvCache, Model, Numerics, Probe, RequestRows};
use deepinfer_ops::{Device, Format, OpError, Tensor};
use deepinfer_tests::{Golden, Tensors, assert_close, device, f32_bytes, fixture, worst};

/// FP8 linear inputs and stored caches on an F32 stream.
const ACT8: Numerics = Numerics { fp8_inputs: true, ..Numerics::CACHE };

fn load(checkpoint: &str, numerics: Numerics) -> Model {
    let checkpoint = Checkpoint::open(&fixture("golden").join(checkpoint)).expect("the tiny model");
    Model::load(device(), &checkpoint, numerics, &mut |_, _| {}).expect("the tiny model loads").0
}

/// Runs positions `0..tokens.len()` in chunks and returns all logits.
fn run(model: &Model, tokens: &[u32], chunks: &[usize], mask: &[u8], mut probe: Option<&mut dyn Probe>) -> Vec<f32> {
    assert_eq!(chunks.iter().sum::<usize>(), tokens.len());
    let pages: Vec<u32> = (0..KvCache::pages_for(tokens.len()) as u32).collect();
    let cache = KvCache::new(model.device(), model.config(), model.numerics(), pages.len(), 1).expect("caches");
    let (mut logits, mut start) = (Vec::new(), 0);
    for &length in chunks {
        let end = start + length;
        let image_mask = if mask.is_empty() { mask } else { &mask[start..end] };
        let request = RequestRows { tokens: &tokens[start..end], start, slot: 0, pages: &pages, image_mask };
        let rows: Vec<usize> = (0..length).collect();
        let out = model.step(&cache, &[request], &rows, probe.as_deref_mut().map(|p| p as _)).expect("the step runs");
        logits.extend(Tensors(model.device().clone()).floats(&out));
        start = end;
    }
    logits
}

fn ids(golden: &Golden) -> Vec<u32> {
    golden.i64("ids").0.into_iter().map(|id| id as u32).collect()
}

/// Copies tensors out by name; overwrites the inputs of each layer by stored ones when asked to.
struct Recorder {
    device: Rc<dyn Device>,
    floats: BTreeMap<String, Vec<f32>>,
    ints: BTreeMap<String, Vec<i32>>,
    feed: BTreeMap<String, Vec<f32>>,
}

impl Recorder {
    fn new(device: &Rc<dyn Device>) -> Self {
        Self { device: device.clone(), floats: BTreeMap::new(), ints: BTreeMap::new(), feed: BTreeMap::new() }
    }
}

impl Probe for Recorder {
    fn visit(&mut self, name: &str, device: &dyn Device, tensor: &Tensor) -> Result<(), OpError> {
        let tensors = Tensors(self.device.clone());
        if let Some(stored) = self.feed.get(name) {
            device.upload(tensor, &f32_bytes(stored))?;
        }
        if tensor.format() == Some(Format::I32) {
            self.ints.insert(name.to_owned(), tensors.ints(tensor));
        } else {
            self.floats.insert(name.to_owned(), tensors.floats(tensor));
        }
        Ok(())
    }
}

#[test]
fn logits_of_a_prefill_and_of_single_steps() {
    let golden = Golden::open("model");
    let tokens = ids(&golden);
    let prefill = golden.i64("prefill_len").0[0] as usize;
    let mut steps = vec![prefill];
    steps.resize(1 + tokens.len() - prefill, 1);
    for (name, numerics, tolerance) in
        [("exact", Numerics::EXACT, 2e-4), ("cache", Numerics::CACHE, 2e-3), ("act8", ACT8, 2e-3)]
    {
        let model = load("tiny_model", numerics);
        for (stored, chunks) in [("logits", vec![tokens.len()]), ("step_logits", steps.clone())] {
            let found = run(&model, &tokens, &chunks, &[], None);
            let wanted = golden.f32(&format!("{name}.{stored}")).0;
            println!("{name}.{stored}: worst {:?}", worst(&found, &wanted));
            assert_close(&format!("{name}.{stored}"), &found, &wanted, tolerance, 0.0);
        }
    }
}

#[test]
fn image_positions_use_their_own_bias_and_no_engram() {
    let golden = Golden::open("model");
    let tokens = ids(&golden);
    let mask = golden.u8("image_mask").0;
    let model = load("tiny_model", Numerics::CACHE);
    let wanted = golden.f32("image.logits").0;
    for chunks in [vec![tokens.len()], vec![9, 1, 20, tokens.len() - 30]] {
        assert_close("image.logits", &run(&model, &tokens, &chunks, &mask, None), &wanted, 2e-3, 0.0);
    }
}

/// Every module, each fed the stored input of its layer, so that one rounding flip stays where it happens.
#[test]
fn every_module_on_stored_inputs() {
    let golden = Golden::open("model");
    let tokens = ids(&golden);
    let names = golden.names();
    for (name, numerics) in [("exact", Numerics::EXACT), ("cache", Numerics::CACHE)] {
        let model = load("tiny_model", numerics);
        let mut recorder = Recorder::new(model.device());
        for layer in 0..model.config().num_hidden_layers {
            for what in ["stream_in", "pre"] {
                let at = format!("layers.{layer}.{what}");
                recorder.feed.insert(at.clone(), golden.f32(&format!("{name}.{at}")).0);
            }
        }
        run(&model, &tokens, &[tokens.len()], &[], Some(&mut recorder));
        let mut compared = 0;
        for stored in names.iter().filter_map(|n| n.strip_prefix(&format!("{name}.layers."))) {
            let at = format!("layers.{stored}");
            if stored.ends_with(".in") || stored.ends_with(".out") {
                let wanted = golden.f32(&format!("{name}.{at}")).0;
                assert_close(&format!("{name}.{at}"), &recorder.floats[&at], &wanted, 1e-4, 0.0);
                compared += 1;
            } else if stored.ends_with(".topk") {
                compare_selection(&golden, name, &at, &recorder.ints[&at]);
                compared += 1;
            }
        }
        assert_eq!(compared, 4 * 6 + 3, "{name}: every stored module is compared");
    }
}

/// Selections must agree wherever the stored margin says that they are not a matter of rounding.
fn compare_selection(golden: &Golden, name: &str, at: &str, found: &[i32]) {
    let (wanted, shape) = golden.i32(&format!("{name}.{at}"));
    let margins = golden.f32(&format!("{name}.{}", at.replace("topk", "margin"))).0;
    let width = shape[2];
    assert_eq!(found.len(), wanted.len());
    let mut compared = 0;
    for (row, (a, b)) in found.chunks(width).zip(wanted.chunks(width)).enumerate() {
        if margins[row] == 0.0 || margins[row] > 1e-4 {
            assert_eq!(a, b, "{name}.{at}, row {row}, margin {}", margins[row]);
            compared += 1;
        }
    }
    assert!(compared * 2 > margins.len(), "{name}.{at}: only {compared} rows were compared");
}

/// The stream as it enters each layer, without feeding: errors may only grow as rounding does.
#[test]
fn the_stream_through_all_layers() {
    let golden = Golden::open("model");
    let tokens = ids(&golden);
    let names = golden.names();
    for (name, numerics) in [("exact", Numerics::EXACT), ("cache", Numerics::CACHE), ("act8", ACT8)] {
        let model = load("tiny_model", numerics);
        let mut recorder = Recorder::new(model.device());
        run(&model, &tokens, &[tokens.len()], &[], Some(&mut recorder));
        let mut compared = 0;
        for stored in names.iter().filter_map(|n| n.strip_prefix(&format!("{name}.layers."))) {
            let at = format!("layers.{stored}");
            if stored.ends_with(".stream_in") || stored.ends_with(".pre") {
                let wanted = golden.f32(&format!("{name}.{at}")).0;
                assert_close(&format!("{name}.{at}"), &recorder.floats[&at], &wanted, 1e-4, 0.0);
                compared += 1;
            } else if stored.ends_with(".topk") {
                compare_selection(&golden, name, &at, &recorder.ints[&at]);
                compared += 1;
            }
        }
        let layers = model.config().num_hidden_layers;
        assert_eq!(compared, if name == "act8" { 3 } else { 2 * layers + 3 }, "{name}: what is stored is compared");
        let wanted = golden.f32(&format!("{name}.main_hidden")).0;
        assert_close(
            &format!("{name}.main_hidden"),
            &drafter_input(&model, &recorder, tokens.len()),
            &wanted,
            1e-4,
            0.0,
        );
    }
}

/// The drafter's input: the mean of the stream's copies at its target layers, side by side.
fn drafter_input(model: &Model, recorder: &Recorder, tokens: usize) -> Vec<f32> {
    let (copies, width) = (model.config().hc_mult, model.config().hidden_size);
    let targets = &model.config().dspark_target_layer_ids;
    let mean = |layer: usize, position: usize, channel: usize| {
        let stream = &recorder.floats[&format!("layers.{layer}.stream_in")];
        let of_copy = |copy: usize| f64::from(stream[(position * copies + copy) * width + channel]);
        ((0..copies).map(of_copy).sum::<f64>() / copies as f64) as f32
    };
    let mut out = Vec::with_capacity(tokens * targets.len() * width);
    for position in 0..tokens {
        for &layer in targets {
            out.extend((0..width).map(|channel| mean(layer, position, channel)));
        }
    }
    out
}

#[test]
fn greedy_text_of_the_trained_tiny_model() {
    let golden = Golden::open("generate");
    let config = EngineConfig { max_num_seqs: 1, max_num_batched_tokens: 16, ..EngineConfig::default() };
    let model = load("trained_model", Numerics::CACHE);
    let mut engine = Engine::builder(model).config(config).build().expect("an engine");
    for prompt in 0..3 {
        let tokens = |name: &str| -> Vec<u32> {
            golden.i64(&format!("prompt{prompt}.{name}")).0.into_iter().map(|t| t as u32).collect()
        };
        let gaps = golden.f32(&format!("prompt{prompt}.gap")).0;
        let wanted = tokens("greedy");
        let request = Request {
            id: prompt.to_string(),
            prompt_token_ids: tokens("ids"),
            params: SamplingParams {
                max_tokens: Some(wanted.len()),
                ignore_eos: true,
                logits: Some(2),
                ..SamplingParams::default()
            },
        };
        let output = engine.run(request, &mut |_| true).expect("the request runs");
        assert_eq!(output.outputs[0].token_ids(), wanted, "prompt {prompt}");
        for (step, gap) in output.outputs[0].steps.iter().zip(gaps) {
            let logits = step.logits.as_ref().expect("asked for");
            assert!((logits[0].1 - logits[1].1 - gap).abs() < 2e-2, "{logits:?} for a gap of {gap}");
        }
    }
}
