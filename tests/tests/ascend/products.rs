//! `linear` and `grouped_linear` by the vendor's ops, of which functions are missing or fail.

use std::rc::Rc;

use deepinfer_ops::args::{GroupedLinear, Linear};
use deepinfer_ops::traits::*;
use deepinfer_ops::{Device, Format, OpError, Tensor};
use deepinfer_runtime::OpenDevice;
use deepinfer_tests::Tensors;

use crate::{child_with, prints};

/// A product of each of the vendor's ops, several times, each with what became of it.
pub(crate) fn act(device: &Rc<OpenDevice>) {
    let t = Tensors(device.clone());
    let rows = t.f32(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let matrices = [t.f32(&[2, 3], &[1.0, 0.0, 2.0, 0.0, -1.0, 1.0]), t.f32(&[2, 3], &[1.0, 1.0, 0.0, 0.0, 0.0, 2.0])];
    // Ones: 0x38 as E4M3, 127 as E8M0.
    let ones = |format, shape: [usize; 2]| {
        let scales = Tensor::scale_shape(format, &shape).unwrap().iter().product();
        t.quantized(format, &shape, &vec![0x38; shape[0] * shape[1]], &vec![127; scales])
    };
    let scaled = [ones(Format::Fp8Row32, [1, 64]), ones(Format::Fp8Tile32, [32, 64])];
    let experts = [&matrices[0], &matrices[1], &matrices[0]].map(Tensor::clone);
    // The first row is of the first expert; the last has none.
    let starts = [[0, 1, 2, 2], [0, 0, 0, 1], [0, 2, 1, 2]].map(|starts| t.i32(&[4], &starts));
    let linear = |x: &Tensor, weight: &Tensor, out: &Tensor| device.linear(&Linear { x, weight, groups: 1, out });
    let grouped = |expert_start: &Tensor, out: &Tensor| {
        device.grouped_linear(&GroupedLinear { x: &rows, expert_start, weight: &experts, out })
    };
    let (two, many) = (t.poisoned(Format::F32, &[2, 2]), t.poisoned(Format::F32, &[1, 32]));
    type Product<'a> = &'a dyn Fn() -> Result<(), OpError>;
    let products: [(&str, &Tensor, Product<'_>); 5] = [
        ("plain", &two, &|| linear(&rows, &matrices[0], &two)),
        ("scaled", &many, &|| linear(&scaled[0], &scaled[1], &many)),
        ("grouped", &two, &|| grouped(&starts[0], &two)),
        ("a row", &two, &|| grouped(&starts[1], &two)),
        ("descending", &two, &|| grouped(&starts[2], &two)),
    ];
    for (name, out, product) in products {
        for round in 1..=3 {
            device.upload(out, &vec![0xFF; out.bytes()]).unwrap_or_default();
            let mut bytes = vec![0; out.bytes()];
            let done = product().and_then(|()| device.synchronize()).and_then(|()| device.download(out, &mut bytes));
            let values: Vec<f32> = bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
            match done {
                Ok(()) => println!("{name} {round}: {:?}", &values[..4]),
                Err(error) => println!("{name} {round}: {error}"),
            }
        }
    }
}

/// What the products give where nothing fails.
const PLAIN: &str = "[7.0, 1.0, 16.0, 1.0]";
const SCALED: &str = "[64.0, 64.0, 64.0, 64.0]";
const GROUPED: &str = "[7.0, 1.0, 9.0, 12.0]";
/// A row that is no expert's keeps what was there.
const A_ROW: &str = "[7.0, 1.0, NaN, NaN]";

/// Starts that descend are found before; the op is called all the same, and has no rows.
const GROUPED_CALLS: &str = "aclnnGroupedMatmulV5 9\n";
const DESCENDS: &str = "a value below the one before it";

/// How often functions were called in a child under these settings, and what it printed.
fn counted(settings: &str, variables: &[(&str, &str)]) -> Option<(String, String)> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("calls");
    let settings = format!("{settings},count={}", file.display());
    let text = child_with("products", &[&[("DEEPINFER_FAKE_ACL", settings.as_str())], variables].concat())?;
    Some((text, std::fs::read_to_string(file).unwrap()))
}

#[track_caller]
fn computes(text: &str) {
    for (name, values) in [("plain", PLAIN), ("scaled", SCALED), ("grouped", GROUPED), ("a row", A_ROW)] {
        for round in 1..=3 {
            assert!(text.contains(&format!("{name} {round}: {values}")), "{text}");
        }
    }
    // Whoever computes looks at the starts.
    let told = text.lines().filter(|line| line.starts_with("descending ") && line.contains(DESCENDS)).count();
    assert_eq!(told, 3, "{text}");
}

#[test]
fn products_go_to_the_vendor_where_it_has_them() {
    let Some((text, calls)) = counted("opapi=all", &[]) else { return };
    computes(&text);
    for called in ["aclnnMatmul 3\n", "aclnnQuantMatmulV5 3\n", GROUPED_CALLS] {
        assert!(calls.contains(called), "{calls}");
    }
}

/// Half of a pair of functions is of no use, and neither are ops without tensors: the kernels compute, and the other ops stay.
#[test]
fn what_an_installation_lacks_is_computed_by_a_kernel() {
    for (lacking, called) in [
        ("without:aclnnMatmulGetWorkspaceSize", [GROUPED_CALLS, "aclnnQuantMatmulV5 3\n"].as_slice()),
        ("without:aclnnMatmul", &[GROUPED_CALLS, "aclnnQuantMatmulV5 3\n"]),
        ("without:aclnnQuantMatmulV5GetWorkspaceSize", &[GROUPED_CALLS, "aclnnMatmul 3\n"]),
        ("without:aclnnGroupedMatmulV5GetWorkspaceSize", &["aclnnMatmul 3\n", "aclnnQuantMatmulV5 3\n"]),
        ("without:aclnnGroupedMatmulV5", &["aclnnMatmul 3\n", "aclnnQuantMatmulV5 3\n"]),
        ("without:aclDestroyTensorList", &["aclnnMatmul 3\n", "aclnnQuantMatmulV5 3\n"]),
        ("without:aclCreateTensor", &[]),
        ("none", &[]),
    ] {
        let Some((text, calls)) = counted(&format!("opapi={lacking}"), &[]) else { return };
        computes(&text);
        let vendor: Vec<&str> = calls.split_inclusive('\n').filter(|line| line.starts_with("aclnn")).collect();
        let of_phases = |op: &&str| !op.contains("GetWorkspaceSize");
        assert_eq!(vendor.into_iter().filter(of_phases).collect::<Vec<_>>(), called, "{lacking}");
    }
}

/// Who insists on the vendor's implementation reads which function is missing.
#[test]
fn an_implementation_that_is_insisted_on_names_what_is_missing() {
    for (lacking, missing) in [
        ("without:aclnnMatmulGetWorkspaceSize", "the CANN that is installed has no aclnnMatmulGetWorkspaceSize"),
        ("without:aclDestroyTensor", "the CANN that is installed has no aclDestroyTensor"),
        ("none", "the CANN that is installed has no libopapi.so"),
    ] {
        let variables = [("DEEPINFER_OP_IMPL", "linear=aclnn")];
        let Some((text, _)) = counted(&format!("opapi={lacking}"), &variables) else { return };
        assert!(text.contains(missing) && !text.contains(&format!("plain 1: {PLAIN}")), "{lacking}: {text}");
    }
    for function in ["aclCreateTensorList", "aclnnGroupedMatmulV5GetWorkspaceSize", "aclnnGroupedMatmulV5"] {
        let variables = [("DEEPINFER_OP_IMPL", "grouped_linear=aclnn")];
        let Some((text, _)) = counted(&format!("opapi=without:{function}"), &variables) else { return };
        let missing = format!("the CANN that is installed has no {function}");
        assert!(text.contains(&missing) && text.contains(&format!("plain 1: {PLAIN}")), "{text}");
        assert!(!text.contains(&format!("grouped 1: {GROUPED}")), "{text}");
    }
}

/// What the vendor says of a call ends that call, and the next one is as good as ever.
#[test]
fn a_call_that_the_vendor_refuses_is_told_and_the_next_one_works() {
    for (fault, sentence) in [
        (
            "fail=aclnnMatmulGetWorkspaceSize:2:161002",
            "aclnnMatmul is not planned: an argument is wrong (161002): EF161002: aclnnMatmulGetWorkspaceSize: as",
        ),
        ("fail=aclnnMatmulGetWorkspaceSize:2:361001", "aclnnMatmul is not planned: the runtime failed (361001)"),
        ("fail=aclnnMatmul:2:561103", "aclnnMatmul is not queued: the op failed inside (561103)"),
        ("fail=aclnnMatmul:2:107003", "aclnnMatmul is not queued: the stream is of another context (107003)"),
        // Executors that were used, and workspaces that are none.
        (
            "stale=aclnnMatmul:2",
            "aclnnMatmul is not queued: the op failed inside (561000): EF561000: aclnnMatmul: the executor was used before",
        ),
        (
            "workspace=aclnnMatmul:2:0",
            "aclnnMatmul is not queued: an argument is wrong (161002): EF161002: aclnnMatmul: a workspace smaller than the op needs",
        ),
        ("workspace=aclnnMatmul:2:32", "a workspace smaller than the op needs"),
        (
            "workspace=aclnnMatmul:2:1000000000000",
            "device memory is not available: ascend/linear: 1000000000000 bytes of device memory are needed, but ",
        ),
        ("fail=aclnnMatmul:2:207018", "device memory is not available: ascend/linear: aclnnMatmul is not queued"),
    ] {
        let parts = ["plain 2: ", sentence, &format!("plain 1: {PLAIN}"), &format!("plain 3: {PLAIN}"), SCALED];
        prints("products", &format!("opapi=all,{fault}"), &parts);
    }
}

/// Scratch memory of a call that is refused is still being written by a kernel.
#[test]
fn a_scaled_product_that_is_refused_leaves_the_device_as_it_was() {
    for (fault, sentence) in [
        (
            "fail=aclnnQuantMatmulV5GetWorkspaceSize:2:161001",
            "aclnnQuantMatmulV5 is not planned: an argument is missing",
        ),
        ("stale=aclnnQuantMatmulV5:2", "EF561000: aclnnQuantMatmulV5: the executor was used before"),
        ("workspace=aclnnQuantMatmulV5:2:1000000000000", "1000000000000 bytes of device memory are needed"),
    ] {
        let parts = ["scaled 2: ", sentence, &format!("scaled 1: {SCALED}"), &format!("scaled 3: {SCALED}")];
        prints("products", &format!("opapi=all,{fault}"), &parts);
    }
}

#[test]
fn a_grouped_product_that_is_refused_leaves_the_device_as_it_was() {
    for (fault, sentence) in [
        (
            "fail=aclnnGroupedMatmulV5GetWorkspaceSize:2:161002",
            "ascend/grouped_linear: aclnnGroupedMatmulV5 is not planned: an argument is wrong (161002)",
        ),
        ("fail=aclnnGroupedMatmulV5:2:561103", "aclnnGroupedMatmulV5 is not queued: the op failed inside (561103)"),
        ("stale=aclnnGroupedMatmulV5:2", "EF561000: aclnnGroupedMatmulV5: the executor was used before"),
        ("workspace=aclnnGroupedMatmulV5:2:0", "EF161002: aclnnGroupedMatmulV5: a workspace smaller than the op needs"),
        ("workspace=aclnnGroupedMatmulV5:2:1000000000000", "1000000000000 bytes of device memory are needed"),
    ] {
        let parts = ["grouped 2: ", sentence, &format!("grouped 1: {GROUPED}"), &format!("grouped 3: {GROUPED}")];
        prints("products", &format!("opapi=all,{fault}"), &parts);
    }
}

#[test]
fn a_device_that_is_lost_in_an_op_of_the_vendor_says_so_from_then_on() {
    let advice = "nothing works on this device any more in this process: start it again";
    for (fault, sentence) in [
        ("fail=aclnnMatmul:2:507015", "aclnnMatmul is not queued: a kernel of the AI cores failed (507015)"),
        ("lost=aclnnMatmul:2", "aclnnMatmul is not queued: the device lost its heartbeat (507010)"),
        ("lost=aclnnMatmulGetWorkspaceSize:2", "aclnnMatmul is not planned: the device lost its heartbeat (507010)"),
    ] {
        let lost =
            ["plain 2", "plain 3", "scaled 3", "grouped 3"].map(|what| format!("{what}: the device is lost: ascend"));
        let mut parts = vec![sentence, advice];
        parts.extend(lost.iter().map(String::as_str));
        prints("products", &format!("opapi=all,{fault}"), &parts);
    }
}
