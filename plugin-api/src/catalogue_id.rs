//! Which catalogue a build was made from. A plugin says it in its build text, so that tools can tell two versions apart
//! before a call is refused.

use std::fmt;

use crate::generated::{DIGEST, OPS, PROFILES};

/// The profile whose ops are counted.
const PROFILE: &str = "v41-text";

/// A catalogue in one line: `catalogue 00ff00ff00ff00ff, 29 ops, 29 of v41-text`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CatalogueId {
    /// Of everything that both sides must agree on.
    pub digest: u64,
    /// Ops.
    pub ops: usize,
    /// Ops that the text profile requires.
    pub required: usize,
}

impl CatalogueId {
    /// The one of this build.
    pub fn ours() -> Self {
        let required = PROFILES.iter().find(|(name, _)| *name == PROFILE).map_or(0, |(_, ops)| ops.len());
        Self { digest: DIGEST, ops: OPS.len(), required }
    }

    /// Finds one in the build text of a plugin. A plugin that is not made with the Rust SDK has none.
    pub fn find(build: &str) -> Option<Self> {
        let (_, text) = build.split_once("catalogue ")?;
        let mut parts = text.split(", ");
        let digest = u64::from_str_radix(parts.next()?, 16).ok()?;
        let ops = parts.next()?.strip_suffix(" ops")?.parse().ok()?;
        let required = parts.next()?.split_once(" of ")?.0.parse().ok()?;
        Some(Self { digest, ops, required })
    }

    /// A sentence on what another catalogue has that this one has not; `None` if they are the same.
    pub fn difference(&self, plugin: &Self) -> Option<String> {
        if self == plugin {
            return None;
        }
        let (ours, theirs) = (self.required, plugin.required);
        Some(match ours == theirs && self.ops == plugin.ops {
            false => format!(
                "built from another catalogue: the core has {ours} ops of {PROFILE}, the plugin knows {theirs}; build it \
                 with the SDK of this core"
            ),
            true => format!(
                "built from another catalogue: both have {ours} ops of {PROFILE}, but of other versions or arguments (digest \
                 {:016x}, the plugin {:016x}); build it with the SDK of this core",
                self.digest, plugin.digest
            ),
        })
    }
}

impl fmt::Display for CatalogueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "catalogue {:016x}, {} ops, {} of {PROFILE}", self.digest, self.ops, self.required)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_found_in_a_build_text() {
        let ours = CatalogueId::ours();
        assert_eq!(CatalogueId::find(&format!("deepinfer-plugin-api 0.1.0, {ours}")), Some(ours));
        assert_eq!(CatalogueId::find(&format!("{ours}, rustc 1.95")), Some(ours));
        for other in ["", "gcc 14", "catalogue of ours", "catalogue 12, many ops, 3 of v41-text"] {
            assert_eq!(CatalogueId::find(other), None, "{other}");
        }
    }

    #[test]
    fn a_difference_is_a_sentence() {
        let ours = CatalogueId { digest: 1, ops: 30, required: 29 };
        assert_eq!(ours.difference(&ours), None);
        let fewer = ours.difference(&CatalogueId { digest: 2, ops: 27, required: 27 }).unwrap();
        assert!(fewer.contains("the core has 29 ops of v41-text, the plugin knows 27"), "{fewer}");
        let others = ours.difference(&CatalogueId { digest: 2, ..ours }).unwrap();
        assert!(others.contains("other versions or arguments (digest 0000000000000001"), "{others}");
    }
}
