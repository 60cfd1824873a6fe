//! The ascend backend on its host twin, as a user meets it. What goes wrong in a runtime is in `tests/tests/ascend.rs`.

use std::process::Command;

use crate::command::{Run, command, finish};

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
