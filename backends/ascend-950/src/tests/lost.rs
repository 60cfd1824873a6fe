//! Whatever call of the runtime finds that the device is lost, also one whose result nobody waits for, is the last that is made on
//! it: each function of the fake runtime says so once, in a process of its own, and works on.

use deepinfer_plugin_api::abi::{DI_COPY_H2D, DI_SPACE_DEVICE, DI_SPACE_HOST_PINNED};
use deepinfer_plugin_api::sdk::{Backend, Fault, GraphBackend};

use crate::backend::Ascend;

/// What of `fake/functions.h` is not called on an opened device, or by other tests: ops of the vendor in `tests/tests/ascend`.
const OTHERS: [&str; 3] = ["aclInit", "aclrtGetDeviceCount", "aclrtBinaryUnLoad"];

/// Calls each function that the backend calls on a device; what it makes is given back at its end, or where something fails.
fn use_everything() -> Result<(), Fault> {
    let backend = Ascend::start("")?;
    let device = backend.open_device(0)?;
    backend.memory(&device, DI_SPACE_DEVICE)?;
    let stream = backend.create_stream(&device)?;
    let (_memory, memory) = backend.alloc(&device, DI_SPACE_DEVICE, 64, 64)?;
    let (_pinned, _) = backend.alloc(&device, DI_SPACE_HOST_PINNED, 64, 64)?;
    let (before, after) = (backend.create_event(&device)?, backend.create_event(&device)?);
    backend.record_event(&before, &stream)?;
    let ordinary = [7_u8; 64];
    // SAFETY: both sides are alive until the wait at the end; the first fill is a kernel, the second is not.
    let work = || unsafe {
        backend.fill(&stream, memory, 0x0102_0304, 4, 16)?;
        backend.fill(&stream, memory, 1, 1, 64)
    };
    work()?;
    // SAFETY: as above.
    unsafe { backend.copy(&stream, memory, ordinary.as_ptr().cast(), 64, DI_COPY_H2D)? };
    backend.record_event(&after, &stream)?;
    backend.wait_event(&stream, &after)?;
    backend.sync_event(&after)?;
    backend.query_event(&after)?;
    before.elapsed(&after)?;
    backend.begin_capture(&stream)?;
    let recorded = work();
    let graph = backend.end_capture(&stream)?;
    recorded?;
    backend.launch(&backend.instantiate(&graph)?, &stream)?;
    backend.sync_stream(&stream)
}

/// Uses everything as the settings say, and prints what the device is good for afterwards.
#[test]
#[ignore = "part of the other tests"]
fn child_uses_everything() {
    let used = use_everything();
    println!("used: {:?}", used.map_err(|fault| fault.code));
    match use_everything() {
        Ok(()) => println!("then: it works"),
        Err(fault) => println!("then: {:?} {} {fault}", fault.code, fault.vendor_code),
    }
}

fn child_with(settings: &str) -> String {
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "tests::lost::child_uses_everything", "--ignored", "--nocapture"])
        .env("DEEPINFER_FAKE_ACL", settings)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{settings}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// Functions that are called on a device, from the list of those that can be told to fail.
fn functions() -> Vec<&'static str> {
    let names = include_str!("../../fake/functions.h").lines().filter_map(|line| line.trim().strip_prefix("{\""));
    let names = names.filter_map(|line| line.split('"').next());
    let is_tested = |name: &&str| !OTHERS.contains(name) && !name.starts_with("aclnn") && !name.starts_with("Hccl");
    names.filter(is_tested).collect()
}

#[test]
fn whatever_finds_that_the_device_is_lost_is_the_last_call() {
    let all = functions();
    assert!(all.len() > 25 && all.contains(&"aclrtFree") && all.contains(&"aclrtHostRegister"), "{all:?}");
    for function in all {
        let text = child_with(&format!("fail={function}:1:507899"));
        let said =
            format!("an error of the driver (507899): EF507899: {function}: as DEEPINFER_FAKE_ACL says; nothing");
        assert!(text.contains("then: DeviceLost 507899 ") && text.contains(&said), "{function}: {text}");
    }
}

/// What is no loss is not taken for one.
#[test]
fn a_device_that_works_is_not_given_up() {
    assert!(child_with("").contains("used: Ok(())\nthen: it works\n"));
    for function in [
        "aclrtFree",
        "aclrtFreeHost",
        "aclrtHostUnregister",
        "aclrtDestroyStream",
        "aclrtDestroyEvent",
        "aclmdlRIDestroy",
    ] {
        let text = child_with(&format!("fail={function}:1:500000"));
        assert!(text.contains("used: Ok(())\nthen: it works\n"), "{function}: {text}");
    }
    for function in ["aclrtMalloc", "aclrtHostRegister", "aclrtSynchronizeEvent"] {
        let text = child_with(&format!("fail={function}:1:500000"));
        assert!(text.contains("then: it works\n") && !text.contains("used: Ok"), "{function}: {text}");
    }
}
