//! Reads `baton.toml`. Because the reader uses no derive macro, each value keeps its line number, and the error for a
//! misspelled key can suggest the most similar valid key.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use super::layer::SourcedText;
use super::settings::{nearest, removed, renamed};
use super::value::OFF;
use super::{ConfigError, Environment, Key, Layer, Origin, Shape, secrets, value};
use baton_modules::is_path;
use baton_runtime::{FileError, FolderGrant, read_file};

const COORDINATORS: &str = "coordinators";
pub(super) const DEFAULT_FILE: &str = "baton.toml";
const SQLITE: &str = "sqlite:";
/// Maximum size of the file, in bytes. A larger file is probably not a configuration file.
const LONGEST: u64 = 1 << 20;

#[derive(Default)]
pub(super) struct FileLayers {
    /// The top-level keys.
    pub global: Layer,
    /// The tables `[coordinators.NAME]`, by NAME.
    pub coordinators: BTreeMap<String, Layer>,
}

/// Reads the file that the user has named. If the user has named none, reads the default file, if it exists. Also
/// returns the file's name.
pub(super) fn read(
    named: Option<&SourcedText>,
    around: &Environment,
) -> Result<Option<(String, FileLayers)>, ConfigError> {
    let name = named.map_or(DEFAULT_FILE, |given| given.text.as_str());
    let path = around.path(name);
    let text = match read_text(&path) {
        Ok(text) => text,
        Err(None) if named.is_none() => return Ok(None),
        Err(problem) => {
            let problem = problem.unwrap_or_else(|| "there is no such file".to_string());
            return Err(match named {
                // Do not repeat the name, which may contain a secret: before 0.1.0, `--config` took NAME=VALUE.
                Some(given) if name.contains('=') => {
                    let hint = format!(
                        "is not a file name: use {} or {} for variables of the coordinator's configuration",
                        Key::ConfigVar.flag(),
                        Key::ConfigVar.variable()
                    );
                    ConfigError::at(Key::Config, &given.origin, hint)
                }
                Some(given) => ConfigError::at(Key::Config, &given.origin, format!("{name:?}: {problem}")),
                None => ConfigError::new(name, problem),
            });
        }
    };
    let source = Source { name, folder: path.parent().unwrap_or(Path::new("")).to_path_buf(), text: &text };
    Ok(Some((name.to_string(), source.layers()?)))
}

/// Returns `Err(None)` if the file does not exist.
fn read_text(path: &Path) -> Result<String, Option<String>> {
    match read_file(path, LONGEST) {
        Ok(bytes) => String::from_utf8(bytes).map_err(|error| Some(format!("cannot be read: {error}"))),
        Err(FileError::TooLong(_)) => Err(Some("is longer than 1 MiB: is it a configuration file?".to_string())),
        Err(FileError::Unreadable(error)) if error.kind() == ErrorKind::NotFound => Err(None),
        Err(error) => Err(Some(error.to_string())),
    }
}

struct Source<'a> {
    name: &'a str,
    folder: PathBuf,
    text: &'a str,
}

impl Source<'_> {
    fn layers(&self) -> Result<FileLayers, ConfigError> {
        let document = DeTable::parse(self.text)
            .map_err(|error| self.error(error.span().unwrap_or_default().start, None, error.message()))?;
        let mut layers = FileLayers::default();
        for (key, value) in document.get_ref() {
            if key.get_ref() == COORDINATORS {
                layers.coordinators = self.coordinators(value)?;
            } else {
                let legal = |key: &Key| *key != Key::Config;
                self.setting(&mut layers.global, "", key, value, legal)?;
            }
        }
        if !layers.coordinators.is_empty() {
            for key in [Key::Module, Key::Election] {
                if let Some(given) = layers.global.get(key) {
                    let problem = "is outside of the [coordinators.NAME] tables: move it into its coordinator's table";
                    return Err(ConfigError::at(key, &given.origin, problem));
                }
            }
        }
        Ok(layers)
    }

    fn coordinators(&self, value: &Spanned<DeValue<'_>>) -> Result<BTreeMap<String, Layer>, ConfigError> {
        let form = "write a table [coordinators.NAME] for each coordinator";
        let DeValue::Table(tables) = value.get_ref() else {
            return Err(self.error(value.span().start, Some(COORDINATORS), form));
        };
        let mut layers = BTreeMap::new();
        for (name, table) in tables {
            let at = name.span().start;
            let path = format!("{COORDINATORS}.{}", name.get_ref().escape_debug());
            let DeValue::Table(settings) = table.get_ref() else {
                return Err(self.error(at, Some(&path), form));
            };
            let mut layer = Layer::new();
            for (key, value) in settings {
                self.setting(&mut layer, &format!("{path}."), key, value, |key| key.is_per_coordinator())?;
            }
            if layer.get(Key::Module).is_none() {
                return Err(self.error(at, Some(&path), "has no module: write module = \"PATH\""));
            }
            if layer.get(Key::Election).is_none() {
                let origin = Origin::File { path: self.name.to_string(), line: self.line(at), key: path };
                layer.set(Key::Election, name.get_ref().to_string(), origin);
            }
            layers.insert(name.get_ref().to_string(), layer);
        }
        Ok(layers)
    }

    fn setting(
        &self,
        layer: &mut Layer,
        prefix: &str,
        key: &Spanned<std::borrow::Cow<'_, str>>,
        value: &Spanned<DeValue<'_>>,
        legal: impl Fn(&Key) -> bool,
    ) -> Result<(), ConfigError> {
        let word = key.get_ref().as_ref();
        let at = key.span().start;
        let path = format!("{prefix}{}", word.escape_debug());
        let Some(setting) = Key::ALL.iter().copied().filter(&legal).find(|legal| legal.name() == word) else {
            return Err(self.error(at, Some(&path), &unknown(word, prefix.is_empty(), legal)));
        };
        match (setting, value.get_ref()) {
            (Key::Env | Key::ConfigVar | Key::Secret | Key::Label, DeValue::Table(values)) => {
                for (name, value) in values {
                    let path = format!("{path}.{}", name.get_ref().escape_debug());
                    let at = name.span().start;
                    let text = self.named(setting, at, &path, value.get_ref())?;
                    layer.set_named(setting, name.get_ref(), &text, self.origin(at, &path))?;
                }
            }
            (Key::Dir, DeValue::Array(texts)) => {
                for text in texts {
                    let (at, DeValue::String(text)) = (text.span().start, text.get_ref()) else {
                        return Err(self.error(text.span().start, Some(&path), "write each folder as a quoted string"));
                    };
                    // Pass malformed text on unchanged: `set_folder` rejects it.
                    let text = match FolderGrant::of(text) {
                        Ok(parts) => {
                            let host = self.path(at, &path, parts.host)?;
                            FolderGrant { host: &host, ..parts }.to_string()
                        }
                        Err(_) => text.to_string(),
                    };
                    layer.set_folder(&text, self.origin(at, &path))?;
                }
            }
            (_, value) => layer.set(setting, self.text(setting, at, &path, value)?, self.origin(at, &path)),
        }
        Ok(())
    }

    fn origin(&self, at: usize, path: &str) -> Origin {
        Origin::File { path: self.name.to_string(), line: self.line(at), key: path.to_owned() }
    }

    /// Converts the value of a setting to the text that the flag would accept.
    fn text(&self, setting: Key, at: usize, path: &str, value: &DeValue<'_>) -> Result<String, ConfigError> {
        let wrong = |problem: &str| self.error(at, Some(path), problem);
        Ok(match (setting, value) {
            (Key::Dir, _) => return Err(wrong("write a list: dir = [\"HOST::GUEST\"]")),
            (Key::Env | Key::ConfigVar | Key::Label, _) => {
                return Err(wrong(&format!("write a table: {} = {{ NAME = \"VALUE\" }}", setting.name())));
            }
            (Key::Secret, _) => return Err(wrong("write a table: secret = { NAME = { file = \"PATH\" } }")),
            (Key::AllowHttp, DeValue::Array(grants)) => {
                self.texts(at, path, grants, "allow-http = [\"https://api.example.com\"]")?.join("\n")
            }
            (Key::Pin, DeValue::Array(digests)) => self.texts(at, path, digests, "pin = [\"sha256:…\"]")?.join("\n"),
            (Key::Arg, DeValue::Array(arguments)) => {
                let arguments = self.texts(at, path, arguments, ARGUMENTS)?;
                if arguments.iter().any(|argument| argument.contains('\0')) {
                    return Err(wrong("an argument cannot contain NUL"));
                }
                value::join_arguments(arguments.into_iter())
            }
            (Key::Arg, _) => return Err(wrong(&list_of_strings(ARGUMENTS))),
            (Key::Trust, DeValue::Array(files)) => {
                let files = self.texts(at, path, files, "trust = [\"minisign.pub\"]")?.into_iter();
                files.map(|file| self.path(at, path, file)).collect::<Result<Vec<_>, _>>()?.join("\n")
            }
            (Key::Trust, DeValue::String(file)) => self.path(at, path, file)?,
            (_, DeValue::Integer(number)) if setting.shape() == Shape::Number => number.to_string(),
            (_, DeValue::Boolean(on)) if setting.shape() == Shape::Switch => on.to_string(),
            (_, _) if setting.shape() == Shape::Switch => return Err(wrong("write true or false, without quotes")),
            (Key::Cache, DeValue::String(place)) if place != OFF => self.path(at, path, place)?,
            (Key::Module, DeValue::String(module)) if is_path(module) => self.path(at, path, module)?,
            (Key::HttpCa | Key::AdminTokenFile | Key::AdminTlsCert | Key::AdminTlsKey, DeValue::String(file))
                if Some(file.as_ref()) != setting.setting().default =>
            {
                self.path(at, path, file)?
            }
            (Key::Store, DeValue::String(store)) => match store.strip_prefix(SQLITE) {
                Some(folder) if !folder.is_empty() && !folder.starts_with('~') => {
                    format!("{SQLITE}{}", self.path(at, path, folder)?)
                }
                _ => store.to_string(),
            },
            (_, DeValue::String(text)) => text.to_string(),
            _ => return Err(wrong(&format!("write a quoted string{}", example(setting)))),
        })
    }

    /// Converts one value of a multi-value setting to the text that the flag would accept.
    fn named(&self, setting: Key, at: usize, path: &str, value: &DeValue<'_>) -> Result<String, ConfigError> {
        let wrong = |problem| Err(self.error(at, Some(path), problem));
        match (setting, value) {
            (Key::Secret, DeValue::Table(source)) => {
                let mut source = source.iter().map(|(key, value)| (key.get_ref().as_ref(), value.get_ref()));
                match (source.next(), source.next()) {
                    (Some(("file", DeValue::String(file))), None) => {
                        Ok(format!("{}{}", secrets::FILE, self.path(at, path, file)?))
                    }
                    (Some(("env", DeValue::String(variable))), None) => Ok(format!("{}{variable}", secrets::ENV)),
                    _ => wrong(secrets::TABLE),
                }
            }
            (Key::Secret, _) => wrong(secrets::TABLE),
            (_, DeValue::String(text)) => Ok(text.to_string()),
            (Key::ConfigVar, DeValue::Integer(number)) => Ok(number.to_string()),
            (Key::ConfigVar, DeValue::Float(number)) => Ok(number.to_string()),
            (Key::ConfigVar, DeValue::Boolean(on)) => Ok(on.to_string()),
            (Key::ConfigVar, _) => wrong("write a quoted string, a number, true or false"),
            _ => wrong("write the value as a quoted string"),
        }
    }

    fn texts<'a>(
        &self,
        at: usize,
        path: &str,
        list: &'a DeArray<'_>,
        example: &str,
    ) -> Result<Vec<&'a str>, ConfigError> {
        let texts: Option<Vec<&str>> = list.iter().map(|text| text.get_ref().as_str()).collect();
        texts.ok_or_else(|| self.error(at, Some(path), &list_of_strings(example)))
    }

    /// Resolves a path relative to the file's folder, not to the working folder.
    fn path(&self, at: usize, key: &str, path: &str) -> Result<String, ConfigError> {
        self.folder
            .join(path)
            .into_os_string()
            .into_string()
            .map_err(|_| self.error(at, Some(key), "the file's folder is not UTF-8: write an absolute path"))
    }

    fn line(&self, at: usize) -> usize {
        let before = self.text.as_bytes().get(..at).unwrap_or(self.text.as_bytes());
        1 + before.iter().filter(|byte| **byte == b'\n').count()
    }

    fn error(&self, at: usize, key: Option<&str>, problem: &str) -> ConfigError {
        let key = key.map(|key| format!(": {key}")).unwrap_or_default();
        ConfigError::new(format!("{}:{}{key}", self.name, self.line(at)), problem.replace('\n', " "))
    }
}

fn list_of_strings(example: &str) -> String {
    format!("write a list of quoted strings: {example}")
}

/// Example that errors show for the key `arg`. Baton rejects a single string as the value of `arg`, because it is not
/// clear how to split the string into arguments.
const ARGUMENTS: &str = "arg = [\"--verbose\", \"report.csv\"]";

/// The error message for a key that is unknown, or in the wrong part of the file.
fn unknown(word: &str, at_top: bool, legal: impl Fn(&Key) -> bool) -> String {
    if !at_top && Key::ALL.iter().any(|key| key.name() == word && *key != Key::Config) {
        return "applies to the whole host: move it to the top of the file, above the first table".to_string();
    }
    if word == Key::Config.name() {
        return "cannot be set in the file itself: use --config or BATON_CONFIG. To set variables of the coordinator's \
                configuration, use the table `config-var`"
            .to_string();
    }
    if let Some(key) = renamed(word) {
        return format!("is now called `{}`", key.name());
    }
    if let Some(advice) = removed(word) {
        return format!("no longer exists: remove it; {advice}");
    }
    let mut words: Vec<&str> = Key::ALL.iter().filter(|key| legal(key)).map(|key| key.name()).collect();
    if at_top {
        words.push(COORDINATORS);
    }
    match nearest(word, &words) {
        Some(near) => format!("there is no such key: did you mean `{near}`?"),
        None => format!("there is no such key; the keys are {}", words.join(", ")),
    }
}

fn example(key: Key) -> &'static str {
    match key {
        Key::Lease | Key::Grace | Key::RestartDelay | Key::Probation | Key::CompileTimeout => ", such as \"15s\"",
        Key::StallAfter => ", such as \"5m\" or \"off\"",
        Key::MaxOutput => ", or a number, such as 1000",
        Key::MaxMemory | Key::MaxState => ", such as \"256MiB\"",
        Key::Pin => ", such as \"sha256:…\", or a list of them in brackets",
        Key::Trust => ", such as \"minisign.pub\", or a list of them in brackets",
        Key::Admin => ", such as \"127.0.0.1:7070\" or \"none\"",
        Key::Peer => ", such as \"10.0.0.3:7072\" or \"off\"",
        Key::PeerAdvertise => ", such as \"web-3.example:7072\" or \"own\"",
        Key::Cache => ", such as \"cache\" or \"off\"",
        Key::AllowHttp => ", such as \"https://api.example.com\", or a list of them in brackets",
        Key::MaxRequests => " or a number, such as 64",
        _ => "",
    }
}
