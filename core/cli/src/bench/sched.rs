//! `deepinfer bench sched`: what a step costs the host, when the device costs nothing.

use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;
use std::time::Instant;

use anyhow::anyhow;
use deepinfer_engine::telemetry::{Observation, StepObserver, StepPhase};
use deepinfer_engine::{Engine, EngineConfig, Event};
use deepinfer_model::config::ModelConfig;
use deepinfer_model::{Model, Numerics};
use deepinfer_ops::{CountingDevice, Device};

use super::args::SchedArgs;
use super::report::{Figure, Machine, Report};
use super::{check_lengths, request};
use crate::embedded;
use crate::failure::Failure;
use crate::model::{choose_accelerator, open_accelerator};

/// Turns before the first that counts: buffers have their sizes then.
const WARM_UP: usize = 20;
/// Tokens of a page.
const PAGE_TOKENS: usize = 128;

/// Measures.
///
/// # Errors
/// The configuration is refused.
pub(super) fn run(args: &SchedArgs) -> Result<Report, Failure> {
    let (name, config) = match &args.config {
        Some(path) => (path.display().to_string(), ModelConfig::from_file(path).map_err(Failure::input)?),
        None => ("the miniature".to_owned(), embedded::open().map_err(Failure::input)?.config().clone()),
    };
    let mut figures = Vec::new();
    for &sequences in &args.sequences {
        let mut bench = Bench::new(&config, sequences, args)?;
        let plain: Vec<f64> = (0..args.measuring.rounds).map(|_| bench.round(args.steps)).collect();
        let ops = bench.ops.map_or_else(String::new, |ops| format!(" of {ops} ops"));
        figures.push(Figure::of(format!("{sequences} sequences: turn{ops}"), "us", plain));
        let phases = bench.phases(args.steps, args.measuring.rounds);
        for (phase, micros) in StepPhase::ALL.into_iter().zip(phases) {
            figures.push(Figure::of(format!("{sequences} sequences: {}", phase.name()), "us", micros));
        }
    }
    Ok(Report {
        bench: "sched",
        setting: format!(
            "{name}, decoding after {} tokens, {} rounds of {} turns",
            args.input_len, args.measuring.rounds, args.steps
        ),
        backend: args.null_plugin.clone().unwrap_or_else(|| "none (calls are made and checked)".to_owned()),
        machine: Machine::this(),
        figures,
    })
}

/// Requests that decode on a device that computes nothing.
struct Bench {
    engine: Engine,
    /// Ops of a turn, if they were counted.
    ops: Option<u64>,
}

impl Bench {
    fn new(config: &ModelConfig, sequences: usize, args: &SchedArgs) -> Result<Self, Failure> {
        // Rounds of turns, rounds of phases.
        let turns = WARM_UP + 2 * args.measuring.rounds * args.steps + 1;
        // A step is full of rows, or every prompt in it gets on by a page.
        let rows = EngineConfig::default().max_num_batched_tokens;
        let prefill = sequences * args.input_len / rows + args.input_len / PAGE_TOKENS + 2;
        let tokens = check_lengths(args.input_len, turns + prefill, config.max_position_embeddings)?;
        let counting = Rc::new(CountingDevice::new());
        let device: Rc<dyn Device> = match &args.null_plugin {
            None => counting.clone(),
            Some(path) => {
                let selection = choose_accelerator(Some(path)).map_err(Failure::input)?;
                Rc::new(open_accelerator(&selection)?)
            }
        };
        let model = Model::without_weights(device, config, Numerics::DEPLOY).map_err(Failure::input)?;
        let engine_config = EngineConfig {
            max_num_seqs: sequences,
            max_model_len: Some(tokens),
            // All of them, so that all are admitted at once.
            pages: Some(sequences * tokens.div_ceil(PAGE_TOKENS)),
            watermark: 0.0,
            ..EngineConfig::from_environment().map_err(Failure::input)?
        };
        let mut engine = Engine::builder(model).config(engine_config).build().map_err(Failure::input)?;
        for number in 0..sequences {
            let asked = request(number, config.vocab_size, args.input_len, tokens - args.input_len);
            engine.submit(asked).map_err(Failure::input)?;
        }
        // Until all decode: each has had its first token.
        let mut decoding = HashSet::new();
        while decoding.len() < sequences {
            engine.step();
            for (id, event) in engine.events() {
                match event {
                    Event::Token(_) => _ = decoding.insert(id),
                    Event::Finished(output) => {
                        let error = &output.outputs[0].error;
                        return Err(Failure::Fault(anyhow!("a request ended before all of them decoded: {error:?}")));
                    }
                }
            }
        }
        let mut bench = Self { engine, ops: None };
        bench.round(WARM_UP);
        let before = counting.calls();
        bench.turn();
        bench.ops = Some(counting.calls() - before).filter(|&ops| ops > 0);
        Ok(bench)
    }

    fn turn(&mut self) {
        self.engine.step();
        self.engine.events().for_each(drop);
    }

    /// The median of `steps` turns, in microseconds.
    fn round(&mut self, steps: usize) -> f64 {
        median((0..steps).map(|_| {
            let begun = Instant::now();
            self.turn();
            begun.elapsed().as_secs_f64() * 1e6
        }))
    }

    /// Of each phase, its median in each of `rounds` rounds of `steps` turns, in microseconds.
    fn phases(&mut self, steps: usize, rounds: usize) -> [Vec<f64>; 5] {
        let clock: Rc<RefCell<PhaseClock>> = Rc::default();
        self.engine.add_observer(Box::new(SharedClock(clock.clone())));
        let mut medians: [Vec<f64>; 5] = Default::default();
        for _ in 0..rounds {
            (0..steps).for_each(|_| self.turn());
            let times = std::mem::take(&mut clock.borrow_mut().times);
            medians.iter_mut().zip(times).for_each(|(medians, times)| medians.push(median(times)));
        }
        medians
    }
}

fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The time from the beginning of each phase to the next one's, or to the end of the turn.
#[derive(Default)]
struct PhaseClock {
    now: Option<(StepPhase, Instant)>,
    times: [Vec<f64>; 5],
}

impl PhaseClock {
    fn enter(&mut self, next: Option<StepPhase>) {
        let now = Instant::now();
        if let Some((phase, begun)) = self.now.take() {
            let place = StepPhase::ALL.iter().position(|&p| p == phase).expect("all phases are listed");
            self.times[place].push((now - begun).as_secs_f64() * 1e6);
        }
        self.now = next.map(|phase| (phase, now));
    }
}

struct SharedClock(Rc<RefCell<PhaseClock>>);

impl StepObserver for SharedClock {
    fn observe(&mut self, what: &Observation<'_>) {
        match what {
            Observation::Phase { phase, .. } => self.0.borrow_mut().enter(Some(*phase)),
            Observation::TurnEnded { .. } => self.0.borrow_mut().enter(None),
            _ => {}
        }
    }
}
