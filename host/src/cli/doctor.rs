//! What `baton doctor` is told, and what it prints.

use std::fmt::Write as _;
use std::io;

use clap::Args;
use serde::Serialize;

use super::args::{Output, Store};
use super::{Doctor, Tone, print_json, print_styled, table};
use crate::config::{self, ConfigError, Environment, Key};
use baton_runtime::escape::escape;

/// Check whether store and machine behave as Baton requires
///
/// Uses an election of its own with a random name, and removes it at the end. Checks that the store answers, what the
/// credentials may do, that leases, conditional writes and expiry behave, and how long renewals take. Then checks this
/// machine: clocks, folders, descriptors, isolation; and a module, as `baton check` does. Takes about three lease durations: 45 s on
/// Azure. Exits with 1 if something would break a promise.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  baton doctor
  baton doctor --store azure://myaccount/leases --lease 30s
  baton doctor report.wasm --quick -o json")]
pub(super) struct DoctorArguments {
    /// File of a component to check, too
    #[arg(value_hint = clap::ValueHint::FilePath)]
    pub module: Option<std::path::PathBuf>,
    #[command(flatten)]
    pub store: Store,
    /// Create the container of an Azure store if it does not exist [default: false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub create: Option<String>,
    /// Length of the hosts' lease [default: 15s]
    #[arg(long, value_name = "DURATION")]
    pub lease: Option<String>,
    /// CPU time that compiling the module may take [default: 60s]
    #[arg(long, value_name = "DURATION")]
    pub compile_timeout: Option<String>,
    /// Skip the checks that wait for a lease to expire
    #[arg(long)]
    pub quick: bool,
    #[command(flatten)]
    pub output: Output,
}

impl DoctorArguments {
    /// What is to be looked at.
    pub fn command(self, around: &Environment) -> Result<Doctor, ConfigError> {
        let flags = self.store.layer().flag(Key::Create, self.create).flag(Key::Lease, self.lease);
        let examined = config::resolve_examined(&flags.flag(Key::CompileTimeout, self.compile_timeout), around)?;
        let module = self.module.map(super::module_argument).transpose()?;
        Ok(Doctor { examined, module, quick: self.quick, json: self.output.is_json() })
    }
}

/// How much a finding matters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// It is as it should be.
    Ok,
    /// It breaks no promise, and costs something.
    Warning,
    /// It would break a promise, or nobody could lead.
    Problem,
}

impl Level {
    fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Problem => "problem",
        }
    }
}

/// One finding. The keys of its JSON are an interface.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// What was looked at.
    pub check: &'static str,
    /// How much it matters.
    pub level: Level,
    /// What was found.
    pub found: String,
    /// What follows from that.
    pub means: Option<String>,
    /// What to do.
    pub remedy: Option<String>,
}

impl Finding {
    /// That it is as it should be.
    pub fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, level: Level::Ok, found: found.into(), means: None, remedy: None }
    }

    /// That it costs something.
    pub fn warning(
        check: &'static str,
        found: impl Into<String>,
        means: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { level: Level::Warning, ..Self::problem(check, found, means, remedy) }
    }

    /// That it would break a promise.
    pub fn problem(
        check: &'static str,
        found: impl Into<String>,
        means: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        let (means, remedy) = (Some(means.into()), Some(remedy.into()));
        Self { check, level: Level::Problem, found: found.into(), means, remedy }
    }
}

/// How long renewals took.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Latency {
    /// How many there were.
    pub renewals: usize,
    /// As long as half of them took at most, in milliseconds.
    pub median_ms: f64,
    /// As long as all of them took, but for one in a hundred.
    pub p99_ms: f64,
}

/// All that was found. The keys of its JSON are an interface.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Diagnosis {
    /// The store.
    pub store: String,
    /// Whether nothing would break a promise.
    pub passed: bool,
    /// Whether it came to its end: else it was interrupted.
    pub complete: bool,
    /// How long renewals took; none if there were none.
    pub latency: Option<Latency>,
    /// The shortest lease that goes with that; none if none does.
    pub recommended_lease: Option<String>,
    /// How long after a lease had run out another could take it, in milliseconds; none if that was not measured.
    pub free_after_ms: Option<f64>,
    /// Each finding, in the order in which they were made.
    pub findings: Vec<Finding>,
}

/// Prints what was found, as a JSON object or for people.
///
/// # Errors
/// As for [`print_json`].
pub fn print_diagnosis(diagnosis: &Diagnosis, json: bool) -> io::Result<()> {
    if json { print_json(diagnosis) } else { print_styled(&text(diagnosis)).map(drop) }
}

fn text(Diagnosis { store, complete, findings, .. }: &Diagnosis) -> String {
    let mut text = format!("{}\n", escape(store));
    let mut rows = vec![["LEVEL", "CHECK", "FOUND"].map(String::from)];
    rows.extend(
        findings
            .iter()
            .map(|finding| [finding.level.as_str().to_owned(), finding.check.to_owned(), finding.found.clone()]),
    );
    let tone = |column, cell: &str| match (column, cell) {
        (0, "ok") => Tone::Good,
        (0, "warning") => Tone::Doubtful,
        (0, "problem") => Tone::Bad,
        _ => Tone::Plain,
    };
    let table = table(&rows, tone);
    let mut lines = table.lines();
    let _ = writeln!(text, "{}", lines.next().unwrap_or_default());
    for (row, finding) in lines.zip(findings) {
        let _ = writeln!(text, "{row}");
        for (what, said) in [("it means", &finding.means), ("to do", &finding.remedy)] {
            if let Some(said) = said {
                let _ = writeln!(text, "    {what}: {}", escape(said));
            }
        }
    }
    let count = |level| findings.iter().filter(|finding| finding.level == level).count();
    let verdict = match (count(Level::Problem), count(Level::Warning)) {
        (0, 0) => "Nothing was found that would break a promise.".to_owned(),
        (0, warnings) => format!("Nothing was found that would break a promise; {}.", number(warnings, "warning")),
        (problems, 0) => format!("{}.", number(problems, "problem")),
        (problems, warnings) => format!("{}, {}.", number(problems, "problem"), number(warnings, "warning")),
    };
    let cut = if *complete { "" } else { "Interrupted: not all checks ran. " };
    let _ = writeln!(text, "{cut}{verdict}");
    text
}

fn number(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_read_each_finding_with_what_it_means_and_what_to_do() {
        let diagnosis = Diagnosis {
            store: "sqlite:/x".to_owned(),
            passed: false,
            complete: false,
            latency: None,
            recommended_lease: None,
            free_after_ms: None,
            findings: vec![
                Finding::ok("reachable", "it answers"),
                Finding::problem("break", "x\u{1b}[2J", "two lead", "go"),
                Finding::warning("clocks", "y", "z", "w"),
            ],
        };
        assert_eq!(
            anstream::adapter::strip_str(&text(&diagnosis)).to_string(),
            "sqlite:/x\nLEVEL    CHECK      FOUND\nok       reachable  it answers\nproblem  break      x\\u{1b}[2J\n    it means: two lead\n    \
             to do: go\nwarning  clocks     y\n    it means: z\n    to do: w\nInterrupted: not all checks \
             ran. 1 problem, 1 warning.\n"
        );
    }
}
