//! The noise of the sampler against logarithms of a different construction, and against the distribution it must have.

use deepinfer_numerics::sampling::{self, Draw};
use deepinfer_numerics::{Domain, fixed_exp, fixed_log, gumbel};
use proptest::prelude::*;

/// Natural logarithms with 120 fraction bits, by multiplicative normalisation: an argument in [1, 2) is multiplied by
/// factors `1 + 2^-k` (a shift and an addition each) until it reaches 2, and the logarithms of the factors are summed. It
/// shares no method with the crate; its error is below 2^-110.
mod oracle {
    use std::sync::LazyLock;

    pub(super) const BITS: u32 = 120;
    const LAST_FACTOR: u32 = 118;

    /// `ln((d + 1) / (d - 1))`, which is `2 atanh(1 / d)`.
    fn ln_of_neighbours(d: u128) -> i128 {
        let (mut power, mut sum, mut k) = ((1 << BITS) / d, 0, 1);
        while power != 0 {
            sum += power / k;
            power = power / d / d;
            k += 2;
        }
        2 * sum as i128
    }

    static LN_2: LazyLock<i128> = LazyLock::new(|| ln_of_neighbours(3));
    /// Entry `k` is `ln(1 + 2^-k)`.
    static FACTORS: LazyLock<Vec<i128>> =
        LazyLock::new(|| (0..=LAST_FACTOR).map(|k| ln_of_neighbours((1 << (k + 1)) + 1)).collect());

    /// `ln(x * 2^-fraction_bits)` for `x > 0`.
    pub(super) fn ln(x: u128, fraction_bits: u32) -> i128 {
        let exponent = 127 - x.leading_zeros();
        let mut m = if exponent > BITS { x >> (exponent - BITS) } else { x << (BITS - exponent) };
        let two = 2 << BITS;
        let mut ln_m = *LN_2;
        for k in 1..=LAST_FACTOR {
            while m + (m >> k) <= two {
                m += m >> k;
                ln_m -= FACTORS[k as usize];
            }
        }
        (i128::from(exponent) - i128::from(fraction_bits)) * *LN_2 + ln_m
    }

    pub(super) fn exponential(lane: u32) -> i128 {
        -ln((1 << 33) - 1 - 2 * u128::from(lane), 33)
    }

    pub(super) fn noise(lane: u32) -> i128 {
        -ln(exponential(lane) as u128, BITS)
    }

    pub(super) fn noise_f32(lane: u32) -> f32 {
        noise(lane) as f32 * 2f32.powi(-(BITS as i32))
    }

    /// The leading bits of ln(2) as published, and a logarithm whose value follows from another one.
    #[test]
    fn known_values() {
        assert_eq!(*LN_2 >> (BITS - 96), 0xB172_17F7_D1CF_79AB_C9E3_B398);
        assert!((ln(9, 0) - 2 * ln(3, 0)).abs() < 1 << 10);
        assert!((ln(10, 0) as f64 * 2f64.powi(-120) - std::f64::consts::LN_10).abs() < 1e-15);
    }
}

/// The error that the page states for the fixed-point noise, with 120 fraction bits: 2^-60 * max(1, 1 / E).
fn stated_bound(lane: u32) -> i128 {
    let (one, exponential) = (1i128 << 60, oracle::exponential(lane) >> 60);
    one.max(one * one / exponential)
}

/// Lanes at both ends, around every power of two of either tail, and around the change of sign.
fn extreme_lanes() -> impl Iterator<Item = u32> {
    let powers = (0..32).flat_map(|k| [1u32 << k, u32::MAX - (1 << k)]);
    // v = 1 - 1/e, where E = 1.
    let sign_change = [(4_294_967_296.0 * (1.0 - (-1f64).exp())) as u32];
    let centres = powers.chain(sign_change).chain([0, u32::MAX]);
    centres.flat_map(|centre| (-200i64..=200).filter_map(move |d| u32::try_from(i64::from(centre) + d).ok()))
}

fn check_lane(lane: u32) {
    let (fixed, exact) = (gumbel::fixed_from_lane(lane), oracle::noise(lane));
    let error = ((fixed << 56) - exact).abs();
    assert!(error <= stated_bound(lane), "lane {lane:#010x}: {fixed} is off by {} * 2^-64", error >> 56);
    let (rounded, nearest) = (gumbel::from_lane(lane), oracle::noise_f32(lane));
    assert!(rounded == nearest, "lane {lane:#010x}: {rounded:e} instead of {nearest:e}");
}

#[test]
fn extreme_lanes_are_correctly_rounded() {
    extreme_lanes().for_each(check_lane);
}

/// The lanes whose error interval straddles a rounding boundary, as the example `gumbel_exhaustive` found them among all
/// 2^32. With these settled, every lane is correctly rounded.
#[test]
fn the_lanes_closest_to_a_rounding_boundary_are_correctly_rounded() {
    [0xA180_6B7F, 0xA1D2_A192, 0xA1D8_868C].into_iter().for_each(check_lane);
}

#[test]
fn noise_falls_strictly_in_fixed_point() {
    for lane in extreme_lanes().filter(|&lane| lane < u32::MAX) {
        assert!(gumbel::fixed_from_lane(lane) > gumbel::fixed_from_lane(lane + 1), "lane {lane:#010x}");
        assert!(gumbel::from_lane(lane) >= gumbel::from_lane(lane + 1), "lane {lane:#010x}");
    }
}

#[test]
fn the_ends_of_the_range() {
    assert_eq!(gumbel::from_lane(0), (33.0 * std::f64::consts::LN_2) as f32);
    assert_eq!(gumbel::from_lane(u32::MAX), -(33.0 * std::f64::consts::LN_2).ln() as f32);
}

#[test]
fn logarithms_of_exact_powers_and_of_every_table_edge() {
    assert_eq!(fixed_log::LN_2, 0xB172_17F7_D1CF_79AC);
    for exponent in 0..128 {
        assert_eq!(fixed_log::ln(1 << exponent, 0), i128::from(exponent) * i128::from(fixed_log::LN_2));
    }
    for edge in 128..256u64 {
        for m in [edge << 56, (edge << 56) + 1, edge << 56 | ((1 << 56) - 1), (edge << 56) + (1 << 55)] {
            let error = (i128::from(fixed_log::ln_mantissa(m)) << 56) - oracle::ln(m.into(), 63);
            assert!(error.abs() * 10 < 36 << 56, "mantissa {m:#x} is off by {}", error as f64 * 2f64.powi(-56));
        }
    }
}

#[test]
#[should_panic(expected = "the logarithm of zero")]
fn zero_has_no_logarithm() {
    let _ = fixed_log::ln(0, 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn random_lanes_are_correctly_rounded(lane: u32) {
        check_lane(lane);
    }

    #[test]
    fn the_rounded_noise_agrees_with_floating_point(lane: u32) {
        let v = (f64::from(lane) + 0.5) / 4_294_967_296.0;
        let expected = -(-(-v).ln_1p()).ln();
        prop_assert!((f64::from(gumbel::from_lane(lane)) - expected).abs() <= expected.abs() * 2f64.powi(-24) + 1e-15);
    }

    #[test]
    fn logarithms_keep_their_stated_error(m in 1u64 << 63..=u64::MAX, x: u128, shift in 0u32..128) {
        let error = (i128::from(fixed_log::ln_mantissa(m)) << 56) - oracle::ln(m.into(), 63);
        prop_assert!(error.abs() * 10 < 36 << 56);
        let x = (x >> shift).max(1);
        let exponent = 127 - i128::from(x.leading_zeros());
        // 128 * ln(2) with 120 fraction bits would overflow: compare the part below the exponent.
        let ours = fixed_log::ln(x, 0) - exponent * i128::from(fixed_log::LN_2);
        let error = (ours << 56) - oracle::ln(x, exponent as u32);
        prop_assert!(error.abs() * 10 < 56 << 56);
    }

    #[test]
    fn noise_is_lane_by_lane_the_block(seed: u64, position: u32, token_id: u32, child: u32) {
        let block = gumbel::noise4(seed, position, token_id >> 2, Domain::TargetDraw, child);
        let one = gumbel::noise(seed, position, token_id, Domain::TargetDraw, child);
        prop_assert_eq!(one, block[token_id as usize & 3]);
    }
}

/// Gumbel-max must draw each token with its probability: a chi-square test over 200,000 positions.
#[test]
fn the_largest_noisy_logit_has_the_softmax_distribution() {
    let probabilities: [f64; 8] = [0.4, 0.25, 0.15, 0.1, 0.05, 0.03, 0.0195, 0.0005];
    let logits = probabilities.map(|p| p.ln() as f32);
    let positions = 200_000;
    let mut counts = [0u32; 8];
    for position in 0..positions {
        let noise = [0, 1].map(|block| gumbel::noise4(2026, position, block, Domain::TargetDraw, 0));
        let score = |i: usize| logits[i] + noise[i / 4][i % 4];
        counts[(0..8).max_by(|&a, &b| score(a).total_cmp(&score(b))).unwrap()] += 1;
    }
    let expected = probabilities.map(|p| p * f64::from(positions));
    let chi_square: f64 = counts.iter().zip(expected).map(|(&n, e)| (f64::from(n) - e).powi(2) / e).sum();
    // The 99.9 % point of chi-square with 7 degrees of freedom.
    assert!(chi_square < 24.32, "chi-square {chi_square}: {counts:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn weights_keep_their_stated_error(bits in 0u32..=0x4200_0000) {
        let x = f32::from_bits(bits);
        let cut = (f64::from(x) * 2f64.powi(27)).floor() / 2f64.powi(27);
        let exact = (-cut).exp() * 2f64.powi(46);
        let (weight, bound) = (fixed_exp::weight(x) as f64, exact * 2f64.powi(-28));
        prop_assert!(weight <= exact + bound && weight >= exact - bound - 1.0, "{} for {}", weight, exact);
    }

    #[test]
    fn weights_never_rise(a in 0u32..0x4201_0000, step in 0u32..1 << 20) {
        let [a, b] = [a, a + step].map(|bits| fixed_exp::weight(f32::from_bits(bits)));
        prop_assert!(a >= b);
    }

    /// `top_p` is `mantissa * 2^-shift`.
    #[test]
    fn the_needed_mass_is_the_exact_product_rounded_up(total in 1u64..=1 << 63, bits in 1u32..0x3F80_0000) {
        let top_p = f32::from_bits(bits);
        let needed = sampling::mass_needed(total, top_p);
        // needed - 1 < total * top_p <= needed, with both sides scaled to integers.
        let (mut mantissa, mut shift) = (f64::from(top_p), 0);
        while mantissa.fract() != 0.0 {
            mantissa *= 2.0;
            shift += 1;
        }
        let product = u128::from(total) * mantissa as u128;
        prop_assert!(needed >= 1 && needed <= total);
        if shift < 64 {
            prop_assert!(u128::from(needed) << shift >= product && u128::from(needed - 1) << shift < product);
        } else {
            prop_assert_eq!(needed, (product >> 64 >> (shift - 64)) as u64 + 1);
        }
    }

    /// Of ties, too: exactly k stay, fewer only where there are fewer.
    #[test]
    fn top_k_keeps_exactly_k(seed: u64, values in 1u32..50, len in 1usize..200, k in 1u32..250) {
        let lane = |v: usize| gumbel::lanes(seed, 0, v as u32, Domain::AcceptCoin, 0)[0];
        let logits: Vec<f32> = (0..len).map(|v| (lane(v) % values) as f32).collect();
        let draw = Draw { top_k: k, ..Draw::unfiltered(1.0, seed, 0) };
        let mut order = vec![0; len];
        let kept = draw.survivors(&logits, &mut order).to_vec();
        prop_assert_eq!(kept.len(), len.min(k as usize));
        let worst = *kept.last().unwrap();
        for v in (0..len as u32).filter(|v| !kept.contains(v)) {
            let [a, b] = [v, worst].map(|v| logits[v as usize]);
            prop_assert!(a < b || (a == b && v > worst));
        }
    }

    #[test]
    fn top_p_keeps_the_shortest_beginning_with_its_share(seed: u64, len in 1usize..100, top_p in 0.01f32..0.999) {
        let logits: Vec<f32> = (0..len as u32).map(|v| gumbel::noise(seed, 1, v, Domain::AcceptCoin, 0) * 2.0).collect();
        let draw = Draw { top_p, ..Draw::unfiltered(1.0, seed, 0) };
        let mut order = vec![0; len];
        let kept = draw.survivors(&logits, &mut order).len();
        let share = |count: usize| order[..count].iter().map(|&v| f64::from(logits[v as usize]).exp()).sum::<f64>();
        let (all, slack) = (share(len), 1e-6);
        prop_assert!(share(kept) / all > f64::from(top_p) - slack);
        prop_assert!(kept == 1 || share(kept - 1) / all < f64::from(top_p) + slack);
    }
}

#[test]
fn weights_of_the_ends() {
    assert_eq!(fixed_exp::weight(0.0), 1 << 46);
    assert_eq!([32.0, f32::MAX, f32::INFINITY].map(fixed_exp::weight), [0; 3]);
    assert_eq!([-0.0, -1.0, f32::NAN].map(fixed_exp::weight), [1 << 46; 3]);
}

#[test]
fn rows_without_a_token_and_rows_that_overflow() {
    let draw = Draw::unfiltered(1.0, 1, 0);
    for bad in [[f32::NAN, 1.0], [1.0, f32::INFINITY], [f32::NEG_INFINITY; 2]] {
        assert_eq!(draw.token(&bad, &mut [0; 2]), None);
    }
    assert_eq!(draw.token(&[], &mut []), None);
    // Every s is -infinity, and still no token that was banned is drawn.
    let low = [f32::NEG_INFINITY, -1e30, -2e30];
    let draw = Draw { top_p: 0.5, ..Draw::unfiltered(1e30, 1, 0) };
    assert_eq!(draw.survivors(&low, &mut [0; 3]), [1]);
    assert_eq!(draw.token(&low, &mut [0; 3]), Some(1));
    // Two of infinity weigh the same, the finite one nothing.
    assert_eq!(draw.survivors(&[1e30, 1.0, 2e30], &mut [0; 3]), [0]);
}

#[test]
#[should_panic(expected = "top_p over 131073 tokens")]
fn the_sum_of_weights_is_bounded() {
    let vocabulary = sampling::TOP_P_VOCABULARY + 1;
    let draw = Draw { top_p: 0.5, ..Draw::unfiltered(1.0, 0, 0) };
    let _ = draw.token(&vec![0.0; vocabulary], &mut vec![0; vocabulary]);
}
