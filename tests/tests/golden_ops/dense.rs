//! Rotation and hyper-connections.

use deepinfer_model::config::ModelConfig;
use deepinfer_model::rope;
use deepinfer_ops::args;
use deepinfer_ops::traits::*;
use deepinfer_tests::{Golden, assert_close, fixture};

use crate::{Bench, EPS, ints};

#[test]
fn rope_frequencies_angles_and_both_directions() {
    let (bench, golden) = (Bench::new(), Golden::open("rope"));
    let config = ModelConfig::from_file(&fixture("config.v41-flash.json")).expect("the released configuration");
    let positions = ints(&golden, "positions");
    let (x, shape) = golden.f32("x");
    let width = shape[2] * shape[3];
    for (name, derived) in
        [("window", rope::window_frequencies(&config)), ("compressed", rope::compressed_frequencies(&config))]
    {
        let freqs = golden.f32(&format!("freqs_{name}")).0;
        assert_close(&format!("{name} frequencies"), &derived, &freqs, 0.0, 1e-7);
        let angles: Vec<f32> = positions.iter().flat_map(|&p| freqs.iter().map(move |f| p as f32 * f)).collect();
        assert_eq!(angles, golden.f32(&format!("{name}.angle")).0, "{name}: angles are F32 products");

        let rotated = golden.f32(&format!("{name}.out")).0;
        let back = golden.f32(&format!("{name}.inverse_of_out")).0;
        for (inverse, input, wanted) in [(false, &x, &rotated), (true, &rotated, &back)] {
            let vectors = bench.tensors.f32(&[positions.len(), width], input);
            bench.rope(&vectors, shape[2], &positions, &freqs, inverse);
            let found = bench.floats(&vectors);
            for (t, position) in positions.iter().enumerate() {
                let tolerance = if *position < 5000 { 2e-6 } else { 1e-5 };
                let row = t * width..(t + 1) * width;
                let what = format!("{name}, inverse {inverse}, position {position}");
                assert_close(&what, &found[row.clone()], &wanted[row], tolerance, 0.0);
            }
        }
    }
}

#[test]
fn one_step_of_hyper_connections() {
    let (bench, golden) = (Bench::new(), Golden::open("hyper_connection"));
    let (_, shape) = golden.f32("x");
    let (t, c, d) = (shape[0] * shape[1], shape[2], shape[3]);
    let check = |name: &str, found: &[f32]| assert_close(name, found, &golden.f32(name).0, 2e-6, 1e-5);

    let flat = bench.load(&golden, "x", &[t, c * d]);
    let raw = bench.linear(&flat, &bench.matrix(&golden, "fn"));
    let rstd = bench.empty(&[t]);
    bench.device.rstd(&args::Rstd { x: &flat, eps: EPS, out: &rstd }).expect("rstd");
    let roots = bench.floats(&rstd);
    let mix: Vec<f32> = bench.floats(&raw).chunks(2 * c + c * c).zip(&roots).flat_map(scaled).collect();
    check("mix", &mix);

    let (pre, post, comb) = (bench.empty(&[t, c]), bench.empty(&[t, c]), bench.empty(&[t, c, c]));
    let args = args::HcMix {
        mix: &raw,
        rstd: &rstd,
        base: &bench.matrix(&golden, "base"),
        scale: &bench.matrix(&golden, "scale"),
        copies: c as u32,
        iters: 20,
        eps: 1e-6,
        pre: &pre,
        post: &post,
        comb: &comb,
    };
    bench.device.hc_mix(&args).expect("hc_mix");
    check("pre", &bench.floats(&pre));
    check("post", &bench.floats(&post));
    check("comb", &bench.floats(&comb));

    let (x, out) = (flat.reshape(&[t, c, d]), bench.empty(&[t, d]));
    bench.device.hc_collapse(&args::HcCollapse { x: &x, pre: &pre, out: &out }).expect("hc_collapse");
    check("collapse", &bench.floats(&out));
    check("norm_out", &bench.floats(&bench.rms_norm(&out, &bench.matrix(&golden, "norm_weight"))));

    let y = bench.load(&golden, "sublayer_out", &[t, d]);
    bench.device.hc_expand(&args::HcExpand { x: &x, y: &y, post: &post, comb: &comb }).expect("hc_expand");
    check("expand", &bench.floats(&x));
}

fn scaled((row, root): (&[f32], &f32)) -> Vec<f32> {
    row.iter().map(|v| v * root).collect()
}
