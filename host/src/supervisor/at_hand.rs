//! What the elector may start.

/// What is ready to be started, by its digest. What stands there is a module, but for the tests.
pub(super) struct AtHand<T>(Vec<(String, T)>);

impl<T> AtHand<T> {
    pub(super) fn nothing() -> Self {
        Self(Vec::new())
    }

    /// The elector knows of these, and may have decided to start another that it knew before: all of them are at hand.
    pub(super) fn add(&mut self, new: impl Iterator<Item = (String, T)>) {
        for (digest, one) in new {
            self.0.retain(|(known, _)| *known != digest);
            self.0.push((digest, one));
        }
    }

    /// What the elector had decided is carried out: it starts nothing any more but these.
    pub(super) fn keep(&mut self, planned: &[&str]) {
        self.0.retain(|(digest, _)| planned.contains(&digest.as_str()));
        self.0.sort_by_key(|(digest, _)| planned.iter().position(|planned| planned == digest));
    }

    pub(super) fn get(&self, digest: &str) -> Option<&T> {
        self.0.iter().find(|(known, _)| known == digest).map(|(_, one)| one)
    }

    /// All of it, what is served first.
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
    fn what_a_plan_before_starts_is_at_hand_until_that_is_carried_out() {
        let mut at_hand = AtHand::nothing();
        at_hand.add(named(&["a", "b"]));
        at_hand.keep(&["b", "a"]);
        assert_eq!(at_hand.all().collect::<Vec<_>>(), [&"b", &"a"]);
        // The elector has decided to start `a`, and then two plans come, of which neither knows it.
        at_hand.add(named(&["c"]));
        at_hand.add(named(&["d", "c"]));
        assert_eq!(at_hand.get("a"), Some(&"a"));
        at_hand.keep(&["d"]);
        assert_eq!((at_hand.get("a"), at_hand.get("d"), at_hand.all().count()), (None, Some(&"d"), 1));
    }
}
