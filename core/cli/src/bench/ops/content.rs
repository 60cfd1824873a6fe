//! Random bytes of every format, fast: a block of a few megabytes, which the device repeats.

use deepinfer_ops::{CacheFormat, Format};
use deepinfer_parity::SplitMix64;

use super::case::{Content, Spec};

/// About the bytes of a block. What lies beyond is the block again, which no op can tell from other numbers: the rows of
/// a tensor begin at other places of it.
const BLOCK: usize = 1 << 22;
/// What moves the rows of the next block against those of this one.
const SHIFT: usize = 17 * 256;
/// UE8M0 of 2^-8 to 2^-1.
const POWERS: std::ops::Range<usize> = 119..127;
/// E4M3 of 2^-3 to almost 2.
const SMALL_SCALES: std::ops::Range<usize> = 0x20..0x40;

/// Codes and scales of a tensor, or their beginning.
pub(super) fn blocks(spec: &Spec, rng: &mut SplitMix64) -> (Vec<u8>, Vec<u8>) {
    let (codes, scales) = spec.bytes();
    let length = |bytes: usize| bytes.min(BLOCK + SHIFT);
    let block = match &spec.content {
        Content::Integers(of) => integers(spec.format, spec.shape.iter().product(), of, rng),
        Content::Entries(format, dim, entries) => pages(*format, *dim, *entries, codes, rng),
        Content::Random(deviation) => match spec.format {
            Format::F32 | Format::Bf16 => floats(spec.format, length(codes), &mut || normal(rng) * deviation),
            Format::Fp8Row32 | Format::Fp8Tile32 => elements(length(codes), rng),
            _ => words(length(codes), rng),
        },
        Content::Between(least, most) => {
            floats(spec.format, length(codes), &mut || least + (most - least) * rng.unit() as f32)
        }
    };
    let of_scales = if spec.format == Format::Fp4Row16 { SMALL_SCALES } else { POWERS };
    (block, one_of(of_scales, length(scales), rng))
}

/// Integers of a tensor, which are never repeated.
pub(super) fn integers(
    format: Format,
    count: usize,
    of: &dyn Fn(&mut SplitMix64, usize) -> i64,
    rng: &mut SplitMix64,
) -> Vec<u8> {
    let values = (0..count).map(|place| of(rng, place));
    match format {
        Format::I64 => values.flat_map(i64::to_le_bytes).collect(),
        Format::U8 => values.map(|value| value as u8).collect(),
        _ => values.flat_map(|value| (value as i32).to_le_bytes()).collect(),
    }
}

/// About normal: the sum of four uniform numbers.
fn normal(rng: &mut SplitMix64) -> f32 {
    let word = rng.next();
    let sum: u64 = (0..4).map(|part| (word >> (16 * part)) & 0xFFFF).sum();
    // Four uniform numbers of width 65536 have a deviation of 65536 / sqrt(3).
    (sum as f32 - 131_070.0) / 37_837.0
}

fn floats(format: Format, bytes: usize, next: &mut dyn FnMut() -> f32) -> Vec<u8> {
    let mut out = vec![0; bytes];
    match format {
        Format::F32 => out.chunks_exact_mut(4).for_each(|element| element.copy_from_slice(&next().to_le_bytes())),
        // The upper half of an F32: rounding does not matter here.
        _ => out.chunks_exact_mut(2).for_each(|element| element.copy_from_slice(&next().to_le_bytes()[2..])),
    }
    out
}

fn words(bytes: usize, rng: &mut SplitMix64) -> Vec<u8> {
    let mut out = vec![0; bytes.next_multiple_of(8)];
    out.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&rng.next().to_le_bytes()));
    out.truncate(bytes);
    out
}

/// E4M3 without NaN.
fn elements(bytes: usize, rng: &mut SplitMix64) -> Vec<u8> {
    let mut out = words(bytes, rng);
    out.iter_mut().filter(|code| **code & 0x7F == 0x7F).for_each(|code| *code ^= 0x10);
    out
}

fn one_of(range: std::ops::Range<usize>, bytes: usize, rng: &mut SplitMix64) -> Vec<u8> {
    let mut out = words(bytes, rng);
    out.iter_mut().for_each(|byte| *byte = (range.start + usize::from(*byte) % range.len()) as u8);
    out
}

/// Whole pages, up to about a block.
fn pages(format: CacheFormat, dim: usize, entries: usize, bytes: usize, rng: &mut SplitMix64) -> Vec<u8> {
    let page = entries * format.entry_bytes(dim);
    let count = (bytes / page).min(BLOCK.div_ceil(page));
    let mut out = match format {
        CacheFormat::F32 => floats(Format::F32, count * page, &mut || normal(rng)),
        CacheFormat::Bf16 => floats(Format::Bf16, count * page, &mut || normal(rng)),
        CacheFormat::Fp8 => elements(count * page, rng),
        CacheFormat::Fp4Row16 | CacheFormat::Fp4Row32 => words(count * page, rng),
    };
    let scales = format.scale_bytes(dim);
    let range = if format == CacheFormat::Fp4Row16 { SMALL_SCALES } else { POWERS };
    for page in out.chunks_exact_mut(page) {
        for entry in 0..entries {
            let (_, at) = format.offsets(dim, entries, entry);
            page[at..at + scales].copy_from_slice(&one_of(range.clone(), scales, rng));
        }
    }
    out
}
