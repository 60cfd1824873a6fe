//! One mixture of experts with its stored FP4 and FP8 weights.

use deepinfer_ops::traits::*;
use deepinfer_ops::{Format, Tensor, args};
use deepinfer_tests::{Golden, assert_close};

use crate::Bench;

const TOKENS: usize = 12;
const EXPERTS: usize = 8;
const CHOSEN: usize = 2;
const HIDDEN: usize = 128;
const WIDTH: usize = 64;
const LIMIT: f32 = 10.0;

struct Layer {
    bench: Bench,
    golden: Golden,
}

impl Layer {
    fn new() -> Self {
        Self { bench: Bench::new(), golden: Golden::open("moe") }
    }

    fn x(&self) -> Tensor {
        self.bench.load(&self.golden, "x", &[TOKENS, HIDDEN])
    }

    /// Experts and weights of each row, for text or with the image mask.
    fn route(&self, is_image: bool, chosen: usize, normalize: bool, biased: bool) -> (Vec<i32>, Vec<f32>) {
        let tensors = &self.bench.tensors;
        let gate: Vec<u8> = self.golden.bf16("gate.weight").0.iter().flat_map(|v| v.to_le_bytes()).collect();
        let gate = tensors.from_bytes(Format::Bf16, &[EXPERTS, HIDDEN], &gate);
        let logits = self.bench.linear(&self.x(), &gate);
        let zeros = tensors.f32(&[EXPERTS], &[0.0; EXPERTS]);
        let (bias, bias_vl) =
            (self.bench.matrix(&self.golden, "gate.bias"), self.bench.matrix(&self.golden, "gate.bias_vl"));
        let mask = tensors.from_bytes(Format::U8, &[TOKENS], &self.golden.u8("image_mask").0);
        let experts = tensors.poisoned(Format::I32, &[TOKENS, chosen]);
        let weights = self.bench.empty(&[TOKENS, chosen]);
        let args = args::MoeGate {
            logits: &logits,
            bias: if biased { &bias } else { &zeros },
            bias_vl: is_image.then_some(&bias_vl),
            image_mask: is_image.then_some(&mask),
            scoring: 0,
            normalize: u32::from(normalize),
            route_scale: if normalize { 1.5 } else { 1.0 },
            experts: &experts,
            weights: &weights,
        };
        self.bench.device.moe_gate(&args).expect("moe_gate");
        (tensors.ints(&experts), self.bench.floats(&weights))
    }

    fn experts(&self, part: &str, shape: &[usize]) -> Vec<Tensor> {
        let weight = |e| self.bench.quantized(&self.golden, &format!("experts.{e}.{part}"), Format::Fp4Row32, shape);
        (0..EXPERTS).map(weight).collect()
    }

    fn shared(&self, part: &str, shape: &[usize]) -> Tensor {
        self.bench.quantized(&self.golden, &format!("shared_experts.{part}"), Format::Fp8Tile32, shape)
    }

    fn grouped(&self, x: &Tensor, expert_start: &Tensor, weight: &[Tensor]) -> Tensor {
        let out = self.bench.empty(&[x.dim(0), weight[0].dim(0)]);
        let args = args::GroupedLinear { x, expert_start, weight, out: &out };
        self.bench.device.grouped_linear(&args).expect("grouped_linear");
        out
    }

    fn swiglu(&self, gate: &Tensor, up: &Tensor, row_weight: Option<&Tensor>, format: Format) -> Tensor {
        let out = self.bench.tensors.poisoned(format, &[gate.dim(0), gate.dim(1)]);
        let args = args::SwigluQuantize { gate, up, row_weight, limit: LIMIT, mid: 0, out: &out };
        self.bench.device.swiglu_quantize(&args).expect("swiglu_quantize");
        out
    }

    /// The whole layer. `inputs` is the format in which the linear ops get their inputs.
    fn forward(&self, experts: &[i32], weights: &[f32], inputs: Format) -> Vec<f32> {
        let (bench, tensors) = (&self.bench, &self.bench.tensors);
        let x = if inputs == Format::F32 { self.x() } else { bench.quantize(&self.x(), inputs) };
        let pairs = TOKENS * CHOSEN;
        let sorted = tensors.poisoned(inputs, &[pairs, HIDDEN]);
        let (row_weight, row_of) = (bench.empty(&[pairs]), tensors.poisoned(Format::I32, &[TOKENS, CHOSEN]));
        let expert_start = tensors.poisoned(Format::I32, &[EXPERTS + 1]);
        let args = args::MoeDispatch {
            x: &x,
            experts: &tensors.i32(&[TOKENS, CHOSEN], experts),
            weights: &tensors.f32(&[TOKENS, CHOSEN], weights),
            out: &sorted,
            row_weight: &row_weight,
            expert_start: &expert_start,
            row_of: &row_of,
        };
        bench.device.moe_dispatch(&args).expect("moe_dispatch");

        let gate = self.grouped(&sorted, &expert_start, &self.experts("w1", &[WIDTH, HIDDEN]));
        let up = self.grouped(&sorted, &expert_start, &self.experts("w3", &[WIDTH, HIDDEN]));
        let hidden = self.swiglu(&gate, &up, Some(&row_weight), inputs);
        let y = self.grouped(&hidden, &expert_start, &self.experts("w2", &[HIDDEN, WIDTH]));

        let gate = bench.linear(&x, &self.shared("w1", &[WIDTH, HIDDEN]));
        let up = bench.linear(&x, &self.shared("w3", &[WIDTH, HIDDEN]));
        let hidden = self.swiglu(&gate, &up, None, inputs);
        let shared = bench.linear(&hidden, &self.shared("w2", &[HIDDEN, WIDTH]));

        let out = bench.empty(&[TOKENS, HIDDEN]);
        let args = args::MoeCombine { y: &y, row_of: &row_of, shared: Some(&shared), out: &out };
        bench.device.moe_combine(&args).expect("moe_combine");
        bench.floats(&out)
    }
}

#[test]
fn experts_weights_and_outputs_of_text_and_images() {
    let layer = Layer::new();
    for (name, is_image) in [("text", false), ("image", true)] {
        let wanted = |part: &str| layer.golden.f32(&format!("{name}.{part}")).0;

        // All experts, unbiased and unnormalised: their weights are the scores.
        let (order, scores) = layer.route(is_image, EXPERTS, false, false);
        let mut by_expert = vec![0.0; TOKENS * EXPERTS];
        for (i, (&expert, &score)) in order.iter().zip(&scores).enumerate() {
            by_expert[i / EXPERTS * EXPERTS + expert as usize] = score;
        }
        assert_close(&format!("{name}.scores"), &by_expert, &wanted("scores"), 1e-6, 1e-6);

        let (experts, weights) = layer.route(is_image, CHOSEN, true, true);
        assert_eq!(experts, layer.golden.i32(&format!("{name}.experts")).0, "{name}.experts");
        assert_close(&format!("{name}.weights"), &weights, &wanted("weights"), 1e-6, 1e-6);
        for (part, inputs, tolerance) in [("out_exact", Format::F32, 1e-5), ("out_act8", Format::Fp8Row32, 2e-3)] {
            let out = layer.forward(&experts, &weights, inputs);
            assert_close(&format!("{name}.{part}"), &out, &wanted(part), tolerance, 0.0);
        }
    }
}

#[test]
fn the_activation_clamps_both_sides() {
    let layer = Layer::new();
    let row = |name: &str| layer.bench.load(&layer.golden, name, &[1, 16]);
    let out = layer.swiglu(&row("swiglu.gate"), &row("swiglu.up"), None, Format::F32);
    assert_close("swiglu.out", &layer.bench.floats(&out), &layer.golden.f32("swiglu.out").0, 1e-6, 1e-6);
}
