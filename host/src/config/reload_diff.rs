//! Finds the settings that have changed since the host started.

use std::collections::{BTreeMap, BTreeSet};

use super::table::SettingRow;
use super::{Config, ConfigError, Coordinator, Key, resolve};

impl Config {
    /// Resolves the settings again, from the command line and the environment of the host's start and from the current
    /// configuration file.
    ///
    /// # Errors
    /// [`ConfigError`] for the first error.
    pub fn again(&self) -> Result<Self, ConfigError> {
        let (flags, around) = &self.given;
        resolve(flags, around)
    }

    /// Returns the flags of all settings that differ between the two configurations. Also returns the tables
    /// `[coordinators.NAME]` of the elections that only one configuration has.
    #[must_use]
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let (own, others) = (self.by_election(), other.by_election());
        let is_in_both = |name: &str| own.contains_key(name) && others.contains_key(name);
        let values = |config: &Self| -> BTreeSet<_> {
            let rows = config.rows.iter().filter(|row| row.election.as_deref().is_none_or(is_in_both)).cloned();
            rows.map(|SettingRow { election, key, part, value, .. }| (key, election, part, value)).collect()
        };
        let mut keys: BTreeSet<Key> = values(self).symmetric_difference(&values(other)).map(|(key, ..)| *key).collect();
        for (one, now) in own.iter().filter_map(|(name, one)| Some((one, others.get(name)?))) {
            // The rows omit the values of environment variables and secrets, which may be confidential. Compare these
            // values here.
            keys.extend((one.env != now.env).then_some(Key::Env));
            keys.extend((one.secrets != now.secrets).then_some(Key::Secret));
        }
        let names: BTreeSet<&str> = own.keys().chain(others.keys()).copied().filter(|name| !is_in_both(name)).collect();
        let tables = names.into_iter().map(|name| format!("[coordinators.{name}]"));
        keys.into_iter().map(Key::flag).chain(tables).collect()
    }

    fn by_election(&self) -> BTreeMap<&str, &Coordinator> {
        self.coordinators.iter().map(|coordinator| (coordinator.election.as_str(), coordinator)).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use std::fs;

    use super::super::{Environment, Layer};
    use super::*;

    #[test]
    fn differences_name_changed_settings_without_their_values() {
        let folder = tempfile::tempdir().unwrap();
        let says = |text: &str| fs::write(folder.path().join("baton.toml"), text).unwrap();
        let begin = "store = 'sqlite:x'\n[coordinators.a]\nmodule = 'a.wasm'\nenv = { K = 'one' }\n";
        says(begin);
        let flags = Layer::new().flag(Key::Node, Some("web".to_owned()));
        let config = resolve(&flags, &Environment::artificial(&[], folder.path())).unwrap();
        let differs = || config.again().map(|now| config.differences(&now));
        assert_eq!(differs().unwrap(), [""; 0]);
        says(&begin.replace("one", "two"));
        assert_eq!(differs().unwrap(), ["--env"]);
        says(&format!("lease = '20s'\nnode = 'other'\nadmin = 'none'\n{begin}[coordinators.b]\nmodule = 'b.wasm'\n"));
        assert_eq!(differs().unwrap(), ["--lease", "--admin", "[coordinators.b]"], "a flag overrides the file");
        says("leese = '20s'\n");
        assert!(differs().unwrap_err().to_string().contains("leese"));
    }
}
