//! What `baton check` prints for people.

use std::fmt;

use super::columns;
use crate::runtime::{Inspection, Kind, Wrapped};
use crate::telemetry::escape;

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.runs { "runs here" } else { "cannot run here" };
        writeln!(f, "{}: {verdict}", escape(&self.module))?;
        let facts = [
            ["  kind".to_owned(), what_it_is(self.kind, self.wrapped)],
            ["  world".to_owned(), self.world.clone().unwrap_or("-".to_owned())],
            ["  digest".to_owned(), self.digest.clone()],
            ["  size".to_owned(), format!("{} bytes", self.size)],
            ["  compiled in".to_owned(), format!("{} ms", self.compile_ms)],
        ];
        f.write_str(&columns(&facts))?;
        let imports: Vec<[String; 2]> = self
            .imports
            .iter()
            .map(|import| {
                let grant = if import.granted { "granted" } else { &import.needs };
                [format!("  imports {}", import.name), grant.to_owned()]
            })
            .collect();
        f.write_str(&columns(&imports))?;
        for export in &self.exports {
            writeln!(f, "  exports {}", escape(export))?;
        }
        for problem in &self.problems {
            writeln!(f, "problem: {}", escape(problem))?;
        }
        Ok(())
    }
}

fn what_it_is(kind: Option<Kind>, wrapped: Option<Wrapped>) -> String {
    let kind = match kind {
        Some(Kind::Coordinator) => "coordinator",
        Some(Kind::Command) => "command",
        None => "nothing that Baton runs",
    };
    match wrapped {
        Some(Wrapped::ComponentTypes) => format!("{kind}, wrapped: a core module that carries component types"),
        Some(Wrapped::WasiPreview1) => format!("{kind}, wrapped: a core module for WASI preview 1"),
        None => kind.to_owned(),
    }
}
