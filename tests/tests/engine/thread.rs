//! The engine on a thread of its own.

use deepinfer_engine::{Engine, EngineConfig, EngineThread, RequestOutput, RequestStream, Stats, StreamEvent};
use deepinfer_engine::{EngineError, FinishReason, RequestError, SamplingParams};

use crate::reference::{Reference, model};
use crate::requests::{found, mixed, request, text_tokens};

fn thread(config: EngineConfig) -> EngineThread {
    EngineThread::spawn(move || Engine::builder(model()).config(config).build()).expect("an engine")
}

fn config() -> EngineConfig {
    EngineConfig { max_num_seqs: 8, pages: Some(32), prefix_caching: false, ..EngineConfig::default() }
}

/// Tokens as they came, and the output.
fn to_end(mut stream: RequestStream) -> (Vec<u32>, RequestOutput) {
    let mut tokens = Vec::new();
    loop {
        match stream.next_blocking().expect("the engine lives") {
            StreamEvent::Token(token) => tokens.push(token.step.token_id),
            StreamEvent::Finished(output, times) => {
                // The caller may have taken tokens before.
                let has_tokens = output.outputs.iter().any(|completion| !completion.token_ids().is_empty());
                assert_eq!(times.first_token.is_some(), has_tokens);
                assert!(times.first_token.is_none_or(|first| first <= times.finished));
                assert!(stream.next_blocking().is_none(), "nothing comes after the end");
                return (tokens, *output);
            }
        }
    }
}

#[test]
fn streams_of_several_threads_give_what_their_requests_give_alone() {
    let requests = mixed(8);
    let expected: Vec<_> = {
        let reference = Reference::new();
        requests.iter().map(|request| reference.run(request, 0)).collect()
    };
    let engine = thread(config());
    std::thread::scope(|scope| {
        for (request, expected) in requests.iter().zip(&expected) {
            let handle = engine.handle();
            scope.spawn(move || {
                let (tokens, output) = to_end(handle.submit(request.clone()));
                assert_eq!(&found(&output, &output.outputs[0]), expected);
                assert_eq!(tokens, expected.tokens);
            });
        }
    });
    let (tokens, refused) = to_end(engine.handle().submit(request("refused", &[], SamplingParams::default())));
    assert!(tokens.is_empty());
    let completion = &refused.outputs[0];
    assert!(matches!(completion.error, Some(EngineError::Request(RequestError::EmptyPrompt))), "{completion:?}");
    assert_eq!(completion.finish_reason, FinishReason::Error);
}

#[test]
fn a_dropped_stream_gives_its_pages_back_and_an_aborted_one_its_tokens() {
    let engine = thread(config());
    let handle = engine.handle();
    let text = text_tokens();
    let params = SamplingParams { max_tokens: Some(2000), ignore_eos: true, ..SamplingParams::default() };
    let mut stays = handle.submit(request("stays", &text[..10], params.clone()));
    let mut dropped = handle.submit(request("dropped", &text[..300], params));
    assert!(matches!(dropped.next_blocking(), Some(StreamEvent::Token(_))));
    let stats = handle.stats().blocking_recv().expect("the engine lives");
    let used = |stats: &Stats| stats.usable_pages - stats.free_pages;
    assert_eq!(stats.running, 2, "{stats:?}");
    assert!(used(&stats) > 3, "{stats:?}");
    drop(dropped);
    let ended = handle.stats().blocking_recv().expect("the engine lives");
    assert_eq!(ended.running, 1, "{ended:?}");
    // Two steps later, nothing of it is left.
    let mut stats = ended;
    while stats.steps < ended.steps + 2 {
        assert!(matches!(stays.next_blocking(), Some(StreamEvent::Token(_))));
        stats = handle.stats().blocking_recv().expect("the engine lives");
    }
    // The thread runs on meanwhile: at most one token per step, and one ahead.
    let longest = 10 + stats.steps as usize + 1;
    assert!(stats.retiring_pages == 0 && used(&stats) <= longest.div_ceil(128), "{stats:?}");
    stays.abort();
    let (tokens, output) = to_end(stays);
    let completion = &output.outputs[0];
    assert_eq!(completion.finish_reason, FinishReason::Abort);
    assert!(completion.token_ids().ends_with(&tokens));
    // Without an engine, streams end.
    drop(engine);
    assert!(handle.submit(request("late", &text[..10], SamplingParams::default())).next_blocking().is_none());
}

#[test]
fn what_is_wrong_with_the_engine_is_said_by_spawn() {
    let config = EngineConfig { max_num_seqs: 0, ..config() };
    let error = EngineThread::spawn(move || Engine::builder(model()).config(config).build()).err().expect("no engine");
    assert!(error.to_string().starts_with("max_num_seqs is 0, but must be at least 1"), "{error}");
}

#[test]
fn a_paused_engine_has_nothing_in_flight_and_goes_on_with_the_same_tokens() {
    let text = text_tokens();
    let params = SamplingParams {
        max_tokens: Some(40),
        temperature: 0.9,
        seed: Some(4),
        ignore_eos: true,
        ..SamplingParams::default()
    };
    let (paused, late) = (request("paused", &text[..30], params.clone()), request("late", &text[50..70], params));
    let expected = {
        let reference = Reference::new();
        [&paused, &late].map(|request| reference.run(request, 0))
    };
    let engine = thread(config());
    let handle = engine.handle();
    let mut stream = handle.submit(paused);
    assert!(matches!(stream.next_blocking(), Some(StreamEvent::Token(_))));
    handle.pause().blocking_recv().expect("the engine lives");
    let late = handle.submit(late);
    let stats = handle.stats().blocking_recv().expect("the engine lives");
    assert_eq!((stats.in_flight, stats.waiting), (0, 1), "{stats:?}");
    assert_eq!(handle.stats().blocking_recv().expect("the engine lives").steps, stats.steps);
    handle.resume();
    for (stream, expected) in [(stream, &expected[0]), (late, &expected[1])] {
        let (_, output) = to_end(stream);
        assert_eq!(&found(&output, &output.outputs[0]), expected);
    }
    // Whoever is at work when the engine goes gets what there is.
    let endless = SamplingParams { max_tokens: Some(2000), ignore_eos: true, ..SamplingParams::default() };
    let mut stream = handle.submit(request("endless", &text[..10], endless));
    assert!(matches!(stream.next_blocking(), Some(StreamEvent::Token(_))));
    drop(engine);
    let (_, output) = to_end(stream);
    assert_eq!(output.outputs[0].finish_reason, FinishReason::Abort);
}
