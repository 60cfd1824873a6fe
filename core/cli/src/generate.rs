//! `deepinfer generate`: continues a prompt on the screen, or prompts as lines of JSON.

use std::path::Path;
use std::time::Instant;

use anyhow::anyhow;
use deepinfer_engine::{Engine, EngineConfig, Policy, Request, RequestError, jsonl};

use crate::args::GenerateArgs;
use crate::batch::Batch;
use crate::failure::Failure;
use crate::model::ChosenModel;
use crate::output::Output;
use crate::prompts::Prompts;
use crate::terminal;

/// Id of the line of a prompt from the command line.
const PROMPT_ID: &str = "0";
/// Lines that may be read and not yet written, for each request that can run: enough that none waits for a line when a long
/// one holds back those after it.
const LOOK_AHEAD: usize = 2;

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
    let defaults = args.sampling.params();
    defaults.validate().map_err(Failure::input)?;
    let task = Task::of(args)?;
    let telemeter = args.telemetry.open([args.prompts.as_ref(), args.output.as_ref()])?;
    let config = EngineConfig { policy: Policy::Priority, ..args.engine.config()? };
    let chosen = ChosenModel::open(&args.model)?;
    let context = chosen.context(args.engine.max_model_len)?;
    match task {
        Task::Prompt { text, output } => {
            let prompt_token_ids = jsonl::encode(&text, chosen.tokenizer.as_deref()).map_err(Failure::input)?;
            let request = Request { id: PROMPT_ID.to_owned(), prompt_token_ids, params: defaults };
            let model = chosen.checkpoint.config();
            request.validate(model).map_err(Failure::input)?;
            let tokens = request.prompt_token_ids.len();
            if tokens >= context {
                return Err(Failure::input(RequestError::PromptTooLong { tokens, context }));
            }
            let mut engine = chosen.load(&config.for_request(&request, context))?;
            telemeter.attach(&mut engine);
            match output {
                None => stream_text(&mut engine, request, started),
                Some(output) => Batch::begin(&mut engine, output, Some(1))?.run_one(request),
            }
        }
        Task::Lines { prompts, output } => {
            let config = config.for_lines(prompts.total());
            let look_ahead = LOOK_AHEAD * config.max_num_seqs;
            let mut engine = chosen.load(&config)?;
            telemeter.attach(&mut engine);
            let total = prompts.total();
            let lines = prompts.parse(defaults, chosen.checkpoint.config().vocab_size, chosen.tokenizer);
            Batch::begin(&mut engine, output, total)?.run_all(&lines, look_ahead)
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
            (Some(text), None) => {
                if let (Some(option), None) = (args.sampling.for_lines_only(), &args.output) {
                    return usage(&format!(
                        "{option} is for JSON lines; add --output with a file, or with - for the screen"
                    ));
                }
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

/// Results would replace the prompts, or, where standard output is appended to them, be read as prompts without end.
fn refuse_same_file(prompts: &Path, output: &Output) -> Result<(), Failure> {
    if output.is_file_at(prompts) {
        let name = prompts.display().to_string();
        if output.is_stdout() {
            return Err(Failure::Input(anyhow!(
                "standard output goes to the file of --prompts; its results would be read as prompts, so write them elsewhere"
            )));
        }
        return Err(Failure::Input(anyhow!(
            "--prompts and --output are the same file {}; its prompts would be lost",
            if name == "-" { output.name() } else { &name }
        )));
    }
    Ok(())
}

/// Prints the continuation as it is made, then a newline; then figures for the person at the terminal.
fn stream_text(engine: &mut Engine, request: Request, started: Instant) -> Result<(), Failure> {
    let mut output = Output::stdout()?;
    let repeats = request.params.seed.is_some() || request.params.temperature == 0.0;
    let (mut written, mut result) = (0, Ok(()));
    let mut timing = Timing::start(started);
    let ended = engine.run(request, &mut |token| {
        timing.token();
        if !token.text.is_empty() {
            result = output.write(&token.text);
            written += token.text.len();
        }
        result.is_ok()
    });
    result?;
    let mut ended = ended.map_err(Failure::fault)?;
    let completion = ended.outputs.swap_remove(0);
    if let (Some(error), true) = (&completion.error, completion.steps.is_empty()) {
        return Err(Failure::fault(error.clone()));
    }
    // A fault ends an output without a last token that brings the rest of the text.
    let text = completion.text.unwrap_or_default();
    output.write(&(text[written..].to_owned() + "\n"))?;
    let figures = format!("seed {}, {}", ended.seed.unwrap_or_default(), timing.figures());
    tracing::info!("{figures}");
    if repeats {
        terminal::note(|| figures);
    } else {
        // Without the seed the run could not be repeated.
        terminal::say(&figures);
    }
    match completion.error {
        None => Ok(()),
        Some(error) => Err(Failure::Fault(anyhow!("the output ends early: {error}"))),
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
