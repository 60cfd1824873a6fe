//! Cases of copies, norms, products, quantisation, rotation and hyper-connections.

use deepinfer_ops::Format;
use deepinfer_oracle::{Call, HostTensor, Value};

use super::{Content, Generator, OpSpec, Refusal, Rows};

use Content::{Equal, Halfway, Huge, Infinite, Nan, Plain, Tiny, Wide, Zeros};

pub(crate) const SPECS: &[OpSpec] = &[
    OpSpec {
        name: "gather",
        generate: gather,
        rows: Rows::Any("M"),
        empty: &["M", "C", "N"],
        contents: &[Plain, Tiny, Huge, Halfway, Nan, Infinite],
        refusals: &[Refusal {
            names: &["out"],
            change: |call| {
                let (table, out) = (call.tensor("table").shape.clone(), call.tensor("out").shape.clone());
                call.set("table", Value::Tensor(HostTensor::filled(Format::U8, &table, 0)));
                call.set("out", Value::Tensor(HostTensor::filled(Format::F32, &out, 0)));
            },
        }],
    },
    OpSpec {
        name: "rms_norm",
        generate: rms_norm,
        rows: Rows::Any("T"),
        empty: &["T", "N"],
        contents: &[Plain, Wide, Equal, Zeros, Nan, Infinite],
        refusals: &[],
    },
    OpSpec {
        name: "rstd",
        generate: rstd,
        rows: Rows::Any("T"),
        empty: &["T", "N"],
        contents: &[Plain, Wide, Equal, Nan],
        refusals: &[],
    },
    OpSpec {
        name: "linear",
        generate: linear,
        rows: Rows::Any("T"),
        empty: &["T"],
        contents: &[Plain, Wide, Equal, Zeros, Nan],
        refusals: &[Refusal { names: &["groups"], change: |call| call.set("groups", Value::U32(0)) }],
    },
    OpSpec {
        name: "grouped_linear",
        generate: grouped_linear,
        rows: Rows::OfExperts,
        empty: &["O", "K"],
        contents: &[Plain, Wide, Zeros, Nan],
        refusals: &[
            Refusal { names: &["expert_start"], change: |call| set_int(call, "expert_start", 0, 1) },
            Refusal { names: &["expert_start"], change: |call| set_int(call, "expert_start", -1, 1 << 20) },
            Refusal { names: &["expert_start"], change: |call| set_int(call, "expert_start", -1, -1) },
        ],
    },
    OpSpec {
        name: "quantize",
        generate: quantize,
        rows: Rows::Any("T"),
        empty: &["T", "N"],
        contents: &[Plain, Wide, Tiny, Huge, Equal, Zeros, Nan, Infinite],
        refusals: &[Refusal {
            names: &["x", "out"],
            change: |call| {
                let (x, out) = (call.tensor("x").format, call.tensor("out").format);
                call.set("x", Value::Tensor(HostTensor::filled(x, &[2, 24], 0)));
                call.set("out", Value::Tensor(HostTensor::filled(out, &[2, 24], 0)));
            },
        }],
    },
    OpSpec {
        name: "rope",
        generate: rope,
        rows: Rows::Any("T"),
        empty: &["T", "H", "R"],
        contents: &[Plain, Wide, Zeros, Nan],
        refusals: &[
            Refusal { names: &["inverse"], change: |call| call.set("inverse", Value::U32(2)) },
            Refusal {
                names: &["freqs"],
                change: |call| {
                    let freqs = call.dim("x", 2) / 2 + 1;
                    call.set("freqs", Value::Tensor(HostTensor::floats(Format::F32, &[freqs], &vec![1.0; freqs])));
                },
            },
        ],
    },
    OpSpec {
        name: "hc_mix",
        generate: hc_mix,
        rows: Rows::Any("T"),
        empty: &["T"],
        contents: &[Plain, Equal, Zeros, Nan],
        refusals: &[
            Refusal { names: &["copies", "mix"], change: |call| call.set("copies", Value::U32(7)) },
            Refusal { names: &["iters"], change: |call| call.set("iters", Value::U32(0)) },
        ],
    },
    OpSpec {
        name: "hc_collapse",
        generate: hc_collapse,
        rows: Rows::Any("T"),
        empty: &["T", "C", "D"],
        contents: &[Plain, Wide, Zeros, Nan],
        refusals: &[],
    },
    OpSpec {
        name: "hc_expand",
        generate: hc_expand,
        rows: Rows::Any("T"),
        empty: &["T", "C", "D"],
        contents: &[Plain, Wide, Zeros, Nan],
        refusals: &[],
    },
];

/// Sets one element of an I32 argument; negative places count from the end.
pub(super) fn set_int(call: &mut Call, name: &str, place: isize, value: i32) {
    let tensor = call.tensor_mut(name);
    let place = if place < 0 { tensor.len() - place.unsigned_abs() } else { place as usize };
    tensor.set_element(place, &value.to_le_bytes());
}

fn gather(g: &mut Generator) {
    let (n, m, c, repeat) = (g.rows(), g.rows(), g.columns(1), g.rng.pick(&[1, 1, 4]));
    if g.format("table") == Format::F32 && g.format("out") == Format::Bf16 {
        // Few calls round: each of what is hard to round comes up.
        g.content = g.turn(&[Halfway, g.content, Infinite, g.content]);
    }
    match g.format("table") {
        Format::F32 | Format::Bf16 => g.subject("table", &[n, c]),
        Format::U8 => g.bytes("table", &[n, c]),
        _ => g.ints("table", &[n, c], |rng| rng.next() as i32),
    }
    g.ints("index", &[m], |rng| rng.below(n + 2) as i32 - 1);
    g.u32("repeat", repeat);
    g.out("out", &[m, repeat, c]);
}

fn rms_norm(g: &mut Generator) {
    let (t, n, eps) = (g.rows(), g.columns(1), g.rng.pick(&[0.0, 1e-20, 1e-6]));
    g.subject("x", &[t, n]);
    g.float("weight", &[n]);
    g.f32("eps", eps);
    g.out("out", &[t, n]);
}

fn rstd(g: &mut Generator) {
    let (t, n, eps) = (g.rows(), g.columns(1), g.rng.pick(&[1e-20, 1e-6]));
    g.subject("x", &[t, n]);
    g.f32("eps", eps);
    g.out("out", &[t]);
}

fn linear(g: &mut Generator) {
    let group = g.group_of(&["x", "weight"]);
    let k = g.columns(group);
    let (t, groups, o) = (g.rows(), g.rng.pick(&[1, 1, 2, 3]), g.extent(&[1, 31, 32, 33], &[70]));
    g.subject("x", &[t, groups * k]);
    g.float("weight", &[groups * o, k]);
    g.u32("groups", groups);
    g.out("out", &[t, groups * o]);
}

fn grouped_linear(g: &mut Generator) {
    let formats = [Format::F32, Format::Bf16, Format::Fp8Tile32, Format::Fp4Row32];
    let (m, k) = (g.extent_of(&[2, 3, 33], &[300], &[24]), g.columns(32));
    let (o, experts) = (g.extent(&[1, 32, 33], &[40]), g.extent(&[1, 2, 5], &[8]));
    g.subject("x", &[m, k]);
    let weights = (0..experts)
        .map(|e| {
            let format = if e == 0 { g.format("weight") } else { g.rng.pick(&formats) };
            g.random(format, &[o, k])
        })
        .collect();
    g.set("weight", Value::List(weights));
    // Some experts get no row, and some rows no expert.
    let mut start: Vec<i32> = (0..experts).map(|_| g.rng.below(m + 1) as i32).collect();
    start.push(0);
    start.sort_unstable();
    g.i32("expert_start", &[experts + 1], &start);
    g.out("out", &[m, o]);
}

fn quantize(g: &mut Generator) {
    let (t, n) = (g.rows(), g.columns(g.group_of(&["out"])));
    g.subject("x", &[t, n]);
    g.out("out", &[t, n]);
}

fn rope(g: &mut Generator) {
    let (t, h, r, rest) =
        (g.rows(), g.extent(&[1, 2, 3], &[64]), g.extent(&[1, 5, 32], &[32, 100]), g.rng.pick(&[0, 1, 448]));
    g.subject("x", &[t, h, rest + 2 * r]);
    g.ints("positions", &[t], |rng| rng.pick(&[0, 1, 127, 128, 4095, 65_535, 65_536, 1_048_575]));
    let freqs: Vec<f32> = (0..r).map(|i| 10_000f32.powf(-(i as f32) / r as f32)).collect();
    g.values("freqs", &[r], &freqs);
    g.u32("inverse", g.turn(&[0, 1]));
}

fn hc_mix(g: &mut Generator) {
    let (t, c) = (g.rows(), g.extent(&[1, 2, 4], &[8, 24]));
    let width = 2 * c + c * c;
    g.subject("mix", &[t, width]);
    let rstd: Vec<f32> = (0..t).map(|_| 0.1 + g.rng.unit() as f32).collect();
    g.values("rstd", &[t], &rstd);
    g.float("base", &[width]);
    g.float("scale", &[3]);
    let iters = g.rng.pick(&[1, 2, 20]);
    g.u32("copies", c);
    g.u32("iters", iters);
    g.f32("eps", 1e-6);
    g.out("pre", &[t, c]);
    g.out("post", &[t, c]);
    g.out("comb", &[t, c, c]);
}

fn hc_collapse(g: &mut Generator) {
    let (t, c, d) = (g.rows(), g.extent(&[1, 3, 4], &[4, 24]), g.columns(1));
    g.subject("x", &[t, c, d]);
    g.float("pre", &[t, c]);
    g.out("out", &[t, d]);
}

fn hc_expand(g: &mut Generator) {
    let (t, c, d) = (g.rows(), g.extent(&[1, 3, 4], &[4, 24]), g.columns(1));
    g.subject("x", &[t, c, d]);
    g.float("y", &[t, d]);
    g.float("post", &[t, c]);
    g.float("comb", &[t, c, c]);
}
