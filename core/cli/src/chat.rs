//! `deepinfer chat`: a conversation in the terminal, or of lines of standard input.

mod args;
mod command;
mod input;
mod interrupt;
mod screen;
mod session;
mod transcript;

use anyhow::anyhow;
use deepinfer_codec::Codec;
use deepinfer_engine::{EngineConfig, EngineThread};

pub(crate) use self::args::ChatArgs;
use self::command::Command;
use self::input::Input;
use self::interrupt::Interrupts;
use self::screen::Screen;
use self::session::Session;
use crate::failure::Failure;
use crate::model::{ChosenModel, ModelSource};
use crate::terminal;

/// Rows of a step: enough to keep a device busy with a long message, and few enough that Ctrl-C need not wait long.
const ROWS: usize = 2048;
/// States at which a cached beginning of a prompt can end. A prompt leaves one at each of its pages, and the next prompt of
/// the conversation needs only the last of them.
const CHECKPOINTS: usize = 8;

/// Runs the command.
///
/// What can be refused without the weights is refused before they are loaded.
///
/// # Errors
/// The arguments or the model are refused, or a fault ends the conversation.
pub(crate) fn run(args: &ChatArgs) -> Result<(), Failure> {
    let is_miniature = matches!(ModelSource::choose(args.model.model.as_deref()), ModelSource::Embedded);
    let chosen = ChosenModel::open(&args.model)?;
    let Some(tokenizer) = chosen.tokenizer.clone() else {
        return Err(Failure::Input(anyhow!("the model has no tokenizer.json, so messages cannot become tokens")));
    };
    let codec = Codec::new(tokenizer).map_err(Failure::input)?;
    let context = chosen.context(args.max_model_len)?;
    let mut session = Session::begin(codec, args, chosen.checkpoint.origin().to_string(), context)?;
    let config = EngineConfig {
        max_num_seqs: 1,
        max_num_batched_tokens: ROWS.min(context),
        max_model_len: Some(context),
        checkpoints: Some(CHECKPOINTS),
        ..EngineConfig::from_environment().map_err(Failure::input)?
    };
    let telemeter = args.telemetry.open([])?;
    let engine = EngineThread::spawn(move || {
        let mut engine = chosen.load(&config)?;
        telemeter.attach(&mut engine);
        Ok::<_, Failure>(engine)
    })?;
    // While it loads, Ctrl-C ends the program as ever.
    let interrupts = Interrupts::catch()?;
    let mut screen = Screen::open()?;
    let mut input = Input::open(screen.is_terminal())?;
    greet(is_miniature, &input);
    while let Some(line) = input.next(&interrupts)? {
        let message = match Command::parse(&line) {
            Ok(None) => line.trim(),
            Ok(Some(Command::Quit)) => break,
            Ok(Some(command)) => {
                session.obey(&command);
                continue;
            }
            Err(unknown) => {
                terminal::error(&unknown);
                continue;
            }
        };
        if !message.is_empty() {
            session.say(message, &engine.handle(), &interrupts, &mut screen)?;
        }
    }
    Ok(())
}

/// What must be known before the first message.
fn greet(is_miniature: bool, input: &Input) {
    if is_miniature {
        terminal::say(
            &"the built-in miniature learnt to write from children's stories and short chats: it answers in the tone of a \
              conversation, but cannot hold one; use --model for a model that can",
        );
    }
    if input.is_terminal() {
        terminal::note(|| "/help lists the commands; Ctrl-C stops an answer; Ctrl-D leaves".to_owned());
    }
}
