//! The protocol between callers and the engine's thread, under a hundred thousand schedules.
//!
//! The unit tests of this crate are built with models of what threads share ([`sync`]), so that shuttle decides at every use
//! which thread goes on. It also finds deadlocks: a schedule that ends with a thread waiting fails. Schedules are drawn anew
//! in every run; a failure prints its schedule, with which `shuttle::replay` repeats it. Shuttle has no weak memory; the only
//! atomic of the protocol hands out numbers and orders nothing.

mod scripted;
pub(super) mod sync;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner, thread};

use crate::output::FinishReason;
use crate::thread::serve::{COMMANDS_PER_TURN, Command, Server};
use crate::thread::{EngineHandle, EngineThread, RequestStream, StreamEvent};

use self::scripted::{Scripted, Watched, empty_request, request};

/// Random schedules of each script; there are eight scripts of several threads.
const SCHEDULES: usize = 12_500;
/// Schedules of each script that change threads at few places, which random ones seldom do.
const FEW_CHANGES: usize = 2_500;

/// Runs a script under many schedules.
fn explore(script: fn()) {
    Runner::new(RandomScheduler::new(SCHEDULES), Config::new()).run(script);
    Runner::new(PctScheduler::new(3, FEW_CHANGES), Config::new()).run(script);
}

fn engine() -> (EngineThread, Watched) {
    let watch = Watched::default();
    let watched = watch.clone();
    let engine = EngineThread::serve(move || Ok::<_, ()>(Scripted::new(&watched))).expect("an engine");
    (engine, watch)
}

/// Drops the engine's thread and checks that nothing is left of it.
fn end(engine: EngineThread, watch: &Watched) {
    drop(engine);
    let watch = watch.lock().expect("no thread panics with it");
    assert_eq!(watch.dropped, 1, "the thread was waited for, and so its engine is gone");
    assert!(watch.ends.values().all(Option::is_some), "requests are left: {:?}", watch.ends);
}

/// Reads a stream to its end. Returns the number of its tokens and why it finished; `None` if nobody looked at the request.
fn read(stream: RequestStream) -> Option<(usize, FinishReason)> {
    read_on(stream, 0)
}

/// As [`read`], after the first `tokens` tokens.
fn read_on(mut stream: RequestStream, mut tokens: usize) -> Option<(usize, FinishReason)> {
    while let Some(event) = stream.next_blocking() {
        match event {
            StreamEvent::Token(token) => {
                tokens += 1;
                assert_eq!(token.step.token_id as usize, tokens, "tokens come in order, and each once");
            }
            StreamEvent::Finished(output, times) => {
                assert!(stream.next_blocking().is_none(), "something comes after the end");
                assert_eq!(output.outputs[0].steps.len(), tokens, "the output has the tokens of the stream");
                assert_eq!(times.first_token.is_some(), tokens > 0);
                return Some((tokens, output.outputs[0].finish_reason));
            }
        }
    }
    assert_eq!(tokens, 0, "a stream with tokens ends without its last event");
    None
}

/// What is seen of the engine's numbers.
fn running(handle: &EngineHandle) -> usize {
    handle.stats().blocking_recv().expect("the engine lives").running
}

#[test]
fn every_request_ends_once() {
    explore(|| {
        let (engine, watch) = engine();
        let clients = [1, 2].map(|tokens| {
            let handle = engine.handle();
            thread::spawn(move || {
                let streams = [tokens, 3].map(|tokens| handle.submit(request(Some(tokens))));
                let ends = streams.map(read);
                assert_eq!(ends, [Some((tokens, FinishReason::Length)), Some((3, FinishReason::Length))]);
                assert_eq!(read(handle.submit(empty_request())), Some((0, FinishReason::Error)));
            })
        });
        for client in clients {
            client.join().expect("a client");
        }
        assert_eq!(running(&engine.handle()), 0);
        end(engine, &watch);
    });
}

#[test]
fn an_abort_and_an_end_that_meet_make_one_end() {
    static ENDS: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];
    explore(|| {
        let (engine, watch) = engine();
        let handle = engine.handle();
        let other = thread::spawn(move || read(handle.submit(request(Some(2)))));
        let mut stream = engine.handle().submit(request(Some(2)));
        assert!(matches!(stream.next_blocking(), Some(StreamEvent::Token(_))));
        stream.abort();
        stream.abort();
        let (tokens, reason) = read_on(stream, 1).expect("the engine lives");
        match reason {
            FinishReason::Length => assert_eq!(tokens, 2),
            FinishReason::Abort => assert_eq!(tokens, 1),
            FinishReason::Stop | FinishReason::Error => panic!("it ended by {reason:?}"),
        }
        ENDS[usize::from(reason == FinishReason::Abort)].fetch_add(1, Ordering::Relaxed);
        assert_eq!(other.join().expect("a client"), Some((2, FinishReason::Length)), "nobody aborted this one");
        end(engine, &watch);
    });
    let ends = ENDS.each_ref().map(|count| count.load(Ordering::Relaxed));
    assert!(ends.iter().all(|&count| count > 100), "only one of them ever wins: {ends:?}");
}

#[test]
fn a_stream_that_is_dropped_frees_its_request() {
    explore(|| {
        let (engine, watch) = engine();
        let handle = engine.handle();
        let other = thread::spawn(move || {
            let mut stream = handle.submit(request(None));
            let first = stream.next_blocking();
            assert!(matches!(first, Some(StreamEvent::Token(_))), "{first:?}");
            // The stream goes while the engine draws its next token.
            drop(stream);
        });
        let handle = engine.handle();
        drop(handle.submit(request(None)));
        assert_eq!(read(handle.submit(request(Some(2)))), Some((2, FinishReason::Length)));
        other.join().expect("a client");
        assert_eq!(running(&handle), 0, "requests of dropped streams still run");
        assert_eq!(watch.lock().expect("no thread panics with it").ends.len(), 3);
        end(engine, &watch);
    });
}

#[test]
fn a_thread_that_is_dropped_ends_all_streams() {
    static UNSEEN: AtomicUsize = AtomicUsize::new(0);
    explore(|| {
        let (engine, watch) = engine();
        let clients = [None, Some(2)].map(|tokens| {
            let handle = engine.handle();
            thread::spawn(move || {
                let streams = [tokens, tokens].map(|tokens| handle.submit(request(tokens)));
                for stream in streams {
                    match read(stream) {
                        Some((_, FinishReason::Abort)) => {}
                        Some((count, FinishReason::Length)) => assert_eq!(Some(count), tokens),
                        Some(other) => panic!("it ended by {other:?}"),
                        None => _ = UNSEEN.fetch_add(1, Ordering::Relaxed),
                    }
                }
                handle
            })
        });
        end(engine, &watch);
        for client in clients {
            let handle = client.join().expect("a client");
            assert_eq!(read(handle.submit(request(None))), None);
            assert!(handle.stats().blocking_recv().is_err());
            assert!(handle.pause().blocking_recv().is_err());
        }
    });
    assert!(UNSEEN.load(Ordering::Relaxed) > 100, "the engine never went before it looked at a request");
}

#[test]
fn an_engine_that_is_paused_rests_and_still_answers() {
    explore(|| {
        let (engine, watch) = engine();
        let handle = engine.handle();
        let client = {
            let handle = handle.clone();
            thread::spawn(move || read(handle.submit(request(Some(3)))))
        };
        let stays = handle.submit(request(None));
        handle.pause().blocking_recv().expect("the engine lives");
        watch.lock().expect("no thread panics with it").must_rest = true;
        let stats = handle.stats().blocking_recv().expect("the engine lives");
        assert_eq!(stats.in_flight, 0, "{stats:?}");
        let late = handle.submit(request(Some(1)));
        // An abort needs no step.
        stays.abort();
        assert_eq!(read(stays).expect("the engine lives").1, FinishReason::Abort);
        assert_eq!(read(handle.submit(empty_request())), Some((0, FinishReason::Error)));
        watch.lock().expect("no thread panics with it").must_rest = false;
        handle.resume();
        assert_eq!(read(late), Some((1, FinishReason::Length)));
        assert_eq!(client.join().expect("a client"), Some((3, FinishReason::Length)));
        end(engine, &watch);
    });
}

#[test]
fn a_paused_engine_can_be_dropped_and_resumed_by_anybody() {
    explore(|| {
        let (engine, watch) = engine();
        let handle = engine.handle();
        let client = {
            let handle = handle.clone();
            thread::spawn(move || {
                let stream = handle.submit(request(Some(2)));
                // Two may pause at once.
                handle.pause().blocking_recv().expect("the engine lives");
                handle.resume();
                read(stream)
            })
        };
        handle.pause().blocking_recv().expect("the engine lives");
        handle.resume();
        assert_eq!(client.join().expect("a client"), Some((2, FinishReason::Length)));
        let stream = handle.submit(request(None));
        let answer = handle.pause();
        end(engine, &watch);
        assert_eq!(answer.blocking_recv(), Ok(()));
        assert_eq!(read(stream).expect("the engine looked at it").1, FinishReason::Abort);
    });
}

#[test]
fn tickets_of_all_handles_differ() {
    explore(|| {
        let (engine, watch) = engine();
        let clients = [(); 3].map(|()| {
            let handle = engine.handle();
            thread::spawn(move || handle.submit(request(None)))
        });
        let streams = clients.map(|client| client.join().expect("a client"));
        let mut tickets = streams.each_ref().map(|stream| stream.ticket);
        tickets.sort_unstable();
        assert_eq!(tickets, [0, 1, 2]);
        let [first, second, third] = streams;
        drop(second);
        assert_eq!(running(&engine.handle()), 2);
        drop((first, third));
        assert_eq!(running(&engine.handle()), 0);
        end(engine, &watch);
    });
}

#[test]
fn what_build_says_reaches_the_caller() {
    explore(|| {
        let ended = std::sync::Arc::new(Mutex::new(false));
        let inside = ended.clone();
        let engine = EngineThread::serve(move || {
            *inside.lock().expect("no thread panics with it") = true;
            Err::<Scripted, _>("no memory")
        });
        assert_eq!(engine.err(), Some("no memory"));
        assert!(*ended.lock().expect("no thread panics with it"));
    });
}

#[test]
fn a_flood_of_commands_does_not_hold_up_the_steps() {
    shuttle::check_random(flood, 1);
}

fn flood() {
    let watch = Watched::default();
    let (commands, received) = sync::channel();
    let handle = EngineHandle { commands, next: sync::Arc::new(sync::AtomicU64::new(0)) };
    let stream = handle.submit(request(None));
    let replies: Vec<_> = (0..3 * COMMANDS_PER_TURN).map(|_| handle.stats()).collect();
    assert!(handle.commands.send(Command::Stop).is_ok());
    Server::new(Scripted::new(&watch)).run(&received);
    drop(received);
    let steps: Vec<u64> = replies.into_iter().map(|r| r.blocking_recv().expect("an answer").steps).collect();
    assert_eq!((steps[0], steps[3 * COMMANDS_PER_TURN - 1]), (0, 3), "a step after each {COMMANDS_PER_TURN}");
    assert!(read(stream).is_some_and(|(tokens, reason)| tokens > 0 && reason == FinishReason::Abort));
}
