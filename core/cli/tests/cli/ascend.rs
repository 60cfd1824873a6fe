//! The ascend backend on its host twin, as a user meets it, with faults on purpose (`backends/ascend-950/fake/settings.h`). What
//! becomes of single calls is in `tests/tests/ascend.rs`.

use std::collections::HashMap;
use std::fs;
use std::process::Command;

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
    says("hbm=2G", &["device 0: Ascend 950 (host twin) (ascend950-host-twin, 2.0 GiB, emulated on this processor)"]);
    says("devices=2", &["device 0: Ascend 950 (host twin)", "device 1: Ascend 950 (host twin)"]);
    says("devices=0", &["no device: CANN is installed, but it finds no Ascend device"]);
    says("fail=aclInit:1:507899", &["no device: CANN is installed, but its runtime does not start (error 507899)"]);
}

/// Of the twin's own: what a device that lacks them is said to lack.
#[test]
fn doctor_lists_the_vendors_ops_that_an_installation_lacks() {
    says("opapi=all", &["Ascend 950 (host twin) (ascend950"]);
    says("opapi=without:aclnnQuantMatmulV5", &["Ascend 950 (host twin), without aclnnQuantMatmulV5 of CANN"]);
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

/// The kernels of an op are loaded when it runs first, so that a prompt can find the memory taken.
#[test]
fn memory_that_runs_out_in_a_prefill_ends_that_request_only() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("in.jsonl");
    let line = |id: &str| format!("{{\"id\": \"{id}\", \"prompt\": \"Hello\", \"max_tokens\": 2}}\n");
    fs::write(&input, ["a", "b"].map(line).concat()).unwrap();
    let args = ["generate", "--prompts", input.to_str().unwrap(), "--max-num-seqs", "1"];
    let mut command = on_twin(&args, "fail=aclrtBinaryLoadFromData:9:207001");
    let run = finish(command.env("DEEPINFER_FLIGHT_RECORDER", folder.path()));
    if run.stderr.contains("was built without its Ascend kernels") || run.stderr.contains("no CANN") {
        return;
    }
    let results = json_lines(&run.stdout);
    assert_eq!((run.code, results.len()), (Some(1), 2), "{run:?}");
    let error = results[0]["error"]["message"].as_str().unwrap_or_else(|| panic!("{run:?}"));
    assert!(error.contains("device memory is not available") && error.contains("bytes are free"), "{error}");
    assert_eq!(results[1]["token_ids"].as_array().map(Vec::len), Some(2), "{run:?}");
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
