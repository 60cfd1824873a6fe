//! The trained miniature against the tokens and logits that an independent implementation stored.
//!
//! Exact numerics: greedy tokens agree up to the first step whose two best logits are less than 0.01 apart, and every
//! stored logit within 2e-3. Deployed numerics, along the stored tokens: the argmax agrees wherever the two best are at
//! least 0.3 apart, and the stored logits differ by at most 0.10 on average, over the short and over the long prompts; the
//! BF16 stream depends on summation order, and that order alone moves the independent implementation by 0.07.

#![forbid(unsafe_code)]

mod stored;

use deepinfer_engine::{Request, SamplingParams};
use deepinfer_model::Numerics;
use deepinfer_tests::device;
use stored::{DEPLOY_LIMIT, deploy_distance, deploy_prompts, engine, exact_prompts, hold_to_exact};

#[test]
fn exact_numerics_reproduce_tokens_and_logits() {
    let mut engine = engine(device(), Numerics::EXACT);
    let mut worst = 0.0_f32;
    for prompt in exact_prompts() {
        // Free-running until the first near tie.
        let sure = (0..prompt.tokens.len()).find(|&s| prompt.margin(s) < 0.01).unwrap_or(prompt.tokens.len());
        let request = Request {
            id: prompt.name.clone(),
            prompt_token_ids: prompt.prompt_ids.clone(),
            params: SamplingParams { max_tokens: Some(64), ..SamplingParams::default() },
        };
        let output = engine.run(request, &mut |_| true).expect("the request runs");
        let tokens = output.outputs[0].token_ids();
        assert!(tokens.len() >= sure, "{}: {} tokens, expected {sure}", prompt.name, tokens.len());
        assert_eq!(tokens[..sure], prompt.tokens[..sure], "{}", prompt.name);

        worst = worst.max(hold_to_exact(&mut engine, &prompt));
    }
    println!("largest difference of a stored logit: {worst:.2e}");
}

#[test]
fn deploy_numerics_are_as_close_as_summation_order_allows() {
    let (means, flips) = deploy_distance(&mut engine(device(), Numerics::DEPLOY), &deploy_prompts());
    println!("mean difference: short {:.4}, long {:.4}", means[0], means[1]);
    assert!(flips.is_empty(), "argmax differs at {flips:?}");
    assert!(means.iter().all(|&m| m <= DEPLOY_LIMIT), "{means:?}");
}

/// The rule must tell the deployed numerics from every other, or it proves nothing.
#[test]
fn other_numerics_fail_the_deploy_rule() {
    let others = [
        ("cache", Numerics::CACHE),
        ("exact", Numerics::EXACT),
        ("deploy without FP8 inputs", Numerics { fp8_inputs: false, ..Numerics::DEPLOY }),
        ("deploy without stored caches", Numerics { stored_caches: false, ..Numerics::DEPLOY }),
    ];
    for (name, numerics) in others {
        let (means, _) = deploy_distance(&mut engine(device(), numerics), &deploy_prompts());
        println!("{name}: short {:.4}, long {:.4}", means[0], means[1]);
        assert!(means.iter().any(|&m| m > DEPLOY_LIMIT), "{name} passes the rule of deploy: {means:?}");
    }
}
