//! `doctor`, `plugin inspect`, `plugin doctor`, and `auto`: with plugins that take their process with them, with manifests,
//! and with layers.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::accelerators::compile_with;
use crate::command::{Run, command, finish};

fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

#[track_caller]
fn assert_contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
}

/// A folder of plugins that the command searches first.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }

    fn text(&self, file: &str) -> String {
        self.path(file).to_str().unwrap().to_owned()
    }

    /// Compiles a plugin into it; `None` on a machine without a C compiler.
    fn add(&self, source: &str, file: &str, switches: &[&str]) -> Option<String> {
        compile_with(source, &self.path(file), switches).then(|| self.text(file))
    }

    /// Writes the manifest of a plugin of this machine, changed.
    fn describe(&self, name: &str, library: &str, change: impl FnOnce(&mut Value)) -> String {
        let mut manifest = json!({
            "manifest_version": 1, "name": name, "vendor": "Example", "version": "1.2.3", "library": library,
            "abi": {"major": 0, "minor": 2}, "arch": std::env::consts::ARCH, "os": std::env::consts::OS,
        });
        change(&mut manifest);
        let file = format!("{name}.deepinfer.json");
        fs::write(self.path(&file), manifest.to_string()).unwrap();
        self.text(&file)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = command(args);
        command.env("DEEPINFER_PLUGIN_PATH", self.0.path());
        command
    }

    fn run(&self, args: &[&str]) -> Run {
        finish(&mut self.command(args))
    }

    fn auto(&self, args: &[&str]) -> Run {
        finish(self.command(args).env("DEEPINFER_ACCELERATOR", "auto"))
    }
}

/// The candidate of a file in a report of `plugin doctor`.
#[track_caller]
fn candidate<'a>(report: &'a Value, path: &str) -> &'a Value {
    let all = report["candidates"].as_array().unwrap();
    all.iter().find(|step| step["path"] == path).unwrap_or_else(|| panic!("{path} is not in {report}"))
}

/// The cpu backend as the build left it.
fn built() -> PathBuf {
    let beside = Path::new(env!("CARGO_BIN_EXE_deepinfer")).parent().unwrap();
    let built = ["deps", ""].map(|folder| beside.join(folder).join("libdeepinfer_cpu_reference.so"));
    built.into_iter().find(|path| path.exists()).expect("build it: cargo build -p deepinfer-cpu-reference")
}

#[test]
fn plugins_that_end_their_process_are_named_and_the_report_goes_on() {
    let folder = Folder::new();
    let Some(aborts) = folder.add("hostile.c", "libdeepinfer_aborts.so", &["-DABORTS"]) else { return };
    let exits = folder.add("hostile.c", "libdeepinfer_exits.so", &["-DEXITS"]).unwrap();
    let spins = folder.add("hostile.c", "libdeepinfer_spins.so", &["-DSPINS"]).unwrap();
    let fates = [
        (&aborts, "while it was loaded, killed by signal 6 (SIGABRT)", "60"),
        (&exits, "while it was loaded, the process exited with code 0", "60"),
        (&spins, "it did not finish loading within ", "1"),
    ];

    let report = json_of(folder.auto(&["doctor", "--json", "--timeout", "4"]).succeeded());
    let plugins = report["plugins"].as_array().unwrap();
    for (path, how, _) in fates {
        let plugin = plugins.iter().find(|plugin| plugin["path"] == *path).unwrap();
        assert_eq!(plugin["state"], "fatal");
        assert!(plugin["how"].as_str().unwrap().starts_with(how), "{plugin}");
    }
    assert!(report["selected"].as_str().unwrap().starts_with("device 0 of cpu ("), "{report}");

    for (path, how, timeout) in fates {
        let run = folder.run(&["plugin", "inspect", path, "--timeout", timeout]);
        run.refused(&[path, how, "cannot contain that"]);
        let run = folder.run(&["plugin", "doctor", "--accelerator", path, "--timeout", timeout]);
        assert_contains(run.succeeded(), &[&format!("1. {path}\n   refused: {how}"), "selected: nothing: "]);
    }
}

#[test]
fn auto_passes_over_plugins_that_end_their_process() {
    let folder = Folder::new();
    let Some(aborts) = folder.add("hostile.c", "libdeepinfer_aborts.so", &["-DABORTS"]) else { return };
    let exits = folder.add("hostile.c", "libdeepinfer_exits.so", &["-DEXITS"]).unwrap();
    let args = ["generate", "x", "--max-tokens", "2"];
    let run = folder.auto(&args);
    assert_eq!(run.succeeded(), crate::command::deepinfer(&args).stdout);
    let warnings: Vec<&str> = run.stderr.lines().collect();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert_contains(warnings[0], &["WARN", "passed over: ", &aborts, "killed by signal 6 (SIGABRT)"]);
    assert_contains(warnings[1], &["WARN", "passed over: ", &exits, "exited with code 0"]);
    // By its name, too, a backend is found among them: files that are called otherwise are not loaded for it.
    folder.run(&args).succeeded_quietly();
}

#[test]
fn manifests_decide_without_loading() {
    let folder = Folder::new();
    let best = fs::copy(built(), folder.path("best.so")).map(|_| folder.text("best.so")).unwrap();
    fs::copy(built(), folder.path("late.so")).unwrap();
    // Whoever loads this one, it aborts; nobody does.
    let Some(aborts) = folder.add("hostile.c", "aborts.so", &["-DABORTS"]) else { return };
    for (name, change) in [
        ("absent-device", (|m| m["devices"] = json!(["ffff:fffe", "ffff:fffd"])) as fn(&mut Value)),
        ("layered", |m| m["kind"] = json!("layer")),
        ("lower", |m| m["priority"] = json!(-1)),
        ("other-arch", |m| m["arch"] = json!("sparc64")),
        ("other-major", |m| m["abi"]["major"] = json!(9)),
        ("other-os", |m| m["os"] = json!("plan9")),
        ("unlike", |m| m["sha256"] = json!("0".repeat(64))),
    ] {
        let library = format!("{name}.so");
        fs::copy(&aborts, folder.path(&library)).unwrap();
        folder.describe(name, &library, |m| {
            m["priority"] = json!(50);
            change(m);
        });
    }
    folder.describe("missing", "nowhere.so", |m| m["priority"] = json!(50));
    // Its library is the cpu backend, which calls itself cpu.
    folder.describe("wrong-name", "late.so", |m| m["priority"] = json!(50));
    let described = folder.describe("cpu", "best.so", |m| {
        m["priority"] = json!(10);
        m["prioritty"] = json!(11);
        m["vendor"] = json!(" ");
        m["version"] = json!("9.9.9");
    });
    let garbled = folder.text("garbled.deepinfer.json");
    fs::write(&garbled, "{\"manifest_version\": \"one\"}").unwrap();

    let run = folder.auto(&["plugin", "doctor", "--json"]);
    let report = json_of(run.succeeded());
    assert_eq!(report["selected"], format!("device 0 of cpu ({best})"));
    let step = candidate(&report, &best);
    assert_eq!((&step["verdict"], &step["priority"], &step["name"]), (&json!("selected"), &json!(10), &json!("cpu")));
    for (file, verdict, part) in [
        ("absent-device.so", "passed_over", "this machine has none of its PCI devices (ffff:fffe, ffff:fffd)"),
        ("layered.so", "passed_over", "layered is a layer, not a backend"),
        ("lower.so", "not_needed", "its priority is -1, and a backend of priority 10 works"),
        ("other-arch.so", "passed_over", "is for the processor \"sparc64\", but this is"),
        ("other-major.so", "passed_over", "speaks version 9.2 of the plugin ABI, the core version 0."),
        ("other-os.so", "passed_over", "is for the operating system \"plan9\", but this is"),
        ("unlike.so", "passed_over", "but the manifest says 0000"),
        ("nowhere.so", "passed_over", "nowhere.so cannot be read: No such file"),
        ("late.so", "passed_over", "the plugin calls itself cpu, but its manifest"),
        ("garbled.deepinfer.json", "passed_over", "field manifest_version is wrong: invalid type: string \"one\""),
    ] {
        let step = candidate(&report, &folder.text(file));
        assert_eq!(step["verdict"], verdict, "{step}");
        assert_contains(step["reason"].as_str().unwrap(), &[part]);
    }
    // The processor beside the program has no priority.
    let beside = candidate(&report, built().to_str().unwrap());
    assert_eq!((&beside["verdict"], &beside["priority"]), (&json!("not_needed"), &json!(0)));

    let text = folder.auto(&["plugin", "doctor"]);
    let cpu = format!("{best}, cpu, priority 10\n   selected: it is the first of the highest priority");
    assert_contains(text.succeeded(), &[&cpu, &format!("selected: device 0 of cpu ({best})\n")]);
    // What is odd about a manifest keeps it from nothing.
    let [unknown, version] = [
        format!("warning: {described}: the field prioritty is not known, and means nothing\n"),
        format!("warning: {described}: the version is 9.9.9, but the library says {}", env!("CARGO_PKG_VERSION")),
    ];
    assert_contains(text.succeeded(), &[&unknown, &version]);
    assert_eq!(report["warnings"].as_array().unwrap().len(), 2, "{report}");
    // It is inspected by its name; a vendor of blanks is none.
    let inspected = folder.run(&["plugin", "inspect", "cpu"]);
    assert_contains(inspected.succeeded(), &[&best, "  priority         10\n"]);
    folder.run(&["plugin", "inspect", "cqu"]).refused(&["\"cqu\""]);
    // A manifest can be selected by its path, and a name is that of the manifest.
    let by_path = folder.run(&["backends", "--accelerator", &folder.text("cpu.deepinfer.json")]);
    assert_contains(by_path.succeeded(), &[&format!("selected: device 0 of cpu ({best})\n")]);
    let run = folder.run(&["generate", "x", "--accelerator", "other-arch"]);
    run.refused(&["the accelerator backend \"other-arch\" cannot be used", "sparc64"]);
    let run = folder.run(&["generate", "x", "--accelerator", "wrong-name"]);
    run.refused(&["the accelerator backend \"wrong-name\" cannot be used", "the plugin calls itself cpu"]);
}

#[test]
fn the_users_own_folder_is_searched() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("deepinfer/plugins");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("libdeepinfer_mine.so"), "no library").unwrap();
    let run = finish(command(&["doctor", "--json"]).env("XDG_DATA_HOME", home.path()));
    let report = json_of(run.succeeded());
    let place = json!({"path": folder.to_str().unwrap(), "origin": "user", "exists": true});
    assert_eq!(report["searched"][0], place);
    assert_eq!(report["plugins"][0]["path"], folder.join("libdeepinfer_mine.so").to_str().unwrap());
}

#[test]
fn inspect_tells_all_that_a_plugin_says_of_itself() {
    let folder = Folder::new();
    let Some(path) = folder.add("vendor_op.c", "libdeepinfer_vendor.so", &[]) else { return };
    let run = folder.run(&["plugin", "inspect", &path]);
    let text = run.succeeded_quietly();
    for part in [
        "  name             c-vendor\n",
        "  version          1.2.3\n",
        "  flags            contains_panics\n",
        "  optional tables  ops\n",
        "    device 1: host memory (c11, 1.0 GiB, 0 compute units)\n",
        "      space 7: host_pinned, alignment 64, granularity 4096, 1.0 GiB\n",
        "    link 0 to 1: direct, peer copies, 450.0 GB/s\n",
        "    rstd@1       short   (priority 5, may decline calls, plans calls)\n",
        "    rms_norm@77  future  (priority 0, concurrent, not in this core's catalogue)\n",
        "    scale@3 (0x80000001, ulp, arguments of ",
        "      x: tensor, inout, at byte 40\n",
        "      factor\\n\\u{1b}[31m: f32, in, at byte ",
        "  profile v41-text lacks 27 of 29 ops: ",
    ] {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
    assert!(!text.contains('\u{1b}'), "{text}");

    let report = json_of(folder.run(&["plugin", "inspect", &path, "--json"]).succeeded_quietly());
    assert_eq!((&report["state"], &report["manifest"]), (&json!("loaded"), &Value::Null));
    assert_eq!(report["devices"][0]["spaces"][0]["kind"], "host_pinned");
    assert_eq!(report["links"].as_array().unwrap().len(), 2);
    assert_eq!(report["vendor_ops"][0]["args"][0]["role"], "inout");
    assert_eq!(report["profiles"][0]["required"], 29);

    let manifest = folder.describe("c-vendor", "libdeepinfer_vendor.so", |m| m["devices"] = json!(["10de:*"]));
    let run = folder.run(&["plugin", "inspect", &manifest]);
    assert_contains(run.succeeded_quietly(), &[&manifest, "vendor           Example, priority 0", "10de:*"]);

    let bad = folder.add("vendor_op.c", "libdeepinfer_bad.so", &["-DBAD_ROW"]).unwrap();
    let run = folder.run(&["plugin", "inspect", &bad]);
    assert_contains(
        run.succeeded_quietly(),
        &["own ops          not readable: row 0 of its own ops (scale) has the argument"],
    );
}

#[test]
fn inspect_refuses_what_is_no_plugin() {
    let folder = Folder::new();
    let text = folder.text("libtext.so");
    folder.run(&["plugin", "inspect", &text]).refused(&[&text, "cannot be read: No such file"]);
    fs::write(&text, "a text\n").unwrap();
    folder.run(&["plugin", "inspect", &text]).refused(&[&text, "cannot be loaded as a shared library"]);
    let run = folder.run(&["plugin", "inspect", &text, "--json"]);
    assert_eq!((run.code, &json_of(&run.stdout)["state"]), (Some(2), &json!("refused")), "{run:?}");
    let Some(path) = folder.add("major9.c", "libmajor9.so", &[]) else { return };
    folder.run(&["plugin", "inspect", &path]).refused(&[&path, "version 9.4 of the plugin ABI"]);

    // Its words, in whatever way they come, are one line each.
    let path = folder.add("garbles.c", "libgarbles.so", &[]).unwrap();
    let run = folder.run(&["plugin", "inspect", &path]);
    let lines: Vec<&str> = run.stderr.lines().collect();
    assert_eq!((run.code, lines.len(), run.stderr.contains('\u{1b}')), (Some(2), 2, false), "{lines:?}");
    assert_contains(lines[0], &[r"logged\nerror: \u{1b}[31mline"]);
    assert_contains(lines[1], &[r"refused to start: first\nerror: \u{1b}[31msecond"]);
}

#[test]
fn a_layer_goes_over_the_backend_that_is_selected() {
    let folder = Folder::new();
    let Some(path) = folder.add("layer.c", "libdeepinfer_c_layer.so", &[]) else { return };
    let layered = |layers: &str, args: &[&str]| finish(folder.command(args).env("DEEPINFER_LAYERS", layers));
    let args = ["generate", "Once upon a time", "--max-tokens", "4"];
    let plain = crate::command::deepinfer(&args);
    for layers in ["", "c-layer", &format!("{path}:tag=x"), "c-layer:tag=x"] {
        assert_eq!(layered(layers, &args).succeeded_quietly(), plain.succeeded_quietly(), "{layers}");
    }
    let run = layered("c-layer", &["backends"]);
    let selected = format!("selected: device 0 of cpu + c-layer ({})", built().display());
    assert_eq!(run.succeeded_quietly().lines().last(), Some(selected.as_str()));
    assert_contains(&run.stdout, &[&format!("c-layer is a layer ({path})")]);
    let report = json_of(layered("c-layer:tag=x", &["doctor", "--json"]).succeeded_quietly());
    assert_eq!(report["selected"], selected.trim_start_matches("selected: "));
    assert!(
        report["settings"]
            .as_array()
            .unwrap()
            .contains(&json!({"name": "DEEPINFER_LAYERS", "value": "c-layer:tag=x", "is_known": true}))
    );
    let run = layered("", &["plugin", "inspect", &path]);
    assert_contains(run.succeeded_quietly(), &["  name             c-layer\n", "layer: it goes over a backend"]);

    let wrong = layered("c-layer:fault=gather", &args);
    assert_ne!(wrong.succeeded_quietly(), plain.stdout, "the fault of the layer reaches the model");
    for (layers, parts) in [
        ("c-layer:fault=start", ["\"c-layer\" cannot be put over cpu", "c-layer refused to start: not over this"]),
        ("c-layer;;", ["DEEPINFER_LAYERS", "the name of a layer is missing"]),
        ("shadow", ["there is no layer \"shadow\"", "libdeepinfer_shadow.so"]),
        ("c-layer;tag", ["no layer \"tag\" (an option of c-layer would follow a comma, not ;)", "libdeepinfer_tag.so"]),
        ("c-layer,tag=x", ["the name \"c-layer,tag=x\" contains a comma", "layers are apart by ;"]),
        ("c-layer; c-layer", ["the name \" c-layer\" contains a space", "layers are apart by ;"]),
        ("c-layer:fault=start,tag=x c-layer", ["refused to start: not over this", "; layers are apart by ;, and the"]),
        ("cpu-reference", ["\"cpu-reference\" cannot be put over cpu", "is a backend, not a layer"]),
    ] {
        layered(layers, &args).refused(&parts);
        // What is wrong with the layers keeps no report from telling the rest.
        let report = json_of(layered(layers, &["doctor", "--json"]).succeeded());
        assert_eq!(report["selected"], Value::Null, "{layers}");
        assert_contains(report["problem"].as_str().unwrap(), &parts);
        assert!(report["plugins"].as_array().unwrap().iter().any(|plugin| plugin["name"] == "cpu"));
    }
}

#[test]
fn doctor_reports_the_machine_and_never_fails() {
    let folder = Folder::new();
    let run = folder.run(&["doctor"]);
    let text = run.succeeded_quietly();
    let parts = [
        "deepinfer ",
        "plugin ABI ",
        "machine\n",
        "  processor ",
        "  memory ",
        "settings\n",
        "selected: device 0 of cpu",
    ];
    assert_contains(text, &parts);
    let report = json_of(folder.run(&["doctor", "--json"]).succeeded_quietly());
    assert!(report["topology"]["cpu"]["logical"].as_u64().unwrap() >= 1, "{report}");
    assert!(report["topology"]["memory"]["total_bytes"].as_u64().unwrap() > 1 << 20, "{report}");
    let places: Vec<&Value> = report["searched"].as_array().unwrap().iter().map(|place| &place["origin"]).collect();
    assert_eq!((places[0], *places.last().unwrap()), (&json!("named"), &json!("system")));

    let run = finish(folder.command(&["doctor"]).env("DEEPINFER_ACCELERATOR", "cpu:x\u{1b}[2J"));
    assert_contains(run.succeeded_quietly(), &["cpu 0.1.0", "selected: nothing: ", "is not the number of a device"]);
    assert!(!run.stdout.contains('\u{1b}'), "{}", run.stdout);
}

#[test]
fn the_worker_ends_with_the_program_that_asked() {
    let folder = Folder::new();
    let Some(spins) = folder.add("hostile.c", "libspins.so", &["-DSPINS"]) else { return };
    let mut worker = command(&["plugin-worker", &spins]).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    assert_eq!(worker.try_wait().unwrap(), None);
    drop(worker.stdin.take());
    assert_eq!(worker.wait().unwrap().signal(), Some(9), "nothing of the plugin runs at its end");

    // Nor does it outlive a program that was killed, not even while the plugin is mapped.
    let sleeps = folder.add("hostile.c", "libsleeps.so", &["-DSLEEPS"]).unwrap();
    let mut asks = folder.command(&["plugin", "inspect", &sleeps]).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(asks.stderr.take().unwrap()).read_line(&mut line).unwrap();
    asks.kill().unwrap();
    asks.wait().unwrap();
    wait_for_the_end_of(&line);
}

/// Waits until the process of a line `process N` is gone, or only its place in the table of processes is left.
#[track_caller]
fn wait_for_the_end_of(line: &str) {
    let id = line.trim().strip_prefix("process ").unwrap_or_else(|| panic!("{line:?}"));
    let until = Instant::now() + Duration::from_secs(60);
    while let Ok(stat) = fs::read_to_string(format!("/proc/{id}/stat")) {
        if stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('Z')) {
            return;
        }
        assert!(Instant::now() < until, "process {id} lives on");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_a_plugin_prints_or_starts_does_not_keep_the_command() {
    let folder = Folder::new();
    let Some(floods) = folder.add("hostile.c", "libfloods.so", &["-DFLOODS"]) else { return };
    let run = folder.run(&["plugin", "inspect", &floods, "--timeout", "1"]);
    assert_eq!(run.code, Some(2));
    assert!(run.stderr.len() < 200_000, "{} bytes", run.stderr.len());
    assert_contains(run.stderr.lines().last().unwrap(), &["it did not finish loading within 1 s"]);

    // The end of the process counts, and not that of its pipes.
    let orphans = folder.add("hostile.c", "liborphans.so", &["-DORPHANS"]).unwrap();
    let run = folder.run(&["plugin", "inspect", &orphans, "--timeout", "60"]);
    let lines: Vec<&str> = run.stderr.lines().collect();
    assert_eq!((run.code, lines.len()), (Some(2), 2), "{lines:?}");
    wait_for_the_end_of(lines[0]);
    assert_contains(lines[1], &["while it was loaded, killed by signal 6 (SIGABRT)"]);
}

#[test]
fn a_plugin_cannot_turn_an_end_into_success() {
    let folder = Folder::new();
    let Some(ends) = folder.add("ends.c", "libdeepinfer_ends.so", &["-DEXITS"]) else { return };
    let run = folder.run(&["plugin", "inspect", &ends]);
    run.refused(&["after it had told what it is, the process exited with code 0"]);
    folder.run(&["generate", "x", "--accelerator", &ends]).refused(&["it does not implement"]);
    let run = folder.run(&["parity", "--backend", &ends, "--ops", "rstd", "--profile", "none"]);
    run.refused(&["does not load: after it was loaded, the process exited with code 0"]);
    let exits = folder.add("hostile.c", "libexits.so", &["-DEXITS"]).unwrap();
    let run = folder.run(&["generate", "x", "--accelerator", &exits]);
    assert_eq!(run.code, Some(1), "{run:?}");
    assert_contains(&run.stderr, &["error: a plugin ended the process by exit"]);

    let forges = folder.add("forges.c", "libdeepinfer_forges.so", &[]).unwrap();
    let args = ["--ops", "rstd", "--profile", "none", "--case", "value/1"];
    let run = folder.run(&[&["parity", "--backend", &forges], &args[..]].concat());
    assert_eq!(run.code, Some(1), "{run:?}");
    assert_contains(&run.stdout, &["1\\nall 9 cases pass \\u{202e} on", "the process exited with code 0"]);
    assert!(!run.stdout.contains("\nall 9"), "{}", run.stdout);
}

#[test]
fn settings_of_whoever_started_the_command_are_told_or_do_not_matter() {
    // `SIGCHLD` is ignored, which is inherited.
    let mut ignoring = Command::new("sh");
    ignoring.args(["-c", "trap '' CHLD; exec \"$0\" doctor", env!("CARGO_BIN_EXE_deepinfer")]);
    ignoring.env("DEEPINFER_ACCELERATOR", "cpu").env("XDG_DATA_HOME", "/nonexistent");
    assert_contains(finish(&mut ignoring).succeeded(), &["selected: device 0 of cpu"]);

    let run = finish(command(&["doctor"]).env("DEEPINFER_OP_IMPL", "garbage"));
    assert_contains(run.succeeded(), &["selected: nothing: \"garbage\" pins no implementations"]);

    let run = finish(command(&["doctor"]).env("DEEPINFER_PLUGIN_PATH", "/nowhere\nerror \u{202e}"));
    run.succeeded();
    assert_contains(&run.stderr, &["/nowhere\\nerror \\u{202e} is not searched"]);
    assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);

    // An option that looks like one of the command is the backend's.
    let run = finish(&mut command(&["backends", "--accelerator", "cpu?-x=1"]));
    assert_contains(&run.stdout, &["option \"-x=1\" is unknown"]);
}

#[test]
fn a_malformed_table_of_own_ops_is_told_under_the_validation_layer() {
    let folder = Folder::new();
    for (switch, problem) in [
        ("-DWILD_TABLE", "is at 0x1, which is not aligned"),
        ("-DNO_ROWS", "the table of its own ops has an entry 0 that is at no address"),
        ("-DNO_ARGS", "row 0 of its own ops has an argument list that has an entry 0 that is at no address"),
        ("-DODD_ROW", "it must lie behind the head, within the struct, at a multiple of 4"),
    ] {
        let Some(path) = folder.add("vendor_op.c", "libdeepinfer_vendor.so", &[switch]) else { return };
        let args = ["backends", "--accelerator", &path];
        let run = finish(folder.command(&args).env("DEEPINFER_LAYERS", "validate"));
        run.succeeded();
        assert_contains(&run.stderr, &["validate (struct)", problem]);
        assert_contains(&run.stdout, &["c-vendor + validate"]);
    }
}
