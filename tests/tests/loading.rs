//! Loading plugins that are good, bad, older and newer, and running ops of a backend written in C.

#![allow(unsafe_code)]

mod c_compiler;
mod c_plugin;

use std::path::{Path, PathBuf};

use c_plugin::plugin;
use deepinfer_ops::args::{Gather, RmsNorm, Rstd};
use deepinfer_ops::{Allocation, Device, Dispatch, Format, OpError, Tensor};
use deepinfer_plugin_api::abi::{DI_ABI_MAJOR, DI_ABI_MINOR};
use deepinfer_runtime::{LoadedBackend, OpenDevice, load, missing_ops};
use tempfile::TempDir;

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// The sentence of a file that must be refused.
fn refusal(path: &Path) -> String {
    let text = load(path, "").unwrap_err().to_string();
    assert!(text.starts_with(&path.canonicalize().unwrap().display().to_string()), "names the file: {text}");
    text
}

fn assert_contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
}

/// A counter of `host_backend.c`, read through the library that is already loaded.
fn probe(path: &Path, counter: &str) -> i32 {
    // SAFETY: the library is loaded and stays so; its counters are functions of this type.
    unsafe {
        let library = libloading::os::unix::Library::new(path).unwrap();
        let symbol = library.get::<unsafe extern "C" fn() -> i32>(counter).unwrap();
        symbol()
    }
}

fn tensor<T: Copy>(
    device: &OpenDevice,
    format: Format,
    shape: &[usize],
    values: &[T],
    bytes: fn(T) -> [u8; 4],
) -> Tensor {
    let memory = device.allocate(Tensor::bytes_of(format, shape)).unwrap();
    let tensor = Tensor::plain(&memory, 0, format, shape);
    let bytes: Vec<u8> = values.iter().flat_map(|&v| bytes(v)).collect();
    device.upload(&tensor, &bytes).unwrap();
    tensor
}

fn floats(device: &OpenDevice, shape: &[usize], values: &[f32]) -> Tensor {
    tensor(device, Format::F32, shape, values, f32::to_ne_bytes)
}

fn integers(device: &OpenDevice, values: &[i32]) -> Tensor {
    tensor(device, Format::I32, &[values.len()], values, i32::to_ne_bytes)
}

fn read(device: &OpenDevice, tensor: &Tensor) -> Vec<f32> {
    let mut bytes = vec![0; tensor.bytes()];
    device.download(tensor, &mut bytes).unwrap();
    bytes.as_chunks::<4>().0.iter().map(|&b| f32::from_ne_bytes(b)).collect()
}

/// Opens a device and gathers rows with it.
fn gather_works(backend: &'static LoadedBackend) {
    let device = backend.open(1).unwrap();
    let table = floats(&device, &[3, 2], &[0., 1., 10., 11., 20., 21.]);
    let (index, out) = (integers(&device, &[2, 0]), floats(&device, &[2, 2, 2], &[]));
    device.dispatch(&Gather { table: &table, index: &index, repeat: 2, out: &out }).unwrap();
    assert_eq!(read(&device, &out), [20., 21., 20., 21., 0., 1., 0., 1.]);
}

#[test]
fn files_that_are_no_plugins_say_so() {
    let folder = folder();
    let text = folder.path().join("libdeepinfer_text.so");
    std::fs::write(&text, "this is a text file\n").unwrap();
    assert_contains(&refusal(&text), &["cannot be loaded as a shared library"]);
    assert_contains(&refusal(folder.path()), &["cannot be loaded as a shared library"]);

    let absent = load(Path::new("/nonexistent/libdeepinfer_x.so"), "").unwrap_err().to_string();
    assert_contains(&absent, &["/nonexistent/libdeepinfer_x.so", "cannot be read", "No such file"]);

    let Some(path) = plugin(folder.path(), "no_entry.c", "libdeepinfer_no_entry.so", &[]) else { return };
    assert_contains(&refusal(&path), &["not a DeepInfer plugin", "exports no deepinfer_backend_entry"]);
}

#[test]
fn files_that_are_cut_off_say_so() {
    let folder = folder();
    let Some(whole) = plugin(folder.path(), "host_backend.c", "whole.so", &[]) else { return };
    let bytes = std::fs::read(&whole).unwrap();
    // In the table of sections, in a segment, in the program headers, in the header.
    for length in [bytes.len() - 1, bytes.len() / 2, 4096, 100, 20] {
        let path = folder.path().join(format!("cut_to_{length}.so"));
        std::fs::write(&path, &bytes[..length]).unwrap();
        assert_contains(&refusal(&path), &["the file is cut off: ", &format!("but the file has {length} bytes")]);
    }
    gather_works(load(&whole, "").unwrap());
}

#[test]
fn only_shared_objects_of_this_machine_are_loaded() {
    let folder = folder();
    let Some(whole) = plugin(folder.path(), "host_backend.c", "whole.so", &[]) else { return };
    let bytes = std::fs::read(&whole).unwrap();
    for (at, byte, part) in [(4, 1, "64-bit little-endian"), (16, 1, "type 1"), (18, 2, "machine 2")] {
        let path = folder.path().join(format!("changed_at_{at}.so"));
        let mut changed = bytes.clone();
        changed[at] = byte;
        std::fs::write(&path, changed).unwrap();
        assert_contains(&refusal(&path), &["cannot be loaded as a shared library", part]);
    }
}

#[test]
fn another_version_of_the_abi_names_both_versions() {
    let core = format!("the core version {DI_ABI_MAJOR}.{DI_ABI_MINOR}");
    let folder = folder();
    let Some(polite) = plugin(folder.path(), "major9.c", "polite.so", &[]) else { return };
    assert_contains(&refusal(&polite), &["version 9.4", &core, "this build wants ABI major 9"]);

    let rude = plugin(folder.path(), "host_backend.c", "rude.so", &["-DBREAK_MAJOR"]).unwrap();
    assert_contains(&refusal(&rude), &[&format!("version 9.{DI_ABI_MINOR}"), &core]);

    let demanding = plugin(folder.path(), "host_backend.c", "demanding.so", &["-DBREAK_MINOR"]).unwrap();
    assert_contains(&refusal(&demanding), &["version 0.40 or later", &core]);
}

#[test]
fn a_refusal_is_told_in_the_plugins_words_and_its_error_is_released_once() {
    let folder = folder();
    let Some(path) = plugin(folder.path(), "refuses.c", "refuses.so", &[]) else { return };
    let text = refusal(&path);
    assert_contains(&text, &["c-refuses refused to start", "the licence server is on holiday", "code 17"]);
    assert_eq!(probe(&path, "probe_releases"), 1);
    // The entry is called once per process; asking again gives the same answer.
    assert_eq!(refusal(&path), text);
    assert_eq!(probe(&path, "probe_releases"), 1);

    let silent = plugin(folder.path(), "host_backend.c", "silent.so", &["-DBREAK_SILENT"]).unwrap();
    assert_contains(&refusal(&silent), &["gave no reason", "code 8"]);
}

#[test]
fn malformed_tables_are_refused_one_by_one_and_a_good_backend_still_loads() {
    let folder = folder();
    for (switch, parts) in [
        ("BREAK_NULL_API", &["the backend table is at no address"][..]),
        ("BREAK_NULL_RUNTIME", &["the runtime table is at no address"]),
        ("BREAK_NULL_OPS", &["4 op entries are at no address"]),
        ("BREAK_STRIDE", &["op entry 0 of 4", "struct_size 88", "16 bytes apart"]),
        ("BREAK_SHORT_RUNTIME", &["the runtime table lacks copy, fill"]),
        ("BREAK_NO_RUN", &["op entry 0 of 4", "(gather)", "no run function"]),
        ("BREAK_NAME", &["its name is not UTF-8"]),
        ("NAME=\"\"", &["its name \"\" cannot be selected: it is empty"]),
        ("NAME=\"a\\tb\"", &["its name \"a\\tb\" cannot be selected", "control character"]),
    ] {
        let define = format!("-D{switch}");
        let Some(path) = plugin(folder.path(), "host_backend.c", &format!("{switch}.so"), &[&define]) else { return };
        let text = refusal(&path);
        assert_contains(&text, &["reply is malformed"]);
        assert_contains(&text, parts);
    }
    let good = plugin(folder.path(), "host_backend.c", "good.so", &[]).unwrap();
    gather_works(load(&good, "").unwrap());
}

#[test]
fn older_and_newer_plugins_work() {
    let folder = folder();
    for (switch, ops) in [("-DOLDER", 1), ("-DNEWER", 4)] {
        let Some(path) = plugin(folder.path(), "host_backend.c", &format!("lib{switch}.so"), &[switch]) else { return };
        let backend = load(&path, "").unwrap();
        assert_eq!(backend.ops().len(), ops, "{switch}");
        assert_eq!(
            (backend.name(), backend.version(), backend.abi()),
            ("c-host", "1.2.3", (DI_ABI_MAJOR, DI_ABI_MINOR))
        );
        gather_works(backend);
        assert_eq!(probe(&path, "probe_breaches"), 0);
    }
}

/// A loaded `host_backend.c` of its own, so that its counters are this test's. The folder must outlive it.
fn host_backend() -> Option<(TempDir, PathBuf, &'static LoadedBackend)> {
    let folder = folder();
    let path = plugin(folder.path(), "host_backend.c", "libdeepinfer_host.so", &[])?;
    let backend = load(&path, "").unwrap();
    Some((folder, path, backend))
}

#[test]
fn a_file_is_started_once_per_process() {
    let Some((folder, path, backend)) = host_backend() else { return };
    let link = folder.path().join("other_name.so");
    std::fs::hard_link(&path, &link).unwrap();
    assert!(std::ptr::eq(backend, load(&link, "").unwrap()), "another path of the same file");
    assert_eq!(probe(&path, "probe_calls_to_entry"), 1);

    let error = load(&path, "mode=fast").unwrap_err().to_string();
    assert_contains(&error, &["already loaded with the options \"\"", "\"mode=fast\""]);
}

#[test]
fn ops_that_plan_get_a_plan_per_signature_and_a_workspace() {
    let Some((_folder, path, backend)) = host_backend() else { return };
    {
        let device = backend.open(0).unwrap();
        let run = |rows: usize, columns: usize, eps: f32| {
            let x = floats(&device, &[rows, columns], &vec![2.0; rows * columns]);
            let out = floats(&device, &[rows], &[]);
            device.dispatch(&Rstd { x: &x, eps, out: &out }).unwrap();
            read(&device, &out)
        };
        assert_eq!(run(3, 4, 0.0), [0.5; 3]);
        assert_eq!(run(3, 4, 0.0), [0.5; 3]);
        assert_eq!(probe(&path, "probe_plans_made"), 1, "the second call has the same signature");
        // More rows need a larger workspace, another eps is another scalar; both are other signatures.
        assert_eq!(run(1000, 8, 0.0), [0.5; 1000]);
        assert_eq!(run(3, 4, 12.0), [0.25; 3]);
        assert_eq!(probe(&path, "probe_plans_made"), 3);
        // `short` does not take rows of 9: the implementation of lower priority does.
        assert_eq!(run(2, 9, 0.0), [-1.0; 2]);
    }
    assert_eq!(probe(&path, "probe_live_devices"), 0);
    assert_eq!(probe(&path, "probe_breaches"), 0, "plans, buffers and streams go before their device");
}

#[test]
fn memory_keeps_its_device_open_and_everything_is_given_back() {
    let Some((_folder, path, backend)) = host_backend() else { return };
    let device = backend.open(0).unwrap();
    let kept: Allocation = device.allocate(100).unwrap();
    let event = device.record_event().unwrap();
    assert!(event.is_done().unwrap());
    event.wait().unwrap();
    drop(device.allocate(100).unwrap());
    drop(device);
    assert_eq!(probe(&path, "probe_live_devices"), 1, "memory and the event are still there");
    drop(event);
    std::thread::spawn(move || drop(kept)).join().unwrap();
    assert_eq!(probe(&path, "probe_live_devices"), 0);
    assert_eq!(probe(&path, "probe_breaches"), 0);
}

#[test]
fn errors_of_a_plugin_arrive_by_kind_and_are_released() {
    let Some((_folder, path, backend)) = host_backend() else { return };
    let device = backend.open(0).unwrap();

    let error = device.allocate(2 << 30).unwrap_err();
    assert!(matches!(error, OpError::OutOfMemory { bytes: 2_147_483_648, .. }), "{error:?}");
    assert_contains(&error.to_string(), &["2147483648 bytes", "c-host/alloc: the toy is full"]);

    let (x, weight) = (floats(&device, &[1, 2], &[1., 2.]), floats(&device, &[2], &[1., 1.]));
    let error = device.dispatch(&RmsNorm { x: &x, weight: &weight, eps: 0.0, out: &x.clone() }).unwrap_err();
    assert!(matches!(error, OpError::Unsupported { .. }), "{error:?}");
    assert_contains(&error.to_string(), &["c-host cannot run rms_norm", "version 77", "version 1 is called"]);

    // The plugin says that this fault lasts: nothing works afterwards, and the reason stays.
    let (index, out) = (integers(&device, &[-1]), floats(&device, &[1, 1, 2], &[]));
    let lost = device.dispatch(&Gather { table: &x, index: &index, repeat: 1, out: &out }).unwrap_err();
    assert!(matches!(lost, OpError::DeviceLost(_)), "{lost:?}");
    let again = device.allocate(1).unwrap_err();
    assert_eq!(lost.to_string(), again.to_string());
    assert_contains(&again.to_string(), &["the device is lost", "c-host/gather", "fell off the table"]);
    assert_eq!(probe(&path, "probe_live_errors"), 0);
}

#[test]
fn tensors_of_another_device_and_wrong_sizes_are_refused_before_the_plugin_sees_them() {
    let Some((_folder, _path, backend)) = host_backend() else { return };
    let (here, there) = (backend.open(0).unwrap(), backend.open(1).unwrap());
    let (table, far) = (floats(&here, &[1, 2], &[1., 2.]), floats(&there, &[1, 1, 2], &[0., 0.]));
    let index = integers(&here, &[0]);

    let error = here.dispatch(&Gather { table: &table, index: &index, repeat: 1, out: &far }).unwrap_err().to_string();
    assert_contains(&error, &["gather: out lies on device 1", "runs on device 0"]);
    let error =
        here.dispatch(&Gather { table: &table, index: &index, repeat: 1, out: &table }).unwrap_err().to_string();
    assert_contains(&error, &["gather: out has shape [1, 2]", "3 dimensions"]);
    let error = here.upload(&table, &[0; 9]).unwrap_err().to_string();
    assert_contains(&error, &["upload: tensor has 8 bytes", "9 are to be copied"]);
    assert!(here.download(&far, &mut [0; 8]).unwrap_err().to_string().contains("lies on device 1"));

    here.fill(&table, 0x3F).unwrap();
    assert_eq!(read(&here, &table), [f32::from_bits(0x3F3F_3F3F); 2]);
    assert_eq!(here.memory().unwrap(), (1 << 29, 1 << 30));
}

#[test]
fn missing_ops_are_those_without_the_version_that_the_core_calls() {
    let Some((_folder, _path, backend)) = host_backend() else { return };
    let missing = missing_ops(backend, "v41-text");
    assert!(!missing.contains(&"gather") && !missing.contains(&"rstd"));
    assert!(missing.contains(&"rms_norm"), "it has version 77 only");
}
