//! `engram_hash`: the rows of the n-gram tables that each token looks up, in 64-bit integers.

use deepinfer_plugin_api::generated::EngramHashArgs;
use deepinfer_plugin_api::sdk::tensor::{In, Rows};
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::arguments::index;
use crate::requests::Requests;

deepinfer_plugin_api::kernel!(EngramHash, engram_hash);

const OP: &str = "engram_hash";
/// Compressed id of a position that no n-gram may cross.
const DEAD: i32 = -1;

fn engram_hash(_: &Cx<'_>, mut a: EngramHashArgs<'_>) -> Result<(), Fault> {
    let back = check_sizes(&a)?;
    let tables = Tables::new(&a)?;
    let requests = Requests::new(OP, &a.request_start, &a.state_slot, a.dims.t, a.dims.s)?;
    let compressed = compress(&a)?;

    let mut history = a.history.rows_mut::<i32>()?;
    let mut rows = a.rows.rows_mut::<i32>()?;
    let (mut ids, mut lookback) = (Vec::new(), vec![0; a.dims.n]);
    for q in 0..requests.count() {
        let history = &mut *history[requests.slot(q)];
        ids.clear();
        ids.extend_from_slice(history);
        ids.extend_from_slice(&compressed[requests.rows(q)]);
        for (i, t) in requests.rows(q).enumerate() {
            fill_lookback(&mut lookback, &ids[i..=i + back], a.pad);
            for layer in 0..a.dims.l {
                tables.hash(layer, &lookback, rows[layer * a.dims.t + t]);
            }
        }
        history.copy_from_slice(&ids[ids.len() - back..]);
    }
    Ok(())
}

/// N - 1, the ids that a request keeps.
fn check_sizes(a: &EngramHashArgs<'_>) -> Result<usize, Fault> {
    let (n, j) = (a.dims.n, a.dims.j);
    if n < 2 || !j.is_multiple_of(n - 1) {
        return Err(Fault::invalid(format!(
            "{OP}: multipliers has {n} columns and primes {j}, but N must be at least 2 and J a multiple of N - 1"
        )));
    }
    Ok(n - 1)
}

/// Compressed ids of the tokens of this call.
fn compress(a: &EngramHashArgs<'_>) -> Result<Vec<i32>, Fault> {
    let (token_ids, token_map) = (a.token_ids.slice::<i32>()?, a.token_map.slice::<i32>()?);
    let image_mask = a.image_mask.map(|mask| mask.slice::<u8>()).transpose()?;
    let compressed = |(t, &token): (usize, &i32)| match image_mask {
        Some(mask) if mask[t] != 0 => Ok(DEAD),
        _ => Ok(token_map[index(OP, "token_ids", &[t], token, a.dims.v)?]),
    };
    token_ids.iter().enumerate().map(compressed).collect()
}

/// Ids by distance from the newest, which is the last of `ids`: from a dead one on, all are `pad`.
fn fill_lookback(lookback: &mut [i64], ids: &[i32], pad: i32) {
    let mut crossed = false;
    for (out, &id) in lookback.iter_mut().zip(ids.iter().rev()) {
        crossed |= id < 0;
        *out = i64::from(if crossed { pad } else { id });
    }
}

/// The hash functions of all layers.
struct Tables<'a> {
    multipliers: Rows<'a, i64>,
    primes: Rows<'a, i64>,
    offsets: Rows<'a, i64>,
}

impl<'a> Tables<'a> {
    /// Checks that every bucket is a row number.
    fn new(a: &EngramHashArgs<'a>) -> Result<Self, Fault> {
        let rows = |tensor: &In<'a>| tensor.rows::<i64>();
        let tables = Self { multipliers: rows(&a.multipliers)?, primes: rows(&a.primes)?, offsets: rows(&a.offsets)? };
        for layer in 0..a.dims.l {
            for (j, (&prime, &offset)) in tables.primes.row(layer).iter().zip(tables.offsets.row(layer)).enumerate() {
                let fits = prime >= 1 && offset >= 0 && offset.checked_add(prime).is_some_and(|end| end <= 1 << 31);
                if !fits {
                    return Err(Fault::invalid(format!(
                        "{OP}: primes[{layer}, {j}] is {prime} and offsets[{layer}, {j}] {offset}, but the table must \
                         have a row and end at or below row 2^31"
                    )));
                }
            }
        }
        Ok(tables)
    }

    /// Table rows of one token in one layer. Products wrap as two's complement ones do, and the remainder is never
    /// negative.
    fn hash(&self, layer: usize, lookback: &[i64], out: &mut [i32]) {
        let multipliers = self.multipliers.row(layer);
        let heads = out.len() / (lookback.len() - 1);
        let mut hash = lookback[0].wrapping_mul(multipliers[0]);
        let columns = self.primes.row(layer).iter().zip(self.offsets.row(layer)).zip(out);
        let mut columns = columns.map(|((prime, offset), out)| (prime, offset, out));
        for (id, multiplier) in lookback.iter().zip(multipliers).skip(1) {
            hash ^= id.wrapping_mul(*multiplier);
            for (prime, offset, out) in columns.by_ref().take(heads) {
                *out = (hash.rem_euclid(*prime) + offset) as i32;
            }
        }
    }
}
