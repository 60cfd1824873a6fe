//! Which implementations of each op a device may use: what the backend offers, what the user pinned, what was required.

use std::sync::OnceLock;

use deepinfer_plugin_api::abi::{
    DI_OPF_REQUIRE_BATCH_INVARIANT, DI_OPF_REQUIRE_DETERMINISTIC, DI_PF_BATCH_INVARIANT, DI_PF_DETERMINISTIC, DiRunFn,
};
use deepinfer_plugin_api::generated::OPS;
use deepinfer_plugin_api::{OpInfo, op_by_name};

use crate::backend::{LoadedBackend, PluginError};
use crate::find::privileges_are_raised;

/// Pins implementations: `op=implementation,op=implementation`. Read once, and not with raised privileges.
pub(crate) const PIN_VARIABLE: &str = "DEEPINFER_OP_IMPL";

/// How a device is opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// Ops of which one implementation alone may be used.
    pub pins: Vec<Pin>,
    /// Use only what declares that equal arguments give equal bits.
    pub require_deterministic: bool,
    /// Use only what declares that a row's result depends on that row alone.
    pub require_batch_invariant: bool,
}

/// The only implementation of an op that may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// Name of the op.
    pub op: String,
    /// Name of its implementation.
    pub implementation: String,
}

/// Why a device was not opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The plugin's reason.
    #[error(transparent)]
    Plugin(#[from] PluginError),
    /// The text that pins implementations is none.
    #[error("{text:?} pins no implementations: {problem}; write op=implementation,op=implementation ({PIN_VARIABLE})")]
    MalformedPins {
        /// Text.
        text: String,
        /// What is wrong.
        problem: String,
    },
    /// An implementation of an op is pinned that the backend does not have.
    #[error(
        "{op}={implementation} is pinned ({PIN_VARIABLE}), but the backend {backend} has no implementation of such an \
         op that this core can call; it has implementations of {}", has.join(", ")
    )]
    UnknownOp {
        /// Backend.
        backend: String,
        /// Op that is pinned.
        op: String,
        /// Its implementation.
        implementation: String,
        /// Ops that there are.
        has: Vec<String>,
    },
    /// An implementation is pinned that the backend does not have.
    #[error(
        "{op}={implementation} is pinned ({PIN_VARIABLE}), but the implementations of {op} in the backend {backend} are {}",
        has.join(", ")
    )]
    UnknownImplementation {
        /// Backend.
        backend: String,
        /// Op that is pinned.
        op: String,
        /// Its implementation.
        implementation: String,
        /// Implementations that there are.
        has: Vec<String>,
    },
    /// What was required leaves ops without an implementation.
    #[error(
        "the backend {backend} cannot be opened as {requirement}: of {} no implementation{} declares that it is; do not \
         require it, or use another backend", ops.join(", "), if *pinned { " that is pinned" } else { "" }
    )]
    Undeclared {
        /// Backend.
        backend: String,
        /// What is required.
        requirement: String,
        /// Whether some of the ops are pinned.
        pinned: bool,
        /// Ops that the backend implements, and that have no implementation left.
        ops: Vec<String>,
    },
}

impl OpenOptions {
    /// What the environment says: the pins of `DEEPINFER_OP_IMPL`. Read once per process; ignored with raised privileges.
    ///
    /// # Errors
    /// [`OpenError::MalformedPins`].
    pub fn from_environment() -> Result<Self, OpenError> {
        static PINS: OnceLock<Result<Vec<Pin>, OpenError>> = OnceLock::new();
        let read = || match std::env::var_os(PIN_VARIABLE).filter(|_| !privileges_are_raised()) {
            Some(text) => parse_pins(&text.to_string_lossy()),
            None => Ok(Vec::new()),
        };
        let pins = PINS.get_or_init(read).clone()?;
        Ok(Self { pins, ..Self::default() })
    }

    /// `DI_PF_*` that an implementation or a plan must declare.
    pub(crate) fn required_declarations(&self) -> u32 {
        let of = |required, flag| if required { flag } else { 0 };
        of(self.require_deterministic, DI_PF_DETERMINISTIC) | of(self.require_batch_invariant, DI_PF_BATCH_INVARIANT)
    }

    /// `DI_OPF_*` of every call.
    pub(crate) fn call_flags(&self) -> u32 {
        let of = |required, flag| if required { flag } else { 0 };
        of(self.require_deterministic, DI_OPF_REQUIRE_DETERMINISTIC)
            | of(self.require_batch_invariant, DI_OPF_REQUIRE_BATCH_INVARIANT)
    }
}

/// Reads `op=implementation,op=implementation`; nothing pins nothing.
pub(crate) fn parse_pins(text: &str) -> Result<Vec<Pin>, OpenError> {
    let malformed = |problem: String| OpenError::MalformedPins { text: text.to_owned(), problem };
    let mut pins: Vec<Pin> = Vec::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (op, implementation) = match part.split_once('=') {
            Some((op, implementation)) if !op.is_empty() && !implementation.is_empty() => (op, implementation),
            _ => return Err(malformed(format!("{part:?} is not of the form op=implementation"))),
        };
        if pins.iter().any(|pin| pin.op == op) {
            return Err(malformed(format!("{op} is pinned twice")));
        }
        pins.push(Pin { op: op.to_owned(), implementation: implementation.to_owned() });
    }
    Ok(pins)
}

/// What flags say, as the end of a sentence: "deterministic and batch-invariant".
pub(crate) fn describe_flags(declarations: u32) -> String {
    let names = [(DI_PF_DETERMINISTIC, "deterministic"), (DI_PF_BATCH_INVARIANT, "batch-invariant")];
    let named: Vec<&str> = names.iter().filter(|(flag, _)| declarations & flag != 0).map(|&(_, name)| name).collect();
    named.join(" and ")
}

/// How an op is run.
#[derive(Clone, Debug)]
pub(crate) enum Implementations {
    /// There is none of the catalogue's version.
    None,
    /// The best one takes every call; its index in the backend's list.
    Direct(DiRunFn, usize),
    /// The best one wants to see the call first; indices into the backend's list, best first.
    Planned(Vec<usize>),
    /// The plugin is older than some arguments of the op: calls that have one of them are refused, since it would pass over
    /// what it cannot see.
    Older(Box<Implementations>),
}

/// The implementations of every op of the catalogue, by its id.
pub(crate) fn table(backend: &LoadedBackend, options: &OpenOptions) -> Result<Vec<Implementations>, OpenError> {
    check_pins(backend, options)?;
    let ids = OPS.iter().map(|op| op.id as usize + 1).max().unwrap_or(0);
    let mut table = vec![Implementations::None; ids];
    let mut undeclared = Vec::new();
    let required = options.required_declarations();
    for op in OPS {
        let mut found = candidates(backend, op);
        let is_offered = !found.is_empty();
        if let Some(pin) = options.pins.iter().find(|pin| pin.op == op.name) {
            found.retain(|&i| backend.ops[i].impl_name == pin.implementation);
        }
        // A plan may declare for its calls what the implementation does not declare for all.
        found.retain(|&i| {
            let entry = &backend.ops[i].entry;
            entry.flags & required == required || entry.plan.is_some()
        });
        if is_offered && found.is_empty() {
            undeclared.push(op.name.to_owned());
        }
        let implementations = how_to_run(backend, found);
        let is_older = op.args.iter().any(|arg| arg.since > backend.abi.1);
        table[op.id as usize] =
            if is_older { Implementations::Older(Box::new(implementations)) } else { implementations };
    }
    if undeclared.is_empty() {
        return Ok(table);
    }
    Err(OpenError::Undeclared {
        backend: backend.name().to_owned(),
        requirement: describe_flags(required),
        pinned: options.pins.iter().any(|pin| undeclared.contains(&pin.op)),
        ops: undeclared,
    })
}

/// Implementations of the catalogue's version, best first.
fn candidates(backend: &LoadedBackend, op: &OpInfo) -> Vec<usize> {
    let mut found: Vec<usize> = (0..backend.ops.len())
        .filter(|&i| backend.ops[i].entry.op_id == op.id && backend.ops[i].entry.op_version == op.version)
        .collect();
    // Stable: of equal priorities the first in the plugin's table.
    found.sort_by_key(|&i| std::cmp::Reverse(backend.ops[i].entry.priority));
    found
}

fn how_to_run(backend: &LoadedBackend, found: Vec<usize>) -> Implementations {
    let Some(&best) = found.first() else { return Implementations::None };
    let entry = &backend.ops[best].entry;
    match entry.run {
        Some(run) if entry.supports.is_none() && entry.plan.is_none() => Implementations::Direct(run, best),
        _ => Implementations::Planned(found),
    }
}

/// Every pin names an implementation that there is.
fn check_pins(backend: &LoadedBackend, options: &OpenOptions) -> Result<(), OpenError> {
    for Pin { op, implementation } in &options.pins {
        let (op, implementation) = (op.clone(), implementation.clone());
        let offered = op_by_name(&op).map(|info| candidates(backend, info)).unwrap_or_default();
        let backend_name = backend.name().to_owned();
        if offered.is_empty() {
            let offers = |info: &&&OpInfo| !candidates(backend, info).is_empty();
            let has = OPS.iter().filter(offers).map(|info| info.name.to_owned()).collect();
            return Err(OpenError::UnknownOp { backend: backend_name, op, implementation, has });
        }
        let has: Vec<String> = offered.iter().map(|&i| backend.ops[i].impl_name.clone()).collect();
        if !has.contains(&implementation) {
            return Err(OpenError::UnknownImplementation { backend: backend_name, op, implementation, has });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_are_pairs() {
        let pin = |op: &str, implementation: &str| Pin { op: op.to_owned(), implementation: implementation.to_owned() };
        assert_eq!(parse_pins("").unwrap(), []);
        assert_eq!(parse_pins("rstd=short, gather=v2=b,").unwrap(), [pin("rstd", "short"), pin("gather", "v2=b")]);
        for (text, part) in [
            ("rstd", "\"rstd\" is not of the form op=implementation"),
            ("=x", "not of the form"),
            ("a=", "not of the form"),
            ("a=b,a=c", "a is pinned twice"),
        ] {
            let error = parse_pins(text).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("DEEPINFER_OP_IMPL"), "{error}");
        }
    }

    #[test]
    fn requirements_are_flags_of_calls_and_of_declarations() {
        let options = OpenOptions { require_deterministic: true, ..OpenOptions::default() };
        assert_eq!((options.call_flags(), options.required_declarations()), (1, 8));
        let options = OpenOptions { require_batch_invariant: true, ..options };
        assert_eq!((options.call_flags(), options.required_declarations()), (3, 12));
        assert_eq!(describe_flags(12), "deterministic and batch-invariant");
        assert_eq!(OpenOptions::default().call_flags(), 0);
    }
}
