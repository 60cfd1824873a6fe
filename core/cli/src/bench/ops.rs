//! `deepinfer bench ops`: single calls of any backend at the sizes of the released model, against a copy on that device.
//!
//! Nothing is compared with a reference here: that is what `deepinfer parity` is for.

mod case;
mod content;
mod measure;
mod place;
mod report;
mod roofline;
mod table;

use anyhow::anyhow;
use deepinfer_ops::{Device, Format, OpError, Tensor};
use deepinfer_parity::{SplitMix64, glob_matches};
use deepinfer_runtime::OpenDevice;

use self::case::{Case, Content, Scale, Spec};
use self::measure::{Batch, Timing, time};
use self::place::{Sets, repeat};
use self::report::{Ceiling, Layout, Outcome, Report, Setting};
use super::args::OpsArgs;
use super::report::Machine;
use crate::failure::Failure;
use crate::model::{choose_accelerator, open_accelerator};
use crate::output::Output;
use crate::terminal;

/// Bytes of the copy that memory-bound ops are held against.
const COPY_BYTES: usize = 2 << 30;
/// Bytes of a binary megabyte.
const MIB: usize = 1 << 20;

/// Measures, and writes each figure as it comes.
///
/// # Errors
/// No case is asked for, the accelerator cannot be used, a file cannot be written, or a case failed.
pub(super) fn run(args: &OpsArgs) -> Result<(), Failure> {
    let scale = Scale(args.scale);
    let mut cases = table::cases(scale);
    if args.scale > 1 {
        // Bars are for the sizes of the model.
        cases.iter_mut().for_each(|case| case.bar = None);
    }
    let is_asked_for = |patterns: &[String], name: &str| {
        patterns.is_empty() || patterns.iter().any(|pattern| glob_matches(pattern, name))
    };
    cases.retain(|case| is_asked_for(&args.ops, case.op) && is_asked_for(&args.case, &case.name()));
    if cases.is_empty() {
        return Err(Failure::Input(anyhow!(
            "no case fits --ops {} and --case {}; deepinfer bench ops --list names them all",
            said(&args.ops),
            said(&args.case)
        )));
    }
    if args.list {
        let names: String = cases.iter().map(|case| case.name() + "\n").collect();
        return Output::stdout()?.write(&names);
    }
    let mut json = args.json.as_deref().map(Output::create).transpose()?;
    let mut svg = args.svg.as_deref().map(Output::create).transpose()?;
    let selection = choose_accelerator(args.backend.as_deref()).map_err(Failure::input)?;
    let device = open_accelerator(&selection)?;
    let mut text = Output::stdout()?;
    let in_text = !json.as_ref().is_some_and(Output::is_stdout);
    let mut say = |line: &str| if in_text { text.write(&(terminal::printable(line) + "\n")) } else { Ok(()) };

    super::warn_of_a_debug_build();
    let setting = Setting::of(args, &device);
    let ceiling = ceiling(&device, scale, args.repeats).map_err(Failure::fault)?;
    let layout = Layout::of(&cases);
    say(&setting.line(&Machine::this()))?;
    say(&ceiling.line())?;
    say(&layout.head())?;
    let bar = terminal::cases_bar(cases.len() as u64);
    let mut results: Vec<Outcome> = Vec::new();
    for case in &cases {
        bar.set_message(case.name());
        let result = Outcome::of(case, measure(&device, case, args), &ceiling, args.rotate * MIB);
        bar.suspend(|| say(&layout.line(&result)))?;
        bar.inc(1);
        let is_lost = result.is_lost;
        results.push(result);
        if is_lost {
            break;
        }
    }
    bar.finish_and_clear();
    let report = Report { bench: "ops", machine: Machine::this(), setting, copy: ceiling, cases: results };
    say(&report.summary())?;
    if let Some(json) = &mut json {
        json.begin()?;
        json.write(&(serde_json::to_string_pretty(&report).map_err(Failure::fault)? + "\n"))?;
    }
    if let Some(svg) = &mut svg {
        svg.begin()?;
        svg.write(&roofline::svg(&report))?;
    }
    match report.cases.iter().filter(|result| result.failed.is_some()).count() {
        0 => Ok(()),
        failed => Err(Failure::Fault(anyhow!("{failed} of {} cases failed", cases.len()))),
    }
}

fn said(patterns: &[String]) -> String {
    if patterns.is_empty() { "*".to_owned() } else { patterns.join(",") }
}

/// Times a case.
fn measure(device: &OpenDevice, case: &Case, args: &OpsArgs) -> Result<(usize, Timing), OpError> {
    let sets = Sets::place(device, case, args.rotate * MIB)?;
    let timing = time(device, sets.len(), args.repeats, Batch::Recorded, |number| sets.call(device, number))?;
    Ok((sets.len(), timing))
}

/// The rate of a copy on the device, bytes read and bytes written.
fn ceiling(device: &OpenDevice, scale: Scale, samples: usize) -> Result<Ceiling, OpError> {
    let bytes = scale.to(COPY_BYTES, 4096);
    let memory = device.allocate(2 * bytes)?;
    let spec = Spec { format: Format::U8, shape: vec![bytes], content: Content::Random(1.0), is_shared: false };
    let (block, _) = content::blocks(&spec, &mut SplitMix64(1));
    let tensor = |at: usize| Tensor::plain(&memory, at, Format::U8, &[bytes]);
    device.upload(&tensor(0), &block)?;
    repeat(device, &memory, 0, block.len(), 2 * bytes)?;
    let (source, target) = (tensor(0), tensor(bytes));
    let timing = time(device, 1, samples, Batch::Queued, |_| device.copy(&target, &source))?;
    Ok(Ceiling::of(bytes, timing))
}
