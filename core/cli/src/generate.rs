//! `deepinfer generate`: continues a prompt on the screen, or prompts as lines of JSON.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::anyhow;
use deepinfer_engine::unbatched::Engine;
use deepinfer_engine::{Request, RequestError, jsonl};
use deepinfer_model::tokenizer::Tokenizer;

use crate::args::GenerateArgs;
use crate::batch::{Batch, Prompts};
use crate::failure::Failure;
use crate::model::{self, ModelSource};
use crate::output::Output;
use crate::terminal;

/// Id of the line of a prompt from the command line.
const PROMPT_ID: &str = "0";

/// What the arguments ask for.
enum Task {
    /// The text goes to the screen, or a line to a file.
    Prompt { text: String, output: Option<Output> },
    /// A line for each line.
    Lines { prompts: Prompts, output: Output },
}

/// Runs the command of a process that began at `started`.
///
/// What can be refused without the weights is refused before they are loaded.
///
/// # Errors
/// The input is refused, or a fault ends the run.
pub(crate) fn run(args: &GenerateArgs, started: Instant) -> Result<(), Failure> {
    let defaults = args.sampling();
    defaults.validate().map_err(Failure::input)?;
    let task = Task::of(args)?;
    let selection = model::choose_accelerator(args.accelerator.as_deref()).map_err(Failure::input)?;
    let checkpoint = ModelSource::choose(args.model.as_deref()).open().map_err(Failure::input)?;
    let tokenizer = model::open_tokenizer(&checkpoint)?;
    let load = || model::load(&selection, &checkpoint, args.numerics.numerics(), args.chunk_tokens);
    match task {
        Task::Prompt { text, output } => {
            let tokenizer = tokenizer.ok_or(RequestError::NoTokenizer).map_err(Failure::input)?;
            let prompt_token_ids = jsonl::encode(&text, Some(&tokenizer)).map_err(Failure::input)?;
            let request = Request { id: PROMPT_ID.to_owned(), prompt_token_ids, params: defaults };
            request.validate(checkpoint.config()).map_err(Failure::input)?;
            let mut engine = load()?;
            match output {
                None => stream_text(&mut engine, &request, &tokenizer, started),
                Some(output) => {
                    let mut batch = Batch::begin(&mut engine, Some(&tokenizer), output, Some(1))?;
                    batch.run(PROMPT_ID, Ok(request))?;
                    batch.finish()
                }
            }
        }
        Task::Lines { prompts, output } => {
            let mut engine = load()?;
            let mut batch = Batch::begin(&mut engine, tokenizer.as_deref(), output, prompts.total())?;
            batch.run_all(prompts, &defaults)?;
            batch.finish()
        }
    }
}

impl Task {
    /// Opens the files that the arguments name.
    fn of(args: &GenerateArgs) -> Result<Self, Failure> {
        let usage = |text: &str| Err(Failure::Input(anyhow!("{text}")));
        match (&args.prompt, &args.prompts) {
            (None, None) => usage("there is nothing to continue; give a PROMPT, or --prompts with a file of prompts"),
            (Some(_), Some(_)) => usage("both a PROMPT and --prompts are given; give one of them"),
            (Some(_), None) if args.output.is_none() && (args.logprobs.is_some() || args.logits.is_some()) => usage(
                "--logprobs and --logits are part of JSON lines; add --output with a file, or with - for the screen",
            ),
            (Some(text), None) => {
                let output = args.output.as_deref().map(Output::create).transpose()?;
                Ok(Self::Prompt { text: text.clone(), output })
            }
            (None, Some(path)) => {
                let prompts = Prompts::open(path)?;
                let output = args.output.as_deref().map_or_else(Output::stdout, Output::create)?;
                refuse_same_file(path, &output)?;
                Ok(Self::Lines { prompts, output })
            }
        }
    }
}

/// Results would replace the prompts.
fn refuse_same_file(prompts: &Path, output: &Output) -> Result<(), Failure> {
    if output.would_replace(prompts) {
        let name = prompts.display().to_string();
        return Err(Failure::Input(anyhow!(
            "--prompts and --output are the same file {}; its prompts would be lost",
            if name == "-" { output.name() } else { &name }
        )));
    }
    Ok(())
}

/// Prints the continuation as it is made, then a newline; then figures for the person at the terminal.
fn stream_text(
    engine: &mut Engine,
    request: &Request,
    tokenizer: &Arc<Tokenizer>,
    started: Instant,
) -> Result<(), Failure> {
    let mut output = Output::stdout()?;
    let mut text = tokenizer.detokenize_stream();
    let mut written = Ok(());
    let mut timing = Timing::start(started);
    let completion = engine.generate(request, &mut |step| {
        timing.token();
        if let Some(piece) = text.push(step.token_id) {
            written = output.write(&piece);
        }
        written.is_ok()
    });
    written?;
    let completion = completion.map_err(Failure::fault)?;
    output.write(&(text.finish().unwrap_or_default() + "\n"))?;
    let figures = format!("seed {}, {}", completion.seed, timing.figures());
    tracing::info!("{figures}");
    if request.params.seed.is_none() && request.params.temperature > 0.0 {
        // Without it the run could not be repeated.
        terminal::say(&figures);
    } else {
        terminal::note(|| figures);
    }
    match completion.error {
        None => Ok(()),
        Some((_, message)) => Err(Failure::Fault(anyhow!("the output ends early: {message}"))),
    }
}

/// When the tokens came.
struct Timing {
    process: Instant,
    request: Instant,
    first: Option<Instant>,
    last: Instant,
    tokens: u32,
}

impl Timing {
    /// Begins a request of a process that began at `process`.
    fn start(process: Instant) -> Self {
        let now = Instant::now();
        Self { process, request: now, first: None, last: now, tokens: 0 }
    }

    fn token(&mut self) {
        self.last = Instant::now();
        self.first.get_or_insert(self.last);
        self.tokens += 1;
    }

    /// `40 tokens, 80.1 tokens/s, first token after 0.03 s (0.31 s after the start of the program)`. The rate is that of
    /// the tokens after the first, which waits for the prompt.
    fn figures(&self) -> String {
        let Some(first) = self.first else { return "no tokens".to_owned() };
        let decoding = (self.last - first).as_secs_f64();
        let rate = match self.tokens {
            0 | 1 => String::new(),
            tokens => format!("{:.1} tokens/s, ", f64::from(tokens - 1) / decoding.max(f64::MIN_POSITIVE)),
        };
        format!(
            "{} tokens, {rate}first token after {:.2} s ({:.2} s after the start of the program)",
            self.tokens,
            (first - self.request).as_secs_f64(),
            (first - self.process).as_secs_f64(),
        )
    }
}
