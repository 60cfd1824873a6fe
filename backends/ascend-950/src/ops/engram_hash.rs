//! `engram_hash`: rows of the n-gram tables, then the latest ids of each request.

use deepinfer_plugin_api::generated::EngramHashArgs;
use deepinfer_plugin_api::sdk::{Cx, Fault};

use crate::image::{Function, images};
use crate::launch::{PROMISES, blocks, launch, optional, stream, tiling};

deepinfer_plugin_api::kernel!(EngramHash, engram_hash, flags = PROMISES);

static ENGRAM_HASH: Function = Function::new(&images::ENGRAM_HASH, c"engram_hash");
static UPDATE_HISTORY: Function = Function::new(&images::ENGRAM_HASH, c"update_history");
/// Numbers of a token in a layer that a block keeps.
const MOST_NUMBERS: i64 = 8192;

tiling! {
    struct EngramHashTiling: 112 {
        tokens: i64, vocabulary: i64, requests: i64, slots: i64, layers: i64, back: i64, numbers: i64, history_stride: i64,
        multipliers_stride: i64, primes_stride: i64, offsets_stride: i64, layer_stride: i64, token_stride: i64,
        pad: i32, has_mask: i32,
    }
}

fn engram_hash(cx: &Cx<'_>, a: EngramHashArgs<'_>) -> Result<(), Fault> {
    let (n, j) = (a.dims.n, a.dims.j);
    if n < 2 || !j.is_multiple_of(n - 1) {
        return Err(Fault::invalid(format!(
            "engram_hash: multipliers has {n} columns and primes {j}, but N must be at least 2 and J a multiple of N - 1"
        )));
    }
    let (token_ids, token_map, history) = (a.token_ids.view()?, a.token_map.view()?, a.history.view()?);
    let (image_mask, request_start, state_slot) =
        (optional(&a.image_mask)?, a.request_start.view()?, a.state_slot.view()?);
    let (multipliers, primes, offsets) = (a.multipliers.view()?, a.primes.view()?, a.offsets.view()?);
    let (rows, stream) = (a.rows.view()?, stream(cx)?);
    let (tokens, requests, layers, numbers) =
        (token_ids.columns(), state_slot.columns(), primes.rows(), primes.columns());
    if numbers > MOST_NUMBERS {
        return Err(Fault::unsupported(format!(
            "engram_hash: {numbers} numbers of a token in a layer; the kernel takes at most {MOST_NUMBERS}"
        )));
    }
    let tiling = EngramHashTiling {
        tokens,
        vocabulary: token_map.columns(),
        requests,
        slots: history.rows(),
        layers,
        back: history.columns(),
        numbers,
        history_stride: history.strides[2],
        multipliers_stride: multipliers.strides[2],
        primes_stride: primes.strides[2],
        offsets_stride: offsets.strides[2],
        layer_stride: rows.strides[1],
        token_stride: rows.strides[2],
        pad: a.pad,
        has_mask: i32::from(a.image_mask.is_some()),
    };
    let of_tokens = if layers == 0 || numbers == 0 { 0 } else { tokens };
    launch!(
        stream,
        ENGRAM_HASH,
        blocks(stream, of_tokens),
        [
            token_ids.data,
            token_map.data,
            image_mask.data,
            history.data,
            request_start.data,
            state_slot.data,
            multipliers.data,
            primes.data,
            offsets.data,
            rows.data,
        ],
        tiling
    )?;
    let pieces = tokens.max(layers.saturating_mul(numbers)).max(requests + 1);
    launch!(
        stream,
        UPDATE_HISTORY,
        blocks(stream, pieces),
        [
            token_ids.data,
            token_map.data,
            image_mask.data,
            history.data,
            request_start.data,
            state_slot.data,
            primes.data,
            offsets.data,
            stream.fault_word(),
        ],
        tiling
    )
}
