//! The tables of `SAMPLING.md` and `vectors.json` against the code.
//!
//! `vectors.json` is made by this test, with `DEEPINFER_WRITE_VECTORS=1`, and read by the tests of backends: one array each of
//! noise, weights and whole draws, 64-bit integers and bit patterns as hexadecimal strings.

use std::fmt::Write;
use std::path::Path;

use deepinfer_numerics::philox::philox4x32_10;
use deepinfer_numerics::sampling::Draw;
use deepinfer_numerics::{Domain, fixed_exp, gumbel};

const DOMAINS: [Domain; 4] = [Domain::TargetDraw, Domain::AcceptCoin, Domain::ResidualDraw, Domain::DraftDraw];

/// The logits of the page: `bits` of a multiplicative hash, from -8 to 8.
fn logits(vocabulary: usize, bits: u32) -> Vec<f32> {
    let step = 2f32.powi(4 - bits as i32);
    let hash = |v: u32| v.wrapping_mul(2_654_435_761);
    (0..vocabulary as u32).map(|v| (hash(v) >> (32 - bits)) as f32 * step - 8.0).collect()
}

/// What a draw gives: the number of tokens that the filters leave, the last of them, the token.
fn outcome(vocabulary: usize, bits: u32, draw: &Draw) -> [u32; 3] {
    let (logits, mut order) = (logits(vocabulary, bits), vec![0; vocabulary]);
    let survivors = draw.survivors(&logits, &mut order);
    let (kept, last) = (survivors.len() as u32, *survivors.last().expect("the first token stays"));
    [kept, last, draw.token(&logits, &mut order).expect("a finite logit")]
}

/// Rows of the table of the page that begins with these columns, as numbers.
fn table(first_columns: &str) -> Vec<Vec<u64>> {
    let page = include_str!("../SAMPLING.md");
    let rows = page.lines().skip_while(|line| !line.starts_with(first_columns)).skip(2);
    let cells = |row: &str| row.trim_matches('|').split('|').map(|cell| number(cell.trim())).collect();
    rows.take_while(|line| line.starts_with('|')).map(cells).collect()
}

fn number(cell: &str) -> u64 {
    let digits = cell.trim_matches('`');
    match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).unwrap(),
        None => digits.parse().unwrap(),
    }
}

fn word(cell: u64) -> u32 {
    u32::try_from(cell).unwrap()
}

#[test]
fn the_noise_of_the_page() {
    let rows = table("| seed | position | token id |");
    assert_eq!(rows.len(), 10);
    for row in rows {
        let seed = row[0];
        let [position, token, domain, child, lane, noise] = [1, 2, 3, 4, 5, 6].map(|i| word(row[i]));
        let domain = DOMAINS[domain as usize];
        let lanes = gumbel::lanes(seed, position, token / 4, domain, child);
        assert_eq!(lanes[token as usize % 4], lane, "seed {seed:#x}, token {token}");
        assert_eq!(
            gumbel::noise(seed, position, token, domain, child).to_bits(),
            noise,
            "seed {seed:#x}, token {token}"
        );
    }
}

#[test]
fn the_weights_of_the_page() {
    let rows = table("| x, binary32 bits | weight |");
    assert_eq!(rows.len(), 10);
    for row in rows {
        assert_eq!(fixed_exp::weight(f32::from_bits(word(row[0]))), row[1], "x {:#010x}", row[0]);
    }
}

#[test]
fn the_draws_of_the_page() {
    let rows = table("| V | b |");
    assert_eq!(rows.len(), 10);
    for row in rows {
        let [inverse, min_p_log, top_p] = [2, 6, 8].map(|i| f32::from_bits(word(row[i])));
        let [position, child, top_k] = [4, 5, 7].map(|i| word(row[i]));
        let draw = Draw { inv_temperature: inverse, seed: row[3], position, child, min_p_log, top_k, top_p };
        assert_eq!(outcome(row[0] as usize, word(row[1]), &draw), [9, 10, 11].map(|i| word(row[i])), "{row:?}");
    }
}

/// Arguments of vectors: random words by the number of the vector.
fn words(kind: u32, number: u32) -> [u32; 4] {
    philox4x32_10([number, kind, 0, 0], [0x5EED, 0])
}

fn noise_vectors() -> Vec<String> {
    let edges = [(0, 0, 0, 0), (u64::MAX, u32::MAX, u32::MAX, u32::MAX), (1, 0, 3, 0), (1 << 32, 1, 4, 1)];
    let random = (0..252).map(|number| {
        let ([a, b, position, token], [child, ..]) = (words(0, number), words(1, number));
        (u64::from(a) << 32 | u64::from(b), position, token % 129_280, child % 8)
    });
    let line = |(number, (seed, position, token, child)): (usize, (u64, u32, u32, u32))| {
        let domain = DOMAINS[number % 4];
        let lane = gumbel::lanes(seed, position, token / 4, domain, child)[token as usize % 4];
        let noise = gumbel::noise(seed, position, token, domain, child).to_bits();
        format!(
            r#"{{"seed":"{seed:#018x}","position":{position},"token":{token},"domain":{},"child":{child},"lane":"{lane:#010x}","noise":"{noise:#010x}"}}"#,
            domain as u32
        )
    };
    edges.into_iter().chain(random).enumerate().map(line).collect()
}

fn weight_vectors() -> Vec<String> {
    let edges =
        [0.0, f32::from_bits(1), f32::MIN_POSITIVE, 2f32.powi(-27), 2f32.powi(-28), 1.0, 31.999_998, 32.0, f32::MAX];
    let edges = edges.into_iter().chain([f32::INFINITY, f32::NAN]);
    // Magnitudes from 2^-28 to 64, most of them below 32.
    let random = (0..245).map(|number| {
        let [a, b, ..] = words(2, number);
        f32::from_bits((127 + 5 - a % 34) << 23 | b & 0x7F_FFFF)
    });
    let line = |x: f32| format!(r#"{{"x":"{:#010x}","weight":"{:#014x}"}}"#, x.to_bits(), fixed_exp::weight(x));
    edges.chain(random).map(line).collect()
}

fn draw_vectors() -> Vec<String> {
    let line = |number: u32| {
        let ([a, b, c, d], [e, f, g, _]) = (words(3, number), words(4, number));
        let vocabulary = [1, 5, 33, 1000, 4099][a as usize % 5];
        let bits = [1, 4, 12, 20][b as usize % 4];
        let draw = Draw {
            inv_temperature: [0.0, 1.0, 1.0, 0.5, 1.25, 4.0, 1e-3, 1e38][c as usize % 8],
            seed: u64::from(d) << 32 | u64::from(a),
            position: b >> 8,
            child: f % 3,
            min_p_log: [f32::NEG_INFINITY, f32::NEG_INFINITY, -0.0, -2.0, -9.5][e as usize % 5],
            top_k: [0, 0, 1, 2, 40, 1 << 30][(f >> 8) as usize % 6],
            top_p: [1.0, 1.0, 0.95, 0.9, 0.5, 1e-6, f32::from_bits(1), 1.0 - f32::EPSILON / 2.0][g as usize % 8],
        };
        let [kept, last, token] = outcome(vocabulary, bits, &draw);
        let [inverse, min_p_log, top_p] = [draw.inv_temperature, draw.min_p_log, draw.top_p].map(f32::to_bits);
        format!(
            r#"{{"vocabulary":{vocabulary},"bits":{bits},"inv_temperature":"{inverse:#010x}","seed":"{:#018x}","position":{},"child":{},"min_p_log":"{min_p_log:#010x}","top_k":{},"top_p":"{top_p:#010x}","kept":{kept},"last":{last},"token":{token}}}"#,
            draw.seed, draw.position, draw.child, draw.top_k
        )
    };
    (0..256).map(line).collect()
}

#[test]
fn the_vectors_for_other_backends_are_fresh() {
    let mut text = "{\n".to_owned();
    let parts = [("noise", noise_vectors()), ("weights", weight_vectors()), ("draws", draw_vectors())];
    for (i, (name, lines)) in parts.iter().enumerate() {
        let end = if i + 1 < parts.len() { "," } else { "" };
        writeln!(text, "\"{name}\": [\n{}\n]{end}", lines.join(",\n")).unwrap();
    }
    text.push_str("}\n");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors.json");
    if std::env::var_os("DEEPINFER_WRITE_VECTORS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    let stale = text.lines().zip(written.lines().chain(std::iter::repeat(""))).find(|(a, b)| a != b);
    assert!(text == written, "vectors.json is stale, first at {stale:?}; DEEPINFER_WRITE_VECTORS=1 writes it");
}
