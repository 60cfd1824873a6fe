//! Names that are close to one that there is not.

/// The name that was probably meant: the one that takes the fewest changes, if these are few for its length. Of as many, the
/// first.
pub(crate) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let lower = |text: &str| text.to_lowercase().replace('_', "-").chars().collect::<Vec<char>>();
    let meant = lower(name);
    // Less than one change for three characters: names of three may only differ in their case.
    let is_near = |other: &[char], changes: usize| 3 * changes < other.len().max(meant.len());
    let near = known.into_iter().filter_map(|name| {
        let other = lower(name);
        let changes = changes(&meant, &other);
        is_near(&other, changes).then_some((changes, name))
    });
    near.min_by_key(|(changes, _)| *changes).map(|(_, name)| name)
}

/// Characters to put in, to take out, to replace, or to swap with the next one, to make `b` of `a`.
fn changes(a: &[char], b: &[char]) -> usize {
    // Row i of the table: how many make the first characters of `b` of the first i of `a`.
    let mut rows = vec![(0..=b.len()).collect::<Vec<usize>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut fewest = replaced.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                fewest = fewest.min(rows[i - 2][j - 2] + 1);
            }
            row.push(fewest);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_changes_lead_to_a_name_and_many_do_not() {
        let known = ["cpu", "ascend", "nvidia", "my-npu", "auto"];
        for (name, wanted) in [
            ("Ascend", Some("ascend")),
            ("asend", Some("ascend")),
            ("acsend", Some("ascend")),
            ("nvida", Some("nvidia")),
            ("CPU", Some("cpu")),
            ("my_npu", Some("my-npu")),
            ("aut", Some("auto")),
            ("tpu", None),
            ("cuda", None),
            ("", None),
            ("a name that is much longer than all others", None),
        ] {
            assert_eq!(nearest(name, known), wanted, "{name}");
        }
        assert_eq!(nearest("npuu", ["npu-b", "npu", "npux"]), Some("npu"));
    }

    #[test]
    fn changes_are_counted() {
        let count = |a: &str, b: &str| changes(&a.chars().collect::<Vec<_>>(), &b.chars().collect::<Vec<_>>());
        let pairs = [("", "", 0), ("", "ab", 2), ("abc", "abc", 0), ("abcd", "acbd", 1), ("kitten", "sitting", 3)];
        for (a, b, wanted) in pairs {
            assert_eq!((count(a, b), count(b, a)), (wanted, wanted), "{a} {b}");
        }
    }
}
