//! Secret sources, as named in settings.

use baton_runtime::SecretSource;

use super::Environment;

pub(super) const FILE: &str = "file:";
pub(super) const ENV: &str = "env:";
pub(super) const FORM: &str = "NAME=file:PATH or NAME=env:VARIABLE";
pub(super) const TABLE: &str = "name the secret's source, not its value: { file = \"PATH\" } or { env = \"VARIABLE\" }";

/// Parses the source of the secret `name`: `file:PATH` or `env:VARIABLE`. Reads the secret, so that the host reports
/// errors when it starts.
///
/// # Errors
/// A message that says why the secret cannot be read. The message contains neither the secret nor a malformed source,
/// which may be the secret itself.
pub(super) fn find(name: &str, source: &str, around: &Environment) -> Result<SecretSource, String> {
    if let Some(path) = source.strip_prefix(FILE).filter(|path| !path.is_empty()) {
        let source = SecretSource::in_file(name, around.path(path));
        source.read().map(|_| source)
    } else if let Some(variable) = source.strip_prefix(ENV).filter(|variable| !variable.is_empty()) {
        variable_called(name, variable, around)
            .map_err(|problem| format!("cannot read {name:?} from the host's variable {variable:?}, which {problem}"))
    } else {
        Err(format!("does not name the source of {name:?}: write {FORM}"))
    }
}

fn variable_called(name: &str, variable: &str, around: &Environment) -> Result<SecretSource, String> {
    let value = around.variable(variable).ok_or("is not set")?;
    SecretSource::of_variable(name, value.to_str().ok_or("is not UTF-8: a secret must be text")?)
}
