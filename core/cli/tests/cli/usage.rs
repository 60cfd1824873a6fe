//! Arguments, files, streams and exit codes.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};

use crate::command::{command, deepinfer, deepinfer_reading, finish, json_lines, repository};

/// Parameters that are options and fields of input lines.
const FIELDS: [&str; 26] = [
    "max_tokens",
    "min_tokens",
    "n",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "logit_bias",
    "allowed_token_ids",
    "banned_token_ids",
    "seed",
    "seq_seed",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "skip_special_tokens",
    "golden_token_ids",
    "logprobs",
    "prompt_logprobs",
    "logits",
    "priority",
    "cache_salt",
];

#[test]
fn help_tells_the_options_and_the_line_format() {
    let general = deepinfer(&["--help"]);
    for word in ["generate", "inspect", "backends", "Exit codes"] {
        assert!(general.succeeded_quietly().contains(word), "{word}");
    }
    let generate = deepinfer(&["generate", "--help"]);
    for word in [
        "[PROMPT]",
        "--model",
        "--prompts",
        "--output",
        "--max-tokens",
        "--temperature",
        "--seed",
        "--logprobs",
        "--logits",
        "--numerics",
        "exact",
        "cache",
        "deploy",
        "--max-num-seqs",
        "256",
        "--max-num-batched-tokens",
        "8192",
        "--no-prefix-cache",
        "--memory-utilization",
        "--max-model-len",
        "--accelerator",
        "Examples:",
        "stop_reason",
        "cached_tokens",
        "outputs",
        "DEEPINFER_HF_MODEL_DIR",
        "DEEPINFER_ACCELERATOR",
        "id \"0\"",
    ] {
        assert!(generate.succeeded_quietly().contains(word), "{word}");
    }
    for field in FIELDS {
        let (help, option) = (generate.succeeded_quietly(), format!("--{}", field.replace('_', "-")));
        assert!(help.contains(field), "the field {field}");
        assert!(help.contains(&option), "the option {option}");
    }
    for word in ["--check", "--json", "--context", "--requests", "config.json"] {
        assert!(deepinfer(&["inspect", "--help"]).succeeded_quietly().contains(word), "{word}");
    }
    assert!(deepinfer(&["backends", "--help"]).succeeded_quietly().contains("DEEPINFER_PLUGIN_PATH"));
}

#[test]
fn the_version_is_that_of_the_package() {
    assert_eq!(deepinfer(&["--version"]).succeeded_quietly(), concat!("deepinfer ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn wrong_arguments() {
    assert_eq!(deepinfer(&[]).code, Some(2));
    deepinfer(&["generate"]).refused(&["PROMPT", "--prompts"]);
    deepinfer(&["generate", "x", "--prompts", "y.jsonl"]).refused(&["both a PROMPT and --prompts"]);
    for option in [["--logits", "5"], ["--prompt-logprobs", "1"], ["--logprobs", "0"], ["--n", "2"]] {
        let args = [&["generate", "x"], &option[..]].concat();
        deepinfer(&args).refused(&[option[0], "is for JSON lines", "--output"]);
    }
    // The engine's own name of what was once called so.
    deepinfer(&["generate", "x", "--chunk-tokens", "5"]).refused(&["--chunk-tokens"]);
    deepinfer(&["generate", "x", "--numerics", "fast"]).refused(&["fast", "exact", "cache", "deploy"]);
    deepinfer(&["generate", "x", "y"]).refused(&["'y'"]);
    deepinfer(&["train"]).refused(&["train"]);
}

#[test]
fn numbers_that_cannot_be() {
    let whole = "it must be a whole number of at least";
    for (option, value, wanted) in [
        ("--max-tokens", "-1", format!("{whole} 1")),
        ("--max-tokens", "0", format!("{whole} 1")),
        ("--max-tokens", "1e3", format!("{whole} 1")),
        ("--max-tokens", "99999999999999999999", "it must be a whole number from 1 to 18446744073709551615".to_owned()),
        ("--seed", "-3", format!("{whole} 0")),
        ("--max-num-batched-tokens", "-1", "it must be a whole number from 1 to 16777216".to_owned()),
        ("--max-num-seqs", "0", "it must be a whole number from 1 to 65536".to_owned()),
        ("--max-model-len", "1", format!("{whole} 2")),
        ("--memory-utilization", "half", "it must be a number".to_owned()),
        ("--n", "0", "it must be a whole number from 1 to 1024".to_owned()),
        ("--min-tokens", "-1", format!("{whole} 0")),
        ("--top-k", "-1", format!("{whole} 0")),
        ("--top-p", "most", "it must be a number".to_owned()),
        ("--allowed-token-ids", "x", "it must be a whole number from 0 to 4294967295".to_owned()),
        ("--logit-bias", "17", "it must be a token id and a number, as in 17=-2.5".to_owned()),
        ("--priority", "2147483648", "2147483648".to_owned()),
        ("--logits", "-5", "it must be a whole number from 0 to 4096".to_owned()),
        ("--logprobs", "-5", "it must be a whole number from 0 to 4096".to_owned()),
        ("--logprobs", "4097", "it must be a whole number from 0 to 4096".to_owned()),
        ("--temperature", "-1", "it must be a finite number of at least 0".to_owned()),
        ("--temperature", "NaN", "it must be a finite number of at least 0".to_owned()),
        ("--temperature", "1e39", "it must be a finite number of at least 0".to_owned()),
    ] {
        let run = deepinfer(&["generate", "x", option, value]);
        run.refused(&[&format!("'{value}'"), option, &wanted]);
    }
    // What a number may be is said with the value that it has.
    for (option, value, sentence) in [
        ("--top-p", "0", "top_p is 0, but must be above 0 and at most 1"),
        ("--min-p", "-0.5", "min_p is -0.5, but must be at least 0 and at most 1"),
        ("--repetition-penalty", "0", "repetition_penalty is 0, but must be above 0"),
        ("--frequency-penalty", "3", "frequency_penalty is 3, but must be at least -2 and at most 2"),
        ("--presence-penalty", "-2.5", "presence_penalty is -2.5, but must be at least -2"),
        ("--logit-bias", "5=inf", "logit_bias is inf for token 5"),
        ("--stop", "", "stop is an empty text"),
        ("--allowed-token-ids", "4096", "allowed_token_ids[0] is 4096, but token ids must be below 4096"),
        ("--min-tokens", "200", "min_tokens is 200"),
    ] {
        let run = deepinfer(&["generate", "x", "--max-tokens", "100", option, value]);
        run.refused(&[sentence]);
    }
    for (option, value, wanted) in [
        ("--context", "-4", format!("{whole} 1")),
        ("--requests", "0", "it must be a whole number from 1 to 1048576".to_owned()),
        ("--requests", "1048577", "it must be a whole number from 1 to 1048576".to_owned()),
    ] {
        deepinfer(&["inspect", option, value]).refused(&[&format!("'{value}'"), option, &wanted]);
    }
}

#[test]
fn limits_that_the_memory_or_the_model_cannot_hold() {
    for (args, sentence) in [
        (&["--memory-utilization", "0"][..], "a memory utilisation of 0 is no part of the free memory"),
        (&["--memory-utilization", "1.5"], "give more than 0 and at most 1"),
        (&["--memory-utilization", "1e-7"], "free bytes may be used; a memory utilisation above"),
        (&["--max-model-len", "5000"], "--max-model-len is 5000, but the model has a context of 4096 tokens"),
    ] {
        let run = deepinfer_reading(&[&["generate", "--prompts", "-"], args].concat(), b"");
        run.refused(&[sentence]);
    }
}

#[test]
fn switches_are_on_or_off() {
    let run = |name: &str, value: &str| finish(command(&["generate", "x", "--max-tokens", "2"]).env(name, value));
    let plain = deepinfer(&["generate", "x", "--max-tokens", "2"]);
    for name in ["DEEPINFER_BATCH_INVARIANT", "DEEPINFER_ZERO_OVERHEAD_SCHEDULING", "DEEPINFER_GRAPHS"] {
        for value in ["", "0", "1"] {
            assert_eq!(run(name, value).succeeded_quietly(), plain.stdout, "{name}={value}");
        }
        for value in ["2", "true", "off"] {
            run(name, value).refused(&[&format!("the variable {name} is {value:?}, but must be 0 or 1")]);
        }
    }
}

#[test]
fn prompts_that_cannot_run() {
    deepinfer(&["generate", ""]).refused(&["the prompt is empty"]);
    let long = "the ".repeat(5000);
    deepinfer(&["generate", &long]).refused(&["the prompt has", "a context of 4096", "at most 4095"]);
    // Nothing was written for it, nor was what the file held lost.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.jsonl");
    fs::write(&path, "before").unwrap();
    deepinfer(&["generate", "", "--output", path.to_str().unwrap()]).refused(&["the prompt is empty"]);
    assert_eq!(fs::read_to_string(&path).unwrap(), "before");

    let tiny = repository("tests/fixtures/golden/tiny_model");
    deepinfer(&["generate", "x", "--model", tiny.to_str().unwrap()])
        .refused(&["no tokenizer.json", "prompt_token_ids"]);
}

#[test]
fn files_that_cannot_be_used() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("no/where.jsonl");
    let missing = missing.to_str().unwrap();
    deepinfer(&["generate", "--prompts", missing]).refused(&["cannot read", missing, "No such file"]);
    // Before the model is even looked for.
    let without_model = ["generate", "x", "--model", "/nonexistent", "--output", missing];
    deepinfer(&without_model).refused(&["cannot write", missing, "No such file"]);

    let prompts = dir.path().join("prompts.jsonl");
    fs::write(&prompts, "{\"id\": \"a\", \"prompt\": \"x\"}\n").unwrap();
    let same = dir.path().join("../").join(dir.path().file_name().unwrap()).join("prompts.jsonl");
    let args = ["generate", "--prompts", prompts.to_str().unwrap(), "--output", same.to_str().unwrap()];
    deepinfer(&args).refused(&["the same file", prompts.to_str().unwrap()]);
    assert!(fs::read_to_string(&prompts).unwrap().contains("prompt"));

    let mut from_stdin = command(&["generate", "--prompts", "-", "--output", same.to_str().unwrap()]);
    finish(from_stdin.stdin(fs::File::open(&prompts).unwrap())).refused(&["the same file", same.to_str().unwrap()]);
    assert!(fs::read_to_string(&prompts).unwrap().contains("prompt"));
}

#[test]
fn a_new_file_of_results_is_there_only_if_the_command_ran() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.jsonl");
    let output = path.to_str().unwrap();
    for refused in [
        &["generate", "", "--output", output][..],
        &["generate", "x", "--output", output, "--model", "/nonexistent"],
        &["generate", "x", "--output", output, "--accelerator", "tpu"],
        &["generate", "--prompts", "-", "--output", output, "--model", "/nonexistent"],
    ] {
        deepinfer(refused).refused(&[]);
        assert!(!path.exists(), "{refused:?} left a file");
    }
    // No prompts are no reason to leave no file.
    deepinfer_reading(&["generate", "--prompts", "-", "--output", output], b"").succeeded_quietly();
    assert_eq!(fs::read_to_string(&path).unwrap(), "");

    // A link is written through, wherever it leads.
    let link = dir.path().join("link.jsonl");
    std::os::unix::fs::symlink("target.jsonl", &link).unwrap();
    deepinfer(&["generate", "x", "--max-tokens", "1", "--output", link.to_str().unwrap()]).succeeded_quietly();
    assert_eq!(json_lines(&fs::read_to_string(dir.path().join("target.jsonl")).unwrap()).len(), 1);
}

#[test]
fn a_prompt_on_the_screen_is_the_text_of_its_line() {
    let args = ["generate", "Once upon a time", "--max-tokens", "40"];
    let screen = deepinfer(&args);
    assert_eq!(screen.succeeded_quietly(), deepinfer(&args).stdout, "greedy runs repeat");

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.jsonl");
    fs::write(&path, "x".repeat(100_000)).unwrap();
    let to_file = deepinfer(&[&args[..], &["--output", path.to_str().unwrap()]].concat());
    assert_eq!(to_file.succeeded_quietly(), "");
    let lines = json_lines(&fs::read_to_string(&path).unwrap());
    assert_eq!(lines.len(), 1, "the file was replaced");
    assert_eq!(lines[0]["id"], "0");
    assert_eq!(screen.stdout, lines[0]["text"].as_str().unwrap().to_owned() + "\n");

    let to_screen = deepinfer(&[&args[..], &["--output", "-"]].concat()).lines();
    assert_eq!(to_screen[0]["token_ids"], lines[0]["token_ids"]);
}

#[test]
fn the_model_comes_from_the_flag_then_the_variable_then_the_program() {
    let (mini, tiny) = (repository("models/deepseek-v41-mini"), repository("tests/fixtures/golden/tiny_model"));
    let args = ["generate", "Once upon a time", "--max-tokens", "8"];
    let embedded = deepinfer(&args);
    let named = deepinfer(&[&args[..], &["--model", mini.to_str().unwrap()]].concat());
    assert_eq!(embedded.succeeded_quietly(), named.succeeded_quietly());

    let variable = |value: &str, args: &[&str]| finish(command(args).env("DEEPINFER_HF_MODEL_DIR", value));
    variable("/nonexistent", &args).refused(&["/nonexistent"]);
    variable("", &args).succeeded_quietly();
    variable(tiny.to_str().unwrap(), &args).refused(&["no tokenizer.json"]);
    let flag = [&args[..], &["--model", mini.to_str().unwrap()]].concat();
    assert_eq!(variable("/nonexistent", &flag).succeeded_quietly(), embedded.stdout);
}

#[test]
fn lines_run_as_they_come_and_results_are_there_at_once() {
    let mut child = command(&["generate", "--prompts", "-", "--max-tokens", "3"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut results = BufReader::new(child.stdout.take().unwrap()).lines();
    // Each result is read before the next prompt is written: a buffer on either side would stop this for ever.
    for id in ["first", "second", "third"] {
        writeln!(stdin, "{{\"id\": {id:?}, \"prompt\": \"The\"}}").unwrap();
        let line = results.next().expect("a result comes").unwrap();
        assert_eq!(json_lines(&line)[0]["id"], id);
    }
    drop(stdin);
    assert!(results.next().is_none());
    assert!(child.wait().unwrap().success());
}

#[test]
fn text_appears_as_it_is_made() {
    let mut child =
        command(&["generate", "Once upon a time", "--max-tokens", "2000", "--temperature", "1", "--seed", "1"])
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
    let mut piece = [0; 4096];
    let bytes = child.stdout.as_mut().unwrap().read(&mut piece).unwrap();
    // A few tokens at most, not a line or a buffer of text.
    assert!((1..100).contains(&bytes), "{bytes}");
    assert_eq!(child.try_wait().unwrap(), None, "the rest is still to come");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn logs_go_to_standard_error() {
    let args = ["generate", "x", "--max-tokens", "2", "--seed", "7"];
    let run = finish(command(&args).env("RUST_LOG", "info"));
    assert_eq!(run.succeeded(), deepinfer(&args).succeeded_quietly());
    assert!(run.stderr.contains("INFO") && run.stderr.contains("seed 7, 2 tokens"), "{}", run.stderr);
}

#[test]
fn a_reader_that_goes_away_ends_the_command_quietly() {
    for args in
        [&["generate", "Once upon a time"][..], &["generate", "x", "--output", "-"], &["inspect"], &["backends"]]
    {
        let mut child = command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{args:?}");
        assert_eq!(output.status.code(), Some(0), "{args:?}");
    }
}

#[test]
fn a_full_disk_is_a_fault() {
    // A device on which every write fails for want of space.
    if !std::path::Path::new("/dev/full").exists() {
        eprintln!("skipped: this machine has no /dev/full");
        return;
    }
    let result = deepinfer(&["generate", "x", "--max-tokens", "2", "--output", "/dev/full"]);
    assert_eq!(result.code, Some(1), "{}", result.stderr);
    assert!(result.stderr.starts_with("error: cannot write /dev/full: "), "{}", result.stderr);
    for args in [&["generate", "x", "--max-tokens", "2"][..], &["inspect"], &["backends", "--json"], &["--help"]] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let result = command(args).stdout(full).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
        let stderr = String::from_utf8(result.stderr).unwrap();
        assert_eq!(result.status.code(), Some(1), "{args:?}: {stderr}");
        assert!(stderr.starts_with("error: cannot write standard output: "), "{args:?}: {stderr}");
    }
}

#[test]
fn a_standard_output_that_is_only_read_is_a_fault() {
    for args in [&["generate", "x", "--max-tokens", "2"][..], &["inspect"], &["backends"]] {
        let readable = fs::File::open(repository("LICENSE")).unwrap();
        let result = command(args).stdout(readable).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
        let stderr = String::from_utf8(result.stderr).unwrap();
        assert_eq!(result.status.code(), Some(1), "{args:?}: {stderr}");
        assert!(stderr.starts_with("error: cannot write standard output: "), "{args:?}: {stderr}");
    }
}

#[test]
fn results_are_appended_where_the_caller_appends() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("all.txt");
    fs::write(&path, "before\n").unwrap();
    let appending = fs::OpenOptions::new().append(true).open(&path).unwrap();
    let mut command = command(&["generate", "x", "--max-tokens", "2", "--output", "-"]);
    assert!(command.stdout(appending).status().unwrap().success());
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.starts_with("before\n{"), "{text}");
}

#[test]
fn nothing_but_results_without_a_terminal_and_figures_with_one() {
    let args = ["generate", "Once upon a time", "--max-tokens", "12", "--seed", "7"];
    let plain = deepinfer(&args);
    plain.succeeded_quietly();

    // `script` gives its command a terminal.
    let words: Vec<String> = args.iter().map(|word| format!("'{word}'")).collect();
    let line = format!("{} {}", env!("CARGO_BIN_EXE_deepinfer"), words.join(" "));
    let mut script = Command::new("script");
    script.args(["-qec", &line, "/dev/null"]).env("DEEPINFER_ACCELERATOR", "cpu").env("TERM", "xterm");
    script.env_remove("DEEPINFER_HF_MODEL_DIR").env_remove("NO_COLOR").stdin(Stdio::null());
    match script.output() {
        Err(e) => eprintln!("skipped: the program script does not run: {e}"),
        Ok(output) => {
            let shown = String::from_utf8_lossy(&output.stdout);
            assert_eq!(output.status.code(), Some(0), "{shown}");
            for part in
                [plain.stdout.trim_end(), "seed 7, 12 tokens", "tokens/s", "first token after", "pages", "reserve"]
            {
                assert!(shown.contains(part), "{part:?} is missing in: {shown}");
            }
        }
    }
}

#[test]
fn an_empty_file_of_prompts_gives_no_lines() {
    assert_eq!(deepinfer_reading(&["generate", "--prompts", "-"], b"\n  \r\n").succeeded_quietly(), "");
}

#[test]
fn results_do_not_become_prompts_nor_mix_with_the_trace() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("feed.jsonl");
    std::fs::write(&path, "{\"id\": \"a\", \"prompt\": \"Once\", \"max_tokens\": 2}\n").unwrap();
    let appended = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
    let name = path.to_str().unwrap();
    let run = finish(command(&["generate", "--prompts", name]).stdout(appended));
    run.refused(&["standard output goes to the file of --prompts"]);
    assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 1);
    deepinfer(&["generate", "Once", "--trace", "-"]).refused(&["--trace goes where standard output goes"]);
}
