//! `compress_and_update_state`: softmax-weighted means of groups of consecutive tokens, and the rings that keep the
//! tokens of a group which is still open.
//!
//! Per channel, in f64 and in the order of positions: the weights `exp(score - largest)`, their sum, the weighted sum,
//! one division; rounded once. All groups are read before a ring is written.

use deepinfer_plugin_api::generated::CompressAndUpdateStateArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::arguments::index;
use crate::float::{Float, by_float};
use crate::parallel;
use crate::requests::Requests;

deepinfer_plugin_api::kernel!(CompressAndUpdateState, compress_and_update_state);

const OP: &str = "compress_and_update_state";

fn compress_and_update_state(_: &Cx<'_>, mut a: CompressAndUpdateStateArgs<'_>) -> Result<(), Fault> {
    by_float!(a.out, compress(&mut a))
}

/// Where a member of a group lies.
#[derive(Clone, Copy)]
enum Member {
    /// A row of this call.
    Row(usize),
    /// A row of the state, with its score first and its latent next.
    Ring(usize),
}

fn compress<T: Float>(a: &mut CompressAndUpdateStateArgs<'_>) -> Result<(), Fault> {
    let (ratio, ring) = (a.ratio as usize, a.dims.s);
    if !(2..=ring).contains(&ratio) {
        return Err(Fault::invalid(format!("{OP}: ratio is {ratio}, but must be at least 2 and at most S = {ring}")));
    }
    let requests = Requests::new(OP, &a.request_start, &a.state_slot, a.dims.t, a.dims.n)?;
    let positions = a.positions.slice::<i32>()?;
    let ring_row = |q: usize, position: usize| (requests.slot(q) * ring + position % ring) * 2;

    let members = members(a, &requests, ratio, ring_row)?;
    let mut writes = Vec::new();
    for q in 0..requests.count() {
        let rows = requests.rows(q);
        let kept = rows.start.max(rows.end.saturating_sub(ring))..rows.end;
        for (t, &position) in kept.clone().zip(&positions[kept]) {
            let position = index(OP, "positions", &[t], position, i32::MAX as usize)?;
            writes.push((t, ring_row(q, position)));
        }
    }

    let (latent, score) = (a.latent.rows::<f32>()?, a.score.rows::<f32>()?);
    let mut state = a.state.rows_mut::<f32>()?;
    let kept = &state;
    parallel::for_each_row(a.out.rows_mut::<T>()?, 20 * ratio * a.dims.d, |g, out| {
        let inputs: Vec<(&[f32], &[f32])> = members[g * ratio..][..ratio]
            .iter()
            .map(|&member| match member {
                Member::Row(t) => (score.row(t), latent.row(t)),
                Member::Ring(row) => (&*kept[row], &*kept[row + 1]),
            })
            .collect();
        let pooled: Vec<f64> = (0..out.len())
            .map(|d| pool(inputs.iter().map(|(score, latent)| (f64::from(score[d]), f64::from(latent[d])))))
            .collect();
        T::round_row(&pooled, out);
    });
    for (t, row) in writes {
        state[row].copy_from_slice(score.row(t));
        state[row + 1].copy_from_slice(latent.row(t));
    }
    Ok(())
}

/// The `ratio` members of every group, in the order of positions.
fn members(
    a: &CompressAndUpdateStateArgs<'_>,
    requests: &Requests<'_>,
    ratio: usize,
    ring_row: impl Fn(usize, usize) -> usize,
) -> Result<Vec<Member>, Fault> {
    let (positions, request) = (a.positions.slice::<i32>()?, a.row_request.slice::<i32>()?);
    let mut members = Vec::with_capacity(a.dims.m * ratio);
    for (g, &last) in a.group_row.slice::<i32>()?.iter().enumerate() {
        let last = index(OP, "group_row", &[g], last, a.dims.t)?;
        let q = index(OP, "row_request", &[last], request[last], a.dims.q)?;
        let rows = requests.rows(q);
        if !rows.contains(&last) {
            return Err(Fault::invalid(format!(
                "{OP}: row_request[{last}] is {q}, but request_start gives request {q} the rows {rows:?}"
            )));
        }
        let end = positions[last];
        if i64::from(end) + 1 < ratio as i64 {
            return Err(Fault::invalid(format!(
                "{OP}: group_row[{g}] is {last} at position {end}, but a group of {ratio} cannot end before position {}",
                ratio - 1
            )));
        }
        for position in (end as usize + 1 - ratio)..=(end as usize) {
            // Positions ascend within a request, so a member of this call is one of the last `ratio` rows.
            let nearest = rows.start.max((last + 1).saturating_sub(ratio))..=last;
            members.push(match nearest.rev().find(|&t| positions[t] as usize == position) {
                Some(t) => Member::Row(t),
                None => Member::Ring(ring_row(q, position)),
            });
        }
    }
    Ok(members)
}

/// The mean of the second values, weighted by the softmax of the first.
fn pool(members: impl Iterator<Item = (f64, f64)> + Clone) -> f64 {
    // `max` drops a NaN, but the exponentials keep it.
    let largest = members.clone().map(|(score, _)| score).fold(f64::NEG_INFINITY, f64::max);
    let (mut weights, mut sum) = (0.0, 0.0);
    for (score, latent) in members {
        let weight = libm::exp(score - largest);
        weights += weight;
        sum += weight * latent;
    }
    sum / weights
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use deepinfer_plugin_api::Format;
    use deepinfer_plugin_api::generated::{CompressAndUpdateState, Linear, RmsNorm};

    use crate::golden::{Golden, assert_close};
    use crate::random;
    use crate::testing::{Tensor, call};

    /// The rows of two requests, and the rings of three state slots of which they use 2 and 0.
    struct Stream {
        latent: Vec<f32>,
        score: Vec<f32>,
        dim: usize,
        ratio: usize,
        state: Tensor,
    }

    const SLOTS: [i32; 2] = [2, 0];

    impl Stream {
        fn new(latent: Vec<f32>, score: Vec<f32>, dim: usize, ratio: usize, ring: usize) -> Self {
            let garbage = vec![f32::NAN; 3 * ring * 2 * dim];
            Self { latent, score, dim, ratio, state: Tensor::f32(&[3, ring, 2, dim], &garbage) }
        }

        /// Rows of each request.
        fn len(&self) -> usize {
            self.latent.len() / self.dim / 2
        }

        /// Feeds the positions `parts[q]` of each request, and returns the pooled rows of each.
        fn feed(&mut self, parts: &[Range<usize>; 2]) -> [Vec<f32>; 2] {
            let (dim, len) = (self.dim, self.len());
            let rows = || (0..2).flat_map(|q| parts[q].clone().map(move |p| (q, p)));
            let pick = |from: &[f32]| rows().flat_map(|(q, p)| from[(q * len + p) * dim..][..dim].to_vec()).collect();
            let (latent, score): (Vec<f32>, Vec<f32>) = (pick(&self.latent), pick(&self.score));
            let ends = |p: usize| (p + 1).is_multiple_of(self.ratio);
            let groups: Vec<i32> = rows().zip(0..).filter(|((_, p), _)| ends(*p)).map(|(_, t)| t).collect();
            let ints = |values: Vec<i32>| Tensor::i32(&[values.len()], &values);
            let t = rows().count();
            let (latent, score) = (Tensor::f32(&[t, dim], &latent), Tensor::f32(&[t, dim], &score).padded(4));
            let positions = ints(rows().map(|(_, p)| p as i32).collect());
            let request = ints(rows().map(|(q, _)| q as i32).collect());
            let start = ints(vec![0, parts[0].len() as i32, t as i32]);
            let (slot, group) = (ints(SLOTS.to_vec()), ints(groups.clone()));
            let mut out = Tensor::unwritten(Format::F32, &[groups.len(), dim]);
            call::<CompressAndUpdateState>(|a| {
                (a.latent, a.score, a.state) = (latent.input(), score.input(), self.state.output());
                (a.group_row, a.positions, a.row_request) = (group.input(), positions.input(), request.input());
                (a.request_start, a.state_slot) = (start.input(), slot.input());
                (a.ratio, a.out) = (self.ratio as u32, out.output());
            })
            .unwrap();
            let mut first = out.floats();
            let of_first = parts[0].clone().filter(|p| ends(*p)).count();
            let second = first.split_off(of_first * dim);
            [first, second]
        }
    }

    fn linear(x: &Tensor, weight: &Tensor, shape: &[usize]) -> Vec<f32> {
        let mut out = Tensor::unwritten(Format::F32, shape);
        call::<Linear>(|a| (a.x, a.weight, a.groups, a.out) = (x.input(), weight.input(), 1, out.output())).unwrap();
        out.floats()
    }

    /// Latents of the compressor before the rotation, from one prefill and token by token.
    #[test]
    fn golden() {
        let file = Golden::open("compressor");
        let x = Tensor::f32(&[54, 128], &file.f32("layer1.x"));
        let project = |name| linear(&x, &Tensor::f32(&[64, 128], &file.f32(name)), &[54, 64]);
        let (latent, score) = (project("layer1.w.wkv.weight"), project("layer1.w.wgate.weight"));
        let normalise = |rows: Vec<f32>| {
            let (x, weight) = (Tensor::f32(&[26, 64], &rows), Tensor::f32(&[64], &file.f32("layer1.w.norm.weight")));
            let mut out = Tensor::unwritten(Format::F32, &[26, 64]);
            call::<RmsNorm>(|a| {
                (a.x, a.weight, a.eps, a.out) = (x.input(), weight.input(), 1e-20, out.output());
            })
            .unwrap();
            out.floats()
        };

        let whole = Stream::new(latent.clone(), score.clone(), 64, 2, 4).feed(&[0..27, 0..27]).concat();
        assert_close(&normalise(whole.clone()), &file.f32("layer1.latent"), 1e-5, 0.0);

        let mut stream = Stream::new(latent, score, 64, 2, 4);
        let mut single = [Vec::new(), Vec::new()];
        for (p, emitted) in (0..27).zip(file.i64("layer1.step_emits")) {
            for (single, row) in single.iter_mut().zip(stream.feed(&[p..p + 1, p..p + 1])) {
                assert_eq!(row.len(), 64 * emitted as usize);
                single.extend(row);
            }
        }
        assert_eq!(single.concat(), whole);
        assert_close(&normalise(whole), &file.f32("layer1.step_latent"), 1e-5, 0.0);
    }

    /// The bits of a group do not depend on how its tokens arrived.
    #[test]
    fn any_cut_gives_the_same_rows() {
        let (dim, ratio, len) = (5, 4, 23);
        let new = |ring| {
            let count = 2 * len * dim;
            Stream::new(random::floats(24, count), random::floats(25, count), dim, ratio, ring)
        };
        let whole = new(4).feed(&[0..len, 0..len]);
        for ring in [4, 7] {
            let mut stream = new(ring);
            let mut parts = [Vec::new(), Vec::new()];
            for (a, b) in [(0..1, 0..10), (1..9, 10..10), (9..9, 10..11), (9..12, 11..17), (12..23, 17..23)] {
                for (parts, rows) in parts.iter_mut().zip(stream.feed(&[a, b])) {
                    parts.extend(rows);
                }
            }
            assert_eq!(parts, whole, "ring of {ring}");
        }
    }

    #[test]
    fn the_ring_holds_the_last_rows_and_other_slots_are_untouched() {
        let (dim, len, ring) = (2, 5, 3);
        let mut stream =
            Stream::new(random::floats(26, 2 * len * dim), random::floats(27, 2 * len * dim), dim, 2, ring);
        stream.feed(&[0..5, 0..2]);
        let state = stream.state.floats();
        let entry = |slot: usize, at: usize| &state[(slot * ring + at) * 2 * dim..][..2 * dim];
        let row = |q: usize, p: usize| {
            let at = (q * len + p) * dim;
            [&stream.score[at..][..dim], &stream.latent[at..][..dim]].concat()
        };
        for p in 2..5 {
            assert_eq!(entry(2, p % ring), row(0, p));
        }
        assert_eq!([entry(0, 0), entry(0, 1)], [row(1, 0), row(1, 1)]);
        assert!(entry(0, 2).iter().chain((0..ring).flat_map(|at| entry(1, at))).all(|v| v.is_nan()));
    }

    #[test]
    fn infinite_gates_choose_and_a_nan_stays_in_its_channel() {
        let latent = vec![1.0, 1.0, 1.0, 5.0, 5.0, 5.0];
        let score = vec![0.0, f32::NEG_INFINITY, f32::NAN, 0.0, 2.0, 0.0];
        let mut stream = Stream::new([latent.clone(), latent].concat(), [score.clone(), score].concat(), 3, 2, 2);
        let [row, _] = stream.feed(&[0..2, 0..0]);
        assert_eq!(row[..2], [3.0, 5.0]);
        assert!(row[2].is_nan());
    }

    fn refusal(group: i32, position: i32, ratio: u32, slot: i32) -> String {
        let row = Tensor::f32(&[1, 2], &[1.0; 2]);
        let [group, position, request, slot] = [group, position, 0, slot].map(|v| Tensor::i32(&[1], &[v]));
        let start = Tensor::i32(&[2], &[0, 1]);
        let mut state = Tensor::f32(&[2, 3, 2, 2], &[0.0; 24]);
        let mut out = Tensor::unwritten(Format::F32, &[1, 2]);
        let result = call::<CompressAndUpdateState>(|a| {
            (a.latent, a.score, a.state) = (row.input(), row.input(), state.output());
            (a.group_row, a.positions, a.row_request) = (group.input(), position.input(), request.input());
            (a.request_start, a.state_slot, a.ratio, a.out) = (start.input(), slot.input(), ratio, out.output());
        });
        assert_eq!(state.floats(), [0.0; 24]);
        result.unwrap_err()
    }

    #[test]
    fn refusals() {
        assert!(refusal(0, 7, 1, 0).contains("ratio is 1, but must be at least 2 and at most S = 3"));
        assert!(refusal(0, 7, 4, 0).contains("ratio is 4"));
        assert!(refusal(1, 7, 2, 0).contains("group_row[0] is 1"));
        assert!(refusal(0, 0, 2, 0).contains("cannot end before position 1"));
        assert!(refusal(0, 7, 2, 2).contains("state_slot[0] is 2"));
    }
}
