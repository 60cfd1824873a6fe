//! The miniature through the host twin of the ascend backend, along stored tokens, against the logits that an independent
//! implementation stored. By itself `cargo test` takes some of the prompts, one of them long enough that entries are selected;
//! with `--ignored`, all of them. `DEEPINFER_ACCELERATOR=ascend cargo test -p deepinfer-tests --test miniature` lets it run freely,
//! too, and in other numerics. `DEEPINFER_TWIN_SEED` chooses the order of pipes, as everywhere.

#![forbid(unsafe_code)]

mod stored;

use std::rc::Rc;

use deepinfer_model::Numerics;
use deepinfer_ops::Device;
use deepinfer_runtime::{Runtime, SearchPath, Selection};
use stored::{DEPLOY_LIMIT, Prompt, deploy_distance, deploy_prompts, engine, exact_prompts, hold_to_exact};

/// What `cargo test` takes by itself.
const SOME: [&str; 4] = ["raw_once", "chat_opposite", "chat_fruits", "long_300"];

/// The twin, or `None`, with a line that says so.
fn twin() -> Option<Rc<dyn Device>> {
    let runtime = Runtime::new(SearchPath::from_environment());
    let selection = Selection::parse("ascend").expect("a name");
    let selected = runtime.select(&selection).map_err(|error| error.to_string());
    match selected.and_then(|(backend, device)| backend.open(device).map_err(|error| error.to_string())) {
        Ok(device) if device.info().is_emulated => Some(Rc::new(device)),
        Ok(_) => {
            eprintln!("skipped: the ascend backend was built for a device");
            None
        }
        Err(text) => {
            let is_without = text.contains("was built without its Ascend kernels") || text.contains("no CANN");
            assert!(is_without, "{text}");
            eprintln!("skipped: the ascend backend was built without the host twin");
            None
        }
    }
}

fn exact(prompts: &[Prompt]) {
    let Some(device) = twin() else { return };
    let mut engine = engine(device, Numerics::EXACT);
    let worst = prompts.iter().map(|prompt| hold_to_exact(&mut engine, prompt)).fold(0.0, f32::max);
    println!("largest difference of a stored logit: {worst:.2e}");
}

fn deploy(prompts: &[Prompt]) {
    let Some(device) = twin() else { return };
    let (means, flips) = deploy_distance(&mut engine(device, Numerics::DEPLOY), prompts);
    println!("mean difference: short {:.4}, long {:.4}", means[0], means[1]);
    assert!(flips.is_empty(), "argmax differs at {flips:?}");
    assert!(means.iter().all(|&m| m <= DEPLOY_LIMIT), "{means:?}");
}

fn some(prompts: Vec<Prompt>) -> Vec<Prompt> {
    let some: Vec<_> = prompts.into_iter().filter(|prompt| SOME.contains(&prompt.name.as_str())).collect();
    assert_eq!(some.len(), SOME.len());
    some
}

#[test]
fn some_prompts_in_exact_numerics() {
    exact(&some(exact_prompts()));
}

#[test]
fn some_prompts_in_deployed_numerics() {
    deploy(&some(deploy_prompts()));
}

#[test]
#[ignore = "takes minutes"]
fn all_prompts_in_exact_numerics() {
    exact(&exact_prompts());
}

#[test]
#[ignore = "takes minutes"]
fn all_prompts_in_deployed_numerics() {
    deploy(&deploy_prompts());
}
