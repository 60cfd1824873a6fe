//! A model end to end (L3): the miniature in the program makes the tokens that it makes on the processor.

use std::fmt::Display;
use std::io::Write;
use std::process::{Command, Stdio};
use std::rc::Rc;

use deepinfer_engine::{Engine, EngineConfig, EngineError, Request, SamplingParams, jsonl};
use deepinfer_model::{Model, Numerics};
use deepinfer_ops::OpError;
use deepinfer_parity::{Failure, Fault, Level, Outcome};
use deepinfer_runtime::{OpenDevice, TEXT_PROFILE, missing_ops};
use serde::Deserialize;
use serde_json::json;

use super::task::WholeCase;
use super::worker::Target;
use crate::embedded;
use crate::settings::Settings;

/// Name of the backend that says what is right.
const REFERENCE: &str = "cpu";
/// Output tokens.
const TOKENS: usize = 12;

pub(crate) const CASES: &[WholeCase] = &[
    WholeCase {
        subject: "miniature",
        name: "story",
        level: Level::L3,
        fault: None,
        run: |target| tokens(target, "Once upon a time"),
    },
    WholeCase {
        subject: "miniature",
        name: "dog",
        level: Level::L3,
        fault: None,
        run: |target| tokens(target, "The little dog"),
    },
];

fn tokens(target: &Target, prompt: &str) -> Outcome {
    if !missing_ops(target.backend, TEXT_PROFILE).is_empty() {
        return Outcome::Unsupported { reason: format!("it lacks ops of {TEXT_PROFILE}") };
    }
    let wanted = match reference_tokens(prompt) {
        Ok(wanted) => wanted,
        Err(problem) => return Outcome::failed(format!("there is nothing to compare with: {problem}")),
    };
    let found = target.open().map_err(Failure::new).and_then(|device| generate(device, prompt));
    match found {
        Err(failure) => Outcome::Failed(failure),
        Ok(found) if found == wanted => Outcome::Passed { share: None },
        Ok(found) => {
            let same = found.iter().zip(&wanted).take_while(|(a, b)| a == b).count();
            Outcome::failed(format!("output token {same} differs: {found:?}, but {wanted:?} on {REFERENCE}"))
        }
    }
}

/// The tokens on the processor, from a process of their own: the plugin under test may be the same library with other
/// options, and has had its hands in the memory of this one. Settings of the run under test do not reach that process, but for
/// where plugins are found.
fn reference_tokens(prompt: &str) -> Result<Vec<u32>, String> {
    #[derive(Deserialize)]
    struct Line {
        token_ids: Vec<u32>,
    }
    let line = json!({ "id": "parity", "prompt": prompt, "max_tokens": TOKENS, "ignore_eos": true });
    let run = || {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["generate", "--prompts", "-", "--numerics", "deploy", "--accelerator", REFERENCE]);
        for variable in Settings::of_environment().without(&["DEEPINFER_PLUGIN_PATH"]).names() {
            command.env_remove(variable);
        }
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        if let Some(mut stdin) = process.stdin.take() {
            // A process that has ended already says why on its standard error.
            let _ = writeln!(stdin, "{line}");
        }
        process.wait_with_output()
    };
    let output = run().map_err(|e| format!("{REFERENCE} cannot be run in a process of its own: {e}"))?;
    let line: Line = serde_json::from_slice(&output.stdout).map_err(|_| {
        let said = String::from_utf8_lossy(&output.stderr);
        format!("{REFERENCE} gives no tokens ({}): {}", output.status, said.trim())
    })?;
    Ok(line.token_ids)
}

/// Greedy tokens after a prompt.
fn generate(device: OpenDevice, prompt: &str) -> Result<Vec<u32>, Failure> {
    fn failure(error: impl Display) -> Failure {
        Failure::new(error.to_string())
    }
    let checkpoint = embedded::open().map_err(failure)?;
    let tokenizer = checkpoint.tokenizer().map_err(failure)?;
    let prompt_token_ids = jsonl::encode(prompt, tokenizer.as_deref()).map_err(failure)?;
    let params = SamplingParams { max_tokens: Some(TOKENS), ignore_eos: true, ..SamplingParams::default() };
    let request = Request { id: "parity".to_owned(), prompt_token_ids, params };
    let (model, _) = Model::load(Rc::new(device), &checkpoint, Numerics::DEPLOY, &mut |_, _| ()).map_err(failure)?;
    let config = EngineConfig::default().for_request(&request, model.config().max_position_embeddings);
    let mut engine = Engine::builder(model).config(config).build().map_err(failure)?;
    let output = engine.run(request, &mut |_| true).map_err(failure)?;
    let completion = &output.outputs[0];
    match &completion.error {
        None => Ok(completion.token_ids()),
        Some(error @ EngineError::Device(OpError::DeviceLost(_))) => {
            Err(failure(error).of(Fault::DeviceLost).because_of(error.to_string()))
        }
        Some(error) => Err(failure(error).because_of(error.to_string())),
    }
}
