//! Variables of the environment that begin with `DEEPINFER_`: what `doctor` tells of them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use serde_json::{Value, json};

use crate::command::{command, finish};

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
    let wanted = [
        "DEEPINFER_ACCELERATOR",
        "DEEPINFER_BATCH_INVARIANT",
        "DEEPINFER_FLIGHT_RECORDER",
        "DEEPINFER_GRAPHS",
        "DEEPINFER_HF_MODEL_DIR",
        "DEEPINFER_LAYERS",
        "DEEPINFER_OP_IMPL",
        "DEEPINFER_PLUGIN_PATH",
        "DEEPINFER_ZERO_OVERHEAD_SCHEDULING",
        "DEEPINFER_A_FOLDER",
        "DEEPINFER_Z_SEED",
    ];
    assert_eq!(names, wanted, "{text}");
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
    assert_eq!(settings.iter().map(|setting| setting["name"].as_str().unwrap()).collect::<Vec<_>>(), wanted);
    assert_eq!(settings[3], json!({"name": "DEEPINFER_GRAPHS", "value": null, "is_known": true}));
    assert_eq!(settings[9]["value"], "a\u{1b}[31m\n\u{FFFD}b");
    assert_eq!(settings[10], json!({"name": "DEEPINFER_Z_SEED", "value": "5", "is_known": false}));
}
