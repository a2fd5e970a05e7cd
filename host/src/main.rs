//! The command `baton`.

use std::process::ExitCode;

use baton::config::Environment;
use baton::{cli, commands, signals};

fn main() -> ExitCode {
    // If RUST_BACKTRACE is set, this call keeps backtraces of this program out of guests' errors. Panics keep their
    // backtraces. SAFETY: this is the first statement of the program, so no other thread exists that accesses the
    // environment.
    unsafe { std::env::set_var("RUST_LIB_BACKTRACE", "0") };
    signals::reset_inherited_signals();
    cli::complete(commands::complete_elections, commands::complete_nodes);
    match cli::parse(std::env::args_os(), &Environment::of_process()) {
        Ok(command) => commands::run(command),
        Err(stop) => stop.report(),
    }
}
