//! The parity cases of an op with images in the place of the plugin's, up to the first that fails. Every trial is a process of its
//! own: images and the seed are read once, and after most mistakes the device does not work any more.

use std::path::Path;
use std::process::Command;

use deepinfer_parity::{Check, Outcome, cases, run_case};
use deepinfer_runtime::{OpenDevice, Runtime, SearchPath, Selection};

use crate::list::Subject;

/// What came of a trial.
pub(crate) enum Finding {
    /// The case that fails, and its first line.
    Noticed(String),
    /// All of so many cases pass.
    Nothing(usize),
    /// The plugin has no host twin.
    Skipped,
}

/// Checks in the order in which they notice most for the time that they take.
const CHECKS: [Check; 8] = [
    Check::Value,
    Check::Strided,
    Check::Bounds,
    Check::Refusal,
    Check::Rows,
    Check::Empty,
    Check::Large,
    Check::Poison,
];

/// The op of the child.
const OP: &str = "ASCEND_MUTANT_OP";

/// Tries the images of a folder on a seed.
pub(crate) fn run(images: &Path, Subject { op, fake, .. }: &Subject, seed: usize) -> Result<Finding, String> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "child", "--ignored", "--nocapture"])
        .env(OP, op)
        .env("DEEPINFER_ASCEND_KERNELS", images)
        .env("DEEPINFER_TWIN_SEED", seed.to_string())
        .env_remove("DEEPINFER_FAKE_ACL");
    if !fake.is_empty() {
        command.env("DEEPINFER_FAKE_ACL", fake);
    }
    let output = command.output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = |prefix: &str| text.lines().find_map(|line| line.strip_prefix(prefix)).map(str::to_owned);
    if let Some(how) = line("noticed by ") {
        return Ok(Finding::Noticed(how));
    }
    if text.contains("skipped: ") {
        return Ok(Finding::Skipped);
    }
    let count = line("passed: ").and_then(|count| count.parse().ok());
    count.map(Finding::Nothing).ok_or_else(|| {
        format!(
            "{op}, seed {seed}: the trial ended with {}:\n{text}{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        )
    })
}

/// A trial, in its process.
pub(crate) fn child() {
    let op = std::env::var(OP).unwrap();
    let Some(device) = device() else { return println!("skipped: there is no host twin") };
    let mut passed = 0;
    // The first number of every check, then the second, and so forth: a mistake mostly shows soon in some of them.
    let lists: Vec<Vec<_>> = CHECKS.iter().map(|&check| cases(&op, check, 0, None)).collect();
    let longest = lists.iter().map(Vec::len).max().unwrap_or(0);
    for case in (0..longest).flat_map(|number| lists.iter().filter_map(move |list: &Vec<_>| list.get(number))) {
        match run_case(&device, case) {
            Outcome::Passed { .. } => passed += 1,
            Outcome::Failed(failure) => {
                let text = failure.to_string();
                return println!("\nnoticed by {case}: {}", text.lines().next().unwrap_or_default());
            }
            Outcome::Unsupported { reason } | Outcome::NotTried { reason } => panic!("{case}: {reason}"),
        }
    }
    println!("\npassed: {passed}");
}

fn device() -> Option<OpenDevice> {
    let runtime = Runtime::new(SearchPath::from_environment());
    let selected = runtime.select(&Selection::parse("ascend").unwrap()).map_err(|error| error.to_string());
    match selected.and_then(|(backend, device)| backend.open(device).map_err(|error| error.to_string())) {
        Ok(device) => device.info().is_emulated.then_some(device),
        Err(error) if error.contains("was built without its Ascend kernels") => None,
        Err(error) => panic!("{error}"),
    }
}
