//! Conversations: lines in, answers out, figures beside.

use std::fs;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::checkpoint::TinyModel;
use crate::command::{Run, command, deepinfer, deepinfer_reading, repository};

/// Nearly all that is drawn is noise then, so that an answer to "Hello!" goes on for thousands of tokens whatever the model
/// has learnt.
const ENDLESS: [&str; 4] = ["--temperature", "1000", "--seed", "5"];
/// Time for what takes a moment.
const LIMIT: Duration = Duration::from_secs(60);

fn chat(options: &[&str], lines: &str) -> Run {
    deepinfer_reading(&[&["chat"], options].concat(), lines.as_bytes())
}

/// What the figures of an answer say.
#[derive(Debug, PartialEq)]
struct Figures {
    tokens: usize,
    prompt: usize,
    cached: usize,
    seed: u64,
}

/// The figures of each answer.
fn figures(stderr: &str) -> Vec<Figures> {
    let number = |line: &str, before: &str, after: &str| -> u64 {
        let rest = line.split_once(before).unwrap_or_else(|| panic!("{before:?} is missing in: {line}")).1;
        let digits = rest.split_once(after).map_or(rest, |(digits, _)| digits);
        digits.parse().unwrap_or_else(|e| panic!("{e}: {digits:?} in: {line}"))
    };
    let of = |line: &str| Figures {
        tokens: line.split_once(' ').unwrap().0.parse().unwrap(),
        prompt: number(line, "; ", " tokens of prompt") as usize,
        cached: number(line, "prompt, ", " of them cached") as usize,
        seed: number(line, "seed ", ";"),
    };
    stderr.lines().filter(|line| line.contains(" tokens of prompt, ") && line.contains("; seed ")).map(of).collect()
}

/// The outputs of `generate` for lines of JSON.
fn generated(lines: &[Value]) -> Vec<Value> {
    let input: String = lines.iter().map(|line| format!("{line}\n")).collect();
    deepinfer_reading(&["generate", "--prompts", "-"], input.as_bytes()).lines()
}

fn ids(value: &Value) -> Vec<u64> {
    serde_json::from_value(value.clone()).unwrap()
}

#[test]
fn two_turns_are_what_the_model_makes_of_their_tokens() {
    let run = chat(&["--temperature", "0"], "Hello!\nMake a JSON object with name and age.\n");
    let stdout = run.succeeded();

    let turn = |text: &str| format!("<｜User｜>{text}<｜Assistant｜></think>");
    let first = generated(&[json!({"id": "1", "prompt": turn("Hello!")})]).remove(0);
    let (first_prompt, first_answer) = (ids(&first["prompt_token_ids"]), ids(&first["token_ids"]));
    assert_eq!(first_answer.last(), Some(&1), "the first answer ends by itself");
    let second_message = turn("Make a JSON object with name and age.");
    let encoded = generated(&[json!({"id": "2", "prompt": second_message, "max_tokens": 1})]).remove(0);
    let second_prompt = [&first_prompt[..], &first_answer, &ids(&encoded["prompt_token_ids"])[1..]].concat();
    let second = generated(&[json!({"id": "3", "prompt_token_ids": second_prompt})]).remove(0);

    let text = |output: &Value| output["text"].as_str().unwrap().replace("<｜end▁of▁sentence｜>", "");
    assert_eq!(stdout, format!("{}\n{}\n", text(&first), text(&second)));
    let [one, two] = figures(&run.stderr).try_into().unwrap();
    assert_eq!((one.prompt, one.tokens), (first_prompt.len(), first_answer.len()));
    assert_eq!((two.prompt, two.tokens), (second_prompt.len(), ids(&second["token_ids"]).len()));
    assert!(run.stderr.starts_with("the built-in miniature learnt to write from children's stories"), "{}", run.stderr);
}

#[test]
fn equal_seeds_give_equal_conversations() {
    let lines = "Hello!\nTell me a story.\n";
    let of = |seed: &str| chat(&["--seed", seed, "--max-tokens", "30"], lines);
    let (first, again, other) = (of("7"), of("7"), of("8"));
    assert_eq!(first.succeeded(), again.succeeded());
    assert_ne!(first.stdout, other.succeeded());
    assert!(figures(&first.stderr).iter().all(|figures| figures.seed == 7));

    // Without one, each answer has its own, and can be had again with it.
    let drawn = chat(&["--max-tokens", "30"], "Hello!\n");
    let seed = figures(&drawn.stderr)[0].seed.to_string();
    assert_eq!(chat(&["--max-tokens", "30", "--seed", &seed], "Hello!\n").succeeded(), drawn.succeeded());
}

#[test]
fn a_reset_forgets_the_messages_and_keeps_the_system_prompt() {
    let lines = "Hello!\nHello!\n/reset\nHello!\n/system\n/reset\nHello!\n";
    let run = chat(&["--temperature", "0", "--system", "You are a storyteller."], lines);
    run.succeeded();
    let prompts: Vec<usize> = figures(&run.stderr).iter().map(|figures| figures.prompt).collect();
    assert!(prompts[1] > prompts[0] && prompts[2] == prompts[0] && prompts[3] < prompts[0], "{prompts:?}");
    assert_eq!(run.stderr.matches("a new conversation\n").count(), 2);

    let parts = |at: usize| -> Vec<String> {
        let run = chat(&["--temperature", "0", "--system", "You are a storyteller."], &"Hello!\n".repeat(at));
        run.succeeded().lines().map(str::to_owned).collect()
    };
    let two = parts(2);
    assert!(run.stdout.starts_with(&format!("{}\n{}\n", two.join("\n"), parts(1).join("\n"))), "{}", run.stdout);
}

#[test]
fn the_history_comes_from_the_cache() {
    let system = "Anna was a shy girl and did not talk much. ".repeat(14);
    let run = chat(&["--temperature", "0", "--max-tokens", "20", "--system", &system], "Hi\nWho was shy?\n");
    run.succeeded();
    let [one, two] = figures(&run.stderr).try_into().unwrap();
    assert!((129..256).contains(&one.prompt), "{one:?}");
    // A page of 128 tokens is the least that is kept.
    assert_eq!((one.cached, two.cached), (0, 128));
}

#[test]
fn commands_that_cannot_be_done_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let taken = dir.path().join("taken.json");
    fs::write(&taken, "before").unwrap();
    let taken_name = taken.to_str().unwrap();
    let lines =
        format!("/sing\n/save\n/save {taken_name}\n/params --top-p 2\n/params loud\n/reset now\n\n  \nHello!\n/help\n");
    let run = chat(&["--temperature", "0"], &lines);
    assert_eq!(run.succeeded(), chat(&["--temperature", "0"], "Hello!\n").succeeded());
    for sentence in [
        "error: there is no command /sing; /help lists them",
        "error: /save needs the name of a file",
        &format!("error: cannot write {taken_name}: "),
        "error: top_p is 2, but must be above 0 and at most 1",
        "error: unexpected argument 'loud'",
        "error: /reset takes nothing, not \"now\"",
        "/save FILE       write the conversation",
    ] {
        assert!(run.stderr.contains(sentence), "{sentence:?} is missing in: {}", run.stderr);
    }
    assert_eq!(fs::read_to_string(taken).unwrap(), "before");
}

#[test]
fn parameters_change_in_between() {
    let lines = "Hello!\n/params --max-tokens 3 --seed 9\nHello!\n/params\n/params default\n";
    let run = chat(&["--temperature", "0"], lines);
    run.succeeded();
    let [_, two] = figures(&run.stderr).try_into().unwrap();
    assert_eq!((two.tokens, two.seed), (3, 9));
    assert!(run.stderr.contains("seed 9; cut off by --max-tokens"), "{}", run.stderr);
    let shown: Vec<&str> = run.stderr.lines().filter(|line| line.starts_with("--thinking=")).collect();
    assert!(shown[1].starts_with("--thinking=off --max-tokens 3 --temperature 0 ") && shown[1].ends_with("--seed 9"));
    assert_eq!(shown[0], shown[1]);
    assert!(
        shown[2].starts_with("--thinking=off --max-tokens 8192 --temperature 1 --top-k 0 --top-p 1 "),
        "{}",
        shown[2]
    );
}

#[test]
fn a_conversation_is_saved_with_what_it_takes_to_have_it_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("talk.json");
    let lines = format!("/system You are a storyteller.\nHello!\n/save {}\n", path.display());
    let run = chat(&["--seed", "7", "--max-tokens", "2"], &lines);
    let said = run.succeeded().trim_end();
    let saved: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!(
        saved["messages"],
        json!([
            {"role": "system", "content": "You are a storyteller."},
            {"role": "user", "content": "Hello!"},
            {"role": "assistant", "content": said, "finish_reason": "length", "seed": 7},
        ])
    );
    assert!(saved["params"].as_str().unwrap().ends_with("--seed 7"), "{saved}");
    assert_eq!(saved["model"], "the embedded model");
}

#[test]
fn a_message_that_does_not_fit_is_refused_and_the_rest_goes_on() {
    let long = "Tell me about a farmer and his friends in the village, who were happy. ".repeat(4);
    let run = chat(&["--max-model-len", "64", "--temperature", "0"], &format!("Hello!\n{long}\nHello!\n"));
    let [one, two] = figures(&run.stderr).try_into().unwrap();
    assert_eq!(run.succeeded(), {
        let without = chat(&["--max-model-len", "64", "--temperature", "0"], "Hello!\nHello!\n");
        without.succeeded().to_owned()
    });
    assert!(two.prompt > one.prompt + one.tokens && two.prompt < 64);
    let refusal = run.stderr.lines().find(|line| line.starts_with("error: ")).unwrap();
    assert!(
        refusal.contains("but the context holds 64, and an answer needs one; /reset begins a new one"),
        "{refusal}"
    );

    // The answer itself may reach the end.
    let run = chat(&[&ENDLESS[..], &["--max-model-len", "20"]].concat(), "Hello!\n");
    run.succeeded();
    assert!(run.stderr.contains("cut off, since the context holds 20 tokens"), "{}", run.stderr);
    let [one] = figures(&run.stderr).try_into().unwrap();
    assert_eq!(one.prompt + one.tokens, 20);
}

#[test]
fn thinking_is_told_from_the_answer() {
    let lines = "What is 3 + 4?\n/params --thinking=off\nHello!\n";
    let run = chat(&["--thinking", "--temperature", "0", "--max-tokens", "40"], lines);
    let stdout = run.succeeded();
    let (thought, rest) = stdout.strip_prefix("<think>\n").unwrap().split_once("\n</think>\n").unwrap();
    assert!(!thought.is_empty() && !rest.contains("think>"), "{stdout}");
    assert!(run.stderr.contains(" of thinking)"), "{}", run.stderr);
    let prompt = "<｜System｜>Reasoning Effort: 75 (range 1-100, the higher the value, the more thorough the reasoning)\n\n\
                  <｜User｜>What is 3 + 4?<｜Assistant｜><think>";
    let output = generated(&[json!({"id": "1", "prompt": prompt, "max_tokens": 40})]).remove(0);
    assert_eq!(figures(&run.stderr)[0].prompt, ids(&output["prompt_token_ids"]).len());
    assert!(output["text"].as_str().unwrap().starts_with(thought), "{output}");
}

#[test]
fn a_stop_text_ends_an_answer() {
    let whole = chat(&["--temperature", "0"], "Hello!\n").succeeded().to_owned();
    let stop = &whole[2..4];
    let run = chat(&["--temperature", "0", "--stop", stop], "Hello!\n");
    assert_eq!(run.succeeded(), format!("{}\n", whole.split_once(stop).unwrap().0));
}

#[test]
fn no_message_is_no_conversation() {
    assert_eq!(chat(&[], "").succeeded(), "");
    assert_eq!(chat(&[], "\n\n/quit\nHello!\n").succeeded(), "");
    assert_ne!(chat(&["--max-tokens", "2"], "a last line without an end").succeeded(), "");
    let broken = deepinfer_reading(&["chat"], b"\xff\xfe\n");
    assert_eq!(broken.code, Some(2));
    assert!(broken.stderr.contains("error: cannot read standard input: "), "{}", broken.stderr);
}

#[test]
fn what_cannot_be_is_refused_before_the_model_is_loaded() {
    let refused = |args: &[&str], parts: &[&str]| deepinfer(&[&["chat"], args].concat()).refused(parts);
    refused(&["--top-p", "0"], &["top_p is 0, but must be above 0"]);
    refused(&["--temperature", "-1"], &["it must be a finite number of at least 0"]);
    refused(&["--max-model-len", "5000"], &["--max-model-len is 5000, but the model has a context of 4096 tokens"]);
    refused(
        &["--max-model-len", "8", "--system", "a b c d e f g h"],
        &["the system prompt has 13 tokens with its markers, but the context holds 8"],
    );
    let model = TinyModel::new();
    refused(&["--model", model.dir()], &["the model has no tokenizer.json, so messages cannot become tokens"]);
    // A tokenizer of an older model: no system prompts, no thinking.
    let model = tempfile::tempdir().unwrap();
    for file in fs::read_dir(repository("models/deepseek-v41-mini")).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), model.path().join(file.file_name())).unwrap();
    }
    for name in ["engram_token_map.json", "engram_constants.json"] {
        fs::remove_file(model.path().join(name)).unwrap();
    }
    let path = model.path().join("tokenizer.json");
    fs::write(&path, fs::read_to_string(&path).unwrap().replace("<｜System｜>", "<｜place▁holder▁no▁8｜>")).unwrap();
    let dir = model.path().to_str().unwrap();
    let parts = &["no token for <｜System｜>, which system prompts and thinking need"];
    refused(&["--model", dir, "--thinking"], parts);
    refused(&["--model", dir, "--system", "Be brief."], parts);
    let run = chat(&["--model", dir, "--max-tokens", "2"], "/system Be brief.\n/params --thinking\nHello!\n");
    assert_ne!(run.succeeded(), "");
    assert_eq!(run.stderr.matches(parts[0]).count(), 2, "{}", run.stderr);
    assert!(!run.stderr.contains("built-in"), "{}", run.stderr);
}

/// What a child writes, as it comes.
struct Written(Arc<Mutex<Vec<u8>>>);

impl Written {
    fn by(mut stream: impl Read + Send + 'static) -> Self {
        let written = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&written);
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(bytes @ 1..) = stream.read(&mut piece) {
                shared.lock().unwrap().extend_from_slice(&piece[..bytes]);
            }
        });
        Self(written)
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }

    #[track_caller]
    fn wait_for(&self, what: &str, is_there: impl Fn(&str) -> bool) {
        let start = Instant::now();
        while !is_there(&self.text()) {
            assert!(start.elapsed() < LIMIT, "{what} did not come: {}", self.text());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn interrupt(child: &Child) {
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(sent.expect("the program kill runs").success());
}

#[test]
fn ctrl_c_stops_an_answer_and_then_the_program() {
    let mut child = command(&[&["chat"], &ENDLESS[..]].concat())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let (stdout, stderr) = (Written::by(child.stdout.take().unwrap()), Written::by(child.stderr.take().unwrap()));

    stdin.write_all(b"Hello!\n").unwrap();
    stdout.wait_for("the beginning of an answer", |text| text.len() > 8);
    interrupt(&child);
    stderr.wait_for("the end of the answer", |text| text.contains("; stopped by Ctrl-C"));
    // The conversation goes on with what was said.
    stdin.write_all(b"/params --max-tokens 2\nAnd?\n").unwrap();
    stderr.wait_for("the next answer", |text| figures(text).len() == 2);
    let [one, two] = figures(&stderr.text()).try_into().unwrap();
    assert!(two.prompt > one.prompt + 4, "{one:?} {two:?}");
    // Where a message is awaited, it ends the program; standard input is still open.
    interrupt(&child);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    drop(stdin);
}

#[test]
fn a_terminal_edits_lines_and_its_ctrl_c_stops_answers() {
    // `script` gives its command a terminal. The shell in between must not stay: Ctrl-C of that terminal ends it.
    let line = format!("exec {} chat {}", env!("CARGO_BIN_EXE_deepinfer"), ENDLESS.join(" "));
    let mut script = Command::new("script");
    script.args(["-qec", &line, "/dev/null"]).env("DEEPINFER_ACCELERATOR", "cpu").env("TERM", "xterm");
    script.env_remove("DEEPINFER_HF_MODEL_DIR").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = match script.spawn() {
        Ok(child) => child,
        Err(e) => return eprintln!("skipped: the program script does not run: {e}"),
    };
    let mut keys = child.stdin.take().unwrap();
    let screen = Written::by(child.stdout.take().unwrap());
    screen.wait_for("the prompt", |text| text.contains("/help lists the commands") && text.contains("> "));
    // Backspace takes the second e back.
    keys.write_all(b"Hee\x7fllo!\r").unwrap();
    let before = screen.text().len();
    screen.wait_for("an answer", |text| text.len() > before + 200);
    keys.write_all(b"\x03").unwrap();
    screen.wait_for("the end of the answer", |text| text.contains("; stopped by Ctrl-C"));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("talk.json");
    keys.write_all(format!("/save {}\r", path.display()).as_bytes()).unwrap();
    screen.wait_for("the file", |text| text.contains("the conversation is in "));
    let saved: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!(saved["messages"][0], json!({"role": "user", "content": "Hello!"}));
    assert_eq!(saved["messages"][1]["finish_reason"], "abort");
    keys.write_all(b"\x03").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{}", screen.text());
}
