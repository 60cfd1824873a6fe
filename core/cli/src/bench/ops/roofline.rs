//! A roofline: what each case reaches of the arithmetic and of the memory, drawn by hand as SVG.
//!
//! Left, arithmetic intensity against FLOP/s on logarithmic axes, under the rate of a copy; right, a bar for each case that is
//! bound by memory, as a share of that rate. Cases that are neither, being small, are in the table alone.

use std::fmt::Write;

use super::super::report::digits;
use super::case::Bound;
use super::report::{Outcome, Report};

/// Size of the left part.
const PLOT: (f64, f64) = (760.0, 560.0);
/// Margins of the plot: left, right, top, bottom.
const MARGIN: [f64; 4] = [80.0, 30.0, 60.0, 60.0];
/// Height of a bar with the gap below it.
const BAR: f64 = 18.0;
/// Width of the names of bars, and of a bar of 100 %.
const BARS: (f64, f64) = (400.0, 300.0);
/// Colours of the ops, in turn; all of them are dark enough for a light ground.
const COLOURS: [&str; 8] = ["#1f5fa8", "#b3541e", "#2d7d46", "#8e3b8c", "#a32a2a", "#0f7c86", "#6b5b12", "#4a4a9c"];

/// Draws the cases of a report that were measured.
pub(super) fn svg(report: &Report) -> String {
    let measured: Vec<&Outcome> = report.cases.iter().filter(|case| case.measured.is_some()).collect();
    let points: Vec<&Outcome> = measured.iter().copied().filter(|case| case.flops > 0.0).collect();
    let shares: Vec<&Outcome> = measured.into_iter().filter(|case| case.bound == Bound::Memory).collect();
    let height = PLOT.1.max(MARGIN[2] + 30.0 + BAR * shares.len() as f64) + 20.0;
    let width = PLOT.0 + BARS.0 + BARS.1 + 90.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
    );
    text(&mut out, (20.0, 28.0), "start", &format!("deepinfer bench ops: {}", report.setting.title()), 16);
    plot(&mut out, &points, report.copy.gb_per_s);
    share_bars(&mut out, &shares);
    out.push_str("</svg>\n");
    out
}

/// A logarithmic axis between two powers of ten, on a stretch of the page.
struct Axis {
    least: f64,
    most: f64,
    from: f64,
    to: f64,
}

impl Axis {
    /// An axis with room for all values.
    fn of(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let (least, most) = values.fold((f64::INFINITY, 0.0_f64), |(a, b), v| (a.min(v), b.max(v)));
        let (least, most) = if least <= most { (least.log10().floor(), most.log10().ceil()) } else { (0.0, 1.0) };
        Self { least, most: most.max(least + 1.0), from, to }
    }

    fn at(&self, value: f64) -> f64 {
        self.from + (value.log10() - self.least) / (self.most - self.least) * (self.to - self.from)
    }

    fn powers(&self) -> impl Iterator<Item = i32> {
        self.least as i32..=self.most as i32
    }
}

/// Intensity against rate.
fn plot(out: &mut String, cases: &[&Outcome], copy: f64) {
    let rates = cases.iter().filter_map(|case| case.measured.as_ref()).map(|measured| measured.tflops);
    let intensities = cases.iter().map(|case| case.flops / case.bytes);
    let x = Axis::of(intensities, MARGIN[0], PLOT.0 - MARGIN[1]);
    let y = Axis::of(rates, PLOT.1 - MARGIN[3], MARGIN[2]);
    for power in x.powers() {
        let at = x.at(10f64.powi(power));
        line(out, (at, y.from), (at, y.to), "#dddddd", 1.0);
        text(out, (at, y.from + 18.0), "middle", &number(power), 12);
    }
    for power in y.powers() {
        let at = y.at(10f64.powi(power));
        line(out, (x.from, at), (x.to, at), "#dddddd", 1.0);
        text(out, (x.from - 8.0, at + 4.0), "end", &number(power), 12);
    }
    text(out, (f64::midpoint(x.from, x.to), y.from + 40.0), "middle", "FLOP per byte", 13);
    text(out, (x.from - 50.0, y.to - 12.0), "start", "TFLOP/s", 13);

    // The copy's line, as far as the page goes: rate = intensity * bytes per second.
    let rate = |intensity: f64| intensity * copy / 1e3;
    let (first, last) = (10f64.powf(x.least), 10f64.powf(x.most).min(10f64.powf(y.most) / copy * 1e3));
    if first < last {
        let first = first.max(10f64.powf(y.least) / copy * 1e3);
        line(out, (x.at(first), y.at(rate(first))), (x.at(last), y.at(rate(last))), "#444444", 1.5);
        let label = format!("copy {} GB/s", digits(copy));
        let middle = (first * last).sqrt();
        text(out, (x.at(middle) - 8.0, y.at(rate(middle)) - 8.0), "end", &label, 12);
    }
    let mut ops: Vec<&str> = Vec::new();
    for case in cases {
        let Some(measured) = &case.measured else { continue };
        if !ops.contains(&case.op) {
            ops.push(case.op);
        }
        let at = (x.at(case.flops / case.bytes), y.at(measured.tflops));
        let colour = colour(&ops, case.op);
        let title = format!("{}: {:.1} us, {:.1} TFLOP/s", case.name, measured.timing.median_us, measured.tflops);
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"5\" fill=\"{colour}\" fill-opacity=\"0.75\"><title>{}</title></circle>",
            at.0,
            at.1,
            escaped(&title)
        );
    }
    for (row, op) in ops.iter().enumerate() {
        let at = (x.to - 150.0, y.from - 14.0 - 18.0 * (ops.len() - 1 - row) as f64);
        let _ = writeln!(
            out,
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"5\" fill=\"{}\"/>",
            at.0,
            at.1 - 4.0,
            colour(&ops, op)
        );
        text(out, (at.0 + 12.0, at.1), "start", op, 12);
    }
}

fn colour(ops: &[&str], op: &str) -> &'static str {
    COLOURS[ops.iter().position(|known| *known == op).unwrap_or(0) % COLOURS.len()]
}

/// A bar for each case.
fn share_bars(out: &mut String, cases: &[&Outcome]) {
    let (left, top) = (PLOT.0 + BARS.0, MARGIN[2] + 10.0);
    let bottom = top + BAR * cases.len() as f64;
    for percent in [0, 50, 90, 100] {
        let at = left + BARS.1 * f64::from(percent) / 100.0;
        line(out, (at, top - 4.0), (at, bottom), if percent == 90 { "#c05000" } else { "#cccccc" }, 1.0);
        text(out, (at, top - 10.0), "middle", &percent.to_string(), 11);
    }
    for (row, case) in cases.iter().enumerate() {
        let Some(measured) = &case.measured else { continue };
        let y = top + BAR * row as f64;
        let share = measured.copy_share.clamp(0.0, 1.2);
        let colour = match case.met {
            Some(true) => "#2d7d46",
            Some(false) => "#b3541e",
            None => "#5b7fa5",
        };
        let _ = writeln!(
            out,
            "<rect x=\"{left}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{}\" fill=\"{colour}\"/>",
            BARS.1 * share,
            BAR - 5.0
        );
        text(out, (left - 6.0, y + BAR - 8.0), "end", &case.name, 11);
        let label = format!("{:.1} us", measured.timing.median_us);
        text(out, (left + BARS.1 * share + 5.0, y + BAR - 8.0), "start", &label, 10);
    }
    text(
        out,
        (left, MARGIN[2] - 18.0),
        "start",
        "per cent of the rate of a copy; green: bar met, orange: bar missed",
        11,
    );
}

fn number(power: i32) -> String {
    let value = 10f64.powi(power);
    if power < 0 { format!("{value:.*}", power.unsigned_abs() as usize) } else { format!("{value:.0}") }
}

fn line(out: &mut String, from: (f64, f64), to: (f64, f64), colour: &str, width: f64) {
    let _ = writeln!(
        out,
        "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\" stroke-width=\"{width}\"/>",
        from.0, from.1, to.0, to.1
    );
}

fn text(out: &mut String, at: (f64, f64), anchor: &str, words: &str, size: u32) {
    let _ = writeln!(
        out,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\">{}</text>",
        at.0,
        at.1,
        escaped(words)
    );
}

fn escaped(words: &str) -> String {
    words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_with_powers_of_ten() {
        let axis = Axis::of([0.3, 40.0].into_iter(), 0.0, 300.0);
        assert_eq!((axis.least, axis.most), (-1.0, 2.0));
        assert!((axis.at(1.0) - 100.0).abs() < 1e-9 && (axis.at(100.0) - 300.0).abs() < 1e-9);
        // One value, or none, still makes an axis.
        assert!(Axis::of([10.0].into_iter(), 0.0, 1.0).at(10.0).is_finite());
        assert!(Axis::of(std::iter::empty(), 0.0, 1.0).at(1.0).is_finite());
    }

    #[test]
    fn names_of_devices_are_text() {
        assert_eq!(escaped("a<b>&c"), "a&lt;b&gt;&amp;c");
        assert_eq!([number(-2), number(0), number(3)], ["0.01", "1", "1000"]);
    }
}
