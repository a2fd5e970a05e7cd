//! Links: direct connections over which the nodes of one store send each other hints, so that standbys can poll the
//! store less often.
//!
//! Every message is an untrusted [`Hint`]. A hint only makes a node read the store earlier or later, and Baton also
//! works without hints. For each election, a standby connects to the socket of the host that the lease record names
//! (`DIR/links/INCARNATION`). The leader's host reports its renewals and the release of the lease. The standby reports
//! whether it could acquire the lease. If either host finds a change in the store that all nodes should read, it
//! notifies the other host. If `--peer` is set, hosts on different machines exchange the same messages over TLS, and
//! authenticate each other by the announced certificates.
//!
//! One thread of the host runs all links. Its `hub` decides which peers are linked and what is sent to them. The memory
//! and CPU time of all links are bounded. No thread that renews leases, kills instances or gates effects waits for the
//! links thread.

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
pub use peer_addr::is_of_one_machine;
pub use peer_addr::{InvalidPeerAddr, PeerAddr, PeerError, PeerListener, PeerSettings};
pub use thread::{Links, LinksThread};
pub use wire::Candidacy;
pub use wire::READER;
use wire::{Leader, LeaderMessage};

/// Capacity of each of an election's two queues: the messages to send, and the hints to handle. If a queue is full, new
/// entries are dropped.
const WAITING: usize = 32;

const FOLDER: &str = "links";

/// Maximum number of concurrent links of a host, over all elections.
pub const MAX_LINKS: usize = 1024;

/// Returns the folder that contains the sockets of a store's hosts. Returns `None` if the store is not a folder on this
/// machine.
#[must_use]
pub fn folder(store: &StoreUrl) -> Option<PathBuf> {
    match store {
        StoreUrl::Sqlite(folder) => Some(std::path::absolute(folder).unwrap_or_else(|_| folder.clone()).join(FOLDER)),
        StoreUrl::Memory | StoreUrl::Azure { .. } | StoreUrl::Azurite { .. } => None,
    }
}

/// A supervisor's handle to the links of its election.
pub struct LinkHandle(Option<LinkChannels>);

struct LinkChannels {
    settings: watch::Sender<LinkSettings>,
    messages: mpsc::Sender<LeaderMessage>,
    hints: mpsc::Receiver<Hint>,
    listened: watch::Receiver<bool>,
    /// The message about the last renewal, and the time when the supervisor reported the renewal. A node that starts to
    /// listen receives this message.
    last_renewal: Option<(LeaderMessage, Instant)>,
    /// True if this handle has notified a listener that the node gives up the lease.
    gives_up: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct LinkSettings {
    leader: Option<Leader>,
    candidacy: Candidacy,
}

struct Order {
    election: String,
    kind: OrderKind,
}

enum OrderKind {
    Settings(LinkSettings),
    Tell(LeaderMessage),
}

/// The links thread's end of the channels of a [`LinkHandle`].
struct LinkEndpoint {
    election: ElectionName,
    settings: watch::Receiver<LinkSettings>,
    messages: mpsc::Receiver<LeaderMessage>,
    hints: mpsc::Sender<Hint>,
    /// True while at least one node listens. The handle sends messages only then.
    listened: watch::Sender<bool>,
    notifier: ChangeNotifier,
    tracker: Arc<ElectionTracker>,
    log: Log,
}

impl LinkHandle {
    /// Returns a handle without links: it sends and receives nothing.
    #[must_use]
    pub fn off() -> Self {
        Self(None)
    }

    /// Notifies the listeners, if there are any. In a hand-off, `to` names the preferred successor.
    pub fn tell(&mut self, word: &Word, now: Time, to: Option<&str>) {
        let Some(channels) = &mut self.0 else { return };
        let message = match word {
            Word::Leads { term, renewed } => LeaderMessage::leads(*term, now.since(*renewed)),
            // The node name comes from the store and may be invalid. No node has an invalid name, so drop the name.
            Word::GivesUp => LeaderMessage::GivesUp { to: to.filter(|to| NodeId::new(to).is_ok()).map(str::to_owned) },
        };
        channels.last_renewal = matches!(word, Word::Leads { .. }).then(|| (message.clone(), Instant::now()));
        let is_listened = *channels.listened.borrow();
        // An earlier call may have sent this notification to a listener. That listener may have disconnected since,
        // because it is about to acquire the lease. So keep `gives_up` set, even if no node listens now.
        channels.gives_up = matches!(message, LeaderMessage::GivesUp { .. }) && (is_listened || channels.gives_up);
        if is_listened {
            // If the queue is full, drop the message: it would arrive late anyway.
            let _ = channels.messages.try_send(message);
        }
    }

    /// Returns true if a listener may be about to acquire the lease. This is the case after the handle has notified a
    /// listener that this node gives up the lease, until this node leads again or another node becomes the leader.
    #[must_use]
    pub fn has_heir(&self) -> bool {
        self.0.as_ref().is_some_and(|channels| channels.gives_up)
    }

    /// Sets the leader to listen to, as its incarnation and node, and the candidacy to report to that leader.
    pub fn wants(&mut self, leader: Option<(&str, String)>, candidacy: Candidacy) {
        let Some(LinkChannels { settings, gives_up, .. }) = &mut self.0 else { return };
        // If there is a leader, another node has acquired the lease that was given up.
        *gives_up &= leader.is_none();
        let leader = leader.map(|(incarnation, node)| Leader { incarnation: incarnation.to_owned(), node });
        // The lease record may contain names of any length. Peers would reject a message with such a name, so do not
        // connect to such a leader.
        let leader = leader.filter(Leader::is_within_bounds);
        settings.send_if_modified(|settings| {
            let now = LinkSettings { leader, candidacy };
            let is_news = *settings != now;
            *settings = now;
            is_news
        });
    }

    /// Waits for the next hint. If nodes start to listen in the meantime, sends them the last renewal. Cancel-safe.
    pub async fn hints(&mut self) -> Hint {
        let Some(LinkChannels { messages, hints, listened, last_renewal, .. }) = &mut self.0 else {
            return std::future::pending().await;
        };
        loop {
            tokio::select! {
                hint = hints.recv() => match hint {
                    Some(hint) => return hint,
                    None => return std::future::pending().await,
                },
                Ok(()) = listened.changed() => {
                    if let (true, Some((message, at))) = (*listened.borrow_and_update(), &*last_renewal) {
                        let _ = messages.try_send(message.later(at.elapsed()));
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
    let (messages, message) = mpsc::channel(WAITING);
    let (tell, hints) = mpsc::channel(WAITING);
    let (listens, listened) = watch::channel(false);
    let endpoint = LinkEndpoint {
        election,
        settings: wanted,
        messages: message,
        hints: tell,
        listened: listens,
        notifier,
        tracker,
        log,
    };
    (
        LinkHandle(Some(LinkChannels { settings, messages, hints, listened, last_renewal: None, gives_up: false })),
        endpoint,
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use std::time::Duration;

    use super::*;
    use crate::telemetry::Format;

    /// A peer rejects a message that is too long or contains an invalid name.
    #[test]
    fn names_that_no_node_can_have_are_not_forwarded() {
        let (mut line, mut endpoint) = test_line();
        endpoint.listened.send_replace(true);
        let long = "n".repeat(2000);
        for (incarnation, node) in [("a1", long.as_str()), (&long, "web-1"), ("A/1", "web-1")] {
            line.wants(Some((incarnation, node.to_owned())), Candidacy::default());
            assert_eq!(endpoint.settings.borrow().leader, None, "{incarnation} of {node}");
        }
        line.wants(Some(("a1", "web-1".to_owned())), Candidacy::default());
        assert!(endpoint.settings.borrow().leader.is_some());
        for (to, message) in [(long.as_str(), None), ("web-2", Some("web-2".to_owned()))] {
            line.tell(&Word::GivesUp, Time::default(), Some(to));
            assert_eq!(endpoint.messages.try_recv().unwrap(), LeaderMessage::GivesUp { to: message });
        }
    }

    /// While no node listens, the handle sends no messages, because they would wake the links thread for nothing.
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
        let message = endpoint.messages.try_recv().unwrap();
        assert!(
            matches!(message, LeaderMessage::Leads { term: 7, age_ms: 1020.. }),
            "the age includes the wait: {message:?}"
        );
        assert!(hears_nothing(&mut line).await && endpoint.messages.try_recv().is_err(), "sent only once");
        renewed(&mut line);
        assert_eq!(endpoint.messages.try_recv().unwrap(), LeaderMessage::Leads { term: 7, age_ms: 1000 });
        // The leader gives up the lease while no node listens. A node that starts to listen later must not receive a
        // renewal.
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
        // The listener disconnects, because it is about to acquire the lease. The leader then repeats its message,
        // although no node listens.
        endpoint.listened.send_replace(false);
        gives_up(&mut line);
        line.wants(None, Candidacy::default());
        assert!(line.has_heir());
        line.wants(Some(("b1", "web-2".to_owned())), Candidacy::default());
        assert!(!line.has_heir(), "web-2 has taken the lease");
        endpoint.listened.send_replace(true);
        gives_up(&mut line);
        line.tell(&Word::Leads { term: 8, renewed: Time::default() }, Time::default(), None);
        assert!(!line.has_heir(), "it leads again");
    }

    async fn hears_nothing(line: &mut LinkHandle) -> bool {
        tokio::time::timeout(Duration::from_millis(1), line.hints()).await.is_err()
    }

    fn test_line() -> (LinkHandle, LinkEndpoint) {
        let job = ElectionName::new("job").unwrap();
        let tracker = Arc::new(ElectionTracker::new(job.clone(), Duration::from_secs(15)));
        let (log, _writer) = Log::to_stderr(Format::Json, &NodeId::new("web-1").unwrap()).unwrap();
        link(job, ChangeNotifier::default(), tracker, log)
    }
}
