//! `linear` by the vendor's ops, of which functions are missing or fail.

use std::rc::Rc;

use deepinfer_ops::args::Linear;
use deepinfer_ops::traits::*;
use deepinfer_ops::{Device, Format, Tensor};
use deepinfer_runtime::OpenDevice;
use deepinfer_tests::Tensors;

use crate::{child_with, prints};

/// A product of each of the vendor's ops, several times, each with what became of it.
pub(crate) fn act(device: &Rc<OpenDevice>) {
    let t = Tensors(device.clone());
    let plain = [
        t.f32(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
        t.f32(&[2, 3], &[1.0, 0.0, 2.0, 0.0, -1.0, 1.0]),
        t.poisoned(Format::F32, &[2, 2]),
    ];
    // Ones: 0x38 as E4M3, 127 as E8M0.
    let ones = |format, shape: [usize; 2]| {
        let scales = Tensor::scale_shape(format, &shape).unwrap().iter().product();
        t.quantized(format, &shape, &vec![0x38; shape[0] * shape[1]], &vec![127; scales])
    };
    let scaled =
        [ones(Format::Fp8Row32, [1, 64]), ones(Format::Fp8Tile32, [32, 64]), t.poisoned(Format::F32, &[1, 32])];
    for (name, [x, weight, out]) in [("plain", &plain), ("scaled", &scaled)] {
        for round in 1..=3 {
            device.upload(out, &vec![0xFF; out.bytes()]).unwrap_or_default();
            let mut bytes = vec![0; out.bytes()];
            let done = device
                .linear(&Linear { x, weight, groups: 1, out })
                .and_then(|()| device.synchronize())
                .and_then(|()| device.download(out, &mut bytes));
            let values: Vec<f32> = bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
            match done {
                Ok(()) => println!("{name} {round}: {:?}", &values[..out.dim(1).min(4)]),
                Err(error) => println!("{name} {round}: {error}"),
            }
        }
    }
}

/// What both products give where nothing fails.
const PLAIN: &str = "[7.0, 1.0]";
const SCALED: &str = "[64.0, 64.0, 64.0, 64.0]";

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
    for (name, values) in [("plain", PLAIN), ("scaled", SCALED)] {
        for round in 1..=3 {
            assert!(text.contains(&format!("{name} {round}: {values}")), "{text}");
        }
    }
}

#[test]
fn products_go_to_the_vendor_where_it_has_them() {
    let Some((text, calls)) = counted("opapi=all", &[]) else { return };
    computes(&text);
    assert!(calls.contains("aclnnMatmul 3\n") && calls.contains("aclnnQuantMatmulV5 3\n"), "{calls}");
}

/// Half of a pair of functions is of no use, and neither are ops without tensors: the kernels compute, and the other op stays.
#[test]
fn what_an_installation_lacks_is_computed_by_a_kernel() {
    for (lacking, called) in [
        ("without:aclnnMatmulGetWorkspaceSize", ["aclnnQuantMatmulV5 3\n"].as_slice()),
        ("without:aclnnMatmul", &["aclnnQuantMatmulV5 3\n"]),
        ("without:aclnnQuantMatmulV5GetWorkspaceSize", &["aclnnMatmul 3\n"]),
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
fn a_device_that_is_lost_in_an_op_of_the_vendor_says_so_from_then_on() {
    let advice = "nothing works on this device any more in this process: start it again";
    for (fault, sentence) in [
        ("fail=aclnnMatmul:2:507015", "aclnnMatmul is not queued: a kernel of the AI cores failed (507015)"),
        ("lost=aclnnMatmul:2", "aclnnMatmul is not queued: the device lost its heartbeat (507010)"),
        ("lost=aclnnMatmulGetWorkspaceSize:2", "aclnnMatmul is not planned: the device lost its heartbeat (507010)"),
    ] {
        let lost = ["plain 2", "plain 3", "scaled 3"].map(|what| format!("{what}: the device is lost: ascend"));
        let mut parts = vec![sentence, advice];
        parts.extend(lost.iter().map(String::as_str));
        prints("products", &format!("opapi=all,{fault}"), &parts);
    }
}
