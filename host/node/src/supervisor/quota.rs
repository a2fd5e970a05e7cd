//! The limit on the number of elections that a host leads.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use baton_election::ElectionName;

/// The set of elections that a host leads or is about to lead, and the maximum size of this set. Clones share the set.
#[derive(Clone, Debug)]
pub struct LeadershipQuota {
    /// `None` for no limit.
    most: Option<usize>,
    now: Arc<Mutex<BTreeSet<ElectionName>>>,
}

impl LeadershipQuota {
    /// Creates an empty set with a maximum size.
    #[must_use]
    pub fn at_most(most: Option<usize>) -> Self {
        Self { most, now: Arc::default() }
    }

    /// Adds an election just before this host requests the election's lease. If the host already leads the maximum
    /// number of elections, adds the election only if `insists` is set.
    ///
    /// # Errors
    /// Returns the reason why the host must not request the lease.
    pub(super) fn reserve(&self, election: &ElectionName, insists: bool) -> Result<(), String> {
        let mut now = self.lock();
        if let Some(most) = self.most.filter(|most| now.len() >= *most && !now.contains(election) && !insists) {
            return Err(format!("this host may lead at most {most} elections"));
        }
        now.insert(election.clone());
        Ok(())
    }

    /// True if the host already leads the maximum number of other elections. The host then acquires this election's
    /// lease only if no other node does.
    pub(super) fn is_full(&self, election: &ElectionName) -> bool {
        self.most.is_some_and(|most| {
            let now = self.lock();
            now.len() >= most && !now.contains(election)
        })
    }

    /// Removes an election whose lease this host neither holds nor requests.
    pub(super) fn give_back(&self, election: &ElectionName) {
        self.lock().remove(election);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<ElectionName>> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use super::*;

    #[test]
    fn full_quota_refuses_other_elections_unless_insisted() {
        let quota = LeadershipQuota::at_most(Some(1));
        let [one, other] = ["one", "other"].map(|name| ElectionName::new(name).unwrap());
        assert!(!quota.is_full(&other));
        assert!(quota.reserve(&one, false).is_ok() && quota.reserve(&one, false).is_ok(), "it is the same election");
        assert!(quota.is_full(&other) && !quota.is_full(&one));
        assert!(quota.reserve(&other, false).is_err());
        assert!(quota.reserve(&other, true).is_ok());
        for election in [&one, &other, &other] {
            quota.give_back(election);
        }
        assert!(!quota.is_full(&one) && quota.reserve(&one, false).is_ok());
        assert!(LeadershipQuota::at_most(None).reserve(&one, false).is_ok());
    }
}
