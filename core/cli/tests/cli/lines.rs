//! Lines of JSON in and out, on the embedded model.

use std::fs;

use deepinfer_model::tokenizer::Tokenizer;
use serde_json::{Value, json};

use crate::command::{Run, deepinfer, deepinfer_reading, repository};

const VOCABULARY: u64 = 4096;
const END_TOKEN: u64 = 1;

/// Runs input lines with more arguments.
fn run(lines: &[Value], args: &[&str]) -> Run {
    let input: String = lines.iter().map(|line| format!("{line}\n")).collect();
    deepinfer_reading(&[&["generate", "--prompts", "-"], args].concat(), input.as_bytes())
}

/// Runs input lines that are all in order.
#[track_caller]
fn results(lines: &[Value], args: &[&str]) -> Vec<Value> {
    let run = run(lines, args);
    run.succeeded_quietly();
    let results = run.lines();
    assert_eq!(results.len(), lines.len());
    results
}

#[track_caller]
fn ids(value: &Value) -> Vec<u64> {
    let list = value.as_array().unwrap_or_else(|| panic!("{value} is no list"));
    list.iter().map(|id| id.as_u64().unwrap()).collect()
}

#[test]
fn bad_lines_are_answered_in_their_place_and_the_others_run() {
    let too_long: Vec<u64> = vec![5; 5000];
    let input = [
        json!({"id": "good", "prompt": "The cat"}).to_string().into_bytes(),
        b"{\"id\": \"cut".to_vec(),
        b"   ".to_vec(),
        b"[1, 2]".to_vec(),
        json!({"prompt": "no id"}).to_string().into_bytes(),
        json!({"id": 7, "prompt": "x"}).to_string().into_bytes(),
        json!({"id": "neither"}).to_string().into_bytes(),
        json!({"id": "both", "prompt": "x", "prompt_token_ids": [5]}).to_string().into_bytes(),
        json!({"id": "empty", "prompt": ""}).to_string().into_bytes(),
        json!({"id": "empty ids", "prompt_token_ids": []}).to_string().into_bytes(),
        json!({"id": "range", "prompt_token_ids": [5, VOCABULARY]}).to_string().into_bytes(),
        json!({"id": "negative", "prompt_token_ids": [-1]}).to_string().into_bytes(),
        json!({"id": "half", "prompt_token_ids": [1.5]}).to_string().into_bytes(),
        json!({"id": "golden", "prompt": "x", "golden_token_ids": [VOCABULARY]}).to_string().into_bytes(),
        json!({"id": "stop", "prompt": "x", "stop_token_ids": "1"}).to_string().into_bytes(),
        json!({"id": "long", "prompt_token_ids": too_long}).to_string().into_bytes(),
        json!({"id": "cold", "prompt": "x", "temperature": -1}).to_string().into_bytes(),
        json!({"id": "none", "prompt": "x", "max_tokens": 0}).to_string().into_bytes(),
        json!({"id": "seed", "prompt": "x", "seed": -1}).to_string().into_bytes(),
        b"{\"id\": \"\xff\"}".to_vec(),
        json!({"id": "last", "prompt": "The dog"}).to_string().into_bytes(),
    ];
    let run = deepinfer_reading(&["generate", "--prompts", "-", "--max-tokens", "4"], &input.join(&b'\n'));
    run.succeeded();
    let warnings: Vec<&str> = run.stderr.lines().collect();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].starts_with("warning: 20 requests, 18 refused, 8 tokens, "), "{warnings:?}");
    let results = run.lines();
    let expected = [
        ("good", "", ""),
        ("2", "invalid_line", "line 2 is not JSON: EOF while parsing a string at column 11"),
        ("4", "invalid_line", "line 4 is a list, but must be a JSON object"),
        ("5", "invalid_line", "line 5 has no id"),
        ("6", "invalid_parameter", "id is 7, but must be a string"),
        ("neither", "invalid_line", "neither prompt nor prompt_token_ids"),
        ("both", "invalid_line", "both prompt and prompt_token_ids"),
        ("empty", "empty_prompt", "the prompt is empty"),
        ("empty ids", "empty_prompt", "the prompt is empty"),
        ("range", "token_out_of_range", "prompt_token_ids[1] is 4096, but token ids must be below 4096"),
        ("negative", "token_out_of_range", "prompt_token_ids[0] is -1"),
        ("half", "invalid_line", "prompt_token_ids[0] is 1.5"),
        ("golden", "token_out_of_range", "golden_token_ids[0] is 4096"),
        ("stop", "invalid_parameter", "stop_token_ids is \"1\""),
        ("long", "prompt_too_long", "the prompt has 5000 tokens, but a context of 4096 holds prompts of at most 4095"),
        ("cold", "invalid_parameter", "temperature is -1"),
        ("none", "invalid_parameter", "max_tokens is 0"),
        ("seed", "invalid_parameter", "seed is -1"),
        ("20", "invalid_line", "line 20 is not UTF-8"),
        ("last", "", ""),
    ];
    let got: Vec<&str> = results.iter().map(|line| line["id"].as_str().unwrap()).collect();
    assert_eq!(got, expected.map(|(id, ..)| id));
    for (line, (id, code, message)) in results.iter().zip(expected) {
        if code.is_empty() {
            assert_eq!(line["finish_reason"], "length", "{line}");
            assert_eq!(ids(&line["token_ids"]).len(), 4, "{line}");
            continue;
        }
        assert_eq!(line["error"]["code"], code, "{line}");
        let text = line["error"]["message"].as_str().unwrap();
        assert!(text.contains(message), "{id}: {message:?} is missing in {text:?}");
        assert_eq!(line.as_object().unwrap().len(), 2, "{line}");
    }
}

#[test]
fn unknown_fields_are_warned_of_once() {
    let line = |id: &str| json!({"id": id, "prompt": "x", "max_token": 9, "topp": 1, "max_tokens": 1});
    let run = run(&[line("a"), line("b"), json!({"id": "c", "prompt": "x", "topk": 3, "max_tokens": 1})], &[]);
    assert_eq!(run.lines().len(), 3);
    let warnings: Vec<&str> = run.stderr.lines().collect();
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    for (warning, part) in
        warnings.iter().zip(["line 1: the field \"max_token\"", "\"topp\"", "line 3: the field \"topk\""])
    {
        assert!(warning.starts_with("warning: ") && warning.contains(part), "{warning}");
    }
}

#[test]
fn text_is_encoded_with_the_begin_token_and_decoded_whole() {
    let json = fs::read(repository("models/deepseek-v41-mini/tokenizer.json")).unwrap();
    let tokenizer = Tokenizer::from_bytes(&json, 0, 4096).unwrap();
    let begin = tokenizer.spelling(0).unwrap();
    let text = "Once upon a time";
    let encoded = tokenizer.encode_prompt(text).unwrap();
    let lines = results(
        &[
            json!({"id": "text", "prompt": text}),
            json!({"id": "begun", "prompt": format!("{begin}{text}")}),
            json!({"id": "ids", "prompt_token_ids": encoded}),
            json!({"id": "bare", "prompt_token_ids": &encoded[1..]}),
        ],
        &["--max-tokens", "24"],
    );
    for line in &lines[..3] {
        assert_eq!(line["prompt_token_ids"], json!(encoded), "{line}");
        assert_eq!(line["token_ids"], lines[0]["token_ids"]);
    }
    assert_eq!(lines[3]["prompt_token_ids"], json!(&encoded[1..]), "ids are taken as they are");
    for line in &lines {
        let tokens: Vec<u32> = ids(&line["token_ids"]).into_iter().map(|id| id as u32).collect();
        assert_eq!(line["text"], tokenizer.decode(&tokens));
    }
}

#[test]
fn lengths_and_stops() {
    let free = results(&[json!({"id": "a", "prompt": "Once upon a time", "max_tokens": 12})], &[]);
    let tokens = ids(&free[0]["token_ids"]);
    assert_eq!((tokens.len(), &free[0]["finish_reason"]), (12, &json!("length")));
    let first_of = |token| tokens.iter().position(|&t| t == token).unwrap();
    let stop = tokens[5];

    let ask = |more: Value| {
        let mut line = json!({"id": "a", "prompt": "Once upon a time"});
        line.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        line
    };
    let lines = results(
        &[
            ask(json!({"stop_token_ids": [stop]})),
            ask(json!({"golden_token_ids": [tokens[0], END_TOKEN]})),
            ask(json!({"golden_token_ids": [tokens[0], END_TOKEN], "ignore_eos": true})),
            ask(json!({"max_tokens": 3})),
            ask(
                json!({"golden_token_ids": [END_TOKEN, 7, 8], "ignore_eos": true, "stop_token_ids": [7], "max_tokens": 4}),
            ),
            ask(json!({"golden_token_ids": [END_TOKEN, 8, 7], "stop_token_ids": [7]})),
            json!({"id": "end of context", "prompt_token_ids": vec![5; 4094], "max_tokens": 50, "ignore_eos": true}),
        ],
        &["--max-tokens", "12"],
    );
    let outcome = |line: &Value| (ids(&line["token_ids"]), line["finish_reason"].as_str().unwrap().to_owned());
    assert_eq!(outcome(&lines[0]), (tokens[..=first_of(stop)].to_vec(), "stop".to_owned()));
    assert_eq!(outcome(&lines[1]), (vec![tokens[0], END_TOKEN], "stop".to_owned()));
    let (ignoring, reason) = outcome(&lines[2]);
    assert_eq!((&ignoring[..2], ignoring.len(), reason.as_str()), (&[tokens[0], END_TOKEN][..], 12, "length"));
    assert_eq!(outcome(&lines[3]), (tokens[..3].to_vec(), "length".to_owned()));
    // Stop tokens among the forced ones do not end the output, save the last.
    let (forced, reason) = outcome(&lines[4]);
    assert_eq!((&forced[..3], forced.len()), (&[END_TOKEN, 7, 8][..], 4));
    assert_eq!(reason, if forced[3] == 7 { "stop" } else { "length" });
    assert_eq!(outcome(&lines[5]), (vec![END_TOKEN, 8, 7], "stop".to_owned()));
    assert_eq!((outcome(&lines[6]).0.len(), outcome(&lines[6]).1.as_str()), (2, "length"));
}

#[test]
fn forced_tokens_come_first_and_count_as_history() {
    let greedy = results(&[json!({"id": "a", "prompt": "The", "max_tokens": 10})], &[]);
    let tokens = ids(&greedy[0]["token_ids"]);
    let lines = results(
        &[
            json!({"id": "same", "prompt": "The", "golden_token_ids": &tokens[..4], "max_tokens": 10}),
            json!({"id": "other", "prompt": "The", "golden_token_ids": [300, 301, 302], "max_tokens": 3}),
        ],
        &["--logits", "1"],
    );
    assert_eq!(ids(&lines[0]["token_ids"]), tokens);
    assert_eq!(ids(&lines[1]["token_ids"]), [300, 301, 302]);
    // What is reported beside a forced token is the model's own opinion.
    assert_eq!(lines[1]["logits"][0][0][0], tokens[0]);
}

#[test]
fn seeds_repeat_alone_and_among_others() {
    let line = |id: &str, seed: u64| json!({"id": id, "prompt": "One day", "temperature": 0.8, "seed": seed});
    let args = ["--max-tokens", "24"];
    let among = results(&[line("x", 3), line("a", 7), line("b", 8), line("a again", 7)], &args);
    let alone = results(&[line("a", 7)], &args);
    assert_eq!(among[1]["token_ids"], alone[0]["token_ids"]);
    assert_eq!(among[1]["token_ids"], among[3]["token_ids"]);
    assert_ne!(among[1]["token_ids"], among[2]["token_ids"]);
    assert_eq!(among[1]["seed"], 7);

    let flags = ["--max-tokens", "24", "--temperature", "0.8", "--seed", "7"];
    let by_flag = results(&[json!({"id": "a", "prompt": "One day"})], &flags);
    assert_eq!(by_flag[0]["token_ids"], alone[0]["token_ids"]);
    let screen = deepinfer(&[&["generate", "One day"], &flags[..]].concat());
    assert_eq!(screen.succeeded_quietly().trim_end_matches('\n'), alone[0]["text"].as_str().unwrap());
}

#[test]
fn a_drawn_seed_is_reported_and_repeats_the_run() {
    let line = |id: &str| json!({"id": id, "prompt": "One day", "temperature": 1.0, "max_tokens": 24});
    let drawn = results(&[line("a"), line("b")], &[]);
    assert_ne!(drawn[0]["seed"], drawn[1]["seed"]);
    let mut again = line("a");
    again["seed"] = drawn[0]["seed"].clone();
    assert_eq!(results(&[again], &[]), drawn[..1]);
}

#[test]
fn logits_and_logprobs_have_their_shapes_and_agree() {
    let lines = results(
        &[json!({"id": "a", "prompt": "The cat", "max_tokens": 5}), json!({"id": "b", "prompt": "x", "max_tokens": 1})],
        &["--logits", "6", "--logprobs", "4096"],
    );
    for line in &lines {
        let tokens = ids(&line["token_ids"]);
        let (logits, logprobs) = (line["logits"].as_array().unwrap(), line["logprobs"].as_array().unwrap());
        assert_eq!((logits.len(), logprobs.len()), (tokens.len(), tokens.len()));
        for ((&token, largest), logprob) in tokens.iter().zip(logits).zip(logprobs) {
            let pairs = |list: &Value| -> Vec<(u64, f64)> {
                let pair = |p: &Value| (p[0].as_u64().unwrap(), p[1].as_f64().unwrap());
                list.as_array().unwrap().iter().map(pair).collect()
            };
            let (largest, top) = (pairs(largest), pairs(&logprob["top"]));
            assert_eq!((largest.len(), top.len() as u64), (6, VOCABULARY));
            assert!(top.is_sorted_by(|a, b| a.1 >= b.1), "the most likely come first");
            assert_eq!(largest[0].0, token, "greedy takes the largest");
            assert_eq!((logprob["token_id"].as_u64(), top[0].0), (Some(token), token));
            assert_eq!(logprob["logprob"].as_f64(), Some(top[0].1));
            let total: f64 = top.iter().map(|(_, p)| p.exp()).sum();
            assert!((total - 1.0).abs() < 1e-4, "{total}");
            for (l, p) in largest.iter().zip(&top) {
                assert_eq!(l.0, p.0);
                let (by_logit, by_logprob) = (largest[0].1 - l.1, top[0].1 - p.1);
                assert!((by_logit - by_logprob).abs() < 1e-4, "{by_logit} {by_logprob}");
            }
        }
    }
    // Nothing that was not asked for.
    let plain = results(&[json!({"id": "a", "prompt": "x", "max_tokens": 1})], &[]);
    assert_eq!((plain[0].get("logits"), plain[0].get("logprobs"), plain[0].get("error")), (None, None, None));
    let chosen_only = results(&[json!({"id": "a", "prompt": "x", "max_tokens": 1})], &["--logprobs", "0"]);
    assert_eq!(chosen_only[0]["logprobs"][0]["top"], json!([]));
}

#[test]
fn chunks_change_nothing_and_numerics_do() {
    let line = [
        json!({"id": "a", "prompt": "Once upon a time, there was a small house near the pond.", "max_tokens": 6, "seed": 1}),
    ];
    let with = |args: &[&str]| run(&line, &[&["--logits", "3"], args].concat()).succeeded_quietly().to_owned();
    let deployed = with(&[]);
    for rows in ["1", "7"] {
        assert_eq!(with(&["--max-num-seqs", "1", "--max-num-batched-tokens", rows]), deployed, "{rows}");
    }
    assert_eq!(with(&["--numerics", "deploy"]), deployed);
    let (exact, cache) = (with(&["--numerics", "exact"]), with(&["--numerics", "cache"]));
    assert!(exact != deployed && cache != deployed && exact != cache);
}

#[test]
fn null_is_as_good_as_none_and_minus_one_is_every_token() {
    let plain = json!({"id": "a", "prompt": "Once upon a time", "max_tokens": 6, "temperature": 1, "seed": 5});
    let mut other = plain.clone();
    for (field, value) in [("stop", json!(null)), ("top_p", json!(null)), ("top_k", json!(-1)), ("n", json!(null))] {
        other[field] = value;
    }
    let both = results(&[plain, other], &[]);
    assert_eq!(both[0], both[1]);
}
