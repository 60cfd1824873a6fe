//! Command lists: what was recorded gives the bits of the direct calls, on a backend that replays and on one that captures.

#![allow(unsafe_code)]

mod c_compiler;
mod c_plugin;
mod probes;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::rc::Rc;

use deepinfer_ops::args::{Gather, Linear, Quantize, RmsNorm, Rstd};
use deepinfer_ops::traits::*;
use deepinfer_ops::{Device, Dispatch, Format, OpError, Tensor};
use deepinfer_runtime::{CommandList, LoadedBackend, OpenDevice, Runtime, SearchPath, Selection, load};
use deepinfer_tests::{Tensors, f32_bytes};
use probes::probe;
use tempfile::TempDir;

/// cpu-reference, whose streams lag behind.
fn cpu() -> Rc<OpenDevice> {
    let runtime = Runtime::new(SearchPath::from_environment());
    Rc::new(runtime.open(&Selection::parse("cpu?async=11").unwrap()).unwrap_or_else(|e| panic!("{e}")))
}

/// `graph.c`, loaded for one test, so that its counters are this test's. The folder must outlive it.
fn graph() -> Option<(TempDir, PathBuf, &'static LoadedBackend)> {
    let folder = tempfile::tempdir().unwrap();
    let path = c_plugin::plugin(folder.path(), "graph.c", "libdeepinfer_graph.so", &[])?;
    let backend = load(&path, "").unwrap();
    Some((folder, path, backend))
}

/// A small chain: normalise, quantise, multiply, choose rows, and a fill and a copy on the way.
struct Chain {
    x: Tensor,
    weight: Tensor,
    normal: Tensor,
    codes: Tensor,
    matrix: Tensor,
    product: Tensor,
    index: Tensor,
    chosen: Tensor,
    result: Tensor,
}

impl Chain {
    fn new(device: &Rc<OpenDevice>) -> Self {
        let t = Tensors(device.clone());
        let wave = |count: usize, step: f32| -> Vec<f32> { (0..count).map(|i| (i as f32 * step).sin()).collect() };
        Self {
            x: t.f32(&[4, 64], &wave(256, 0.7)),
            weight: t.f32(&[64], &wave(64, 0.3)),
            normal: t.poisoned(Format::F32, &[4, 64]),
            codes: t.poisoned(Format::Fp8Row32, &[4, 64]),
            matrix: t.quantized(Format::Fp8Tile32, &[32, 64], &[0x3A; 2048], &[126, 127]),
            product: t.poisoned(Format::F32, &[4, 32]),
            index: t.i32(&[3], &[3, -1, 0]),
            chosen: t.poisoned(Format::F32, &[3, 2, 32]),
            result: t.poisoned(Format::F32, &[3, 2, 32]),
        }
    }

    fn run(&self, device: &OpenDevice) -> Result<(), OpError> {
        device.rms_norm(&RmsNorm { x: &self.x, weight: &self.weight, eps: 1e-6, out: &self.normal })?;
        device.quantize(&Quantize { x: &self.normal, out: &self.codes })?;
        device.fill(&self.product, 0xFF)?;
        device.linear(&Linear { x: &self.codes, weight: &self.matrix, groups: 1, out: &self.product })?;
        device.gather(&Gather { table: &self.product, index: &self.index, repeat: 2, out: &self.chosen })?;
        device.copy(&self.result, &self.chosen)
    }
}

fn bytes(device: &OpenDevice, tensor: &Tensor) -> Vec<u8> {
    let mut bytes = vec![0; tensor.bytes()];
    device.download(tensor, &mut bytes).unwrap();
    bytes
}

#[test]
fn a_list_gives_the_bits_of_the_calls_for_every_input() {
    let device = cpu();
    let chain = Chain::new(&device);
    let inputs = [0.5f32, -3.0, 0.01]
        .map(|scale| f32_bytes(&(0..256).map(|i| scale * (i as f32 * 1.3).cos()).collect::<Vec<f32>>()));
    let direct = inputs.each_ref().map(|input| {
        device.upload(&chain.x, input).unwrap();
        chain.run(&device).unwrap();
        bytes(&device, &chain.result)
    });
    assert!(direct[0] != direct[1] && direct[1] != direct[2], "the results depend on the input");

    device.fill(&chain.result, 0xEE).unwrap();
    let list = device.record(|| chain.run(&device)).unwrap();
    assert_eq!(list.names().collect::<Vec<_>>(), ["rms_norm", "quantize", "fill", "linear", "gather", "copy"]);
    assert_eq!((list.len(), list.is_empty(), list.is_captured()), (6, false, false));
    assert_eq!(list.why_not_captured(), "the backend has no graphs");
    assert_eq!(bytes(&device, &chain.result), vec![0xEE; direct[0].len()], "recording runs nothing");

    // The list keeps the memory of the tensors that only it still needs.
    let Chain { x, result, .. } = chain;
    drop(device.allocate(1 << 16).unwrap());
    for _ in 0..2 {
        for (input, wanted) in inputs.iter().zip(&direct) {
            device.upload(&x, input).unwrap();
            device.launch(&list).unwrap();
            assert_eq!(&bytes(&device, &result), wanted);
        }
    }
}

#[test]
fn what_a_list_cannot_contain_is_a_sentence() {
    let device = cpu();
    let t = Tensors(device.clone());
    let tensor = t.f32(&[2], &[1.0, 2.0]);
    let event = device.record_event().unwrap();
    let empty = device.record(|| Ok::<(), OpError>(())).unwrap();
    let bytes_of_host = std::sync::Arc::new(device.host_bytes(8));

    type Step<'a> = (&'a str, Box<dyn Fn() -> Result<(), OpError> + 'a>);
    let steps: Vec<Step<'_>> = vec![
        ("an allocation", Box::new(|| device.allocate(1).map(drop))),
        ("an upload", Box::new(|| device.upload(&tensor, &[0; 8]))),
        ("an upload", Box::new(|| device.upload_later(&tensor, &bytes_of_host))),
        ("a download", Box::new(|| device.download(&tensor, &mut [0; 8]))),
        ("a wait", Box::new(|| device.synchronize())),
        ("an event", Box::new(|| device.record_event().map(drop))),
        ("a wait for an event", Box::new(|| device.wait_event(&event))),
        ("a launch", Box::new(|| device.launch(&empty))),
        ("another recording", Box::new(|| device.record(|| Ok::<(), OpError>(())).map(drop))),
    ];
    for (step, work) in &steps {
        let error = device.record(work).unwrap_err();
        assert!(matches!(error, OpError::Recording { .. }), "{step}: {error:?}");
        let sentence = format!("{step} is not possible while a command list is recorded; do it before the recording");
        assert!(error.to_string().starts_with(&sentence), "{error}");
        // The recording has ended, with nothing of it left.
        work().unwrap_or_else(|e| panic!("{step} afterwards: {e}"));
    }

    let panicked = catch_unwind(AssertUnwindSafe(|| device.record(|| -> Result<(), OpError> { panic!("no") })));
    assert!(panicked.is_err());
    device.synchronize().unwrap();
    // A call that is wrong is refused when it is recorded.
    let wrong = device.record(|| device.rms_norm(&RmsNorm { x: &tensor, weight: &tensor, eps: 0.0, out: &tensor }));
    assert!(matches!(wrong, Err(OpError::Argument(_))), "{wrong:?}");
}

#[test]
#[should_panic(expected = "launched on the stream on which it was recorded")]
fn a_list_belongs_to_its_stream() {
    let device = cpu();
    let tensor = Tensors(device.clone()).f32(&[1], &[0.0]);
    let list = device.record(|| device.fill(&tensor, 1)).unwrap();
    let _ = device.new_stream().unwrap().launch(&list);
}

/// Three ops of `graph.c`, one with a plan and a workspace, a fill and a copy.
struct Few {
    table: Tensor,
    index: Tensor,
    rows: Tensor,
    rstd: Tensor,
    copied: Tensor,
    filled: Tensor,
}

impl Few {
    fn new(device: &Rc<OpenDevice>) -> Self {
        let t = Tensors(device.clone());
        Self {
            table: t.f32(&[3, 4], &[0.0; 12]),
            index: t.i32(&[2], &[2, 0]),
            rows: t.poisoned(Format::F32, &[2, 1, 4]),
            rstd: t.poisoned(Format::F32, &[2]),
            copied: t.poisoned(Format::F32, &[2]),
            filled: t.poisoned(Format::F32, &[1]),
        }
    }

    fn run(&self, device: &OpenDevice) -> Result<(), OpError> {
        device.gather(&Gather { table: &self.table, index: &self.index, repeat: 1, out: &self.rows })?;
        // A view that ends with the call: the list has shapes and strides of its own.
        let flat = self.rows.reshape(&[2, 4]);
        device.rstd(&Rstd { x: &flat, eps: 0.0, out: &self.rstd })?;
        device.copy(&self.copied, &self.rstd)?;
        device.fill(&self.filled, 0x41)
    }

    /// Launches with a table whose row r holds four times `values[r]`.
    fn launched(&self, device: &Rc<OpenDevice>, list: &CommandList, values: [f32; 3]) -> Vec<f32> {
        let table: Vec<f32> = values.iter().flat_map(|&v| [v; 4]).collect();
        device.upload(&self.table, &f32_bytes(&table)).unwrap();
        device.fill(&self.filled, 0).unwrap();
        device.launch(list).unwrap();
        let t = Tensors(device.clone());
        assert_eq!(t.bytes(&self.filled), [0x41; 4]);
        t.floats(&self.copied)
    }
}

#[test]
fn a_backend_with_graphs_captures_the_list() {
    let Some((_folder, path, backend)) = graph() else { return };
    {
        let device = Rc::new(backend.open(0).unwrap());
        let few = Few::new(&device);
        let list = device.record(|| few.run(&device)).unwrap();
        assert!(list.is_captured() && list.why_not_captured().is_empty(), "{list:?}");
        assert_eq!(list.names().collect::<Vec<_>>(), ["gather", "rstd", "copy", "fill"]);
        // Something else wants the stream's own workspace and plans in between.
        let (x, out) = (Tensors(device.clone()).f32(&[9, 8], &[1.0; 72]), Tensors(device.clone()).f32(&[9], &[0.0; 9]));
        device.rstd(&Rstd { x: &x, eps: 0.0, out: &out }).unwrap();
        assert_eq!(few.launched(&device, &list, [2.0, 9.0, 4.0]), [0.25, 0.5]);
        assert_eq!(few.launched(&device, &list, [0.5, 9.0, 1.0]), [1.0, 2.0]);
        assert_eq!((probe(&path, "probe_launches"), probe(&path, "probe_captures")), (2, 1));
        assert_eq!(probe(&path, "probe_live_graphs"), 1, "the graph that was instantiated is gone");
        // The device may go first.
        drop((few, x, out));
        drop(device);
        assert_eq!(probe(&path, "probe_live_graphs"), 1);
        drop(list);
    }
    for counter in ["live_graphs", "live_buffers", "live_plans", "live_devices", "live_errors", "breaches"] {
        assert_eq!(probe(&path, &format!("probe_{counter}")), 0, "{counter}");
    }
}

#[test]
fn a_step_that_cannot_be_captured_makes_the_list_a_replay() {
    let Some((_folder, path, backend)) = graph() else { return };
    let device = Rc::new(backend.open(0).unwrap());
    let (few, t) = (Few::new(&device), Tensors(device.clone()));
    let (weight, normal) = (t.f32(&[2], &[0.0; 2]), t.f32(&[1, 2], &[0.0; 2]));
    let work = || {
        few.run(&device)?;
        device.rms_norm(&RmsNorm { x: &few.copied.reshape(&[1, 2]), weight: &weight, eps: 0.0, out: &normal })
    };
    let list = device.record(work).unwrap();
    assert_eq!((list.is_captured(), list.why_not_captured()), (false, "a step cannot be captured"));
    assert_eq!(few.launched(&device, &list, [2.0, 9.0, 4.0]), [0.25, 0.5]);
    assert_eq!(t.floats(&normal), [0.25, 0.5]);
    assert_eq!((probe(&path, "probe_launches"), probe(&path, "probe_live_graphs")), (0, 0));
    assert_eq!(probe(&path, "probe_breaches"), 0, "the capture was ended, and the next one is not nested in it");

    // The stream is as before: a list without that step is captured.
    assert!(device.record(|| few.run(&device)).unwrap().is_captured());
}

#[test]
fn a_failure_of_a_recorded_op_is_told_by_its_name() {
    let Some((_folder, path, backend)) = graph() else { return };
    let device = Rc::new(backend.open(0).unwrap());
    let (few, t) = (Few::new(&device), Tensors(device.clone()));
    // Replayed: the index is content, and content may change. A negative one is a fault after which the device is lost.
    let (weight, normal) = (t.f32(&[4], &[0.0; 4]), t.f32(&[3, 4], &[0.0; 12]));
    let work = || {
        device.rms_norm(&RmsNorm { x: &few.table, weight: &weight, eps: 0.0, out: &normal })?;
        few.run(&device)
    };
    let list = device.record(work).unwrap();
    device.upload(&few.index, &[0xFF; 8]).unwrap();
    let error = device.launch(&list).unwrap_err();
    assert!(matches!(&error, OpError::DeviceLost(text) if text.contains("graph/gather")), "{error:?}");
    assert_eq!(
        device.dispatch(&Rstd { x: &few.table, eps: 0.0, out: &few.rstd }).unwrap_err().to_string(),
        error.to_string()
    );
    assert_eq!(probe(&path, "probe_live_errors"), 0);
}
