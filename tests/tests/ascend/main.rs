//! The ascend backend over its fake runtime, with faults on purpose (`backends/ascend-950/fake/settings.h`): each is of the class
//! that says what can be done about it, in a sentence, and the device behaves as the class says. Every test is a process of its
//! own, since the settings are read once.

#![forbid(unsafe_code)]

mod building;
mod images;
mod products;

use std::path::PathBuf;
use std::process::Command;
use std::rc::Rc;

use deepinfer_ops::args::{Gather, RmsNorm, Rstd};
use deepinfer_ops::traits::*;
use deepinfer_ops::{Device, Format, OpError, Tensor};
use deepinfer_runtime::{OpenDevice, Runtime, SearchPath, Selection};
use deepinfer_tests::Tensors;

/// Opens a device, whether or not the backend has every op.
fn open(selection: &str) -> Result<Rc<OpenDevice>, String> {
    let runtime = Runtime::new(SearchPath::from_environment());
    let (backend, device) = runtime.select(&Selection::parse(selection).unwrap()).map_err(|error| error.to_string())?;
    backend.open(device).map(Rc::new).map_err(|error| error.to_string())
}

/// Rows normalised and gathered, and their inverse roots: three kernels one after the other.
struct Chain {
    x: Tensor,
    weight: Tensor,
    index: Tensor,
    normal: Tensor,
    chosen: Tensor,
    roots: Tensor,
}

impl Chain {
    fn new(device: &Rc<OpenDevice>) -> Self {
        let t = Tensors(device.clone());
        let wave: Vec<f32> = (0..256).map(|i| (i as f32 * 0.7).sin()).collect();
        Self {
            x: t.f32(&[4, 64], &wave),
            weight: t.f32(&[64], &[2.0; 64]),
            index: t.i32(&[3], &[3, -1, 0]),
            normal: t.poisoned(Format::F32, &[4, 64]),
            chosen: t.poisoned(Format::F32, &[3, 1, 64]),
            roots: t.poisoned(Format::F32, &[4]),
        }
    }

    fn run(&self, device: &OpenDevice) -> Result<(), OpError> {
        device.rms_norm(&RmsNorm { x: &self.x, weight: &self.weight, eps: 1e-6, out: &self.normal })?;
        device.gather(&Gather { table: &self.normal, index: &self.index, repeat: 1, out: &self.chosen })?;
        device.rstd(&Rstd { x: &self.x, eps: 1e-6, out: &self.roots })
    }

    fn result(&self, device: &OpenDevice) -> Result<Vec<u8>, OpError> {
        let mut bytes = vec![0; self.chosen.bytes() + self.roots.bytes()];
        let (chosen, roots) = bytes.split_at_mut(self.chosen.bytes());
        device.download(&self.chosen, chosen)?;
        device.download(&self.roots, roots)?;
        Ok(bytes)
    }
}

/// The library of the backend, which Cargo has built beside this test.
fn plugin() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("libdeepinfer_ascend_950.so")
}

/// What a child does and prints, by its name.
fn act(name: &str) {
    // What plugins log.
    tracing_subscriber::fmt().with_writer(std::io::stdout).with_ansi(false).init();
    let device = match open("ascend") {
        Ok(device) => device,
        Err(error) => return println!("not opened: {error}"),
    };
    match name {
        "open" => println!("opened {} {}", device.info().name, device.info().is_emulated),
        "second device" => match open("ascend:1") {
            Ok(other) => println!("opened {}", other.info().index),
            Err(error) => println!("not opened: {error}"),
        },
        // What the device has is asked for, then too much, then something again.
        "memory" => {
            let error = device.allocate(1 << 21).unwrap_err();
            println!("refused: {error}");
            let chain = Chain::new(&device);
            println!("then: {:?}", chain.run(&device).and_then(|()| device.synchronize()));
        }
        "allocations" => {
            let mut refused = 0;
            for _ in 0..20 {
                if let Err(error) = device.allocate(64) {
                    refused += 1;
                    println!("refused: {error}");
                }
            }
            println!("{refused} of 20");
        }
        // Queued work fails; whoever waits is told, and whoever asks afterwards, too.
        "step" => {
            let chain = Chain::new(&device);
            for step in 0.. {
                let done = chain.run(&device).and_then(|()| device.synchronize());
                if let Err(error) = done {
                    println!("step {step}: {error}");
                    break;
                }
                assert!(step < 100, "nothing fails");
            }
            println!("again: {}", chain.run(&device).unwrap_err());
            println!("memory: {}", device.allocate(64).map(|_| ()).unwrap_err());
            println!("a stream: {}", device.new_stream().map(|_| ()).unwrap_err());
        }
        "graph" => {
            let chain = Chain::new(&device);
            chain.run(&device).unwrap();
            let wanted = chain.result(&device).unwrap();
            device.fill(&chain.chosen, 0xEE).unwrap();
            let list = device.record(|| chain.run(&device)).unwrap();
            println!("captured {}, {}", list.is_captured(), list.len());
            for _ in 0..3 {
                device.launch(&list).unwrap();
                assert_eq!(chain.result(&device).unwrap(), wanted);
            }
        }
        // Memory that is given back, and what is left to do.
        "memory goes" => {
            drop(device.allocate(64).unwrap());
            println!("then: {}", device.allocate(64).map(|_| ()).unwrap_err());
            println!("a stream: {}", device.new_stream().map(|_| ()).unwrap_err());
        }
        "pinned memory" => {
            println!("pinned: {}", device.allocate_host(64).map(|_| ()).unwrap_err());
            println!("then: {}", device.allocate(64).map(|_| ()).unwrap_err());
        }
        // Images that are no longer there when they are loaded.
        "images go" => {
            for image in std::fs::read_dir(std::env::var("DEEPINFER_ASCEND_KERNELS").unwrap()).unwrap() {
                std::fs::remove_file(image.unwrap().path()).unwrap();
            }
            let chain = Chain::new(&device);
            println!("{:?}", chain.run(&device).map_err(|error| error.to_string()));
        }
        "descriptors" => {
            let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
            let (chain, before) = (Chain::new(&device), open());
            chain.run(&device).unwrap();
            device.synchronize().unwrap();
            println!("{} more descriptors", open() - before);
        }
        "late" => println!("{:?}", device.synchronize().map_err(|error| error.to_string())),
        "waits" => {
            let chain = Chain::new(&device);
            println!("{:?}", chain.run(&device).and_then(|()| device.synchronize()).map_err(|error| error.to_string()));
        }
        // A recording that fails, and what works afterwards.
        "recording" => {
            let chain = Chain::new(&device);
            chain.run(&device).unwrap();
            let wanted = chain.result(&device).unwrap();
            let list = device.record(|| chain.run(&device));
            println!("recorded: {:?}", list.map(|list| list.is_captured()).map_err(|error| error.to_string()));
            let memory = device.allocate(64).map(|_| ());
            println!("memory: {:?}", memory.map_err(|error| error.to_string()));
            let again = chain.run(&device).and_then(|()| chain.result(&device)).map(|bits| bits == wanted);
            println!("then: {:?}", again.map_err(|error| error.to_string()));
            let list = device.record(|| chain.run(&device));
            println!("again: {:?}", list.map(|list| list.is_captured()).map_err(|error| error.to_string()));
        }
        "products" => products::act(&device),
        "bits" => {
            let chain = Chain::new(&device);
            chain.run(&device).unwrap();
            println!("{:?}", chain.result(&device).unwrap());
        }
        other => panic!("{other:?} is no act"),
    }
    println!("the end");
}

/// Runs in a process of its own, below.
#[test]
#[ignore = "part of the other tests"]
fn child() {
    act(&std::env::var("ASCEND_ACT").unwrap());
}

/// What a child printed; `None`, with a line that says so, where the plugin has no kernels.
#[track_caller]
fn child_with(act: &str, variables: &[(&str, &str)]) -> Option<String> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--ignored", "--nocapture"]).env("ASCEND_ACT", act);
    if act == "open" {
        // The name that is printed says the seed.
        command.env_remove("DEEPINFER_TWIN_SEED");
    }
    let output = command.envs(variables.iter().copied()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if text.contains("was built without its Ascend kernels") || text.contains("no CANN") {
        eprintln!("skipped: the ascend backend was built without the host twin");
        return None;
    }
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    Some(text)
}

/// A child under a setting of the fake runtime, which prints all these parts.
#[track_caller]
fn prints(act: &str, settings: &str, parts: &[&str]) {
    let Some(text) = child_with(act, &[("DEEPINFER_FAKE_ACL", settings)]) else { return };
    for part in parts {
        assert!(text.contains(part), "{settings}: {part:?} is missing in: {text}");
    }
}

#[test]
fn the_twin_is_told_from_a_device() {
    prints("open", "", &["opened Ascend 950 (host twin, seed 0) true"]);
}

/// It is read when the plugin is built: another value in a run is told, once, and nothing else comes of it.
#[test]
fn a_mode_of_the_build_that_a_run_has_is_told() {
    let warning = "changes nothing here: it is read when the plugin is built, and this one was built for the host twin; build it \
                   again with that value, or unset the variable";
    for mode in ["cann", "none", "device"] {
        let Some(text) = child_with("open", &[("DEEPINFER_ASCEND", mode)]) else { return };
        let told: Vec<_> = text.lines().filter(|line| line.contains(warning)).collect();
        assert!(told.len() == 1 && told[0].contains(" WARN ") && told[0].contains(mode), "{text}");
        assert!(text.contains("opened Ascend 950 (host twin, seed 0) true"), "{text}");
    }
    for mode in ["twin", ""] {
        let Some(text) = child_with("open", &[("DEEPINFER_ASCEND", mode)]) else { return };
        assert!(!text.contains("WARN") && text.contains("opened Ascend 950"), "{text}");
    }
}

#[test]
fn devices_that_are_not_there() {
    prints("open", "devices=0", &["not opened: ", "CANN is installed, but it finds no Ascend device"]);
    prints("second device", "", &["has no device 1"]);
    prints("second device", "devices=2", &["opened 1"]);
    prints("open", "fail=aclInit:1:507899", &["its runtime does not start (error 507899)"]);
}

/// What cannot be understood is not taken for something else: the sentence says what is wrong, and what there is.
#[test]
fn settings_that_mean_nothing_open_no_device() {
    for (setting, why) in [
        (
            "nonsense=1",
            "there is no setting nonsense; there are count, fail, hbm, lost, opapi, soc, stale, workspace, cores",
        ),
        ("devices", "a setting is KEY=VALUE"),
        ("devices=-1", "devices is a whole number from 0 to 64"),
        ("devices=65", "devices is a whole number from 0 to 64"),
        ("devices=", "devices is a whole number from 0 to 64"),
        ("cores=eight", "cores is a whole number from 1 to 65535"),
        ("cores=0", "cores is a whole number from 1 to 65535"),
        ("cores=4K", "cores is a whole number from 1 to 65535"),
        ("mapped=2", "mapped is a whole number from 0 to 1"),
        ("oom_at=0", "oom_at is a whole number from 1 to "),
        ("oom_at=18446744073709551616", "oom_at is a whole number from 1 to 18446744073709551615"),
        ("hbm=4T", "hbm is a number of bytes from 1 to 1048576G, with K, M, G or no unit"),
        ("hbm=G", "hbm is a number of bytes from 1 to 1048576G"),
        ("hbm=17179869185G", "hbm is a number of bytes from 1 to 1048576G"),
        ("soc=", "the name of the chip is missing"),
        ("count=/nowhere/calls", "this file cannot be written"),
        ("opapi=some", "opapi is all, none, or without: and one of aclCreateTensor, aclDestroyTensor, aclnnMatmulGet"),
        ("opapi=without:aclnnMatMul", "opapi is all, none, or without: and one of "),
        ("fail=aclrtMaloc:1:207001", "no function that can fail is called aclrtMaloc"),
        ("fail=aclrtGetSocName:1:207001", "no function that can fail is called aclrtGetSocName"),
        ("fail=aclrtMalloc:0:207001", "NTH is a whole number from 1 to "),
        ("fail=aclrtMalloc:1:0", "CODE is a whole number from 1 to 2147483647"),
        ("fail=aclrtMalloc:1:oom", "CODE is a whole number from 1 to 2147483647"),
        ("fail=aclrtMalloc:1", "it is of the form fail=FUNCTION:NTH:CODE"),
        ("lost=aclrtMalloc:1:207001", "it is of the form lost=FUNCTION:NTH"),
        ("lost=aclInit:1", "aclInit is called on no device, and loses none"),
        ("stale=aclnnMatmul:1", "NTH is a whole number from 2 to "),
        ("stale=aclrtMalloc:2", "no vendor op is called aclrtMalloc"),
        ("workspace=aclnnMatmul:1:-1", "BYTES is a whole number from 0 to "),
    ] {
        let sentence = format!("DEEPINFER_FAKE_ACL: the setting \"{setting}\" cannot be understood: {why}");
        prints("open", &format!("hccl_ms=5,{setting}"), &["not opened: ", &sentence]);
    }
    let twice = "DEEPINFER_FAKE_ACL: the setting \"cores=2\" cannot be understood: cores is given twice";
    prints("open", "cores=1,cores=2", &["not opened: ", twice]);
}

#[test]
fn a_seed_is_a_number() {
    for seed in ["five", "-1", "3.5", "0x", "18446744073709551616", " 7"] {
        let Some(text) = child_with("open", &[("DEEPINFER_TWIN_SEED", seed)]) else { return };
        let sentence =
            format!("DEEPINFER_TWIN_SEED is {seed:?}, but a seed is a whole number from 0 to 18446744073709551615");
        assert!(text.contains("not opened: ") && text.contains(&sentence), "{text}");
    }
    let most = "18446744073709551615";
    for (seed, told) in [("", "0"), ("0", "0"), ("5", "5"), (most, most), ("0xBad5eed", "195911405")] {
        let Some(text) = child_with("open", &[("DEEPINFER_TWIN_SEED", seed)]) else { return };
        assert!(text.contains(&format!("opened Ascend 950 (host twin, seed {told}) true")), "{seed}: {text}");
    }
}

/// The number of cores is not guessed where the runtime fails at it.
#[test]
fn a_device_whose_cores_are_not_told_is_not_opened() {
    let all: Vec<String> = (1..=20).map(|nth| format!("fail=aclrtGetDeviceInfo:{nth}:500000")).collect();
    let sentence =
        "aclrtGetDeviceInfo of attribute 201: an error of the runtime (500000): EF500000: aclrtGetDeviceInfo: as";
    prints("open", &all.join(","), &["not opened: ", sentence]);
}

#[test]
fn memory_that_is_not_there_leaves_the_device_as_it_was() {
    let needed = "2097152 bytes of device memory are needed, but ";
    prints(
        "memory",
        "hbm=1M",
        &["refused: 2097152 bytes of device memory is not available", needed, "207001", "then: Ok(())"],
    );
    prints("allocations", "oom_at=5", &["64 bytes of device memory are needed, but ", "1 of 20", "the end"]);
}

/// A code, and what a person reads.
const LOST: [(&str, &str, &str); 3] = [
    ("lost_at=30", "507010", "the device lost its heartbeat"),
    ("wild_at=5", "507035", "a kernel of the vector cores failed"),
    ("stuck_at=5", "507034", "a kernel of the vector cores did not come to an end"),
];

#[test]
fn a_device_that_is_lost_in_a_step_says_so_from_then_on() {
    for (setting, code, sentence) in LOST {
        let advice = "nothing works on this device any more in this process: start it again";
        let lost = "the device is lost: ascend";
        let mut parts = vec![code, sentence, advice, "the end"];
        let lines = ["again: ", "memory: ", "a stream: "].map(|what| format!("{what}{lost}"));
        parts.extend(lines.iter().map(String::as_str));
        prints("step", setting, &parts);
    }
    // Before a call of the host, too.
    prints("step", "lost=aclrtLaunchKernelWithHostArgs:7", &["step 2: the device is lost: ascend", "507010"]);
}

#[test]
fn a_wait_that_takes_too_long_is_made_again() {
    prints("waits", "fail=aclrtSynchronizeStream:9:507046", &["the end"]);
    prints("waits", "fail=aclrtSynchronizeEvent:1:107019", &["the end"]);
    let late: Vec<String> = (1..40).map(|nth| format!("fail=aclrtSynchronizeStream:{nth}:507046")).collect();
    prints("late", &late.join(","), &["the wait for the stream, made 3 times: it took too long (507046): EF507046"]);
}

/// A code that waits give, from a call that is none: it is not made again, since nobody knows what it did.
#[test]
fn a_launch_that_takes_too_long_is_no_wait() {
    let Some(text) = child_with("waits", &[("DEEPINFER_FAKE_ACL", "fail=aclrtLaunchKernelWithHostArgs:2:107019")])
    else {
        return;
    };
    assert!(
        text.contains("the launch of gather: it took too long (107019): EF107019") && !text.contains("wait for"),
        "{text}"
    );
}

#[test]
fn recorded_work_gives_the_bits_of_the_calls() {
    prints("graph", "", &["captured true, 3", "the end"]);
    prints("graph", "cores=3", &["captured true, 3", "the end"]);
}

/// The capture is given up, and the stream works on.
#[test]
fn a_capture_that_does_not_end_well_leaves_the_stream_as_it_was() {
    let works = ["memory: Ok(())", "then: Ok(true)", "again: Ok(true)", "the end"];
    for (setting, recorded) in [
        ("fail=aclmdlRICaptureEnd:1:207001", "recorded: Err(\"device memory is not available: ascend"),
        ("fail=aclmdlRICaptureEnd:1:500000", "the end of a capture: an error of the runtime (500000)"),
        ("fail=aclmdlRICaptureBegin:1:500000", "the begin of a capture: an error of the runtime (500000)"),
        // Replayed step by step.
        ("fail=aclmdlRICaptureEnd:1:507903", "recorded: Ok(false)"),
        ("fail=aclmdlRICaptureBegin:1:107030", "recorded: Ok(false)"),
        ("fail=aclrtLaunchKernelWithHostArgs:5:107041", "recorded: Ok(false)"),
    ] {
        prints("recording", setting, &[&works[..], &[recorded]].concat());
    }
}

/// A stream that cannot be freed of its capture is of no use, and nothing else of that thread is: that is told as such, again and
/// again, and not as calls which a capture does not take.
#[test]
fn a_capture_that_cannot_be_ended_loses_the_device() {
    let settings = "fail=aclmdlRICaptureEnd:1:500000,fail=aclmdlRICaptureEnd:2:500000";
    let sentence = "the end of a capture: an error of the runtime (500000): EF500000: aclmdlRICaptureEnd: as \
                    DEEPINFER_FAKE_ACL says; the stream stays captured; nothing works on this device any more in this \
                    process: start it again";
    let lost = ["recorded", "memory", "then", "again"].map(|what| format!("{what}: Err(\"the device is lost: ascend"));
    let mut parts = vec![sentence, "the end"];
    parts.extend(lost.iter().map(String::as_str));
    prints("recording", settings, &parts);
}

/// Also where nobody waits for what the call gives, or where the error would mean less. What other calls find is in the backend's
/// own tests, one function after the other.
#[test]
fn memory_that_finds_the_device_lost_says_so_from_then_on() {
    let lost = |what: &str| format!("{what}: the device is lost: ascend");
    let sentence = |function: &str| {
        format!("an error of the driver (507899): EF507899: {function}: as DEEPINFER_FAKE_ACL says; nothing")
    };
    prints(
        "memory goes",
        "fail=aclrtFree:1:507899",
        &[&lost("then"), &lost("a stream"), &sentence("aclrtFree"), "the end"],
    );
    let function = "aclrtHostRegister";
    prints(
        "pinned memory",
        &format!("fail={function}:1:507899"),
        &[&lost("pinned"), &lost("then"), &sentence(function), "the end"],
    );
}

/// Images are closed once they are loaded: a process may have many, on many devices.
#[test]
fn images_keep_no_descriptors() {
    prints("descriptors", "", &["\n0 more descriptors", "the end"]);
}

/// Neither the order of pipes, blocks and threads nor the number of cores shows in a result. What inexact instructions give is a
/// function of the seed, so that only orders differ here.
#[test]
fn bits_do_not_depend_on_cores() {
    let texts = ["cores=1", "cores=2", "cores=64"].map(|cores| child_with("bits", &[("DEEPINFER_FAKE_ACL", cores)]));
    let [Some(one), Some(two), Some(many)] = texts else { return };
    let bits = |text: &str| text.lines().find(|line| line.starts_with('[')).unwrap().to_owned();
    assert!(bits(&one) == bits(&two) && bits(&two) == bits(&many), "{one}{two}{many}");
}
