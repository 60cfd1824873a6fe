//! Requests of many kinds, and their outputs as what the reference gives.

use std::fmt::Display;

use deepinfer_engine::{Completion, RequestOutput};
use deepinfer_engine::{Request, SamplingParams, TokenLogprob};
use deepinfer_tests::fixture;

use crate::reference::{Expected, LogprobBits};

/// Tokens of a text of the fixtures.
pub(crate) fn text_tokens() -> Vec<u32> {
    let text = std::fs::read_to_string(fixture("expected.json")).expect("the fixture");
    let file: serde_json::Value = serde_json::from_str(&text).expect("the fixture's form");
    let prompts = file["prompts"].as_array().expect("prompts");
    let long = prompts.iter().find(|p| p["name"] == "long_640").expect("the longest prompt");
    long["prompt_ids"].as_array().expect("ids").iter().map(|id| id.as_u64().expect("an id") as u32).collect()
}

pub(crate) fn request(id: impl Display + Copy, prompt: &[u32], params: SamplingParams) -> Request {
    Request { id: id.to_string(), prompt_token_ids: prompt.to_vec(), params }
}

/// `count` valid requests: prompts from one token to more than two pages, many of
/// which need another page while they run, and some of which begin alike, and parameters of every
/// kind.
pub(crate) fn mixed(count: usize) -> Vec<Request> {
    let text = text_tokens();
    let lengths = [1, 3, 17, 40, 8, 122, 25, 127, 128, 60, 31, 252, 12];
    (0..count)
        .map(|i| {
            let length = lengths[i * 5 % lengths.len()];
            // A third of them begin like others.
            let from = if i % 3 == 0 { 0 } else { (i * 37) % (text.len() - length) };
            request(i, &text[from..from + length], params(i))
        })
        .collect()
}

fn params(i: usize) -> SamplingParams {
    let default = SamplingParams {
        max_tokens: Some(3 + i * 7 % 11),
        temperature: [0.0, 0.7, 1.0, 1.4][i % 4],
        seed: Some((i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)),
        logprobs: i.is_multiple_of(2).then_some(i % 4),
        ignore_eos: i.is_multiple_of(5),
        ..SamplingParams::default()
    };
    match i % 8 {
        0 => default,
        1 => SamplingParams { top_k: 1 + i % 40, ..default },
        2 => SamplingParams { top_p: 0.3 + 0.01 * i as f32, min_p: 0.001, ..default },
        3 => SamplingParams { repetition_penalty: 1.3, frequency_penalty: 0.5, presence_penalty: 0.25, ..default },
        4 => SamplingParams {
            logit_bias: [(5, 4.0), (300, f32::NEG_INFINITY)].into(),
            banned_token_ids: vec![13, 17],
            ..default
        },
        5 => SamplingParams { allowed_token_ids: Some((7..900).step_by(1 + i % 3).collect()), ..default },
        6 => SamplingParams { min_tokens: 3, stop_token_ids: (0..2000).collect(), ..default },
        _ => SamplingParams { golden_token_ids: vec![400, 401, 402], frequency_penalty: -0.5, ..default },
    }
}

/// An output in the reference's form.
pub(crate) fn found(output: &RequestOutput, completion: &Completion) -> Expected {
    let bits = |l: &TokenLogprob| -> LogprobBits {
        (l.logprob.to_bits(), l.top.iter().map(|(id, value)| (*id, value.to_bits())).collect())
    };
    let prompt = output.prompt_logprobs.iter().flatten().skip(1);
    Expected {
        tokens: completion.token_ids(),
        logprobs: completion.steps.iter().flat_map(|step| &step.logprob).map(bits).collect(),
        prompt_logprobs: prompt.map(|l| bits(l.as_ref().expect("every token has one"))).collect(),
        stopped: completion.stop_reason.is_some(),
    }
}
