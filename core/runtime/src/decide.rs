//! How a selection is decided, candidate by candidate.
//!
//! The decision is apart from the loading: in the process that will compute, trying a candidate means loading it; a
//! report tries each in a process of its own and decides from what came of it. Both ask the same candidates in the same
//! order.

use std::path::PathBuf;

use serde::Serialize;

use crate::TEXT_PROFILE;
use crate::backend::{LoadedBackend, describe_missing, missing_ops};
use crate::find::{Candidate, Origin, SearchPath, file_is_named, stem};
use crate::load::LoadError;
use crate::manifest::PluginKind;
use crate::near::nearest;
use crate::select::{AUTO, Choice, Rejection, SelectError, Selection};

/// What became of trying a candidate.
#[derive(Clone, Debug)]
pub enum Tried {
    /// A backend that started.
    Backend {
        /// Its name.
        name: String,
        /// Number of devices, at least 1, or why there is none.
        devices: Result<u32, String>,
        /// Whether the first device is the host's own processor, or why that cannot be told.
        first_is_cpu: Result<bool, String>,
        /// Whether the first device is a model of one, which is used only where a person names it.
        first_is_emulated: bool,
        /// Ops of the text profile that it lacks.
        missing_ops: Vec<String>,
    },
    /// A layer.
    Layer {
        /// Its name.
        name: String,
    },
    /// No usable plugin.
    Refused(LoadError),
    /// As [`Tried::Refused`], told by another process; a sentence that names the file.
    RefusedElsewhere(String),
    /// It ended another process that tried it, or did not come to an end there; how, in words.
    Fatal(String),
}

impl Tried {
    /// What a loaded backend is; opens no device.
    pub(crate) fn of(backend: &LoadedBackend) -> Self {
        let devices = match backend.device_count() {
            Ok(0) => Err("it found none".to_owned()),
            Ok(count) => Ok(count),
            Err(error) => Err(error.to_string()),
        };
        let first = devices.is_ok().then(|| backend.device_info(0).map_err(|error| error.to_string()));
        Self::Backend {
            name: backend.name().to_owned(),
            first_is_emulated: matches!(&first, Some(Ok(info)) if info.is_emulated),
            first_is_cpu: first.unwrap_or_else(|| Err("it has no device".to_owned())).map(|info| info.is_cpu()),
            devices,
            missing_ops: missing_ops(backend, TEXT_PROFILE).into_iter().map(str::to_owned).collect(),
        }
    }
}

/// A decision, and how it came about.
#[derive(Clone, Debug)]
pub struct Decision {
    /// One for each candidate, in their order.
    pub steps: Vec<Step>,
    /// What is selected, or why nothing.
    pub chosen: Result<Chosen, SelectError>,
}

/// What is selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// Number of the candidate.
    pub index: usize,
    /// Device of the backend.
    pub device: u32,
}

/// What was decided about one candidate.
#[derive(Clone, Debug, Serialize)]
pub struct Step {
    /// File.
    #[serde(serialize_with = "crate::report::lossy")]
    pub path: PathBuf,
    /// Why its directory is searched.
    pub origin: Origin,
    /// Name, as far as it is known.
    pub name: Option<String>,
    /// Priority of its manifest, or 0.
    pub priority: i32,
    /// What was decided.
    #[serde(flatten)]
    pub verdict: Verdict,
}

/// What was decided about a candidate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Verdict {
    /// It is the one.
    Selected {
        /// Why.
        reason: String,
    },
    /// It would do, or might; another one is better.
    NotNeeded {
        /// Why, in one sentence that names the file.
        reason: String,
    },
    /// It does not do.
    PassedOver {
        /// Why, in one sentence that names the file.
        reason: String,
        /// The plugin is broken or incomplete; otherwise it merely has no device here, or is not what was asked for.
        is_at_fault: bool,
    },
    /// The decision was made without it.
    NotAsked,
}

/// Decides a selection. `present` are the PCI ids (vendor, device) of this machine, if they can be told.
pub(crate) fn decide(
    selection: &Selection,
    candidates: &[Candidate],
    search: &SearchPath,
    present: Option<&[(u16, u16)]>,
    try_one: &mut dyn FnMut(usize, &str) -> Tried,
) -> Decision {
    let mut deciding =
        Deciding { selection, candidates, search, steps: candidates.iter().map(step).collect(), try_one };
    let chosen = match &selection.choice {
        Choice::Auto => deciding.auto(present),
        Choice::Name(name) => deciding.name(name),
        Choice::Path(_) => deciding.path(),
    };
    Decision { steps: deciding.steps, chosen }
}

fn step(candidate: &Candidate) -> Step {
    Step {
        path: candidate.path().to_owned(),
        origin: candidate.origin(),
        name: candidate.manifest().map(|manifest| manifest.name.clone()),
        priority: candidate.priority(),
        verdict: Verdict::NotAsked,
    }
}

struct Deciding<'a> {
    selection: &'a Selection,
    candidates: &'a [Candidate],
    search: &'a SearchPath,
    steps: Vec<Step>,
    try_one: &'a mut dyn FnMut(usize, &str) -> Tried,
}

/// Why a candidate does not do.
struct Unfit {
    /// One sentence that names the file.
    reason: String,
    is_at_fault: bool,
}

impl Deciding<'_> {
    /// Starts a candidate and notes its name.
    fn try_one(&mut self, index: usize, options: &str) -> Tried {
        let tried = (self.try_one)(index, options);
        if let Tried::Backend { name, .. } | Tried::Layer { name } = &tried {
            self.steps[index].name = Some(name.clone());
        }
        tried
    }

    fn pass_over(&mut self, index: usize, Unfit { reason, is_at_fault }: Unfit) {
        self.steps[index].verdict = Verdict::PassedOver { reason, is_at_fault };
    }

    /// Candidates that were passed over, for an error.
    fn rejected(&self) -> Vec<Rejection> {
        let reason = |step: &Step| match &step.verdict {
            Verdict::PassedOver { reason, .. } => Some(Rejection { path: step.path.clone(), reason: reason.clone() }),
            _ => None,
        };
        self.steps.iter().filter_map(reason).collect()
    }

    fn searched(&self) -> Vec<PathBuf> {
        self.search.directories().to_vec()
    }

    fn auto(&mut self, present: Option<&[(u16, u16)]>) -> Result<Chosen, SelectError> {
        let mut order: Vec<usize> = (0..self.candidates.len()).collect();
        // Stable, so that the search path decides among equals.
        order.sort_by_key(|&index| std::cmp::Reverse(self.candidates[index].priority()));
        let mut usable: Vec<(usize, bool)> = Vec::new();
        for index in order {
            if let Some(error) = self.candidates[index].problem() {
                self.pass_over(index, Unfit { reason: error.to_string(), is_at_fault: true });
                continue;
            }
            let best = usable.first().map(|&(best, _)| self.candidates[best].priority());
            if let Some(best) = best.filter(|best| *best > self.candidates[index].priority()) {
                let (path, own) = (self.candidates[index].path().display(), self.candidates[index].priority());
                let reason = format!("{path}: its priority is {own}, and a backend of priority {best} works");
                self.steps[index].verdict = Verdict::NotNeeded { reason };
                continue;
            }
            match self.usable_for_text(index, present) {
                Ok(is_cpu) => usable.push((index, is_cpu)),
                Err(unfit) => self.pass_over(index, unfit),
            }
        }
        usable.sort_by_key(|&(_, is_cpu)| is_cpu);
        let Some(&(chosen, is_cpu)) = usable.first() else {
            return Err(SelectError::NoneUsable { rejected: self.rejected(), searched: self.searched() });
        };
        for &(index, other_is_cpu) in &usable[1..] {
            let path = self.candidates[index].path().display();
            let why = if other_is_cpu && !is_cpu { "a device goes before the processor" } else { "it comes later" };
            self.steps[index].verdict = Verdict::NotNeeded { reason: format!("{path}: it works, but {why}") };
        }
        let reason = "it is the first of the highest priority that works, devices before the processor".to_owned();
        self.steps[chosen].verdict = Verdict::Selected { reason };
        Ok(Chosen { index: chosen, device: 0 })
    }

    /// Whether the first device of a candidate is the host's processor, or why it is not for `auto`.
    fn usable_for_text(&mut self, index: usize, present: Option<&[(u16, u16)]>) -> Result<bool, Unfit> {
        let candidate = &self.candidates[index];
        let path = candidate.path().display();
        let unfit = |reason: String, is_at_fault: bool| Err(Unfit { reason, is_at_fault });
        if let Some(manifest) = candidate.manifest() {
            if manifest.kind == PluginKind::Layer {
                return unfit(layer_sentence(candidate, &manifest.name), false);
            }
            if let Some(reason) = absent_devices(candidate, present) {
                return unfit(reason, false);
            }
        }
        match self.try_one(index, "") {
            Tried::Fatal(how) => unfit(fatal(candidate, how).to_string(), true),
            Tried::Refused(error) => unfit(error.to_string(), true),
            Tried::RefusedElsewhere(reason) => unfit(reason, true),
            Tried::Layer { name } => unfit(layer_sentence(candidate, &name), false),
            Tried::Backend { name, devices: Err(reason), .. } => {
                unfit(format!("{path}: the backend {name} has no device: {reason}"), false)
            }
            Tried::Backend { name, first_is_emulated: true, .. } => unfit(
                format!(
                    "{path}: the first device of the backend {name} is emulated, and is used only when it is named"
                ),
                false,
            ),
            Tried::Backend { name, missing_ops, .. } if !missing_ops.is_empty() => {
                let missing = describe_missing(&missing_ops, TEXT_PROFILE);
                unfit(format!("{path}: the backend {name} does not implement {missing}"), true)
            }
            Tried::Backend { name, first_is_cpu, .. } => first_is_cpu.or_else(|reason| {
                unfit(format!("{path}: the backend {name} cannot describe its first device: {reason}"), true)
            }),
        }
    }

    /// The first candidate of a name: the backend's own, or the file's between `libdeepinfer_` and `.so`. Files whose own
    /// name contains it are tried first, so that other plugins are not loaded without need; only they get the options,
    /// which mean nothing to others. A manifest says the name, so that its library is loaded only if it is meant.
    fn name(&mut self, name: &str) -> Result<Chosen, SelectError> {
        let candidates = self.candidates;
        let in_file = name.replace('-', "_");
        let is_likely = |candidate: &Candidate| match candidate.manifest() {
            Some(manifest) => manifest.name == name,
            None => stem(candidate.path()).contains(&in_file),
        };
        let (likely, others): (Vec<usize>, Vec<usize>) =
            (0..candidates.len()).partition(|&index| is_likely(&candidates[index]));
        let file_is_meant = |candidate: &Candidate| match candidate.manifest() {
            Some(manifest) => manifest.name == name,
            None => {
                // Of a manifest that cannot be read, the name says as much.
                let own = stem(candidate.path());
                let own = own.strip_prefix("libdeepinfer_").unwrap_or_else(|| own.trim_end_matches(".deepinfer"));
                own == in_file || own == name || own.starts_with(&format!("{in_file}_"))
            }
        };
        let mut meant: Option<String> = None;
        // What could have been meant instead.
        let mut names = vec![AUTO.to_owned()];
        let options = self.selection.options.as_str();
        let order = likely.into_iter().map(|index| (index, options)).chain(others.into_iter().map(|index| (index, "")));
        for (index, options) in order {
            let candidate = &candidates[index];
            let path = candidate.path().display();
            let mut is_other = |name: &str| {
                names.push(name.to_owned());
                (format!("{path}: this is the backend {name}"), false)
            };
            let known = candidate.manifest().filter(|manifest| manifest.name != name);
            let (reason, is_at_fault) = match known {
                Some(manifest) if manifest.kind == PluginKind::Layer => {
                    (layer_sentence(candidate, &manifest.name), false)
                }
                Some(manifest) => is_other(&manifest.name),
                None => match self.try_one(index, options) {
                    Tried::Backend { name: own, devices, .. }
                        if own == name || candidate.manifest().is_none() && file_is_named(candidate.path(), name) =>
                    {
                        return self.device(index, own, devices);
                    }
                    Tried::Backend { name: own, .. } => is_other(&own),
                    Tried::Layer { name } => (layer_sentence(candidate, &name), false),
                    Tried::Fatal(how) => (fatal(candidate, how).to_string(), true),
                    Tried::Refused(error) => (error.to_string(), true),
                    Tried::RefusedElsewhere(reason) => (reason, true),
                },
            };
            // A plugin that calls itself so, but does not start, is the one that was meant.
            let is_meant = is_at_fault && file_is_meant(candidate);
            meant = meant.or_else(|| is_meant.then(|| reason.clone()));
            self.pass_over(index, Unfit { reason, is_at_fault });
        }
        Err(match meant {
            Some(reason) => SelectError::Refused { name: name.to_owned(), reason },
            None => {
                let (rejected, searched) = (self.rejected(), self.searched());
                let nearest = nearest(name, names.iter().map(String::as_str)).map(str::to_owned);
                SelectError::UnknownName { name: name.to_owned(), nearest, rejected, searched }
            }
        })
    }

    fn path(&mut self) -> Result<Chosen, SelectError> {
        let (index, options) = (0, self.selection.options.clone());
        match self.try_one(index, &options) {
            Tried::Backend { name, devices, .. } => self.device(index, name, devices),
            Tried::Refused(error) => {
                self.pass_over(index, Unfit { reason: error.to_string(), is_at_fault: true });
                Err(SelectError::Load(error))
            }
            Tried::RefusedElsewhere(reason) => {
                self.pass_over(index, Unfit { reason: reason.clone(), is_at_fault: true });
                Err(SelectError::RefusedElsewhere(reason))
            }
            Tried::Layer { name } => {
                let path = self.candidates[index].path().to_owned();
                let error = LoadError::IsALayer { path, name };
                self.pass_over(index, Unfit { reason: error.to_string(), is_at_fault: false });
                Err(SelectError::Load(error))
            }
            Tried::Fatal(how) => {
                let error = fatal(&self.candidates[index], how);
                self.pass_over(index, Unfit { reason: error.to_string(), is_at_fault: true });
                Err(error)
            }
        }
    }

    /// The device of the backend that the user named.
    fn device(&mut self, index: usize, name: String, devices: Result<u32, String>) -> Result<Chosen, SelectError> {
        let (path, device) = (self.candidates[index].path().to_owned(), self.selection.device);
        let error = match devices {
            Ok(count) if device < count => {
                self.steps[index].verdict = Verdict::Selected { reason: "it was named".to_owned() };
                return Ok(Chosen { index, device });
            }
            Err(reason) => SelectError::NoDevice { name, path, reason },
            Ok(count) => SelectError::UnknownDevice { name, path, device, count },
        };
        self.pass_over(index, Unfit { reason: error.to_string(), is_at_fault: false });
        Err(error)
    }
}

fn fatal(candidate: &Candidate, how: String) -> SelectError {
    SelectError::Fatal { path: candidate.path().to_owned(), how }
}

fn layer_sentence(candidate: &Candidate, name: &str) -> String {
    format!("{}: {name} is a layer, not a backend", candidate.path().display())
}

/// Why a plugin has nothing to do here: its manifest names PCI devices, and this machine has none of them.
fn absent_devices(candidate: &Candidate, present: Option<&[(u16, u16)]>) -> Option<String> {
    let (manifest, present) = (candidate.manifest()?, present?);
    let is_here = present.iter().any(|&(vendor, device)| manifest.devices.iter().any(|id| id.covers(vendor, device)));
    if manifest.devices.is_empty() || is_here {
        return None;
    }
    let ids: Vec<String> = manifest.devices.iter().map(ToString::to_string).collect();
    let (path, name) = (candidate.path().display(), &manifest.name);
    Some(format!(
        "{path}: the backend {name} was not loaded: this machine has none of its PCI devices ({})",
        ids.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Name of a plugin, and its manifest's priority and devices; `None` stands for a library without a manifest.
    type Plugin<'a> = (&'a str, Option<(i32, &'a [&'a str])>);

    fn candidates(list: &[Plugin<'_>]) -> (tempfile::TempDir, Vec<Candidate>) {
        let folder = tempfile::tempdir().unwrap();
        let of = |(name, manifest): &Plugin<'_>| {
            let library = format!("libdeepinfer_{name}.so");
            std::fs::write(folder.path().join(&library), "").unwrap();
            let Some((priority, devices)) = manifest else { return Candidate::of_path(&folder.path().join(library)) };
            let manifest = serde_json::json!({
                "manifest_version": 1, "name": name, "vendor": "v", "version": "1", "library": library,
                "abi": {"major": 0, "minor": 2}, "arch": "x86_64", "os": "linux", "priority": priority,
                "devices": devices,
            });
            let path = folder.path().join(format!("{name}.deepinfer.json"));
            std::fs::write(&path, manifest.to_string()).unwrap();
            Candidate::of_path(&path)
        };
        let candidates = list.iter().map(of).collect();
        (folder, candidates)
    }

    fn backend(name: &str, is_cpu: bool) -> Tried {
        let (devices, first_is_cpu, missing_ops) = (Ok(2), Ok(is_cpu), Vec::new());
        Tried::Backend { name: name.to_owned(), devices, first_is_cpu, first_is_emulated: false, missing_ops }
    }

    /// Decides, and lists what was tried, by the names of the files and with the options.
    fn decided(
        selection: &str,
        candidates: &[Candidate],
        present: Option<&[(u16, u16)]>,
        result: impl Fn(&str) -> Tried,
    ) -> (Decision, Vec<String>) {
        let mut tried = Vec::new();
        let name = |path: &Path| stem(path).trim_start_matches("libdeepinfer_").to_owned();
        let selection = Selection::parse(selection).unwrap();
        let decision = decide(&selection, candidates, &SearchPath::default(), present, &mut |index, options| {
            let name = name(candidates[index].path());
            tried.push(format!("{name}?{options}"));
            result(&name)
        });
        (decision, tried)
    }

    #[test]
    fn auto_takes_the_highest_priority_that_works_and_tries_no_lower_one() {
        let list = [("low", Some((-1, &[][..]))), ("cpu", None), ("gpu", None), ("best", Some((9, &[][..])))];
        let (_folder, candidates) = candidates(&list);
        let works = |name: &str| backend(name, name == "cpu");
        let (decision, tried) = decided("auto", &candidates, None, works);
        assert_eq!((decision.chosen.unwrap(), tried), (Chosen { index: 3, device: 0 }, vec!["best?".to_owned()]));
        assert!(
            matches!(&decision.steps[0].verdict, Verdict::NotNeeded { reason } if reason.contains("priority is -1"))
        );

        // Of the others, which have the same priority, a device goes before the processor whatever the order.
        let without_best = |name: &str| if name == "best" { Tried::RefusedElsewhere("no".into()) } else { works(name) };
        let (decision, tried) = decided("auto", &candidates, None, without_best);
        assert_eq!((decision.chosen.unwrap().index, tried.join(" ").as_str()), (2, "best? cpu? gpu?"));
        assert!(
            matches!(&decision.steps[1].verdict, Verdict::NotNeeded { reason } if reason.contains("a device goes"))
        );
        assert_eq!(decision.steps[3].verdict, Verdict::PassedOver { reason: "no".into(), is_at_fault: true });
    }

    #[test]
    fn auto_takes_no_emulated_device() {
        let (_folder, candidates) = candidates(&[("a_twin", Some((9, &[][..]))), ("cpu", None)]);
        let result = |name: &str| match backend(name, name == "cpu") {
            Tried::Backend { name, devices, first_is_cpu, missing_ops, .. } if name == "a_twin" => {
                Tried::Backend { name, devices, first_is_cpu, first_is_emulated: true, missing_ops }
            }
            other => other,
        };
        let (decision, _) = decided("auto", &candidates, None, result);
        assert_eq!(decision.chosen.unwrap().index, 1);
        let Verdict::PassedOver { reason, is_at_fault: false } = &decision.steps[0].verdict else { panic!() };
        assert!(reason.ends_with("is emulated, and is used only when it is named"), "{reason}");
        assert_eq!(decided("a_twin", &candidates, None, result).0.chosen.unwrap().index, 0);
        // Nor where there is nothing else.
        assert!(decided("auto", &candidates[..1], None, result).0.chosen.is_err());
    }

    #[test]
    fn auto_does_not_load_plugins_whose_devices_are_absent() {
        let devices: &[&str] = &["10de:2901", "1ed5:*"];
        let (_folder, candidates) = candidates(&[("npu", Some((5, devices))), ("cpu", None)]);
        let works = |name: &str| backend(name, name == "cpu");
        let index = |present| decided("auto", &candidates, present, works).0.chosen.unwrap().index;
        assert_eq!(index(Some(&[(0x10de, 0x2900), (0x8086, 1)])), 1);
        assert_eq!(index(Some(&[(0x10de, 0x2901)])), 0);
        assert_eq!(index(Some(&[(0x1ed5, 7)])), 0);
        // Where the system does not tell, the plugin is asked.
        assert_eq!(index(None), 0);
        let (decision, tried) = decided("auto", &candidates, Some(&[]), works);
        assert_eq!(tried, ["cpu?"]);
        let Verdict::PassedOver { reason, is_at_fault: false } = &decision.steps[0].verdict else { panic!() };
        assert!(reason.ends_with("this machine has none of its PCI devices (10de:2901, 1ed5:*)"), "{reason}");
        // A backend that is named is asked all the same.
        assert_eq!(decided("npu:1", &candidates, Some(&[]), works).0.chosen.unwrap(), Chosen { index: 0, device: 1 });
    }

    #[test]
    fn a_plugin_that_ends_its_process_hides_no_other() {
        let (_folder, candidates) = candidates(&[("bomb", None), ("cpu", None)]);
        let result = |name: &str| if name == "bomb" { Tried::Fatal("killed".into()) } else { backend("cpu", true) };
        let (decision, _) = decided("auto", &candidates, None, result);
        assert_eq!(decision.chosen.unwrap().index, 1);
        let (decision, tried) = decided("cpu", &candidates, None, result);
        assert_eq!((decision.chosen.unwrap().index, tried), (1, vec!["cpu?".to_owned()]));
        let (decision, _) = decided("bomb", &candidates, None, result);
        let error = decision.chosen.unwrap_err().to_string();
        assert!(error.contains("\"bomb\" cannot be used") && error.contains("killed"), "{error}");
        let path = candidates[0].path().to_str().unwrap().to_owned();
        let (decision, _) = decided(&path, &candidates[..1], None, result);
        assert!(matches!(decision.chosen, Err(SelectError::Fatal { .. })));
    }

    #[test]
    fn a_name_loads_likely_files_first_and_only_they_get_the_options() {
        let list = [("other", None), ("known", Some((0, &[][..]))), ("my_npu", None)];
        let (_folder, candidates) = candidates(&list);
        let (decision, tried) = decided("my-npu?mode=1", &candidates, None, |name| backend(name, false));
        assert_eq!((decision.chosen.unwrap().index, tried.join(" ").as_str()), (2, "my_npu?mode=1"));
        assert_eq!(decision.steps[0].verdict, Verdict::NotAsked);
        // A name that no file shows is asked of those without a manifest; a manifest tells without.
        let inside = |name: &str| if name == "other" { backend("tpu", false) } else { backend(name, false) };
        let (decision, tried) = decided("tpu?mode=1", &candidates, None, inside);
        assert_eq!((decision.chosen.unwrap().index, tried.join(" ").as_str()), (0, "other?"));
        let (decision, tried) = decided("none", &candidates, None, inside);
        let error = decision.chosen.unwrap_err().to_string();
        assert!(error.contains("libdeepinfer_known.so: this is the backend known"), "{error}");
        assert_eq!(tried.join(" "), "other? my_npu?");
        assert!(!error.contains("is meant"), "{error}");
    }

    #[test]
    fn a_name_that_nobody_has_brings_the_nearest_one() {
        let list = [("described", Some((0, &[][..]))), ("other", None), ("watcher", None)];
        let (_folder, candidates) = candidates(&list);
        let result = |name: &str| match name {
            "watcher" => Tried::Layer { name: "watcher".to_owned() },
            _ => backend("gpu-x", false),
        };
        let error = |text: &str| decided(text, &candidates, None, result).0.chosen.unwrap_err().to_string();
        for (text, wanted) in [("GPU-X", "gpu-x"), ("gpux:1?a=b", "gpu-x"), ("descrbed", "described"), ("Auto", "auto")]
        {
            let error = error(text);
            assert!(error.contains(&format!("; perhaps \"{wanted}\" is meant; these plugins were found:")), "{error}");
        }
        // A layer is no accelerator.
        assert!(!error("watchr").contains("is meant"), "{}", error("watchr"));
    }
}
