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

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use deepinfer_plugin_api::Format;
    use deepinfer_plugin_api::generated::EngramHash;

    use crate::golden::Golden;
    use crate::testing::{Tensor, call};

    /// The constants of a model of two layers, and the histories of four state slots.
    struct Engram {
        token_map: Vec<i32>,
        multipliers: Vec<i64>,
        primes: Vec<i64>,
        offsets: Vec<i64>,
        pad: i32,
        history: Vec<i32>,
    }

    impl Engram {
        fn golden(file: &Golden) -> Self {
            let token_map = file.small("token_map");
            // The tiny model pads with token 2.
            let pad = token_map[2];
            let constants = |name| file.i64(name);
            let (multipliers, primes) = (constants("multipliers"), constants("primes"));
            Self { token_map, multipliers, primes, offsets: constants("offsets"), pad, history: vec![-1; 12] }
        }

        /// Rows of both layers for the tokens of requests, whose lengths are `lens`, in the state slots `slots`.
        fn run(&mut self, ids: &[i32], mask: Option<&[u8]>, lens: &[i32], slots: &[i32]) -> Result<Vec<i32>, String> {
            let (t, j) = (ids.len(), self.primes.len() / 2);
            let mut start = vec![0];
            start.extend(lens.iter().scan(0, |end, len| {
                *end += len;
                Some(*end)
            }));
            let ints = |values: &[i32]| Tensor::i32(&[values.len()], values);
            let (ids, token_map, start, slots) = (ints(ids), ints(&self.token_map), ints(&start), ints(slots));
            let mask = mask.map(|mask| Tensor::u8(&[t], mask));
            let multipliers = Tensor::i64(&[2, self.multipliers.len() / 2], &self.multipliers);
            let (primes, offsets) = (Tensor::i64(&[2, j], &self.primes), Tensor::i64(&[2, j], &self.offsets));
            let mut history = Tensor::i32(&[4, 3], &self.history);
            let mut rows = Tensor::unwritten(Format::I32, &[2, t, j]);
            let result = call::<EngramHash>(|a| {
                (a.token_ids, a.token_map, a.history) = (ids.input(), token_map.input(), history.output());
                if let Some(mask) = &mask {
                    a.image_mask = mask.input();
                }
                (a.request_start, a.state_slot, a.pad) = (start.input(), slots.input(), self.pad);
                (a.multipliers, a.primes, a.offsets) = (multipliers.input(), primes.input(), offsets.input());
                a.rows = rows.output();
            });
            self.history = history.ints();
            result.map(|()| rows.ints())
        }
    }

    /// `[2 requests, 24 tokens, 2 layers, 6]` of the file as `[2 layers, tokens of range of both requests, 6]`.
    fn by_layer(golden: &[i64], range: Range<usize>) -> Vec<i32> {
        let tokens = || (0..2).flat_map(|q| range.clone().map(move |p| q * 24 + p));
        let row = |layer: usize, token: usize| golden[(token * 2 + layer) * 6..][..6].iter().map(|&row| row as i32);
        (0..2).flat_map(|layer| tokens().flat_map(move |token| row(layer, token))).collect()
    }

    #[test]
    fn golden() {
        let file = Golden::open("engram");
        let (ids, image): (_, Vec<u8>) = (file.small("ids"), file.u8("text_mask").iter().map(|&m| 1 - m).collect());
        let mut engram = Engram::golden(&file);
        assert_eq!(engram.run(&ids, None, &[24, 24], &[3, 1]).unwrap(), by_layer(&file.i64("rows"), 0..24));

        let (rows, history) = (file.i64("rows_masked"), file.small("history_after"));
        for cuts in [&[0, 24][..], &[0, 1, 2, 2, 9, 24]] {
            let mut engram = Engram::golden(&file);
            for range in cuts.windows(2).map(|cut| cut[0]..cut[1]) {
                let both = |of: &[i32]| [&of[range.clone()], &of[24..][range.clone()]].concat();
                let image: Vec<i32> = image.iter().map(|&m| m.into()).collect();
                let mask: Vec<u8> = both(&image).iter().map(|&m| m as u8).collect();
                let lens = [range.len() as i32; 2];
                assert_eq!(engram.run(&both(&ids), Some(&mask), &lens, &[3, 1]).unwrap(), by_layer(&rows, range));
            }
            assert_eq!(engram.history[9..12], history[..3]);
            assert_eq!(engram.history[3..6], history[3..]);
            assert_eq!([&engram.history[..3], &engram.history[6..9]], [[-1; 3]; 2], "other slots keep theirs");
        }
    }

    /// The released constants, whose tables have 384 million rows.
    #[test]
    fn golden_released() {
        let file = Golden::open("engram_released");
        let mut engram = Engram {
            token_map: file.i32("token_map"),
            pad: file.small("pad")[0],
            multipliers: file.i64("multipliers"),
            primes: file.i64("primes"),
            offsets: file.i64("offsets"),
            history: vec![-1; 12],
        };
        let ours = engram.run(&file.small("ids"), None, &[64], &[0]).unwrap();
        let golden = file.i64("rows");
        let expected = (0..2).flat_map(|layer| (0..64).map(move |t| (t * 2 + layer) * 24));
        assert_eq!(ours, expected.flat_map(|at| golden[at..][..24].iter().map(|&r| r as i32)).collect::<Vec<_>>());
    }

    #[test]
    fn a_request_without_rows_keeps_its_history() {
        let mut engram = Engram::golden(&Golden::open("engram"));
        engram.history = (0..12).collect();
        assert!(engram.run(&[], None, &[0, 0], &[2, 2]).unwrap().is_empty());
        assert_eq!(engram.history, (0..12).collect::<Vec<i32>>());
    }

    #[test]
    fn image_tokens_are_not_looked_up() {
        let mut engram = Engram::golden(&Golden::open("engram"));
        engram.run(&[i32::MAX, 6], Some(&[9, 0]), &[2], &[0]).unwrap();
        assert_eq!(engram.history[..3], [-1, -1, engram.token_map[6]]);
    }

    #[test]
    fn refusals_change_nothing() {
        let refuse = |spoil: &dyn Fn(&mut Engram), ids: &[i32], lens: &[i32], slots: &[i32]| {
            let mut engram = Engram::golden(&Golden::open("engram"));
            spoil(&mut engram);
            let message = engram.run(ids, None, lens, slots).unwrap_err();
            assert_eq!(engram.history, [-1; 12]);
            message
        };
        let nothing = |_: &mut Engram| {};
        assert!(
            refuse(&nothing, &[512], &[1], &[0]).contains("token_ids[0] is 512, but must be at least 0 and below 512")
        );
        assert!(refuse(&nothing, &[1], &[1], &[4]).contains("state_slot[0] is 4"));
        assert!(refuse(&nothing, &[1, 2], &[1], &[0]).contains("request_start ends at 1, but there are 2 rows"));
        assert!(refuse(&nothing, &[1, 2], &[3, -1], &[0, 1]).contains("request_start[2] is 2, but must ascend"));
        assert!(refuse(&nothing, &[1, 2], &[1, 1], &[2, 2]).contains("state_slot[0] and state_slot[1] are both 2"));
        assert!(refuse(&|e| e.primes[7] = 0, &[1], &[1], &[0]).contains("primes[1, 1] is 0"));
        assert!(refuse(&|e| e.offsets[0] = i64::MAX, &[1], &[1], &[0]).contains("offsets[0, 0] 9223372036854775807"));
    }
}
