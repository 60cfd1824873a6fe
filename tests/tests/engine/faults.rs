//! A fault ends the requests that it concerns, and the others give what they give alone.

use std::cell::Cell;
use std::rc::Rc;

use deepinfer_engine::{Engine, EngineConfig};
use deepinfer_engine::{EngineError, FinishReason, Request, SamplingParams};
use deepinfer_model::checkpoint::Checkpoint;
use deepinfer_model::{Model, Numerics};
use deepinfer_ops::{Allocation, Device, Dispatch, Download, OpCall, OpError, Tensor};
use deepinfer_tests::{miniature, open_device};

use crate::reference::{Expected, Reference};
use crate::requests::{found, request, text_tokens};

#[derive(Clone, Copy)]
enum Fault {
    /// The logits of the first row of this draw become NaN.
    Nan(usize),
    /// This draw is refused.
    Refused(usize),
    /// The device is lost at this draw.
    Lost(usize),
}

/// A device with one fault.
struct Faulty {
    inner: deepinfer_runtime::OpenDevice,
    fault: Fault,
    draws: Cell<usize>,
}

impl Dispatch for Faulty {
    fn dispatch(&self, call: &dyn OpCall) -> Result<(), OpError> {
        if call.info().name == "fused_sample" {
            let draw = self.draws.replace(self.draws.get() + 1);
            match self.fault {
                Fault::Nan(at) if at == draw => {
                    let mut row = None;
                    call.tensors(&mut |name, tensor| {
                        if name == "logits" {
                            row = Some(tensor.rows(0, 1));
                        }
                    });
                    self.inner.fill(&row.expect("a draw has logits"), 0xFF)?;
                }
                Fault::Refused(at) if at == draw => {
                    return Err(OpError::Backend {
                        origin: "faulty/fused_sample".to_owned(),
                        message: "no".to_owned(),
                    });
                }
                Fault::Lost(at) if at <= draw => return Err(OpError::DeviceLost("it fell off the bus".to_owned())),
                _ => {}
            }
        }
        self.inner.dispatch(call)
    }
}

impl Device for Faulty {
    fn backend(&self) -> &str {
        self.inner.backend()
    }

    fn allocate(&self, bytes: usize) -> Result<Allocation, OpError> {
        self.inner.allocate(bytes)
    }

    fn upload(&self, tensor: &Tensor, bytes: &[u8]) -> Result<(), OpError> {
        self.inner.upload(tensor, bytes)
    }

    fn download(&self, tensor: &Tensor, bytes: &mut [u8]) -> Result<(), OpError> {
        self.inner.download(tensor, bytes)
    }

    fn download_later(&self, tensor: &Tensor) -> Result<Box<dyn Download>, OpError> {
        self.inner.download_later(tensor)
    }

    fn fill(&self, tensor: &Tensor, byte: u8) -> Result<(), OpError> {
        self.inner.fill(tensor, byte)
    }

    fn copy(&self, target: &Tensor, source: &Tensor) -> Result<(), OpError> {
        self.inner.copy(target, source)
    }

    fn memory(&self) -> Result<(u64, u64), OpError> {
        self.inner.memory()
    }
}

fn engine(fault: Fault, async_scheduling: bool) -> Engine {
    let device = Rc::new(Faulty { inner: open_device(), fault, draws: Cell::new(0) });
    let checkpoint = Checkpoint::open(&miniature()).expect("the miniature");
    let (model, _) = Model::load(device, &checkpoint, Numerics::DEPLOY, &mut |_, _| {}).expect("the miniature loads");
    let config = EngineConfig { max_num_seqs: 3, pages: Some(16), async_scheduling, ..EngineConfig::default() };
    Engine::builder(model).config(config).build().expect("an engine")
}

/// Three that run at once, and two that wait for them.
fn requests() -> Vec<Request> {
    let text = text_tokens();
    let params = |seed| SamplingParams {
        max_tokens: Some(10),
        temperature: 0.8,
        seed: Some(seed),
        ignore_eos: true,
        ..SamplingParams::default()
    };
    (0..5).map(|i| request(i, &text[10 * i..10 * i + 20], params(i as u64))).collect()
}

fn check(engine: &mut Engine, expected: &[Expected], failed: &[usize], is_right: impl Fn(&EngineError) -> bool) {
    for (place, (output, expected)) in engine.run_all(requests()).iter().zip(expected).enumerate() {
        let completion = &output.outputs[0];
        if failed.contains(&place) {
            let error = completion.error.as_ref().expect("it failed");
            assert!(is_right(error), "request {place}: {error}");
            assert_eq!(completion.finish_reason, FinishReason::Error);
            assert!(expected.tokens.starts_with(&completion.token_ids()), "request {place}");
        } else {
            assert_eq!(&found(output, completion), expected, "request {place}");
        }
    }
    let stats = engine.stats();
    assert_eq!((stats.running, stats.in_flight), (0, 0));
    assert_eq!(stats.free_pages, stats.usable_pages);
}

#[test]
fn faults_end_the_requests_that_they_concern() {
    let reference = Reference::new();
    let expected: Vec<Expected> = requests().iter().map(|request| reference.run(request, 0)).collect();
    for async_scheduling in [true, false] {
        let mut nan = engine(Fault::Nan(4), async_scheduling);
        check(&mut nan, &expected, &[0], |e| matches!(e, EngineError::BadLogits { position: 24 }));
        let mut refused = engine(Fault::Refused(4), async_scheduling);
        check(&mut refused, &expected, &[0, 1, 2], |e| e.to_string() == "faulty/fused_sample: no");
        let mut lost = engine(Fault::Lost(4), async_scheduling);
        let is_lost = |e: &EngineError| e.to_string() == "the device is lost: it fell off the bus";
        check(&mut lost, &expected, &[0, 1, 2, 3, 4], is_lost);
        let error = lost.submit(requests().remove(0)).expect_err("nothing runs any more");
        assert!(is_lost(&error), "{error}");
    }
}
