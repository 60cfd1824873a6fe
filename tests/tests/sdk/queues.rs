//! Kernels that run on a stream's queue: what is checked at once, what is copied, and where faults appear.

use std::ptr::null_mut;

use deepinfer_plugin_api::abi::*;
use deepinfer_plugin_api::generated::{Gather, Rstd};

use crate::npu::Npu;
use crate::raw::{Matrix, Plugin, args, outcome, runtime};

/// Memory of a gather. It lives longer than the descriptors of a call, as memory of a device does.
struct Rows {
    table: Matrix,
    index: Matrix,
    out: Matrix,
}

impl Rows {
    fn new(index: &[i32]) -> Self {
        let count = index.len();
        Self {
            table: Matrix::floats(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[3, 2]),
            index: Matrix::ints(index, &[count as i64]),
            out: Matrix::floats(&vec![0.0; 2 * count], &[count as i64, 1, 2]),
        }
    }

    /// Calls the op with descriptors that are overwritten as soon as the call returns.
    fn gather(&mut self, plugin: &Plugin) -> Result<(), deepinfer_plugin_api::sdk::ForeignError> {
        let mut call = args::<Gather>();
        (call.table, call.index, call.repeat, call.out) = (self.table.raw(), self.index.raw(), 1, self.out.raw());
        let mut extents: Vec<Vec<i64>> = Vec::new();
        for tensor in [&mut call.table, &mut call.index, &mut call.out] {
            for array in [&mut tensor.shape, &mut tensor.strides] {
                // SAFETY: the matrix holds `ndim` of each.
                extents.push(unsafe { std::slice::from_raw_parts(*array, tensor.ndim as usize) }.to_vec());
                *array = extents.last_mut().unwrap().as_mut_ptr();
            }
        }
        let result = plugin.run::<Gather>("default", null_mut(), &call);
        extents.iter_mut().flatten().for_each(|extent| *extent = -7);
        (call.table.data, call.index.ndim) = (null_mut(), 99);
        std::hint::black_box(&mut call);
        result
    }
}

#[test]
fn a_call_needs_nothing_of_its_caller_but_memory() {
    let plugin = Plugin::start::<Npu>("queued");
    let mut rows: Vec<Rows> = (0..40).map(|i| Rows::new(&[i % 3, 2])).collect();
    rows.iter_mut().for_each(|rows| rows.gather(&plugin).unwrap());
    plugin.sync().unwrap();
    for (i, rows) in rows.iter().enumerate() {
        let first = 2.0 * (i % 3) as f32 + 1.0;
        assert_eq!(rows.out.values(), [first, first + 1.0, 5.0, 6.0], "call {i}");
    }
}

#[test]
fn shapes_are_refused_at_once_and_values_at_the_next_wait() {
    let plugin = Plugin::start::<Npu>("queued");
    let mut rows = Rows::new(&[0, 1]);
    rows.out = Matrix::floats(&[0.0; 4], &[2, 2]);
    assert_eq!(rows.gather(&plugin).unwrap_err().code, DI_E_INVALID);
    plugin.sync().unwrap();

    let (mut wrong, mut right) = (Rows::new(&[0, 3]), Rows::new(&[2]));
    wrong.gather(&plugin).unwrap();
    right.gather(&plugin).unwrap();
    let error = plugin.sync().unwrap_err();
    assert_eq!(error.to_string(), "npu/gather: gather: index holds [0, 3]");
    assert_eq!(error.flags, 0, "the backend stays usable");
    assert_eq!(right.out.values(), [5.0, 6.0], "later work was done");
    plugin.sync().unwrap();

    // An event behind the fault reports it as well, if nobody did before.
    let mut event = null_mut();
    outcome(runtime!(plugin, event_create, plugin.device, 0, &raw mut event)).unwrap();
    wrong.gather(&plugin).unwrap();
    outcome(runtime!(plugin, event_record, event, plugin.stream)).unwrap();
    let error = outcome(runtime!(plugin, event_sync, event)).unwrap_err();
    assert_eq!(error.origin, "npu/gather");
    plugin.sync().unwrap();
}

#[test]
fn plans_run_later_too() {
    let plugin = Plugin::start::<Npu>("queued");
    let (mut x, mut out) = (Matrix::floats(&[3.0, 4.0], &[1, 2]), Matrix::floats(&[0.0], &[1]));
    let mut call = args::<Rstd>();
    (call.x, call.out) = (x.raw(), out.raw());
    let (plan, info) = plugin.plan::<Rstd>("tiled", &call).unwrap();
    let mut scratch = vec![0_u64; 16];
    let at = scratch.as_mut_ptr().cast::<u8>();
    call.h.workspace = at.wrapping_add(at.align_offset(info.workspace_align as usize)).cast();
    call.h.workspace_bytes = info.workspace_bytes - 1;
    assert_eq!(plugin.run::<Rstd>("tiled", plan, &call).unwrap_err().code, DI_E_WORKSPACE);
    call.h.workspace_bytes += 1;
    plugin.run::<Rstd>("tiled", plan, &call).unwrap();
    plugin.sync().unwrap();
    assert!((out.values()[0] - 12.5_f32.sqrt().recip()).abs() < 1e-6);
    drop(scratch);
}

#[test]
fn a_panic_on_the_queue_poisons_the_backend_after_the_wait() {
    let plugin = Plugin::start::<Npu>("queued");
    let (mut unlucky, mut right) = (Rows::new(&[13]), Rows::new(&[1]));
    unlucky.gather(&plugin).unwrap();
    // Refused on the queue, or at once when the panic came first.
    let _ = right.gather(&plugin);
    let error = plugin.sync().unwrap_err();
    assert_eq!((error.code, error.flags, error.origin.as_str()), (DI_E_PANIC, DI_EF_POISONED, "npu/gather"));
    assert!(error.message.contains("unlucky row"), "{error}");
    assert_eq!(right.out.values(), [0.0; 2], "nothing runs after a panic");
    let error = right.gather(&plugin).unwrap_err();
    let sentence = "npu/gather: npu is unusable after a panic in gather: ";
    assert!(error.to_string().starts_with(sentence) && error.message.contains("unlucky row"), "{error}");
    // Waiting still waits, and says the same.
    assert_eq!(plugin.sync().unwrap_err().code, DI_E_PANIC);
}

#[test]
fn a_stream_finishes_its_work_before_it_goes() {
    let plugin = Plugin::start::<Npu>("queued");
    let mut stream = null_mut();
    outcome(runtime!(plugin, stream_create, plugin.device, 0, 0, &raw mut stream)).unwrap();
    let second = Plugin { stream, ..plugin };
    let mut rows: Vec<Rows> = (0..20).map(|_| Rows::new(&[2])).collect();
    rows.iter_mut().for_each(|rows| rows.gather(&second).unwrap());
    runtime!(second, stream_destroy, stream);
    assert!(rows.iter().all(|rows| rows.out.values() == [5.0, 6.0]));
    let error = {
        let nowhere = Plugin { stream: null_mut(), ..second };
        rows[0].gather(&nowhere).unwrap_err()
    };
    assert_eq!(error.message, "no stream was given");
}
