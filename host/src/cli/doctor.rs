//! The arguments and the output of `baton doctor`.

use std::fmt::Write as _;
use std::io;

use clap::Args;
use serde::Serialize;

use super::args::{Output, PushFlags};
use super::flags::{Flags, Selection};
use super::{Doctor, Tone, print_json, print_styled, table};
use crate::config::{self, ConfigError, Environment, Key};
use baton_base::escape::escape;

/// Check whether the store and this machine meet Baton's requirements
///
/// First checks that the store responds, that the credentials grant the necessary rights, and that leases, conditional
/// writes and expiry work correctly. Also measures how long renewals take. For these checks, the command creates
/// elections with random names in the store, and removes the elections at the end. The command then checks this
/// machine: clocks, folders, descriptors and isolation. If you name a module, the command also checks the module as
/// `baton check` does.
///
/// The checks take two to three times the lease duration, or about 40 s on Azure. The command exits with 1 if it finds
/// a problem that would break one of Baton's promises.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  baton doctor
  baton doctor --store azure://myaccount/leases --lease 30s
  baton doctor report.wasm --quick -o json")]
pub(super) struct DoctorArguments {
    /// Component file to check as well
    #[arg(value_hint = clap::ValueHint::FilePath)]
    pub module: Option<std::path::PathBuf>,
    #[command(flatten)]
    pub flags: Flags<DoctorFlags>,
    /// Skip the checks that wait for a lease to expire
    #[arg(long)]
    pub quick: bool,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Debug)]
pub(super) struct DoctorFlags;

impl Selection for DoctorFlags {
    fn takes(key: Key) -> bool {
        PushFlags::takes(key) || key == Key::Lease
    }
}

impl DoctorArguments {
    pub fn command(self, around: &Environment) -> Result<Doctor, ConfigError> {
        let examined = config::resolve_examined(&self.flags.layer()?, around)?;
        let module = self.module.map(super::module_argument).transpose()?;
        Ok(Doctor { examined, module, quick: self.quick, json: self.output.is_json() })
    }
}

/// The severity of a finding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Nothing to do.
    Ok,
    /// The finding degrades service, but breaks none of Baton's promises.
    Warning,
    /// The finding would break one of Baton's promises, or would prevent all nodes from leading.
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

/// One finding. The JSON keys are a public interface.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// Name of the check.
    pub check: &'static str,
    /// The severity.
    pub level: Level,
    /// The outcome of the check.
    pub found: String,
    /// The consequence of the finding, if any.
    pub means: Option<String>,
    /// Advice on what to do, if any.
    pub remedy: Option<String>,
}

impl Finding {
    /// Creates a finding that needs no action.
    pub fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, level: Level::Ok, found: found.into(), means: None, remedy: None }
    }

    /// Creates a warning: a finding that degrades service, but breaks none of Baton's promises.
    pub fn warning(
        check: &'static str,
        found: impl Into<String>,
        means: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { level: Level::Warning, ..Self::problem(check, found, means, remedy) }
    }

    /// Creates a problem: a finding that would break one of Baton's promises.
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

/// Statistics on how long lease renewals took.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Latency {
    /// Number of renewals.
    pub renewals: usize,
    /// Median, in milliseconds.
    pub median_ms: f64,
    /// 99th percentile, in milliseconds.
    pub p99_ms: f64,
}

/// The result of `baton doctor`. The JSON keys are a public interface.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Diagnosis {
    /// The store's URL.
    pub store: String,
    /// True if no signal interrupted the command, and no check found a problem.
    pub passed: bool,
    /// True if no signal interrupted the command. Even then, some checks may not have run: the command skips the
    /// remaining checks of the store after a problem on which they depend.
    pub complete: bool,
    /// Statistics on how long renewals took; `None` if no lease was renewed.
    pub latency: Option<Latency>,
    /// The shortest lease duration that leaves enough time for renewals as slow as the measured ones; `None` if no
    /// duration does.
    pub recommended_lease: Option<String>,
    /// Upper bound on the delay between the expiry of a lease and its acquisition by another client, in milliseconds;
    /// `None` if not measured.
    pub free_after_ms: Option<f64>,
    /// The findings, in the order of the checks.
    pub findings: Vec<Finding>,
}

/// Prints the diagnosis, as a JSON object or as human-readable text.
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
        for (what, advice) in [("it means", &finding.means), ("to do", &finding.remedy)] {
            if let Some(advice) = advice {
                let _ = writeln!(text, "    {what}: {}", escape(advice));
            }
        }
    }
    let count = |level| findings.iter().filter(|finding| finding.level == level).count();
    let verdict = match (count(Level::Problem), count(Level::Warning)) {
        (0, 0) => "No problems found.".to_owned(),
        (0, warnings) => format!("No problems found, but {}.", number(warnings, "warning")),
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
    fn text_shows_consequence_and_advice_of_each_finding() {
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
