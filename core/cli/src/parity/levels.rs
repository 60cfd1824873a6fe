//! Which levels to run.

use deepinfer_parity::Level;

/// Levels, lowest first, each once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Levels(pub(crate) Vec<Level>);

/// Reads a list such as `L0,L2` or `L0..L4`.
pub(crate) fn levels(text: &str) -> Result<Levels, String> {
    let mut chosen = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once("..").unwrap_or((part, part));
        let (first, last) = (first.parse::<Level>()?, last.parse::<Level>()?);
        if first > last {
            return Err(format!("{part} names no level; the lower one comes first"));
        }
        chosen.extend(Level::ALL.into_iter().filter(|level| (first..=last).contains(level)));
    }
    chosen.sort_unstable();
    chosen.dedup();
    Ok(Levels(chosen))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_ranges() {
        use Level::{L0, L1, L2, L4};
        assert_eq!(levels("L2").unwrap().0, [L2]);
        assert_eq!(levels("l4,L0..L2,L1").unwrap().0, [L0, L1, L2, L4]);
        assert_eq!(levels("L0..L5").unwrap().0, Level::ALL);
        for (text, part) in [("", "no level"), ("L9", "no level"), ("L2..L0", "comes first")] {
            assert!(levels(text).unwrap_err().contains(part), "{text}");
        }
    }
}
