//! Carries out renewals in batches. A host renews all its leases at the same moments
//! ([`Timing::renew_at`](baton_election::Timing::renew_at)), so one transaction can carry out many renewals.

use baton_election::{ElectionName, LeaseId, Op, Reply, StoreError};

use super::batch::{Batches, PendingRequest, cut_off};
use super::database::Intent;
use super::{Databases, SqliteStore};

pub(super) type Renewals = Batches<Renewal, Reply>;

pub(super) struct Renewal {
    election: ElectionName,
    id: LeaseId,
}

impl SqliteStore {
    pub(super) async fn renew(&self, election: &ElectionName, id: LeaseId) -> Result<Reply, StoreError> {
        let queue = self.shared.renewals.of(&self.shared.leases);
        self.together(queue, Renewal { election: election.clone(), id }, Databases::renew_all).await
    }
}

impl Databases {
    fn renew_all(&self, renewals: Vec<PendingRequest<Renewal, Reply>>) {
        self.leases.transact_all(Intent::Holder, renewals, &|db, waiting| {
            // If the caller has given up while the disk was hanging, its renewal must not restart an expired lease,
            // because no node would lead under that lease.
            if waiting.is_given_up() {
                return Ok(Err(cut_off()));
            }
            let Renewal { election, id } = &waiting.request;
            self.apply(db, election, Op::Renew { id: *id })
        });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]
    use std::time::Duration;

    use baton_election::{LeaseState, Record, Snapshot};
    use tokio::sync::oneshot;

    use super::*;
    use crate::LeaseStore as _;

    /// This test simulates a disk that hangs until the lease has expired and the caller has given up.
    #[tokio::test]
    async fn renewal_that_was_given_up_restarts_no_expired_lease() {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::new(folder.path());
        let (job, id) = (ElectionName::new("job").unwrap(), LeaseId::from_random(1));
        let length = store.lease_range().0;
        let record = Record {
            term: 1,
            node: None,
            incarnation: "i".to_owned(),
            since: Duration::ZERO,
            lease: length,
            module: None,
            outcome: None,
            failures: 0,
            released: false,
            paused_until: None,
            progress: None,
        };
        store.create().await.unwrap();
        let Ok(Reply::Version(version)) = store.request(&job, Op::Create { record }).await else { panic!("no record") };
        let acquire = Op::Acquire { id, length, version, instead_of: None };
        assert_eq!(store.request(&job, acquire).await, Ok(Reply::Done));
        tokio::time::sleep(length + Duration::from_millis(100)).await;
        let (answer, waits) = oneshot::channel();
        drop(waits);
        store.shared.renew_all(vec![PendingRequest::new(Renewal { election: job.clone(), id }, answer)]);
        let read = store.request(&job, Op::Read).await;
        assert!(matches!(&read, Ok(Reply::Read(Snapshot::Object { lease: LeaseState::Expired, .. }))), "{read:?}");
    }
}
