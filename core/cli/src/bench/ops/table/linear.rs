//! Dense products: projections in FP8, the head and the router in BF16, the mixing of the hyper-connections in F32.

use deepinfer_ops::Format::{self, Bf16, F32, Fp8Row32, Fp8Tile32};

use super::{COPIES, HIDDEN, VOCABULARY};
use crate::bench::ops::case::{Bar, Bound, Case, Scale};

/// Rows from which a product is bound by its arithmetic.
const MANY_ROWS: usize = 512;

pub(super) fn cases(scale: Scale) -> Vec<Case> {
    let mut cases = Vec::new();
    let fp8 = |m, n, k, groups| product(scale, "fp8", [Fp8Row32, Fp8Tile32, Bf16], [m, n, k, groups]);
    for m in [1, 8, 16, 32, 64] {
        cases.push(fp8(m, HIDDEN, HIDDEN, 1).bar(Bar::Microseconds(9.0)));
    }
    cases.push(fp8(4096, HIDDEN, HIDDEN, 1).bar(Bar::Teraflops(600.0)));
    // Queries, the output projection in both halves, the shared expert, the query latent.
    for (n, k, groups) in [(32_768, 1280, 1), (HIDDEN, 8192, 1), (1024, 4096, 8), (2304, HIDDEN, 1), (1280, HIDDEN, 1)]
    {
        cases.extend([1, 64, 4096].map(|m| fp8(m, n, k, groups)));
    }
    let bf16 = |m, n, k| product(scale, "bf16", [Bf16, Bf16, Bf16], [m, n, k, 1]);
    cases.extend([1, 64].map(|m| bf16(m, HIDDEN, HIDDEN)));
    cases.push(bf16(4096, HIDDEN, HIDDEN).bar(Bar::Teraflops(600.0)));
    // The head; the router.
    for m in [1, 64] {
        cases.push(product(scale, "head bf16", [Bf16, Bf16, F32], [m, VOCABULARY, HIDDEN, 1]).bar(Bar::CopyShare(0.9)));
    }
    cases.extend([1, 64, 4096].map(|m| product(scale, "router bf16", [Bf16, Bf16, F32], [m, 384, HIDDEN, 1])));
    let mix = |m| product(scale, "mhc f32", [Bf16, F32, F32], [m, 2 * COPIES + COPIES * COPIES, COPIES * HIDDEN, 1]);
    cases.push(mix(1).bar(Bar::Microseconds(4.0)));
    cases.extend([64, 4096].map(mix));
    cases
}

/// A product of `m` rows with `groups` matrices of `n` x `k`.
fn product(scale: Scale, what: &str, formats: [Format; 3], [m, n, k, groups]: [usize; 4]) -> Case {
    let (of_x, of_weight, of_out) = (formats[0], formats[1], formats[2]);
    let is_small = n < 100;
    let (m, n, k) = (scale.of(m), if is_small { n } else { scale.to(n, 32) }, scale.to(k, 32));
    let many = if groups > 1 { format!(" groups{groups}") } else { String::new() };
    let bound = if m >= MANY_ROWS && !is_small { Bound::Compute } else { Bound::Memory };
    Case::new("linear", format!("{what} n{n} k{k}{many} m{m}"))
        .random("x", of_x, &[m, groups * k])
        .random("weight", of_weight, &[groups * n, k])
        .u32("groups", groups)
        .random("out", of_out, &[m, groups * n])
        .flops(2 * m * n * k * groups)
        .bound(bound)
}
