//! Lines that are for the program and not for the model.

use clap::Parser;

use super::args::AnswerArgs;

/// What `/help` prints.
pub(crate) const HELP: &str = "\
/reset           begin a new conversation; the system prompt stays
/system [TEXT]   tell the model TEXT before the first message, or nothing any more
/params          show the parameters of answers
/params OPTIONS  change some, as in /params --temperature 0.7 --thinking=max (see deepinfer chat --help)
/params default  forget all that were given
/save FILE       write the conversation to a new file, as JSON
/quit            leave, as Ctrl-D does
A message that begins with / needs a blank before it.";

/// A command of the conversation.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command<'a> {
    Help,
    Reset,
    /// Empty for no text any more.
    System(&'a str),
    /// Empty to show them.
    Params(&'a str),
    /// Empty if the file is missing.
    Save(&'a str),
    Quit,
}

impl<'a> Command<'a> {
    /// The command of a line, `None` if it is a message.
    ///
    /// # Errors
    /// A sentence: there is no such command.
    pub(crate) fn parse(line: &'a str) -> Result<Option<Self>, String> {
        if !line.starts_with('/') {
            return Ok(None);
        }
        let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let rest = rest.trim();
        let alone = |command| {
            if rest.is_empty() { Ok(Some(command)) } else { Err(format!("{name} takes nothing, not {rest:?}")) }
        };
        match name {
            "/help" => alone(Self::Help),
            "/reset" => alone(Self::Reset),
            "/system" => Ok(Some(Self::System(rest))),
            "/params" => Ok(Some(Self::Params(rest))),
            "/save" => Ok(Some(Self::Save(rest))),
            "/quit" | "/exit" => alone(Self::Quit),
            _ => Err(format!(
                "there is no command {name}; /help lists them. Put a blank before a message that begins with /"
            )),
        }
    }
}

/// What `/params` takes.
#[derive(Debug, Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct ParamsLine {
    #[command(flatten)]
    answers: AnswerArgs,
}

/// The parameters after `/params OPTIONS`.
///
/// # Errors
/// A sentence: an option or a value is not accepted.
pub(crate) fn changed(answers: &AnswerArgs, options: &str) -> Result<AnswerArgs, String> {
    let answers = if options == "default" {
        AnswerArgs::default()
    } else {
        let mut line = ParamsLine { answers: answers.clone() };
        line.try_update_from(options.split_whitespace()).map_err(|error| {
            let text = error.to_string();
            // The paragraphs after the first are advice for a command line.
            text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ").trim_end().to_owned()
        })?;
        line.answers
    };
    answers.params().validate().map_err(|error| error.to_string())?;
    Ok(answers)
}

#[cfg(test)]
mod tests {
    use deepinfer_codec::Effort;

    use super::*;

    #[test]
    fn commands_begin_with_a_slash() {
        assert_eq!(Command::parse("hello /help"), Ok(None));
        assert_eq!(Command::parse(" /help"), Ok(None));
        assert_eq!(Command::parse("/help"), Ok(Some(Command::Help)));
        assert_eq!(Command::parse("/system  Be brief. "), Ok(Some(Command::System("Be brief."))));
        assert_eq!(Command::parse("/save a b.json"), Ok(Some(Command::Save("a b.json"))));
        assert_eq!(Command::parse("/reset all"), Err("/reset takes nothing, not \"all\"".to_owned()));
        assert!(Command::parse("/tmp/file is").unwrap_err().starts_with("there is no command /tmp/file; /help lists"));
    }

    #[test]
    fn params_change_one_by_one() {
        let first = changed(&AnswerArgs::default(), "--temperature 0.5 --thinking").unwrap();
        assert_eq!((first.params().temperature, first.thinking()), (0.5, Some(Effort::High)));
        let second = changed(&first, "--thinking=off --seed 7").unwrap();
        assert_eq!((second.params().temperature, second.thinking()), (0.5, None));
        assert_eq!((second.params().seed, second.params().max_tokens), (Some(7), Some(8192)));
        assert_eq!(changed(&second, "default"), Ok(AnswerArgs::default()));
    }

    #[test]
    fn params_that_are_none_are_refused_in_a_sentence() {
        let refused = |options| changed(&AnswerArgs::default(), options).unwrap_err();
        assert_eq!(refused("--top-p 2"), "top_p is 2, but must be above 0 and at most 1");
        let sentence = refused("--temperature hot");
        assert!(
            sentence.contains("'hot'") && sentence.contains("finite number") && !sentence.contains('\n'),
            "{sentence}"
        );
        assert!(refused("hot").contains("unexpected argument 'hot'"));
    }

    #[test]
    fn params_are_shown_as_they_are_given() {
        let given = "--thinking=low --max-tokens 9 --temperature 0.5 --top-k 3 --top-p 0.75 --min-p 0.25 \
                     --repetition-penalty 1.5 --frequency-penalty -1 --presence-penalty 2 --seed 7";
        let answers = changed(&AnswerArgs::default(), given).unwrap();
        assert_eq!(answers.in_words(), given);
        assert_eq!(changed(&AnswerArgs::default(), &answers.in_words()).unwrap(), answers);
    }
}
