//! `deepinfer bench sampler`: the draw and what comes before it, against one pass over the logits.

use std::hint::black_box;
use std::rc::Rc;
use std::time::Instant;

use deepinfer_ops::args::{AdjustLogits, ApplyTokenMask, FusedSample};
use deepinfer_ops::traits::SampleOps;
use deepinfer_ops::{Device, Format, OpError, Tensor};

use super::args::SamplerArgs;
use super::report::{Figure, Machine, Report};
use crate::failure::Failure;
use crate::model::{choose_accelerator, open_accelerator};

/// Tokens that a row with penalties has seen.
const SEEN: usize = 4096;
/// Most columns over which `fused_sample` takes a `top_p`.
const TOP_P_VOCABULARY: usize = 1 << 17;

/// Measures.
///
/// # Errors
/// The accelerator cannot be used, or fails.
pub(super) fn run(args: &SamplerArgs) -> Result<Report, Failure> {
    let selection = choose_accelerator(args.accelerator.as_deref()).map_err(Failure::input)?;
    let device: Rc<dyn Device> = Rc::new(open_accelerator(&selection)?);
    let backend = device.backend().to_owned();
    let bench = Bench { device, rows: args.rows, vocabulary: args.vocabulary, rounds: args.measuring.rounds };
    let figures = bench.figures().map_err(Failure::fault)?;
    Ok(Report {
        bench: "sampler",
        setting: format!("{} rows of {} logits, {} rounds", args.rows, args.vocabulary, args.measuring.rounds),
        backend,
        machine: Machine::this(),
        figures,
    })
}

/// Something to be timed.
type Work<'a> = (String, Box<dyn Fn() -> Result<(), OpError> + 'a>);

struct Bench {
    device: Rc<dyn Device>,
    rows: usize,
    vocabulary: usize,
    rounds: usize,
}

impl Bench {
    fn figures(&self) -> Result<Vec<Figure>, OpError> {
        let (rows, count) = (self.rows, self.rows * self.vocabulary);
        let hash = |v: usize| (v as u32).wrapping_mul(2_654_435_761) as f32 / 4_294_967_296.0;
        // Of a model: most of the probability on few tokens. Flat: much of it on all.
        let peaked: Vec<f32> = (0..count).map(|v| -3.0 * (1.0 - hash(v)).max(1e-7).ln()).collect();
        let flat: Vec<f32> = (0..count).map(|v| hash(v) * 2.0).collect();
        let on_device =
            [self.floats(&[rows, self.vocabulary], &peaked)?, self.floats(&[rows, self.vocabulary], &flat)?];
        let changed = self.floats(&[rows, self.vocabulary], &flat)?;
        let arguments = Arguments::new(self)?;
        let (adjust, mask) = (arguments.adjust(&changed), arguments.mask(&changed));

        let mut works: Vec<Work<'_>> = vec![(
            "one pass on the host, one thread: the maximum".to_owned(),
            Box::new(|| {
                for row in black_box(&peaked).chunks_exact(self.vocabulary) {
                    black_box(maximum(row));
                }
                Ok(())
            }),
        )];
        for (kind, logits) in ["peaked", "flat"].into_iter().zip(&on_device) {
            for (name, call) in arguments.draws(logits) {
                works.push((format!("{kind}, {name}"), Box::new(move || self.device.fused_sample(&call))));
            }
        }
        works.push((format!("adjust_logits, {SEEN} tokens seen"), Box::new(|| self.device.adjust_logits(&adjust))));
        works.push(("apply_token_mask".to_owned(), Box::new(|| self.device.apply_token_mask(&mask))));

        let mut times = vec![Vec::new(); works.len()];
        // The first round warms up.
        for round in 0..=self.rounds {
            for ((_, work), times) in works.iter().zip(&mut times) {
                let begun = Instant::now();
                work()?;
                // One row's token: the wait for all that was queued.
                self.device.download(&arguments.token.rows(0, 1), &mut [0; 4])?;
                if round > 0 {
                    times.push(begun.elapsed().as_secs_f64() * 1e6 / rows as f64);
                }
            }
        }
        Ok(works.iter().zip(times).map(|((what, _), times)| Figure::of(what, "us/row", times)).collect())
    }

    fn tensor(&self, format: Format, shape: &[usize], bytes: &[u8]) -> Result<Tensor, OpError> {
        let tensor = Tensor::plain(&self.device.allocate(bytes.len())?, 0, format, shape);
        self.device.upload(&tensor, bytes)?;
        Ok(tensor)
    }

    fn floats(&self, shape: &[usize], values: &[f32]) -> Result<Tensor, OpError> {
        self.tensor(Format::F32, shape, &values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>())
    }

    fn ints(&self, shape: &[usize], values: impl IntoIterator<Item = i32>) -> Result<Tensor, OpError> {
        self.tensor(Format::I32, shape, &values.into_iter().flat_map(i32::to_le_bytes).collect::<Vec<u8>>())
    }
}

/// The largest logit, in sixteen lanes as a vector unit has them.
fn maximum(row: &[f32]) -> f32 {
    let (lanes, rest) = row.as_chunks::<16>();
    let mut most = [f32::NEG_INFINITY; 16];
    for lane in lanes {
        most.iter_mut().zip(lane).for_each(|(most, &logit)| *most = if logit > *most { logit } else { *most });
    }
    most.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max)
}

/// What the calls have besides logits.
struct Arguments {
    zero: Tensor,
    one: Tensor,
    seed: Tensor,
    position: Tensor,
    token: Tensor,
    min_p_log: Tensor,
    top_k: [Tensor; 2],
    /// `None` where the vocabulary is too large for it.
    top_p: Option<Tensor>,
    penalty: [Tensor; 3],
    no_range: Tensor,
    no_token: Tensor,
    no_value: Tensor,
    seen_range: Tensor,
    seen_token: Tensor,
    seen_count: Tensor,
    mask_index: Tensor,
    masks: Tensor,
}

impl Arguments {
    fn new(bench: &Bench) -> Result<Self, OpError> {
        let (rows, vocabulary) = (bench.rows, bench.vocabulary);
        let seen = SEEN.min(vocabulary);
        let each = |value: f32| bench.floats(&[rows], &vec![value; rows]);
        let ints = |value: i32| bench.ints(&[rows], vec![value; rows]);
        let ends = (0..rows).flat_map(|row| [(row * seen) as i32, ((row + 1) * seen) as i32]);
        let words = vocabulary.div_ceil(32);
        let seeds: Vec<u8> = (0..rows).flat_map(|_| 7_i64.to_le_bytes()).collect();
        Ok(Self {
            zero: each(0.0)?,
            one: each(1.0)?,
            seed: bench.tensor(Format::I64, &[rows], &seeds)?,
            position: bench.ints(&[rows], 0..rows as i32)?,
            token: ints(0)?,
            min_p_log: each(-3.0)?,
            top_k: [ints(50.min(vocabulary as i32))?, ints((vocabulary / 2).max(1) as i32)?],
            top_p: (vocabulary <= TOP_P_VOCABULARY).then(|| each(0.95)).transpose()?,
            penalty: [each(1.1)?, each(1.0 / 1.1)?, each(0.1)?],
            no_range: bench.ints(&[rows, 2], vec![0; 2 * rows])?,
            no_token: bench.ints(&[0], [])?,
            no_value: bench.floats(&[0], &[])?,
            seen_range: bench.ints(&[rows, 2], ends)?,
            seen_token: bench
                .ints(&[rows * seen], (0..rows * seen).map(|i| (i % seen * (vocabulary / seen)) as i32))?,
            seen_count: bench.ints(&[rows * seen], vec![2; rows * seen])?,
            mask_index: ints(0)?,
            masks: bench.ints(&[1, words], vec![0x5555_5555; words])?,
        })
    }

    fn draws<'a>(&'a self, logits: &'a Tensor) -> Vec<(&'static str, FusedSample<'a>)> {
        let plain = || FusedSample {
            logits,
            inv_temperature: &self.one,
            seed: &self.seed,
            position: &self.position,
            token: &self.token,
            child: None,
            min_p_log: None,
            top_k: None,
            top_p: None,
        };
        let [few, many] = &self.top_k;
        let mut draws = vec![
            ("greedy", FusedSample { inv_temperature: &self.zero, ..plain() }),
            ("plain", plain()),
            ("min_p e^-3", FusedSample { min_p_log: Some(&self.min_p_log), ..plain() }),
            ("top_k 50", FusedSample { top_k: Some(few), ..plain() }),
            ("top_k half", FusedSample { top_k: Some(many), ..plain() }),
        ];
        if let Some(top_p) = &self.top_p {
            draws.push(("top_p 0.95", FusedSample { top_p: Some(top_p), ..plain() }));
            draws.push(("top_k 50, top_p 0.95", FusedSample { top_k: Some(few), top_p: Some(top_p), ..plain() }));
        }
        draws
    }

    fn adjust<'a>(&'a self, logits: &'a Tensor) -> AdjustLogits<'a> {
        let [repetition, inv_repetition, tenth] = &self.penalty;
        AdjustLogits {
            logits,
            bias_range: &self.no_range,
            bias_token: &self.no_token,
            bias_value: &self.no_value,
            repetition,
            inv_repetition,
            frequency: tenth,
            presence: tenth,
            seen_range: &self.seen_range,
            seen_token: &self.seen_token,
            seen_count: &self.seen_count,
        }
    }

    fn mask<'a>(&'a self, logits: &'a Tensor) -> ApplyTokenMask<'a> {
        ApplyTokenMask { logits, mask_index: &self.mask_index, masks: &self.masks }
    }
}
