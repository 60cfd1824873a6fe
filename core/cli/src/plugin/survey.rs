//! Which plugins there are, what each turned out to be, and what is selected from them. Nothing is loaded in this process,
//! so that a plugin that aborts, exits or hangs is passed over like any other that is broken.

use std::collections::HashMap;

use deepinfer_runtime::{
    BackendReport, BackendState, Candidate, Choice, Chosen, Decision, Runtime, SelectError, Selection, Step, Tried,
};

use super::probe::Prober;
use crate::failure::Failure;

/// The plugins of this machine.
pub(crate) struct Survey<'a> {
    runtime: &'a Runtime,
    selection: &'a Selection,
    prober: Prober,
    candidates: Vec<Candidate>,
    /// What came of trying a candidate with some options.
    tried: HashMap<(usize, String), BackendReport>,
}

impl<'a> Survey<'a> {
    /// Looks for the candidates of a selection.
    pub(crate) fn new(runtime: &'a Runtime, selection: &'a Selection, prober: Prober) -> Self {
        let candidates = runtime.candidates_for(selection);
        Self { runtime, selection, prober, candidates, tried: HashMap::new() }
    }

    /// Candidates, in the order of the search.
    pub(crate) fn candidates(&self) -> &[Candidate] {
        &self.candidates
    }

    /// Tries every plugin that is found, and before them a file that is selected by its path.
    ///
    /// # Errors
    /// No process can be started.
    pub(crate) fn report(&mut self) -> Result<Vec<BackendReport>, Failure> {
        if matches!(self.selection.choice, Choice::Path(_)) {
            let named = self.try_one(0, &self.selection.options)?.clone();
            let found = self.runtime.search().candidates();
            let others = found.iter().map(|candidate| self.prober.probe(candidate, ""));
            return std::iter::once(Ok(named)).chain(others).collect();
        }
        (0..self.candidates.len()).map(|index| Ok(self.try_one(index, "")?.clone())).collect()
    }

    /// What a candidate turned out to be, if it was tried.
    pub(crate) fn tried(&self, index: usize) -> Option<&BackendReport> {
        self.tried.iter().find(|((tried, _), _)| *tried == index).map(|(_, report)| report)
    }

    fn try_one(&mut self, index: usize, options: &str) -> Result<&BackendReport, Failure> {
        let key = (index, options.to_owned());
        if !self.tried.contains_key(&key) {
            let report = self.prober.probe(&self.candidates[index], options)?;
            self.tried.insert(key.clone(), report);
        }
        Ok(&self.tried[&key])
    }

    /// What is selected, or why nothing, and how that came about.
    ///
    /// # Errors
    /// No process can be started.
    pub(crate) fn choose(&mut self) -> Result<(Vec<Step>, Result<Chosen, SelectError>), Failure> {
        let (runtime, selection, candidates) = (self.runtime, self.selection, self.candidates.clone());
        let mut failure = None;
        let Decision { steps, chosen } =
            runtime.decide(selection, &candidates, &mut |index, options| match self.try_one(index, options) {
                Ok(report) => report.tried(),
                Err(error) => {
                    failure = Some(error);
                    Tried::RefusedElsewhere(format!("{}: it was not tried", candidates[index].path().display()))
                }
            });
        failure.map_or(Ok((steps, chosen)), Err)
    }

    /// As [`Survey::choose`]; puts the layers over what is chosen, and says in a sentence what opening it would do.
    ///
    /// # Errors
    /// No process can be started.
    pub(crate) fn decide(&mut self) -> Result<(Vec<Step>, Result<String, SelectError>), Failure> {
        let (steps, chosen) = self.choose()?;
        let Chosen { index, device } = match chosen {
            Ok(chosen) => chosen,
            Err(error) => return Ok((steps, Err(error))),
        };
        let options = self.selection.options.as_str();
        let report = if self.runtime.layers().is_empty() {
            self.try_one(index, options)?.clone()
        } else {
            self.prober.probe_under_layers(&self.candidates[index], options)?
        };
        Ok((steps, outcome(report, device)))
    }
}

/// What opening the device would do, as far as it can be told without.
fn outcome(report: BackendReport, device: u32) -> Result<String, SelectError> {
    let path = report.path;
    match report.state {
        BackendState::Loaded(details) if details.missing_ops.is_empty() => {
            let is_emulated = details.devices.get(device as usize).is_some_and(|device| device.info.is_emulated);
            let emulated = if is_emulated { ", emulated on this processor" } else { "" };
            Ok(format!("device {device} of {} ({}){emulated}", details.title(), path.display()))
        }
        BackendState::Loaded(details) => {
            Err(SelectError::MissingOps { name: details.title(), path, ops: details.missing_ops })
        }
        BackendState::Refused { reason } => Err(SelectError::RefusedElsewhere(reason)),
        BackendState::Fatal { how } => Err(SelectError::Fatal { path, how }),
        BackendState::Layer { name } => {
            Err(SelectError::RefusedElsewhere(format!("{}: {name} is a layer, not a backend", path.display())))
        }
    }
}
