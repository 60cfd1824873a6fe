//! Cases of the n-gram memory.

use deepinfer_ops::Format;
use deepinfer_oracle::{HostTensor, Value};

use super::cache::share_slot;
use super::dense::set_int;
use super::{Content, Generator, OpSpec, Refusal, Rows};

use Content::{Halfway, Nan, Plain, Wide, Zeros};

pub(crate) const SPECS: &[OpSpec] = &[
    OpSpec {
        name: "engram_hash",
        generate: engram_hash,
        rows: Rows::Dependent,
        empty: &["L", "J"],
        contents: &[Plain],
        refusals: &[
            Refusal {
                names: &["token_ids"],
                change: |call| {
                    call.set("image_mask", Value::Absent);
                    set_int(call, "token_ids", 0, 1 << 20);
                },
            },
            Refusal {
                names: &["token_ids"],
                change: |call| {
                    call.set("image_mask", Value::Absent);
                    set_int(call, "token_ids", -1, -1);
                },
            },
            Refusal { names: &["state_slot"], change: |call| set_int(call, "state_slot", 0, 1000) },
            Refusal { names: &["request_start"], change: |call| set_int(call, "request_start", 0, 1) },
            Refusal {
                names: &["primes"],
                change: |call| {
                    call.tensor_mut("primes").set_element(0, &0i64.to_le_bytes());
                },
            },
            Refusal {
                names: &["offsets", "primes"],
                change: |call| {
                    call.tensor_mut("offsets").set_element(0, &(1i64 << 31).to_le_bytes());
                },
            },
            Refusal {
                names: &["state_slot"],
                change: |call| {
                    let (layers, columns) = (call.dim("primes", 0), call.dim("primes", 1));
                    call.set("token_ids", Value::Tensor(HostTensor::i32(&[2], &[0, 0])));
                    call.set("image_mask", Value::Absent);
                    call.set("rows", Value::Tensor(HostTensor::filled(Format::I32, &[layers, 2, columns], 0)));
                    share_slot(call, 2);
                },
            },
            Refusal {
                names: &["multipliers", "primes"],
                change: |call| {
                    let (rows, slots, layers) =
                        (call.dim("token_ids", 0), call.dim("history", 0), call.dim("primes", 0));
                    call.set("history", Value::Tensor(HostTensor::filled(Format::I32, &[slots, 3], 0)));
                    for name in ["multipliers", "primes", "offsets"] {
                        call.set(name, Value::Tensor(HostTensor::i64(&[layers, 4], &vec![1; layers * 4])));
                    }
                    call.set("rows", Value::Tensor(HostTensor::filled(Format::I32, &[layers, rows, 4], 0)));
                },
            },
        ],
    },
    OpSpec {
        name: "engram_gather",
        generate: engram_gather,
        rows: Rows::Any("T"),
        empty: &["T", "N"],
        contents: &[Plain, Wide, Halfway, Nan],
        refusals: &[],
    },
    OpSpec {
        name: "engram_gate",
        generate: engram_gate,
        rows: Rows::Any("T"),
        empty: &["T"],
        contents: &[Plain, Wide, Zeros, Nan],
        refusals: &[],
    },
];

fn engram_hash(g: &mut Generator) {
    let (t, vocabulary) = (g.rows(), 100);
    let (layers, n, heads, requests) =
        (g.rng.pick(&[1, 2]), g.extent(&[2, 4], &[3, 9]), g.extent(&[1, 8], &[8, 600]), g.rng.pick(&[1, 2, 3]));
    let (columns, slots) = ((n - 1) * heads, requests + 1);
    g.requests(t, requests, slots);
    g.ints("token_ids", &[t], |rng| rng.below(vocabulary) as i32);
    g.ints("token_map", &[vocabulary], |rng| rng.below(99_092) as i32);
    g.mask("image_mask", t);
    g.ints("history", &[slots, n - 1], |rng| rng.below(99_092) as i32 - 1);
    g.set("pad", Value::I32(2));
    // Odd, and small enough that no product of the released sizes overflows.
    let multipliers: Vec<i64> =
        (0..layers * n).map(|_| (g.rng.next() % (i64::MAX as u64 / 99_092 / 2)) as i64 * 2 + 1).collect();
    g.set("multipliers", Value::Tensor(HostTensor::i64(&[layers, n], &multipliers)));
    let primes: Vec<i64> = (0..layers * columns).map(|_| g.rng.pick(&[1, 97, 16_000_057])).collect();
    g.set("primes", Value::Tensor(HostTensor::i64(&[layers, columns], &primes)));
    let offsets: Vec<i64> = (0..layers * columns).map(|_| g.rng.below(1 << 30) as i64).collect();
    g.set("offsets", Value::Tensor(HostTensor::i64(&[layers, columns], &offsets)));
    g.out("rows", &[layers, t, columns]);
}

fn engram_gather(g: &mut Generator) {
    let (n, c, t, j) = (g.rows(), g.columns(g.group_of(&["table"])), g.rows(), g.rng.pick(&[1, 3, 24]));
    g.subject("table", &[n, c]);
    g.ints("rows", &[t, j], |rng| rng.below(n + 2) as i32 - 1);
    g.out("out", &[t, j * c]);
}

fn engram_gate(g: &mut Generator) {
    let (t, c, d, eps) =
        (g.rows(), g.rng.pick(&[1, 4]), g.extent(&[1, 31, 64], &[4100, 5120]), g.rng.pick(&[1e-20, 1e-6]));
    g.subject("x", &[t, c, d]);
    g.float("kv", &[t, (c + 1) * d]);
    g.float("q_weight", &[c, d]);
    g.float("k_weight", &[c, d]);
    g.mask("image_mask", t);
    g.f32("eps", eps);
}
