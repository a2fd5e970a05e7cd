//! Detects environment variables whose names are probably misspelled names of settings. Without a warning, the user
//! would not notice that such a variable has no effect.

use std::collections::BTreeSet;

use super::settings::nearest;
use super::{Environment, Key, Layer, secrets};
use baton_store::azure::OWN_CONNECTION_STRING;

const PREFIX: &str = "BATON_";

/// An environment variable that has no effect, because its name is probably misspelled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Misspelt {
    /// Name of the variable in the environment.
    pub variable: String,
    /// Name of the variable that was probably meant.
    pub meant: String,
}

/// Finds the misspelled variables in the environment. Ignores names that are not similar to a setting, because other
/// programs may use them. For example, Kubernetes sets variables with the prefix `BATON_` for a service called `baton`.
/// Also ignores empty variables, and variables from which a secret is read.
pub(super) fn misspelt<'a>(around: &Environment, layers: impl Iterator<Item = &'a Layer>) -> Vec<Misspelt> {
    let known: Vec<String> =
        Key::ALL.iter().map(|key| key.variable()).chain([OWN_CONNECTION_STRING.to_owned()]).collect();
    let words: Vec<&str> = known.iter().filter_map(|name| name.strip_prefix(PREFIX)).collect();
    let sources = layers.flat_map(|layer| layer.named(Key::Secret));
    let used: BTreeSet<&str> = sources.filter_map(|(_, given)| given.text.strip_prefix(secrets::ENV)).collect();
    let strange = around.names().filter(|name| !known.iter().any(|known| known == name) && !used.contains(name));
    strange
        .filter_map(|variable| {
            // Names in lower case or with hyphens, as in baton.toml, also count as misspelled.
            let typo = variable.to_ascii_uppercase().replace('-', "_");
            let typo = typo.strip_prefix(PREFIX)?;
            // Compare only words with the same first letter, because users rarely mistype the first letter. Otherwise,
            // many short words would match by chance.
            let alike: Vec<&str> =
                words.iter().copied().filter(|word| word.chars().next() == typo.chars().next()).collect();
            let meant = format!("{PREFIX}{}", nearest(typo, &alike)?);
            Some(Misspelt { variable: variable.to_owned(), meant })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Origin;

    #[test]
    fn variable_is_misspelt_only_if_similar_to_a_setting() {
        let others = [
            // Kubernetes sets these variables for the services `baton` and `baton-admin`.
            "BATON_PORT",
            "BATON_PORT_80_TCP",
            "BATON_PORT_80_TCP_PROTO",
            "BATON_SERVICE_HOST",
            "BATON_SERVICE_PORT_HTTP",
            "BATON_ADMIN_SERVICE_HOST",
            // Scripts may use these variables.
            "BATON_HOME",
            "BATON_BIN",
            "BATON_VERSION",
            "BATON_IMAGE_TAG",
            // Baton sets this variable for an instance.
            "BATON_TERM",
            // In this test, the host is configured to read a secret from this variable.
            "BATON_STORES",
            // These names are spelled correctly, or do not start with `BATON_`.
            "BATON_NODE",
            "BATON_STORE_CONNECTION_STRING",
            "LEASE",
            "BATTON_LEASE",
        ];
        let mistakes = [
            ("BATON_GRASE", "BATON_GRACE"),
            ("BATON_MAXMEMORY", "BATON_MAX_MEMORY"),
            ("BATON_SECRETS", "BATON_SECRET"),
            ("BATON_STALL-AFTER", "BATON_STALL_AFTER"),
            ("BATON_STORE_CONNECTIONSTRING", "BATON_STORE_CONNECTION_STRING"),
            ("BATON_STROE", "BATON_STORE"),
            ("baton_lease", "BATON_LEASE"),
        ];
        let all = others.into_iter().chain(mistakes.map(|(variable, _)| variable)).map(|name| (name, "x"));
        let all: Vec<(&str, &str)> = all.chain([("BATON_LEESE", "")]).collect();
        let around = Environment::artificial(&all, Path::new("/"));
        let mut layer = Layer::new();
        let set = layer.set_named(Key::Secret, "token", "env:BATON_STORES", Origin::Flag);
        assert_eq!(set, Ok(()));
        let found = misspelt(&around, [&layer].into_iter());
        let found: Vec<_> = found.iter().map(|one| (one.variable.as_str(), one.meant.as_str())).collect();
        assert_eq!(found, mistakes);
    }
}
