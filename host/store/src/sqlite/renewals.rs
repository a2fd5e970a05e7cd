//! Renewals, as many as there are in one transaction.
//!
//! A commit waits for the disk several times, whatever is in it. The leases of a host are renewed at the same moments
//! ([`Timing::renew_at`](baton_election::Timing::renew_at)), so those that come while others are being written wait for
//! the next commit together.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use baton_election::{ElectionName, LeaseId, Op, Reply, StoreError};
use rusqlite::Connection;
use tokio::sync::{Semaphore, oneshot};

use super::database::{Intent, Step};
use super::{Databases, SqliteStore};

/// The renewals of the file that is there now. Those of one that was replaced may wait for its disk for ever.
#[derive(Default)]
pub(super) struct Renewals(Mutex<(u64, Arc<Queue>)>);

/// Renewals that wait for a commit.
pub(super) struct Queue {
    pub waiting: Mutex<Vec<Renewal>>,
    /// The renewal that has this permit commits all that wait by then.
    pub turn: Arc<Semaphore>,
}

pub(super) struct Renewal {
    election: ElectionName,
    id: LeaseId,
    answer: oneshot::Sender<Result<Reply, StoreError>>,
}

impl Default for Queue {
    fn default() -> Self {
        Self { waiting: Mutex::default(), turn: Arc::new(Semaphore::new(1)) }
    }
}

impl Renewals {
    /// The queue of the nth file.
    pub fn of(&self, file: u64) -> Arc<Queue> {
        let mut current = lock(&self.0);
        if current.0 != file {
            *current = (file, Arc::default());
        }
        Arc::clone(&current.1)
    }
}

impl Queue {
    fn add(&self, renewal: Renewal) {
        let mut waiting = lock(&self.waiting);
        // A disk that hangs must not make a heap of tries that nobody waits for any more.
        waiting.retain(|renewal| !renewal.answer.is_closed());
        waiting.push(renewal);
    }

    /// Those whose senders have not given up.
    fn take(&self) -> Vec<Renewal> {
        lock(&self.waiting).drain(..).filter(|renewal| !renewal.answer.is_closed()).collect()
    }
}

impl SqliteStore {
    pub(super) async fn renew(&self, election: &ElectionName, id: LeaseId) -> Result<Reply, StoreError> {
        let queue = self.shared.renewals.of(*self.shared.leases.files().borrow());
        let (answer, mut answered) = oneshot::channel();
        queue.add(Renewal { election: election.clone(), id, answer });
        tokio::select! {
            biased;
            answer = &mut answered => return answer.unwrap_or_else(|_| Err(cut_off())),
            // The permit stays with the thread, also when the sender gives up. Nobody closes the semaphore.
            turn = Arc::clone(&queue.turn).acquire_owned() => {
                self.blocking(move |shared| {
                    let _turn = turn;
                    shared.renew_all(queue.take());
                    Ok(())
                })
                .await?;
            }
        }
        answered.await.unwrap_or_else(|_| Err(cut_off()))
    }
}

impl Databases {
    /// Renews all of them in one transaction, and answers. Where the file has a fault, each by itself: it may be in the
    /// part that one of them needs.
    fn renew_all(&self, renewals: Vec<Renewal>) {
        let many = renewals.len() > 1;
        match self.leases.transact(Intent::Holder, |db| self.renew_in(db, &renewals)) {
            Ok(answers) => {
                for (renewal, answer) in renewals.into_iter().zip(answers) {
                    renewal.answer(answer);
                }
            }
            Err(StoreError::Misconfigured(_)) if many => {
                renewals.into_iter().for_each(|renewal| self.renew_all(vec![renewal]));
            }
            Err(error) => renewals.into_iter().for_each(|renewal| renewal.answer(Err(error.clone()))),
        }
    }

    fn renew_in(&self, db: &Connection, renewals: &[Renewal]) -> Step<Vec<Result<Reply, StoreError>>> {
        let renewed = renewals.iter().map(|Renewal { election, id, answer }| {
            // A disk that hung until nobody waits for it any more must not begin the lease anew: nobody would serve in it.
            if answer.is_closed() {
                return Ok(Err(cut_off()));
            }
            // A row that cannot be read is its own election's trouble.
            let renewed = self.apply(db, election, Op::Renew { id: *id });
            renewed.or_else(|error| self.leases.unreadable(error).map(Err))
        });
        renewed.collect::<rusqlite::Result<_>>().map(Ok)
    }
}

impl Renewal {
    fn answer(self, answer: Result<Reply, StoreError>) {
        // Who has given up meanwhile does not hear it.
        let _ = self.answer.send(answer);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn cut_off() -> StoreError {
    StoreError::Unknown("the request to the store was cut off".to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]
    use std::time::Duration;

    use baton_election::{LeaseState, Record, Snapshot};

    use super::*;
    use crate::LeaseStore as _;

    /// As after a disk that hung until the lease was over.
    #[tokio::test]
    async fn what_nobody_waits_for_any_more_begins_no_lease_anew() {
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
        };
        store.create().await.unwrap();
        let Ok(Reply::Version(version)) = store.request(&job, Op::Create { record }).await else { panic!("no record") };
        let acquire = Op::Acquire { id, length, version, instead_of: None };
        assert_eq!(store.request(&job, acquire).await, Ok(Reply::Done));
        tokio::time::sleep(length + Duration::from_millis(100)).await;
        let (answer, waits) = oneshot::channel();
        drop(waits);
        store.shared.renew_all(vec![Renewal { election: job.clone(), id, answer }]);
        let read = store.request(&job, Op::Read).await;
        assert!(matches!(&read, Ok(Reply::Read(Snapshot::Object { lease: LeaseState::Expired, .. }))), "{read:?}");
    }
}
