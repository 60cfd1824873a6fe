//! The mistake that is made most: an order between instructions is left out. Every statement of the kernels that orders is one,
//! and must be noticed but for those that `mutants.toml` lists as spare.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::list::{Spare, Subject};

/// How a statement that orders begins.
const BEGINNINGS: [&str; 4] = ["order<HardEvent::", "order<AscendC::HardEvent::", "vector_barrier()", "PipeBarrier<"];
/// The file where they are defined.
const DEFINITIONS: &str = "common/sync.h";

/// A statement that orders.
pub(crate) struct Order {
    /// Its file below `kernels/`.
    pub(crate) file: String,
    line: usize,
    /// Where it stands in the file, without its semicolon.
    at: Range<usize>,
    statement: String,
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: without {}", self.file, self.line, self.statement)
    }
}

impl Order {
    /// Leaves it out in a copy of the kernels.
    pub(crate) fn leave_out(&self, kernels: &Path) -> Result<(), String> {
        let path = kernels.join(&self.file);
        let mut text = fs::read_to_string(&path).map_err(|error| format!("{self}: {error}"))?;
        text.replace_range(self.at.clone(), "");
        fs::write(path, text).map_err(|error| format!("{self}: {error}"))
    }

    /// Whether it is in a text of its file.
    fn is_in(&self, range: &Range<usize>) -> bool {
        range.start <= self.at.start && self.at.end <= range.end
    }
}

/// All of them.
pub(crate) fn all(kernels: &Path) -> Vec<Order> {
    let mut files: Vec<PathBuf> =
        [kernels.to_owned(), kernels.join("common")].iter().flat_map(|f| sources(f)).collect();
    files.sort();
    let mut all = Vec::new();
    for path in files {
        let file = path.strip_prefix(kernels).expect("it lies there").to_str().expect("a plain name").to_owned();
        if file != DEFINITIONS {
            all.extend(in_text(&file, &fs::read_to_string(&path).unwrap()));
        }
    }
    all
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let is_source = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "cpp" || extension == "h");
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).filter(is_source).collect()
}

fn in_text(file: &str, text: &str) -> Vec<Order> {
    let mut all = Vec::new();
    let mut offset = 0;
    for (line, whole) in text.split_inclusive('\n').enumerate() {
        let code = whole.split("//").next().unwrap_or_default();
        let places = BEGINNINGS.iter().flat_map(|beginning| code.match_indices(beginning).map(|(place, _)| place));
        // A longer name may end like one of them.
        let begins = |&place: &usize| !code[..place].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let mut places: Vec<usize> = places.filter(begins).collect();
        places.sort_unstable();
        for place in places {
            let Some(length) = code[place..].find(';') else { continue };
            // `AscendC::` belongs to it.
            let start = code[..place].strip_suffix("AscendC::").map_or(place, str::len);
            let statement = code[start..place + length].to_owned();
            all.push(Order {
                file: file.to_owned(),
                line: line + 1,
                at: offset + start..offset + place + length,
                statement,
            });
        }
        offset += whole.len();
    }
    all
}

/// What notices a mistake in a file of `kernels/`: the file itself, or those that include it, in the order of their names.
pub(crate) fn subjects(kernels: &Path, file: &str) -> Vec<Subject> {
    let is_kernel = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "cpp");
    let mut subjects = Vec::new();
    for path in sources(kernels).into_iter().filter(is_kernel) {
        if included(kernels, &path).contains(file) {
            let name = path.file_stem().expect("it has a name").to_str().expect("a plain name");
            subjects.extend(Subject::of(name));
        }
    }
    subjects.sort_by(|a, b| a.kernel.cmp(&b.kernel));
    subjects
}

/// A file and all of `common/` that it includes.
fn included(kernels: &Path, file: &Path) -> BTreeSet<String> {
    let (mut found, mut open) = (BTreeSet::new(), vec![file.to_owned()]);
    while let Some(path) = open.pop() {
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let name = path.strip_prefix(kernels).expect("it lies there").to_str().expect("a plain name");
        if found.insert(name.to_owned()) {
            let names = text.lines().filter_map(|line| line.strip_prefix("#include \"")?.strip_suffix('"'));
            open.extend(names.map(|name| kernels.join("common").join(name.trim_start_matches("common/"))));
        }
    }
    found
}

/// Which of the orders are spare, and why. What fits none of them, or several, is a problem.
pub(crate) fn spare<'a>(
    kernels: &Path,
    orders: &[Order],
    spares: &'a [Spare],
) -> Result<Vec<Option<&'a Spare>>, String> {
    let mut found: Vec<Option<&Spare>> = orders.iter().map(|_| None).collect();
    for spare in spares {
        let path = kernels.join(&spare.file);
        let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let places: Vec<usize> = text.match_indices(&spare.find).map(|(place, _)| place).collect();
        let &[place] = places.as_slice() else {
            return Err(format!("{}: {:?} must occur once, not {} times", spare.file, spare.find, places.len()));
        };
        let range = place..place + spare.find.len();
        let inside: Vec<usize> =
            (0..orders.len()).filter(|&i| orders[i].file == spare.file && orders[i].is_in(&range)).collect();
        let &[one] = inside.as_slice() else {
            return Err(format!("{}: {:?} has {} orders, not one", spare.file, spare.find, inside.len()));
        };
        found[one] = Some(spare);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::in_text;

    #[test]
    fn statements_that_order_are_found() {
        let text = "a();\n  order<HardEvent::V_S>(); vector_barrier(); // order<HardEvent::V_S>();\nAscendC::PipeBarrier<PIPE_ALL>();\n";
        let found: Vec<String> = in_text("x.cpp", text).iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            [
                "x.cpp:2: without order<HardEvent::V_S>()",
                "x.cpp:2: without vector_barrier()",
                "x.cpp:3: without AscendC::PipeBarrier<PIPE_ALL>()"
            ]
        );
    }
}
