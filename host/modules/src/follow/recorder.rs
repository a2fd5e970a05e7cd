//! Writes judgements to an election's control object, in order. Retries until the store responds, however long an
//! outage lasts.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use baton_election::ElectionName;
use tokio::time::Instant;

use super::in_flight::InFlight;
use crate::{EditError, Judgement, VersionList, edit_versions};
use baton_base::clock::{rfc3339, wall};
use baton_store::ObjectStore;

/// Initial and maximum wait after a failure.
const WAIT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(15));

#[derive(Clone)]
pub(super) struct Judged {
    judgement: Judgement,
    /// Size of the module in bytes, if the module was not pushed.
    unpushed: Option<u64>,
    node: String,
    at: String,
}

impl Judged {
    pub fn now(judgement: Judgement, unpushed: Option<u64>, node: &str) -> Self {
        Self { judgement, unpushed, node: node.to_owned(), at: rfc3339(wall()) }
    }

    pub fn apply(&self, control: &mut VersionList) {
        // Ignore the result, which only says whether the list has changed.
        let _ = match self.unpushed {
            Some(size) => control.judge_unpushed(&self.judgement, size, &self.node, &self.at),
            None => control.judge(&self.judgement, &self.node, &self.at),
        };
    }
}

pub(super) struct Recorder {
    store: Arc<dyn ObjectStore>,
    election: ElectionName,
    /// The judgements that are not in the store yet. The first of them is being written, or waits for the next attempt.
    queue: VecDeque<Judged>,
    writing: InFlight<Result<(), EditError>>,
    again: Instant,
    wait: Duration,
    said: bool,
}

impl Recorder {
    pub fn new(store: Arc<dyn ObjectStore>, election: ElectionName) -> Self {
        let (queue, writing) = (VecDeque::new(), InFlight::none());
        Self { store, election, queue, writing, again: Instant::now(), wait: WAIT.0, said: false }
    }

    pub fn add(&mut self, judged: Judged) {
        self.queue.push_back(judged);
    }

    pub fn apply(&self, control: &VersionList) -> VersionList {
        let mut control = control.clone();
        self.queue.iter().for_each(|judged| judged.apply(&mut control));
        control
    }

    pub fn begin(&mut self, now: Instant) {
        if let Some(judged) = self.queue.front().filter(|_| self.writing.is_idle() && now >= self.again) {
            let (store, election) = (Arc::clone(&self.store), self.election.clone());
            let judged = judged.clone();
            self.writing.begin(async move {
                edit_versions(store.as_ref(), &election, |control| {
                    judged.apply(control);
                    Ok::<_, EditError>(())
                })
                .await
            });
        }
    }

    /// Returns the time of the next attempt to write. Returns `None` if an attempt is in progress or there is nothing
    /// to write.
    pub fn due(&self) -> Option<Instant> {
        (self.writing.is_idle() && !self.queue.is_empty()).then_some(self.again)
    }

    /// Waits until the attempt in progress has ended. Returns the written judgement, or an error. The error is `None`
    /// if the caller has already received an error since the last success.
    pub async fn written(&mut self) -> Result<Judged, Option<EditError>> {
        match self.writing.done().await {
            Ok(()) => {
                (self.wait, self.said) = (WAIT.0, false);
                match self.queue.pop_front() {
                    Some(judged) => Ok(judged),
                    None => Err(None),
                }
            }
            Err(error) => {
                self.again = Instant::now() + self.wait;
                self.wait = (self.wait * 2).min(WAIT.1);
                Err((!std::mem::replace(&mut self.said, true)).then_some(error))
            }
        }
    }

    pub async fn finish(mut self) {
        while !self.queue.is_empty() {
            self.begin(self.again);
            if self.written().await.is_err() {
                return;
            }
        }
    }
}
