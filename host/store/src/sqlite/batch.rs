//! Batches requests of one kind, so that they share a transaction.
//!
//! Waking a thread, locking a file and syncing a commit cost as much for one request as for many. So all requests that
//! arrive during a transaction share the next transaction.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use baton_election::StoreError;
use rusqlite::Connection;
use tokio::sync::{Semaphore, oneshot};

use super::database::{Database, Intent, Step};
use super::{Databases, SqliteStore};

/// The number of the database file that was last found at the path, and the queue for this file. If another file is
/// found, it gets a new queue, because requests to the old file may hang forever.
pub(super) struct Batches<Q, A>(Mutex<(u64, Arc<Queue<Q, A>>)>);

pub(super) struct Queue<Q, A> {
    pub waiting: Mutex<Vec<PendingRequest<Q, A>>>,
    /// The waiting request that holds this permit carries out all waiting requests.
    pub turn: Arc<Semaphore>,
}

pub(super) struct PendingRequest<Q, A> {
    pub request: Q,
    answer: oneshot::Sender<Result<A, StoreError>>,
}

impl<Q, A> Default for Batches<Q, A> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<Q, A> Default for Queue<Q, A> {
    fn default() -> Self {
        Self { waiting: Mutex::default(), turn: Arc::new(Semaphore::new(1)) }
    }
}

impl<Q, A> Batches<Q, A> {
    pub fn of(&self, database: &Database) -> Arc<Queue<Q, A>> {
        let file = *database.files().borrow();
        let mut current = lock(&self.0);
        if current.0 != file {
            *current = (file, Arc::default());
        }
        Arc::clone(&current.1)
    }
}

impl<Q, A> Queue<Q, A> {
    fn add(&self, waiting: PendingRequest<Q, A>) {
        let mut all = lock(&self.waiting);
        // Drop requests whose callers have given up, so that they do not pile up while the disk hangs.
        all.retain(|waiting| !waiting.is_given_up());
        all.push(waiting);
    }

    fn take(&self) -> Vec<PendingRequest<Q, A>> {
        lock(&self.waiting).drain(..).filter(|waiting| !waiting.is_given_up()).collect()
    }
}

impl<Q, A> PendingRequest<Q, A> {
    pub fn new(request: Q, answer: oneshot::Sender<Result<A, StoreError>>) -> Self {
        Self { request, answer }
    }

    pub fn is_given_up(&self) -> bool {
        self.answer.is_closed()
    }

    fn answer(self, answer: Result<A, StoreError>) {
        // The send fails if the caller has given up.
        let _ = self.answer.send(answer);
    }
}

impl SqliteStore {
    /// Carries out a request, together with all other requests that are waiting when its turn comes.
    pub(super) async fn together<Q: Send + 'static, A: Send + 'static>(
        &self,
        queue: Arc<Queue<Q, A>>,
        request: Q,
        carry_out: impl FnOnce(&Databases, Vec<PendingRequest<Q, A>>) + Send + 'static,
    ) -> Result<A, StoreError> {
        let (answer, mut answered) = oneshot::channel();
        queue.add(PendingRequest::new(request, answer));
        tokio::select! {
            biased;
            answer = &mut answered => return answer.unwrap_or_else(|_| Err(cut_off())),
            // The thread keeps the permit even if the caller has given up. `acquire_owned` fails only if the semaphore
            // is closed, which never happens.
            turn = Arc::clone(&queue.turn).acquire_owned() => {
                self.blocking(move |shared| {
                    let _turn = turn;
                    carry_out(shared, queue.take());
                    Ok(())
                })
                .await?;
            }
        }
        answered.await.unwrap_or_else(|_| Err(cut_off()))
    }
}

impl Database {
    /// Carries out all requests in one transaction, and answers them. If the transaction fails because of an error in
    /// the database file, tries each request separately, because the error may affect only one request.
    pub fn transact_all<Q, A>(
        &self,
        access: Intent,
        all: Vec<PendingRequest<Q, A>>,
        step: &impl Fn(&Connection, &PendingRequest<Q, A>) -> Step<A>,
    ) {
        let carried_out = self.transact(access, |db| {
            // If a row cannot be read, only the request for the election of that row fails.
            let each = |waiting| step(db, waiting).or_else(|error| self.unreadable(error).map(Err));
            all.iter().map(each).collect::<rusqlite::Result<Vec<_>>>().map(Ok)
        });
        match carried_out {
            Ok(answers) => all.into_iter().zip(answers).for_each(|(waiting, answer)| waiting.answer(answer)),
            Err(StoreError::Misconfigured(_)) if all.len() > 1 => {
                all.into_iter().for_each(|waiting| self.transact_all(access, vec![waiting], step));
            }
            Err(error) => all.into_iter().for_each(|waiting| waiting.answer(Err(error.clone()))),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn cut_off() -> StoreError {
    StoreError::Unknown("the request to the store was cut off".to_owned())
}
