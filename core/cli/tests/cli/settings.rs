//! Variables of the environment that begin with `DEEPINFER_`: what `doctor` tells of them, and that a failure of `parity` is
//! repeated with those that it had.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::accelerators::compile;
use crate::command::{Run, command, finish};

#[test]
fn doctor_lists_what_the_program_reads_and_what_else_is_set() {
    let set = |args: &[&str]| {
        let mut doctor = command(args);
        doctor.env("DEEPINFER_OP_IMPL", "").env("DEEPINFER_Z_SEED", "5").env("DEEPINFERX", "not ours");
        let odd = OsStr::from_bytes(b"a\x1b[31m\n\xffb");
        finish(doctor.env("DEEPINFER_A_FOLDER", odd).env("OTHER_DEEPINFER_B", "1"))
    };
    let run = set(&["doctor"]);
    let text = run.succeeded();
    let (_, rest) = text.split_once("\nsettings\n").unwrap();
    let lines: Vec<&str> = rest.lines().take_while(|line| !line.is_empty()).collect();
    let names: Vec<&str> = lines.iter().map(|line| line.split_whitespace().next().unwrap()).collect();
    // Those of the program, then the others.
    let (known, others) = names.split_at(names.len() - 2);
    assert_eq!(others, ["DEEPINFER_A_FOLDER", "DEEPINFER_Z_SEED"], "{text}");
    assert!(known.len() > 2 && known.is_sorted(), "{text}");
    let note = "(nothing in DeepInfer itself reads it; a plugin may)";
    for (name, value) in [
        ("DEEPINFER_ACCELERATOR", "\"cpu\"".to_owned()),
        ("DEEPINFER_GRAPHS", "not set".to_owned()),
        ("DEEPINFER_HF_MODEL_DIR", "not set".to_owned()),
        ("DEEPINFER_OP_IMPL", "\"\"".to_owned()),
        ("DEEPINFER_Z_SEED", format!("\"5\" {note}")),
        ("DEEPINFER_A_FOLDER", format!("\"a\\u{{1b}}[31m\\n\u{FFFD}b\" {note}")),
    ] {
        assert!(lines.contains(&format!("  {name:34} {value}").as_str()), "{name}: {lines:#?}");
    }

    let report: Value = serde_json::from_str(set(&["doctor", "--json"]).succeeded()).unwrap();
    let settings = report["settings"].as_array().unwrap();
    assert_eq!(settings.iter().map(|setting| setting["name"].as_str().unwrap()).collect::<Vec<_>>(), names);
    assert!(settings.contains(&json!({"name": "DEEPINFER_GRAPHS", "value": null, "is_known": true})));
    assert_eq!(settings[names.len() - 2]["value"], "a\u{1b}[31m\n\u{FFFD}b");
    assert_eq!(settings[names.len() - 1], json!({"name": "DEEPINFER_Z_SEED", "value": "5", "is_known": false}));
}

/// The liar is found by its name only where the variable says.
#[test]
fn a_failure_is_repeated_with_the_settings_that_it_had() {
    let folder = tempfile::tempdir().unwrap();
    let plugins = folder.path().join("it's a folder");
    fs::create_dir(&plugins).unwrap();
    if !compile("liar.c", &plugins.join("libdeepinfer_liar.so")) {
        return;
    }
    let [report, junit, html] = ["r.json", "r.xml", "r.html"].map(|name| folder.path().join(name));
    let [json_path, junit_path, html_path] = [&report, &junit, &html].map(|path| path.to_str().unwrap());
    let args = ["parity", "--backend", "liar?fault=wrong", "--ops", "convert_kv_index", "--case", "value/0"];
    let files = ["--profile", "none", "--report", json_path, "--junit", junit_path, "--html", html_path];
    let mut parity = command(&[&args[..], &files].concat());
    parity.env("DEEPINFER_PLUGIN_PATH", &plugins).env("DEEPINFER_NPU_NOTE", "a <b>\n").env("DEEPINFER_NPU_X", "");
    // Parity does not read them.
    let run = finish(parity.env("DEEPINFER_GRAPHS", "1").env("DEEPINFER_HF_MODEL_DIR", "/nowhere"));
    assert_eq!(run.code, Some(1), "{run:?}");

    let path = plugins.to_str().unwrap().replace('\'', "'\\''");
    let settings = format!("DEEPINFER_NPU_NOTE=$'a <b>\\x0a' DEEPINFER_NPU_X='' DEEPINFER_PLUGIN_PATH='{path}'");
    assert!(run.stdout.contains(&format!("\nsettings {settings}\n")), "{}", run.stdout);
    let report: Value = serde_json::from_str(&fs::read_to_string(report).unwrap()).unwrap();
    let wanted = json!({
        "DEEPINFER_NPU_NOTE": "a <b>\n", "DEEPINFER_NPU_X": "", "DEEPINFER_PLUGIN_PATH": plugins.to_str().unwrap(),
    });
    assert_eq!(report["settings"], wanted);
    let rerun = report["failed"][0]["rerun"].as_str().unwrap();
    assert!(rerun.starts_with(&format!("{settings} deepinfer parity --backend 'liar?fault=wrong' ")), "{rerun}");
    assert!(run.stdout.contains(&format!("\n  {rerun}\n")), "{}", run.stdout);
    let xml = fs::read_to_string(junit).unwrap();
    assert!(xml.contains("<property name=\"DEEPINFER_NPU_NOTE\" value=\"a &lt;b&gt;\n\"/>"), "{xml}");
    assert!(fs::read_to_string(html).unwrap().contains("<code>DEEPINFER_NPU_NOTE=a &lt;b&gt;\n</code>"));

    // Not every shell has the notation of the note.
    let command = rerun.replace("$'a <b>\\x0a'", "'a <b>'");
    let again = in_a_shell(&command);
    assert_eq!(again.code, Some(1), "{again:?}");
    assert!(
        again.stdout.contains("FAILED convert_kv_index/value/0: the result is not that of the oracle"),
        "{again:?}"
    );
    let (_, without) = command.split_once(" deepinfer ").unwrap();
    in_a_shell(&format!("deepinfer {without}")).refused(&["there is no accelerator backend \"liar\""]);
}

/// Runs a line in which the command is called `deepinfer`, with no variable from outside but where programs are.
fn in_a_shell(line: &str) -> Run {
    let here = Path::new(env!("CARGO_BIN_EXE_deepinfer")).parent().unwrap();
    let path = format!("{}:{}", here.display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("sh");
    finish(
        shell
            .args(["-c", line])
            .env_clear()
            .env("PATH", path)
            .env("XDG_DATA_HOME", "/nonexistent")
            .stdin(Stdio::null()),
    )
}
