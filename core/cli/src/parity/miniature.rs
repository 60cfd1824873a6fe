//! A model end to end (L3): the miniature in the program makes the tokens that it makes on the processor.

use std::rc::Rc;

use deepinfer_engine::{Engine, Request, SamplingParams, jsonl};
use deepinfer_model::{Model, Numerics};
use deepinfer_parity::{Level, Outcome};
use deepinfer_runtime::{Runtime, SearchPath, Selection, TEXT_PROFILE, missing_ops};

use super::task::WholeCase;
use super::worker::Target;
use crate::failure::Failure;
use crate::{embedded, model};

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
    let reference = Selection::parse(REFERENCE).and_then(|cpu| Runtime::new(SearchPath::from_environment()).open(&cpu));
    let wanted = match reference {
        Ok(device) => generate(device, prompt),
        Err(e) => return Outcome::failed(format!("there is nothing to compare with: {e}")),
    };
    let found = target.open().and_then(|device| generate(device, prompt));
    match (found, wanted) {
        (Err(problem), _) => Outcome::failed(problem),
        (_, Err(problem)) => Outcome::failed(format!("on {REFERENCE}: {problem}")),
        (Ok(found), Ok(wanted)) if found == wanted => Outcome::Passed { share: None },
        (Ok(found), Ok(wanted)) => {
            let same = found.iter().zip(&wanted).take_while(|(a, b)| a == b).count();
            Outcome::failed(format!("output token {same} differs: {found:?}, but {wanted:?} on {REFERENCE}"))
        }
    }
}

/// Greedy tokens after a prompt.
fn generate(device: deepinfer_runtime::OpenDevice, prompt: &str) -> Result<Vec<u32>, String> {
    let text = |failure: Failure| match failure {
        Failure::Input(error) | Failure::Fault(error) => format!("{error:#}"),
        Failure::ReaderGone => unreachable!("nothing is written"),
    };
    let checkpoint = embedded::open().map_err(|e| e.to_string())?;
    let tokenizer = model::open_tokenizer(&checkpoint).map_err(text)?;
    let prompt_token_ids = jsonl::encode(prompt, tokenizer.as_deref()).map_err(|e| e.to_string())?;
    let (model, _) =
        Model::load(Rc::new(device), &checkpoint, Numerics::DEPLOY, &mut |_, _| ()).map_err(|e| e.to_string())?;
    let mut engine = Engine::new(model, prompt_token_ids.len()).map_err(|e| e.to_string())?;
    let params = SamplingParams { max_tokens: Some(TOKENS), ignore_eos: true, ..SamplingParams::default() };
    let request = Request { id: "parity".to_owned(), prompt_token_ids, params };
    let completion = engine.generate(&request, &mut |_| true).map_err(|e| e.to_string())?;
    match completion.error {
        Some((_, message)) => Err(message),
        None => Ok(completion.steps.iter().map(|step| step.token_id).collect()),
    }
}
