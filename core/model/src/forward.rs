//! The forward pass: what runs in which order, written against the op traits alone.
//!
//! ```text
//! tokens -> embed, copied hc times -> per layer:
//!   [engram] -> attention sublayer -> MoE sublayer
//! -> collapse -> norm -> head -> logits
//! ```
//!
//! A sublayer collapses the copies of the stream with weights that the *previous* sublayer computed, normalises, runs,
//! and expands its output back into the copies. Each file below is one module of the model specification.

mod attention;
mod compress;
mod engram;
mod hyper_connection;
mod moe;
mod select;
mod tokens;

use std::cell::RefCell;
use std::rc::Rc;

use deepinfer_ops::args::{Gather, Linear, Quantize, RmsNorm, Rope};
use deepinfer_ops::traits::{CopyOps, LinearOps, NormOps, QuantizeOps, RopeOps};
use deepinfer_ops::{Arena, Device, Format, OpError, Part, Scope, Tensor};

use crate::checkpoint::{Checkpoint, CheckpointWarning, TensorSpec, tensor_specs};
use crate::config::ModelConfig;
use crate::numerics::Numerics;
use crate::rope;
use crate::state::KvCache;
use crate::step::{Pack, PackedStep, RequestRows, Step, StepInput};
use crate::step_graphs::StepGraphs;
use crate::weights::{LoadError, TablePlace, Weights};

use self::engram::EngramTables;
use self::select::Selections;
use self::tokens::Vocabulary;

/// Sees intermediate tensors by name, and may overwrite them: `layers.3.stream_in`, `layers.3.pre`,
/// `layers.3.attn.in`, `layers.3.attn.out`, `layers.3.ffn.in`, `layers.3.ffn.out`, `layers.3.topk`, `final_norm`.
///
/// Module-by-module comparisons feed stored inputs through it.
pub trait Probe {
    /// Called once per tensor, in order of computation. Work before it was enqueued but need not be done.
    ///
    /// # Errors
    /// Ends the step.
    fn visit(&mut self, name: &str, device: &dyn Device, tensor: &Tensor) -> Result<(), OpError>;
}

/// A model on a device.
pub struct Model {
    device: Rc<dyn Device>,
    config: ModelConfig,
    numerics: Numerics,
    weights: Rc<Weights>,
    engram: Option<EngramTables>,
    window_frequencies: Tensor,
    compressed_frequencies: Tensor,
    vocabulary: Vocabulary,
    arena: Arena,
    /// Host side of a step, kept for the next one.
    pack: RefCell<Pack>,
}

impl Model {
    /// Verifies a checkpoint and copies the text model to the device. `progress` is told the bytes done and in total.
    ///
    /// # Errors
    /// The checkpoint does not fit its configuration, or the device has not enough memory.
    pub fn load(
        device: Rc<dyn Device>,
        checkpoint: &Checkpoint,
        numerics: Numerics,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(Self, Vec<CheckpointWarning>), LoadError> {
        Self::load_with(device, checkpoint, numerics, TablePlace::Device, progress)
    }

    /// As [`Model::load`], with the Engram tables where a plan wants them.
    ///
    /// # Errors
    /// As [`Model::load`]; the device reads no memory of the host.
    pub fn load_with(
        device: Rc<dyn Device>,
        checkpoint: &Checkpoint,
        numerics: Numerics,
        tables: TablePlace,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(Self, Vec<CheckpointWarning>), LoadError> {
        let config = checkpoint.config().clone();
        let warnings = checkpoint.verify(&config)?.warnings;
        // The small files first: what is wrong with them shows before the weights are copied.
        let engram = EngramTables::load(&device, checkpoint, &config)?;
        let weights = Weights::load(&device, checkpoint, &config, tables, progress)?;
        Ok((Self::new(device, config, numerics, weights, engram)?, warnings))
    }

    /// A model of this configuration in the released storage formats, without content, which only a device that computes
    /// nothing can run: for what a step costs the host.
    ///
    /// # Errors
    /// The device refuses memory.
    pub fn without_weights(
        device: Rc<dyn Device>,
        config: &ModelConfig,
        numerics: Numerics,
    ) -> Result<Self, LoadError> {
        Self::outline(device, config, numerics, &tensor_specs(config), TablePlace::Device)
    }

    /// A model without content, which only a device that computes nothing can run: for what it needs of memory.
    pub(crate) fn outline(
        device: Rc<dyn Device>,
        config: &ModelConfig,
        numerics: Numerics,
        specs: &[TensorSpec],
        tables: TablePlace,
    ) -> Result<Self, LoadError> {
        let engram = EngramTables::outline(&device, config)
            .map_err(|source| LoadError::Device { tensor: "Engram tables".to_owned(), source })?;
        let weights = Weights::outline(&device, config, specs, tables)?;
        Self::new(device, config.clone(), numerics, weights, engram)
    }

    fn new(
        device: Rc<dyn Device>,
        config: ModelConfig,
        numerics: Numerics,
        weights: Weights,
        engram: Option<EngramTables>,
    ) -> Result<Self, LoadError> {
        let frequencies = |values: &[f32]| -> Result<Tensor, OpError> {
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            let tensor = Tensor::plain(&device.allocate(bytes.len())?, 0, Format::F32, &[values.len()]);
            device.upload(&tensor, &bytes)?;
            Ok(tensor)
        };
        let on_device = |values: Vec<f32>| {
            frequencies(&values).map_err(|source| LoadError::Device { tensor: "rotary frequencies".to_owned(), source })
        };
        let window_frequencies = on_device(rope::window_frequencies(&config))?;
        let compressed_frequencies = on_device(rope::compressed_frequencies(&config))?;
        let vocabulary = Vocabulary::new(&device, config.vocab_size)
            .map_err(|source| LoadError::Device { tensor: "token ids".to_owned(), source })?;
        let (arena, pack) = (Arena::new(device.clone()), RefCell::default());
        Ok(Self {
            device,
            config,
            numerics,
            weights: Rc::new(weights),
            engram,
            window_frequencies,
            compressed_frequencies,
            vocabulary,
            arena,
            pack,
        })
    }

    /// The same model for a device that computes nothing: for what its steps need of memory. The tensors are not copied.
    pub(crate) fn outline_of(&self, device: Rc<dyn Device>) -> Self {
        Self {
            arena: Arena::new(device.clone()),
            device,
            config: self.config.clone(),
            numerics: self.numerics,
            weights: self.weights.clone(),
            engram: self.engram.clone(),
            window_frequencies: self.window_frequencies.clone(),
            compressed_frequencies: self.compressed_frequencies.clone(),
            vocabulary: self.vocabulary.clone(),
            pack: RefCell::default(),
        }
    }

    /// Configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Numerics.
    pub fn numerics(&self) -> &Numerics {
        &self.numerics
    }

    /// The device that the model lives on.
    pub fn device(&self) -> &Rc<dyn Device> {
        &self.device
    }

    /// Temporary memory of the steps, for the poison switch of tests.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Runs the rows of a step whose tokens are all on the host; see [`Model::enqueue`].
    ///
    /// # Errors
    /// As [`Model::enqueue`], or those of the probe.
    ///
    /// # Panics
    /// As [`Model::enqueue`].
    pub fn step(
        &self,
        cache: &KvCache,
        requests: &[RequestRows<'_>],
        logit_rows: &[usize],
        probe: Option<&mut dyn Probe>,
    ) -> Result<Tensor, OpError> {
        self.run(cache, &StepInput { requests, logit_rows, device_tokens: None }, probe)
    }

    /// Queues a step on the device's stream and returns its logits, `[logit_rows.len(), vocab]` F32. Nothing is waited for,
    /// so that steps can be queued while others run.
    ///
    /// The logits are valid for what is queued before the next step: the memory of temporaries is that of the next step, too.
    /// Caches are read and extended. The results of a request do not depend on the others, nor on how its tokens are divided
    /// into steps.
    ///
    /// # Errors
    /// A call is refused, or the device reports a fault, maybe of earlier work; the caches of these requests are then
    /// undefined. Faults of this step come from the next wait.
    ///
    /// # Panics
    /// If a request has no tokens, a token or slot or page that does not exist, or too few pages; if device tokens name rows
    /// or indices that do not exist.
    pub fn enqueue(&self, cache: &KvCache, input: &StepInput<'_>) -> Result<Tensor, OpError> {
        self.run(cache, input, None)
    }

    /// As [`Model::enqueue`]; a step of one row per request is padded to a shape and launched from a recording, if `graphs`
    /// has one, or recorded. Logits and caches are the same, bit for bit.
    ///
    /// # Errors
    /// As [`Model::enqueue`].
    ///
    /// # Panics
    /// As [`Model::enqueue`]; if `graphs` were used with another cache, or it lacks their padding slot.
    pub fn enqueue_decode(
        &self,
        cache: &KvCache,
        input: &StepInput<'_>,
        graphs: &mut StepGraphs,
    ) -> Result<Tensor, OpError> {
        let Some(shape) = graphs.shape_of(&self.config, cache, input) else {
            graphs.count_issued();
            return self.enqueue(cache, input);
        };
        self.assert_valid(cache, input);
        self.arena.rewind(self.arena.start());
        let place = (self.device.as_ref(), &self.arena);
        let mut pack = self.pack.borrow_mut();
        let packed = PackedStep::decode(&mut pack, &self.config, cache, input, (&shape, graphs.zeros()))?;
        let wanted = |logits: &Tensor| logits.rows(0, input.logit_rows.len());
        if let Some(logits) = graphs.launch(place, &shape, pack.packed())? {
            return Ok(wanted(&logits));
        }
        self.device.scope(Scope::of(Part::Tokens));
        let (step, metadata) = packed.upload(&pack, self.device.as_ref(), &self.arena)?;
        let issue = || self.issue(cache, step.clone(), input, None);
        if graphs.is_due(&shape)
            && let Some(logits) = graphs.record(place, shape, metadata, &issue)?
        {
            return Ok(wanted(&logits));
        }
        let logits = issue()?;
        graphs.saw(shape);
        graphs.count_issued();
        Ok(wanted(&logits))
    }

    fn run(&self, cache: &KvCache, input: &StepInput<'_>, probe: Option<&mut dyn Probe>) -> Result<Tensor, OpError> {
        self.assert_valid(cache, input);
        self.arena.rewind(self.arena.start());
        self.device.scope(Scope::of(Part::Tokens));
        let mut pack = self.pack.borrow_mut();
        let packed = PackedStep::new(&mut pack, &self.config, cache, input, None)?;
        let (step, _) = packed.upload(&pack, self.device.as_ref(), &self.arena)?;
        self.issue(cache, step, input, probe)
    }

    /// Queues the work of a step whose metadata is on the device.
    fn issue(
        &self,
        cache: &KvCache,
        mut step: Step,
        input: &StepInput<'_>,
        probe: Option<&mut dyn Probe>,
    ) -> Result<Tensor, OpError> {
        let device = self.device.as_ref();
        if let (Some(late), Some(tokens)) = (&step.late_tokens, &input.device_tokens) {
            step.token_ids = self.vocabulary.resolve(device, &self.arena, late, tokens.ids)?;
        }
        let run = Run { model: self, device, cache, step: &step, arena: &self.arena };
        run.forward(probe)
    }

    fn assert_valid(&self, cache: &KvCache, input: &StepInput<'_>) {
        for request in input.requests {
            assert!(!request.tokens.is_empty(), "a request of a step has at least one row");
            assert!(
                request.tokens.iter().all(|&t| (t as usize) < self.config.vocab_size),
                "token ids are below the vocabulary"
            );
            assert!(request.slot < cache.slots(), "state slot {} of {}", request.slot, cache.slots());
            assert!(request.pages.iter().all(|&p| (p as usize) < cache.pages()), "pages are below {}", cache.pages());
            let needed = KvCache::pages_for(request.start + request.tokens.len());
            assert!(request.pages.len() >= needed, "{} pages for {needed}", request.pages.len());
        }
        let rows = input.rows();
        if let Some(tokens) = &input.device_tokens {
            let ids = tokens.ids;
            assert!(
                ids.format() == Some(Format::I32) && ids.shape().len() == 1,
                "device tokens are I32[n], not {ids:?}"
            );
            for &(row, index) in tokens.rows {
                assert!(row < rows && index < ids.dim(0), "row {row} of {rows} takes token {index} of {ids:?}");
            }
        }
        assert!(input.logit_rows.iter().all(|&row| row < rows), "logit rows are below {rows}");
    }
}

/// A step in progress.
struct Run<'a> {
    model: &'a Model,
    device: &'a dyn Device,
    cache: &'a KvCache,
    step: &'a Step,
    arena: &'a Arena,
}

impl Run<'_> {
    fn forward(&self, mut probe: Option<&mut dyn Probe>) -> Result<Tensor, OpError> {
        let (config, weights, rows) = (&self.model.config, &self.model.weights, self.step.rows);
        let (copies, width) = (config.hc_mult, config.hidden_size);
        let mut see = |name: &dyn Fn() -> String, tensor: &Tensor| match probe.as_deref_mut() {
            Some(probe) => probe.visit(&name(), self.device, tensor),
            None => Ok(()),
        };

        // What outlives a layer comes first; the rest of the arena is used again by every layer.
        let stream = self.activation(&[rows, copies, width])?;
        let pre = self.arena.tensor(Format::F32, &[rows, copies])?;
        let engram_rows = self.engram_rows()?;
        let mut selections = Selections::new(self)?;
        self.device.scope(Scope::of(Part::Embed));
        self.device.gather(&Gather {
            table: &weights.embed,
            index: &self.step.token_ids,
            repeat: copies as u32,
            out: &stream,
        })?;

        let layer_start = self.arena.mark();
        for (index, layer) in weights.layers.iter().enumerate() {
            self.arena.rewind(layer_start);
            let at = |what: &'static str| move || format!("layers.{index}.{what}");
            if let Some(engram) = &layer.engram {
                self.device.scope(Scope::in_layer(index, Part::Engram));
                self.engram(index, engram, engram_rows.as_ref(), &stream)?;
            }
            see(&at("stream_in"), &stream)?;
            let pre_in = if index == 0 { &self.step.first_pre } else { &pre };
            see(&at("pre"), pre_in)?;

            self.device.scope(Scope::in_layer(index, Part::Attention));
            let attn_mix = self.hc_mix(&layer.hc_attn, &stream)?;
            let x = self.collapse_and_norm(&stream, pre_in, &layer.attn_norm)?;
            see(&at("attn.in"), &x)?;
            let y = self.attention(index, &layer.attention, &x, &mut selections)?;
            if config.is_index_source(index)
                && let Some(positions) = selections.positions(index)
            {
                see(&at("topk"), positions)?;
            }
            see(&at("attn.out"), &y)?;
            self.hc_expand(&stream, &y, &attn_mix)?;

            self.device.scope(Scope::in_layer(index, Part::Moe));
            let ffn_mix = self.hc_mix(&layer.hc_ffn, &stream)?;
            let x = self.collapse_and_norm(&stream, &attn_mix.pre, &layer.ffn_norm)?;
            see(&at("ffn.in"), &x)?;
            let y = self.moe(&layer.moe, &x)?;
            see(&at("ffn.out"), &y)?;
            self.hc_expand(&stream, &y, &ffn_mix)?;
            self.keep_pre(&ffn_mix.pre, &pre)?;
        }

        self.arena.rewind(layer_start);
        self.device.scope(Scope::of(Part::FinalNorm));
        let x = self.collapse_and_norm(&stream, &pre, &weights.norm)?;
        see(&|| "final_norm".to_owned(), &x)?;
        let wanted = self.step.logit_rows.dim(0);
        let logits = self.arena.tensor(Format::F32, &[wanted, config.vocab_size])?;
        if wanted == 0 {
            return Ok(logits);
        }
        self.device.scope(Scope::of(Part::Head));
        let last = self.activation(&[wanted, width])?;
        self.gather_rows(&x, &self.step.logit_rows, &last)?;
        self.device.linear(&Linear { x: &last, weight: &weights.head, groups: 1, out: &logits })?;
        Ok(logits)
    }

    /// Copies rows of a matrix, by number.
    fn gather_rows(&self, table: &Tensor, index: &Tensor, out: &Tensor) -> Result<(), OpError> {
        let out = out.reshape(&[out.dim(0), 1, out.dim(1)]);
        self.device.gather(&Gather { table, index, repeat: 1, out: &out })
    }

    /// A temporary in the stream's dtype.
    fn activation(&self, shape: &[usize]) -> Result<Tensor, OpError> {
        self.arena.tensor(self.model.numerics.stream, shape)
    }

    /// `x weight^T` in the stream's dtype, where the released weight is quantised: the input is rounded to FP8 when the
    /// numerics say so, also for a checkpoint that stores this weight otherwise.
    fn linear(&self, x: &Tensor, weight: &Tensor) -> Result<Tensor, OpError> {
        self.linear_plain(&self.linear_input(x)?, weight, self.model.numerics.stream)
    }

    /// `x weight^T` without rounding the input.
    fn linear_plain(&self, x: &Tensor, weight: &Tensor, out: Format) -> Result<Tensor, OpError> {
        let out = self.arena.tensor(out, &[x.dim(0), weight.dim(0)])?;
        self.device.linear(&Linear { x, weight, groups: 1, out: &out })?;
        Ok(out)
    }

    /// The input of a linear whose released weight is quantised.
    fn linear_input(&self, x: &Tensor) -> Result<Tensor, OpError> {
        if self.model.numerics.fp8_inputs { self.quantize(x, Format::Fp8Row32) } else { Ok(x.clone()) }
    }

    fn quantize(&self, x: &Tensor, format: Format) -> Result<Tensor, OpError> {
        let out = self.arena.tensor(format, &[x.dim(0), x.dim(1)])?;
        self.device.quantize(&Quantize { x, out: &out })?;
        Ok(out)
    }

    fn rms_norm(&self, x: &Tensor, weight: &Tensor) -> Result<Tensor, OpError> {
        let out = self.activation(&[x.dim(0), x.dim(1)])?;
        self.device.rms_norm(&RmsNorm { x, weight, eps: self.model.config.rms_norm_eps, out: &out })?;
        Ok(out)
    }

    /// Rotates `x`, rows of `heads` vectors side by side, in place.
    fn rope(&self, x: &Tensor, heads: usize, positions: &Tensor, freqs: &Tensor, inverse: bool) -> Result<(), OpError> {
        let vectors = x.reshape(&[x.dim(0), heads, x.dim(1) / heads]);
        self.device.rope(&Rope { x: &vectors, positions, freqs, inverse: u32::from(inverse) })
    }
}
