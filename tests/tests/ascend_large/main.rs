//! Calls of the ascend backend that are larger than those of the parity cases, on the host twin: rows that a kernel takes in
//! several pieces, and more rows than a batch of it holds. `DEEPINFER_TWIN_SEED` chooses the order of pipes, as everywhere.

#![forbid(unsafe_code)]

mod draw;

use deepinfer_ops::Format::{self, Bf16, F32, Fp8Row32, I32};
use draw::hold;

#[test]
fn norms_and_rows_longer_than_a_piece() {
    for (x, weight) in [(Bf16, F32), (F32, Bf16)] {
        hold("rms_norm", |d| {
            d.floats("x", x, &[3, 9001]).floats("weight", weight, &[9001]).number("eps", 1e-6).out(
                "out",
                x,
                &[3, 9001],
            );
        });
        hold("rstd", |d| {
            d.floats("x", x, &[3, 9001]).number("eps", 1e-6).out("out", F32, &[3]);
        });
    }
    for (from, to) in [(Bf16, Bf16), (F32, F32), (Bf16, F32), (F32, Bf16)] {
        hold("gather", |d| {
            d.floats("table", from, &[4, 9001]).ints("index", &[5], |i| [3, -1, 0, 3, 4][i]).size("repeat", 2);
            d.out("out", to, &[5, 2, 9001]);
        });
    }
}

#[test]
fn streams_of_many_channels_and_of_many_copies() {
    for (x, copies, channels) in [(Bf16, 4, 9001), (F32, 3, 4096), (F32, 70, 1003), (Bf16, 0, 5)] {
        hold("hc_collapse", |d| {
            d.floats("x", x, &[2, copies, channels]).floats("pre", F32, &[2, copies]).out("out", x, &[2, channels]);
        });
        hold("hc_expand", |d| {
            d.floats("x", x, &[2, copies, channels]).floats("y", x, &[2, channels]).floats("post", F32, &[2, copies]);
            d.floats("comb", F32, &[2, copies, copies]);
        });
    }
    for copies in [3, 8, 9, 24] {
        let width = 2 * copies + copies * copies;
        hold("hc_mix", |d| {
            d.floats("mix", F32, &[700, width]).floats("rstd", F32, &[700]).floats("base", F32, &[width]);
            d.floats("scale", F32, &[3]).size("copies", copies).size("iters", 3).number("eps", 1e-6);
            d.out("pre", F32, &[700, copies]).out("post", F32, &[700, copies]).out("comb", F32, &[700, copies, copies]);
        });
    }
}

#[test]
fn groups_of_many_tokens_and_of_many_channels() {
    for (ratio, ring, channels, out) in [(128, 128, 300, Bf16), (4, 8, 5003, F32), (500, 501, 40, F32)] {
        let (rows, first) = (2 * ratio + 3, ratio as i32 - 2);
        hold("compress_and_update_state", |d| {
            d.floats("latent", F32, &[rows, channels]).floats("score", F32, &[rows, channels]);
            d.floats("state", F32, &[2, ring, 2, channels]).ints("group_row", &[2], |g| (g * ratio) as i32 + 1);
            d.ints("positions", &[rows], |t| first + t as i32).ints("row_request", &[rows], |_| 0);
            d.ints("request_start", &[2], |q| (q * rows) as i32).ints("state_slot", &[1], |_| 1);
            d.size("ratio", ratio).out("out", out, &[2, channels]);
        });
    }
}

#[test]
fn entries_of_many_rows_and_of_many_channels() {
    for (format, entry) in [(0, 4 * 4128), (2, 4128 + 129), (3, 2064 + 258), (4, 2064 + 129)] {
        hold("store_kv_cache", |d| {
            d.floats("kv", Bf16, &[3, 4128]).ints("slots", &[3], |t| [2, -1, 0][t]).bytes("cache", &[1, 3 * entry]);
            d.size("format", format).size("entries_per_page", 3).out("rounded", Bf16, &[3, 4128]);
        });
        let entry = entry / 129;
        hold("store_kv_cache", |d| {
            d.floats("kv", F32, &[5000, 32]).bytes("cache", &[70, 8 * entry]).out("rounded", F32, &[5000, 32]);
            d.ints("slots", &[5000], |t| (t * 7919 % 560) as i32).size("format", format).size("entries_per_page", 8);
        });
    }
}

#[test]
fn lookups_of_long_rows_and_of_many() {
    let formats: [(Format, Format); 4] = [(F32, Bf16), (Bf16, F32), (Fp8Row32, Bf16), (Fp8Row32, F32)];
    for (table, out) in formats {
        for (columns, tokens, lookups) in [(4160, 3, 2), (2048, 2, 3), (32, 700, 24), (1056, 5, 3)] {
            hold("engram_gather", |d| {
                d.floats("table", table, &[9, columns]).ints("rows", &[tokens, lookups], |i| (i * 31 % 11) as i32 - 1);
                d.out("out", out, &[tokens, lookups * columns]);
            });
        }
    }
}

#[test]
fn hashes_of_many_tokens_and_of_long_lookbacks() {
    for (tokens, n, heads) in [(3000, 3, 8), (70, 5, 600), (4, 9, 1)] {
        let (columns, half) = ((n - 1) * heads, tokens as i32 / 2);
        hold("engram_hash", |d| {
            d.ints("token_ids", &[tokens], |t| (t * 37 % 100) as i32).ints("token_map", &[100], |v| (v * 991) as i32);
            d.mask("image_mask", tokens).ints("history", &[3, n - 1], |i| i as i32 * 17 - 1);
            d.ints("request_start", &[4], |q| [0, half, half, tokens as i32][q])
                .ints("state_slot", &[3], |q| 2 - q as i32);
            d.integer("pad", 2)
                .longs("multipliers", &[2, n], |i| 0x1234_5678_9ABC_DEF1_i64.wrapping_mul(2 * i as i64 + 1));
            d.longs("primes", &[2, columns], |i| [16_000_057, 97, 1][i % 3])
                .longs("offsets", &[2, columns], |i| i as i64 * 1000);
            d.out("rows", I32, &[2, tokens, columns]);
        });
    }
}

#[test]
fn gates_of_long_rows_and_of_many() {
    for (x, weight) in [(Bf16, F32), (F32, Bf16)] {
        for (tokens, copies, channels) in [(2, 2, 4100), (1200, 4, 8)] {
            hold("engram_gate", |d| {
                d.floats("x", x, &[tokens, copies, channels]).floats("kv", x, &[tokens, (copies + 1) * channels]);
                d.floats("q_weight", weight, &[copies, channels]).floats("k_weight", weight, &[copies, channels]);
                d.mask("image_mask", tokens).number("eps", 1e-6);
            });
        }
    }
}

/// Blocks that have several tiles: of the same rows of x, and of others after them.
#[test]
fn products_of_more_tiles_than_cores() {
    for (x, weight) in [(F32, F32), (Bf16, Bf16)] {
        for (rows, outputs, columns) in [(100, 200, 64), (3, 700, 300), (1, 600, 4200)] {
            hold("linear", |d| {
                d.floats("x", x, &[rows, columns]).floats("weight", weight, &[outputs, columns]).size("groups", 1);
                d.out("out", F32, &[rows, outputs]);
            });
        }
        // Eight experts of three rows each.
        hold("grouped_linear", |d| {
            d.floats("x", x, &[24, 64]).ints("expert_start", &[9], |e| 3 * e as i32);
            d.list_of_floats("weight", weight, 8, &[200, 64]).out("out", F32, &[24, 200]);
        });
    }
}
