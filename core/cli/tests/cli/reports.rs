//! `inspect` and `backends`.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde_json::{Value, json};

use crate::checkpoint::TinyModel;
use crate::command::{command, deepinfer, finish, repository};

fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

#[test]
fn the_released_configuration() {
    let path = repository("tests/fixtures/config.v41-flash.json");
    let path = path.to_str().unwrap();
    let text = deepinfer(&["inspect", path]);
    for part in ["KV bytes per token", "890", "Memory plan", "layers.{0..39}.attn_norm.weight"] {
        assert!(text.succeeded_quietly().contains(part), "{part}: {}", text.stdout);
    }
    let report =
        json_of(deepinfer(&["inspect", path, "--json", "--context", "32768", "--requests", "8"]).succeeded_quietly());
    assert_eq!(report["cache"]["kv_bytes_per_token"], 890.0);
    assert_eq!(report["plan"]["pages"], 8 * 32768 / 128);
    assert_eq!(report["architecture"]["layers"], 40);
    assert_eq!(report.get("check"), None);
}

#[test]
fn the_embedded_model_by_default() {
    let report = json_of(deepinfer(&["inspect", "--json", "--check"]).succeeded_quietly());
    assert_eq!(report["origin"], "the embedded model");
    assert_eq!(report["check"]["errors"], json!([]));
    assert_eq!(report["check"]["tensors"], report["total"]["tensors"]);
}

#[test]
fn the_verdict_of_a_check_is_the_last_line() {
    let verdict = "0 errors, 0 warnings; names, shapes and formats, no values";
    assert_eq!(deepinfer(&["inspect", "--check"]).succeeded_quietly().lines().last(), Some(verdict));
    assert!(!deepinfer(&["inspect"]).succeeded_quietly().contains("0 errors"));

    // Also on a screen, where warnings stand between the report and the verdict.
    let model = TinyModel::with_weights(|file| file.add("layers.0.surprise"));
    let both = tempfile::NamedTempFile::new().unwrap();
    let open = || fs::OpenOptions::new().append(true).open(both.path()).unwrap();
    assert!(command(&["inspect", model.dir(), "--check"]).stdout(open()).stderr(open()).status().unwrap().success());
    let text = fs::read_to_string(both.path()).unwrap();
    let last: Vec<&str> = text.lines().rev().take(2).collect();
    assert_eq!(last[0], "0 errors, 1 warnings; names, shapes and formats, no values");
    assert!(last[1].starts_with("warning: ") && last[1].contains("layers.0.surprise"), "{text}");
}

#[test]
fn names_in_a_model_cannot_repaint_the_screen() {
    let model = TinyModel::with_weights(|file| file.add("layers.0.\u{1b}[31mred\r"));
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("m\u{1b}[2J");
    std::os::unix::fs::symlink(model.dir(), &link).unwrap();
    let result = deepinfer(&["inspect", link.to_str().unwrap(), "--check"]);
    assert!(result.succeeded().contains("m\\u{1b}[2J\n"), "{}", result.stdout);
    assert!(result.stderr.contains("layers.0.\\u{1b}[31mred\\r"), "{}", result.stderr);
    assert!(!(result.stdout.clone() + &result.stderr).contains(['\u{1b}', '\r']), "{result:?}");
    let missing = link.join("x\u{7}");
    let missing = missing.to_str().unwrap();
    deepinfer(&["inspect", missing]).refused(&["m\\u{1b}[2J/x\\u{7}"]);
    deepinfer(&["generate", "x", "--output", &format!("{missing}/y")]).refused(&["m\\u{1b}[2J/x\\u{7}/y"]);
}

#[test]
fn a_check_names_everything_that_is_wrong() {
    let model = TinyModel::with_weights(|file| {
        file.rename("layers.0.attn_norm.weight", "layers.0.attention_norm.weight");
        *file.entry("layers.1.ffn_norm.weight", "shape") = json!([2, 64]);
        *file.entry("norm.weight", "dtype") = json!("F16");
    });
    let result = deepinfer(&["inspect", model.dir(), "--check"]);
    assert_eq!(result.code, Some(2));
    assert_eq!(result.stderr.lines().filter(|line| line.starts_with("error: ")).count(), 4, "{}", result.stderr);
    for part in [
        "`layers.0.attn_norm.weight` is missing, expected BF16 [128]",
        "`layers.1.ffn_norm.weight` has shape [2, 64]",
        "`norm.weight` has element type F16",
        "3 tensors are not as config.json implies",
        "warning: ",
        "`layers.0.attention_norm.weight` is not part of this model",
    ] {
        assert!(result.stderr.contains(part), "{part:?} is missing in: {}", result.stderr);
    }
    assert_eq!(result.stdout.lines().last(), Some("3 errors, 1 warnings; names, shapes and formats, no values"));

    let report = json_of(&deepinfer(&["inspect", model.dir(), "--check", "--json"]).stdout);
    assert_eq!(report["check"]["errors"].as_array().unwrap().len(), 3);
    assert_eq!(report["check"]["warnings"].as_array().unwrap().len(), 1);

    // Without a check the report alone is wanted.
    deepinfer(&["inspect", model.dir()]).succeeded_quietly();
}

#[test]
fn what_cannot_be_inspected() {
    let config = repository("tests/fixtures/config.v41-flash.json");
    let config = config.to_str().unwrap();
    deepinfer(&["inspect", "/nonexistent"]).refused(&["/nonexistent", "there is no such directory"]);
    deepinfer(&["inspect", config, "--check"]).refused(&["--check", config, "directory"]);
    deepinfer(&["inspect", config, "--context", "2000000"]).refused(&["--context is 2000000", "1048576"]);
    let license = repository("LICENSE");
    deepinfer(&["inspect", license.to_str().unwrap()]).refused(&["LICENSE", "is not a JSON configuration"]);
    let model = TinyModel::with_config(|config| config["text_config"]["max_position_embeddings"] = json!(1 << 21));
    let args = ["inspect", model.dir(), "--requests", "1048576"];
    deepinfer(&args).refused(&["1048576 requests of 2097152 tokens", "more than the 1099511627776 tokens"]);
    deepinfer(&[&args[..], &["--context", "1048576"]].concat()).succeeded_quietly();

    let model = TinyModel::with_config(|config| config["text_config"]["scoring_func"] = json!("tanh"));
    deepinfer(&["inspect", model.dir()]).refused(&["config.json", "scoring_func", "tanh"]);
}

#[test]
fn backends_and_why_others_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let broken = dir.path().join("libdeepinfer_broken.so");
    fs::write(&broken, "no library").unwrap();
    let run = |args: &[&str]| finish(command(args).env("DEEPINFER_PLUGIN_PATH", dir.path()));

    let report = json_of(run(&["backends", "--json"]).succeeded_quietly());
    assert_eq!(report["searched"][0], dir.path().to_str().unwrap());
    let backends = report["backends"].as_array().unwrap();
    let cpu = backends
        .iter()
        .find(|b| b["name"] == "cpu")
        .expect("the plugin is built: cargo build -p deepinfer-cpu-reference");
    assert_eq!(cpu["state"], "loaded");
    assert_eq!(cpu["missing_ops"], json!([]));
    assert_eq!(cpu["devices"].as_array().unwrap().len(), 1);
    let refused = backends.iter().find(|b| b["state"] == "refused").unwrap();
    assert_eq!(refused["path"], broken.to_str().unwrap());
    assert!(refused["reason"].as_str().unwrap().contains("cannot be loaded as a shared library"), "{refused}");

    let text = run(&["backends"]);
    for part in ["cpu ", "plugin ABI", "device 0: ", "gather@1", "refused: ", broken.to_str().unwrap()] {
        assert!(text.succeeded_quietly().contains(part), "{part:?} is missing in: {}", text.stdout);
    }
}

#[test]
fn a_plugin_given_by_its_path_is_reported_and_selected() {
    let dir = tempfile::tempdir().unwrap();
    let beside = Path::new(env!("CARGO_BIN_EXE_deepinfer")).parent().unwrap();
    let built = ["deps", ""].map(|folder| beside.join(folder).join("libdeepinfer_cpu_reference.so"));
    let built = built.iter().find(|path| path.exists()).expect("build it: cargo build -p deepinfer-cpu-reference");
    // A name that no search would find.
    let path = dir.path().join("elsewhere.so");
    fs::copy(built, &path).unwrap();
    let path = path.to_str().unwrap();

    let selected = format!("selected: device 0 of cpu ({path})");
    let by_flag = deepinfer(&["backends", "--accelerator", path]);
    let by_variable = finish(command(&["backends"]).env("DEEPINFER_ACCELERATOR", path));
    for text in [by_flag.succeeded_quietly(), by_variable.succeeded_quietly()] {
        let first = text.lines().next().unwrap();
        assert!(first.starts_with("cpu ") && first.contains(path), "{text}");
        assert_eq!(text.lines().last(), Some(selected.as_str()));
    }
    // The flag wins.
    let flag = finish(command(&["backends", "--accelerator", "cpu"]).env("DEEPINFER_ACCELERATOR", path));
    assert!(!flag.succeeded_quietly().contains(path), "{}", flag.stdout);
    let report = json_of(deepinfer(&["backends", "--accelerator", path, "--json"]).succeeded_quietly());
    assert_eq!((&report["backends"][0]["path"], &report["backends"][0]["name"]), (&json!(path), &json!("cpu")));
    assert_eq!(report["selected"], selected.trim_start_matches("selected: "));

    fs::write(path, "no library").unwrap();
    let text = deepinfer(&["backends", "--accelerator", path]);
    let reason = format!("{path}: it cannot be loaded as a shared library");
    assert!(text.succeeded_quietly().starts_with(&format!("refused: {reason}")), "{}", text.stdout);
    assert!(
        text.stdout.lines().last().unwrap().starts_with(&format!("selected: nothing: {reason}")),
        "{}",
        text.stdout
    );
    // What cannot be a selection is refused.
    deepinfer(&["backends", "--accelerator", "cpu:x"]).refused(&["cpu:x", "is not the number of a device"]);
}

#[test]
fn the_help_of_backends_and_the_readme_agree() {
    let help = deepinfer(&["backends", "--help"]);
    let readme = fs::read_to_string(repository("README.md")).unwrap();
    for word in ["DEEPINFER_ACCELERATOR", "DEEPINFER_PLUGIN_PATH", "absolute", "colon-separated"] {
        assert!(help.succeeded_quietly().contains(word) && readme.contains(word), "{word}");
    }
    let line =
        readme.lines().find(|line| line.starts_with("deepinfer backends ")).expect("the README shows the command");
    for word in ["found", "refused", "selected"] {
        assert!(help.stdout.contains(word) && line.contains(word), "{word}: {line}");
    }
}

#[test]
fn folders_of_any_bytes_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let odd = dir.path().join(OsStr::from_bytes(b"n\xFF"));
    fs::create_dir(&odd).unwrap();
    fs::write(odd.join("lib\u{1b}[31m\ndeepinfer_x.so"), "no library").unwrap();
    let run = |args: &[&str]| finish(command(args).env("DEEPINFER_PLUGIN_PATH", &odd));

    let report = json_of(run(&["backends", "--json"]).succeeded_quietly());
    assert_eq!(report["searched"][0], format!("{}/n\u{FFFD}", dir.path().display()));
    assert!(report["backends"][0]["path"].as_str().unwrap().ends_with("/n\u{FFFD}/lib\u{1b}[31m\ndeepinfer_x.so"));

    let text = run(&["backends"]);
    let first = text.succeeded_quietly().lines().next().unwrap();
    assert!(
        first.starts_with("refused: ") && first.contains("lib\\u{1b}[31m\\ndeepinfer_x.so: it cannot be"),
        "{first}"
    );
    assert!(!text.stdout.contains('\u{1b}'), "{}", text.stdout);
}
