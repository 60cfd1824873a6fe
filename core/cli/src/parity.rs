//! `deepinfer parity`: whether a backend does what the catalogue says.
//!
//! Every case runs in another process ([`worker`]) under a time limit; [`supervisor`] starts another one when it dies.

pub(crate) mod breaches;
pub(crate) mod bundles;
mod levels;
mod miniature;
pub(crate) mod supervisor;
mod task;
mod whole;
pub(crate) mod worker;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow};
use deepinfer_parity::{
    Check, Declined, Expectations, Fault, Finding, Identity, Level, Line, Outcome, Report, Verdict, cases,
    glob_matches, html, junit, ops, required_ops,
};
use deepinfer_runtime::{Choice, Layers, Selection, TEXT_PROFILE, one_line};
use indicatif::ProgressBar;

pub(crate) use levels::{Levels, levels};
use supervisor::{Done, NotReady, Ops, Supervisor};
use task::{Task, first_cases, last_cases, load_cases};

use crate::args::{CASE_SECONDS, ParityArgs};
use crate::failure::Failure;
use crate::output::Output;
use crate::settings::{Settings, quoted};
use crate::terminal;

/// Failures that are printed in full; the reports have all of them.
const SHOWN: usize = 20;
/// Why ops of the backend alone are not tested: nobody but the vendor knows what shapes they take.
const NOT_FOR_OWN_OPS: &str = "the plugin has it, but parity has no cases for a vendor's own op";
/// Longest list of expected failures, in bytes.
const MOST_EXPECTED: u64 = 1 << 24;
/// Lines that are printed of the reasons for which an op is not supported; the reports have all of them.
const SHOWN_REASONS: usize = 5;
/// Variables that the program knows and a run of parity does not read.
const NOT_READ: [&str; 6] = [
    "DEEPINFER_ACCELERATOR",
    "DEEPINFER_BATCH_INVARIANT",
    "DEEPINFER_FLIGHT_RECORDER",
    "DEEPINFER_GRAPHS",
    "DEEPINFER_HF_MODEL_DIR",
    "DEEPINFER_ZERO_OVERHEAD_SCHEDULING",
];
/// Name that asks for no profile.
const NO_PROFILE: &str = "none";

/// Runs the command.
///
/// # Errors
/// The arguments are wrong or the backend does not load ([`Failure::Input`]); something failed ([`Failure::Fault`]).
pub(crate) fn run(args: &ParityArgs) -> Result<(), Failure> {
    if let Some(layers) = &args.layers {
        Layers::parse(layers).map_err(Failure::input)?;
    }
    let plan = Plan::of(args)?;
    let files = Files::create(args)?;
    let supervisor = Supervisor {
        backend: args.backend.clone(),
        seed: args.seed,
        timeout: Duration::from_secs(args.timeout),
        layers: args.layers.clone(),
        bundles: args.bundles.as_deref().map(bundles::folder).transpose().map_err(Failure::Input)?,
    };
    let (identity, Ops { known: has, own }) = match supervisor.probe().map_err(Failure::Fault)? {
        Ok(ready) => ready,
        Err(NotReady::Refused(why)) => return Err(Failure::Input(anyhow!("{why}"))),
        Err(NotReady::Broken(how)) => {
            return Err(Failure::Input(anyhow!("the backend {} does not load: {how}", args.backend)));
        }
    };
    plan.expect_subjects(args, &own)?;
    let tasks = plan.tasks(args, &has);
    if tasks.is_empty() && plan.missing(&has).is_empty() {
        return Err(Failure::Input(anyhow!(
            "no case is left to run: {} has no op that is asked for",
            identity.backend
        )));
    }
    if args.list {
        let names: String = tasks.iter().map(|task| format!("{task}\n")).collect();
        return Output::stdout()?.write(&names);
    }
    let lines = plan.run(args, &supervisor, &identity, tasks)?;
    let passes = plan.expectations.unexpected_passes(&failed_or_not(&lines));
    let (missing, others) = plan.lacking(&has, &lines);
    let report = Report::new(identity, (args.seed, &args.level.0, &args.profile), (missing, others), lines, passes);
    let settings = settings_of(args).for_report();
    let report = Report { own_ops: meant(args, &own), settings, ..report };
    let text = text_of(&report, &settings_of(args).for_a_shell());
    if files.take_standard_output() {
        terminal::figures(text.trim_end());
    } else {
        Output::stdout()?.write(&terminal::printable(&text))?;
    }
    files.write(&report)?;
    match report.verdict {
        Verdict::Conforms => Ok(()),
        Verdict::Fails => Err(Failure::Fault(anyhow!("{}", verdict_of(&report)))),
    }
}

fn failed_or_not(lines: &[Line]) -> Vec<(&str, bool)> {
    // What the backend does not support says nothing about a bug.
    let did_run = |line: &&Line| !matches!(line.outcome, Outcome::Unsupported { .. } | Outcome::NotTried { .. });
    let ran = lines.iter().filter(did_run);
    ran.map(|line| (line.name.as_str(), matches!(line.outcome, Outcome::Failed(_)))).collect()
}

/// Ops of the backend alone that are asked for.
fn meant(args: &ParityArgs, own: &[String]) -> Vec<String> {
    own.iter().filter(|name| is_asked_for(args, name)).cloned().collect()
}

/// Whether `--ops` names an op or another subject.
fn is_asked_for(args: &ParityArgs, name: &str) -> bool {
    args.ops.iter().any(|glob| glob_matches(glob, name))
}

/// What is asked for, before anything is known of the backend.
struct Plan {
    /// Ops and other subjects that there are cases of.
    all: Vec<&'static str>,
    /// Those that are asked for.
    subjects: Vec<&'static str>,
    /// Ops that the backend must have.
    required: Vec<&'static str>,
    expectations: Expectations,
}

impl Plan {
    fn of(args: &ParityArgs) -> Result<Self, Failure> {
        let usage = |text: String| Failure::Input(anyhow!("{text}"));
        if Selection::parse(&args.backend).map_err(Failure::input)?.choice == Choice::Auto {
            return Err(usage("--backend auto could be any backend; give a name or a path".to_owned()));
        }
        let others: BTreeSet<&str> = first_cases().chain(last_cases()).map(|case| case.subject).collect();
        let all: Vec<&'static str> = others.into_iter().chain(ops()).collect();
        let subjects: Vec<&str> = all.iter().copied().filter(|name| is_asked_for(args, name)).collect();
        let required = match args.profile.as_str() {
            NO_PROFILE => &[],
            name => required_ops(name).ok_or_else(|| {
                usage(format!("--profile {name:?} is not in the catalogue; {NO_PROFILE} asks for no op"))
            })?,
        };
        let required = required.iter().copied().filter(|op| subjects.contains(op)).collect();
        let expectations = match &args.expect_failures {
            None => Expectations::default(),
            Some(path) => {
                let text = bundles::read_file(path, MOST_EXPECTED).map_err(Failure::Input)?;
                let text = String::from_utf8(text)
                    .with_context(|| format!("{} is not UTF-8", path.display()))
                    .map_err(Failure::Input)?;
                let list = Expectations::parse(&text, &all);
                list.with_context(|| path.display().to_string()).map_err(Failure::Input)?
            }
        };
        Ok(Self { all, subjects, required, expectations })
    }

    /// Every name of `--ops` asks for something that there are cases of. `own` are ops of the backend alone.
    fn expect_subjects(&self, args: &ParityArgs, own: &[String]) -> Result<(), Failure> {
        let fits_none = |glob: &&String| !self.all.iter().any(|name| glob_matches(glob, name));
        let Some(glob) = args.ops.iter().find(fits_none) else { return Ok(()) };
        let own: Vec<&str> = own.iter().map(String::as_str).filter(|name| glob_matches(glob, name)).collect();
        let problem = match own.as_slice() {
            [] => format!("fits none of {}", self.all.join(", ")),
            own => format!("fits {}: {NOT_FOR_OWN_OPS}", own.join(", ")),
        };
        Err(Failure::Input(anyhow!("--ops {glob:?} {problem}")))
    }

    /// The cases, in the order in which they run: the whole backend first, then its ops.
    fn tasks(&self, args: &ParityArgs, has: &[String]) -> Vec<Task> {
        let levels = &args.level.0;
        let is_meant = |task: &Task| {
            let name = task.to_string();
            let case = name.split_once('/').map_or("", |(_, case)| case);
            let fits = |glob: &str| {
                glob_matches(glob, &name) || glob_matches(glob, case) || glob_matches(&format!("*/{glob}"), case)
            };
            self.subjects.contains(&task.subject())
                && levels.contains(&task.level())
                && args.case.as_deref().is_none_or(fits)
        };
        let mut tasks: Vec<Task> = load_cases().collect();
        tasks.extend(first_cases().map(Task::Whole));
        for op in ops().filter(|op| self.subjects.contains(op) && has.iter().any(|name| name == op)) {
            for check in Check::ALL.into_iter().filter(|check| levels.contains(&check.level())) {
                tasks.extend(cases(op, check, args.seed, args.cases).into_iter().map(Task::Op));
            }
        }
        tasks.extend(last_cases().map(Task::Whole));
        tasks.retain(is_meant);
        tasks
    }

    fn run(
        &self,
        args: &ParityArgs,
        supervisor: &Supervisor,
        identity: &Identity,
        tasks: Vec<Task>,
    ) -> Result<Vec<Line>, Failure> {
        let mut lines = Vec::with_capacity(tasks.len());
        let mut unwritten = None;
        if let Some(folder) = &supervisor.bundles {
            bundles::remove_old(folder, &tasks).map_err(Failure::Input)?;
        }
        let settings = settings_of(args).for_a_shell();
        let bar = ProgressBar::new(tasks.len() as u64);
        let mut bundle_of = |task: &Task, outcome: &Outcome| match (&supervisor.bundles, task, outcome) {
            (Some(folder), Task::Op(case), Outcome::Failed(failure)) => {
                let path = bundles::of_failure(folder, case, failure).unwrap_or_else(|error| {
                    unwritten.get_or_insert(error);
                    None
                });
                path.map(|path| path.display().to_string())
            }
            _ => None,
        };
        let result = supervisor.run(identity, tasks, &mut |Done { task, facts, mut outcome, seconds }| {
            if let (Outcome::Failed(failure), Some(fault)) = (&mut outcome, task.fault())
                && failure.fault.is_none_or(|known| matches!(known, Fault::Crash | Fault::Hang))
            {
                failure.fault = Some(fault);
            }
            let name = task.to_string();
            let failed = matches!(outcome, Outcome::Failed(_) | Outcome::NotTried { .. });
            let expected_failure = self.expectations.reason(&name).filter(|_| failed).map(str::to_owned);
            let (op, level, rerun) = (task.subject().to_owned(), task.level(), rerun_of(args, &settings, &name));
            let bundle = bundle_of(&task, &outcome);
            lines.push(Line { name, op, level, facts, outcome, expected_failure, seconds, rerun, bundle });
            bar.inc(1);
        });
        bar.finish_and_clear();
        result.map_err(Failure::Fault)?;
        unwritten.map_or(Ok(lines), |error| Err(Failure::Fault(error)))
    }

    /// Required ops that the backend does not have.
    fn missing(&self, has: &[String]) -> Vec<&'static str> {
        self.required.iter().copied().filter(|op| !has.iter().any(|name| name == op)).collect()
    }

    /// Ops that the backend lacks: required ones, and others. It lacks an op, too, of which it declines every call.
    fn lacking(&self, has: &[String], lines: &[Line]) -> (Vec<String>, Vec<String>) {
        let declines = |op: &str| {
            // Drawn calls: to refuse a wrong one is no support.
            let is_drawn = |line: &&Line| line.facts.as_ref().is_some_and(|facts| facts.content.is_some());
            let mut calls = lines.iter().filter(|line| line.op == op).filter(is_drawn).peekable();
            calls.peek().is_some() && calls.all(|line| matches!(line.outcome, Outcome::Unsupported { .. }))
        };
        let lacks = |op: &&str| !has.iter().any(|name| name == op) || declines(op);
        let lacking = ops().filter(|op| self.subjects.contains(op)).filter(lacks);
        let (required, others) = lacking.partition::<Vec<&str>, _>(|op| self.required.contains(op));
        let owned = |list: Vec<&str>| list.into_iter().map(str::to_owned).collect();
        (owned(required), owned(others))
    }
}

/// Variables of the environment that may have a say in a run: those of the program that it reads, and all others, which a plugin
/// may read.
fn settings_of(args: &ParityArgs) -> Settings {
    let settings = Settings::of_environment().without(&NOT_READ);
    if args.layers.is_some() { settings.without(&["DEEPINFER_LAYERS"]) } else { settings }
}

/// The command line that runs one case alone; `settings` set the variables for it.
fn rerun_of(args: &ParityArgs, settings: &str, name: &str) -> String {
    let (op, case) = name.split_once('/').unwrap_or((name, "*"));
    let layers = args.layers.as_ref().map_or_else(String::new, |layers| format!(" --layers {}", quoted(layers)));
    let number = args.cases.map_or_else(String::new, |cases| format!(" --cases {cases}"));
    let limit = match args.timeout {
        CASE_SECONDS => String::new(),
        other => format!(" --timeout {other}"),
    };
    let profile = match args.profile.as_str() {
        TEXT_PROFILE => String::new(),
        other => format!(" --profile {}", quoted(other)),
    };
    let backend = quoted(&args.backend);
    format!(
        "{settings}deepinfer parity --backend {backend} --ops {op} --case {} --seed {}{number}{profile}{layers}{limit}",
        quoted(case),
        args.seed
    )
}

/// Reports to be written. The files are opened before the cases run, so that a wrong path costs nothing.
struct Files {
    json: Option<Output>,
    junit: Option<Output>,
    html: Option<Output>,
    /// Where the page lies, if it can be told.
    page: Option<PathBuf>,
}

impl Files {
    fn create(args: &ParityArgs) -> Result<Self, Failure> {
        let create = |path: Option<&Path>| path.map(Output::create).transpose();
        Ok(Self {
            json: create(args.report.as_deref())?,
            junit: create(args.junit.as_deref())?,
            html: create(args.html.as_deref())?,
            // The file is there by now.
            page: args.html.as_deref().and_then(|path| path.canonicalize().ok()),
        })
    }

    /// Whether one of them goes where the figures for people would go.
    fn take_standard_output(&self) -> bool {
        [&self.json, &self.junit, &self.html].into_iter().flatten().any(|output| output.name() == "standard output")
    }

    fn write(self, report: &Report) -> Result<(), Failure> {
        let write = |output: Option<Output>, text: &dyn Fn() -> Result<String, Failure>| match output {
            None => Ok(()),
            Some(mut output) => {
                output.begin()?;
                output.write(&text()?)
            }
        };
        write(self.json, &|| report.to_json().map_err(Failure::fault))?;
        write(self.junit, &|| Ok(junit::document(report)))?;
        let folder = self.page.as_deref().and_then(Path::parent);
        write(self.html, &|| Ok(html::page(report, folder)))
    }
}

/// The figures for people. `settings` are those of the run, as for a shell.
fn text_of(report: &Report, settings: &str) -> String {
    let id = &report.identity;
    let levels: Vec<String> = report.levels.iter().map(Level::to_string).collect();
    let [backend, version, device, path] = [&id.backend, &id.version, &id.device, &id.path].map(|text| one_line(text));
    let mut text = format!("{backend} {version} on {device} ({path})\n");
    // Writing to a string cannot fail, here and below.
    let _ = writeln!(text, "levels {}, seed {}, profile {}", levels.join(", "), report.seed, report.profile);
    if !settings.is_empty() {
        let _ = writeln!(text, "settings {}", settings.trim_end());
    }
    text.push('\n');
    let _ = writeln!(text, "{:34} cases  failed  expected  unsupported  worst error / bound", "");
    for op in &report.ops {
        let worst = op.worst.iter().filter_map(|cell| cell.worst).reduce(f64::max);
        let worst = match worst {
            None => String::new(),
            Some(share) if share < 1000.0 => format!("{share:.3}"),
            Some(share) => format!("{share:.1e}"),
        };
        let line = format!(
            "{:34} {:5}  {:6}  {:8}  {:11}  {worst}",
            op.op, op.cases, op.failures, op.expected_failures, op.unsupported
        );
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text.push('\n');
    for Finding { fault, op, sentence, example, .. } in &report.findings {
        let _ = writeln!(text, "FOUND {fault} in {op}: {sentence} ({example})");
    }
    if !report.findings.is_empty() {
        text.push('\n');
    }
    let distinct = report.distinct_failures();
    for (line, alike) in distinct.iter().take(SHOWN) {
        let Outcome::Failed(failure) = &line.outcome else { continue };
        let _ = writeln!(text, "FAILED {}: {failure}", line.name);
        if let Some(facts) = &line.facts {
            let content = facts.content.map_or_else(String::new, |content| format!("content {content:?}, "));
            let _ = writeln!(text, "  {}\n  {content}seed {}", facts.call, report.seed);
        }
        let _ = writeln!(text, "  {}", line.rerun);
        if let Some(bundle) = &line.bundle {
            let _ = writeln!(text, "  {bundle}");
        }
        let _ = match alike {
            0 => Ok(()),
            1 => writeln!(text, "  and 1 more case of {} ends with the same error", line.op),
            more => writeln!(text, "  and {more} more cases of {} end with the same error", line.op),
        };
        text.push('\n');
    }
    let more: usize = distinct.iter().skip(SHOWN).map(|(_, alike)| 1 + alike).sum();
    if more > 0 {
        let _ = writeln!(text, "and {more} more failures; --report, --junit and --html have all of them\n");
    }
    for pass in &report.unexpected_passes {
        let _ = writeln!(text, "PASSED unexpectedly, {pass}");
    }
    for op in report.ops.iter().filter(|op| op.not_tried > 0) {
        let reason = report.lines.iter().filter(|line| line.op == op.op).find_map(|line| match &line.outcome {
            Outcome::NotTried { reason } => Some(reason.as_str()),
            _ => None,
        });
        let _ = writeln!(text, "NOT TRIED, {} cases of {}: {}", op.not_tried, op.op, reason.unwrap_or_default());
    }
    for op in &report.ops {
        for Declined { reason, cases } in op.declined.iter().take(SHOWN_REASONS) {
            let _ = writeln!(text, "not supported, {} of {}: {}", number_of_cases(*cases), op.op, one_line(reason));
        }
        let others = op.declined.get(SHOWN_REASONS..).unwrap_or_default();
        if !others.is_empty() {
            let cases = number_of_cases(others.iter().map(|declined| declined.cases).sum());
            let _ = writeln!(text, "not supported, {cases} of {}: {} other reasons", op.op, others.len());
        }
    }
    if !report.missing_ops.is_empty() {
        let _ = writeln!(text, "MISSING ops of {}: {}", report.profile, report.missing_ops.join(", "));
    }
    if !report.own_ops.is_empty() {
        let _ = writeln!(text, "not tested: {}: {NOT_FOR_OWN_OPS}", report.own_ops.join(", "));
    }
    if !report.unsupported_ops.is_empty() {
        let _ = writeln!(text, "not supported: {}", report.unsupported_ops.join(", "));
    }
    if report.verdict == Verdict::Conforms {
        let _ = writeln!(text, "{}", verdict_of(report));
    }
    text
}

fn number_of_cases(count: usize) -> String {
    if count == 1 { "1 case".to_owned() } else { format!("{count} cases") }
}

/// The answer in one sentence.
fn verdict_of(report: &Report) -> String {
    let Report { cases, failures, expected_failures, unsupported, not_tried, unexpected_passes, missing_ops, .. } =
        report;
    let passed = cases - failures - expected_failures - unsupported - not_tried;
    if passed == *cases && report.verdict == Verdict::Conforms {
        return format!("all {cases} cases pass");
    }
    let mut text = format!("of {cases} cases {passed} pass");
    for (count, what) in [
        (*failures, "fail"),
        (*expected_failures, "fail as expected"),
        (*unsupported, "are not supported"),
        (*not_tried, "are not tried"),
        (unexpected_passes.len(), "expected failures do not occur"),
        (missing_ops.len(), "ops of the profile are missing"),
    ] {
        if count > 0 {
            let _ = write!(text, ", {count} {what}");
        }
    }
    text
}
