//! The catalogue as data, and the rules that every entry obeys.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::expr::Expr;

/// Tensor formats in the order of `Format` in `plugin-api/src/format.rs`; the position is the bit of the mask.
pub(crate) const FORMATS: [&str; 9] =
    ["F32", "BF16", "I32", "I64", "U8", "FP8_ROW32", "FP8_TILE32", "FP4_ROW32", "FP4_ROW16"];

/// Families; a new one is added here first, so that a slip of the pen is not one.
const FAMILIES: [&str; 13] = [
    "copy",
    "norm",
    "linear",
    "quantize",
    "rope",
    "hyper_connection",
    "cache",
    "compress",
    "select",
    "attention",
    "moe",
    "engram",
    "sample",
];

/// Profiles; likewise.
const PROFILES: [&str; 1] = ["v41-text"];

pub(crate) struct Catalogue {
    /// By id.
    pub(crate) ops: Vec<Op>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Op {
    pub(crate) id: u32,
    pub(crate) name: String,
    pub(crate) version: u32,
    pub(crate) family: String,
    pub(crate) profiles: Vec<String>,
    pub(crate) summary: String,
    pub(crate) semantics: String,
    pub(crate) contract: Contract,
    #[serde(rename = "arg")]
    pub(crate) args: Vec<Arg>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Contract {
    /// EXACT, ULP or BOUND.
    pub(crate) class: String,
    #[serde(default)]
    pub(crate) bound: String,
    #[serde(default)]
    pub(crate) accumulator: String,
    #[serde(default)]
    pub(crate) rounding: String,
    #[serde(default)]
    pub(crate) nan: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    Tensor,
    TensorList,
    U32,
    I32,
    F32,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Role {
    In,
    Out,
    Inout,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Arg {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) role: Option<Role>,
    #[serde(default)]
    pub(crate) dtypes: Vec<String>,
    #[serde(default)]
    pub(crate) shape: Vec<Expr>,
    /// Length of a tensor list.
    pub(crate) len: Option<Expr>,
    /// The argument whose format this one shares.
    pub(crate) like: Option<String>,
    #[serde(default)]
    pub(crate) optional: bool,
    /// A scalar may also be known to shapes under another name than its own.
    pub(crate) symbol: Option<String>,
    pub(crate) doc: String,
}

impl Arg {
    pub(crate) fn is_tensor(&self) -> bool {
        matches!(self.kind, Kind::Tensor | Kind::TensorList)
    }

    /// Name under which shapes know a scalar.
    pub(crate) fn shape_symbol(&self) -> &str {
        self.symbol.as_deref().unwrap_or(&self.name)
    }

    pub(crate) fn writes(&self) -> bool {
        matches!(self.role, Some(Role::Out | Role::Inout))
    }

    /// Field name in Rust; `Op::check` keeps keywords out.
    pub(crate) fn field(&self) -> &str {
        &self.name
    }

    pub(crate) fn format_mask(&self) -> u32 {
        self.dtypes.iter().fold(0, |mask, name| {
            let bit = FORMATS.iter().position(|f| f == name).expect("checked when read");
            mask | 1 << bit
        })
    }
}

impl Op {
    /// `rms_norm` -> `RmsNorm`.
    pub(crate) fn type_name(&self) -> String {
        self.name
            .split('_')
            .map(|word| {
                let mut chars = word.chars();
                chars.next().map_or(String::new(), |c| c.to_ascii_uppercase().to_string() + chars.as_str())
            })
            .collect()
    }

    /// `rms_norm` -> `DI_OP_RMS_NORM`.
    pub(crate) fn c_constant(&self) -> String {
        format!("DI_OP_{}", self.name.to_uppercase())
    }

    /// `rms_norm` -> `DiArgsRmsNormV1`.
    pub(crate) fn args_type(&self) -> String {
        format!("DiArgs{}V{}", self.type_name(), self.version)
    }
}

impl Catalogue {
    pub(crate) fn read(dir: &Path) -> Result<Self> {
        let mut ops = Vec::new();
        for entry in std::fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
            let path = entry?.path();
            if path.extension().is_none_or(|e| e != "toml") {
                continue;
            }
            let text = std::fs::read_to_string(&path)?;
            let op: Op = toml::from_str(&text).with_context(|| format!("{} is not an op", path.display()))?;
            op.check().with_context(|| format!("in {}", path.display()))?;
            ensure!(
                path.file_stem().is_some_and(|s| *s == *op.name),
                "{} must be named {}.toml",
                path.display(),
                op.name
            );
            ops.push(op);
        }
        ops.sort_by_key(|op| op.id);
        for pair in ops.windows(2) {
            ensure!(pair[0].id != pair[1].id, "{} and {} both have id {}", pair[0].name, pair[1].name, pair[0].id);
        }
        Ok(Self { ops })
    }

    /// Profile names, sorted.
    pub(crate) fn profiles(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.ops.iter().flat_map(|op| op.profiles.iter().map(String::as_str)).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

impl Op {
    fn check(&self) -> Result<()> {
        ensure!(self.id > 0 && self.id < 0x8000_0000, "id {} belongs to vendors or is 0", self.id);
        ensure!(
            ["EXACT", "ULP", "BOUND"].contains(&self.contract.class.as_str()),
            "unknown contract class {}",
            self.contract.class
        );
        ensure!(FAMILIES.contains(&self.family.as_str()), "unknown family {}; there are {FAMILIES:?}", self.family);
        for profile in &self.profiles {
            ensure!(PROFILES.contains(&profile.as_str()), "unknown profile {profile}; there are {PROFILES:?}");
        }
        for arg in &self.args {
            let name = &arg.name;
            ensure!(!["type", "in", "loop", "match", "dims"].contains(&name.as_str()), "{name} cannot be a field name");
            if !arg.is_tensor() {
                ensure!(arg.role.is_none() && arg.shape.is_empty() && !arg.optional, "{name} is a scalar");
                continue;
            }
            ensure!(arg.role.is_some(), "{name} needs a role");
            ensure!(!arg.shape.is_empty() && arg.shape.len() <= 4, "{name} needs one to four dimensions");
            ensure!(arg.kind != Kind::TensorList || arg.len.is_some(), "{name} needs a length");
            ensure!(!arg.dtypes.is_empty(), "{name} needs dtypes");
            for dtype in &arg.dtypes {
                ensure!(FORMATS.contains(&dtype.as_str()), "{name}: unknown dtype {dtype}");
            }
            if let Some(like) = &arg.like {
                ensure!(self.args.iter().any(|a| a.name == *like), "{name} is like the unknown {like}");
            }
        }
        Ok(())
    }
}
