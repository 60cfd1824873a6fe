//! From a choice of model and accelerator to an engine that runs.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use deepinfer_engine::{BuildError, Engine, EngineConfig, switch};
use deepinfer_model::checkpoint::{Checkpoint, CheckpointError, CheckpointWarning};
use deepinfer_model::memory_plan::FreeMemory;
use deepinfer_model::tokenizer::Tokenizer;
use deepinfer_model::{LoadError, Model, Numerics, TablePlace};
use deepinfer_ops::Device;
use deepinfer_runtime::{Choice, OpenDevice, OpenOptions, Runtime, SelectError, Selection};

use crate::args::ModelArgs;
use crate::embedded;
use crate::failure::Failure;
use crate::plugin::probe::Prober;
use crate::plugin::survey::Survey;
use crate::terminal;

/// Directory of the model when the command line names none.
const MODEL_VARIABLE: &str = "DEEPINFER_HF_MODEL_DIR";

/// Refuses to run on implementations that do not promise equal results in any company.
const INVARIANT_VARIABLE: &str = "DEEPINFER_BATCH_INVARIANT";

/// Time for a plugin to load when `auto` looks for one: drivers are slow to start.
const AUTO_LIMIT: Duration = Duration::from_secs(60);

/// Warnings about a checkpoint that are shown in full.
const SHOWN_WARNINGS: usize = 10;

/// Where a model comes from.
#[derive(Debug)]
pub(crate) enum ModelSource {
    /// A directory in the layout of Hugging Face.
    Directory(PathBuf),
    /// The miniature in the program.
    Embedded,
}

impl ModelSource {
    /// The directory that the command line names, else the one of `DEEPINFER_HF_MODEL_DIR`, else the miniature.
    pub(crate) fn choose(named: Option<&Path>) -> Self {
        let from_environment = || std::env::var_os(MODEL_VARIABLE).filter(|dir| !dir.is_empty()).map(PathBuf::from);
        named.map(Path::to_owned).or_else(from_environment).map_or(Self::Embedded, Self::Directory)
    }

    /// Opens the checkpoint.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub(crate) fn open(&self) -> Result<Checkpoint, CheckpointError> {
        match self {
            Self::Directory(dir) => Checkpoint::open(dir),
            Self::Embedded => embedded::open(),
        }
    }
}

/// The accelerator that the command line names, else the one of `DEEPINFER_ACCELERATOR`, else `auto`.
///
/// # Errors
/// The text names nothing that could be an accelerator.
pub(crate) fn choose_accelerator(named: Option<&str>) -> Result<Selection, SelectError> {
    named.map_or_else(Selection::from_env, Selection::parse)
}

/// Opens an accelerator.
///
/// # Errors
/// It cannot be used.
pub(crate) fn open_accelerator(selection: &Selection) -> Result<OpenDevice, Failure> {
    let runtime = Runtime::from_environment().map_err(Failure::input)?;
    let options = open_options()?;
    let selection = resolve(&runtime, selection)?;
    runtime.open_with(&selection, &options).map_err(Failure::input)
}

/// What a command runs: a model that was read, though not on a device yet, and where it is to run.
///
/// A command that runs a model flattens [`ModelArgs`] and `EngineArgs` into its arguments; then
///
/// ```ignore
/// let chosen = ChosenModel::open(&args.model)?;
/// let mut engine = chosen.load(&args.engine.config()?)?;
/// ```
///
/// It can be sent to the thread on which an engine is to live.
pub(crate) struct ChosenModel {
    selection: Selection,
    numerics: Numerics,
    pub(crate) checkpoint: Checkpoint,
    /// `None` if the model has no `tokenizer.json`.
    pub(crate) tokenizer: Option<Arc<Tokenizer>>,
}

impl ChosenModel {
    /// Most tokens of a request: `limit`, else the context of the model.
    ///
    /// # Errors
    /// The limit is beyond the context.
    pub(crate) fn context(&self, limit: Option<usize>) -> Result<usize, Failure> {
        let longest = self.checkpoint.config().max_position_embeddings;
        match limit {
            Some(limit) if limit > longest => Err(Failure::Input(anyhow!(
                "--max-model-len is {limit}, but the model has a context of {longest} tokens; use at most that"
            ))),
            limit => Ok(limit.unwrap_or(longest)),
        }
    }

    /// Reads the model that the arguments name, all but its weights; the accelerator is not looked for yet.
    ///
    /// # Errors
    /// The accelerator's name is none, or the checkpoint is refused.
    pub(crate) fn open(args: &ModelArgs) -> Result<Self, Failure> {
        let selection = choose_accelerator(args.accelerator.as_deref()).map_err(Failure::input)?;
        let checkpoint = ModelSource::choose(args.model.as_deref()).open().map_err(Failure::input)?;
        let tokenizer = checkpoint.tokenizer().map_err(Failure::input)?;
        Ok(Self { selection, numerics: args.numerics.numerics(), checkpoint, tokenizer })
    }

    /// Opens the accelerator, loads the model on it and makes an engine of it. On standard error there is a bar, and
    /// figures if it is a terminal.
    ///
    /// # Errors
    /// The accelerator cannot be used, the checkpoint is refused, the limits contradict each other or the model, or the
    /// device has not enough memory.
    pub(crate) fn load(&self, config: &EngineConfig) -> Result<Engine, Failure> {
        let device = self.open_device()?;
        let free = FreeMemory::of(&device).map_err(Failure::fault)?;
        let plan = config.plan(&self.checkpoint, self.numerics, free).map_err(unplanned)?;
        terminal::note(|| format!("{}\n  {}", self.checkpoint.origin(), plan.to_string().trim_end()));
        let model = self.load_with(Rc::new(device), plan.memory().tables)?;
        Engine::builder(model).tokenizer(self.tokenizer.clone()).plan(plan).build().map_err(unplanned)
    }

    /// Opens the accelerator.
    ///
    /// # Errors
    /// It cannot be used.
    pub(crate) fn open_device(&self) -> Result<OpenDevice, Failure> {
        open_accelerator(&self.selection)
    }

    /// Loads the model on a device. On standard error there is a bar.
    ///
    /// # Errors
    /// The checkpoint is refused, or the device has not enough memory.
    pub(crate) fn load_on(&self, device: Rc<dyn Device>) -> Result<Model, Failure> {
        self.load_with(device, TablePlace::Device)
    }

    fn load_with(&self, device: Rc<dyn Device>, tables: TablePlace) -> Result<Model, Failure> {
        let bar = terminal::bytes_bar("loading");
        let loaded = Model::load_with(device, &self.checkpoint, self.numerics, tables, &mut |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        });
        bar.finish_and_clear();
        let (model, warnings) = loaded.map_err(|error| match &error {
            LoadError::Device { .. } => Failure::fault(error),
            LoadError::Checkpoint(_) => Failure::input(error),
        })?;
        warn(&warnings);
        Ok(model)
    }
}

/// Why there is no engine: what was asked for, or the device.
fn unplanned(error: BuildError) -> Failure {
    match error {
        BuildError::Device(_) => Failure::fault(error),
        _ => Failure::input(error),
    }
}

/// How devices are opened: with the implementations that are pinned, and if the user insists on batch invariance, only with
/// those that promise it.
///
/// # Errors
/// A variable of the environment is malformed.
fn open_options() -> Result<OpenOptions, Failure> {
    let strict = switch(INVARIANT_VARIABLE, false).map_err(Failure::input)?;
    let options = OpenOptions::from_environment().map_err(Failure::input)?;
    Ok(OpenOptions { require_deterministic: strict, require_batch_invariant: strict, ..options })
}

/// What `auto` means here, found without loading a plugin into this process, which one that aborts or hangs would take with
/// it. A backend that is named is loaded at once.
///
/// # Errors
/// No backend can run the model.
fn resolve(runtime: &Runtime, selection: &Selection) -> Result<Selection, Failure> {
    if selection.choice != Choice::Auto {
        return Ok(selection.clone());
    }
    let mut survey = Survey::new(runtime, selection, Prober { limit: AUTO_LIMIT, shows_words: false });
    let (_, chosen) = survey.choose()?;
    let chosen = chosen.map_err(Failure::input)?;
    let choice = Choice::Path(survey.candidates()[chosen.index].file().to_owned());
    Ok(Selection { choice, device: chosen.device, options: String::new() })
}

/// A checkpoint of another kind can hold thousands of tensors that are not used; the first ones tell enough.
fn warn(warnings: &[CheckpointWarning]) {
    for warning in warnings.iter().take(SHOWN_WARNINGS) {
        terminal::warning(warning);
    }
    if let Some(more) = warnings.len().checked_sub(SHOWN_WARNINGS).filter(|more| *more > 0) {
        terminal::warning(&format_args!("{more} more such tensors; deepinfer inspect --check lists them all"));
    }
}
