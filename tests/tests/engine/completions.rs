//! Several completions of a prompt, log-probabilities of prompts, forced tokens and stop strings, against the reference.

use std::sync::Arc;

use deepinfer_engine::{Completion, Engine, EngineConfig, Input, StopReason};
use deepinfer_engine::{EngineError, FinishReason, Request, RequestError, SamplingParams};
use deepinfer_model::checkpoint::Checkpoint;
use deepinfer_model::tokenizer::Tokenizer;
use deepinfer_tests::miniature;

use crate::reference::{Reference, model};
use crate::requests::{found, request, text_tokens};

pub(crate) fn tokenizer() -> Arc<Tokenizer> {
    Checkpoint::open(&miniature()).expect("the miniature").tokenizer().expect("its file").expect("it has one")
}

fn engine(max_num_batched_tokens: usize) -> Engine {
    let config = EngineConfig { max_num_seqs: 8, max_num_batched_tokens, pages: Some(64), ..EngineConfig::default() };
    Engine::builder(model()).tokenizer(Some(tokenizer())).config(config).build().expect("an engine")
}

fn drawn(max_tokens: usize, seed: u64) -> SamplingParams {
    let default = SamplingParams::default();
    SamplingParams { max_tokens: Some(max_tokens), temperature: 1.0, seed: Some(seed), ignore_eos: true, ..default }
}

#[test]
fn completions_share_a_prompt_and_have_noise_of_their_own() {
    let (reference, text) = (Reference::new(), text_tokens());
    let mut engine = engine(100);
    let requests: Vec<Request> = [(1, 2), (2, 3), (128, 3), (129, 4), (200, 2)]
        .map(|(length, n)| {
            let noisy = SamplingParams { temperature: 2.5, ..drawn(6, length as u64) };
            let params =
                SamplingParams { n, logprobs: Some(1), frequency_penalty: 0.3, presence_penalty: 0.2, ..noisy };
            request(length, &text[..length], params)
        })
        .to_vec();
    let mut different = 0;
    for output in engine.run_all(requests.clone()) {
        let request = requests.iter().find(|request| request.id == output.id).expect("it is one of them");
        assert_eq!(output.outputs.len(), request.params.n);
        for (index, completion) in output.outputs.iter().enumerate() {
            assert_eq!(completion.index, index);
            let expected = reference.run(request, index);
            assert_eq!(found(&output, completion), expected, "prompt of {}, completion {index}", request.id);
            let sum: f64 = expected.logprobs.iter().map(|(bits, _)| f64::from(f32::from_bits(*bits))).sum();
            assert_eq!(completion.cumulative_logprob(), Some(sum));
        }
        let [first, second] = [&output.outputs[0], &output.outputs[1]].map(Completion::token_ids);
        different += usize::from(first != second);
    }
    // Where the model is sure, noise changes nothing.
    assert!(different >= 3, "only {different} prompts have different completions");
}

#[test]
fn prompts_have_log_probabilities_whatever_the_chunks_and_the_cache() {
    let (reference, text) = (Reference::new(), text_tokens());
    for budget in [30, 128, 512] {
        let mut engine = engine(budget);
        for length in [1, 2, 130, 270] {
            let params = SamplingParams { prompt_logprobs: Some(2), logprobs: Some(0), ..drawn(3, 5) };
            let request = request(length, &text[..length], params);
            let expected = reference.run(&request, 0);
            assert_eq!(expected.prompt_logprobs.len(), length - 1);
            // The prompt before left pages, which must not save what is asked for.
            for round in 0..2 {
                let output = engine.run(request.clone(), &mut |_| true).expect("it is valid");
                assert_eq!(output.prompt_logprobs.as_ref().map(Vec::len), Some(length));
                assert_eq!(found(&output, &output.outputs[0]), expected, "{length} tokens, {budget} rows, {round}");
            }
        }
    }
}

#[test]
fn forced_tokens_come_whatever_is_drawn_and_runs_beside_others() {
    let (reference, text) = (Reference::new(), text_tokens());
    let mut engine = engine(512);
    let golden: Vec<u32> = text[40..48].to_vec();
    let forced = SamplingParams { golden_token_ids: golden.clone(), logprobs: Some(3), ..drawn(12, 9) };
    let requests = [
        request("forced", &text[..40], forced),
        request("free", &text[..40], SamplingParams { logprobs: Some(3), ..drawn(12, 9) }),
    ];
    let outputs = engine.run_all(requests.to_vec());
    for (output, request) in outputs.iter().zip(&requests) {
        assert_eq!(found(output, &output.outputs[0]), reference.run(request, 0), "{}", request.id);
    }
    assert_eq!(outputs[0].outputs[0].token_ids()[..8], golden);
}

#[test]
fn stop_strings_end_the_text_and_are_never_streamed() {
    let (tokenizer, text) = (tokenizer(), text_tokens());
    let mut engine = engine(512);
    let free = request("free", &text[..60], drawn(40, 3));
    let whole = engine.run(free, &mut |_| true).expect("it is valid").outputs.remove(0);
    let whole_text = whole.text.clone().expect("there is a tokenizer");
    assert_eq!(whole_text, tokenizer.decode(&whole.token_ids()));
    // A stop string from the middle of that text; characters of it may come earlier.
    let middle: Vec<(usize, char)> = whole_text.char_indices().skip(30).take(6).collect();
    let (from, (last, c)) = (middle[0].0, middle[5]);
    let stop = whole_text[from..last + c.len_utf8()].to_owned();
    let first = whole_text.find(&stop).expect("it is there");
    for include in [false, true] {
        let params = SamplingParams {
            stop: vec!["never there".to_owned(), stop.clone()],
            include_stop_str_in_output: include,
            ..drawn(40, 3)
        };
        let mut streamed = String::new();
        let mut ends = Vec::new();
        let output = engine
            .run(request("stops", &text[..60], params), &mut |token| {
                streamed.push_str(&token.text);
                ends.extend(token.finish_reason);
                true
            })
            .expect("it is valid");
        let completion = &output.outputs[0];
        let wanted = &whole_text[..if include { first + stop.len() } else { first }];
        assert_eq!((completion.text.as_deref(), streamed.as_str()), (Some(wanted), wanted));
        assert_eq!(completion.stop_reason, Some(StopReason::Text(stop.clone())));
        assert_eq!((completion.finish_reason, ends), (FinishReason::Stop, vec![FinishReason::Stop]));
        assert!(whole.token_ids().starts_with(&completion.token_ids()));
    }
}

#[test]
fn refusals_come_before_any_work_and_a_caller_can_end_a_request() {
    let text = text_tokens();
    let config = EngineConfig { max_num_seqs: 2, pages: Some(2), max_model_len: Some(300), ..EngineConfig::default() };
    let mut engine = Engine::builder(model()).config(config).build().expect("an engine");
    let refused = |engine: &mut Engine, length: usize, params| match engine.submit(request(0, &text[..length], params))
    {
        Err(EngineError::Request(error)) => error,
        other => panic!("{other:?}"),
    };
    let error = refused(&mut engine, 300, drawn(1, 0));
    assert_eq!(error, RequestError::PromptTooLong { tokens: 300, context: 300 });
    let error = refused(&mut engine, 250, drawn(20, 0));
    assert_eq!(error, RequestError::DoesNotFit { tokens: 250, max_tokens: 20, needed: 3, available: 2, longest: 257 });
    let error = refused(&mut engine, 5, SamplingParams { stop: vec!["x".to_owned()], ..drawn(1, 0) });
    assert_eq!(error, RequestError::NoTextToStop);
    assert!(!engine.has_work());

    let mut tokens = 0;
    let output = engine
        .run(request("ended", &text[..20], drawn(100, 1)), &mut |_| {
            tokens += 1;
            tokens < 5
        })
        .expect("it is valid");
    let completion = &output.outputs[0];
    assert_eq!((completion.finish_reason, completion.steps.len()), (FinishReason::Abort, 5));
    // An unseeded request reports its seed, which repeats it.
    let unseeded = SamplingParams { seed: None, ..drawn(10, 0) };
    let first = engine.run(request("a", &text[..20], unseeded.clone()), &mut |_| true).expect("it is valid");
    let again = SamplingParams { seed: first.seed, ..unseeded };
    let second = engine.run(request("b", &text[..20], again), &mut |_| true).expect("it is valid");
    assert_eq!(first.outputs[0].token_ids(), second.outputs[0].token_ids());
}

#[test]
fn outputs_come_in_the_order_of_the_inputs_with_parameters_for_all_or_for_each() {
    let mut engine = engine(512);
    let text = Input::Text("Once upon a time".to_owned());
    let inputs =
        [text.clone(), Input::TokenIds(vec![5, 9999]), Input::Text(String::new()), Input::TokenIds(vec![7; 9]), text];
    let mismatch = engine.generate(&inputs, &[drawn(3, 1), drawn(4, 1)]).expect_err("two for five");
    assert_eq!(mismatch, RequestError::ParamsMismatch { inputs: 5, params: 2 });
    assert!(!engine.has_work());

    let each: Vec<SamplingParams> = (0..5).map(|i| drawn(9 - i, 1)).collect();
    for (params, lengths) in [(&each[..], [9, 0, 0, 6, 5]), (&each[..1], [9, 0, 0, 9, 9])] {
        let outputs = engine.generate(&inputs, params).expect("the numbers fit");
        assert_eq!(outputs.iter().map(|output| output.id.as_str()).collect::<Vec<_>>(), ["0", "1", "2", "3", "4"]);
        let found: Vec<usize> = outputs.iter().map(|output| output.outputs[0].steps.len()).collect();
        assert_eq!(found, lengths);
        let error = |place: usize| outputs[place].outputs[0].error.as_ref().map(EngineError::code);
        assert_eq!([0, 1, 2, 3, 4].map(error), [None, Some("token_out_of_range"), Some("empty_prompt"), None, None]);
        let [first, last] = [0, 4].map(|place: usize| outputs[place].outputs[0].token_ids());
        assert!(first.starts_with(&last));
    }
}
