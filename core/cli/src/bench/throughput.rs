//! `deepinfer bench throughput`: what company is worth.

use std::collections::VecDeque;
use std::time::Instant;

use anyhow::anyhow;
use deepinfer_engine::{Engine, Event, Request, RequestOutput};

use super::args::ThroughputArgs;
use super::report::{Figure, Machine, Report};
use super::{check_lengths, engine, request};
use crate::failure::Failure;
use crate::model::ChosenModel;
use crate::terminal;

/// Measures.
///
/// # Errors
/// The input is refused; or a device fails, or a request gets other tokens in other company.
pub(super) fn run(args: &ThroughputArgs) -> Result<Report, Failure> {
    let chosen = ChosenModel::open(&args.model)?;
    let config = chosen.checkpoint.config();
    let tokens = check_lengths(args.input_len, args.output_len, config.max_position_embeddings)?;
    let mut ways = args.concurrency.clone();
    ways.retain(|&way| way > 1);
    ways.sort_unstable();
    ways.dedup();
    ways.insert(0, 1);

    let requests: Vec<Request> =
        (0..args.requests).map(|number| request(number, config.vocab_size, args.input_len, args.output_len)).collect();
    let device = chosen.open_device()?;
    let backend = deepinfer_ops::Device::backend(&device).to_owned();
    let mut model = chosen.load_on(std::rc::Rc::new(device))?;
    // Tokens of each request, by the way that ran first, and seconds by way.
    let (mut wanted, mut seconds) = (None, vec![Vec::new(); ways.len()]);
    // The first round warms up.
    let rounds = args.measuring.rounds + 1;
    let bar = terminal::requests_bar(Some((rounds * ways.len() * requests.len()) as u64));
    for round in 0..rounds {
        for (&way, seconds) in ways.iter().zip(&mut seconds) {
            let mut engine = engine(model, way, tokens)?;
            let begun = Instant::now();
            let found = run_at_a_time(&mut engine, &requests, way)?;
            if round > 0 {
                seconds.push(begun.elapsed().as_secs_f64());
            }
            model = engine.into_model();
            if *wanted.get_or_insert_with(|| found.clone()) != found {
                return Err(Failure::Fault(anyhow!(
                    "tokens differ between one request at a time and {way} at a time; `deepinfer verify` finds out where"
                )));
            }
            bar.inc(requests.len() as u64);
        }
    }
    bar.finish_and_clear();

    let rate = |seconds: &f64| (args.requests * args.output_len) as f64 / seconds;
    let mut figures: Vec<Figure> = ways
        .iter()
        .zip(&seconds)
        .map(|(way, seconds)| Figure::of(format!("{way} at a time"), "tokens/s", seconds.iter().map(rate).collect()))
        .collect();
    for (way, together) in ways.iter().zip(&seconds).skip(1) {
        let ratios = seconds[0].iter().zip(together).map(|(alone, together)| alone / together);
        figures.push(Figure::of(format!("{way} at a time, against 1"), "times", ratios.collect()));
    }
    Ok(Report {
        bench: "throughput",
        setting: format!(
            "{}, {} requests of {} + {} tokens, {} rounds, output tokens",
            chosen.checkpoint.origin(),
            args.requests,
            args.input_len,
            args.output_len,
            args.measuring.rounds
        ),
        backend,
        machine: Machine::this(),
        figures,
    })
}

/// Runs all requests, `most` at a time, and gives their tokens.
fn run_at_a_time(engine: &mut Engine, requests: &[Request], most: usize) -> Result<Vec<Vec<u32>>, Failure> {
    let mut outputs: Vec<Vec<u32>> = vec![Vec::new(); requests.len()];
    let mut waiting: VecDeque<Request> = requests.iter().cloned().collect();
    let (mut running, mut missing) = (0, requests.len());
    while missing > 0 {
        while running < most
            && let Some(request) = waiting.pop_front()
        {
            engine.submit(request).map_err(Failure::input)?;
            running += 1;
        }
        engine.step();
        for (_, event) in engine.events() {
            let Event::Finished(output) = event else { continue };
            (running, missing) = (running - 1, missing - 1);
            let number: usize = output.id.parse().expect("requests are named by their numbers");
            outputs[number] = tokens_of(*output)?;
        }
    }
    Ok(outputs)
}

/// The tokens of a request that went well.
fn tokens_of(output: RequestOutput) -> Result<Vec<u32>, Failure> {
    let completion = output.outputs.into_iter().next().expect("a request has a completion");
    match completion.error {
        Some(error) => Err(Failure::fault(error)),
        None => Ok(completion.token_ids()),
    }
}
