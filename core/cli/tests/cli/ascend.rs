//! The ascend backend on its host twin, as a user meets it, with faults on purpose (`backends/ascend-950/fake/settings.h`). What
//! becomes of single calls is in `tests/tests/ascend`.

use std::collections::HashMap;
use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::command::{Run, command, finish, json_lines};

fn on_twin(args: &[&str], settings: &str) -> Command {
    let mut command = command(args);
    command.env("DEEPINFER_ACCELERATOR", "ascend").env("DEEPINFER_FAKE_ACL", settings);
    command
}

/// What `doctor` says; `None`, with a line that says so, where the plugin was built without the twin.
fn doctor(settings: &str) -> Option<String> {
    let run: Run = finish(&mut on_twin(&["doctor"], settings));
    let text = run.succeeded().to_owned();
    if text.contains("no CANN") {
        eprintln!("skipped: the ascend backend was built without the host twin");
        return None;
    }
    Some(text)
}

#[track_caller]
fn says(settings: &str, parts: &[&str]) {
    let Some(text) = doctor(settings) else { return };
    for part in parts {
        assert!(text.contains(part), "{settings}: {part:?} is missing in: {text}");
    }
}

#[test]
fn doctor_tells_the_twin_from_a_device() {
    says(
        "hbm=2G",
        &["device 0: Ascend 950 (host twin, seed 0) (ascend950-host-twin, 2.0 GiB, emulated on this processor)"],
    );
    says("", &["\nselected: device 0 of ascend (", "libdeepinfer_ascend_950.so), emulated on this processor\n"]);
    says("devices=2", &["device 0: Ascend 950 (host twin, seed 0)", "device 1: Ascend 950 (host twin, seed 0)"]);
    says("devices=0", &["no device: CANN is installed, but it finds no Ascend device"]);
    says("fail=aclInit:1:507899", &["no device: CANN is installed, but its runtime does not start (error 507899)"]);
}

/// Of the twin's own: what a device that lacks them is said to lack.
#[test]
fn doctor_lists_the_vendors_ops_that_an_installation_lacks() {
    says("opapi=all", &["Ascend 950 (host twin, seed 0) (ascend950"]);
    for (lacking, words) in [
        ("without:aclnnQuantMatmulV5", "aclnnQuantMatmulV5"),
        ("without:aclnnMatmulGetWorkspaceSize", "aclnnMatmulGetWorkspaceSize"),
        ("without:aclnnGroupedMatmulV5", "aclnnGroupedMatmulV5"),
        ("without:aclDestroyTensorList", "aclDestroyTensorList"),
        ("none", "libopapi.so"),
    ] {
        says(
            &format!("opapi={lacking}"),
            &[&format!("Ascend 950 (host twin, seed 0), without {words} of CANN (ascend950")],
        );
    }
}

/// A number that the runtime does not tell is not 0.
#[test]
fn doctor_says_that_memory_is_unknown_and_why() {
    let why = "Ascend 950 (host twin, seed 0), memory unknown: aclrtGetDeviceInfo of attribute 301: an error of the runtime \
               (500000): EF500000: aclrtGetDeviceInfo: as DEEPINFER_FAKE_ACL says (ascend950-host-twin, memory unknown, emulated";
    says("fail=aclrtGetDeviceInfo:1:500000", &[why]);
    says(
        "fail=aclrtGetDeviceInfo:2:500000",
        &["cores unknown: aclrtGetDeviceInfo of attribute 201", ", 4.0 GiB, emulated"],
    );
    // Whoever plans with it says so, too.
    fails("fail=aclrtGetMemInfo:1:500000", 1, &["the memory of the device: an error of the runtime (500000)"]);
}

/// As any variable that cannot be understood: `doctor` tells it and goes on, a command that needs the device is refused.
#[test]
fn settings_that_mean_nothing_are_refused() {
    let sentence =
        "DEEPINFER_FAKE_ACL: the setting \"devices=-1\" cannot be understood: devices is a whole number from 0 to 64";
    says("devices=-1", &[&format!("  no device: {sentence}"), "selected: nothing: ", sentence]);
    fails("devices=-1", 2, &["error: ", &format!("the backend ascend has no device: {sentence}")]);

    let sentence = "DEEPINFER_TWIN_SEED is \"five\", but a seed is a whole number from 0 to 18446744073709551615";
    let seeded = |args: &[&str]| finish(on_twin(args, "").env("DEEPINFER_TWIN_SEED", "five"));
    let text = seeded(&["doctor"]).succeeded().to_owned();
    if text.contains("no CANN") {
        return;
    }
    assert!(text.contains(&format!("  no device: {sentence}")) && text.contains("selected: nothing: "), "{text}");
    let run = seeded(&["generate", "Hello", "--max-tokens", "1"]);
    assert!(run.code == Some(2) && run.stderr.contains(sentence), "{run:?}");
}

#[test]
fn the_twin_is_used_only_when_it_is_named() {
    let run = finish(on_twin(&["doctor"], "").env("DEEPINFER_ACCELERATOR", "auto"));
    let text = run.succeeded();
    if text.contains("no CANN") {
        return;
    }
    assert!(
        text.contains("the first device of the backend ascend is emulated, and is used only when it is named"),
        "{text}"
    );
    assert!(!text.contains("selected: ascend"), "{text}");
}

/// Generates a few tokens; `None` where the plugin was built without the twin.
fn generates(tokens: &str, settings: &str) -> Option<Run> {
    let folder = tempfile::tempdir().unwrap();
    let mut command = on_twin(&["generate", "Hello", "--max-tokens", tokens], settings);
    let run = finish(command.env("DEEPINFER_FLIGHT_RECORDER", folder.path()));
    assert!(!run.stderr.contains("panicked"), "{settings}: {}", run.stderr);
    if run.stderr.contains("was built without its Ascend kernels") || run.stderr.contains("no CANN") {
        eprintln!("skipped: the ascend backend was built without the host twin");
        return None;
    }
    Some(run)
}

/// Generating must end with this code and a sentence that has these parts.
#[track_caller]
fn fails(settings: &str, code: i32, parts: &[&str]) {
    let Some(run) = generates("4", settings) else { return };
    assert_eq!(run.code, Some(code), "{settings}: {run:?}");
    for part in parts {
        assert!(run.stderr.contains(part), "{settings}: {part:?} is missing in: {}", run.stderr);
    }
}

#[test]
fn memory_that_is_not_there_before_the_first_step() {
    // Refused by the plan, before anything is loaded.
    fails("hbm=9000000", 2, &["of the device's", "free bytes may be used"]);
    // Somebody else takes it after the plan was made.
    fails("oom_at=3", 1, &["64 bytes of device memory are needed, but", "are free: out of memory (207001)"]);
}

/// Two requests one after the other, and the results of both; `None` where the plugin was built without the twin.
fn two_requests(settings: &str) -> Option<(Run, Vec<Value>)> {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("in.jsonl");
    let line = |id: &str| format!("{{\"id\": \"{id}\", \"prompt\": \"Hello\", \"max_tokens\": 2}}\n");
    fs::write(&input, ["a", "b"].map(line).concat()).unwrap();
    let args = ["generate", "--prompts", input.to_str().unwrap(), "--max-num-seqs", "1"];
    let run = finish(on_twin(&args, settings).env("DEEPINFER_FLIGHT_RECORDER", folder.path()));
    if run.stderr.contains("was built without its Ascend kernels") || run.stderr.contains("no CANN") {
        return None;
    }
    let results = json_lines(&run.stdout);
    assert_eq!(results.len(), 2, "{settings}: {run:?}");
    Some((run, results))
}

/// The first of two requests must end with a sentence that has these parts, and the other must not notice.
#[track_caller]
fn ends_one_request(settings: &str, parts: &[&str]) {
    let Some((run, results)) = two_requests(settings) else { return };
    assert_eq!(run.code, Some(1), "{settings}: {run:?}");
    let error = results[0]["error"]["message"].as_str().unwrap_or_else(|| panic!("{settings}: {run:?}"));
    for part in parts {
        assert!(error.contains(part), "{settings}: {part:?} is missing in: {error}");
    }
    assert_eq!(results[1]["token_ids"].as_array().map(Vec::len), Some(2), "{settings}: {run:?}");
}

/// The kernels of an op are loaded when it runs first, so that a prompt can find the memory taken.
#[test]
fn memory_that_runs_out_in_a_prefill_ends_that_request_only() {
    ends_one_request("fail=aclrtBinaryLoadFromData:9:207001", &["device memory is not available", "bytes are free"]);
}

#[test]
fn a_launch_that_fails_ends_that_request_only() {
    let settings = "fail=aclrtLaunchKernelWithHostArgs:300:107019";
    ends_one_request(settings, &["the launch of ", ": it took too long (107019): EF107019"]);
}

/// Ops of the vendor that fail, executors that were used and workspaces that are too small: what they say ends one request.
#[test]
fn a_product_of_the_vendor_that_fails_ends_that_request_only() {
    for (fault, sentence) in [
        (
            "fail=aclnnQuantMatmulV5GetWorkspaceSize:3:161002",
            "aclnnQuantMatmulV5 is not planned: an argument is wrong (161002)",
        ),
        (
            "stale=aclnnQuantMatmulV5:3",
            "aclnnQuantMatmulV5 is not queued: the op failed inside (561000): EF561000: aclnnQuantMatmulV5: the executor was used before",
        ),
        ("workspace=aclnnQuantMatmulV5:3:0", "EF161002: aclnnQuantMatmulV5: a workspace smaller than the op needs"),
        ("workspace=aclnnQuantMatmulV5:3:1000000000000", "1000000000000 bytes of device memory are needed, but "),
    ] {
        ends_one_request(&format!("opapi=all,{fault}"), &["ascend/linear: ", sentence]);
    }
    let fault = "opapi=all,fail=aclnnQuantMatmulV5:3:507015";
    let sentence = "aclnnQuantMatmulV5 is not queued: a kernel of the AI cores failed (507015)";
    fails(fault, 1, &["the device is lost: ascend/linear: ", sentence, "start it again"]);
}

/// Half of an op is none: the kernels compute, with the same bits.
#[test]
fn ops_that_an_installation_lacks_change_nothing() {
    let texts = ["", "opapi=none", "opapi=without:aclCreateTensor"].map(|settings| generates("4", settings));
    let [Some(usual), Some(no_library), Some(no_tensors)] = texts else { return };
    assert_eq!(usual.succeeded(), no_library.succeeded());
    assert_eq!(usual.stdout, no_tensors.succeeded());
}

/// Steps whose recording fails are issued op by op, with the same tokens; a stream that stays captured is the end.
#[test]
fn a_capture_that_fails_changes_nothing_or_is_the_end() {
    let Some(usual) = generates("8", "") else { return };
    for fault in
        ["fail=aclmdlRICaptureBegin:1:107030", "fail=aclmdlRICaptureEnd:1:507903", "fail=aclmdlRICaptureEnd:1:207001"]
    {
        let Some(run) = generates("8", fault) else { return };
        assert_eq!(usual.succeeded(), run.succeeded(), "{fault}");
    }
    let Some(run) = generates("8", "fail=aclmdlRICaptureEnd:1:207001,fail=aclmdlRICaptureEnd:2:207001") else { return };
    let sentence = "the end of a capture: out of memory (207001)";
    let parts = ["the device is lost: ascend", sentence, "the stream stays captured", "start it again"];
    assert!(run.code == Some(1) && parts.iter().all(|part| run.stderr.contains(part)), "{run:?}");
}

#[test]
fn a_device_that_is_lost_in_a_step_ends_every_request_with_a_sentence() {
    for (settings, sentence) in [
        ("wild_at=600", "a kernel of the vector cores failed (507035)"),
        ("stuck_at=600", "a kernel of the vector cores did not come to an end (507034)"),
        ("lost=aclrtSynchronizeEvent:2", "the device lost its heartbeat (507010)"),
        ("lost=aclrtLaunchKernelWithHostArgs:600", "the device lost its heartbeat (507010)"),
    ] {
        let advice = "nothing works on this device any more in this process: start it again";
        fails(settings, 1, &["error: ", "the device is lost: ascend/", sentence, advice]);
    }
}

/// A wait that takes too long is made again, and nobody notices.
#[test]
fn a_slow_wait_changes_nothing() {
    let texts = ["", "fail=aclrtSynchronizeEvent:2:507047"].map(|settings| generates("4", settings));
    let [Some(usual), Some(slow)] = texts else { return };
    assert_eq!(usual.succeeded(), slow.succeeded());
}

/// The host waits once per step, for the tokens, and never for a stream, however many steps there are; nothing is allocated.
#[test]
fn the_host_waits_once_per_step() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("calls");
    let run = |tokens: &str| -> Option<HashMap<String, usize>> {
        generates(tokens, &format!("count={}", file.display()))?.succeeded();
        let text = fs::read_to_string(&file).unwrap();
        let counts = text.lines().map(|line| line.split_once(' ').unwrap());
        Some(counts.map(|(name, n)| (name.to_owned(), n.parse().unwrap())).collect())
    };
    let (Some(few), Some(many)) = (run("4"), run("12")) else { return };
    let more = |name: &str| many[name] - few.get(name).copied().unwrap_or(0);
    assert_eq!(more("aclrtSynchronizeStream"), 0, "{few:?} {many:?}");
    assert_eq!(more("aclrtSynchronizeEvent"), 8, "{few:?} {many:?}");
    assert_eq!(more("aclrtMalloc") + more("aclrtMallocHost"), 0, "{few:?} {many:?}");
}
