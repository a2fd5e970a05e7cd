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
//! A separate process (`carrier`) carries the links. It can access neither the store nor a lease. The host gives it the
//! messages to send and the peers to hear, and gets back lines of bounded length and number. One thread of the host
//! talks to that process and restarts it if it ends. No thread that renews, kills or gates waits for the links thread.

mod attend;
mod call;
mod carrier;
mod directory;
mod host;
mod listeners;
mod peers;
mod place;
mod sockets;
mod tls;
mod words;

use std::path::PathBuf;
use std::sync::Arc;

use baton_election::{ElectionName, Hint, Time, Word};
use baton_store::{StoreUrl, Tidings};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::node::NodeId;
use crate::telemetry::{Log, Standing};
pub use call::call;
pub use carrier::{CARRY_LINKS, carry_links};
pub use host::{Linking, Links};
pub(crate) use place::is_of_one_machine;
pub use place::{InvalidPlace, Listening, PeerError, PeerSettings, Place};
pub use words::Candidate;
pub(crate) use words::READER;
use words::{Leader, Told};

/// Messages to send, and hints to handle, that may be queued for one election. Any above this number are dropped.
const WAITING: usize = 32;

const FOLDER: &str = "links";

/// Returns the folder with the sockets of a store's hosts, if the store is for the hosts of one machine.
#[must_use]
pub fn folder(store: &StoreUrl) -> Option<PathBuf> {
    match store {
        StoreUrl::Sqlite(folder) => Some(std::path::absolute(folder).unwrap_or_else(|_| folder.clone()).join(FOLDER)),
        StoreUrl::Memory | StoreUrl::Azure { .. } | StoreUrl::Azurite { .. } => None,
    }
}

/// A supervisor's end of the links of its election.
pub struct Line(Option<LinkChannels>);

struct LinkChannels {
    wanted: watch::Sender<Wanted>,
    words: mpsc::Sender<Told>,
    heard: mpsc::Receiver<Hint>,
    listened: watch::Receiver<bool>,
    /// The last renewal to report, and the time at which it was reported.
    last_renewal: Option<(Told, Instant)>,
    /// True if a listener was notified that the lease was given up.
    gives_up: bool,
}

/// The supervisor's current settings for the links of its election.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Wanted {
    leader: Option<Leader>,
    /// This node's state as a possible successor, which the leader's host gets.
    candidate: Candidate,
}

/// The links thread's end of a [`Line`], with the other sinks of that election.
struct Port {
    election: ElectionName,
    wanted: watch::Receiver<Wanted>,
    words: mpsc::Receiver<Told>,
    heard: mpsc::Sender<Hint>,
    /// True while at least one node listens. Otherwise nothing is sent.
    listened: watch::Sender<bool>,
    tidings: Tidings,
    standing: Arc<Standing>,
    log: Log,
}

impl Line {
    /// Returns a line without links: it sends nothing and receives nothing.
    #[must_use]
    pub fn off() -> Self {
        Self(None)
    }

    /// Notifies the listeners, if there are any. In a hand-over, `to` names the node that should succeed first.
    pub fn tell(&mut self, word: &Word, now: Time, to: Option<&str>) {
        let Some(ends) = &mut self.0 else { return };
        let told = match word {
            Word::Leads { term, renewed } => Told::leads(*term, now.since(*renewed)),
            // The store may contain an invalid node name, and no node has that name.
            Word::GivesUp => Told::GivesUp { to: to.filter(|to| NodeId::new(to).is_ok()).map(str::to_owned) },
        };
        ends.last_renewal = matches!(word, Word::Leads { .. }).then(|| (told.clone(), Instant::now()));
        let is_listened = *ends.listened.borrow();
        // The notification may be repeated, and a listener that got the first one may have disconnected.
        ends.gives_up = matches!(told, Told::GivesUp { .. }) && (is_listened || ends.gives_up);
        if is_listened {
            // If the queue is full, the message is dropped: it would arrive late anyway.
            let _ = ends.words.try_send(told);
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
        let Some(LinkChannels { wanted, gives_up, .. }) = &mut self.0 else { return };
        // Another node has taken the lease that was given up.
        *gives_up &= leader.is_none();
        let leader = leader.map(|(incarnation, node)| Leader { incarnation: incarnation.to_owned(), node });
        // A record may contain a name of any length.
        let leader = leader.filter(Leader::is_within_bounds);
        wanted.send_if_modified(|wanted| {
            let now = Wanted { leader, candidate };
            let is_news = *wanted != now;
            *wanted = now;
            is_news
        });
    }

    /// Waits for the next hint. Meanwhile, reports the last renewal to each node that begins to listen. Cancel safe.
    pub async fn heard(&mut self) -> Hint {
        let Some(LinkChannels { words, heard, listened, last_renewal, .. }) = &mut self.0 else {
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
                        let _ = words.try_send(told.later(at.elapsed()));
                    }
                }
            }
        }
    }
}

fn line(election: ElectionName, tidings: Tidings, standing: Arc<Standing>, log: Log) -> (Line, Port) {
    let (wanted, wants) = watch::channel(Wanted::default());
    let (words, told) = mpsc::channel(WAITING);
    let (tell, heard) = mpsc::channel(WAITING);
    let (listens, listened) = watch::channel(false);
    let port = Port { election, wanted: wants, words: told, heard: tell, listened: listens, tidings, standing, log };
    (Line(Some(LinkChannels { wanted, words, heard, listened, last_renewal: None, gives_up: false })), port)
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
        let (mut line, mut port) = test_line();
        port.listened.send_replace(true);
        let long = "n".repeat(2000);
        for (incarnation, node) in [("a1", long.as_str()), (&long, "web-1"), ("A/1", "web-1")] {
            line.wants(Some((incarnation, node.to_owned())), Candidate::default());
            assert_eq!(port.wanted.borrow().leader, None, "{incarnation} of {node}");
        }
        line.wants(Some(("a1", "web-1".to_owned())), Candidate::default());
        assert!(port.wanted.borrow().leader.is_some());
        for (to, told) in [(long.as_str(), None), ("web-2", Some("web-2".to_owned()))] {
            line.tell(&Word::GivesUp, Time::default(), Some(to));
            assert_eq!(port.words.try_recv().unwrap(), Told::GivesUp { to: told });
        }
    }

    /// Messages without a listener would wake the links thread and its process for nothing.
    #[tokio::test]
    async fn last_renewal_is_sent_once_a_node_begins_to_listen() {
        let (mut line, mut port) = test_line();
        let renewed = |line: &mut Line| line.tell(&Word::Leads { term: 7, renewed: Time::default() }, SECOND, None);
        const SECOND: Time = Time(Duration::from_secs(1));
        renewed(&mut line);
        assert!(hears_nothing(&mut line).await && port.words.try_recv().is_err(), "nobody listens");
        tokio::time::sleep(Duration::from_millis(20)).await;
        port.listened.send_replace(true);
        assert!(hears_nothing(&mut line).await);
        let told = port.words.try_recv().unwrap();
        assert!(matches!(told, Told::Leads { term: 7, age_ms: 1020.. }), "the age includes the wait: {told:?}");
        assert!(hears_nothing(&mut line).await && port.words.try_recv().is_err(), "sent only once");
        renewed(&mut line);
        assert_eq!(port.words.try_recv().unwrap(), Told::Leads { term: 7, age_ms: 1000 });
        // If a leader gives up while nobody listens, a listener that connects later gets no renewal.
        port.listened.send_replace(false);
        line.tell(&Word::GivesUp, SECOND, None);
        port.listened.send_replace(true);
        assert!(hears_nothing(&mut line).await && port.words.try_recv().is_err(), "it gave up");
    }

    #[test]
    fn leader_has_heir_after_a_listener_got_its_release() {
        let (mut line, port) = test_line();
        let gives_up = |line: &mut Line| line.tell(&Word::GivesUp, Time::default(), None);
        gives_up(&mut line);
        assert!(!line.has_heir(), "nobody heard it");
        port.listened.send_replace(true);
        gives_up(&mut line);
        assert!(line.has_heir());
        // A listener may have disconnected to take the lease when the notification is repeated.
        port.listened.send_replace(false);
        gives_up(&mut line);
        line.wants(None, Candidate::default());
        assert!(line.has_heir());
        line.wants(Some(("b1", "web-2".to_owned())), Candidate::default());
        assert!(!line.has_heir(), "web-2 has taken the lease");
        port.listened.send_replace(true);
        gives_up(&mut line);
        line.tell(&Word::Leads { term: 8, renewed: Time::default() }, Time::default(), None);
        assert!(!line.has_heir(), "it leads again");
    }

    /// Polls the line once, and returns true if no hint came.
    async fn hears_nothing(line: &mut Line) -> bool {
        tokio::time::timeout(Duration::from_millis(1), line.heard()).await.is_err()
    }

    fn test_line() -> (Line, Port) {
        let job = ElectionName::new("job").unwrap();
        let standing = Arc::new(Standing::new(job.clone(), Duration::from_secs(15)));
        let (log, _writer) = Log::to_stderr(Format::Json, &NodeId::new("web-1").unwrap()).unwrap();
        line(job, Tidings::default(), standing, log)
    }
}
