//! Prompts as lines of JSON, read and parsed on a thread of their own.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, stdin};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};

use anyhow::anyhow;
use deepinfer_engine::SamplingParams;
use deepinfer_engine::jsonl::{InputLine, parse_line};
use deepinfer_model::tokenizer::Tokenizer;

use crate::failure::Failure;

/// Lines with prompts.
pub(crate) struct Prompts {
    source: Source,
    name: String,
    total: Option<u64>,
}

enum Source {
    Stdin,
    File(File),
}

/// A line that is not blank, and its number, from 1.
pub(crate) type NumberedLine = (usize, InputLine);

impl Prompts {
    /// Opens the file at `path`; `-` is standard input.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        if path == Path::new("-") {
            return Ok(Self { source: Source::Stdin, name: "standard input".to_owned(), total: None });
        }
        let name = path.display().to_string();
        let unreadable = |e: std::io::Error| Failure::Input(anyhow!("cannot read {name}: {e}"));
        let mut file = File::open(path).map_err(unreadable)?;
        // A pipe has no beginning to return to.
        let total = match file.metadata().map_err(unreadable)?.is_file() {
            true => {
                let lines = count_lines(&file).map_err(unreadable)?;
                file.rewind().map_err(unreadable)?;
                Some(lines)
            }
            false => None,
        };
        Ok(Self { source: Source::File(file), name, total })
    }

    /// Lines that are not blank, if that is known.
    pub(crate) fn total(&self) -> Option<u64> {
        self.total
    }

    /// Begins to read. Lines come as they are written, in order, each parsed; parameters that a line lacks are those of
    /// `defaults`. Reading goes one line further than was received, and ends with a failure or the last line.
    ///
    /// # Panics
    /// If the system gives no thread.
    pub(crate) fn parse(
        self,
        defaults: SamplingParams,
        vocab_size: usize,
        tokenizer: Option<Arc<Tokenizer>>,
    ) -> Receiver<Result<NumberedLine, Failure>> {
        let (sender, receiver) = sync_channel(0);
        let read = move || {
            let mut lines: Box<dyn BufRead> = match self.source {
                Source::Stdin => Box::new(stdin().lock()),
                Source::File(file) => Box::new(BufReader::new(file)),
            };
            let (mut line, mut number) = (Vec::new(), 0);
            loop {
                line.clear();
                number += 1;
                let next = match lines.read_until(b'\n', &mut line) {
                    Ok(0) => return,
                    Ok(_) if is_blank(&line) => continue,
                    Ok(_) => Ok((number, parse(&line, number, &defaults, vocab_size, tokenizer.as_deref()))),
                    Err(e) => Err(Failure::Input(anyhow!("cannot read {}: {e}", self.name))),
                };
                let is_last = next.is_err();
                // Nobody listens when the run has ended early.
                if sender.send(next).is_err() || is_last {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("deepinfer-prompts".to_owned()).spawn(read);
        thread.unwrap_or_else(|error| panic!("the system gives no thread for the prompts: {error}"));
        receiver
    }
}

fn parse(
    line: &[u8],
    number: usize,
    defaults: &SamplingParams,
    vocab_size: usize,
    tokenizer: Option<&Tokenizer>,
) -> InputLine {
    // Some editors begin a file with a mark of its byte order.
    let line = if number == 1 { line.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(line) } else { line };
    match std::str::from_utf8(line.trim_ascii_end()) {
        Ok(text) => parse_line(text, number, defaults, vocab_size, tokenizer),
        Err(e) => InputLine::unreadable(number, format!("line {number} is not UTF-8: {e}")),
    }
}

/// Lines that are not blank, without holding one.
fn count_lines(file: &File) -> std::io::Result<u64> {
    let mut reader = BufReader::with_capacity(1 << 16, file);
    let (mut lines, mut is_blank) = (0, true);
    let mut block = vec![0; 1 << 16];
    loop {
        let bytes = reader.read(&mut block)?;
        if bytes == 0 {
            return Ok(lines + u64::from(!is_blank));
        }
        for &byte in &block[..bytes] {
            if byte == b'\n' {
                lines += u64::from(!is_blank);
                is_blank = true;
            } else {
                is_blank &= byte.is_ascii_whitespace();
            }
        }
    }
}

fn is_blank(line: &[u8]) -> bool {
    line.trim_ascii().is_empty()
}
