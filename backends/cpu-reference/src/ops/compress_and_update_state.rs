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
        for t in rows.start.max(rows.end.saturating_sub(ring))..rows.end {
            let position = index(OP, "positions", &[t], positions[t], i32::MAX as usize)?;
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
        for (d, out) in out.iter_mut().enumerate() {
            *out = T::round(pool(inputs.iter().map(|(score, latent)| (f64::from(score[d]), f64::from(latent[d])))));
        }
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
