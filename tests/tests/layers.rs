//! Layers over a backend: their order, their options, what is refused, and who is named when something goes wrong.

#![allow(unsafe_code)]

mod c_compiler;
mod c_plugin;

use std::path::{Path, PathBuf};

use c_plugin::plugin;
use deepinfer_ops::args::Gather;
use deepinfer_ops::{Device, Dispatch, Format, Tensor};
use deepinfer_runtime::{
    LayerError, Layers, LoadedBackend, OpenDevice, Runtime, SearchPath, SelectError, Selection, load,
};
use tempfile::TempDir;

fn assert_contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
}

/// A counter of a plugin, read through the library that is already loaded.
fn probe(path: &Path, counter: &str) -> i32 {
    // SAFETY: the library is loaded and stays so; its counters are functions of this type.
    unsafe {
        let library = libloading::os::unix::Library::new(path).unwrap();
        let symbol = library.get::<unsafe extern "C" fn() -> i32>(counter).unwrap();
        symbol()
    }
}

/// A folder with a backend and two layers, loaded by nobody else.
struct Plugins {
    folder: TempDir,
}

impl Plugins {
    /// `None` when there is no compiler.
    fn new() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        plugin(folder.path(), "ends.c", "libdeepinfer_c_ends.so", &["-DNAME=\"c-ends\""])?;
        plugin(folder.path(), "layer.c", "libdeepinfer_c_outer.so", &["-DNAME=\"c-outer\""])?;
        plugin(folder.path(), "layer.c", "libdeepinfer_c_inner.so", &["-DNAME=\"c-inner\""])?;
        Some(Self { folder })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("libdeepinfer_{}.so", name.replace('-', "_")))
    }

    fn runtime(&self, layers: &str) -> Runtime {
        let search = SearchPath::of([self.folder.path().to_owned()]);
        Runtime::new(search).with_layers(Layers::parse(layers).unwrap())
    }

    fn select(&self, layers: &str) -> Result<&'static LoadedBackend, SelectError> {
        let selection = Selection::parse("c-ends").unwrap();
        self.runtime(layers).select(&selection).map(|(backend, _)| backend)
    }

    fn count(&self, name: &str, counter: &str) -> i32 {
        probe(&self.file(name), counter)
    }
}

fn floats(device: &OpenDevice, shape: &[usize], values: &[f32]) -> Tensor {
    let memory = device.allocate(Tensor::bytes_of(Format::F32, shape)).unwrap();
    let tensor = Tensor::plain(&memory, 0, Format::F32, shape);
    device.upload(&tensor, &values.iter().flat_map(|v| v.to_ne_bytes()).collect::<Vec<u8>>()).unwrap();
    tensor
}

/// Gathers one row of a table of 1 and 2.
fn gathered(device: &OpenDevice) -> Vec<u8> {
    let (table, out) = (floats(device, &[1, 2], &[1., 2.]), floats(device, &[1, 1, 2], &[0., 0.]));
    let memory = device.allocate(4).unwrap();
    let index = Tensor::plain(&memory, 0, Format::I32, &[1]);
    device.upload(&index, &[0; 4]).unwrap();
    device.dispatch(&Gather { table: &table, index: &index, repeat: 1, out: &out }).unwrap();
    let mut bytes = vec![0; 8];
    device.download(&out, &mut bytes).unwrap();
    bytes
}

#[test]
fn the_first_layer_is_the_outermost_and_the_backend_keeps_its_name() {
    let Some(plugins) = Plugins::new() else { return };
    let backend = plugins.select("c-outer:tag=a;c-inner:quiet").unwrap();
    assert_eq!((backend.name(), backend.title().as_str()), ("c-ends", "c-ends + c-inner + c-outer"));
    assert_eq!(backend.path(), plugins.file("c-ends").canonicalize().unwrap());
    let layers: Vec<_> = backend.layers().iter().map(|l| (l.name.as_str(), l.options.as_str())).collect();
    assert_eq!(layers, [("c-outer", "tag=a"), ("c-inner", "quiet=1")]);
    assert_eq!(backend.layers()[0].path, plugins.file("c-outer").canonicalize().unwrap());

    let device = backend.open(0).unwrap();
    assert_eq!(gathered(&device), [1f32, 2.].map(f32::to_ne_bytes).concat());
    device.fill(&floats(&device, &[1], &[0.]), 0).unwrap();
    assert_eq!((plugins.count("c-outer", "probe_fills"), plugins.count("c-inner", "probe_fills")), (1, 1));
    // Asking again wraps nothing again.
    assert!(std::ptr::eq(backend, plugins.select("c-outer:tag=a;c-inner:quiet").unwrap()));
    assert_eq!(plugins.count("c-outer", "probe_entries_called"), 1);

    // Without layers, and over something else, it is another stack.
    assert_eq!(plugins.select("").unwrap().title(), "c-ends");
    assert_eq!(plugins.select("c-outer:tag=b").unwrap().title(), "c-ends + c-outer");
    assert_eq!((plugins.count("c-outer", "probe_wraps"), plugins.count("c-ends", "probe_calls_to_entry")), (2, 1));
}

#[test]
fn a_layer_has_one_set_of_options_for_what_it_wraps() {
    let Some(plugins) = Plugins::new() else { return };
    plugins.select("c-inner:tag=a").unwrap();
    let error = plugins.select("c-inner:tag=b").unwrap_err().to_string();
    assert_contains(&error, &["\"c-inner\" cannot be put over c-ends", "options \"tag=a\"", "\"tag=b\""]);
}

#[test]
fn layers_are_found_by_their_path() {
    let Some(plugins) = Plugins::new() else { return };
    let path = plugins.file("c-inner");
    let backend = load(&plugins.file("c-ends"), "").unwrap();
    let layers = Layers::parse(&format!("{}:tag=x", path.display())).unwrap();
    let nowhere = SearchPath::default();
    assert_eq!(layers.wrap(backend, &nowhere).unwrap().title(), "c-ends + c-inner");
}

#[test]
fn what_is_no_layer_is_refused_and_nothing_is_left_out() {
    let Some(plugins) = Plugins::new() else { return };
    let sentence = |layers: &str| {
        let error = plugins.select(layers).unwrap_err();
        assert!(matches!(error, SelectError::Layer(_)), "{error:?}");
        error.to_string()
    };
    let unknown = sentence("c-outer;c-absent");
    assert_contains(&unknown, &["there is no layer \"c-absent\"", "libdeepinfer_c_absent.so"]);
    assert_contains(&unknown, &[plugins.folder.path().to_str().unwrap()]);

    // A backend that runs is not started as a layer.
    let parts = ["\"c-ends\" cannot be put over c-ends", "the plugin c-ends is a backend, not a layer"];
    assert_contains(&sentence("c-ends"), &parts);
    assert_eq!(plugins.count("c-ends", "probe_calls_to_entry"), 1);
    // One that does not run is started at most once, whatever it takes the call for.
    let other =
        plugin(plugins.folder.path(), "host_backend.c", "libdeepinfer_other.so", &["-DNAME=\"other\""]).unwrap();
    assert_contains(&sentence("other"), &["the plugin other is a backend, not a layer"]);
    assert_eq!(load(&other, "").unwrap().name(), "other");
    assert_eq!(probe(&other, "probe_calls_to_entry"), 1);

    let parts = ["\"c-inner\" cannot be put over c-ends", "the plugin c-inner refused to start: not over this"];
    assert_contains(&sentence("c-inner:fault=start"), &parts);
    let parts = ["the plugin's reply is malformed: a layer without a shutdown function could not end what it wraps"];
    assert_contains(&sentence("c-outer:mute"), &parts);
    assert_contains(&sentence("./libdeepinfer_nowhere.so"), &["libdeepinfer_nowhere.so: the file cannot be read"]);
    std::fs::write(plugins.file("broken"), "text\n").unwrap();
    assert_contains(
        &sentence("broken"),
        &["\"broken\" cannot be put over c-ends", "cannot be loaded as a shared library"],
    );
}

#[test]
fn a_layer_is_no_backend_and_auto_passes_it_over() {
    let Some(plugins) = Plugins::new() else { return };
    let select = |text: &str| plugins.runtime("").select(&Selection::parse(text).unwrap());
    let error = select(plugins.file("c-inner").to_str().unwrap()).unwrap_err().to_string();
    assert_contains(&error, &["the plugin c-inner is a layer, not a backend; it goes into DEEPINFER_LAYERS"]);
    let error = select("c-outer").unwrap_err().to_string();
    assert_contains(&error, &["no accelerator backend \"c-outer\"", "libdeepinfer_c_outer.so: c-outer is a layer"]);
    // Named by nobody, the layers stand in nobody's way; the backend lacks ops, which is another matter.
    let error = select("auto").unwrap_err().to_string();
    assert_contains(&error, &["c_inner.so: c-inner is a layer, not a backend", "c-ends does not implement"]);
    // To have been asked for a backend does not spoil it as a layer.
    assert_eq!(plugins.select("c-inner").unwrap().title(), "c-ends + c-inner");
    let error = load(&plugins.file("c-inner"), "").unwrap_err().to_string();
    assert_contains(&error, &["is a layer, not a backend"]);
}

#[test]
fn a_flag_that_is_missing_makes_it_a_backend() {
    let Some(plugins) = Plugins::new() else { return };
    let switches = ["-DNAME=\"c-shy\"", "-DNOT_A_LAYER"];
    plugin(plugins.folder.path(), "layer.c", "libdeepinfer_c_shy.so", &switches).unwrap();
    let error = plugins.select("c-shy").unwrap_err().to_string();
    assert_contains(&error, &["\"c-shy\" cannot be put over c-ends", "c-shy is a backend, not a layer"]);
}

#[test]
fn faults_of_a_layer_carry_its_name_and_those_of_the_backend_its_own() {
    let Some(plugins) = Plugins::new() else { return };
    let device = plugins.select("c-outer:fault=fill").unwrap().open(0).unwrap();
    let error = device.fill(&floats(&device, &[1], &[0.]), 0).unwrap_err().to_string();
    assert_contains(&error, &["c-outer/fill: the fill was not to my taste"]);
    let error = device.allocate(2 << 30).unwrap_err().to_string();
    assert_contains(&error, &["c-ends/alloc: the toy is full"]);
    drop(device);

    let device = plugins.select("c-inner:fault=gather").unwrap().open(0).unwrap();
    assert_ne!(gathered(&device), [1f32, 2.].map(f32::to_ne_bytes).concat());
}

#[test]
fn a_backend_is_ended_once_through_its_layers_when_no_device_is_open() {
    for (layers, ends_of_outer) in [("", 0), ("c-outer", 1), ("c-outer;c-inner", 1), ("c-inner", 0)] {
        let Some(plugins) = Plugins::new() else { return };
        let backend = plugins.select(layers).unwrap();
        let device = backend.open(0).unwrap();
        let memory = device.allocate(16).unwrap();
        drop(device);
        assert_eq!(backend.shutdown().unwrap_err().to_string(), "a device is still open", "{layers}");
        drop(memory);
        assert_eq!(plugins.count("c-ends", "probe_ends"), 0, "{layers}");
        for _ in 0..2 {
            backend.shutdown().unwrap();
            assert_eq!(plugins.count("c-ends", "probe_ends"), 1, "{layers}");
        }
        let outer = plugins.file("c-outer");
        assert_eq!(if layers.contains("outer") { probe(&outer, "probe_shutdowns") } else { 0 }, ends_of_outer);
        // Nobody uses it any more, by whatever way.
        assert_eq!(backend.open(0).unwrap_err().to_string(), "the backend was shut down");
        let bare = load(&plugins.file("c-ends"), "").unwrap();
        assert_eq!(bare.device_count().unwrap_err().to_string(), "the backend was shut down");
        bare.shutdown().unwrap();
        assert_eq!(plugins.count("c-ends", "probe_ends"), 1);
    }
}

#[test]
fn an_end_that_goes_wrong_says_so_and_is_an_end() {
    let folder = tempfile::tempdir().unwrap();
    let Some(path) = plugin(folder.path(), "ends.c", "libdeepinfer_grudge.so", &["-DGRUDGING"]) else { return };
    let backend = load(&path, "").unwrap();
    assert_eq!(backend.shutdown().unwrap_err().to_string(), "a thread would not stop");
    backend.shutdown().unwrap();
    assert_eq!(probe(&path, "probe_ends"), 1);
}

#[test]
fn malformed_layers_are_one_sentence() {
    let error = Layers::parse("validate:shadow=1/64,,poison").unwrap_err();
    assert!(matches!(error, LayerError::Malformed { .. }));
    let parts = ["DEEPINFER_LAYERS: the layers \"validate:shadow=1/64,,poison\" cannot be understood", "option \"\""];
    assert_contains(&error.to_string(), &parts);
}
