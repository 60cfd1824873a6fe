//! `deepinfer verify`: whether what requests get depends on anything but themselves.

mod args;
pub(crate) mod worker;

use std::ffi::OsString;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use clap::ValueEnum;
use deepinfer_verify::{Axis, Campaign, Finding, Lab, Report, Verifier, VerifyError};
use serde::Serialize;

pub(crate) use self::args::{VerifyArgs, VerifyWorkerArgs};
use self::worker::Workers;
use crate::args::ModelArgs;
use crate::failure::Failure;
use crate::model::ChosenModel;
use crate::output::Output;
use crate::settings::{Settings, quoted};
use crate::terminal;

/// What `--report` writes.
#[derive(Serialize)]
struct Results<'a> {
    #[serde(flatten)]
    report: &'a Report,
    /// Command that repeats the finding.
    repeat: Option<String>,
    seconds: f64,
}

/// Runs the command.
///
/// # Errors
/// The input is refused; a fault ended the run, or something differs ([`Failure::Fault`]).
pub(crate) fn run(args: &VerifyArgs) -> Result<(), Failure> {
    let started = Instant::now();
    let file = args.report.as_deref().map(Output::create).transpose()?;
    let lab = lab_of(&args.model, args.seed)?;
    let workers = Workers::new(&args.model, Duration::from_secs(args.timeout));
    let verifier = Verifier::new(lab, Some(Box::new(workers)));
    let report = match &args.cell {
        Some(cell) => verifier.cell(cell),
        None => {
            let axes = if args.axes.is_empty() { Axis::ALL.into() } else { args.axes.iter().copied().collect() };
            let bar = terminal::rows_bar(args.rows);
            let campaign = Campaign { rows: args.rows, axes };
            let report = verifier.campaign(&campaign, &mut |progress| bar.set_position(progress.rows));
            bar.finish_and_clear();
            report
        }
    };
    let report = report.map_err(unverified)?;
    let seconds = started.elapsed().as_secs_f64();
    let settings = settings_of(args).for_a_shell();
    let repeat = report.finding.as_ref().map(|finding| command_of(args, &settings, finding));
    let mut text = format!("{report}");
    if let Some(command) = &repeat {
        text += &format!("  repeat with    {command}\n");
    }
    terminal::note(|| format!("{seconds:.1} s"));
    match file {
        Some(mut file) => {
            let results = Results { report: &report, repeat, seconds };
            let json = serde_json::to_string_pretty(&results).map_err(Failure::fault)? + "\n";
            file.begin()?;
            file.write(&json)?;
            if file.is_stdout() {
                terminal::say(&text.trim_end());
            } else {
                Output::stdout()?.write(&terminal::printable(&text))?;
            }
        }
        None => Output::stdout()?.write(&terminal::printable(&text))?,
    }
    match report.differing {
        0 => Ok(()),
        differing => Err(Failure::Fault(anyhow!("{differing} rows, tokens or requests are not as in the run alone"))),
    }
}

/// The model in a lab.
fn lab_of(model: &ModelArgs, seed: u64) -> Result<Lab, Failure> {
    let chosen = ChosenModel::open(model)?;
    Lab::new(Rc::new(chosen.open_device()?), seed, |device| chosen.load_on(device))
}

/// What cannot run at all.
fn unverified(error: VerifyError) -> Failure {
    match error {
        VerifyError::CellText { .. } | VerifyError::NoAxis { .. } => Failure::input(error),
        _ => Failure::fault(error),
    }
}

/// The arguments that choose this model again.
fn arguments_of(model: &ModelArgs) -> Vec<OsString> {
    let numerics = model.numerics.to_possible_value().expect("no preset is hidden").get_name().to_owned();
    let mut arguments = vec![OsString::from("--numerics"), numerics.into()];
    if let Some(directory) = &model.model {
        arguments.extend(["--model".into(), directory.clone().into_os_string()]);
    }
    if let Some(accelerator) = &model.accelerator {
        arguments.extend(["--accelerator".into(), accelerator.into()]);
    }
    arguments
}

/// Variables of the environment that may have a say: all but the one for dumps, and those that a flag stands for.
fn settings_of(args: &VerifyArgs) -> Settings {
    let unless = |is_given: bool, name: &'static str| is_given.then_some(name);
    let flags = [
        unless(args.model.accelerator.is_some(), "DEEPINFER_ACCELERATOR"),
        unless(args.model.model.is_some(), "DEEPINFER_HF_MODEL_DIR"),
    ];
    let names: Vec<&str> = flags.into_iter().flatten().chain(["DEEPINFER_FLIGHT_RECORDER"]).collect();
    Settings::of_environment().without(&names)
}

/// The command that repeats a finding, for a shell; `settings` set the variables for it.
fn command_of(args: &VerifyArgs, settings: &str, finding: &Finding) -> String {
    let mut command = format!("{settings}deepinfer verify --seed {} --cell \"{}\"", args.seed, finding.cell);
    for argument in arguments_of(&args.model) {
        command += &format!(" {}", quoted(&argument));
    }
    command
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Arguments, Command};

    #[test]
    fn a_finding_is_repeated_by_a_command_that_can_be_read() {
        let line = ["deepinfer", "verify", "--seed", "7", "--accelerator", "cpu?threads=1", "--numerics", "exact"];
        let Command::Verify(args) = Arguments::try_parse_from(line).unwrap().command else { panic!("another command") };
        let finding = Finding {
            met_in: "requests=1,2".to_owned(),
            cell: "requests=1,2@3 budget=16".to_owned(),
            request: 1,
            completion: 0,
            position: 4,
            what: "logits".to_owned(),
            site: None,
            restored_at: Vec::new(),
        };
        let command = command_of(&args, "DEEPINFER_X=1 ", &finding);
        let expected = "DEEPINFER_X=1 deepinfer verify --seed 7 --cell \"requests=1,2@3 budget=16\" --numerics exact --accelerator \
                        'cpu?threads=1'";
        assert_eq!(command, expected);
    }
}
