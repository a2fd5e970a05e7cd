//! The command `baton`.

use std::process::ExitCode;

use baton::config::Environment;
use baton::{cli, commands, signals};

fn main() -> ExitCode {
    // Else, where RUST_BACKTRACE is set, each error that a guest keeps would hold a backtrace of this program, and tell
    // it. Panics tell theirs all the same.
    // SAFETY: this is the first thing that the program does, and there is no other thread.
    unsafe { std::env::set_var("RUST_LIB_BACKTRACE", "0") };
    signals::undo_inherited();
    cli::complete(commands::complete_elections, commands::complete_nodes);
    match cli::parse(std::env::args_os(), &Environment::of_process()) {
        Ok(command) => commands::run(command),
        Err(stop) => stop.report(),
    }
}
