//! Speed of the miniature on cpu-reference against the PyTorch reference, in one run on the same two cores.
//!
//! `DEEPINFER_REFERENCE_DIR=DIR cargo bench -p deepinfer-tests --bench reference`, where DIR holds `v41_reference.py` and
//! `DEEPINFER_PYTHON` (default `python3`) has torch, numpy and safetensors. Without DIR it prints our figures alone. The two
//! programs run in turn, never together; figures are medians, and ratios are of pairs.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use deepinfer_engine::{Engine, EngineConfig, Request, SamplingParams};
use deepinfer_model::checkpoint::Checkpoint;
use deepinfer_model::{Model, Numerics};
use deepinfer_tests::{device, fixture, miniature};

const ROUNDS: usize = 7;
const PREFILL_TOKENS: usize = 512;
const DECODE_TOKENS: usize = 64;
/// Prompt lengths before the decoded tokens: almost no context, and enough for pages and selection.
const DECODE_PROMPTS: [usize; 2] = [6, 400];

fn main() {
    let ids = long_prompt();
    let mut ours = Ours::new(&ids);
    let mut peer = Peer::start(&ids);
    println!("miniature, deploy numerics, {ROUNDS} rounds, seconds: median (least - most)");

    report(
        &format!("prefill of {PREFILL_TOKENS} tokens"),
        PREFILL_TOKENS,
        |_| ours.prefill(),
        |p| p.ask(&format!("prefill {PREFILL_TOKENS}")),
        &mut peer,
    );
    for prompt in DECODE_PROMPTS {
        report(
            &format!("decode of {DECODE_TOKENS} tokens after {prompt}"),
            DECODE_TOKENS,
            |_| ours.decode(prompt),
            |p| p.ask(&format!("decode {prompt} {DECODE_TOKENS}")),
            &mut peer,
        );
    }
    command_figures();
}

fn report(
    what: &str,
    tokens: usize,
    mut ours: impl FnMut(usize) -> f64,
    mut theirs: impl FnMut(&mut Peer) -> f64,
    peer: &mut Option<Peer>,
) {
    // One warm-up each, then in turn.
    ours(0);
    if let Some(peer) = peer {
        theirs(peer);
    }
    let (mut a, mut b, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=ROUNDS {
        a.push(ours(round));
        if let Some(peer) = peer {
            b.push(theirs(peer));
            ratios.push(b[b.len() - 1] / a[a.len() - 1]);
        }
    }
    let rate = |seconds: &[f64]| tokens as f64 / median(seconds);
    println!("{what}\n  deepinfer  {}  {:8.1} tokens/s", spread(&a), rate(&a));
    if peer.is_some() {
        println!("  reference  {}  {:8.1} tokens/s", spread(&b), rate(&b));
        println!("  ratio      {}", spread(&ratios));
    }
}

/// Whole-process figures of the command: time from start to the first text, and peak memory.
fn command_figures() {
    let exe = std::env::current_exe().expect("the path of this program");
    let Some(binary) = exe.ancestors().map(|dir| dir.join("deepinfer")).find(|path| path.is_file()) else {
        println!("the deepinfer binary is not built (cargo build --release): start-up and memory are not measured");
        return;
    };
    let (mut first, mut peak) = (Vec::new(), 0);
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let mut child = Command::new(&binary)
            .args(["generate", "Once upon a time", "--max-tokens", "64"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary starts");
        let mut out = child.stdout.take().expect("piped");
        let mut byte = [0];
        out.read_exact(&mut byte).expect("text");
        first.push(start.elapsed().as_secs_f64());
        let mut rest = Vec::new();
        // The process lives until its output is read: the figure of its last moments is its peak.
        let mut buffer = [0; 16];
        loop {
            peak = peak.max(peak_kib(child.id()));
            match out.read(&mut buffer) {
                Ok(0) | Err(_) => break,
                Ok(n) => rest.extend_from_slice(&buffer[..n]),
            }
        }
        child.wait().expect("the binary ends");
    }
    let checkpoint = std::fs::metadata(miniature().join("model.safetensors")).map_or(0, |m| m.len());
    println!("process start to first text of the embedded miniature\n  deepinfer  {}", spread(&first));
    println!("peak memory {:.1} MiB; checkpoint {:.1} MiB", peak as f64 / 1024.0, checkpoint as f64 / 1048576.0);
}

/// `VmHWM` of a process, in KiB; 0 when it is gone.
fn peak_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    line.and_then(|l| l.trim().split(' ').next()?.parse().ok()).unwrap_or(0)
}

struct Ours {
    engine: Engine,
    ids: Vec<u32>,
}

impl Ours {
    fn new(ids: &[u32]) -> Self {
        let checkpoint = Checkpoint::open(&miniature()).expect("the miniature");
        let (model, _) = Model::load(device(), &checkpoint, Numerics::DEPLOY, &mut |_, _| {}).expect("it loads");
        // Without the prefix cache, which would make every round after the first a cheap one.
        let config = EngineConfig {
            max_num_seqs: 1,
            max_num_batched_tokens: PREFILL_TOKENS,
            prefix_caching: false,
            ..EngineConfig::default()
        };
        let engine = Engine::builder(model).config(config).build().expect("an engine");
        Self { engine, ids: ids.to_vec() }
    }

    /// Seconds until the first token, and for the others.
    fn run(&mut self, prompt: usize, tokens: usize) -> (f64, f64) {
        let request = Request {
            id: String::new(),
            prompt_token_ids: self.ids[..prompt].to_vec(),
            params: SamplingParams { max_tokens: Some(tokens), ignore_eos: true, ..SamplingParams::default() },
        };
        let start = Instant::now();
        let mut first = None;
        self.engine
            .run(request, &mut |_| {
                first.get_or_insert_with(|| start.elapsed().as_secs_f64());
                true
            })
            .expect("the request runs");
        let first = first.expect("a token");
        (first, start.elapsed().as_secs_f64() - first)
    }

    fn prefill(&mut self) -> f64 {
        self.run(PREFILL_TOKENS, 1).0
    }

    fn decode(&mut self, prompt: usize) -> f64 {
        self.run(prompt, DECODE_TOKENS + 1).1
    }
}

/// The reference in a Python process.
struct Peer {
    _child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Peer {
    fn start(ids: &[u32]) -> Option<Self> {
        let Some(directory) = std::env::var_os("DEEPINFER_REFERENCE_DIR") else {
            println!("DEEPINFER_REFERENCE_DIR is not set: the PyTorch reference is skipped");
            return None;
        };
        let python = std::env::var("DEEPINFER_PYTHON").unwrap_or_else(|_| "python3".to_owned());
        let prompts = std::env::temp_dir().join(format!("deepinfer-bench-{}.json", std::process::id()));
        std::fs::write(&prompts, serde_json::to_vec(ids).expect("numbers")).expect("a temporary file");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/reference.py");
        let mut child = Command::new(&python)
            .arg(script)
            .arg(miniature())
            .arg(PathBuf::from(directory))
            .arg(&prompts)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("{python}: {e}"));
        let input = child.stdin.take().expect("piped");
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        output.read_line(&mut line).expect("a line");
        assert_eq!(line.trim(), "ready", "the reference did not start");
        let _ = std::fs::remove_file(prompts);
        Some(Self { _child: child, input, output })
    }

    fn ask(&mut self, command: &str) -> f64 {
        writeln!(self.input, "{command}").expect("the reference lives");
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line");
        line.trim().parse().unwrap_or_else(|_| panic!("the reference said {line:?}"))
    }
}

fn long_prompt() -> Vec<u32> {
    let text = std::fs::read_to_string(fixture("expected.json")).expect("the fixture");
    let file: serde_json::Value = serde_json::from_str(&text).expect("the fixture's form");
    let prompts = file["prompts"].as_array().expect("prompts");
    let long = prompts.iter().find(|p| p["name"] == "long_640").expect("the longest prompt");
    long["prompt_ids"].as_array().expect("ids").iter().map(|id| id.as_u64().expect("an id") as u32).collect()
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn spread(values: &[f64]) -> String {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(0.0, f64::max);
    format!("{:9.4} ({least:.4} - {most:.4})", median(values))
}
