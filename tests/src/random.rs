//! Random numbers and cache entries, as a model could have written them.

use deepinfer_ops::CacheFormat;
use deepinfer_parity::SplitMix64;

/// Numbers that follow from a seed.
pub struct Random(SplitMix64);

impl Random {
    /// The numbers of this seed.
    pub fn new(seed: u64) -> Self {
        Self(SplitMix64(seed))
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next()
    }

    /// About normal: the sum of four uniform numbers, of variance 1.
    pub fn normal(&mut self) -> f32 {
        let bits = self.bits();
        let sum: u64 = (0..4).map(|i| bits >> (16 * i) & 0xFFFF).sum();
        (sum as f32 / 65536.0 - 2.0) * 3_f32.sqrt()
    }

    /// Fills `out` with random bytes, each as `map` gives it.
    pub fn bytes(&mut self, out: &mut [u8], mut map: impl FnMut(u8) -> u8) {
        for piece in out.chunks_mut(8) {
            let bits = self.bits().to_le_bytes();
            piece.iter_mut().zip(bits).for_each(|(byte, random)| *byte = map(random));
        }
    }
}

/// E4M3 codes that are numbers.
pub fn number(byte: u8) -> u8 {
    if byte & 0x7F == 0x7F { byte ^ 1 } else { byte }
}

/// Random entries of a cache, `count` of them.
pub fn entries(format: CacheFormat, count: usize, dim: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes = vec![0; count * format.entry_bytes(dim)];
    let scale = |byte: u8, middle: u8| middle + byte % 3 - 1;
    match format {
        CacheFormat::F32 => {
            bytes.chunks_exact_mut(4).for_each(|out| out.copy_from_slice(&random.normal().to_le_bytes()))
        }
        CacheFormat::Bf16 => {
            bytes.chunks_exact_mut(2).for_each(|out| out.copy_from_slice(&random.normal().to_le_bytes()[2..]));
        }
        CacheFormat::Fp8 => {
            for entry in bytes.chunks_exact_mut(format.entry_bytes(dim)) {
                let (codes, scales) = entry.split_at_mut(dim);
                random.bytes(codes, number);
                random.bytes(scales, |byte| scale(byte, 127 - 7));
            }
        }
        CacheFormat::Fp4Row16 => {
            for entry in bytes.chunks_exact_mut(format.entry_bytes(dim)) {
                let (codes, scales) = entry.split_at_mut(dim / 2);
                random.bytes(codes, |byte| byte);
                // E4M3 numbers between 1/4 and 1.
                random.bytes(scales, |byte| 0x28 + byte % 16);
            }
        }
        // All codes of a page before all scales.
        CacheFormat::Fp4Row32 => {
            let (codes, scales) = bytes.split_at_mut(count * dim / 2);
            random.bytes(codes, |byte| byte);
            random.bytes(scales, |byte| scale(byte, 127 - 2));
        }
    }
    bytes
}
