//! Cases of the mixture of experts.

use deepinfer_ops::Format;
use deepinfer_oracle::{HostTensor, Value};

use super::dense::set_int;
use super::{Content, Generator, OpSpec, Refusal, Rows};

use Content::{Equal, Halfway, Infinite, Nan, Plain, Wide, Zeros};

pub(crate) const SPECS: &[OpSpec] = &[
    OpSpec {
        name: "moe_gate",
        generate: moe_gate,
        rows: Rows::Any("T"),
        empty: &["T", "K"],
        contents: &[Plain, Equal, Zeros, Nan],
        refusals: &[
            Refusal { names: &["scoring"], change: |call| call.set("scoring", Value::U32(3)) },
            Refusal { names: &["normalize"], change: |call| call.set("normalize", Value::U32(2)) },
            Refusal {
                names: &["experts"],
                change: |call| {
                    let (rows, more) = (call.dim("logits", 0), call.dim("logits", 1) + 1);
                    call.set("experts", Value::Tensor(HostTensor::filled(Format::I32, &[rows, more], 0)));
                    call.set("weights", Value::Tensor(HostTensor::filled(Format::F32, &[rows, more], 0)));
                },
            },
        ],
    },
    OpSpec {
        name: "moe_dispatch",
        generate: moe_dispatch,
        rows: Rows::Dependent,
        empty: &["N"],
        contents: &[Plain, Nan],
        refusals: &[Refusal { names: &["experts"], change: |call| set_int(call, "experts", -1, 1000) }],
    },
    OpSpec {
        name: "swiglu_quantize",
        generate: swiglu_quantize,
        rows: Rows::Any("M"),
        empty: &["M", "N"],
        contents: &[Plain, Wide, Zeros, Nan],
        refusals: &[
            Refusal { names: &["mid"], change: |call| call.set("mid", Value::U32(2)) },
            Refusal {
                names: &["out"],
                change: |call| {
                    let gate = call.tensor("gate").format;
                    call.set("row_weight", Value::Absent);
                    call.set("gate", Value::Tensor(HostTensor::filled(gate, &[2, 33], 0)));
                    call.set("up", Value::Tensor(HostTensor::filled(gate, &[2, 33], 0)));
                    call.set("out", Value::Tensor(HostTensor::filled(Format::Fp8Row32, &[2, 33], 0)));
                },
            },
        ],
    },
    OpSpec {
        name: "moe_combine",
        generate: moe_combine,
        rows: Rows::Any("T"),
        empty: &["T", "K", "N"],
        contents: &[Plain, Wide, Halfway, Equal, Zeros, Nan, Infinite],
        refusals: &[Refusal { names: &["row_of"], change: |call| set_int(call, "row_of", 0, 1 << 20) }],
    },
];

fn moe_gate(g: &mut Generator) {
    let (t, e) = (g.rows(), g.extent(&[1, 2, 16, 33, 384], &[384, 2048]));
    let k = g.rng.pick(&[1, 2, 6, 16]).min(e);
    g.subject("logits", &[t, e]);
    g.float("bias", &[e]);
    if g.rng.one_in(3) {
        // Without a bias equal logits tie.
        g.values("bias", &[e], &vec![0.0; e]);
    }
    let other = g.random(Format::F32, &[e]);
    g.optional("bias_vl", Value::Tensor(other));
    g.mask("image_mask", t);
    let normalize = g.rng.below(2);
    g.u32("scoring", g.turn(&[0, 1, 2]));
    g.u32("normalize", normalize);
    g.f32("route_scale", 1.5);
    g.out("experts", &[t, k]);
    g.out("weights", &[t, k]);
}

fn moe_dispatch(g: &mut Generator) {
    let (t, k, e, n) = (g.rows(), g.rng.pick(&[1, 2, 6]), g.extent(&[1, 8, 33], &[384]), g.columns(32));
    g.subject("x", &[t, n]);
    g.ints("experts", &[t, k], |rng| rng.below(e + 1) as i32 - 1);
    g.float("weights", &[t, k]);
    g.out("out", &[t * k, n]);
    g.out("row_weight", &[t * k]);
    g.out("expert_start", &[e + 1]);
    g.out("row_of", &[t, k]);
}

fn swiglu_quantize(g: &mut Generator) {
    let (m, n) = (g.rows(), g.columns(g.group_of(&["out"])));
    g.subject("gate", &[m, n]);
    g.float_with("up", &[m, n], Content::Wide);
    let weights = g.random(Format::F32, &[m]);
    g.optional("row_weight", Value::Tensor(weights));
    let limit = g.rng.pick(&[0.0, -1.0, 10.0, 0.5]);
    g.f32("limit", limit);
    g.u32("mid", g.turn(&[0, 1]));
    g.out("out", &[m, n]);
}

fn moe_combine(g: &mut Generator) {
    let (t, k, m, n) = (g.rows(), g.rng.pick(&[1, 2, 6]), g.rows(), g.columns(1));
    g.subject("y", &[m, n]);
    // In a real call every row of y is used once; the sum does not need that.
    g.ints("row_of", &[t, k], |rng| rng.below(m + 1) as i32 - 1);
    let shared = g.random(g.format("shared"), &[t, n]);
    g.optional("shared", Value::Tensor(shared));
    g.out("out", &[t, n]);
}
