//! Six bugs by which what a request gets depends on its company, as they are made in engines and kernels.

use std::cell::RefCell;

use deepinfer_numerics::sampling::Draw;
use deepinfer_numerics::{Bf16, Domain, e4m3, gumbel, scale, ue8m0};
use deepinfer_ops::{Device, Format, OpCall, OpError, Tensor};

use crate::mutant::{Bug, argument, bytes, floats, halves, ints, run_with};

/// `quantize` takes the scale of a group of columns over all rows of the batch.
pub(crate) struct BatchWideScale;

impl Bug for BatchWideScale {
    fn run(&self, device: &dyn Device, call: &dyn OpCall) -> Result<(), OpError> {
        device.dispatch(call)?;
        let (Some(x), Some(out)) = (argument(call, "x"), argument(call, "out")) else { return Ok(()) };
        if call.info().name != "quantize" || out.format() != Some(Format::Fp8Row32) || x.bytes() == 0 {
            return Ok(());
        }
        let (columns, groups) = (x.dim(1), x.dim(1) / 32);
        let values = if x.format() == Some(Format::Bf16) { halves(device, &x)? } else { floats(device, &x)? };
        let mut largest = vec![0.0_f32; groups];
        for (at, value) in values.iter().enumerate() {
            let group = at % columns / 32;
            largest[group] = largest[group].max(value.abs());
        }
        let scales: Vec<u8> = largest.iter().map(|&largest| scale::fp8(largest)).collect();
        let factors: Vec<f32> = scales.iter().map(|&scale| ue8m0::decode_reciprocal(scale)).collect();
        let encode =
            |(at, value): (usize, &f32)| e4m3::encode((value * factors[at % columns / 32]).clamp(-448.0, 448.0));
        let codes: Vec<u8> = values.iter().enumerate().map(encode).collect();
        device.upload(&out, &codes)?;
        device.upload(&out.scale_as_bytes(), &scales.repeat(x.dim(0)))
    }
}

/// `moe_combine` adds what experts give in the order in which they finish, which the size of the batch decides here, to an
/// output of BF16, as with atomic additions. (Sums in F32 of so few BF16 numbers are exact in any order.)
pub(crate) struct ArrivalOrderCombine;

impl Bug for ArrivalOrderCombine {
    fn run(&self, device: &dyn Device, call: &dyn OpCall) -> Result<(), OpError> {
        device.dispatch(call)?;
        let arguments = ["y", "row_of", "shared", "out"].map(|name| argument(call, name));
        let ("moe_combine", [Some(y), Some(row_of), Some(shared), Some(out)]) = (call.info().name, arguments) else {
            return Ok(());
        };
        let (rows, columns, chosen) = (out.dim(0), out.dim(1), row_of.dim(1));
        let (y, shared, row_of) = (halves(device, &y)?, halves(device, &shared)?, ints(device, &row_of)?);
        let mut sums = Vec::with_capacity(2 * rows * columns);
        for row in 0..rows {
            let mut experts = row_of[row * chosen..][..chosen].to_vec();
            experts.rotate_left(rows % chosen);
            for column in 0..columns {
                let of_experts = experts.iter().map(|&at| y[at as usize * columns + column]);
                let add = |sum: Bf16, value: f32| Bf16::from_f32(sum.to_f32() + value);
                let sum = of_experts.fold(Bf16::from_f32(shared[row * columns + column]), add);
                sums.extend(sum.0.to_le_bytes());
            }
        }
        device.upload(&out, &sums)
    }
}

/// `index_scores` scores one entry more than the last row of a request may see, where another request of the batch has as many:
/// what the last owner of the page left there, or another request's.
pub(crate) struct DirtyPage;

impl Bug for DirtyPage {
    fn run(&self, device: &dyn Device, call: &dyn OpCall) -> Result<(), OpError> {
        let (Some(visible), Some(request)) = (argument(call, "visible"), argument(call, "row_request")) else {
            return device.dispatch(call);
        };
        if argument(call, "candidates").is_some() {
            return device.dispatch(call);
        }
        let (mut entries, request) = (ints(device, &visible)?, ints(device, &request)?);
        for row in 0..entries.len() {
            if request.get(row + 1) != Some(&request[row]) {
                entries[row] += 1;
            }
        }
        run_with(device, call, &visible, &entries)
    }
}

/// `sparse_attention` is one entry too far in a window that goes over the end of its ring.
pub(crate) struct WrongRingReach;

impl Bug for WrongRingReach {
    fn run(&self, device: &dyn Device, call: &dyn OpCall) -> Result<(), OpError> {
        let Some(slots) = argument(call, "window_slots") else { return device.dispatch(call) };
        let window = slots.dim(1);
        let mut numbers = ints(device, &slots)?;
        for row in numbers.chunks_exact_mut(window) {
            let wrap = (1..window).find(|&at| row[at] < row[at - 1]);
            row[wrap.unwrap_or(window)..].iter_mut().for_each(|slot| *slot += 1);
        }
        run_with(device, call, &slots, &numbers)
    }
}

/// A request that hits the prefix cache gets the state of the checkpoint that was saved last, whosever it is.
#[derive(Default)]
pub(crate) struct StalePrefix {
    /// Bytes of a state slot.
    pub(crate) slot: usize,
    pub(crate) saved: RefCell<Vec<Tensor>>,
}

impl Bug for StalePrefix {
    fn copy(&self, device: &dyn Device, target: &Tensor, source: &Tensor) -> Result<(), OpError> {
        if source.bytes() != self.slot {
            return device.copy(target, source);
        }
        let mut saved = self.saved.borrow_mut();
        if saved.iter().any(|place| place.address() == source.address()) {
            return device.copy(target, saved.last().unwrap_or(source));
        }
        saved.retain(|place| place.address() != target.address());
        saved.push(target.clone());
        device.copy(target, source)
    }
}

/// `fused_sample` takes the noise of a token's rank among the candidates, not of the token.
pub(crate) struct RankKeyedNoise;

impl Bug for RankKeyedNoise {
    fn run(&self, device: &dyn Device, call: &dyn OpCall) -> Result<(), OpError> {
        device.dispatch(call)?;
        if call.info().name != "fused_sample" {
            return Ok(());
        }
        let tensor = |name| argument(call, name).expect("the engine gives it");
        let (logits, token) = (tensor("logits"), tensor("token"));
        let [inv_temperature, min_p_log, top_p] =
            ["inv_temperature", "min_p_log", "top_p"].map(|name| floats(device, &tensor(name)));
        let (inv_temperature, min_p_log, top_p) = (inv_temperature?, min_p_log?, top_p?);
        let [position, child, top_k] = ["position", "child", "top_k"].map(|name| ints(device, &tensor(name)));
        let (position, child, top_k) = (position?, child?, top_k?);
        let seeds = bytes(device, &tensor("seed"))?;
        let seeds: Vec<u64> = seeds.as_chunks().0.iter().map(|&b| u64::from_le_bytes(b)).collect();
        let mut drawn = ints(device, &token)?;
        let (values, width) = (floats(device, &logits)?, logits.dim(1));
        for (row, logits) in values.chunks_exact(width).enumerate().filter(|(row, _)| inv_temperature[*row] > 0.0) {
            let draw = Draw {
                inv_temperature: inv_temperature[row],
                seed: seeds[row],
                position: position[row] as u32,
                child: child[row] as u32,
                min_p_log: min_p_log[row],
                top_k: top_k[row] as u32,
                top_p: top_p[row],
            };
            let mut order = vec![0; width];
            let candidates = draw.survivors(logits, &mut order);
            let score = |rank: usize| {
                let noise = gumbel::noise(draw.seed, draw.position, rank as u32, Domain::TargetDraw, draw.child);
                logits[candidates[rank] as usize] * draw.inv_temperature + noise
            };
            let best = (0..candidates.len()).max_by(|&a, &b| score(a).total_cmp(&score(b)));
            drawn[row] = best.map_or(-1, |rank| candidates[rank] as i32);
        }
        device.upload(&token, &drawn.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>())
    }
}
