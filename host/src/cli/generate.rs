//! What packages and shells want of the command line: completions and manual pages, made of its definition.

use std::io;
use std::path::Path;

use clap::{Args, Command, CommandFactory as _};
use clap_complete::Shell;

use super::args::Arguments;

/// Print what completes commands, flags and values in a shell
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  baton completions bash >~/.local/share/bash-completion/completions/baton
  baton completions zsh >~/.zfunc/_baton
  baton completions fish >~/.config/fish/completions/baton.fish")]
pub(super) struct Completions {
    /// The shell
    pub shell: Shell,
}

/// The commands that people are shown, alone: hosts start the others.
fn shown() -> Command {
    let all = Arguments::command();
    let parts = all.get_subcommands().filter(|part| !part.is_hide_set()).cloned();
    let mut shown = Command::new("baton").version(env!("CARGO_PKG_VERSION")).subcommand_required(true);
    if let Some(about) = all.get_about() {
        shown = shown.about(about.clone());
    }
    if let Some(about) = all.get_long_about() {
        shown = shown.long_about(about.clone());
    }
    if let Some(examples) = all.get_after_help() {
        shown = shown.after_help(examples.clone());
    }
    shown.subcommands(parts)
}

/// What completes the command line in that shell.
#[must_use]
pub fn completions(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut shown(), "baton", &mut script);
    script
}

/// The manual page of the program as a whole.
///
/// # Errors
/// None, as long as memory can be had.
pub fn manual() -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    clap_mangen::Man::new(shown()).render(&mut page)?;
    Ok(page)
}

/// Writes the manual page of each command into a folder, which is made: `baton.1`, `baton-run.1` and so on.
///
/// # Errors
/// What the system says.
pub fn write_manuals(folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    clap_mangen::generate_to(shown(), folder)
}
