//! The table of results: measured values, the upper bounds on them, and the yardsticks to compare them with.

use std::fmt::Write as _;

use crate::samples::Samples;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    Us,
    Ms,
    S,
    KiB,
    MiB,
    /// CPU time, in percent of one core.
    Percent,
    PerSecond,
}

/// An upper bound on a row's values, in the row's unit.
#[derive(Clone, Copy, Debug)]
pub enum Bar {
    Median(f64),
    P99(f64),
    /// The median, divided by the yardstick's median.
    Ratio(f64),
    /// The 99th percentile, divided by the yardstick's 99th percentile.
    P99Ratio(f64),
}

pub struct Row {
    what: String,
    unit: Unit,
    measured: Result<Samples, String>,
    bars: Vec<Bar>,
    beside: Option<Beside>,
}

/// The yardstick that a row is compared with, in the row's unit.
struct Beside {
    name: String,
    median: f64,
    /// The 99th percentile; NaN if only the median is known.
    p99: f64,
}

impl Row {
    /// A row that has neither an upper bound nor a yardstick.
    #[must_use]
    pub fn new(what: impl Into<String>, unit: Unit, samples: Samples) -> Self {
        Self { what: what.into(), unit, measured: Ok(samples), bars: Vec::new(), beside: None }
    }

    /// A row that could not be measured. The row counts as one that exceeds its bound.
    #[must_use]
    pub fn failed(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self { what: what.into(), unit: Unit::S, measured: Err(why.into()), bars: Vec::new(), beside: None }
    }

    #[must_use]
    pub fn bar(mut self, bar: Bar) -> Self {
        self.bars.push(bar);
        self
    }

    /// Sets the yardstick: its name, and its median in the row's unit.
    #[must_use]
    pub fn beside(mut self, name: impl Into<String>, median: f64) -> Self {
        self.beside = Some(Beside { name: name.into(), median, p99: f64::NAN });
        self
    }

    /// Sets the yardstick: its name, and all of its samples. [`Bar::P99Ratio`] needs these samples.
    #[must_use]
    pub fn against(mut self, name: impl Into<String>, samples: &Samples) -> Self {
        self.beside = Some(Beside { name: name.into(), median: samples.median(), p99: samples.p99() });
        self
    }

    /// Returns true if the values are within all of the row's bounds; `None` if the row has no bounds.
    pub fn holds(&self) -> Option<bool> {
        let Ok(samples) = &self.measured else { return Some(false) };
        // Without samples, the statistics are NaN. Every comparison with NaN is false, so the row then exceeds its
        // bounds.
        let holds = |bar: &Bar| match bar {
            Bar::Median(most) => samples.median() <= *most,
            Bar::P99(most) => samples.p99() <= *most,
            Bar::Ratio(most) => self.ratio().is_some_and(|ratio| ratio <= *most),
            Bar::P99Ratio(most) => self.beside.as_ref().is_some_and(|beside| samples.p99() / beside.p99 <= *most),
        };
        (!self.bars.is_empty()).then(|| self.bars.iter().all(holds))
    }

    fn ratio(&self) -> Option<f64> {
        let (Ok(samples), Some(beside)) = (&self.measured, &self.beside) else { return None };
        Some(samples.median() / beside.median)
    }

    fn cells(&self) -> [String; 8] {
        let verdict = match self.holds() {
            Some(true) => "ok",
            Some(false) => "MISS",
            None => "",
        };
        let Ok(samples) = &self.measured else {
            let empty = String::new;
            return [self.what.clone(), "0".into(), empty(), empty(), empty(), empty(), empty(), verdict.into()];
        };
        let bars: Vec<String> = self.bars.iter().map(|bar| show_bar(*bar, self.unit)).collect();
        let beside = self.beside.as_ref().map(|Beside { name, median, p99 }| {
            let p99 = if p99.is_nan() { String::new() } else { format!(", p99 {}", show(*p99, self.unit)) };
            format!("{name}: {}{p99}", show(*median, self.unit))
        });
        [
            self.what.clone(),
            samples.len().to_string(),
            show(samples.median(), self.unit),
            show(samples.p99(), self.unit),
            bars.join(", "),
            beside.unwrap_or_default(),
            self.ratio().map(|ratio| format!("{ratio:.2}")).unwrap_or_default(),
            verdict.into(),
        ]
    }
}

/// Renders the rows, followed by a list of the rows that exceed a bound.
pub fn render(rows: &[Row]) -> String {
    let head = ["what", "n", "median", "p99", "bar", "beside it", "ratio", ""].map(str::to_string);
    let lines: Vec<[String; 8]> = std::iter::once(head).chain(rows.iter().map(Row::cells)).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 8] = std::array::from_fn(width);
    let mut text = String::new();
    for (number, line) in lines.iter().enumerate() {
        let mut shown = String::new();
        for (column, cell) in line.iter().enumerate() {
            let width = widths[column];
            let _ = if matches!(column, 1..=3 | 6) {
                write!(shown, "{cell:>width$}  ")
            } else {
                write!(shown, "{cell:<width$}  ")
            };
        }
        let _ = writeln!(text, "{}", shown.trim_end());
        if number == 0 {
            let _ = writeln!(text, "{}", "-".repeat(widths.iter().sum::<usize>() + 14));
        }
    }
    let missed: Vec<&Row> = rows.iter().filter(|row| row.holds() == Some(false)).collect();
    let judged = rows.iter().filter(|row| row.holds().is_some()).count();
    let _ = writeln!(text, "\n{} of {judged} bars are held.", judged - missed.len());
    for row in missed {
        let why = row.measured.as_ref().err().map(|why| format!(" (not measured: {why})")).unwrap_or_default();
        let _ = writeln!(text, "MISS: {}{why}", row.what);
    }
    text
}

fn show_bar(bar: Bar, unit: Unit) -> String {
    match bar {
        Bar::Median(most) => format!("p50 ≤ {}", show(most, unit)),
        Bar::P99(most) => format!("p99 ≤ {}", show(most, unit)),
        Bar::Ratio(most) => format!("ratio ≤ {most}"),
        Bar::P99Ratio(most) => format!("p99's ratio ≤ {most}"),
    }
}

fn show(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Us => format!("{value:.2} µs"),
        Unit::Ms => format!("{value:.3} ms"),
        Unit::S => format!("{value:.3} s"),
        Unit::KiB => format!("{value:.0} KiB"),
        Unit::MiB => format!("{value:.1} MiB"),
        Unit::Percent => format!("{value:.3} %"),
        Unit::PerSecond => format!("{value:.2}/s"),
    }
}
