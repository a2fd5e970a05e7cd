//! Addresses and certificates of hosts on other machines, from their announcements in the store. Only the host reads
//! these, and strangers cannot make it read them more often.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use baton_election::ElectionName;
use baton_store::{Announcement, Digest, ModuleStore as _, ObjectStore, PeerWord};
use tokio::time::{Instant, sleep_until, timeout};

use super::place::Place;
use super::words::{Peer, Question};

/// Minimum interval between two readings of one node's announcement.
const READ_NODE_EVERY: Duration = Duration::from_secs(10);
/// Lifetime of a reading for the incarnation in it. It bounds how long a false announcement has an effect.
const VALID_FOR: Duration = Duration::from_secs(60);
/// Minimum interval between two readings, of any nodes.
const READ_ANY_EVERY: Duration = Duration::from_secs(1);
const ANSWERED_WITHIN: Duration = Duration::from_secs(2);
/// Maximum number of readings to keep. The oldest is evicted first.
const MAX_READINGS: usize = 1024;
const MAX_ADDRESSES: usize = 4;

/// Cache of announcements. Leaders and callers have one each, so that callers cannot delay lookups of leaders.
pub(super) struct Directory {
    store: Arc<dyn ObjectStore>,
    readings: Mutex<BTreeMap<(String, String), Reading>>,
    /// The time of the next reading. The task that holds the lock reads.
    next: tokio::sync::Mutex<Instant>,
}

struct Reading {
    at: Instant,
    /// The announced incarnation, with its certificate and address, if these are valid.
    said: Option<(String, Option<(Digest, Place)>)>,
}

enum Known {
    /// The announcement of the requested incarnation, with its certificate and address, if these are valid.
    Said(Option<(Digest, Place)>),
    /// The last reading was moments ago, and did not contain the requested incarnation.
    NotYet,
    Nothing,
}

impl Directory {
    pub(super) fn new(store: Arc<dyn ObjectStore>) -> Arc<Self> {
        Arc::new(Self { store, readings: Mutex::default(), next: tokio::sync::Mutex::new(Instant::now()) })
    }

    /// Returns the certificate of an incarnation, and its addresses if the question wants them. Returns none if the
    /// incarnation has not announced any.
    ///
    /// # Errors
    /// The announced name cannot be resolved.
    pub(super) async fn find(&self, question: &Question) -> Result<Option<Peer>, String> {
        let Some((certificate, place)) = self.said(question).await else { return Ok(None) };
        let addresses = match question.wants_addresses {
            true => match timeout(ANSWERED_WITHIN, place.addresses(MAX_ADDRESSES)).await {
                Ok(Ok(addresses)) => addresses,
                Ok(Err(error)) => return Err(format!("{place}: {error}")),
                Err(_) => return Err(format!("{place}: this name was not resolved within {ANSWERED_WITHIN:?}")),
            },
            false => Vec::new(),
        };
        Ok(Some(Peer { certificate, addresses }))
    }

    async fn said(&self, question: &Question) -> Option<(Digest, Place)> {
        let election = ElectionName::new(&question.election).ok()?;
        if let Known::Said(said) = self.known(question) {
            return said;
        }
        let mut next = self.next.lock().await;
        // Another task may have read it since.
        match self.known(question) {
            Known::Said(said) => return said,
            Known::NotYet => return None,
            Known::Nothing => {}
        }
        sleep_until(*next).await;
        *next = Instant::now() + READ_ANY_EVERY;
        let read = timeout(ANSWERED_WITHIN, self.store.announced(&election, &question.node)).await;
        let said = read.ok().and_then(Result::ok).flatten().and_then(|content| Announcement::decode(&content));
        let said = said.map(|said| (said.incarnation, said.peer.as_ref().and_then(parse_peer)));
        self.insert(question, said);
        match self.known(question) {
            Known::Said(said) => said,
            Known::NotYet | Known::Nothing => None,
        }
    }

    fn known(&self, question: &Question) -> Known {
        let readings = self.readings.lock().unwrap_or_else(PoisonError::into_inner);
        match readings.get(&(question.election.clone(), question.node.clone())) {
            Some(Reading { at, said: Some((incarnation, said)) })
                if *incarnation == question.incarnation && at.elapsed() < VALID_FOR =>
            {
                Known::Said(said.clone())
            }
            Some(reading) if reading.at.elapsed() < READ_NODE_EVERY => Known::NotYet,
            _ => Known::Nothing,
        }
    }

    fn insert(&self, question: &Question, said: Option<(String, Option<(Digest, Place)>)>) {
        let mut readings = self.readings.lock().unwrap_or_else(PoisonError::into_inner);
        if readings.len() >= MAX_READINGS
            && let Some(oldest) = readings.iter().min_by_key(|(_, reading)| reading.at).map(|(key, _)| key.clone())
        {
            readings.remove(&oldest);
        }
        let key = (question.election.clone(), question.node.clone());
        readings.insert(key, Reading { at: Instant::now(), said });
    }
}

/// Returns none if this version cannot parse the announcement.
fn parse_peer(said: &PeerWord) -> Option<(Digest, Place)> {
    Some((said.certificate.parse().ok()?, said.address.parse().ok()?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use baton_store::MemoryStore;
    use baton_store::clock::Clock;

    use super::*;

    async fn announce(store: &MemoryStore, election: &str, node: &str, incarnation: &str, peer: Option<PeerWord>) {
        let said = Announcement { peer, ..Announcement::now(node, incarnation, "", Vec::new(), None) };
        store.announce(&ElectionName::new(election).unwrap(), node, said.encode()).await.unwrap();
    }

    fn asks(election: &str, node: &str, incarnation: &str) -> Question {
        let [election, node, incarnation] = [election, node, incarnation].map(str::to_owned);
        Question { election, node, incarnation, wants_addresses: true }
    }

    #[tokio::test]
    async fn announcements_are_cached_and_readings_are_rate_limited() {
        let clock = Clock::default();
        let store = Arc::new(MemoryStore::new(Arc::new(move || clock.now().0)));
        let certificate = Digest::of(b"a");
        let peer = PeerWord { address: "127.0.0.1:7072".to_owned(), certificate: certificate.to_string() };
        announce(&store, "job", "web-1", "a1", Some(peer.clone())).await;
        announce(&store, "job", "web-2", "a2", None).await;
        let odd = PeerWord { certificate: "md5:1".to_owned(), ..peer.clone() };
        announce(&store, "job", "web-3", "a3", Some(odd)).await;
        let directory = Directory::new(Arc::clone(&store) as _);
        let began = Instant::now();
        let found = Some(Peer { certificate, addresses: vec!["127.0.0.1:7072".parse().unwrap()] });
        assert_eq!(directory.find(&asks("job", "web-1", "a1")).await, Ok(found.clone()));
        for nobody in [asks("job", "web-1", "b1"), asks("job", "web-2", "a2"), asks("job", "web-3", "a3")] {
            assert_eq!(directory.find(&nobody).await, Ok(None), "{nobody:?}");
        }
        // A new start of the node announces another certificate, but the last reading counts for 10 s.
        announce(&store, "job", "web-1", "b1", Some(peer)).await;
        assert_eq!(directory.find(&asks("job", "web-1", "b1")).await, Ok(None));
        assert_eq!(directory.find(&asks("job", "web-1", "a1")).await, Ok(found));
        assert!(began.elapsed() >= 2 * READ_ANY_EVERY, "three readings in {:?}", began.elapsed());
        for reading in directory.readings.lock().unwrap().values_mut() {
            reading.at -= VALID_FOR;
        }
        assert_eq!(directory.find(&asks("job", "web-1", "a1")).await, Ok(None));
        // The node has announced nothing in the other election.
        assert_eq!(directory.find(&asks("another", "web-1", "b1")).await, Ok(None));
    }
}
