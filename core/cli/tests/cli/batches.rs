//! Many prompts at once: each line gets what its prompt gets alone, in a process of its own with the fields as options.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::command::{command, deepinfer, deepinfer_reading, finish, json_lines};

/// Fields of lines, besides id, prompt and seed: every parameter is there somewhere.
fn parameters() -> Vec<Value> {
    vec![
        json!({}),
        json!({"temperature": 1.2, "top_k": 20}),
        json!({"temperature": 1.5, "top_p": 0.7, "n": 3}),
        json!({"temperature": 1, "min_p": 0.05, "logprobs": 2}),
        json!({"temperature": 0.7, "repetition_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": 0.25}),
        json!({"logit_bias": {"320": -4.5, "16": 2}, "banned_token_ids": [261, 13]}),
        json!({"allowed_token_ids": [300, 301, 302, 303, 304, 305], "temperature": 1, "logits": 3}),
        json!({"stop": ["e", "zz"], "min_tokens": 4}),
        json!({"stop": " a", "include_stop_str_in_output": true, "prompt_logprobs": 1}),
        json!({"stop_token_ids": [16, 14], "ignore_eos": true, "max_tokens": 30}),
        json!({"golden_token_ids": [400, 1, 401], "skip_special_tokens": true, "logprobs": 0}),
        json!({"priority": -3, "cache_salt": "mine", "temperature": 2, "n": 2, "prompt_logprobs": 0}),
    ]
}

/// The lines, whose prompts have from one word to more than a page, and which of them share beginnings.
fn lines() -> Vec<Value> {
    let long = "There was a small house near the pond. ".repeat(16);
    let prompts = ["The cat", "Once upon a time, there was a girl who liked to play", &long, "x"];
    let line = |(number, fields): (usize, Value)| {
        let mut line = json!({"id": number.to_string(), "prompt": prompts[number % 4], "max_tokens": 10});
        // The second name of the seed is as good.
        line[["seed", "seq_seed"][number % 2]] = json!(number * 1_000_003);
        line.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        line
    };
    parameters().into_iter().enumerate().map(line).collect()
}

fn text_of(lines: &[Value]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}

/// Output lines, without what depends on what ran before.
#[track_caller]
fn results(input: &str, args: &[&str]) -> Vec<Value> {
    let run = deepinfer_reading(&[&["generate", "--prompts", "-"], args].concat(), input.as_bytes());
    run.succeeded_quietly();
    let mut lines = run.lines();
    lines.iter_mut().for_each(|line| drop(line.as_object_mut().unwrap().remove("cached_tokens")));
    lines
}

/// The fields of a line as options.
fn options(line: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let mut options = Vec::new();
    for (name, value) in line.as_object().unwrap() {
        let option = format!("--{}", name.replace('_', "-"));
        match (name.as_str(), value) {
            ("id" | "prompt", _) => {}
            (_, Value::Bool(true)) => options.push(option),
            ("stop", Value::Array(list)) => options.extend(list.iter().flat_map(|stop| [option.clone(), text(stop)])),
            (_, Value::Array(list)) => options.extend([option, list.iter().map(text).collect::<Vec<_>>().join(",")]),
            (_, Value::Object(map)) => {
                let pairs: Vec<String> = map.iter().map(|(id, bias)| format!("{id}={bias}")).collect();
                options.extend([option, pairs.join(",")]);
            }
            (_, value) => options.extend([option, text(value)]),
        }
    }
    options
}

#[test]
fn lines_at_once_get_what_they_get_alone_and_keep_their_order() {
    let lines = lines();
    let together = results(&text_of(&lines), &[]);
    let ids: Vec<&str> = together.iter().map(|line| line["id"].as_str().unwrap()).collect();
    assert_eq!(ids, lines.iter().map(|line| line["id"].as_str().unwrap()).collect::<Vec<_>>());

    for (line, together) in lines.iter().zip(&together) {
        let mut args = vec!["generate".to_owned(), line["prompt"].as_str().unwrap().to_owned()];
        args.extend(["--output".to_owned(), "-".to_owned()]);
        args.extend(options(line));
        let run = deepinfer(&args.iter().map(String::as_str).collect::<Vec<_>>());
        run.succeeded_quietly();
        let mut alone = run.lines().remove(0);
        alone["id"] = line["id"].clone();
        alone.as_object_mut().unwrap().remove("cached_tokens");
        assert_eq!(&alone, together, "{args:?}");
    }
}

#[test]
fn limits_order_and_the_environment_change_nothing() {
    let lines = lines();
    let together = results(&text_of(&lines), &[]);
    let few = ["--max-num-seqs", "3", "--max-num-batched-tokens", "40", "--no-prefix-cache"];
    assert_eq!(results(&text_of(&lines), &few), together);
    let mut reversed = results(&text_of(&lines.iter().rev().cloned().collect::<Vec<_>>()), &["--max-num-seqs", "5"]);
    reversed.reverse();
    assert_eq!(reversed, together);

    let mut strict = command(&["generate", "--prompts", "/dev/stdin"]);
    strict.env("DEEPINFER_ZERO_OVERHEAD_SCHEDULING", "0").env("DEEPINFER_BATCH_INVARIANT", "1");
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("in.jsonl"), text_of(&lines)).unwrap();
    strict.stdin(std::fs::File::open(dir.path().join("in.jsonl")).unwrap());
    let mut strict = finish(&mut strict).lines();
    strict.iter_mut().for_each(|line| drop(line.as_object_mut().unwrap().remove("cached_tokens")));
    assert_eq!(strict, together);
}

#[test]
fn completions_are_numbered_and_the_first_is_that_of_one() {
    let line = |n: usize| json!({"id": "a", "prompt": "One day", "n": n, "temperature": 1, "seed": 5, "max_tokens": 12, "logprobs": 1});
    let lines = results(&text_of(&[line(3), line(1)]), &[]);
    let outputs = lines[0]["outputs"].as_array().unwrap();
    assert_eq!(outputs.iter().map(|output| &output["index"]).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(lines[0].get("token_ids"), None);
    assert_ne!(outputs[1]["token_ids"], outputs[2]["token_ids"]);
    let mut fields: Vec<&String> = outputs[0].as_object().unwrap().keys().collect();
    fields.sort();
    assert_eq!(fields, ["finish_reason", "index", "logprobs", "stop_reason", "text", "token_ids"]);
    for key in ["token_ids", "text", "finish_reason", "stop_reason", "logprobs"] {
        assert_eq!(lines[1][key], outputs[0][key], "{key}");
    }
    assert_eq!(lines[1].get("outputs"), None);
}

#[test]
fn stop_texts_and_tokens_are_told_and_left_out_or_kept() {
    let ask = |more: Value| {
        let mut line = json!({"id": "a", "prompt": "Once upon a time", "max_tokens": 20});
        line.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        line
    };
    let free = results(&text_of(&[ask(json!({}))]), &[]).remove(0);
    let text = free["text"].as_str().unwrap();
    assert_eq!(free["stop_reason"], Value::Null);
    // A word that begins in the middle of the text, spaces included.
    let word = text.split_inclusive(' ').nth(4).unwrap();
    let end = text.find(word).unwrap();
    let token = free["token_ids"][6].clone();
    let lines = results(
        &text_of(&[
            ask(json!({"stop": word})),
            ask(json!({"stop": ["not there", word], "include_stop_str_in_output": true})),
            ask(json!({"stop": word, "min_tokens": 20})),
            ask(json!({"stop_token_ids": [token]})),
        ]),
        &[],
    );
    assert_eq!((&lines[0]["text"], &lines[0]["stop_reason"]), (&json!(&text[..end]), &json!(word)));
    assert_eq!(lines[1]["text"], json!(&text[..end + word.len()]));
    assert_eq!(lines[1]["token_ids"], lines[0]["token_ids"]);
    assert_eq!((&lines[2]["text"], &lines[2]["finish_reason"]), (&free["text"], &json!("length")));
    assert_eq!((&lines[3]["stop_reason"], &lines[3]["finish_reason"]), (&token, &json!("stop")));

    // On the screen, too, where nothing of it may show before it is certain.
    let screen = deepinfer(&["generate", "Once upon a time", "--max-tokens", "20", "--stop", word]);
    assert_eq!(screen.succeeded_quietly(), format!("{}\n", &text[..end]));
}

#[test]
fn prompt_logprobs_are_those_of_the_same_tokens_as_outputs() {
    let prompt: Vec<u32> = (0..150).map(|i| 300 + i * 7 % 900).collect();
    let lines = results(
        &text_of(&[
            json!({"id": "prompt", "prompt_token_ids": prompt, "prompt_logprobs": 2, "max_tokens": 1}),
            json!({"id": "output", "prompt_token_ids": prompt[..1], "golden_token_ids": prompt[1..], "logprobs": 2,
                "max_tokens": prompt.len() - 1, "ignore_eos": true}),
        ]),
        &[],
    );
    let of_prompt = lines[0]["prompt_logprobs"].as_array().unwrap();
    assert_eq!((of_prompt.len(), &of_prompt[0]), (prompt.len(), &Value::Null));
    assert_eq!(&of_prompt[1..], lines[1]["logprobs"].as_array().unwrap());
}

#[test]
fn an_earlier_prompt_that_began_alike_saves_its_pages() {
    let prompt: Vec<u32> = (0..300).map(|i| 300 + i * 7 % 900).collect();
    let line = |salt: &str| json!({"id": salt, "prompt_token_ids": prompt, "max_tokens": 2, "cache_salt": salt});
    let cached = |args: &[&str]| -> Vec<u64> {
        let input = text_of(&[line("a"), line("a"), line("b")]);
        let args = [&["generate", "--prompts", "-", "--max-num-seqs", "1"], args].concat();
        let run = deepinfer_reading(&args, input.as_bytes());
        run.lines().iter().map(|line| line["cached_tokens"].as_u64().unwrap()).collect()
    };
    assert_eq!(cached(&[]), [0, 256, 0]);
    assert_eq!(cached(&["--no-prefix-cache"]), [0, 0, 0]);
}

#[test]
fn fields_that_cannot_be() {
    let bad = [
        (json!({"n": 0}), "n is 0, but must be at least 1"),
        (json!({"n": "two"}), "n is \"two\", but must be a whole number of at least 0"),
        (json!({"top_k": 1.5}), "top_k is 1.5, but must be a whole number"),
        (json!({"top_p": 0}), "top_p is 0, but must be above 0 and at most 1"),
        (json!({"min_p": true}), "min_p is true, but must be a number"),
        (json!({"repetition_penalty": 0}), "repetition_penalty is 0"),
        (json!({"frequency_penalty": 5}), "frequency_penalty is 5, but must be at least -2 and at most 2"),
        (json!({"presence_penalty": "1"}), "presence_penalty is \"1\", but must be a number"),
        (json!({"logit_bias": [1]}), "logit_bias is [1], but must be an object of token ids and numbers"),
        (json!({"logit_bias": {"cat": 1}}), "logit_bias has the name \"cat\", but names must be token ids"),
        (json!({"logit_bias": {"4096": 1}}), "logit_bias[0] is 4096, but token ids must be below 4096"),
        (json!({"logit_bias": {"5": "1"}}), "logit_bias is \"1\", but must be a number for every token"),
        (json!({"allowed_token_ids": []}), "allowed_token_ids is such that nothing can be drawn"),
        (json!({"allowed_token_ids": [5], "banned_token_ids": [5]}), "such that nothing can be drawn"),
        (json!({"stop": 5}), "stop is 5, but must be a string or a list of strings"),
        (json!({"stop": ["a", ""]}), "stop is an empty text"),
        (json!({"seed": 1, "seq_seed": 2}), "seed is 1 and seq_seed is 2; they are the same parameter"),
        (json!({"min_tokens": 30, "max_tokens": 20}), "min_tokens is 30, but must be at most max_tokens"),
        (json!({"logprobs": 5000}), "logprobs is 5000, but must be at most 4096"),
        (json!({"prompt_logprobs": -1}), "prompt_logprobs is -1"),
        (json!({"priority": 3_000_000_000_u64}), "priority is 3000000000, but must be a whole number from"),
        (json!({"cache_salt": 5}), "cache_salt is 5, but must be a string"),
        (json!({"ignore_eos": 1}), "ignore_eos is 1, but must be true or false"),
        (json!({"skip_special_tokens": "no"}), "skip_special_tokens is \"no\""),
        (json!({"include_stop_str_in_output": 1}), "include_stop_str_in_output is 1"),
    ];
    let input: Vec<Value> = bad
        .iter()
        .map(|(fields, _)| {
            let mut line = json!({"id": "a", "prompt": "x"});
            line.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            line
        })
        .collect();
    let run = deepinfer_reading(&["generate", "--prompts", "-"], text_of(&input).as_bytes());
    let lines = run.lines();
    assert_eq!(lines.len(), bad.len());
    for (line, (fields, sentence)) in lines.iter().zip(&bad) {
        let message = line["error"]["message"].as_str().unwrap_or_else(|| panic!("{fields} ran: {line}"));
        assert!(message.contains(sentence), "{fields}: {sentence:?} is missing in {message:?}");
    }
}

/// Each line fills a pipe. The first request is long: whatever is read while it runs must wait for it.
#[test]
fn a_line_that_holds_back_others_holds_back_reading() {
    const LINES: usize = 24;
    let mut child = command(&["generate", "--prompts", "-", "--max-num-seqs", "1"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let written = Arc::new(AtomicUsize::new(0));
    let count = written.clone();
    let writer = std::thread::spawn(move || {
        for number in 0..LINES {
            let max_tokens = if number == 0 { 200 } else { 1 };
            let line = json!({"id": number.to_string(), "prompt": "x", "max_tokens": max_tokens, "ignore_eos": true});
            writeln!(stdin, "{line}{}", " ".repeat(1 << 16)).unwrap();
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    let mut results = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut line = || json_lines(&results.next().expect("a result comes").unwrap()).remove(0);
    assert_eq!(line()["id"], "0");
    // Two that are not written, one that was parsed, one that is read, one in the pipe; and what came since the result.
    let before = written.load(Ordering::SeqCst);
    assert!(before < LINES / 2, "{before} of {LINES} lines were read before the first result");
    for number in 1..LINES {
        assert_eq!(line()["id"], number.to_string());
    }
    writer.join().unwrap();
    assert!(child.wait().unwrap().success());
}
