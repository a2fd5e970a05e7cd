//! Carries commands out.

use std::io::Write;
use std::process::ExitCode;

use crate::cli::{self, Command};

/// Carries a command out and gives the exit status of the process.
#[must_use]
pub fn run(command: Command) -> ExitCode {
    let result: anyhow::Result<ExitCode> = match command {
        Command::PrintConfig(table) => cli::print(&table)
            .map(|()| ExitCode::SUCCESS)
            .map_err(anyhow::Error::from),
        // The seam: store, runtime and supervisor are joined here when the branches are.
        Command::Run(_)
        | Command::Status { .. }
        | Command::Check { .. }
        | Command::Start { .. } => Err(anyhow::anyhow!("not joined yet")),
    };
    result.unwrap_or_else(|error| {
        // Nobody may read it; the exit status says it too.
        let _ = writeln!(std::io::stderr(), "error: {error:#}");
        ExitCode::FAILURE
    })
}
