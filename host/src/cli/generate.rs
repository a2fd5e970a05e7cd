//! Completions, manual pages and the schema of `baton.toml`, generated from the definition of the command line.

use std::io;
use std::path::Path;

use clap::{Arg, Args, Command, CommandFactory as _};
use clap_complete::env::{CompleteEnv, Shells};
use clap_complete::{ArgValueCandidates, CompletionCandidate, Shell};

use serde_json::{Value, json};

use super::args::Arguments;
use crate::config::{Key, Setting, Shape};

/// Print a shell completion script for commands, flags, elections and nodes
///
/// To complete the names of elections and nodes, the script runs `baton`. This program reads the names from the store
/// that is set in the environment or in baton.toml.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  source <(baton completions bash)             in ~/.bashrc
  source <(baton completions zsh)              in ~/.zshrc
  baton completions fish | source              in ~/.config/fish/config.fish")]
pub(super) struct Completions {
    /// Shell to print the script for
    pub shell: Shell,
}

/// The environment variable that makes this program complete a command line instead of running it.
const COMPLETE: &str = "BATON_COMPLETE";

/// A function that lists the possible values of one kind of argument.
pub type Candidates = fn() -> Vec<String>;

/// Completes the command line and exits if a shell's completion script started this process; otherwise returns.
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

/// The command line without the hidden commands, which only hosts run.
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

/// Generates the completion script for a shell.
///
/// # Errors
/// None, because writing to memory does not fail.
pub fn completions(shell: Shell) -> io::Result<Vec<u8>> {
    let mut script = Vec::new();
    let shells = Shells::builtins();
    if let Some(shell) = shells.completer(&shell.to_string()) {
        shell.write_registration(COMPLETE, "baton", "baton", "baton", &mut script)?;
    }
    Ok(script)
}

/// Generates the manual page of the program.
///
/// # Errors
/// None, because writing to memory does not fail.
pub fn manual() -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    clap_mangen::Man::new(shown()).render(&mut page)?;
    Ok(page)
}

/// Creates a folder and writes the manual page of each command into it: `baton.1`, `baton-run.1` and so on.
///
/// # Errors
/// The operating system's error if a file cannot be written.
pub fn write_manuals(folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    clap_mangen::generate_to(shown(), folder)
}

/// Generates the JSON Schema of `baton.toml`.
#[must_use]
pub fn schema() -> Value {
    let of = |keys: &dyn Fn(Key) -> bool| -> serde_json::Map<String, Value> {
        let keys = Key::ALL.iter().copied().filter(|key| keys(*key));
        keys.map(|key| (key.name().to_owned(), schema_of(key))).collect()
    };
    let mut top = of(&|key| key != Key::Config);
    let table = json!({
        "description": "A coordinator. NAME is the name of its election, unless the table sets `election`.",
        "type": "object",
        "properties": of(&Key::is_per_coordinator),
        "required": [Key::Module.name()],
        "additionalProperties": false,
    });
    top.insert("coordinators".to_owned(), json!({ "type": "object", "additionalProperties": table }));
    json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "baton.toml",
        "description": "Settings of `baton run`. Top-level settings apply to every [coordinators.NAME] table.",
        "type": "object",
        "properties": top,
        "additionalProperties": false,
    })
}

fn schema_of(key: Key) -> Value {
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
    let setting = key.setting();
    let Setting { help, values, .. } = setting;
    let default = setting.default_text().map(|default| format!(" [default: {default}]")).unwrap_or_default();
    schema["description"] = json!(format!("{help}{default}"));
    if !values.is_empty() {
        schema["enum"] = json!(values);
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
        for key in Key::ALL.iter().copied().filter(|key| *key != Key::Config) {
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
