//! `deepinfer bench latency`: how long one request takes alone.

use std::rc::Rc;
use std::time::Instant;

use anyhow::anyhow;
use deepinfer_ops::Device;

use super::args::LatencyArgs;
use super::report::{Figure, Machine, Report};
use super::{check_lengths, decode_steps, engine, request};
use crate::failure::Failure;
use crate::model::ChosenModel;

/// Measures.
///
/// # Errors
/// The input is refused, or a device fails.
pub(super) fn run(args: &LatencyArgs) -> Result<Report, Failure> {
    let chosen = ChosenModel::open(&args.model)?;
    let config = chosen.checkpoint.config();
    let longest = args.input_len.iter().copied().max().unwrap_or(1);
    let tokens = check_lengths(longest, args.output_len, config.max_position_embeddings)?;
    let device = chosen.open_device()?;
    let backend = device.backend().to_owned();
    let mut engine = engine(chosen.load_on(Rc::new(device))?, 1, tokens)?;

    let (mut first, mut further) = (vec![Vec::new(); args.input_len.len()], vec![Vec::new(); args.input_len.len()]);
    // The first round warms up.
    for round in 0..=args.measuring.rounds {
        for (place, &input_len) in args.input_len.iter().enumerate() {
            let mut times = Vec::with_capacity(args.output_len);
            let begun = Instant::now();
            let asked = request(round, config.vocab_size, input_len, args.output_len);
            let output = engine.run(asked, &mut |_| {
                times.push(begun.elapsed().as_secs_f64());
                true
            });
            let [begin, .., end] = times[..] else {
                let error = output.map(|mut output| output.outputs.remove(0).error);
                return Err(Failure::Fault(anyhow!("a request of {input_len} tokens failed: {error:?}")));
            };
            if round > 0 {
                first[place].push(begin * 1e3);
                further[place].push((end - begin) / (times.len() - 1) as f64 * 1e3);
            }
        }
    }

    let figures = |what: &str, values: Vec<Vec<f64>>| -> Vec<Figure> {
        let named = args.input_len.iter().zip(values);
        named.map(|(len, values)| Figure::of(format!("{what} after {len} tokens"), "ms", values)).collect()
    };
    Ok(Report {
        bench: "latency",
        setting: format!(
            "{}, one request at a time, {} output tokens, {} rounds{}",
            chosen.checkpoint.origin(),
            args.output_len,
            args.measuring.rounds,
            decode_steps(&engine)
        ),
        backend,
        machine: Machine::this(),
        figures: [figures("first token", first), figures("each further token", further)].concat(),
    })
}
