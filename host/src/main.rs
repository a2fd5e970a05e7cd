//! The command `baton`.

use std::process::ExitCode;

use baton::config::Surroundings;
use baton::{cli, commands};

fn main() -> ExitCode {
    match cli::parse(std::env::args_os(), &Surroundings::of_process()) {
        Ok(command) => commands::run(command),
        Err(stop) => stop.report(),
    }
}
