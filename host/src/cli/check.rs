//! The output of `baton check`.

use std::fmt;
use std::io;

use super::{columns, print, print_json};
use baton_base::escape::escape;
use baton_runtime::{Inspection, ModuleKind, Wrapped};
use serde::Serialize;

/// Prints the inspection of a module and the next scheduled runs, as a JSON object or as human-readable text.
///
/// # Errors
/// As for [`print()`].
pub fn print_inspection(found: &Inspection, next_runs: &[String], json: bool) -> io::Result<()> {
    if json {
        return print_json(&WithRuns { found, next_runs });
    }
    let runs: String = next_runs.iter().map(|run| format!("  next run at {run}\n")).collect();
    print(&(Text(found).to_string().trim_end().to_owned() + "\n" + &runs))
}

/// The JSON keys are a public interface.
#[derive(Serialize)]
struct WithRuns<'a> {
    #[serde(flatten)]
    found: &'a Inspection,
    /// The next runs in the schedule's time zone (RFC 3339); omitted without a schedule.
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    next_runs: &'a [String],
}

struct Text<'a>(&'a Inspection);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(found) = self;
        let verdict = if found.runs { "runs here" } else { "cannot run here" };
        writeln!(f, "{}: {verdict}", escape(&found.module))?;
        let facts = [
            ["  kind".to_owned(), kind_of(found.kind, found.wrapped)],
            ["  world".to_owned(), found.world.clone().unwrap_or("-".to_owned())],
            ["  digest".to_owned(), found.digest.to_string()],
            ["  size".to_owned(), format!("{} bytes", found.size)],
            ["  compiled in".to_owned(), format!("{} ms", found.compile_ms)],
        ];
        f.write_str(&columns(&facts))?;
        let imports: Vec<[String; 2]> = found
            .imports
            .iter()
            .map(|import| {
                let grant = if import.granted { "granted" } else { &import.needs };
                [format!("  imports {}", import.name), grant.to_owned()]
            })
            .collect();
        f.write_str(&columns(&imports))?;
        for export in &found.exports {
            writeln!(f, "  exports {}", escape(export))?;
        }
        for problem in &found.problems {
            writeln!(f, "problem: {}", escape(problem))?;
        }
        Ok(())
    }
}

fn kind_of(kind: Option<ModuleKind>, wrapped: Option<Wrapped>) -> String {
    let kind = match kind {
        Some(ModuleKind::Coordinator) => "coordinator",
        Some(ModuleKind::Command) => "command",
        None => "not a kind that Baton runs",
    };
    match wrapped {
        Some(Wrapped::ComponentTypes) => {
            format!("{kind}, built by wrapping a core module that carries component types")
        }
        Some(Wrapped::WasiPreview1) => format!("{kind}, built by wrapping a core module for WASI preview 1"),
        None => kind.to_owned(),
    }
}
