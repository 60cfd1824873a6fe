//! Hits of the prefix cache: as many as computed by hand, and the bits of a cold run.

use deepinfer_engine::SamplingParams;
use deepinfer_engine::{Engine, EngineConfig};

use crate::reference::{Reference, model};
use crate::requests::{found, request, text_tokens};

#[test]
fn resent_prompts_hit_all_full_pages_but_the_last_token() {
    let reference = Reference::new();
    let text = text_tokens();
    let mut engine = Engine::builder(model())
        .config(EngineConfig { max_num_seqs: 4, pages: Some(64), ..EngineConfig::default() })
        .build()
        .expect("an engine");
    for length in [1, 127, 128, 129, 255, 256, 257, 384, 400, 512] {
        // Every length has a beginning of its own, so that it cannot hit what another one left.
        let mut prompt = text[..length].to_vec();
        prompt[0] = 10 + length as u32;
        let params = SamplingParams {
            max_tokens: Some(3),
            temperature: 0.8,
            seed: Some(length as u64),
            logprobs: Some(2),
            ignore_eos: true,
            ..SamplingParams::default()
        };
        let request = request(length, &prompt, params);
        let expected = reference.run(&request, 0);
        let before = engine.stats();
        for hit in [0, (length - 1) / 128 * 128, (length - 1) / 128 * 128] {
            let output = engine.run(request.clone(), &mut |_| true).expect("it is valid");
            assert_eq!(output.cached_tokens, hit, "{length} tokens");
            assert_eq!(found(&output, &output.outputs[0]), expected, "{length} tokens, {hit} of them from the cache");
        }
        // The hit rate of three runs, of which two hit.
        let stats = engine.stats();
        let (queried, hits) = (stats.queried_tokens - before.queried_tokens, stats.hit_tokens - before.hit_tokens);
        assert_eq!((queried, hits), (3 * length as u64, 2 * ((length - 1) / 128 * 128) as u64));
    }
}
