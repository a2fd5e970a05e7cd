//! What `baton check` prints for people.

use std::fmt;

use super::columns;
use crate::runtime::Inspection;
use crate::telemetry::escape;

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.runs { "runs here" } else { "cannot run here" };
        writeln!(f, "{}: {verdict}", escape(&self.module.display().to_string()))?;
        let facts = [
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
