//! Lets people know what a node holds and runs. Nothing depends on it: its failures are tried again, and not said.

use std::sync::Arc;
use std::time::Duration;

use baton_election::{ElectionName, Refusal};
use tokio::time::{Instant, timeout};

use super::in_flight::InFlight;
use crate::modules::{Announcement, Digest, ModuleStore};

/// It is said anew so often, so that what a node said that crashed looks old.
const EVERY: Duration = Duration::from_secs(60);
/// After a failure it is said anew so soon.
const AGAIN: Duration = Duration::from_secs(10);
/// How long one try may take.
const TRY: Duration = Duration::from_secs(10);

pub(super) struct Announcer {
    store: Arc<dyn ModuleStore>,
    election: ElectionName,
    node: String,
    incarnation: String,
    source: String,
    said: Option<(Vec<Digest>, Option<Digest>)>,
    again: Instant,
    saying: InFlight<Result<(), Refusal>>,
}

impl Announcer {
    /// `source` is what people call the one that the modules come from.
    pub fn new(
        store: Arc<dyn ModuleStore>,
        election: ElectionName,
        node: String,
        incarnation: String,
        source: String,
    ) -> Self {
        let (said, again, saying) = (None, Instant::now(), InFlight::none());
        Self { store, election, node, incarnation, source, said, again, saying }
    }

    /// Begins to say it, if that is news or was said long ago.
    pub fn begin(&mut self, holds: Vec<Digest>, runs: Option<Digest>, now: Instant) {
        let what = Some((holds.clone(), runs));
        if !self.saying.is_idle() || (self.said == what && now < self.again) {
            return;
        }
        let content = Announcement::now(&self.node, &self.incarnation, &self.source, holds, runs).encode();
        let (store, election, node) = (Arc::clone(&self.store), self.election.clone(), self.node.clone());
        self.said = what;
        self.again = now + EVERY;
        self.saying.begin(async move {
            let said = timeout(TRY, store.announce(&election, &node, content)).await;
            said.unwrap_or_else(|_| Err(Refusal::Unknown(format!("no answer within {TRY:?}"))))
        });
    }

    /// When it is to be said anew; none while it is being said.
    pub fn due(&self) -> Option<Instant> {
        self.saying.is_idle().then_some(self.again)
    }

    /// Waits until it is said, or not.
    pub async fn said(&mut self) {
        if self.saying.done().await.is_err() {
            self.again = Instant::now() + AGAIN;
        }
    }

    /// Takes it back.
    pub async fn withdraw(mut self) {
        // What is under way could otherwise come after it.
        if !self.saying.is_idle() {
            self.said().await;
        }
        // A node that has said something looks old after a while anyway.
        let _ = self.store.withdraw(&self.election, &self.node).await;
    }
}
