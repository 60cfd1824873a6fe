//! Answers, token by token, and what becomes of them in the next prompt.

use std::sync::{Arc, LazyLock};

use deepinfer_codec::{Answer, Codec, Conversation, Delta, Effort, Message, OutputParser};
use deepinfer_model::tokenizer::Tokenizer;
use proptest::prelude::*;

const THINK_END: u32 = 4072;
const USER: u32 = 4069;
const ASSISTANT: u32 = 4070;
const EOS: u32 = 1;

static TOKENIZER: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| {
    let json = include_bytes!("../../../models/deepseek-v41-mini/tokenizer.json");
    Arc::new(Tokenizer::from_bytes(json, 0, 4096).unwrap())
});
static CODEC: LazyLock<Codec> = LazyLock::new(|| Codec::new(Arc::clone(&TOKENIZER)).unwrap());

fn ids(text: &str) -> Vec<u32> {
    TOKENIZER.encode_text(text).unwrap()
}

/// Tokens of one byte each, so that every place in a text is between two tokens.
fn byte_ids(text: &str) -> Vec<u32> {
    let token_of = |byte: u8| (0..4096).find(|&id| TOKENIZER.token_bytes(id) == [byte]).unwrap();
    text.bytes().map(token_of).collect()
}

/// Reads an answer; returns what each token gave, what the end gave, and the answer.
fn read(mut parser: OutputParser, tokens: &[u32]) -> (Vec<Vec<Delta>>, Vec<Delta>, Answer) {
    let pushed = tokens.iter().map(|&token| parser.push(token).unwrap()).collect();
    let (rest, answer) = parser.finish().unwrap();
    (pushed, rest, answer)
}

fn content(text: &str) -> Delta {
    Delta::Content(text.to_owned())
}

fn reasoning(text: &str) -> Delta {
    Delta::Reasoning(text.to_owned())
}

#[test]
fn a_character_over_several_tokens_is_given_whole() {
    let (pushed, rest, answer) = read(CODEC.parser(None, &[]), &byte_ids("é🙂!"));
    let nothing = Vec::new;
    let expected =
        [nothing(), vec![content("é")], nothing(), nothing(), nothing(), vec![content("🙂")], vec![content("!")]];
    assert_eq!((pushed, rest, answer.content.as_str()), (expected.to_vec(), vec![], "é🙂!"));
}

#[test]
fn a_character_that_never_gets_complete_is_left_out_here_and_in_the_next_prompt() {
    let tokens = byte_ids("a🙂");
    let (_, rest, answer) = read(CODEC.parser(None, &[]), &tokens[..tokens.len() - 1]);
    assert_eq!((rest, answer.content.as_str()), (vec![], "a"));
    assert_eq!(prompt_after(answer), prompt_after(Answer::from_text("a")));
}

#[test]
fn thinking_ends_with_its_marker_and_not_with_text_that_spells_it() {
    let spelt = ids("</think>");
    assert!(spelt.len() > 1);
    let tokens = [ids("\nHm"), spelt, ids("\n\n"), vec![THINK_END], ids("\n\nYes </think>.")].concat();
    let mut parser = CODEC.parser(Some(Effort::High), &[]);
    let mut deltas: Vec<Delta> = tokens.iter().flat_map(|&token| parser.push(token).unwrap()).collect();
    assert_eq!(parser.thinking_tokens(), ids("\nHm").len() + ids("</think>").len() + ids("\n\n").len() + 1);
    let (rest, answer) = parser.finish().unwrap();
    deltas.extend(rest);
    assert_eq!((answer.reasoning.as_str(), answer.content.as_str()), ("Hm</think>", "Yes </think>."));
    let ends = deltas.iter().position(|delta| matches!(delta, Delta::Content(_))).unwrap();
    assert!(deltas[..ends].iter().all(|delta| matches!(delta, Delta::Reasoning(_))));
    assert!(deltas[ends..].iter().all(|delta| matches!(delta, Delta::Content(_))));
    assert!(deltas.iter().all(|delta| !delta.text().contains("</think>") || delta.text() != "</think>"));
}

#[test]
fn thinking_that_does_not_end_gives_no_answer() {
    let (_, _, answer) = read(CODEC.parser(Some(Effort::Low), &[]), &ids("Let me see"));
    assert_eq!((answer.reasoning.as_str(), answer.content.as_str()), ("Let me see", ""));
}

#[test]
fn line_breaks_before_the_marker_are_held_back_until_it_is_decided() {
    let (pushed, rest, _) = read(CODEC.parser(Some(Effort::High), &[]), &byte_ids("a\n\nb\n"));
    let nothing = Vec::new;
    let expected = [vec![reasoning("a")], nothing(), nothing(), vec![reasoning("\n\n"), reasoning("b")], nothing()];
    assert_eq!(pushed.iter().flatten().map(Delta::text).collect::<String>(), "a\n\nb");
    assert_eq!(pushed.iter().map(Vec::is_empty).collect::<Vec<_>>(), expected.map(|d: Vec<Delta>| d.is_empty()));
    assert_eq!(rest.iter().map(Delta::text).collect::<String>(), "\n");
}

#[test]
fn nothing_of_a_stop_text_is_given_out_and_nothing_after_it() {
    let stop = ["END".to_owned(), "\n\n".to_owned()];
    let mut parser = CODEC.parser(None, &stop);
    let mut given = String::new();
    for token in byte_ids("a E\nENEND of") {
        for delta in parser.push(token).unwrap() {
            given.push_str(delta.text());
        }
        assert!("a E\nEN".starts_with(&given), "{given:?}");
    }
    assert!(parser.has_stopped());
    let (rest, answer) = parser.finish().unwrap();
    assert_eq!((given.as_str(), rest, answer.content.as_str()), ("a E\nEN", vec![], "a E\nEN"));
    // The tokens said more than the answer, so the next prompt has the answer.
    assert_eq!(prompt_after(answer), prompt_after(Answer::from_text("a E\nEN")));

    let mut parser = CODEC.parser(Some(Effort::High), &stop);
    for token in ids("END\n\n of thinking") {
        parser.push(token).unwrap();
    }
    assert!(!parser.has_stopped(), "thinking does not end so");
}

#[test]
fn markers_that_begin_a_message_end_the_answer() {
    let stops = CODEC.stop_token_ids();
    assert!(stops.contains(&USER) && stops.contains(&ASSISTANT) && !stops.contains(&THINK_END), "{stops:?}");
}

fn conversation(messages: Vec<Message>) -> Conversation {
    Conversation { messages, ..Conversation::default() }
}

/// The prompt for a second message, after an answer to the first.
fn prompt_after(answer: Answer) -> Vec<u32> {
    let messages = vec![Message::User("Hi".into()), Message::Assistant(answer), Message::User("And?".into())];
    CODEC.encode(&conversation(messages)).unwrap()
}

#[test]
fn an_answer_goes_back_as_the_tokens_that_it_came_in() {
    let first = CODEC.encode(&conversation(vec![Message::User("Hi".into())])).unwrap();
    // A model need not choose the tokens that its text would be encoded to, and begins with a line break at times.
    let tokens = byte_ids("\nthe <｜ref｜> cat");
    assert_ne!(tokens, ids("\nthe <｜ref｜> cat"));
    let (_, _, answer) = read(CODEC.parser(None, &[]), &tokens);
    let second = prompt_after(answer);
    let begin = [first, tokens, vec![EOS]].concat();
    assert_eq!(second[..begin.len()], begin);
    assert_eq!(second[begin.len()..], [vec![USER], ids("And?"), vec![ASSISTANT, THINK_END]].concat());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// Whatever tokens come, in whatever turns: the text is that of the tokens, it comes whole, and the prompt of every turn
    /// begins with the prompt and the answer of the turn before.
    #[test]
    fn prompts_grow_by_what_was_said(
        turns in prop::collection::vec(("[ -~é🙂\n]{0,12}", prop::collection::vec(3..4068u32, 0..24)), 1..4),
    ) {
        let mut talk = conversation(Vec::new());
        let mut before = Vec::new();
        for (message, tokens) in turns {
            talk.messages.push(Message::User(message));
            let prompt = CODEC.encode(&talk).unwrap();
            prop_assert_eq!(&prompt[..before.len()], &before);
            let (pushed, rest, answer) = read(CODEC.parser(None, &[]), &tokens);
            let given: String = pushed.iter().flatten().chain(&rest).map(Delta::text).collect();
            prop_assert_eq!(&given, &answer.content);
            let text = TOKENIZER.decode(&tokens);
            let text = text.trim_start_matches('\n');
            // An end that is no complete character is left out.
            let is_whole = answer.content == text;
            prop_assert!(text.starts_with(&answer.content), "{text:?} {:?}", answer.content);
            prop_assert!(is_whole || text.ends_with(char::REPLACEMENT_CHARACTER));
            let said = if is_whole { tokens } else { ids(&answer.content) };
            before = [prompt, said, vec![EOS]].concat();
            talk.messages.push(Message::Assistant(answer));
        }
    }

    /// The text does not depend on where the thinking and the tokens of it are cut.
    #[test]
    fn thinking_and_answer_survive_encoding_and_reading(
        thought in "[ -~é🙂\n]{0,24}", said in "[ -~é🙂\n]{0,24}", in_bytes in any::<bool>(),
    ) {
        let encode = |text: &str| if in_bytes { byte_ids(text) } else { ids(text) };
        let tokens = [encode(&thought), vec![THINK_END], encode(&said)].concat();
        let (pushed, rest, answer) = read(CODEC.parser(Some(Effort::High), &[]), &tokens);
        prop_assert_eq!(&answer.reasoning, thought.trim_matches('\n'));
        prop_assert_eq!(&answer.content, said.trim_start_matches('\n'));
        let of = |wanted: fn(&Delta) -> bool| -> String {
            pushed.iter().flatten().chain(&rest).filter(|delta| wanted(delta)).map(Delta::text).collect()
        };
        prop_assert_eq!(&of(|delta| matches!(delta, Delta::Reasoning(_))), &answer.reasoning);
        prop_assert_eq!(&of(|delta| matches!(delta, Delta::Content(_))), &answer.content);
    }
}
