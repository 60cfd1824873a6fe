//! Constants of the Engram hash and the hash itself (model specification, Engram).
//!
//! Each Engram layer looks every token up by the n-grams that end at it. An n-gram is hashed by multiplying its
//! compressed ids with fixed odd 64-bit numbers and joining the products by exclusive or; the hash modulo a prime picks
//! a row in the bucket range of each (n-gram size, head). Multipliers and primes are not weights: they follow from the
//! configuration, and [`EngramConstants::derive`] reproduces the released ones. A checkpoint may also carry them as
//! `engram_constants.json`.

#![forbid(unsafe_code)]

use serde::Deserialize;
use thiserror::Error;

use crate::files::without_byte_order_mark;
use crate::numpy_rng::NumpyGenerator;

/// Compressed id of a position that holds no text (an image): no n-gram reaches across it.
pub const DEAD: i64 = -1;

/// The seed of a layer's multipliers is this number times the layer index.
const SEED_PER_LAYER: u64 = 10007;

/// Below this many compressed ids numpy draws the multipliers from whole 64-bit words, the only case replayed here.
const COMPRESSED_VOCAB_LIMIT: usize = 1 << 30;

/// Bucket ranges from here on would not fit signed 32-bit row ids even for a single head.
const BUCKET_FLOOR_LIMIT: usize = 1 << 31;

/// Bucket counts accepted from a file: their sums stay far inside 64 bits.
const BUCKET_COUNTS: std::ops::RangeInclusive<i64> = 1..=u32::MAX as i64;

/// Layer indices from here on are no model's; below, the seed of the multipliers fits 64 bits.
const LAYER_LIMIT: usize = 1 << 32;

/// The configuration values that determine [`EngramConstants`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngramParams {
    /// Layers that have an Engram table (`engram_layer_ids`), in ascending order.
    pub layer_ids: Vec<usize>,
    /// Longest n-gram (`engram_max_ngram_size`), at least 2.
    pub max_ngram_size: usize,
    /// Smallest allowed bucket count of one head (`engram_vocab_size`).
    pub vocab_size: usize,
    /// Heads, that is, independent buckets per n-gram size (`engram_n_heads`), at least 1.
    pub n_heads: usize,
    /// Number of compressed ids (`engram_compressed_vocab_size`).
    pub compressed_vocab_size: usize,
    /// Compressed id of `engram_pad_token_id`: it stands for positions before the text and at or behind a dead one.
    pub pad_compressed_id: u32,
}

/// The fixed numbers of the Engram hash.
///
/// Invariant, kept by both constructors: every layer has as many multipliers as the longest n-gram has ids, one prime
/// per (n-gram size from 2, head), and offsets that are the running sums of its primes; all values are non-negative.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct EngramConstants {
    /// Layers that have an Engram table. The other fields are indexed by the place in this list, the *slot*.
    pub layer_ids: Vec<usize>,
    /// `[slot][lookback]`: factor of the compressed id `lookback` positions back.
    pub multipliers: Vec<Vec<i64>>,
    /// `[slot][n-gram size - 2][head]`: bucket count.
    pub primes: Vec<Vec<Vec<i64>>>,
    /// `[slot][(n-gram size - 2) * heads + head]`: first table row of the bucket range.
    pub offsets: Vec<Vec<i64>>,
    /// Compressed id that stands for a position without text.
    pub pad: i64,
}

/// Why Engram constants cannot be derived, read or accepted.
#[derive(Debug, Error)]
pub enum EngramConstantsError {
    /// The configuration asks for something that the hash does not define.
    #[error("cannot derive the Engram constants: {key} is {value}, expected {expected}; correct config.json")]
    Params {
        /// Configuration key.
        key: &'static str,
        /// Its value.
        value: usize,
        /// The values that are allowed.
        expected: String,
    },
    /// The file is not JSON, or lacks a key, or a value has another type.
    #[error("engram_constants.json cannot be read: {0}; delete the file to have the constants derived")]
    Json(serde_json::Error),
    /// The lists of the file do not fit together.
    #[error(
        "engram_constants.json: {place} {found}, expected {expected}; delete the file to have the constants derived"
    )]
    Structure {
        /// Path of the value, such as `offsets[0][3]`.
        place: String,
        /// What is there.
        found: String,
        /// What fits the other values.
        expected: String,
    },
    /// The file disagrees with what the configuration determines.
    #[error(
        "engram_constants.json: {place} is {found}, but config.json and the tokenizer determine {derived}; \
         delete the file to use the derived constants, or correct the engram_* keys"
    )]
    Mismatch {
        /// Path of the first differing value, such as `multipliers[0][2]`.
        place: String,
        /// Value of the file.
        found: String,
        /// Derived value.
        derived: String,
    },
}

impl EngramConstants {
    /// Derives the constants from the configuration.
    ///
    /// # Errors
    /// [`EngramConstantsError::Params`] when a value is outside the range stated at its field, or when
    /// `compressed_vocab_size` is not in `1..2^30`, `vocab_size` not below 2^31 or the pad id not a compressed id.
    pub fn derive(params: &EngramParams) -> Result<Self, EngramConstantsError> {
        params.validate()?;
        let primes = draw_primes(params);
        Ok(Self {
            layer_ids: params.layer_ids.clone(),
            multipliers: params.layer_ids.iter().map(|&layer| draw_multipliers(layer, params)).collect(),
            offsets: primes.iter().map(|layer| running_sums(layer)).collect(),
            primes,
            pad: i64::from(params.pad_compressed_id),
        })
    }

    /// Reads `engram_constants.json`. Keys other than the fields of this struct are ignored.
    ///
    /// # Errors
    /// [`EngramConstantsError::Json`] when it is no such document and [`EngramConstantsError::Structure`] when its
    /// lists do not fit together.
    pub fn from_json(json: &[u8]) -> Result<Self, EngramConstantsError> {
        let constants: Self =
            serde_json::from_slice(without_byte_order_mark(json)).map_err(EngramConstantsError::Json)?;
        constants.validate()?;
        Ok(constants)
    }

    /// Compares constants that were read with derived ones.
    ///
    /// # Errors
    /// [`EngramConstantsError::Mismatch`] naming the first value that differs.
    pub fn check_against(&self, derived: &Self) -> Result<(), EngramConstantsError> {
        let mismatch = |place: &str, found: String, derived: String| {
            Err(EngramConstantsError::Mismatch { place: place.to_owned(), found, derived })
        };
        if self.layer_ids != derived.layer_ids {
            return mismatch("layer_ids", format!("{:?}", self.layer_ids), format!("{:?}", derived.layer_ids));
        }
        if self.lookbacks() != derived.lookbacks() {
            let describe = |c: &Self| format!("{} per layer", c.lookbacks());
            return mismatch("the number of multipliers", describe(self), describe(derived));
        }
        if self.heads() != derived.heads() {
            let describe = |c: &Self| format!("{} per n-gram size", c.heads());
            return mismatch("the number of primes", describe(self), describe(derived));
        }
        for ((place, found), (_, expected)) in self.entries().zip(derived.entries()) {
            if found != expected {
                return mismatch(&place, found.to_string(), expected.to_string());
            }
        }
        Ok(())
    }

    /// Number of ids in the longest n-gram.
    pub fn lookbacks(&self) -> usize {
        self.multipliers.first().map_or(0, Vec::len)
    }

    /// Number of heads per n-gram size.
    pub fn heads(&self) -> usize {
        self.primes.first().and_then(|layer| layer.first()).map_or(0, Vec::len)
    }

    /// Rows that a token reads from one layer's table: n-gram sizes times heads.
    pub fn columns(&self) -> usize {
        self.lookbacks().saturating_sub(1) * self.heads()
    }

    /// Number of rows of the table of each slot, which `engram_num_embeddings` states in the configuration.
    pub fn table_rows(&self) -> Vec<i64> {
        self.primes.iter().map(|layer| layer.iter().flatten().sum()).collect()
    }

    /// Table rows of a run of tokens in the layer at `slot`: `[position][column]`, columns with the n-gram size
    /// outermost, each n-gram ending at its position.
    ///
    /// `ids` and `history` are compressed ids or [`DEAD`]; `history` holds the ids before the run, newest last, and may
    /// be shorter or longer than the longest n-gram needs. This is the plain statement of the hash, for tests and hosts;
    /// a forward pass uses the backend's op.
    ///
    /// # Panics
    /// When `slot` is not below the number of layers.
    pub fn hash_rows(&self, slot: usize, history: &[i64], ids: &[i64]) -> Vec<Vec<i64>> {
        let (multipliers, primes, offsets) = (&self.multipliers[slot], &self.primes[slot], &self.offsets[slot]);
        let id_before = |position: usize, lookback: usize| match position.checked_sub(lookback) {
            Some(index) => ids[index],
            None => history.len().checked_sub(lookback - position).map_or(DEAD, |index| history[index]),
        };
        let rows_at = |position: usize| {
            let mut rows = Vec::with_capacity(offsets.len());
            let mut hash = 0i64;
            let mut reaches_dead = false;
            for (lookback, multiplier) in multipliers.iter().enumerate() {
                let id = id_before(position, lookback);
                reaches_dead |= id == DEAD;
                hash ^= multiplier.wrapping_mul(if reaches_dead { self.pad } else { id });
                if lookback > 0 {
                    let buckets = primes[lookback - 1].iter().zip(&offsets[rows.len()..]);
                    rows.extend(buckets.map(|(prime, offset)| hash.rem_euclid(*prime) + offset));
                }
            }
            rows
        };
        (0..ids.len()).map(rows_at).collect()
    }

    /// The history to keep after a run of tokens: the last `lookbacks - 1` compressed ids, newest last, filled up with
    /// [`DEAD`] at the start of the text.
    pub fn next_history(&self, history: &[i64], ids: &[i64]) -> Vec<i64> {
        let kept = self.lookbacks().saturating_sub(1);
        let padding = std::iter::repeat_n(DEAD, kept);
        let all: Vec<i64> = padding.chain(history.iter().copied()).chain(ids.iter().copied()).collect();
        all[all.len() - kept..].to_vec()
    }

    fn validate(&self) -> Result<(), EngramConstantsError> {
        let layers = self.layer_ids.len();
        expect_length("multipliers", self.multipliers.len(), layers)?;
        expect_length("primes", self.primes.len(), layers)?;
        expect_length("offsets", self.offsets.len(), layers)?;
        if layers > 0 && self.lookbacks() < 2 {
            return structure("multipliers[0]".to_owned(), format!("has {} values", self.lookbacks()), "at least 2");
        }
        for slot in 0..layers {
            expect_length(&format!("multipliers[{slot}]"), self.multipliers[slot].len(), self.lookbacks())?;
            expect_length(&format!("primes[{slot}]"), self.primes[slot].len(), self.lookbacks() - 1)?;
            for (size, heads) in self.primes[slot].iter().enumerate() {
                expect_length(&format!("primes[{slot}][{size}]"), heads.len(), self.heads())?;
                if let Some(head) = heads.iter().position(|prime| !BUCKET_COUNTS.contains(prime)) {
                    let place = format!("primes[{slot}][{size}][{head}]");
                    let expected = format!("a bucket count from {} to {}", BUCKET_COUNTS.start(), BUCKET_COUNTS.end());
                    return structure(place, format!("is {}", heads[head]), &expected);
                }
            }
            expect_length(&format!("offsets[{slot}]"), self.offsets[slot].len(), self.columns())?;
            let sums = running_sums(&self.primes[slot]);
            for (column, (found, sum)) in self.offsets[slot].iter().zip(sums).enumerate() {
                if *found != sum {
                    let expected = format!("{sum}, the sum of the primes before it");
                    return structure(format!("offsets[{slot}][{column}]"), format!("is {found}"), &expected);
                }
            }
        }
        match self.entries().find(|(_, value)| *value < 0) {
            Some((place, value)) => structure(place, format!("is {value}"), "a value that is not negative"),
            None => Ok(()),
        }
    }

    /// Every number with its path, except the offsets, which follow from the primes.
    fn entries(&self) -> impl Iterator<Item = (String, i64)> + '_ {
        let multipliers = self.multipliers.iter().enumerate().flat_map(|(slot, values)| {
            values.iter().enumerate().map(move |(i, &value)| (format!("multipliers[{slot}][{i}]"), value))
        });
        let primes = self.primes.iter().enumerate().flat_map(|(slot, sizes)| {
            sizes.iter().enumerate().flat_map(move |(size, heads)| {
                let place = move |head| format!("primes[{slot}][{size}][{head}]");
                heads.iter().enumerate().map(move |(head, &value)| (place(head), value))
            })
        });
        multipliers.chain(primes).chain(std::iter::once(("pad".to_owned(), self.pad)))
    }
}

impl EngramParams {
    fn validate(&self) -> Result<(), EngramConstantsError> {
        let require = |holds: bool, key, value, expected: String| {
            if holds { Ok(()) } else { Err(EngramConstantsError::Params { key, value, expected }) }
        };
        let (size, pad) = (self.compressed_vocab_size, self.pad_compressed_id as usize);
        for &layer in &self.layer_ids {
            require(layer < LAYER_LIMIT, "a layer of engram_layer_ids", layer, format!("less than {LAYER_LIMIT}"))?;
        }
        require(self.max_ngram_size >= 2, "engram_max_ngram_size", self.max_ngram_size, "at least 2".to_owned())?;
        require(self.n_heads >= 1, "engram_n_heads", self.n_heads, "at least 1".to_owned())?;
        require(
            (1..COMPRESSED_VOCAB_LIMIT).contains(&size),
            "engram_compressed_vocab_size",
            size,
            format!("1 to {}", COMPRESSED_VOCAB_LIMIT - 1),
        )?;
        require(
            self.vocab_size < BUCKET_FLOOR_LIMIT,
            "engram_vocab_size",
            self.vocab_size,
            format!("less than {BUCKET_FLOOR_LIMIT}"),
        )?;
        require(pad < size, "the compressed id of engram_pad_token_id", pad, format!("less than {size}"))
    }
}

/// `[lookback]` odd multipliers, small enough that the product with any compressed id fits a signed 64-bit integer.
fn draw_multipliers(layer: usize, params: &EngramParams) -> Vec<i64> {
    let bound = i64::MAX as u64 / params.compressed_vocab_size as u64 / 2;
    let mut generator = NumpyGenerator::default_rng(SEED_PER_LAYER * layer as u64);
    (0..params.max_ngram_size).map(|_| generator.integer_below(bound) as i64 * 2 + 1).collect()
}

/// `[slot][n-gram size - 2][head]`: the primes from the bucket floor upwards, none used twice.
fn draw_primes(params: &EngramParams) -> Vec<Vec<Vec<i64>>> {
    let mut primes = (params.vocab_size as i64..).filter(|&n| is_prime(n));
    let mut heads = || primes.by_ref().take(params.n_heads).collect();
    let mut sizes = || (2..=params.max_ngram_size).map(|_| heads()).collect();
    params.layer_ids.iter().map(|_| sizes()).collect()
}

/// Trial division: the released model needs 48 primes near 16 million, 4000 divisions each at most.
fn is_prime(n: i64) -> bool {
    n >= 2 && (2..).take_while(|d| d * d <= n).all(|d| n % d != 0)
}

/// Exclusive running sums of one layer's bucket counts, which place the bucket ranges end to end in its table.
fn running_sums(primes: &[Vec<i64>]) -> Vec<i64> {
    let mut sum = 0;
    let mut add = |count: &i64| {
        let before = sum;
        sum += count;
        before
    };
    primes.iter().flatten().map(&mut add).collect()
}

fn expect_length(place: &str, found: usize, expected: usize) -> Result<(), EngramConstantsError> {
    if found == expected {
        return Ok(());
    }
    structure(place.to_owned(), format!("has {found} values"), &expected.to_string())
}

fn structure<T>(place: String, found: String, expected: &str) -> Result<T, EngramConstantsError> {
    Err(EngramConstantsError::Structure { place, found, expected: expected.to_owned() })
}
