//! The nvidia backend over a driver of the tests (`tests/plugins/fake_cuda.c`): what goes wrong in a driver becomes a sentence,
//! and ends what it concerns. Kernels do nothing there, so that no test here is about what they compute.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::accelerators::compile;
use crate::command::{Run, command, finish, json_lines};

/// A folder with the driver.
struct Driver(TempDir);

impl Driver {
    /// `None`, with a line that says why, where there is no C compiler, or the plugin was built without its kernels.
    fn new() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        if !compile("fake_cuda.c", &folder.path().join("libcuda.so")) {
            return None;
        }
        fs::copy(folder.path().join("libcuda.so"), folder.path().join("libcuda.so.1")).unwrap();
        let driver = Self(folder);
        let run = driver.run(&["generate", "Hello", "--max-tokens", "1"], &[]);
        if run.stderr.contains("was built without its CUDA kernels") {
            eprintln!("skipped: the nvidia backend was built without its kernels");
            return None;
        }
        run.succeeded();
        Some(driver)
    }

    fn command(&self, args: &[&str], settings: &[(&str, &str)]) -> Command {
        let mut command = command(args);
        command.env("DEEPINFER_ACCELERATOR", "nvidia").env("LD_LIBRARY_PATH", self.0.path());
        command.env("DEEPINFER_FLIGHT_RECORDER", self.0.path());
        command.envs(settings.iter().copied());
        command
    }

    fn run(&self, args: &[&str], settings: &[(&str, &str)]) -> Run {
        finish(&mut self.command(args, settings))
    }

    /// Generates a few tokens, which must end with this code and a sentence that has these parts.
    #[track_caller]
    fn fails(&self, settings: &[(&str, &str)], code: i32, parts: &[&str]) {
        let run = self.run(&["generate", "Hello", "--max-tokens", "4"], settings);
        assert_eq!(run.code, Some(code), "{settings:?}: {run:?}");
        for part in parts {
            assert!(run.stderr.contains(part), "{settings:?}: {part:?} is missing in: {}", run.stderr);
        }
        assert!(!run.stderr.contains("panicked"), "{}", run.stderr);
    }
}

/// Calls of each function of the driver.
fn calls(file: &Path) -> HashMap<String, usize> {
    let text = fs::read_to_string(file).unwrap();
    text.lines()
        .map(|line| line.split_once(' ').unwrap())
        .map(|(name, n)| (name.to_owned(), n.parse().unwrap()))
        .collect()
}

#[test]
fn drivers_and_devices_that_cannot_be_used() {
    let Some(driver) = Driver::new() else { return };
    driver.fails(&[("FAKE_CUDA_DEVICES", "0")], 2, &["the NVIDIA driver is installed, but it finds no device"]);
    driver.fails(
        &[("FAKE_CUDA_VERSION", "12080")],
        2,
        &["is of CUDA 12.8, but the kernels need one of CUDA 13.0 (driver 580)"],
    );
    driver.fails(&[("FAKE_CUDA_CAPABILITY", "80")], 2, &["compute capability 8.0, but the kernels need 9.0 or later"]);
    driver.fails(
        &[("FAKE_CUDA_FAIL", "cuInit:1:803")],
        2,
        &["the NVIDIA driver does not start: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"],
    );
}

#[test]
fn of_two_devices_one_is_unusable() {
    let Some(driver) = Driver::new() else { return };
    let two = [("FAKE_CUDA_DEVICES", "2"), ("FAKE_CUDA_BROKEN", "0")];
    driver.fails(
        &two,
        2,
        &["device 0 of the backend nvidia cannot be opened", "CUDA_ERROR_DEVICE_UNAVAILABLE", "nvidia:N"],
    );
    let other = [&two[..], &[("DEEPINFER_ACCELERATOR", "nvidia:1")]].concat();
    driver.run(&["generate", "Hello", "--max-tokens", "4"], &other).succeeded();
    let listed = driver.run(&["backends"], &two);
    let listed = listed.succeeded();
    assert!(listed.contains("device 0: Imagined GPU 0") && listed.contains("device 1: Imagined GPU 1"), "{listed}");
}

#[test]
fn memory_that_is_not_there_before_the_first_step() {
    let Some(driver) = Driver::new() else { return };
    // Refused by the plan, before anything is loaded.
    driver.fails(&[("FAKE_CUDA_BYTES", "9000000")], 2, &["of the device's 9,000,000 free bytes may be used"]);
    // Somebody else takes it after the plan was made.
    let parts = ["bytes of device memory are needed, but", "are free: CUDA_ERROR_OUT_OF_MEMORY"];
    driver.fails(&[("FAKE_CUDA_FAIL", "cuMemAlloc_v2:3:2")], 1, &parts);
}

/// Machine code of an op is loaded when the op runs first, so that a prompt can find the memory taken.
#[test]
fn memory_that_runs_out_in_a_prefill_ends_that_request_only() {
    let Some(driver) = Driver::new() else { return };
    let input = driver.0.path().join("in.jsonl");
    let line = |id: &str| format!("{{\"id\": \"{id}\", \"prompt\": \"Hello\", \"max_tokens\": 3}}\n");
    fs::write(&input, ["a", "b", "c"].map(line).concat()).unwrap();
    let args = ["generate", "--prompts", input.to_str().unwrap(), "--max-num-seqs", "1"];
    let run = driver.run(&args, &[("FAKE_CUDA_FAIL", "cuModuleLoadData:5:2")]);
    let results = json_lines(&run.stdout);
    assert_eq!((run.code, results.len()), (Some(1), 3), "{run:?}");
    let error = results[0]["error"]["message"].as_str().unwrap_or_else(|| panic!("{run:?}"));
    assert!(error.contains("device memory is not available") && error.contains("bytes are free"), "{error}");
    for result in &results[1..] {
        assert_eq!(result["token_ids"].as_array().map(Vec::len), Some(3), "{result}");
    }
}

#[test]
fn a_context_that_is_lost_ends_every_request_with_a_sentence() {
    let Some(driver) = Driver::new() else { return };
    let file = driver.0.path().join("calls");
    driver.run(&["generate", "Hello", "--max-tokens", "4"], &[("FAKE_CUDA_COUNT", file.to_str().unwrap())]).succeeded();
    let calls = calls(&file);
    for function in ["cuLaunchKernel", "cuLaunchKernelEx", "cuEventSynchronize", "cuMemcpyAsync"] {
        // The weights are loaded by copies; a call near the last is one of the steps.
        let Some(all) = calls.get(function) else { continue };
        driver.fails(
            &[("FAKE_CUDA_FAIL", &format!("{function}:{}:700:lost", all - 1))],
            1,
            &["the device is lost: nvidia/", "nothing works on this device any more in this process: start it again"],
        );
    }
    assert!(calls.contains_key("cuLaunchKernel") || calls.contains_key("cuLaunchKernelEx"), "{calls:?}");
}

/// The host waits once per step, for the tokens, and never for a stream, however many steps there are.
#[test]
fn the_host_waits_once_per_step() {
    let Some(driver) = Driver::new() else { return };
    let file = driver.0.path().join("calls");
    let run = |tokens: &str| {
        let args = ["generate", "Hello", "--max-tokens", tokens];
        driver.run(&args, &[("FAKE_CUDA_COUNT", file.to_str().unwrap())]).succeeded();
        calls(&file)
    };
    let (few, many) = (run("4"), run("24"));
    let more = |name: &str| many[name] - few.get(name).copied().unwrap_or(0);
    assert_eq!(more("cuStreamSynchronize"), 0, "{few:?} {many:?}");
    assert_eq!(more("cuEventSynchronize"), 20, "{few:?} {many:?}");
    assert_eq!(more("cuMemAlloc_v2") + more("cuMemHostAlloc"), 0, "{few:?} {many:?}");
    // Nearly all of the further steps are launches of recordings.
    assert!(more("cuGraphLaunch") >= 16, "{few:?} {many:?}");
}
