//! Completions, manual pages and the schema of `baton.toml`, made from the definition of the command line.

use std::io;
use std::path::Path;

use clap::{Arg, Args, Command, CommandFactory as _};
use clap_complete::env::{CompleteEnv, Shells};
use clap_complete::{ArgValueCandidates, CompletionCandidate, Shell};

use serde_json::{Value, json};

use super::args::Arguments;
use crate::config::{Key, Shape};

/// Print a script that completes commands, flags, elections and nodes in a shell
///
/// The script asks this program, which reads the elections and nodes from the store that variables and baton.toml name.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  source <(baton completions bash)             in ~/.bashrc
  source <(baton completions zsh)              in ~/.zshrc
  baton completions fish | source              in ~/.config/fish/config.fish")]
pub(super) struct Completions {
    /// The shell
    pub shell: Shell,
}

/// The variable that makes the program complete a command line instead.
const COMPLETE: &str = "BATON_COMPLETE";

/// The candidates of one kind of value.
pub type Candidates = fn() -> Vec<String>;

/// Completes the command line in the environment of a shell's script, and ends the process. Returns if no script asks.
pub fn complete(elections: Candidates, nodes: Candidates) {
    let values =
        move |of: Candidates| ArgValueCandidates::new(move || of().into_iter().map(CompletionCandidate::new).collect());
    let with_values = move |argument: Arg| match argument.get_id().as_str() {
        "election" | "elections" if argument.get_long().is_none() => argument.add(values(elections)),
        "to" => argument.add(values(nodes)),
        _ => argument,
    };
    let definition = move || {
        shown().mut_subcommands(move |command| {
            command.mut_args(with_values).mut_subcommands(move |part| part.mut_args(with_values))
        })
    };
    CompleteEnv::with_factory(definition).var(COMPLETE).complete();
}

/// The commands for people. Hosts start the others.
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

/// The script that completes the command line in that shell.
///
/// # Errors
/// None, as long as memory can be had.
pub fn completions(shell: Shell) -> io::Result<Vec<u8>> {
    let mut script = Vec::new();
    let shells = Shells::builtins();
    if let Some(shell) = shells.completer(&shell.to_string()) {
        shell.write_registration(COMPLETE, "baton", "baton", "baton", &mut script)?;
    }
    Ok(script)
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

/// The JSON Schema of `baton.toml`. Each setting has the help of its flag as its description.
#[must_use]
pub fn schema() -> Value {
    let run = shown().find_subcommand("run").cloned().unwrap_or_default();
    let of = |keys: &dyn Fn(Key) -> bool| -> serde_json::Map<String, Value> {
        let keys = Key::ALL.into_iter().filter(|key| keys(*key));
        keys.map(|key| (key.name().to_owned(), schema_of(key, &run))).collect()
    };
    let mut top = of(&|key| key != Key::Config);
    let table = json!({
        "description": "A coordinator. NAME is its election, unless `election` in its table is another one.",
        "type": "object",
        "properties": of(&Key::is_per_coordinator),
        "required": [Key::Module.name()],
        "additionalProperties": false,
    });
    top.insert("coordinators".to_owned(), json!({ "type": "object", "additionalProperties": table }));
    json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "baton.toml",
        "description": "Settings of `baton run`. Settings at the top apply to all tables [coordinators.NAME].",
        "type": "object",
        "properties": top,
        "additionalProperties": false,
    })
}

/// The schema of one setting, described by its flag of `run`.
fn schema_of(key: Key, run: &Command) -> Value {
    let text = json!({ "type": "string" });
    let mut schema = match key.shape() {
        Shape::Text => text,
        Shape::TextOrList => json!({ "type": ["string", "array"], "items": text }),
        Shape::List => json!({ "type": "array", "items": text }),
        Shape::Number => json!({ "type": ["integer", "string"] }),
        Shape::Switch => json!({ "type": "boolean" }),
        Shape::Texts => json!({ "type": "object", "additionalProperties": text }),
        Shape::Scalars => {
            json!({ "type": "object", "additionalProperties": { "type": ["string", "number", "boolean"] } })
        }
        Shape::Secrets => json!({ "type": "object", "additionalProperties": {
            "type": "object",
            "properties": { "file": text, "env": text },
            "minProperties": 1,
            "maxProperties": 1,
            "additionalProperties": false,
        } }),
    };
    let is_its = |argument: &&Arg| match key {
        Key::Module => argument.get_id() == "module",
        key => argument.get_long() == Some(key.name()),
    };
    if let Some(argument) = run.get_arguments().find(is_its) {
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        // The star is explained in the help of `run` alone.
        schema["description"] = help.replace(" *", "").into();
        let values: Vec<String> =
            argument.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
        if key.shape() == Shape::Text && !values.is_empty() {
            schema["enum"] = values.into();
        }
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schema_describes_every_setting() {
        let schema = schema();
        let coordinator = &schema["properties"]["coordinators"]["additionalProperties"]["properties"];
        for key in Key::ALL.into_iter().filter(|key| *key != Key::Config) {
            let described = |properties: &Value| {
                properties[key.name()]["description"]
                    .as_str()
                    .is_some_and(|text| !text.is_empty() && !text.contains('*'))
            };
            assert!(described(&schema["properties"]), "{key:?}");
            assert_eq!(described(coordinator), key.is_per_coordinator(), "{key:?}");
        }
        assert_eq!(schema["properties"]["restart"]["enum"], json!(["always", "on-failure"]));
    }
}
