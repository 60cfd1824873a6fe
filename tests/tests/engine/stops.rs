//! Where outputs end: stop strings, stop tokens, and the limits of both.

use deepinfer_engine::{Engine, EngineConfig, FinishReason, RequestOutput, SamplingParams, StopReason};

use crate::completions::tokenizer;
use crate::reference::{Reference, model};
use crate::requests::{found, request, text_tokens};

const PROMPT: usize = 60;
const TOKENS: usize = 40;

fn engine(async_scheduling: bool) -> Engine {
    let config = EngineConfig { max_num_seqs: 4, pages: Some(16), async_scheduling, ..EngineConfig::default() };
    Engine::builder(model()).tokenizer(Some(tokenizer())).config(config).build().expect("an engine")
}

fn params() -> SamplingParams {
    SamplingParams {
        max_tokens: Some(TOKENS),
        temperature: 1.0,
        seed: Some(3),
        ignore_eos: true,
        ..SamplingParams::default()
    }
}

/// Runs a prompt. Returns its output, and the text that came with each token.
fn run(engine: &mut Engine, params: SamplingParams) -> (RequestOutput, Vec<String>) {
    let mut pieces = Vec::new();
    let request = request("stops", &text_tokens()[..PROMPT], params);
    let output = engine.run(request, &mut |token| {
        pieces.push(token.text.clone());
        true
    });
    (output.expect("it is valid"), pieces)
}

/// A string that begins with the end of token `index` and ends with the beginning of the next one, and where it is; it
/// occurs once.
fn across(pieces: &[String]) -> (usize, String, usize) {
    let text: String = pieces.concat();
    let found = pieces.windows(2).enumerate().skip(5).find_map(|(index, pair)| {
        let last = pair[0].chars().last()?;
        let first: String = pair[1].chars().take(2).collect();
        let stop = format!("{last}{first}");
        let at = pieces[..=index].concat().len() - last.len_utf8();
        (first.chars().count() == 2 && text.matches(&stop).count() == 1).then_some((index, stop, at))
    });
    found.expect("two tokens whose characters occur once")
}

#[test]
fn a_stop_string_across_tokens_wins_over_the_limit_only_if_it_is_complete() {
    for async_scheduling in [true, false] {
        let mut engine = engine(async_scheduling);
        let (free, pieces) = run(&mut engine, params());
        let whole = pieces.concat();
        assert_eq!(free.outputs[0].text.as_deref(), Some(whole.as_str()));
        let (index, stop, at) = across(&pieces);
        let stopping =
            |max_tokens| SamplingParams { stop: vec![stop.clone()], max_tokens: Some(max_tokens), ..params() };
        // The last token that is allowed completes it.
        for max_tokens in [index + 2, TOKENS] {
            let (output, pieces) = run(&mut engine, stopping(max_tokens));
            let completion = &output.outputs[0];
            assert_eq!(completion.token_ids(), free.outputs[0].token_ids()[..index + 2]);
            assert_eq!(completion.finish_reason, FinishReason::Stop);
            assert_eq!(completion.stop_reason, Some(StopReason::Text(stop.clone())));
            assert_eq!((completion.text.as_deref(), pieces.concat().as_str()), (Some(&whole[..at]), &whole[..at]));
        }
        // One token less, and what was held back is text like any other.
        let (output, pieces) = run(&mut engine, stopping(index + 1));
        let completion = &output.outputs[0];
        assert_eq!((completion.finish_reason, &completion.stop_reason), (FinishReason::Length, &None));
        let rest = &whole[..at + stop.chars().next().map_or(0, char::len_utf8)];
        assert_eq!((completion.text.as_deref(), pieces.concat().as_str()), (Some(rest), rest));
        // Two completions stop each by itself.
        let (output, _) = run(&mut engine, SamplingParams { n: 2, ..stopping(TOKENS) });
        assert_eq!(output.outputs[0].text.as_deref(), Some(&whole[..at]));
    }
}

#[test]
fn before_min_tokens_nothing_stops() {
    let (reference, mut engine) = (Reference::new(), engine(true));
    let (free, pieces) = run(&mut engine, params());
    let (index, stop, _) = across(&pieces);
    for (min_tokens, stops) in [(index + 1, true), (index + 2, false)] {
        let (output, _) = run(&mut engine, SamplingParams { stop: vec![stop.clone()], min_tokens, ..params() });
        let completion = &output.outputs[0];
        assert_eq!(completion.stop_reason.is_some(), stops, "min_tokens is {min_tokens}");
        let tokens = if stops { index + 2 } else { TOKENS };
        assert_eq!(completion.token_ids(), free.outputs[0].token_ids()[..tokens]);
    }
    // A stop token is not drawn at all, so that the output is another one.
    let stop_token_ids = vec![free.outputs[0].token_ids()[3]];
    let mut lengths = Vec::new();
    for min_tokens in [0, 4, 9] {
        let params = SamplingParams { stop_token_ids: stop_token_ids.clone(), min_tokens, ..params() };
        let request = request("stops", &text_tokens()[..PROMPT], params);
        let output = engine.run(request.clone(), &mut |_| true).expect("it is valid");
        let completion = &output.outputs[0];
        assert_eq!(found(&output, completion), reference.run(&request, 0));
        let early = &completion.token_ids()[..min_tokens];
        assert!(!early.contains(&stop_token_ids[0]), "a stop token among the first {min_tokens}: {early:?}");
        lengths.push(completion.steps.len());
    }
    assert!(lengths[0] <= 4 && lengths[1] > 4 && lengths[2] > 9, "{lengths:?}");
}
