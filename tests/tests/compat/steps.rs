//! Steps that may kill their process, each in a child or after the ones before it.
//!
//! A child says what it is about to do before it does it. When it dies, its last words name the step, and another child goes
//! on behind it.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

/// What a child is to do: variables of its environment.
const GROUP: &str = "DEEPINFER_TEST_STEPS";
const FIRST: &str = "DEEPINFER_TEST_FIRST_STEP";
/// Before the name of a step that begins.
const BEGINS: &str = "step begins: ";
/// Before the name of a step and what is wrong with it.
const WRONG: &str = "step is wrong: ";

/// How many steps a child takes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum PerChild {
    /// One: what it does can be done once in a process.
    One,
    /// All, as long as it lives.
    All,
}

/// The steps of a child.
pub(crate) struct Steps {
    first: usize,
    per_child: PerChild,
    next: usize,
}

impl Steps {
    /// In a child: the group of steps that it is to take. `None` in the test itself.
    pub(crate) fn of_child(per_child: impl Fn(&str) -> PerChild) -> Option<(String, Self)> {
        let group = std::env::var(GROUP).ok()?;
        let first = std::env::var(FIRST).ok()?.parse().ok()?;
        let per_child = per_child(&group);
        Some((group, Self { first, per_child, next: 0 }))
    }

    /// Takes a step, unless it is another child's.
    pub(crate) fn take(&mut self, name: &str, step: impl FnOnce() -> Result<(), String>) {
        let number = self.next;
        self.next += 1;
        let is_ours = number >= self.first && (self.per_child == PerChild::All || number == self.first);
        if is_ours {
            println!("\n{BEGINS}{name}");
            if let Err(problem) = step() {
                println!("\n{WRONG}{name}: {problem}");
            }
        }
    }
}

/// Lets children take the steps of a group; `child` is the test that begins with [`Steps::of_child`]. Gives the number of
/// steps and what was wrong, by step.
pub(crate) fn run(child: &str, group: &str) -> (usize, Vec<String>) {
    let (mut taken, mut problems) = (0, Vec::new());
    loop {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "--nocapture", child]).env(GROUP, group).env(FIRST, taken.to_string());
        let output = command.output().expect("this program runs");
        let text = String::from_utf8_lossy(&output.stdout);
        let begun: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix(BEGINS)).collect();
        taken += begun.len();
        problems.extend(text.lines().filter_map(|line| line.strip_prefix(WRONG)).map(str::to_owned));
        let Some(last) = begun.last() else {
            assert!(output.status.success(), "{group}: {text}{}", String::from_utf8_lossy(&output.stderr));
            return (taken, problems);
        };
        if let Some(signal) = output.status.signal() {
            problems.push(format!("{last}: killed by signal {signal}"));
        } else if !output.status.success() {
            problems.push(format!("{last}: {}", String::from_utf8_lossy(&output.stderr)));
        }
    }
}
