//! Many requests at once, and their results as lines of JSON in the order of the requests.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::mpsc::{Receiver, RecvError, TryRecvError};
use std::time::Instant;

use anyhow::anyhow;
use deepinfer_engine::jsonl::{InputLine, OutputLine};
use deepinfer_engine::{Engine, EngineError, Event, Request, RequestError, RequestId, RequestOutput};
use indicatif::ProgressBar;

use crate::failure::Failure;
use crate::output::Output;
use crate::prompts::NumberedLine;
use crate::terminal;

/// A run of requests, each with a line of output.
pub(crate) struct Batch<'a> {
    engine: &'a mut Engine,
    output: Output,
    /// Results that are not written yet, in the order of the requests; `None` while one is still to come.
    results: VecDeque<Option<String>>,
    /// Results that were written.
    written: usize,
    /// Requests that run or wait, and which result theirs is, counted from the first of all.
    running: HashMap<RequestId, usize>,
    bar: ProgressBar,
    started: Instant,
    warned_of: BTreeSet<String>,
    refused: usize,
    tokens: usize,
    faults: usize,
    /// Id and message.
    first_fault: Option<(String, String)>,
}

impl<'a> Batch<'a> {
    /// Begins a run of `total` requests, if that is known, on an engine without others.
    ///
    /// # Errors
    /// The output cannot be written.
    pub(crate) fn begin(engine: &'a mut Engine, mut output: Output, total: Option<u64>) -> Result<Self, Failure> {
        output.begin()?;
        Ok(Self {
            engine,
            output,
            results: VecDeque::new(),
            written: 0,
            running: HashMap::new(),
            bar: terminal::requests_bar(total),
            started: Instant::now(),
            warned_of: BTreeSet::new(),
            refused: 0,
            tokens: 0,
            faults: 0,
            first_fault: None,
        })
    }

    /// Runs one request.
    ///
    /// # Errors
    /// As [`Batch::run_all`].
    pub(crate) fn run_one(mut self, request: Request) -> Result<(), Failure> {
        self.submit(&request.id.clone(), Ok(request))?;
        while !self.running.is_empty() {
            self.step()?;
        }
        self.finish()
    }

    /// Runs all lines, those that come later beside those that are there. At most `look_ahead` are read whose results are not
    /// written. One that is no request gives a line that says so. Fields that are not known are ignored, with a warning for
    /// each name.
    ///
    /// # Errors
    /// The prompts cannot be read, the output cannot be written, or a request met a fault of the device. Refused lines are
    /// not errors of the run.
    pub(crate) fn run_all(
        mut self,
        lines: &Receiver<Result<NumberedLine, Failure>>,
        look_ahead: usize,
    ) -> Result<(), Failure> {
        let mut unreadable = None;
        let mut is_open = true;
        while is_open || !self.running.is_empty() {
            while is_open && self.results.len() < look_ahead {
                // Only a run that has nothing else to do waits for a line.
                let next = match self.running.is_empty() {
                    true => lines.recv().map_err(|RecvError| TryRecvError::Disconnected),
                    false => lines.try_recv(),
                };
                match next {
                    Ok(Ok((number, line))) => self.take_line(number, line)?,
                    Ok(Err(failure)) => unreadable = Some(failure),
                    Err(TryRecvError::Disconnected) => is_open = false,
                    Err(TryRecvError::Empty) => break,
                }
            }
            self.step()?;
        }
        match unreadable {
            Some(failure) => Err(failure),
            None => self.finish(),
        }
    }

    fn take_line(&mut self, number: usize, line: InputLine) -> Result<(), Failure> {
        for field in line.unknown_fields {
            if !self.warned_of.contains(&field) {
                let warning = format!("line {number}: the field {field:?} is not known and is ignored");
                self.bar.suspend(|| terminal::warning(&warning));
                self.warned_of.insert(field);
            }
        }
        self.submit(&line.id, line.request)
    }

    /// Submits a request, or answers why there is none.
    fn submit(&mut self, id: &str, request: Result<Request, RequestError>) -> Result<(), Failure> {
        let place = self.written + self.results.len();
        self.results.push_back(None);
        match request.map_err(EngineError::from).and_then(|request| self.engine.submit(request)) {
            Ok(request) => {
                self.running.insert(request, place);
                Ok(())
            }
            Err(error) => {
                match &error {
                    EngineError::Request(_) => self.refused += 1,
                    _ => self.note_fault(id, &error),
                }
                self.take_result(place, &OutputLine::refused(id, &error))
            }
        }
    }

    /// A turn of the engine, and what came of it.
    fn step(&mut self) -> Result<(), Failure> {
        self.engine.step();
        let mut finished: Vec<(RequestId, Box<RequestOutput>)> = Vec::new();
        let before = self.tokens;
        for (id, event) in self.engine.events() {
            match event {
                Event::Token(_) => self.tokens += 1,
                Event::Finished(output) => finished.push((id, output)),
            }
        }
        if self.tokens > before {
            self.bar.set_message(rate(self.tokens, self.started));
        }
        for (id, output) in finished {
            // All requests of this engine are of this run.
            let place = self.running.remove(&id).expect("a request ends once");
            if let Some(error) = output.outputs.iter().find_map(|completion| completion.error.as_ref()) {
                self.note_fault(&output.id, error);
            }
            self.take_result(place, &OutputLine::from(*output))?;
        }
        Ok(())
    }

    /// Keeps a result, and writes those that no earlier one holds back.
    fn take_result(&mut self, place: usize, line: &OutputLine) -> Result<(), Failure> {
        let text = serde_json::to_string(line).map_err(Failure::fault)? + "\n";
        self.results[place - self.written] = Some(text);
        while let Some(Some(_)) = self.results.front() {
            let text = self.results.pop_front().flatten().expect("it is there");
            self.written += 1;
            if self.output.is_terminal() {
                self.bar.suspend(|| self.output.write(&text))?;
            } else {
                self.output.write(&text)?;
            }
            self.bar.inc(1);
        }
        Ok(())
    }

    fn note_fault(&mut self, id: &str, error: &EngineError) {
        self.faults += 1;
        self.first_fault.get_or_insert_with(|| (id.to_owned(), error.to_string()));
    }

    /// Ends the run, with figures for the person at the terminal.
    fn finish(self) -> Result<(), Failure> {
        self.bar.finish_and_clear();
        let Self { written, refused, tokens, faults, started, first_fault, .. } = self;
        let figures = format!("{written} requests, {refused} refused, {}", rate(tokens, started));
        if refused > 0 {
            terminal::warning(&figures);
        } else {
            terminal::note(|| figures);
        }
        match first_fault {
            None => Ok(()),
            Some((id, message)) => Err(Failure::Fault(anyhow!(
                "{faults} of {written} requests failed while running, the first of them {id:?}: {message}"
            ))),
        }
    }
}

/// Tokens so far and per second of the run, prompts included.
fn rate(tokens: usize, started: Instant) -> String {
    let seconds = started.elapsed().as_secs_f64().max(f64::MIN_POSITIVE);
    format!("{tokens} tokens, {:.1} tokens/s", tokens as f64 / seconds)
}
