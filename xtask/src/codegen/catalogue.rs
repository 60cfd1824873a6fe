//! The catalogue as data, and the rules that every entry obeys.

use std::collections::BTreeSet;
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

/// Classes of contracts.
const CLASSES: [&str; 4] = ["EXACT", "ULP", "BOUND", "DIST"];

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
    /// Values that a call may not have, beyond formats, ranks and extents.
    pub(crate) refuses: Vec<Refusal>,
    pub(crate) contract: Contract,
    #[serde(rename = "arg")]
    pub(crate) args: Vec<Arg>,
}

/// A wrong value: `experts, weights: K above E` in the catalogue.
#[derive(Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Refusal {
    /// Arguments of which the error must name one.
    pub(crate) args: Vec<String>,
    /// When they are wrong.
    pub(crate) when: String,
}

impl TryFrom<String> for Refusal {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.split_once(": ") {
            Some((args, when)) if !when.trim().is_empty() => {
                Ok(Self { args: args.split(", ").map(str::to_owned).collect(), when: when.to_owned() })
            }
            _ => Err(format!("{text:?} is not of the form \"argument: when it is wrong\"")),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Contract {
    /// One of [`CLASSES`].
    pub(crate) class: String,
    /// Units in the last place of F32: all that an ULP contract allows, and what a BOUND allows beside its sum.
    pub(crate) ulps: Option<u32>,
    /// Of a BOUND: the length of the sum.
    pub(crate) terms: Option<Expr>,
    /// Of a BOUND: the factor on gamma.
    pub(crate) factor: Option<f64>,
    /// How the numbers compose, where an op has more than one stage; of a DIST: what is drawn, and how it is tested.
    #[serde(default)]
    pub(crate) bound: String,
    pub(crate) accumulator: String,
    pub(crate) rounding: String,
    pub(crate) denormals: String,
    pub(crate) nan: String,
    /// What happens when an index occurs twice.
    pub(crate) duplicates: String,
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
    /// ABI minor that brought it, if it came after the op.
    #[serde(default)]
    pub(crate) since: u16,
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
        self.check_contract().context("[contract]")?;
        ensure!(FAMILIES.contains(&self.family.as_str()), "unknown family {}; there are {FAMILIES:?}", self.family);
        for profile in &self.profiles {
            ensure!(PROFILES.contains(&profile.as_str()), "unknown profile {profile}; there are {PROFILES:?}");
        }
        for name in self.refuses.iter().flat_map(|refusal| &refusal.args) {
            ensure!(self.args.iter().any(|arg| arg.name == *name), "refuses: there is no argument {name}");
        }
        for pair in self.args.windows(2) {
            ensure!(
                pair[0].since <= pair[1].since,
                "{} came before {} and must stand before it",
                pair[1].name,
                pair[0].name
            );
        }
        for arg in &self.args {
            let name = &arg.name;
            ensure!(arg.since == 0 || arg.optional, "{name} came after the op, so that it must be optional");
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

    /// A class has its numbers and no others; the policies are stated, if only as "none".
    fn check_contract(&self) -> Result<()> {
        let c = &self.contract;
        ensure!(CLASSES.contains(&c.class.as_str()), "unknown class {}; there are {CLASSES:?}", c.class);
        let (is_ulp, is_bound) = (c.class == "ULP", c.class == "BOUND");
        ensure!(is_bound == c.terms.is_some(), "terms belongs to BOUND and only there; the class is {}", c.class);
        ensure!(is_bound == c.factor.is_some(), "factor belongs to BOUND and only there; the class is {}", c.class);
        ensure!(!is_ulp || c.ulps.is_some(), "ULP needs ulps");
        ensure!(is_ulp || is_bound || c.ulps.is_none(), "ulps belongs to ULP and BOUND; the class is {}", c.class);
        ensure!(c.factor.is_none_or(|factor| factor >= 1.0), "no kernel is within a factor below 1");
        ensure!(c.class != "EXACT" || c.bound.is_empty(), "EXACT allows nothing that a bound could explain");
        ensure!(c.class != "DIST" || !c.bound.is_empty(), "DIST needs a bound: what is drawn, and how it is tested");
        for (field, text) in [
            ("accumulator", &c.accumulator),
            ("rounding", &c.rounding),
            ("denormals", &c.denormals),
            ("nan", &c.nan),
            ("duplicates", &c.duplicates),
        ] {
            ensure!(!text.trim().is_empty(), "{field} is empty; say \"none\" where there is nothing to say");
        }
        let names = self.extent_names();
        for symbol in c.terms.iter().flat_map(Expr::symbols) {
            ensure!(names.contains(symbol), "terms: {symbol} is no extent and no u32 of the op; there are {names:?}");
        }
        Ok(())
    }

    /// Names with a value in every call: symbols of shapes, and u32 arguments.
    pub(crate) fn extent_names(&self) -> BTreeSet<&str> {
        let exprs = self.args.iter().flat_map(|arg| arg.shape.iter().chain(&arg.len));
        let scalars = self.args.iter().filter(|arg| arg.kind == Kind::U32);
        exprs.flat_map(Expr::symbols).chain(scalars.map(|arg| arg.name.as_str())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The catalogue's entry of an op with `old` replaced by `new` in its contract.
    fn changed(op: &str, old: &str, new: &str) -> Result<()> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plugin-api/catalogue/ops").join(format!("{op}.toml"));
        let text = std::fs::read_to_string(path)?;
        assert!(text.contains(old), "{op} has no {old:?}");
        toml::from_str::<Op>(&text.replacen(old, new, 1))?.check()
    }

    #[test]
    fn refusals_name_arguments() {
        for (old, new, complaint) in [
            ("\"groups: 0\"", "\"group: 0\"", "there is no argument group"),
            ("\"groups: 0\"", "\"groups\"", "is not of the form"),
            ("refuses = [\n    \"groups: 0\",\n]\n", "", "missing field `refuses`"),
        ] {
            let error = changed("linear", old, new).expect_err(complaint);
            assert!(format!("{error:#}").contains(complaint), "{new:?}: {error:#}");
        }
    }

    #[test]
    fn a_contract_without_its_numbers_is_refused() {
        changed("linear", "factor = 2.0", "factor = 2.0").expect("the entry itself is right");
        for (op, old, new, complaint) in [
            ("linear", "terms = \"K\"\n", "", "terms belongs to BOUND"),
            ("linear", "terms = \"K\"", "terms = \"Z\"", "Z is no extent"),
            ("linear", "factor = 2.0", "factor = 0.5", "below 1"),
            ("linear", "factor = 2.0\n", "", "factor belongs to BOUND"),
            ("linear", "class = \"BOUND\"", "class = \"EXACT\"", "terms belongs to BOUND and only there"),
            ("linear", "class = \"BOUND\"", "class = \"CLOSE\"", "unknown class CLOSE"),
            ("rope", "ulps = 2\n", "", "ULP needs ulps"),
            ("gather", "class = \"EXACT\"", "class = \"EXACT\"\nulps = 1", "ulps belongs to"),
            ("gather", "class = \"EXACT\"", "class = \"DIST\"", "DIST needs a bound"),
            ("gather", "denormals = \"kept\"", "denormals = \" \"", "denormals is empty"),
            ("gather", "denormals = \"kept\"\n", "", "missing field `denormals`"),
        ] {
            let error = changed(op, old, new).expect_err(complaint);
            assert!(format!("{error:#}").contains(complaint), "{op}, {new:?}: {error:#}");
        }
    }
}
