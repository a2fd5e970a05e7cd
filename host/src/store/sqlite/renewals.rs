//! Renewals, as many as there are in one transaction.
//!
//! A commit waits for the disk several times, whatever is in it. The leases of a host are renewed at the same moments
//! ([`Timing::renew_at`](baton_election::Timing::renew_at)), so those that come while others are being written wait for
//! the next commit together.

use std::sync::{Arc, Mutex, PoisonError};

use baton_election::{ElectionName, LeaseId, Op, Refusal, Reply};
use tokio::sync::{Semaphore, oneshot};

use super::database::Access;
use super::{Shared, SqliteStore};

/// Renewals that wait for a commit.
pub(super) struct Renewals {
    pub waiting: Mutex<Vec<Renewal>>,
    /// Whoever has it does what waits then.
    pub turn: Arc<Semaphore>,
}

pub(super) struct Renewal {
    election: ElectionName,
    id: LeaseId,
    answer: oneshot::Sender<Result<Reply, Refusal>>,
}

impl Default for Renewals {
    fn default() -> Self {
        Self { waiting: Mutex::default(), turn: Arc::new(Semaphore::new(1)) }
    }
}

impl Renewals {
    fn add(&self, renewal: Renewal) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        // A disk that hangs must not make a heap of tries that nobody waits for any more.
        waiting.retain(|renewal| !renewal.answer.is_closed());
        waiting.push(renewal);
    }

    /// Those whose senders have not given up.
    fn take(&self) -> Vec<Renewal> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.drain(..).filter(|renewal| !renewal.answer.is_closed()).collect()
    }
}

impl SqliteStore {
    pub(super) async fn renew(&self, election: &ElectionName, id: LeaseId) -> Result<Reply, Refusal> {
        let renewals = &self.shared.renewals;
        let (answer, mut answered) = oneshot::channel();
        renewals.add(Renewal { election: election.clone(), id, answer });
        tokio::select! {
            biased;
            answer = &mut answered => return answer.unwrap_or_else(|_| Err(cut_off())),
            // The permit stays with the thread, also when the sender gives up. Nobody closes the semaphore.
            turn = Arc::clone(&renewals.turn).acquire_owned() => {
                self.blocking(move |shared| {
                    let _turn = turn;
                    shared.renew_waiting();
                    Ok(())
                })
                .await?;
            }
        }
        answered.await.unwrap_or_else(|_| Err(cut_off()))
    }
}

impl Shared {
    /// Renews all that waits, in one transaction, and answers.
    fn renew_waiting(&self) {
        let renewals = self.renewals.take();
        if renewals.is_empty() {
            return;
        }
        let renewed = self.leases.transact(Access::Holder, |db| {
            let renewed = renewals.iter().map(|renewal| {
                // A row that cannot be read is its own election's trouble.
                let renewed = self.apply(db, &renewal.election, Op::Renew { id: renewal.id });
                renewed.or_else(|error| self.leases.unreadable(error).map(Err))
            });
            renewed.collect::<rusqlite::Result<Vec<_>>>().map(Ok)
        });
        let answers = renewed.unwrap_or_else(|refusal| vec![Err(refusal); renewals.len()]);
        for (renewal, answer) in renewals.into_iter().zip(answers) {
            // Who has given up meanwhile does not hear it.
            let _ = renewal.answer.send(answer);
        }
    }
}

fn cut_off() -> Refusal {
    Refusal::Unknown("the request to the store was cut off".to_owned())
}
