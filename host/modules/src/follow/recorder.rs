//! Writes judgements into an election's control object, one after the other and through every outage.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use baton_election::ElectionName;
use tokio::time::Instant;

use super::in_flight::InFlight;
use crate::{EditError, Judgement, VersionList, edit_versions};
use baton_store::ObjectStore;
use baton_store::clock::{rfc3339, wall};

/// How long to wait after a failure: at first, and at the most.
const WAIT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(15));

/// A judgement with what is noted beside it.
#[derive(Clone)]
pub(super) struct Judged {
    judgement: Judgement,
    /// The module's size if it was not pushed, in bytes.
    unpushed: Option<u64>,
    node: String,
    at: String,
}

impl Judged {
    /// Judged by this node, now.
    pub fn now(judgement: Judgement, unpushed: Option<u64>, node: &str) -> Self {
        Self { judgement, unpushed, node: node.to_owned(), at: rfc3339(wall()) }
    }

    /// Notes it.
    pub fn apply(&self, control: &mut VersionList) {
        // Whether it is news matters to nobody here.
        let _ = match self.unpushed {
            Some(size) => control.judge_unpushed(&self.judgement, size, &self.node, &self.at),
            None => control.judge(&self.judgement, &self.node, &self.at),
        };
    }
}

pub(super) struct Recorder {
    store: Arc<dyn ObjectStore>,
    election: ElectionName,
    /// What is not written yet, in its order. The first is being written, or waits for the next try.
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

    /// What a control object that was read says together with what is not written yet.
    pub fn apply(&self, control: &VersionList) -> VersionList {
        let mut control = control.clone();
        self.queue.iter().for_each(|judged| judged.apply(&mut control));
        control
    }

    /// Begins to write the next one, if it is time to.
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

    /// When the next try is due; none while one is under way, or where there is nothing to write.
    pub fn due(&self) -> Option<Instant> {
        (self.writing.is_idle() && !self.queue.is_empty()).then_some(self.again)
    }

    /// Waits for the end of a try: the judgement that is written by now, or an error that was not said before.
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

    /// Tries once more to write what is not written.
    pub async fn finish(mut self) {
        while !self.queue.is_empty() {
            self.begin(self.again);
            if self.written().await.is_err() {
                return;
            }
        }
    }
}
