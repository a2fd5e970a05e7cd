//! Where secrets are, as settings say it.

use baton_runtime::SecretSource;

use super::Environment;

/// How the source of a secret begins, as a text.
pub(super) const FILE: &str = "file:";
/// See [`FILE`].
pub(super) const ENV: &str = "env:";
/// How to give one on the command line.
pub(super) const FORM: &str = "NAME=file:PATH or NAME=env:VARIABLE";
/// How to give one in the file.
pub(super) const TABLE: &str = "name the secret's source, not its value: { file = \"PATH\" } or { env = \"VARIABLE\" }";

/// The secret `name`, whose `source` is `file:PATH` or `env:VARIABLE`. It is looked for, so that what is wrong is said at
/// once.
///
/// # Errors
/// Why it is not there. Neither what was found nor a source that may be the secret itself is repeated.
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
