//! What the core reads of a plugin's structs that end at any field, where memory ends (`tests/plugins/edges.c`).

use std::path::Path;

use deepinfer_ops::args::Gather;
use deepinfer_ops::{Device, Dispatch, Format, OpError, Tensor};
use deepinfer_runtime::{LoadedBackend, OpenDevice, load};
use deepinfer_tests::layouts::fixed_structs;

use crate::c_plugin::plugin;
use crate::steps::{PerChild, Steps, run};

/// Structs of a plugin that the core reads, apart from the reply, which is the core's own memory.
const READ: [&str; 8] =
    ["DiBackendApi", "DiRuntimeApi", "DiOpEntry", "DiError", "DiGraphApi", "DiOpsTable", "DiOpInfo", "DiArgInfo"];

#[test]
fn the_core_stays_within_a_plugins_structs() {
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = plugin(folder.path(), "edges.c", "libdeepinfer_edges.so", &[]) else { return };
    let (taken, problems) = run("tables_at_edges::child", &library.display().to_string());
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert!(taken > 80, "only {taken} steps");
}

#[test]
fn child() {
    if let Some((library, mut steps)) = Steps::of_child(|_| PerChild::All) {
        let library = Path::new(&library);
        for layout in fixed_structs().into_iter().filter(|layout| READ.contains(&layout.name.as_str())) {
            for (size, missing) in layout.ends() {
                let end = missing.map_or("whole".to_owned(), |field| format!("without {field}"));
                let step = format!("{} of {size} bytes ({end})", layout.name);
                steps.take(&step, || use_all(library, &layout.name, size, missing.is_none()));
            }
        }
    }
}

/// Loads the plugin with one struct of this size and uses everything that is read of it. Whole structs must work; others
/// must do so or be refused in a sentence.
fn use_all(library: &Path, name: &str, size: usize, is_whole: bool) -> Result<(), String> {
    let copy = library.with_file_name(format!("libdeepinfer_edges_{name}_{size}.so"));
    std::fs::copy(library, &copy).map_err(|e| e.to_string())?;
    let outcome = load(&copy, &format!("edge={name}/{size}")).map_err(|e| e.to_string()).and_then(use_backend);
    match outcome {
        Ok(message)
            if is_whole && message != "edges/gather: nothing is to be gathered (code 9 of the vendor's library)" =>
        {
            Err(format!("its error reads {message:?}"))
        }
        Ok(message) if message.is_empty() => Err("its error is not told".to_owned()),
        Ok(_) => Ok(()),
        Err(problem) if is_whole || !problem.contains(' ') => Err(problem),
        Err(_) => Ok(()),
    }
}

/// Uses a backend; gives the text of its error.
fn use_backend(backend: &'static LoadedBackend) -> Result<String, String> {
    let devices = backend.device_infos().map_err(|e| e.to_string())?;
    let wrong = |what: &str| Err(format!("{what} is wrong"));
    if devices.len() != 2 || devices[1].name != "host memory" {
        return wrong("the list of devices");
    }
    backend.spaces(0).map_err(|e| e.to_string())?;
    backend.link(0, 1).map_err(|e| e.to_string())?;
    let own = backend.vendor_ops();
    let device = backend.open(1).map_err(|e| e.to_string())?;
    let gathered = gathers(&device);
    let filled = floats(&device, 4).map_err(|e| e.to_string())?;
    let again = device.record(|| device.fill(&filled, 1)).and_then(|list| device.launch(&list));
    again.map_err(|e: OpError| e.to_string())?;
    if gathered.map_err(|e| e.to_string())? != [20.0, 21.0] {
        return wrong("the result of gather");
    }
    // A backend whose table ends before the function that gives others has none.
    if own?.first().is_some_and(|op| op.name != "scale" || op.args.len() != 2) {
        return wrong("its own op");
    }
    Ok(fails(&device))
}

fn floats(device: &OpenDevice, count: usize) -> Result<Tensor, OpError> {
    Ok(Tensor::plain(&device.allocate(4 * count)?, 0, Format::F32, &[count]))
}

fn gather(device: &OpenDevice, index: &[i32]) -> Result<Tensor, OpError> {
    let table = floats(device, 6)?;
    let values = [0f32, 1., 10., 11., 20., 21.].map(f32::to_ne_bytes).concat();
    device.upload(&table, &values)?;
    let rows = Tensor::plain(&device.allocate(4 * index.len())?, 0, Format::I32, &[index.len()]);
    device.upload(&rows, &index.iter().flat_map(|i| i.to_ne_bytes()).collect::<Vec<_>>())?;
    let out = floats(device, 2 * index.len())?.reshape(&[index.len(), 1, 2]);
    device.dispatch(&Gather { table: &table.reshape(&[3, 2]), index: &rows, repeat: 1, out: &out })?;
    Ok(out)
}

fn gathers(device: &OpenDevice) -> Result<[f32; 2], OpError> {
    let mut bytes = [0; 8];
    device.download(&gather(device, &[2])?, &mut bytes)?;
    let (values, _) = bytes.as_chunks::<4>();
    Ok([f32::from_ne_bytes(values[0]), f32::from_ne_bytes(values[1])])
}

/// The text of the error that gather gives for nothing.
fn fails(device: &OpenDevice) -> String {
    gather(device, &[]).err().map(|error| error.to_string()).unwrap_or_default()
}
