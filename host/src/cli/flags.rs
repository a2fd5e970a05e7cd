//! The flags for settings, generated from the settings table.

use std::marker::PhantomData;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, ValueHint};

use crate::config::{Key, Layer, Setting, Shape};

/// The settings that a command takes as flags.
pub(super) trait Selection {
    fn takes(key: Key) -> bool;

    /// True for `run` and `dev`, whose help has headings and marks the settings of a coordinator with `*`.
    const RUNS: bool = false;

    fn shown_default(key: Key) -> Option<&'static str> {
        key.setting().default_text()
    }
}

/// The unparsed values of the settings that were given as flags.
#[derive(Debug)]
pub(super) struct Flags<S> {
    texts: Vec<(Key, Vec<String>)>,
    selection: PhantomData<S>,
}

impl<S> Flags<S> {
    pub fn layer(&self) -> Result<Layer, crate::config::ConfigError> {
        self.texts.iter().try_fold(Layer::new(), |layer, (key, texts)| layer.flags(*key, texts))
    }
}

impl<S: Selection> Args for Flags<S> {
    fn augment_args(command: Command) -> Command {
        selected::<S>().fold(command, |command, key| command.arg(argument::<S>(key)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<S: Selection> FromArgMatches for Flags<S> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let texts = selected::<S>().filter_map(|key| {
            let texts = matches.get_many::<String>(key.name())?;
            Some((key, texts.cloned().collect()))
        });
        Ok(Self { texts: texts.collect(), selection: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

fn selected<S: Selection>() -> impl Iterator<Item = Key> {
    Key::ALL.iter().copied().filter(|key| S::takes(*key))
}

/// Creates a flag for the setting. The module has no flag: it is the positional argument MODULE.
fn argument<S: Selection>(key: Key) -> Arg {
    let Setting { name, shape, value, values, short, heading, is_common, details, .. } = key.setting();
    let help = help::<S>(key);
    let mut argument = Arg::new(*name).value_name(*value).help(help.clone());
    if key != Key::Module {
        argument = argument.long(*name).allow_hyphen_values(key == Key::Arg);
    }
    if let Some(details) = details {
        argument = argument.long_help(format!("{help}\n\n{details}"));
    }
    if let Some(short) = short {
        argument = argument.short(*short);
    }
    if S::RUNS {
        argument = argument.hide_short_help(!is_common);
        if let Some(heading) = heading {
            argument = argument.help_heading(*heading);
        }
    }
    if !values.is_empty() {
        argument = argument.value_parser(values.to_vec()).hide_possible_values(true);
    }
    if shape.is_repeatable() {
        argument = argument.action(ArgAction::Append);
    }
    if *shape == Shape::Switch {
        argument = argument.num_args(0..=1).require_equals(true).default_missing_value("true");
    }
    match *value {
        "PATH" | "KEYFILE" => argument.value_hint(ValueHint::FilePath),
        "DIR" => argument.value_hint(ValueHint::DirPath),
        _ => argument,
    }
}

fn help<S: Selection>(key: Key) -> String {
    let Setting { shape, help, is_per_coordinator, .. } = key.setting();
    let repeatable = if shape.is_repeatable() { "; repeatable" } else { "" };
    let star = if S::RUNS && *is_per_coordinator { " *" } else { "" };
    let default = S::shown_default(key).map(|default| format!(" [default: {default}]")).unwrap_or_default();
    format!("{help}{repeatable}{star}{default}")
}
