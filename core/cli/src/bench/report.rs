//! Figures, and the machine that they are of.

use std::fmt::{self, Write};
use std::fs;

use serde::Serialize;

/// What was measured several times.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Figure {
    what: String,
    unit: &'static str,
    median: f64,
    least: f64,
    most: f64,
    /// How often it was measured.
    rounds: usize,
}

impl Figure {
    /// The figure of at least one measured value.
    pub(super) fn of(what: impl Into<String>, unit: &'static str, mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let (rounds, middle) = (values.len(), values.len() / 2);
        let median =
            if rounds.is_multiple_of(2) { (values[middle - 1] + values[middle]) / 2.0 } else { values[middle] };
        Self { what: what.into(), unit, median, least: values[0], most: values[rounds - 1], rounds }
    }
}

/// Where it was measured.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Machine {
    processor: String,
    /// Processors that this process may use.
    cores: usize,
    /// `release`, or `debug` for a build whose figures mean little.
    build: &'static str,
    version: &'static str,
}

impl Machine {
    /// This one.
    pub(super) fn this() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let named = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        Self {
            processor: named.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            build: if cfg!(debug_assertions) { "debug" } else { "release" },
            version: env!("CARGO_PKG_VERSION"),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { processor, cores, build, version } = self;
        write!(f, "{processor}, {cores} cores, deepinfer {version}, {build} build")
    }
}

/// All figures of a command.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Report {
    /// The subcommand.
    pub(super) bench: &'static str,
    /// What ran: model, numerics, sizes.
    pub(super) setting: String,
    /// The backend that computed.
    pub(super) backend: String,
    pub(super) machine: Machine,
    pub(super) figures: Vec<Figure>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { processor, cores, build, version } = &self.machine;
        writeln!(f, "{}: {}", self.bench, self.setting)?;
        writeln!(f, "{processor}, {cores} cores, backend {}, deepinfer {version}, {build} build", self.backend)?;
        let cells = |figure: &Figure| {
            let spread = format!("{} - {}", digits(figure.least), digits(figure.most));
            [figure.what.clone(), digits(figure.median), spread, figure.unit.to_owned()]
        };
        let head = ["what", "median", "least - most", "unit"].map(str::to_owned);
        let rows: Vec<[String; 4]> = std::iter::once(head).chain(self.figures.iter().map(cells)).collect();
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let (what, median, spread) = (width(0), width(1), width(2));
        for [a, b, c, unit] in &rows {
            let mut line = String::new();
            write!(line, "  {a:<what$}  {b:>median$}  {c:>spread$}  {unit}")?;
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// Four digits: more would be noise.
pub(super) fn digits(value: f64) -> String {
    let decimals = match value.abs() {
        least if least < 10.0 => 3,
        less if less < 100.0 => 2,
        less if less < 1000.0 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_the_middle_and_both_ends() {
        let odd = Figure::of("a", "us", vec![3.0, 1.0, 2.0]);
        assert_eq!((odd.median, odd.least, odd.most, odd.rounds), (2.0, 1.0, 3.0, 3));
        assert_eq!(Figure::of("b", "us", vec![4.0, 1.0, 2.0, 3.0]).median, 2.5);
        assert_eq!(
            [0.0123, 9.87654, 12.3456, 123.456, 12345.6].map(digits),
            ["0.012", "9.877", "12.35", "123.5", "12346"]
        );
    }

    #[test]
    fn the_table_has_a_line_for_each_figure() {
        let report = Report {
            bench: "latency",
            setting: "miniature".to_owned(),
            backend: "cpu".to_owned(),
            machine: Machine { processor: "A".to_owned(), cores: 2, build: "release", version: "1" },
            figures: vec![Figure::of("first token", "ms", vec![1.0]), Figure::of("ratio", "", vec![12.5, 13.5])],
        };
        let expected = "\
latency: miniature
A, 2 cores, backend cpu, deepinfer 1, release build
  what         median   least - most  unit
  first token   1.000  1.000 - 1.000  ms
  ratio         13.00  12.50 - 13.50
";
        assert_eq!(report.to_string(), expected);
    }
}
