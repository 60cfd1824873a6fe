//! A fault ends the requests that it concerns, and the others give what they give alone.

use std::cell::RefCell;
use std::rc::Rc;

use deepinfer_engine::{Engine, EngineConfig};
use deepinfer_engine::{EngineError, FinishReason, Request, SamplingParams};
use deepinfer_ops::{Device, OpCall, OpError};
use deepinfer_runtime::OpenDevice;

use crate::reference::{Expected, Reference};
use crate::requests::{found, request, text_tokens};
use crate::tapped::{Tap, model};

/// What goes wrong. Numbers count from when the fault was set.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Nothing,
    /// The logits of the first row of this draw become NaN.
    Nan(usize),
    /// This draw is refused.
    Draw(usize),
    /// The device is lost at this draw.
    Lost(usize),
    /// This op is refused, in the middle of a step.
    Op(usize),
    /// This copy on the device is refused: state that is saved or restored, or a page of another completion.
    Copy(usize),
    /// This copy to the host never arrives.
    Download(usize),
}

/// Breaks a device as it is told, and counts.
struct Breaker {
    fault: Fault,
    draws: usize,
    ops: usize,
    copies: usize,
    downloads: usize,
}

impl Breaker {
    fn new(fault: Fault) -> Self {
        Self { fault, draws: 0, ops: 0, copies: 0, downloads: 0 }
    }
}

/// The number of an event, counted on.
fn count(counter: &mut usize) -> usize {
    *counter += 1;
    *counter - 1
}

fn refusal(what: &str) -> Result<(), OpError> {
    Err(OpError::Backend { origin: format!("faulty/{what}"), message: "no".to_owned() })
}

impl Tap for Breaker {
    fn op(&mut self, device: &OpenDevice, call: &dyn OpCall) -> Result<(), OpError> {
        let op = count(&mut self.ops);
        if matches!(self.fault, Fault::Op(at) if at == op) {
            return refusal("op");
        }
        if call.info().name != "fused_sample" {
            return Ok(());
        }
        let draw = count(&mut self.draws);
        match self.fault {
            Fault::Nan(at) if at == draw => {
                let mut row = None;
                call.tensors(&mut |name, tensor| {
                    if name == "logits" {
                        row = Some(tensor.rows(0, 1));
                    }
                });
                device.fill(&row.expect("a draw has logits"), 0xFF)
            }
            Fault::Draw(at) if at == draw => refusal("fused_sample"),
            Fault::Lost(at) if at <= draw => Err(OpError::DeviceLost("it fell off the bus".to_owned())),
            _ => Ok(()),
        }
    }

    fn copy(&mut self) -> Result<(), OpError> {
        let copy = count(&mut self.copies);
        if matches!(self.fault, Fault::Copy(at) if at == copy) { refusal("copy") } else { Ok(()) }
    }

    fn download(&mut self) -> Result<(), OpError> {
        let download = count(&mut self.downloads);
        if matches!(self.fault, Fault::Download(at) if at == download) { refusal("download") } else { Ok(()) }
    }
}

/// An engine for three requests at a time, and its fault.
fn engine(fault: Fault, async_scheduling: bool) -> (Engine, Rc<RefCell<Breaker>>) {
    let breaker = Rc::new(RefCell::new(Breaker::new(Fault::Nothing)));
    let config = EngineConfig { max_num_seqs: 3, pages: Some(24), async_scheduling, ..EngineConfig::default() };
    let engine = Engine::builder(model(&breaker)).config(config).build().expect("an engine");
    *breaker.borrow_mut() = Breaker::new(fault);
    (engine, breaker)
}

/// Three that run at once, and two that wait for them.
fn requests(lengths: [usize; 5]) -> Vec<Request> {
    let text = text_tokens();
    let params = |seed| SamplingParams {
        max_tokens: Some(10),
        temperature: 0.8,
        seed: Some(seed),
        logprobs: (seed == 1).then_some(1),
        ignore_eos: true,
        ..SamplingParams::default()
    };
    (0..5).map(|i| request(i, &text[10 * i..10 * i + lengths[i]], params(i as u64))).collect()
}

fn expected(requests: &[Request]) -> Vec<Expected> {
    let reference = Reference::new();
    requests.iter().map(|request| reference.run(request, 0)).collect()
}

/// Runs requests and compares those that did not fail. Returns the others, with their errors.
fn run(engine: &mut Engine, requests: &[Request], expected: &[Expected], what: &str) -> Vec<(usize, EngineError)> {
    let mut failed = Vec::new();
    for (place, (output, expected)) in engine.run_all(requests.to_vec()).into_iter().zip(expected).enumerate() {
        let completion = &output.outputs[0];
        match &completion.error {
            Some(error) => {
                assert_eq!(completion.finish_reason, FinishReason::Error);
                assert!(expected.tokens.starts_with(&completion.token_ids()), "{what}, request {place}");
                failed.push((place, error.clone()));
            }
            None => assert_eq!(&found(&output, completion), expected, "{what}, request {place}"),
        }
    }
    // A step that nobody waits for any more may be in flight.
    engine.settle();
    let stats = engine.stats();
    assert_eq!((stats.running, stats.waiting, stats.in_flight), (0, 0, 0), "{what}");
    assert_eq!((stats.free_pages, stats.retiring_pages), (stats.usable_pages, 0), "{what}: pages are lost");
    failed
}

#[test]
fn faults_of_a_draw_end_the_requests_that_they_concern() {
    let requests = requests([20; 5]);
    let expected = expected(&requests);
    for async_scheduling in [true, false] {
        let check = |fault, wanted: &[usize], is_right: &dyn Fn(&EngineError) -> bool| {
            let mut engine = engine(fault, async_scheduling).0;
            let failed = run(&mut engine, &requests, &expected, &format!("{fault:?}"));
            assert_eq!(failed.iter().map(|failed| failed.0).collect::<Vec<_>>(), wanted, "{fault:?}");
            assert!(failed.iter().all(|(_, error)| is_right(error)), "{failed:?}");
            engine
        };
        check(Fault::Nan(4), &[0], &|e| matches!(e, EngineError::BadLogits { position: 24 }));
        check(Fault::Draw(4), &[0, 1, 2], &|e| e.to_string() == "faulty/fused_sample: no");
        let is_lost = |e: &EngineError| e.to_string() == "the device is lost: it fell off the bus";
        let mut lost = check(Fault::Lost(4), &[0, 1, 2, 3, 4], &is_lost);
        let error = lost.submit(requests[0].clone()).expect_err("nothing runs any more");
        assert!(is_lost(&error), "{error}");
    }
}

/// Whatever a step was at when it failed, it leaves nothing behind: neither in pages and states that others get, nor in the
/// prefix cache. One engine lives through all of the faults.
#[test]
fn faults_in_the_middle_of_a_step_end_the_requests_of_that_step() {
    let requests = requests([20, 135, 30, 9, 130]);
    let expected = expected(&requests);
    for async_scheduling in [true, false] {
        let (mut engine, breaker) = engine(Fault::Nothing, async_scheduling);
        assert!(run(&mut engine, &requests, &expected, "no fault").is_empty());
        let (ops, copies, downloads) = {
            let counts = breaker.borrow();
            (counts.ops, counts.copies, counts.downloads)
        };
        assert!(ops > 1000 && copies >= 2 && downloads > 20, "{ops} ops, {copies} copies, {downloads} downloads");
        let spread = |count: usize, of: usize| (0..of).map(move |i| (2 * i + 1) * count / (2 * of));
        let [op_faults, copy_faults, download_faults] = if async_scheduling { [4, 2, 2] } else { [2, 1, 1] };
        let faults = spread(ops, op_faults).map(Fault::Op).chain(spread(copies, copy_faults).map(Fault::Copy));
        for fault in faults.chain(spread(downloads, download_faults).map(Fault::Download)) {
            engine.reset_prefix_cache();
            *breaker.borrow_mut() = Breaker::new(fault);
            let failed = run(&mut engine, &requests, &expected, &format!("{fault:?}"));
            assert!((1..=3).contains(&failed.len()), "{fault:?}: at most three run at a time, but {failed:?} failed");
            assert!(failed.iter().all(|(_, error)| error.code() == "device_error"), "{failed:?}");
            // The prefix cache has what the steps before and after the fault left.
            let again = run(&mut engine, &requests, &expected, &format!("after {fault:?}"));
            assert!(again.is_empty(), "the fault was over, but {again:?} failed");
        }
        assert!(engine.stats().hit_tokens > 0);
    }
}
