//! The nodes that listen to this node in one election, and their order of succession.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::wire::Candidacy;

/// The listeners, by the number of their link.
#[derive(Default, Debug)]
pub(super) struct Listeners(BTreeMap<u64, Listener>);

#[derive(Debug)]
struct Listener {
    node: String,
    candidacy: Candidacy,
    /// Random number that decides between listeners of equal priority. Constant while the node listens, so that the
    /// order of succession is stable.
    tie_breaker: u64,
}

impl Listeners {
    pub(super) fn add(&mut self, link: u64, node: String) {
        self.add_with(link, node, tie_breaker());
    }

    fn add_with(&mut self, link: u64, node: String, tie_breaker: u64) {
        self.0.insert(link, Listener { node, candidacy: Candidacy::default(), tie_breaker });
    }

    pub(super) fn remove(&mut self, link: u64) -> bool {
        self.0.remove(&link).is_some()
    }

    pub(super) fn is(&mut self, link: u64, candidacy: Candidacy) {
        if let Some(listener) = self.0.get_mut(&link) {
            listener.candidacy = candidacy;
        }
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns each listener's place in the order of succession, by the number of its link. If `to` is set, it is the
    /// target of a transfer, and comes first. Nodes that have reached `--max-leaderships` come last. Among the others,
    /// nodes with a higher priority come first. A node that is not ready to lead has no place.
    pub(super) fn places(&self, to: Option<&str>) -> BTreeMap<u64, Option<u32>> {
        let mut ready: Vec<_> = self.0.iter().filter(|(_, listener)| listener.candidacy.ready).collect();
        ready.sort_by_key(|(_, Listener { node, candidacy, tie_breaker })| {
            (Some(node.as_str()) != to, candidacy.at_leadership_limit, Reverse(candidacy.priority), *tie_breaker)
        });
        let mut places: BTreeMap<u64, Option<u32>> = self.0.keys().map(|link| (*link, None)).collect();
        for (place, (link, _)) in ready.into_iter().enumerate() {
            places.insert(*link, u32::try_from(place).ok());
        }
        places
    }
}

fn tie_breaker() -> u64 {
    let mut bytes = [0; 8];
    // If random numbers are unavailable, all listeners get the same tie-breaker.
    let _ = getrandom::fill(&mut bytes);
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfer_target_is_first_then_ready_nodes_by_priority() {
        let mut listeners = Listeners::default();
        let ready = Candidacy { ready: true, priority: 50, at_leadership_limit: false };
        for (link, (node, candidacy)) in [
            ("out", Candidacy { ready: false, priority: 100, ..ready }),
            ("low", ready),
            ("high", Candidacy { priority: 90, ..ready }),
            ("full", Candidacy { priority: 100, at_leadership_limit: true, ..ready }),
            ("equal", ready),
        ]
        .into_iter()
        .enumerate()
        {
            listeners.add_with(link as u64, node.to_owned(), 10 - link as u64);
            listeners.is(link as u64, candidacy);
        }
        let order = |to| listeners.places(to).into_values().collect::<Vec<_>>();
        assert_eq!(order(None), [None, Some(2), Some(0), Some(3), Some(1)]);
        assert_eq!(order(Some("low")), [None, Some(0), Some(1), Some(3), Some(2)]);
        assert_eq!(order(Some("out")), order(None), "it could not take the lease");
        assert!(listeners.remove(2) && !listeners.remove(2));
        assert_eq!((listeners.count(), listeners.places(None)[&4]), (4, Some(0)));
    }
}
