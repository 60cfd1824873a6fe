//! Prompts and results as lines of JSON.

use std::collections::BTreeSet;
use std::io::{BufRead, Cursor, stdin};
use std::path::Path;
use std::time::Instant;

use anyhow::anyhow;
use deepinfer_engine::jsonl::{InputLine, OutputLine, parse_line};
use deepinfer_engine::unbatched::{Completion, Engine};
use deepinfer_engine::{EngineError, Request, RequestError, SamplingParams};
use deepinfer_model::tokenizer::Tokenizer;
use indicatif::ProgressBar;

use crate::failure::Failure;
use crate::output::Output;
use crate::terminal;

/// Lines with prompts.
pub(crate) struct Prompts {
    lines: Box<dyn BufRead>,
    name: String,
    total: Option<u64>,
}

impl Prompts {
    /// Opens the file at `path`; `-` is standard input, whose lines run as they come.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        if path == Path::new("-") {
            return Ok(Self { lines: Box::new(stdin().lock()), name: "standard input".to_owned(), total: None });
        }
        let name = path.display().to_string();
        let text = std::fs::read(path).map_err(|e| Failure::Input(anyhow!("cannot read {name}: {e}")))?;
        let total = text.split(|&byte| byte == b'\n').filter(|line| !is_blank(line)).count() as u64;
        Ok(Self { lines: Box::new(Cursor::new(text)), name, total: Some(total) })
    }

    /// Lines that are not blank, if that is known.
    pub(crate) fn total(&self) -> Option<u64> {
        self.total
    }

    /// The next line into `line`, without its end; `false` after the last.
    fn next(&mut self, line: &mut Vec<u8>) -> Result<bool, Failure> {
        line.clear();
        let read = self.lines.read_until(b'\n', line);
        let bytes = read.map_err(|e| Failure::Input(anyhow!("cannot read {}: {e}", self.name)))?;
        line.truncate(line.trim_ascii_end().len());
        Ok(bytes > 0)
    }
}

/// A run of requests, one after the other, each with a line of output.
pub(crate) struct Batch<'a> {
    engine: &'a mut Engine,
    tokenizer: Option<&'a Tokenizer>,
    output: Output,
    bar: ProgressBar,
    started: Instant,
    requests: usize,
    refused: usize,
    tokens: usize,
    faults: usize,
    /// Id and message.
    first_fault: Option<(String, String)>,
}

impl<'a> Batch<'a> {
    /// Begins a run of `total` requests, if that is known.
    ///
    /// # Errors
    /// The output cannot be written.
    pub(crate) fn begin(
        engine: &'a mut Engine,
        tokenizer: Option<&'a Tokenizer>,
        mut output: Output,
        total: Option<u64>,
    ) -> Result<Self, Failure> {
        output.begin()?;
        Ok(Self {
            engine,
            tokenizer,
            output,
            bar: terminal::requests_bar(total),
            started: Instant::now(),
            requests: 0,
            refused: 0,
            tokens: 0,
            faults: 0,
            first_fault: None,
        })
    }

    /// Runs all lines. One that is no request gives a line that says so. Fields that are not known are ignored, with a
    /// warning for each name.
    ///
    /// # Errors
    /// The prompts cannot be read, or the output cannot be written.
    pub(crate) fn run_all(&mut self, mut prompts: Prompts, defaults: &SamplingParams) -> Result<(), Failure> {
        let mut warned = BTreeSet::new();
        let mut line = Vec::new();
        let mut number = 0;
        while prompts.next(&mut line)? {
            number += 1;
            if is_blank(&line) {
                continue;
            }
            let parsed = self.parse(&line, number, defaults);
            for field in parsed.unknown_fields {
                if !warned.contains(&field) {
                    let warning = format!("line {number}: the field {field:?} is not known and is ignored");
                    self.bar.suspend(|| terminal::warning(&warning));
                    warned.insert(field);
                }
            }
            self.run(&parsed.id, parsed.request)?;
        }
        Ok(())
    }

    fn parse(&self, line: &[u8], number: usize, defaults: &SamplingParams) -> InputLine {
        let vocab_size = self.engine.model().config().vocab_size;
        match std::str::from_utf8(line) {
            Ok(text) => parse_line(text, number, defaults, vocab_size, self.tokenizer),
            Err(e) => InputLine {
                id: number.to_string(),
                request: Err(RequestError::InvalidLine(format!("line {number} is not UTF-8: {e}"))),
                unknown_fields: Vec::new(),
            },
        }
    }

    /// Runs a request, or tells why there is none.
    ///
    /// # Errors
    /// The output cannot be written.
    pub(crate) fn run(&mut self, id: &str, request: Result<Request, RequestError>) -> Result<(), Failure> {
        self.requests += 1;
        let line = match self.outcome(request) {
            Ok((request, completion)) => {
                if let Some((_, message)) = &completion.error {
                    self.note_fault(id, message);
                }
                OutputLine::completed(&request, completion, self.tokenizer)
            }
            Err(error) => {
                match &error {
                    EngineError::Request(_) => self.refused += 1,
                    _ => self.note_fault(id, &error.to_string()),
                }
                OutputLine::failed(id, &error)
            }
        };
        let text = serde_json::to_string(&line).map_err(Failure::fault)? + "\n";
        if self.output.is_terminal() {
            self.bar.suspend(|| self.output.write(&text))?;
        } else {
            self.output.write(&text)?;
        }
        self.bar.inc(1);
        Ok(())
    }

    fn outcome(&mut self, request: Result<Request, RequestError>) -> Result<(Request, Completion), EngineError> {
        let request = request?;
        let Self { engine, bar, started, tokens, .. } = self;
        let completion = engine.generate(&request, &mut |_| {
            *tokens += 1;
            bar.set_message(rate(*tokens, *started));
            true
        })?;
        Ok((request, completion))
    }

    fn note_fault(&mut self, id: &str, message: &str) {
        self.faults += 1;
        self.first_fault.get_or_insert_with(|| (id.to_owned(), message.to_owned()));
    }

    /// Ends the run, with figures for the person at the terminal.
    ///
    /// # Errors
    /// A request met a fault of the device. Refused lines are not errors of the run.
    pub(crate) fn finish(self) -> Result<(), Failure> {
        self.bar.finish_and_clear();
        let Self { requests, refused, tokens, faults, started, first_fault, .. } = self;
        let figures = format!("{requests} requests, {refused} refused, {}", rate(tokens, started));
        if refused > 0 {
            terminal::warning(&figures);
        } else {
            terminal::note(|| figures);
        }
        match first_fault {
            None => Ok(()),
            Some((id, message)) => Err(Failure::Fault(anyhow!(
                "{faults} of {requests} requests failed while running, the first of them {id:?}: {message}"
            ))),
        }
    }
}

/// Tokens so far and per second of the run, prompts included.
fn rate(tokens: usize, started: Instant) -> String {
    let seconds = started.elapsed().as_secs_f64().max(f64::MIN_POSITIVE);
    format!("{tokens} tokens, {:.1} tokens/s", tokens as f64 / seconds)
}

fn is_blank(line: &[u8]) -> bool {
    line.trim_ascii().is_empty()
}
