//! Variables that look like a setting's with a mistake in it: the user who set one believes that it counts.

use std::collections::BTreeSet;

use super::key::nearest;
use super::{Environment, Key, Layer, secrets};
use baton_store::azure::OWN_CONNECTION_STRING;

/// What the variables of settings begin with.
const PREFIX: &str = "BATON_";

/// A variable that counts for nothing, and the one that was most likely meant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Misspelt {
    /// As it is in the environment.
    pub variable: String,
    /// As it should be.
    pub meant: String,
}

/// Those of the environment. What is near no setting belongs to others (Kubernetes makes some for a service called
/// `baton`), and what a secret is taken from is used. An empty one is like none.
pub(super) fn misspelt<'a>(around: &Environment, layers: impl Iterator<Item = &'a Layer>) -> Vec<Misspelt> {
    let known: Vec<String> =
        Key::ALL.map(Key::variable).into_iter().chain([OWN_CONNECTION_STRING.to_owned()]).collect();
    let words: Vec<&str> = known.iter().filter_map(|name| name.strip_prefix(PREFIX)).collect();
    let sources = layers.flat_map(|layer| layer.named(Key::Secret));
    let used: BTreeSet<&str> = sources.filter_map(|(_, given)| given.text.strip_prefix(secrets::ENV)).collect();
    let strange = around.names().filter(|name| !known.iter().any(|known| known == name) && !used.contains(name));
    strange
        .filter_map(|variable| {
            // Elsewhere a letter is also another case, and a hyphen.
            let typo = variable.to_ascii_uppercase().replace('-', "_");
            let typo = typo.strip_prefix(PREFIX)?;
            // Hardly anybody mistakes the first letter, and many short words are near each other.
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
    fn what_is_near_a_setting_is_misspelt_and_what_belongs_to_others_is_not() {
        let others = [
            // Of a service in Kubernetes called baton, and another called baton-admin.
            "BATON_PORT",
            "BATON_PORT_80_TCP",
            "BATON_PORT_80_TCP_PROTO",
            "BATON_SERVICE_HOST",
            "BATON_SERVICE_PORT_HTTP",
            "BATON_ADMIN_SERVICE_HOST",
            // Of scripts.
            "BATON_HOME",
            "BATON_BIN",
            "BATON_VERSION",
            "BATON_IMAGE_TAG",
            // What instances get.
            "BATON_TERM",
            // What a secret is taken from.
            "BATON_STORES",
            // What counts.
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
        let around = Environment::made_up(&all, Path::new("/"));
        let mut layer = Layer::new();
        let set = layer.set_named(Key::Secret, "token", "env:BATON_STORES", Origin::Flag);
        assert_eq!(set, Ok(()));
        let found = misspelt(&around, [&layer].into_iter());
        let found: Vec<_> = found.iter().map(|one| (one.variable.as_str(), one.meant.as_str())).collect();
        assert_eq!(found, mistakes);
    }
}
