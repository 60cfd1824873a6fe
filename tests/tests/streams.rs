//! Several streams of one device: whose work keeps what alive, copies that nobody waits for, and devices beside each other.

mod c_compiler;
mod c_plugin;
mod probes;

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use deepinfer_ops::args::{Gather, Rstd};
use deepinfer_ops::{Device, Dispatch, Format, OpError, Tensor};
use deepinfer_runtime::{LoadedBackend, OpenDevice, Runtime, SearchPath, Selection, load};
use deepinfer_tests::{Tensors, f32_bytes};
use probes::probe;
use tempfile::TempDir;

fn c_backend() -> Option<(TempDir, PathBuf, &'static LoadedBackend)> {
    let folder = tempfile::tempdir().unwrap();
    let path = c_plugin::plugin(folder.path(), "graph.c", "libdeepinfer_graph.so", &[])?;
    let backend = load(&path, "").unwrap();
    Some((folder, path, backend))
}

fn floats(device: &OpenDevice, shape: &[usize], values: &[f32]) -> Tensor {
    let memory = device.allocate(Tensor::bytes_of(Format::F32, shape)).unwrap();
    let tensor = Tensor::plain(&memory, 0, Format::F32, shape);
    device.upload(&tensor, &f32_bytes(values)).unwrap();
    tensor
}

fn read(device: &OpenDevice, tensor: &Tensor) -> Vec<f32> {
    let mut bytes = vec![0; tensor.bytes()];
    device.download(tensor, &mut bytes).unwrap();
    bytes.as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect()
}

#[test]
fn memory_is_freed_when_every_stream_that_had_work_was_waited_for() {
    let Some((_folder, path, backend)) = c_backend() else { return };
    let first = backend.open(0).unwrap();
    let (second, idle) = (first.new_stream().unwrap(), first.new_stream().unwrap());
    let live = || probe(&path, "probe_live_buffers");

    let tensor = floats(&first, &[4], &[1.0; 4]);
    second.fill(&tensor, 1).unwrap();
    first.fill(&tensor, 2).unwrap();
    drop(tensor);
    first.synchronize().unwrap();
    assert_eq!(live(), 1, "the second stream has not been waited for");
    // An allocation waits for its own stream alone.
    let other = first.allocate(16).unwrap();
    assert_eq!(live(), 2);
    second.synchronize().unwrap();
    assert_eq!(live(), 1, "the stream without work holds nothing");
    drop(idle);

    // What is dropped while no work is pending is freed at once.
    drop(other);
    assert_eq!(live(), 0);

    // A wait that began before the drop does not count.
    let tensor = floats(&first, &[4], &[1.0; 4]);
    second.fill(&tensor, 1).unwrap();
    second.synchronize().unwrap();
    second.fill(&tensor, 1).unwrap();
    drop(tensor);
    assert_eq!(live(), 1);
    drop(second);
    assert_eq!(live(), 0, "a stream ends with a wait");
    drop(first);
    assert_eq!((probe(&path, "probe_live_devices"), probe(&path, "probe_breaches")), (0, 0));
}

#[test]
fn memory_is_freed_when_a_download_behind_its_last_work_is_there() {
    let Some((_folder, path, backend)) = c_backend() else { return };
    let device = backend.open(0).unwrap();
    let live = || probe(&path, "probe_live_buffers");
    let (source, first, second) =
        (floats(&device, &[4], &[5.0; 4]), floats(&device, &[4], &[1.0; 4]), floats(&device, &[4], &[1.0; 4]));
    device.fill(&first, 1).unwrap();
    device.fill(&second, 1).unwrap();
    let before = live();
    drop(first);
    let mut download = device.download_later(&source).unwrap();
    let with_download = live();
    // Dropped behind the mark: its work may be, too.
    drop(second);
    assert_eq!(live(), with_download);
    assert_eq!(download.wait().unwrap(), f32_bytes(&[5.0; 4]));
    assert_eq!(live(), with_download - 1, "the one that was dropped before the download");
    drop(download);
    device.download_later(&source).unwrap().wait().unwrap();
    assert_eq!(live(), with_download - 2);
    // The bytes of the first download serve the second.
    assert!(with_download - before <= 1);
    drop(source);
    drop(device);
    assert_eq!((probe(&path, "probe_live_devices"), probe(&path, "probe_breaches")), (0, 0));
}

#[test]
fn plans_and_events_outlive_the_work_that_uses_them() {
    let Some((_folder, path, backend)) = c_backend() else { return };
    let (first, second) = {
        let first = backend.open(0).unwrap();
        let second = first.new_stream().unwrap();
        (first, second)
    };
    let (x, out) = (floats(&first, &[2, 4], &[0.5; 8]), floats(&first, &[2], &[0.0; 2]));
    for stream in [&first, &second] {
        stream.dispatch(&Rstd { x: &x, eps: 0.0, out: &out }).unwrap();
        assert_eq!(read(stream, &out), [2.0, 2.0]);
    }
    assert_eq!(probe(&path, "probe_live_plans"), 2, "each stream has its plans");
    let list = first.record(|| first.dispatch(&Rstd { x: &x, eps: 0.0, out: &out })).unwrap();
    assert_eq!(probe(&path, "probe_live_plans"), 2, "a list shares them");

    let event = first.record_event().unwrap();
    second.wait_event(&event).unwrap();
    assert!(event.is_done().unwrap() && event.time_since(&event).unwrap().is_none(), "this backend measures no time");
    drop(event);
    first.synchronize().unwrap();
    assert_eq!(probe(&path, "probe_live_events"), 1, "the second stream may still wait for it");
    second.synchronize().unwrap();
    assert_eq!(probe(&path, "probe_live_events"), 0);

    drop((first, second));
    assert_eq!(probe(&path, "probe_live_plans"), 1, "that of the list");
    drop(list);
    assert_eq!(probe(&path, "probe_live_plans"), 0);
    drop((x, out));
    assert_eq!((probe(&path, "probe_live_devices"), probe(&path, "probe_breaches")), (0, 0));
}

#[test]
fn the_loss_of_a_device_is_that_of_all_its_streams() {
    let Some((_folder, _path, backend)) = c_backend() else { return };
    let first = backend.open(0).unwrap();
    let second = first.new_stream().unwrap();
    let (table, out) = (floats(&first, &[1, 1], &[0.0]), floats(&first, &[1, 1, 1], &[0.0]));
    let index = Tensor::plain(&first.allocate(4).unwrap(), 0, Format::I32, &[1]);
    first.upload(&index, &(-1i32).to_le_bytes()).unwrap();
    let lost = second.dispatch(&Gather { table: &table, index: &index, repeat: 1, out: &out }).unwrap_err();
    assert!(matches!(lost, OpError::DeviceLost(_)), "{lost:?}");
    assert_eq!(first.synchronize().unwrap_err().to_string(), lost.to_string());
    assert!(first.new_stream().is_err());
}

#[test]
fn copies_within_a_device_and_between_two() {
    let Some((_folder, path, backend)) = c_backend() else { return };
    let (here, there) = (backend.open(0).unwrap(), backend.open(1).unwrap());
    let source = floats(&here, &[2, 3], &[1., 2., 3., 4., 5., 6.]);
    let (near, far) = (floats(&here, &[2, 3], &[0.0; 6]), floats(&there, &[2, 3], &[0.0; 6]));
    here.copy(&near, &source).unwrap();
    assert_eq!((read(&here, &near), probe(&path, "probe_last_copy_kind")), (vec![1., 2., 3., 4., 5., 6.], 1));
    here.copy(&near.rows(0, 1), &source.rows(1, 1)).unwrap();
    assert_eq!(read(&here, &near), [4., 5., 6., 4., 5., 6.]);

    there.copy(&far, &source).unwrap();
    assert_eq!(probe(&path, "probe_last_copy_kind"), 3);
    // The stream of the other device keeps what it reads.
    let before = probe(&path, "probe_live_buffers");
    drop(source);
    here.synchronize().unwrap();
    assert_eq!(probe(&path, "probe_live_buffers"), before);
    assert_eq!(read(&there, &far), [1., 2., 3., 4., 5., 6.]);
    assert_eq!(probe(&path, "probe_live_buffers"), before - 1);

    // So it does when the copy was recorded, and the list is gone before its work is done.
    let source = floats(&here, &[2, 3], &[7.0; 6]);
    let list = there.record(|| there.copy(&far, &source)).unwrap();
    there.launch(&list).unwrap();
    drop((list, source));
    here.synchronize().unwrap();
    assert_eq!(probe(&path, "probe_live_buffers"), before);
    assert_eq!(read(&there, &far), [7.0; 6]);
    assert_eq!(probe(&path, "probe_live_buffers"), before - 1);

    for (target, source, part) in [
        (&far, &near, "target lies on device 1"),
        (&near.rows(0, 1), &near, "target is F32[1, 3]"),
        (&near.columns(0, 2), &near.columns(1, 2), "target has gaps between its rows"),
    ] {
        let error = here.copy(target, source).unwrap_err().to_string();
        assert!(error.starts_with("copy: ") && error.contains(part), "{error}");
    }
}

/// cpu-reference, whose streams lag behind.
fn lagging() -> OpenDevice {
    let runtime = Runtime::new(SearchPath::from_environment());
    runtime.open(&Selection::parse("cpu?async=5").unwrap()).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn an_upload_that_nobody_waits_for_keeps_its_source() {
    let device = lagging();
    let tensor = floats(&device, &[256], &[0.0; 256]);
    let mut source = device.host_bytes(1024);
    assert!(source.is_pinned() && source.iter().all(|&b| b == 0));
    source.fill(7);
    let mut source = Arc::new(source);
    device.upload_later(&tensor, &source).unwrap();
    assert!(Arc::get_mut(&mut source).is_none(), "the stream has a share");
    device.synchronize().unwrap();
    Arc::get_mut(&mut source).expect("the stream has passed it").fill(8);

    device.upload_later(&tensor, &source).unwrap();
    drop(source);
    let mut found = [0; 1024];
    device.download(&tensor, &mut found).unwrap();
    assert_eq!(found, [8; 1024]);

    let longer = Arc::new(device.host_bytes(1025));
    let error = device.upload_later(&tensor, &longer).unwrap_err().to_string();
    assert!(error.contains("upload: tensor has 1024 bytes, but 1025 are to be copied"), "{error}");
}

#[test]
fn quantised_tensors_are_copied_with_their_scales() {
    let device = Rc::new(lagging());
    let t = Tensors(device.clone());
    let source = t.quantized(Format::Fp4Row32, &[2, 32], &[0x21; 32], &[120, 130]);
    let target = t.poisoned(Format::Fp4Row32, &[2, 32]);
    device.copy(&target, &source).unwrap();
    assert_eq!((t.bytes(&target), t.bytes(&target.scale_as_bytes())), (vec![0x21; 32], vec![120, 130]));
}

#[test]
fn streams_work_on_threads_of_their_own() {
    let device = lagging();
    let sums: Vec<Vec<f32>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (1..=3u8)
            .map(|number| {
                let stream = device.new_stream().unwrap();
                scope.spawn(move || {
                    let rows = floats(&stream, &[64, 4], &[f32::from(number); 256]);
                    let out = floats(&stream, &[64], &[0.0; 64]);
                    for _ in 0..20 {
                        // Dropped while its work is pending, beside the work and the drops of the others.
                        let copy = floats(&stream, &[64, 4], &[0.0; 256]);
                        stream.copy(&copy, &rows).unwrap();
                        stream.dispatch(&Rstd { x: &copy, eps: 0.0, out: &out }).unwrap();
                    }
                    read(&stream, &out)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (number, found) in (1u8..).zip(&sums) {
        let wanted = 1.0 / f32::from(number);
        assert!(found.iter().all(|v| (v - wanted).abs() < 1e-6), "stream {number}: {found:?}");
    }
}
