//! Links: direct connections over which the nodes of one store send each other hints, so that a standby polls the store
//! less often.
//!
//! Every message is an untrusted [`Hint`]: it makes a reading of the store earlier or later, and Baton works without
//! it. For each election, a standby connects to the socket of the host that the record names, `DIR/links/INCARNATION`.
//! The leader's host reports its renewals and the release of the lease. The standby reports whether it could take the
//! lease. If either finds something new in the store that all nodes should read, it notifies the other. If `--peer` is
//! set, hosts of different machines exchange the same lines over TLS, and verify each other by the announced
//! certificates.
//!
//! One thread of the host carries all links. Its [`hub`] decides which peers are linked and what they are sent. Memory
//! and CPU time of all links are bounded, and no thread that renews, kills or gates waits for this one.

mod call;
mod directory;
mod hub;
mod link;
mod listeners;
mod peer_addr;
mod peers;
mod sockets;
mod thread;
mod tls;
mod wire;

use std::path::PathBuf;
use std::sync::Arc;

use baton_election::{ElectionName, Hint, Time, Word};
use baton_store::{ChangeNotifier, StoreUrl};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::node::NodeId;
use crate::telemetry::{ElectionTracker, Log};
pub use call::call;
pub(crate) use peer_addr::is_of_one_machine;
pub use peer_addr::{InvalidPeerAddr, PeerAddr, PeerError, PeerListener, PeerSettings};
pub use thread::{Links, LinksThread};
pub use wire::Candidate;
pub(crate) use wire::READER;
use wire::{Leader, LeaderMessage};

/// Messages to send, and hints to handle, that may be queued for one election. Any above this number are dropped.
const WAITING: usize = 32;

const FOLDER: &str = "links";

/// Maximum number of links of a host at a time, of all elections together.
pub const MAX_LINKS: usize = 1024;

/// Returns the folder with the sockets of a store's hosts, if the store is for the hosts of one machine.
#[must_use]
pub fn folder(store: &StoreUrl) -> Option<PathBuf> {
    match store {
        StoreUrl::Sqlite(folder) => Some(std::path::absolute(folder).unwrap_or_else(|_| folder.clone()).join(FOLDER)),
        StoreUrl::Memory | StoreUrl::Azure { .. } | StoreUrl::Azurite { .. } => None,
    }
}

/// A supervisor's end of the links of its election.
pub struct LinkHandle(Option<LinkChannels>);

struct LinkChannels {
    settings: watch::Sender<LinkSettings>,
    messages: mpsc::Sender<LeaderMessage>,
    heard: mpsc::Receiver<Hint>,
    listened: watch::Receiver<bool>,
    /// The last renewal to report, and the time at which it was reported.
    last_renewal: Option<(LeaderMessage, Instant)>,
    /// True if a listener was notified that the lease was given up.
    gives_up: bool,
}

/// The supervisor's current settings for the links of its election.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct LinkSettings {
    leader: Option<Leader>,
    /// This node's state as a possible successor, which the leader's host gets.
    candidate: Candidate,
}

/// An order of a supervisor to the hub.
struct Order {
    election: String,
    kind: OrderKind,
}

enum OrderKind {
    /// The leader to follow, and this node's candidacy.
    Settings { leader: Option<Leader>, candidate: Candidate },
    /// A message for all listeners.
    Tell(LeaderMessage),
}

/// The links thread's end of a [`LinkHandle`], with the other sinks of that election.
struct LinkEndpoint {
    election: ElectionName,
    settings: watch::Receiver<LinkSettings>,
    messages: mpsc::Receiver<LeaderMessage>,
    heard: mpsc::Sender<Hint>,
    /// True while at least one node listens. Otherwise nothing is sent.
    listened: watch::Sender<bool>,
    notifier: ChangeNotifier,
    tracker: Arc<ElectionTracker>,
    log: Log,
}

impl LinkHandle {
    /// Returns a line without links: it sends nothing and receives nothing.
    #[must_use]
    pub fn off() -> Self {
        Self(None)
    }

    /// Notifies the listeners, if there are any. In a hand-over, `to` names the node that should succeed first.
    pub fn tell(&mut self, word: &Word, now: Time, to: Option<&str>) {
        let Some(ends) = &mut self.0 else { return };
        let told = match word {
            Word::Leads { term, renewed } => LeaderMessage::leads(*term, now.since(*renewed)),
            // The store may contain an invalid node name, and no node has that name.
            Word::GivesUp => LeaderMessage::GivesUp { to: to.filter(|to| NodeId::new(to).is_ok()).map(str::to_owned) },
        };
        ends.last_renewal = matches!(word, Word::Leads { .. }).then(|| (told.clone(), Instant::now()));
        let is_listened = *ends.listened.borrow();
        // The notification may be repeated, and a listener that got the first one may have disconnected.
        ends.gives_up = matches!(told, LeaderMessage::GivesUp { .. }) && (is_listened || ends.gives_up);
        if is_listened {
            // If the queue is full, the message is dropped: it would arrive late anyway.
            let _ = ends.messages.try_send(told);
        }
    }

    /// True if a successor is about to take the lease: a listener was notified that the lease was given up, and no
    /// later message has replaced that one.
    #[must_use]
    pub fn has_heir(&self) -> bool {
        self.0.as_ref().is_some_and(|ends| ends.gives_up)
    }

    /// Listens to that incarnation of a node, and announces this node as a successor.
    pub fn wants(&mut self, leader: Option<(&str, String)>, candidate: Candidate) {
        let Some(LinkChannels { settings, gives_up, .. }) = &mut self.0 else { return };
        // Another node has taken the lease that was given up.
        *gives_up &= leader.is_none();
        let leader = leader.map(|(incarnation, node)| Leader { incarnation: incarnation.to_owned(), node });
        // A record may contain a name of any length.
        let leader = leader.filter(Leader::is_within_bounds);
        settings.send_if_modified(|settings| {
            let now = LinkSettings { leader, candidate };
            let is_news = *settings != now;
            *settings = now;
            is_news
        });
    }

    /// Waits for the next hint. Meanwhile, reports the last renewal to each node that begins to listen. Cancel safe.
    pub async fn heard(&mut self) -> Hint {
        let Some(LinkChannels { messages, heard, listened, last_renewal, .. }) = &mut self.0 else {
            return std::future::pending().await;
        };
        loop {
            tokio::select! {
                hint = heard.recv() => match hint {
                    Some(hint) => return hint,
                    None => return std::future::pending().await,
                },
                Ok(()) = listened.changed() => {
                    if let (true, Some((told, at))) = (*listened.borrow_and_update(), &*last_renewal) {
                        let _ = messages.try_send(told.later(at.elapsed()));
                    }
                }
            }
        }
    }
}

fn link(
    election: ElectionName,
    notifier: ChangeNotifier,
    tracker: Arc<ElectionTracker>,
    log: Log,
) -> (LinkHandle, LinkEndpoint) {
    let (settings, wanted) = watch::channel(LinkSettings::default());
    let (messages, told) = mpsc::channel(WAITING);
    let (tell, heard) = mpsc::channel(WAITING);
    let (listens, listened) = watch::channel(false);
    let endpoint = LinkEndpoint {
        election,
        settings: wanted,
        messages: told,
        heard: tell,
        listened: listens,
        notifier,
        tracker,
        log,
    };
    (
        LinkHandle(Some(LinkChannels { settings, messages, heard, listened, last_renewal: None, gives_up: false })),
        endpoint,
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use std::time::Duration;

    use super::*;
    use crate::telemetry::Format;

    /// A line that is too long would end the process that carries the links of all elections.
    #[test]
    fn names_that_no_node_can_have_are_not_forwarded() {
        let (mut line, mut endpoint) = test_line();
        endpoint.listened.send_replace(true);
        let long = "n".repeat(2000);
        for (incarnation, node) in [("a1", long.as_str()), (&long, "web-1"), ("A/1", "web-1")] {
            line.wants(Some((incarnation, node.to_owned())), Candidate::default());
            assert_eq!(endpoint.settings.borrow().leader, None, "{incarnation} of {node}");
        }
        line.wants(Some(("a1", "web-1".to_owned())), Candidate::default());
        assert!(endpoint.settings.borrow().leader.is_some());
        for (to, told) in [(long.as_str(), None), ("web-2", Some("web-2".to_owned()))] {
            line.tell(&Word::GivesUp, Time::default(), Some(to));
            assert_eq!(endpoint.messages.try_recv().unwrap(), LeaderMessage::GivesUp { to: told });
        }
    }

    /// Messages without a listener would wake the links thread and its process for nothing.
    #[tokio::test]
    async fn last_renewal_is_sent_once_a_node_begins_to_listen() {
        let (mut line, mut endpoint) = test_line();
        let renewed =
            |line: &mut LinkHandle| line.tell(&Word::Leads { term: 7, renewed: Time::default() }, SECOND, None);
        const SECOND: Time = Time(Duration::from_secs(1));
        renewed(&mut line);
        assert!(hears_nothing(&mut line).await && endpoint.messages.try_recv().is_err(), "nobody listens");
        tokio::time::sleep(Duration::from_millis(20)).await;
        endpoint.listened.send_replace(true);
        assert!(hears_nothing(&mut line).await);
        let told = endpoint.messages.try_recv().unwrap();
        assert!(
            matches!(told, LeaderMessage::Leads { term: 7, age_ms: 1020.. }),
            "the age includes the wait: {told:?}"
        );
        assert!(hears_nothing(&mut line).await && endpoint.messages.try_recv().is_err(), "sent only once");
        renewed(&mut line);
        assert_eq!(endpoint.messages.try_recv().unwrap(), LeaderMessage::Leads { term: 7, age_ms: 1000 });
        // If a leader gives up while nobody listens, a listener that connects later gets no renewal.
        endpoint.listened.send_replace(false);
        line.tell(&Word::GivesUp, SECOND, None);
        endpoint.listened.send_replace(true);
        assert!(hears_nothing(&mut line).await && endpoint.messages.try_recv().is_err(), "it gave up");
    }

    #[test]
    fn leader_has_heir_after_a_listener_got_its_release() {
        let (mut line, endpoint) = test_line();
        let gives_up = |line: &mut LinkHandle| line.tell(&Word::GivesUp, Time::default(), None);
        gives_up(&mut line);
        assert!(!line.has_heir(), "nobody heard it");
        endpoint.listened.send_replace(true);
        gives_up(&mut line);
        assert!(line.has_heir());
        // A listener may have disconnected to take the lease when the notification is repeated.
        endpoint.listened.send_replace(false);
        gives_up(&mut line);
        line.wants(None, Candidate::default());
        assert!(line.has_heir());
        line.wants(Some(("b1", "web-2".to_owned())), Candidate::default());
        assert!(!line.has_heir(), "web-2 has taken the lease");
        endpoint.listened.send_replace(true);
        gives_up(&mut line);
        line.tell(&Word::Leads { term: 8, renewed: Time::default() }, Time::default(), None);
        assert!(!line.has_heir(), "it leads again");
    }

    /// Polls the line once, and returns true if no hint came.
    async fn hears_nothing(line: &mut LinkHandle) -> bool {
        tokio::time::timeout(Duration::from_millis(1), line.heard()).await.is_err()
    }

    fn test_line() -> (LinkHandle, LinkEndpoint) {
        let job = ElectionName::new("job").unwrap();
        let tracker = Arc::new(ElectionTracker::new(job.clone(), Duration::from_secs(15)));
        let (log, _writer) = Log::to_stderr(Format::Json, &NodeId::new("web-1").unwrap()).unwrap();
        link(job, ChangeNotifier::default(), tracker, log)
    }
}
