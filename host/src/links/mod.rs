//! Links: what the nodes of one store tell each other beside it, so that a standby need not ask again and again.
//!
//! Nothing of it is believed, and nothing needs it: what is heard makes a reading earlier or later ([`Hint`]). A standby
//! connects to the socket of the host that the record names, `DIR/links/INCARNATION`, one link for each election, and
//! hears there what that host has renewed and when it gives the lease up; it says itself whether it could take the lease.
//! What either finds in the store that all are to read, it tells the other. With hosts of other machines there are links where
//! that is asked for: the same lines, over TLS, with those whose certificates are announced.
//!
//! The links are carried by a process of their own (`carrier`), which has neither the store nor a lease: it is given what
//! to tell and whom to hear, and gives back lines of bounded length and number. `words` is what is said, `listeners` who
//! listens and in which order they succeed, `attend` what one peer may say, `sockets` and `place` where, `tls` and `peers`
//! how hosts of other machines know each other, `directory` what the store tells of them, `call` how a command of this user
//! says to the hosts of its machine that there is something to read. One thread of the host talks with the process, and
//! starts it again where it ends: no thread that renews, kills or gates waits for it.

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

/// Words that wait to be told, and hints that wait to be heard, of one election: more are dropped.
const WAITING: usize = 32;

/// The folder in the store's.
const FOLDER: &str = "links";

/// Where a store's hosts have their sockets; none where it is not for the hosts of one machine.
#[must_use]
pub fn folder(store: &StoreUrl) -> Option<PathBuf> {
    match store {
        StoreUrl::Sqlite(folder) => Some(std::path::absolute(folder).unwrap_or_else(|_| folder.clone()).join(FOLDER)),
        StoreUrl::Memory | StoreUrl::Azure { .. } | StoreUrl::Azurite { .. } => None,
    }
}

/// A supervisor's end of the links of its election.
pub struct Line(Option<Ends>);

struct Ends {
    wanted: watch::Sender<Wanted>,
    words: mpsc::Sender<Told>,
    heard: mpsc::Receiver<Hint>,
    listened: watch::Receiver<bool>,
    /// The last renewal that there was to tell of, and when that was.
    leads: Option<(Told, Instant)>,
    /// Whether somebody was told that the lease is given up.
    gives_up: bool,
}

/// What the links of an election are to be now.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Wanted {
    /// Whom it is to listen to.
    leader: Option<Leader>,
    /// What this node tells of itself.
    candidate: Candidate,
}

/// The other end of a [`Line`], and what else the links of that election are for.
struct Port {
    election: ElectionName,
    wanted: watch::Receiver<Wanted>,
    words: mpsc::Receiver<Told>,
    heard: mpsc::Sender<Hint>,
    /// Whether anybody listens: where nobody does, there is nothing to tell.
    listened: watch::Sender<bool>,
    tidings: Tidings,
    standing: Arc<Standing>,
    log: Log,
}

impl Line {
    /// No links: nothing is told and nothing heard.
    #[must_use]
    pub fn off() -> Self {
        Self(None)
    }

    /// Tells those that listen, if any do. Of a hand-over, `to` is the node that is to be first.
    pub fn tell(&mut self, word: &Word, now: Time, to: Option<&str>) {
        let Some(ends) = &mut self.0 else { return };
        let told = match word {
            Word::Leads { term, renewed } => Told::leads(*term, now.since(*renewed)),
            // A node of another name than nodes have may stand in the store, and there is none.
            Word::GivesUp => Told::GivesUp { to: to.filter(|to| NodeId::new(to).is_ok()).map(str::to_owned) },
        };
        ends.leads = matches!(word, Word::Leads { .. }).then(|| (told.clone(), Instant::now()));
        let is_listened = *ends.listened.borrow();
        // It may be told twice, and who has heard it once may listen no more.
        ends.gives_up = matches!(told, Told::GivesUp { .. }) && (is_listened || ends.gives_up);
        if is_listened {
            // It is late anyway where so many wait.
            let _ = ends.words.try_send(told);
        }
    }

    /// Whether somebody is about to take the lease, since the last word was that it is given up.
    #[must_use]
    pub fn has_heir(&self) -> bool {
        self.0.as_ref().is_some_and(|ends| ends.gives_up)
    }

    /// Has that incarnation of a node listened to, and says what this node would do.
    pub fn wants(&mut self, leader: Option<(&str, String)>, candidate: Candidate) {
        let Some(Ends { wanted, gives_up, .. }) = &mut self.0 else { return };
        // Another has taken what was given up.
        *gives_up &= leader.is_none();
        let leader = leader.map(|(incarnation, node)| Leader { incarnation: incarnation.to_owned(), node });
        // A record may name whoever wrote it, at any length.
        let leader = leader.filter(Leader::is_within_bounds);
        wanted.send_if_modified(|wanted| {
            let now = Wanted { leader, candidate };
            let is_news = *wanted != now;
            *wanted = now;
            is_news
        });
    }

    /// What is heard. Whoever begins to listen meanwhile is told of the last renewal. Cancel safe.
    pub async fn heard(&mut self) -> Hint {
        let Some(Ends { words, heard, listened, leads, .. }) = &mut self.0 else { return std::future::pending().await };
        loop {
            tokio::select! {
                hint = heard.recv() => match hint {
                    Some(hint) => return hint,
                    None => return std::future::pending().await,
                },
                Ok(()) = listened.changed() => {
                    if let (true, Some((told, at))) = (*listened.borrow_and_update(), &*leads) {
                        let _ = words.try_send(told.later(at.elapsed()));
                    }
                }
            }
        }
    }
}

/// Both ends of an election's links.
fn line(election: ElectionName, tidings: Tidings, standing: Arc<Standing>, log: Log) -> (Line, Port) {
    let (wanted, wants) = watch::channel(Wanted::default());
    let (words, told) = mpsc::channel(WAITING);
    let (tell, heard) = mpsc::channel(WAITING);
    let (listens, listened) = watch::channel(false);
    let port = Port { election, wanted: wants, words: told, heard: tell, listened: listens, tidings, standing, log };
    (Line(Some(Ends { wanted, words, heard, listened, leads: None, gives_up: false })), port)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use std::time::Duration;

    use super::*;
    use crate::telemetry::Format;

    /// What is too long for a line would end the process that carries the links of all elections.
    #[test]
    fn what_no_node_is_called_is_not_given_on() {
        let (mut line, mut port) = ends();
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

    /// What nobody hears would wake the thread that links and the process that carries the links for nothing.
    #[tokio::test]
    async fn nothing_is_told_where_nobody_listens_and_who_begins_to_hears_the_last_renewal_at_once() {
        let (mut line, mut port) = ends();
        let renewed = |line: &mut Line| line.tell(&Word::Leads { term: 7, renewed: Time::default() }, SECOND, None);
        const SECOND: Time = Time(Duration::from_secs(1));
        renewed(&mut line);
        assert!(hears_nothing(&mut line).await && port.words.try_recv().is_err(), "nobody listens");
        tokio::time::sleep(Duration::from_millis(20)).await;
        port.listened.send_replace(true);
        assert!(hears_nothing(&mut line).await);
        let told = port.words.try_recv().unwrap();
        assert!(matches!(told, Told::Leads { term: 7, age_ms: 1020.. }), "as old as it is by then: {told:?}");
        assert!(hears_nothing(&mut line).await && port.words.try_recv().is_err(), "once");
        renewed(&mut line);
        assert_eq!(port.words.try_recv().unwrap(), Told::Leads { term: 7, age_ms: 1000 });
        // A leader that gives up while nobody listens leads nobody who comes later.
        port.listened.send_replace(false);
        line.tell(&Word::GivesUp, SECOND, None);
        port.listened.send_replace(true);
        assert!(hears_nothing(&mut line).await && port.words.try_recv().is_err(), "it gave up");
    }

    #[test]
    fn who_gives_up_has_an_heir_where_somebody_heard_it_until_another_leads() {
        let (mut line, port) = ends();
        let gives_up = |line: &mut Line| line.tell(&Word::GivesUp, Time::default(), None);
        gives_up(&mut line);
        assert!(!line.has_heir(), "nobody heard it");
        port.listened.send_replace(true);
        gives_up(&mut line);
        assert!(line.has_heir());
        // Whoever has heard it may have gone to take the lease when it is told again.
        port.listened.send_replace(false);
        gives_up(&mut line);
        line.wants(None, Candidate::default());
        assert!(line.has_heir());
        line.wants(Some(("b1", "web-2".to_owned())), Candidate::default());
        assert!(!line.has_heir(), "it has taken it");
        port.listened.send_replace(true);
        gives_up(&mut line);
        line.tell(&Word::Leads { term: 8, renewed: Time::default() }, Time::default(), None);
        assert!(!line.has_heir(), "it leads again");
    }

    /// Has the line do what is due.
    async fn hears_nothing(line: &mut Line) -> bool {
        tokio::time::timeout(Duration::from_millis(1), line.heard()).await.is_err()
    }

    fn ends() -> (Line, Port) {
        let job = ElectionName::new("job").unwrap();
        let standing = Arc::new(Standing::new(job.clone(), Duration::from_secs(15)));
        let (log, _writer) = Log::to_stderr(Format::Json, &NodeId::new("web-1").unwrap()).unwrap();
        line(job, Tidings::default(), standing, log)
    }
}
