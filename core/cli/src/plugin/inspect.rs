//! `deepinfer plugin inspect`: everything that one plugin says of itself.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::anyhow;
use deepinfer_runtime::{
    BackendDetails, BackendReport, BackendState, Candidate, DeviceReport, LinkInfo, Manifest, OpReport, Runtime,
    Selection, VendorOp, memory_in_words,
};
use serde::Serialize;

use super::probe::Prober;
use super::survey::Survey;
use crate::args::PluginInspectArgs;
use crate::failure::Failure;
use crate::output::Output;
use crate::terminal::printable;

#[derive(Serialize)]
struct Inspection<'a> {
    /// What the manifest says, if the file is one.
    manifest: Option<&'a Manifest>,
    #[serde(flatten)]
    report: &'a BackendReport,
}

/// Runs the command.
///
/// # Errors
/// The file is no usable plugin ([`Failure::Input`]); the report cannot be written.
pub(crate) fn run(args: &PluginInspectArgs) -> Result<(), Failure> {
    let prober = || Prober { limit: Duration::from_secs(args.timeout), shows_words: true };
    let candidate = find(&args.plugin, prober())?;
    let prober = prober();
    let report = prober.probe(&candidate, &args.options)?;
    let path = report.path.display();
    let refusal = match &report.state {
        BackendState::Refused { reason } => Some(anyhow!("{reason}")),
        BackendState::Fatal { how } => {
            Some(anyhow!("{path}: {how}; a process that loads this plugin cannot contain that"))
        }
        BackendState::Layer { .. } | BackendState::Loaded(_) => None,
    };
    if args.json {
        let inspection = Inspection { manifest: candidate.manifest(), report: &report };
        let json = serde_json::to_string_pretty(&inspection).map_err(Failure::fault)?;
        Output::stdout()?.write(&(json + "\n"))?;
    } else if refusal.is_none() {
        Output::stdout()?.write(&printable(&text_of(&report, candidate.manifest())))?;
    }
    refusal.map_or(Ok(()), |reason| Err(Failure::Input(reason)))
}

/// The plugin in a file, or that which is selected by a name.
fn find(plugin: &str, prober: Prober) -> Result<Candidate, Failure> {
    let file = Path::new(plugin);
    // A name has neither; a file of the current folder may look like one.
    if plugin.contains(['/', '.']) || file.exists() {
        return Ok(Candidate::of_path(file));
    }
    let runtime = Runtime::from_environment().map_err(Failure::input)?;
    let selection = Selection::parse(plugin).map_err(Failure::input)?;
    let mut survey = Survey::new(&runtime, &selection, prober);
    let chosen = survey.choose()?.1.map_err(Failure::input)?;
    Ok(survey.candidates()[chosen.index].clone())
}

fn text_of(report: &BackendReport, manifest: Option<&Manifest>) -> String {
    let mut text = format!("{}\n", one_line(&report.path.display().to_string()));
    // Writing to a string cannot fail, here and below.
    if let Some(manifest) = manifest {
        let (file, priority) = (one_line(&manifest.path.display().to_string()), manifest.priority);
        let _ = writeln!(text, "  manifest         {file}");
        let vendor = one_line(&manifest.vendor);
        let _ = match vendor.trim() {
            "" => writeln!(text, "  priority         {priority}"),
            vendor => writeln!(text, "  vendor           {vendor}, priority {priority}"),
        };
        if !manifest.devices.is_empty() {
            let ids: Vec<String> = manifest.devices.iter().map(ToString::to_string).collect();
            let _ = writeln!(text, "  PCI devices      {}", ids.join(", "));
        }
    }
    match &report.state {
        BackendState::Layer { name } => {
            let _ = writeln!(text, "  name             {}", one_line(name));
            let _ = writeln!(text, "  kind             layer: it goes over a backend, by DEEPINFER_LAYERS");
        }
        BackendState::Loaded(details) => describe(&mut text, details),
        BackendState::Refused { .. } | BackendState::Fatal { .. } => {}
    }
    text
}

fn describe(text: &mut String, details: &BackendDetails) {
    let mut line = |what: &str, value: String| {
        let _ = writeln!(text, "  {what:16} {}", one_line(&value));
    };
    line("name", details.name.clone());
    line("version", details.version.clone());
    line("build", details.build.clone());
    details.other_catalogue.iter().for_each(|difference| line("catalogue", difference.clone()));
    line("plugin ABI", format!("{}, needs a core of minor {} or later", details.abi, details.min_core_minor));
    line("flags", or_none(&details.flags));
    line("optional tables", or_none(&details.tables));
    match &details.no_device {
        Some(reason) => line("devices", format!("none: {reason}")),
        None => line("devices", details.devices.len().to_string()),
    }
    details.devices.iter().for_each(|device| describe_device(text, device));
    details.links.iter().for_each(|link| describe_link(text, link));
    let _ = writeln!(text, "  {:16} {}", "implementations", details.ops.len());
    let widest = |length: fn(&OpReport) -> usize| details.ops.iter().map(length).max().unwrap_or(0);
    let widths = [widest(|op| op_name(op).chars().count()), widest(|op| op.implementation.chars().count())];
    details.ops.iter().for_each(|op| describe_op(text, op, widths));
    if let Some(problem) = &details.vendor_ops_problem {
        let _ = writeln!(text, "  {:16} not readable: {}", "own ops", one_line(problem));
    } else if !details.vendor_ops.is_empty() {
        let _ = writeln!(text, "  {:16} {}", "own ops", details.vendor_ops.len());
    }
    details.vendor_ops.iter().for_each(|op| describe_vendor_op(text, op));
    for profile in &details.profiles {
        let state = match profile.missing.len() {
            0 => format!("complete, {} ops", profile.required),
            all if all == profile.required => format!("lacks all {all} ops"),
            some => format!("lacks {some} of {} ops: {}", profile.required, profile.missing.join(", ")),
        };
        let _ = writeln!(text, "  {:16} {state}", format!("profile {}", profile.name));
    }
}

fn or_none(words: &[String]) -> String {
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}

fn describe_device(text: &mut String, DeviceReport { info, spaces }: &DeviceReport) {
    let (name, arch) = (one_line(&info.name), one_line(&info.arch));
    let node = if info.numa_node < 0 { String::new() } else { format!(", NUMA node {}", info.numa_node) };
    let (memory, units) = (memory_in_words(info.memory_bytes), info.compute_units);
    let emulated = if info.is_emulated { ", emulated on this processor" } else { "" };
    let _ =
        writeln!(text, "    device {}: {name} ({arch}, {memory}, {units} compute units{node}{emulated})", info.index);
    for space in spaces {
        let (id, kind, align, grain) = (space.id, &space.kind, space.min_align, space.granularity);
        let bytes = if space.total_bytes == 0 { String::new() } else { format!(", {}", gib(space.total_bytes)) };
        let _ = writeln!(text, "      space {id}: {kind}, alignment {align}, granularity {grain}{bytes}");
    }
}

/// A link in words.
pub(crate) fn describe_link(text: &mut String, link: &LinkInfo) {
    let LinkInfo { from, to, class, hops, bytes_per_s, latency_ns, peer_copy, peer_access } = link;
    let mut parts = vec![class.clone()];
    for (holds, words) in [(*peer_copy, "peer copies"), (*peer_access, "peer access")] {
        parts.extend(holds.then(|| words.to_owned()));
    }
    parts.extend((*hops > 0).then(|| format!("{hops} hops")));
    parts.extend((*bytes_per_s > 0).then(|| format!("{:.1} GB/s", *bytes_per_s as f64 / 1e9)));
    parts.extend((*latency_ns > 0).then(|| format!("{latency_ns} ns")));
    let _ = writeln!(text, "    link {from} to {to}: {}", parts.join(", "));
}

fn op_name(op: &OpReport) -> String {
    format!("{}@{}", one_line(&op.name), op.version)
}

fn describe_op(text: &mut String, op: &OpReport, [op_width, width]: [usize; 2]) {
    let mut parts = vec![format!("priority {}", op.priority)];
    parts.extend(op.flags.iter().map(|flag| flag.replace('_', " ")));
    // A user who names it would get the other.
    let is_misnamed = op.is_own && op.is_named_as_known;
    for (holds, words) in [
        (op.has_supports, "may decline calls"),
        (op.has_plan, "plans calls"),
        (!op.in_catalogue && !is_misnamed, "not in this core's catalogue"),
        (is_misnamed, "an own op with the name of one of the catalogue: rename it"),
    ] {
        parts.extend(holds.then(|| words.to_owned()));
    }
    let (name, implementation) = (op_name(op), one_line(&op.implementation));
    let _ = writeln!(text, "    {name:op_width$}  {implementation:width$}  ({})", parts.join(", "));
}

fn describe_vendor_op(text: &mut String, op: &VendorOp) {
    let (name, id, bytes) = (one_line(&op.name), op.id, op.args_size);
    let _ = writeln!(text, "    {name}@{} ({id:#x}, {}, arguments of {bytes} bytes)", op.version, op.contract);
    for arg in &op.args {
        let optional = if arg.optional { ", optional" } else { "" };
        let (name, kind, role) = (one_line(&arg.name), &arg.kind, &arg.role);
        let _ = writeln!(text, "      {name}: {kind}, {role}{optional}, at byte {}", arg.offset);
    }
}

/// Bytes in words.
pub(crate) fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}

/// A value of a plugin: its line feeds must not look like lines of the report. [`printable`] does the rest.
pub(crate) fn one_line(value: &str) -> String {
    value.replace('\n', "\\n")
}
