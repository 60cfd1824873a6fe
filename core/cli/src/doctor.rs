//! `deepinfer doctor`: the machine, its drivers, the plugins, and what is selected. No part fails because another does.

use std::fmt::Write;
use std::time::Duration;

use deepinfer_runtime::{
    BackendReport, BackendState, Layers, OpenOptions, Origin, PciDevice, PciLink, Runtime, SearchPath, Selection, Step,
    Topology,
};
use serde::Serialize;

use crate::args::DoctorArgs;
use crate::failure::Failure;
use crate::model;
use crate::output::Output;
use crate::plugin::inspect::{describe_link, gib, one_line};
use crate::plugin::probe::Prober;
use crate::plugin::steps;
use crate::plugin::survey::Survey;
use crate::settings::{KNOWN, Settings};
use crate::terminal::printable;

/// What is said of a variable of our prefix that the program does not know.
const NOT_OURS: &str = "nothing in DeepInfer itself reads it; a plugin may";

#[derive(Serialize)]
struct Report {
    /// Version of this program.
    deepinfer: &'static str,
    /// Version of the plugin ABI that it speaks.
    plugin_abi: String,
    topology: Topology,
    /// Variables that the program reads, and behind them all others of its prefix that are set.
    settings: Vec<Setting>,
    /// Directories that were searched, in order.
    searched: Vec<Place>,
    /// Every plugin, in the order of the search.
    plugins: Vec<BackendReport>,
    /// What was decided about each, unless the settings cannot be understood.
    decision: Vec<Step>,
    /// What is selected, with its layers; `null` if nothing.
    selected: Option<String>,
    /// Why nothing is selected.
    problem: Option<String>,
}

#[derive(Serialize)]
struct Setting {
    name: String,
    /// `null` when it is not set.
    value: Option<String>,
    /// Whether the program reads it; of others only a plugin may know.
    is_known: bool,
}

/// What is set of the variables that the program knows, and what else is set.
fn settings() -> Vec<Setting> {
    let mut set = Settings::of_environment().for_report();
    let known = KNOWN.map(|name| Setting { value: set.remove(name), name: name.to_owned(), is_known: true });
    let others = set.into_iter().map(|(name, value)| Setting { name, value: Some(value), is_known: false });
    known.into_iter().chain(others).collect()
}

#[derive(Serialize)]
struct Place {
    path: String,
    origin: Origin,
    /// Whether there is such a directory.
    exists: bool,
}

/// Runs the command.
///
/// # Errors
/// The report cannot be written.
pub(crate) fn run(args: &DoctorArgs) -> Result<(), Failure> {
    let report = Report::new(Prober { limit: Duration::from_secs(args.timeout), shows_words: true });
    let text = if args.json {
        serde_json::to_string_pretty(&report).map_err(Failure::fault)? + "\n"
    } else {
        printable(&report.text())
    };
    Output::stdout()?.write(&text)
}

impl Report {
    fn new(prober: Prober) -> Self {
        let search = SearchPath::from_environment();
        let place = |(path, origin): (&std::path::Path, Origin)| Place {
            path: path.display().to_string(),
            origin,
            exists: path.is_dir(),
        };
        let searched = search.places().map(place).collect();
        // What cannot be understood is told once, as the problem of the selection; the plugins are reported all the same.
        let (mut problem, mut selected, mut decision) = (None, None, Vec::new());
        let mut noted = |text: String| {
            problem.get_or_insert(text);
        };
        let layers = Layers::from_env().map_err(|e| noted(e.to_string()));
        let selection = model::choose_accelerator(None).map_err(|e| noted(e.to_string()));
        let pins = OpenOptions::from_environment().map_err(|e| noted(e.to_string()));
        let is_understood = layers.is_ok() && selection.is_ok() && pins.is_ok();
        let runtime = Runtime::new(search).with_layers(layers.unwrap_or_default());
        let selection = selection.unwrap_or_else(|()| Selection::default());
        let mut survey = Survey::new(&runtime, &selection, prober);
        let plugins = survey.report().unwrap_or_else(|failure| {
            noted(failure.sentence());
            Vec::new()
        });
        if is_understood {
            match survey.decide() {
                Ok((steps, Ok(sentence))) => (decision, selected) = (steps, Some(sentence)),
                Ok((steps, Err(error))) => {
                    decision = steps;
                    noted(error.to_string());
                }
                Err(failure) => noted(failure.sentence()),
            }
        }
        Self {
            deepinfer: env!("CARGO_PKG_VERSION"),
            plugin_abi: deepinfer_parity::abi_version(),
            topology: Topology::of_this_machine(),
            settings: settings(),
            searched,
            plugins,
            decision,
            selected,
            problem,
        }
    }

    fn text(&self) -> String {
        let mut text = format!("deepinfer {}, plugin ABI {}\n\nmachine\n", self.deepinfer, self.plugin_abi);
        machine(&mut text, &self.topology);
        // Writing to a string cannot fail, here and below.
        text += "\nsettings\n";
        for Setting { name, value, is_known } in &self.settings {
            let value = value.as_ref().map_or_else(|| "not set".to_owned(), |value| format!("{value:?}"));
            let note = if *is_known { String::new() } else { format!(" ({NOT_OURS})") };
            let _ = writeln!(text, "  {:34} {}{note}", one_line(name), one_line(&value));
        }
        text += "\nsearched for plugins\n";
        for Place { path, exists, .. } in &self.searched {
            let note = if *exists { "" } else { " (there is none)" };
            let _ = writeln!(text, "  {}{note}", one_line(path));
        }
        text += "\nplugins\n";
        if self.plugins.is_empty() {
            text += "  none\n";
        }
        for report in &self.plugins {
            for line in report.to_string().lines() {
                let _ = writeln!(text, "  {line}");
            }
            if let BackendState::Loaded(details) = &report.state {
                details.links.iter().for_each(|link| describe_link(&mut text, link));
            }
        }
        if !self.decision.is_empty() {
            let _ = write!(text, "\nselection\n{}", steps(&self.decision));
        }
        let _ = match &self.selected {
            Some(selected) => writeln!(text, "\nselected: {}", one_line(selected)),
            None => writeln!(text, "\nselected: nothing: {}", self.problem.as_deref().unwrap_or_default()),
        };
        text
    }
}

fn machine(text: &mut String, machine: &Topology) {
    let mut line = |what: &str, value: String| {
        let _ = writeln!(text, "  {what:12} {}", one_line(&value));
    };
    let or_unknown = |bytes: Option<u64>| bytes.map_or_else(|| "unknown".to_owned(), gib);
    let cpu = &machine.cpu;
    let model = if cpu.model.is_empty() { std::env::consts::ARCH } else { &cpu.model };
    line("processor", format!("{model}, {} logical processors", cpu.logical));
    line("features", cpu.features.join(" "));
    let memory = &machine.memory;
    line("memory", format!("{}, {} available", or_unknown(memory.total_bytes), or_unknown(memory.available_bytes)));
    for node in &machine.numa_nodes {
        line(&format!("NUMA node {}", node.id), format!("processors {}, {}", node.cpus, or_unknown(node.memory_bytes)));
    }
    match &machine.pci_devices {
        None => line("PCI devices", "the system does not tell".to_owned()),
        Some(devices) if devices.is_empty() => line("PCI devices", "no display or accelerator".to_owned()),
        Some(devices) => devices.iter().for_each(|device| line("PCI device", pci(device))),
    }
    for driver in &machine.drivers {
        let version = driver.version.as_ref().map_or_else(String::new, |version| format!(", {version}"));
        line("driver", format!("{}: {}{version}", driver.vendor, driver.path.display()));
    }
    if machine.drivers.is_empty() {
        line("drivers", "none found".to_owned());
    }
}

fn pci(device: &PciDevice) -> String {
    let mut parts = vec![format!("{} {:04x}:{:04x} {}", device.address, device.vendor, device.device, device.class)];
    parts.push(device.driver.as_ref().map_or_else(|| "no driver".to_owned(), |name| format!("driver {name}")));
    parts.extend(device.numa_node.map(|node| format!("NUMA node {node}")));
    let link = |PciLink { gigatransfers, lanes }: PciLink| format!("{gigatransfers} GT/s x{lanes}");
    match (device.link, device.link_at_best) {
        (Some(now), Some(best)) if now != best => parts.push(format!("PCIe {} of {}", link(now), link(best))),
        (now, best) => parts.extend(now.or(best).map(|either| format!("PCIe {}", link(either)))),
    }
    parts.join(", ")
}
