//! Runs cells and solo runs: each in an engine of its own, with who watches the logits and draws again.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use deepinfer_engine::{
    Engine, EngineConfig, Event, LogitsObserver, ObservedRow, Request, RequestId, RequestOutput, TokenEvent,
};
use deepinfer_model::{KvCache, Model};
use deepinfer_ops::Device;

use crate::cell::{Arrival, Cell, Memory, Prefix};
use crate::draw::HostDraw;
use crate::error::VerifyError;
use crate::run::{CompletionRun, Digest, Row, Run, WrongDraw};
use crate::trace::{Subject, Trace, TraceDevice, TraceHook};
use crate::workload::Workload;

/// Most times that a request is preempted by force: as often as the scheduler bears it, so that every request ends.
const MOST_PREEMPTIONS: u32 = 3;

/// A model with its requests, on which cells run one after the other.
pub struct Lab {
    /// Absent while an engine has it.
    model: Option<Model>,
    device: Rc<TraceDevice>,
    workload: Workload,
}

/// One run of an engine.
struct Work<'a> {
    name: &'a dyn Fn() -> String,
    config: EngineConfig,
    arrivals: &'a [Arrival],
    preempt_every: Option<usize>,
    passes: usize,
    /// Forget half of the cached pages between passes.
    evicts: bool,
}

impl Lab {
    /// Puts a tracer over `device`, has the model loaded on it, and takes the requests of `seed`.
    ///
    /// # Errors
    /// Those of `load`.
    pub fn new<E>(
        device: Rc<dyn Device>,
        seed: u64,
        load: impl FnOnce(Rc<dyn Device>) -> Result<Model, E>,
    ) -> Result<Self, E> {
        let device = Rc::new(TraceDevice::new(device));
        let model = load(device.clone())?;
        let workload = Workload::new(seed, model.config());
        Ok(Self { model: Some(model), device, workload })
    }

    /// The requests.
    pub fn workload(&self) -> &Workload {
        &self.workload
    }

    /// Runs a cell in this process, whatever it says of that.
    ///
    /// # Errors
    /// No engine can be built, or it refuses a request.
    pub fn run(&mut self, cell: &Cell) -> Result<Run, VerifyError> {
        let requests: Vec<Request> = cell.requests.iter().map(|a| self.workload.request(a.request)).collect();
        let pages_of = |request: &Request| KvCache::pages_for(tokens(request));
        let together: usize = requests.iter().map(|request| request.params.n * pages_of(request)).sum();
        let rows: usize = requests.iter().map(|request| request.params.n * tokens(request)).sum();
        let largest = requests.iter().map(pages_of).max().unwrap_or(1);
        let max_num_seqs = requests.len().min(cell.budget).max(1);
        let (pages, checkpoints, watermark) = match cell.memory {
            Memory::Ample => (together + 8, together + 8, 0.01),
            Memory::Tight => (largest + 2, 2, 0.0),
        };
        let config = EngineConfig {
            max_num_seqs,
            // A step that could hold more than there is would only take memory.
            max_num_batched_tokens: cell.budget.min(rows),
            pages: Some(pages),
            checkpoints: Some(checkpoints),
            watermark,
            prefix_caching: cell.prefix != Prefix::Off,
            async_scheduling: cell.asynchronous,
            decode_graphs: Some(cell.graphs),
            page_order_seed: cell.page_order,
            ..EngineConfig::default()
        };
        let (passes, evicts) = match cell.prefix {
            Prefix::Off | Prefix::Cold => (1, false),
            Prefix::Warm => (2, false),
            Prefix::Evicted => (2, true),
        };
        let (arrivals, preempt_every) = (&cell.requests, cell.preempt_every);
        self.execute(&Work { name: &|| cell.to_string(), config, arrivals, preempt_every, passes, evicts })
    }

    /// Runs a request alone: its completions one after the other, each with its whole prompt in one step.
    ///
    /// # Errors
    /// As [`Lab::run`].
    pub fn solo(&mut self, request: usize) -> Result<Run, VerifyError> {
        let alone = self.workload.request(request);
        let config = EngineConfig {
            max_num_seqs: 1,
            max_num_batched_tokens: alone.prompt_token_ids.len(),
            pages: Some(KvCache::pages_for(tokens(&alone))),
            checkpoints: Some(0),
            prefix_caching: false,
            async_scheduling: false,
            decode_graphs: Some(false),
            ..EngineConfig::default()
        };
        let arrivals = &[Arrival { request, turn: 0 }];
        let name = || format!("of request {request} alone");
        self.execute(&Work { name: &name, config, arrivals, preempt_every: None, passes: 1, evicts: false })
    }

    /// What one completion computes while `run` runs.
    pub(crate) fn traced(
        &mut self,
        subject: Subject,
        run: impl FnOnce(&mut Self) -> Result<Run, VerifyError>,
    ) -> Result<(Run, Trace), VerifyError> {
        self.device.start(subject);
        let run = run(self);
        let trace = self.device.finish();
        Ok((run?, trace))
    }

    fn execute(&mut self, work: &Work<'_>) -> Result<Run, VerifyError> {
        let model = self.model.take().ok_or(VerifyError::NoModel)?;
        let watch = Rc::new(RefCell::new(Watch::default()));
        let built = Engine::builder(model)
            .config(work.config.clone())
            .observe(Box::new(Watching(watch.clone())))
            .hook(Box::new(TraceHook(self.device.clone())))
            .build();
        let engine = built.map_err(|source| VerifyError::Build { cell: (work.name)(), source: Box::new(source) })?;
        let mut bench = Bench { engine, watch, device: &self.device, workload: &self.workload, wards: HashMap::new() };
        let mut completions = Vec::new();
        let ran = (0..work.passes).try_for_each(|pass| {
            if pass > 0 && work.evicts {
                let cached = bench.engine.stats().cached_pages;
                bench.engine.evict(cached.div_ceil(2));
            }
            bench.pass(work, &mut completions)
        });
        let Bench { engine, watch, .. } = bench;
        let stats = engine.stats();
        self.model = Some(engine.into_model());
        ran?;
        let rows = std::mem::take(&mut watch.borrow_mut().rows);
        Ok(Run { rows, completions, hit_tokens: stats.hit_tokens, preemptions: stats.preemptions })
    }
}

/// Most tokens of a request, prompt and output together.
fn tokens(request: &Request) -> usize {
    request.prompt_token_ids.len() + request.params.max_tokens.unwrap_or(1)
}

/// What the observer has seen.
#[derive(Default)]
struct Watch {
    /// Numbers of requests in the workload and tokens of their prompts, by their names in the engine.
    requests: HashMap<RequestId, (usize, usize)>,
    rows: Vec<Row>,
    /// The last row of each completion from which a token can be drawn.
    last: HashMap<(RequestId, usize), (usize, Vec<f32>)>,
    bytes: Vec<u8>,
}

struct Watching(Rc<RefCell<Watch>>);

impl LogitsObserver for Watching {
    fn row(&mut self, row: &ObservedRow<'_>) {
        let watch = &mut *self.0.borrow_mut();
        let &ObservedRow { request: id, completion, position, logits } = row;
        let (request, prompt_len) = watch.requests[&id];
        watch.rows.push(Row { request, completion, position, logits: Digest::of_floats(logits, &mut watch.bytes) });
        if position + 1 >= prompt_len {
            let (at, last) = watch.last.entry((id, completion)).or_default();
            *at = position;
            last.clear();
            last.extend_from_slice(logits);
        }
    }
}

/// A request that runs.
struct Ward {
    request: Request,
    completions: Vec<CompletionRun>,
    preemptions: u32,
}

/// An engine at work.
struct Bench<'a> {
    engine: Engine,
    watch: Rc<RefCell<Watch>>,
    device: &'a TraceDevice,
    workload: &'a Workload,
    /// Requests that have not ended.
    wards: HashMap<RequestId, Ward>,
}

impl Bench<'_> {
    /// Runs all requests to their ends.
    fn pass(&mut self, work: &Work<'_>, completions: &mut Vec<CompletionRun>) -> Result<(), VerifyError> {
        // Taken from the end: by turn, and those of one turn in the order of the list.
        let mut waiting: Vec<Arrival> = work.arrivals.iter().rev().copied().collect();
        waiting.sort_by_key(|arrival| std::cmp::Reverse(arrival.turn));
        let mut turn = 0;
        while !waiting.is_empty() || self.engine.has_work() {
            while let Some(arrival) = waiting.pop_if(|arrival| arrival.turn <= turn) {
                self.submit(arrival.request)?;
            }
            self.engine.step();
            let events: Vec<(RequestId, Event)> = self.engine.events().collect();
            for (id, event) in events {
                match event {
                    Event::Token(token) => self.take_token(id, &token),
                    Event::Finished(output) => self.take_output(id, &output, completions),
                }
            }
            if work.preempt_every.is_some_and(|every| turn % every == every - 1) {
                self.preempt(turn);
            }
            turn += 1;
        }
        Ok(())
    }

    fn submit(&mut self, number: usize) -> Result<(), VerifyError> {
        let request = self.workload.request(number);
        let refused =
            |source| VerifyError::Refused { request: number, seed: self.workload.seed(), source: Box::new(source) };
        let id = self.engine.submit(request.clone()).map_err(refused)?;
        self.device.name(number, id);
        self.watch.borrow_mut().requests.insert(id, (number, request.prompt_token_ids.len()));
        let begin = |completion| CompletionRun {
            request: number,
            completion,
            tokens: Vec::new(),
            draws: 0,
            wrong_draw: None,
            error: None,
        };
        let completions = (0..request.params.n).map(begin).collect();
        self.wards.insert(id, Ward { request, completions, preemptions: 0 });
        Ok(())
    }

    /// Takes in a token, and draws it again.
    fn take_token(&mut self, id: RequestId, token: &TokenEvent) {
        let Some(ward) = self.wards.get_mut(&id) else { return };
        let run = &mut ward.completions[token.index];
        let (output_len, found) = (run.tokens.len(), token.step.token_id);
        if output_len >= ward.request.params.golden_token_ids.len() {
            let watch = self.watch.borrow();
            let position = ward.request.prompt_token_ids.len() + output_len;
            let (at, logits) = &watch.last[&(id, token.index)];
            assert_eq!(*at + 1, position, "the row that a token is drawn from comes before the token");
            let end = self.engine.model().config().eos_token_id;
            let host = HostDraw { request: &ward.request, completion: token.index, end };
            let expected = host.token(&run.tokens, logits);
            run.draws += 1;
            if expected.token != Some(found) {
                run.wrong_draw.get_or_insert(WrongDraw { position, found, expected });
            }
        }
        run.tokens.push(found);
    }

    fn take_output(&mut self, id: RequestId, output: &RequestOutput, completions: &mut Vec<CompletionRun>) {
        let Some(mut ward) = self.wards.remove(&id) else { return };
        for (run, completion) in ward.completions.iter_mut().zip(&output.outputs) {
            run.error = completion.error.as_ref().map(ToString::to_string);
        }
        completions.append(&mut ward.completions);
        self.watch.borrow_mut().last.retain(|(of, _), _| *of != id);
    }

    /// Preempts a request that runs, another one each time.
    fn preempt(&mut self, turn: usize) {
        let mut names: Vec<RequestId> = self.wards.keys().copied().collect();
        names.sort_unstable();
        let count = names.len().max(1);
        names.rotate_left(turn % count);
        for id in names {
            let ward = self.wards.get_mut(&id).expect("it is one of the wards");
            if ward.preemptions < MOST_PREEMPTIONS && self.engine.preempt(id) {
                ward.preemptions += 1;
                return;
            }
        }
    }
}
