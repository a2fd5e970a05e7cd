//! The modules that the elector may start.

/// Modules that are ready to start, by digest. The type is generic only so that tests can use simple values as modules.
pub(super) struct ReadyModules<T>(Vec<(String, T)>);

impl<T> ReadyModules<T> {
    pub(super) fn nothing() -> Self {
        Self(Vec::new())
    }

    /// Adds modules. Keeps the modules of earlier plans, because the elector may already have decided to start one of
    /// them.
    pub(super) fn add(&mut self, new: impl Iterator<Item = (String, T)>) {
        for (digest, one) in new {
            self.0.retain(|(known, _)| *known != digest);
            self.0.push((digest, one));
        }
    }

    /// Keeps only the planned modules, in the order of the plan. Carry out the elector's earlier decisions before you
    /// call this.
    pub(super) fn keep(&mut self, planned: &[&str]) {
        self.0.retain(|(digest, _)| planned.contains(&digest.as_str()));
        self.0.sort_by_key(|(digest, _)| planned.iter().position(|planned| planned == digest));
    }

    pub(super) fn get(&self, digest: &str) -> Option<&T> {
        self.0.iter().find(|(known, _)| known == digest).map(|(_, one)| one)
    }

    /// Returns all modules, starting with the first one in the plan.
    pub(super) fn all(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|(_, one)| one)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(digests: &'static [&'static str]) -> impl Iterator<Item = (String, &'static str)> {
        digests.iter().map(|digest| ((*digest).to_owned(), *digest))
    }

    #[test]
    fn module_of_previous_plan_stays_until_it_is_started() {
        let mut ready_modules = ReadyModules::nothing();
        ready_modules.add(named(&["a", "b"]));
        ready_modules.keep(&["b", "a"]);
        assert_eq!(ready_modules.all().collect::<Vec<_>>(), [&"b", &"a"]);
        // The elector has decided to start `a`. After this decision, two plans arrive that do not contain `a`.
        ready_modules.add(named(&["c"]));
        ready_modules.add(named(&["d", "c"]));
        assert_eq!(ready_modules.get("a"), Some(&"a"));
        ready_modules.keep(&["d"]);
        assert_eq!(
            (ready_modules.get("a"), ready_modules.get("d"), ready_modules.all().count()),
            (None, Some(&"d"), 1)
        );
    }
}
