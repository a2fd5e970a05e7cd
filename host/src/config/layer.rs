//! The settings from one source: unparsed values with their origins.

use std::collections::BTreeMap;
use std::fmt;

use baton_runtime::FolderGrant;

use super::settings::{removed_variable, renamed_variable};
use super::{ConfigError, Environment, Key, secrets, value};

/// The place where a value was set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// The command line.
    Flag,
    /// A `BATON_…` variable in the host's environment.
    Variable,
    /// The configuration file.
    File {
        /// The path as given.
        path: String,
        /// The line number, from 1.
        line: usize,
        /// The full key, including its tables.
        key: String,
    },
    /// The built-in default, because no source sets the value.
    Default,
}

impl Origin {
    /// Describes the place to fix if the value of `key` is invalid.
    pub(super) fn place(&self, key: Key) -> String {
        match self {
            Origin::Flag => key.flag(),
            Origin::Variable => key.variable(),
            Origin::File { path, line, key } => format!("{path}:{line}: {key}"),
            Origin::Default if key == Key::Module => key.flag(),
            Origin::Default => format!("{} (by default)", key.name()),
        }
    }

    pub(super) fn show(&self, key: Key) -> impl fmt::Display {
        match self {
            Origin::Flag => format!("flag {}", key.flag()),
            Origin::Variable => format!("env {}", key.variable()),
            Origin::File { path, key, .. } => format!("file {path}:{key}"),
            Origin::Default => "default".to_string(),
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct SourcedText {
    pub text: String,
    pub origin: Origin,
}

/// The unparsed settings of one source.
#[derive(Clone, Default)]
pub struct Layer {
    values: BTreeMap<Key, SourcedText>,
    /// Values of the multi-value settings, by setting and name.
    named: BTreeMap<Key, BTreeMap<String, SourcedText>>,
}

impl Layer {
    /// Creates an empty layer.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the value of a flag, if the flag was given.
    #[must_use]
    pub fn flag(mut self, key: Key, text: Option<String>) -> Self {
        if let Some(text) = text {
            self.set(key, text, Origin::Flag);
        }
        self
    }

    /// Sets all values of a flag.
    ///
    /// # Errors
    /// [`ConfigError`] if the setting takes pairs or folders and a value is malformed.
    pub fn flags(mut self, key: Key, texts: &[String]) -> Result<Self, ConfigError> {
        if key.is_named() {
            for pair in texts {
                self.set_pair(key, pair, Origin::Flag)?;
            }
        } else if !texts.is_empty() {
            let text = match key {
                Key::Arg => value::join_arguments(texts.iter().map(String::as_str)),
                _ => texts.join("\n"),
            };
            self.set(key, text, Origin::Flag);
        }
        Ok(self)
    }

    /// Reads the settings from the `BATON_…` variables. Ignores empty variables. Fails if a variable belongs to a
    /// setting that was renamed or removed. For unknown variables, see [`super::misspelt`].
    pub(super) fn of_variables(around: &Environment) -> Result<Self, ConfigError> {
        if let Some((name, key)) = around.names().find_map(|name| Some((name, renamed_variable(name)?))) {
            return Err(ConfigError::new(name, format!("is now called {}", key.variable())));
        }
        if let Some((name, advice)) = around.names().find_map(|name| Some((name, removed_variable(name)?))) {
            return Err(ConfigError::new(name, format!("no longer exists: remove it; {advice}")));
        }
        let mut layer = Self::new();
        for &key in Key::ALL {
            let name = key.variable();
            let Some(text) = around.variable(&name).filter(|text| !text.is_empty()) else {
                continue;
            };
            let text = text.to_str().ok_or_else(|| ConfigError::new(&name, "is not UTF-8: write it in plain text"))?;
            if key.is_named() {
                for pair in text.lines().filter(|line| !line.trim().is_empty()) {
                    layer.set_pair(key, pair, Origin::Variable)?;
                }
            } else if key == Key::Arg {
                layer.set(key, value::join_arguments(text.lines()), Origin::Variable);
            } else {
                layer.set(key, text.to_string(), Origin::Variable);
            }
        }
        Ok(layer)
    }

    pub(super) fn get(&self, key: Key) -> Option<&SourcedText> {
        self.values.get(&key)
    }

    pub(super) fn named(&self, key: Key) -> impl Iterator<Item = (&String, &SourcedText)> {
        self.named.get(&key).into_iter().flatten()
    }

    pub(super) fn set(&mut self, key: Key, text: String, origin: Origin) {
        self.values.insert(key, SourcedText { text, origin });
    }

    /// Sets one value of a multi-value setting, such as an environment variable of the coordinator or a label.
    pub(super) fn set_named(&mut self, key: Key, name: &str, value: &str, origin: Origin) -> Result<(), ConfigError> {
        let illegal = name.is_empty() || name.contains(['=', '\0']) || value.contains('\0');
        if illegal {
            let problem = "a name must not be empty or contain `=` or NUL, and a value must not contain NUL";
            return Err(ConfigError::at(key, &origin, problem));
        }
        self.named.entry(key).or_default().insert(name.to_string(), SourcedText { text: value.to_string(), origin });
        Ok(())
    }

    /// Adds a folder grant, with the guest path as the grant's name. Rejects a second grant with the same guest path,
    /// because one folder would hide the other in the sandbox.
    pub(super) fn set_folder(&mut self, text: &str, origin: Origin) -> Result<(), ConfigError> {
        let parts = FolderGrant::of(text).map_err(|problem| ConfigError::at(Key::Dir, &origin, problem))?;
        let folders = self.named.entry(Key::Dir).or_default();
        if folders.contains_key(parts.guest) {
            let problem = format!("two folders have the same guest path {:?}: give each its own path", parts.guest);
            return Err(ConfigError::at(Key::Dir, &origin, problem));
        }
        folders.insert(parts.guest.to_string(), SourcedText { text: text.to_string(), origin });
        Ok(())
    }

    /// Sets a pair `NAME=VALUE`. Errors never repeat the pair, which may contain a secret.
    fn set_pair(&mut self, key: Key, pair: &str, origin: Origin) -> Result<(), ConfigError> {
        if key == Key::Dir {
            return self.set_folder(pair, origin);
        }
        let Some((name, value)) = pair.split_once('=') else {
            let form = if key == Key::Secret { secrets::FORM } else { "NAME=VALUE" };
            let problem = match origin {
                Origin::Variable => format!("a line has no `=`: write one {form} on each line"),
                _ if key == Key::ConfigVar => {
                    format!(
                        "there is no `=`: write {form}, and repeat the option to set more; to name a configuration \
                         file, use --config"
                    )
                }
                _ => format!("there is no `=`: write {form}, and repeat {} to set more", key.flag()),
            };
            return Err(ConfigError::at(key, &origin, problem));
        };
        self.set_named(key, name, value, origin)
    }
}
