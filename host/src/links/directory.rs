//! Where the hosts of other machines are, and by which certificates they are known: as their nodes say in the store. Only
//! the host asks that, and not as often as strangers would have it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use baton_election::ElectionName;
use baton_store::{Announcement, Digest, ModuleStore as _, ObjectStore, PeerWord};
use tokio::time::{Instant, sleep_until, timeout};

use super::place::Place;
use super::words::{Peer, Question};

/// From one reading to the next of what one node says.
const OF_ONE: Duration = Duration::from_secs(10);
/// How long a reading counts for the incarnation that it is of: a lie in the store does not outlast it by more.
const COUNTS: Duration = Duration::from_secs(60);
/// From one reading to the next, of whatever node.
const OF_ALL: Duration = Duration::from_secs(1);
/// How long a reading may take, and a look for a name.
const ANSWERED_WITHIN: Duration = Duration::from_secs(2);
/// Readings that are kept: the oldest makes room.
const KEPT: usize = 1024;
/// Addresses of one name that are tried.
const ADDRESSES: usize = 4;

/// What is known of others, for one purpose: whoever asks for another is not in its way.
pub(super) struct Directory {
    store: Arc<dyn ObjectStore>,
    readings: Mutex<BTreeMap<(String, String), Reading>>,
    /// When the next reading may be: who holds this reads.
    next: tokio::sync::Mutex<Instant>,
}

/// What a node has said.
struct Reading {
    at: Instant,
    /// Its incarnation, and where and by what it is known, if it said so.
    said: Option<(String, Option<(Digest, Place)>)>,
}

/// What is known by now.
enum Known {
    /// All that is to be known of that incarnation.
    Said(Option<(Digest, Place)>),
    /// That incarnation has not said anything a moment ago.
    NotYet,
    Nothing,
}

impl Directory {
    pub(super) fn new(store: Arc<dyn ObjectStore>) -> Arc<Self> {
        Arc::new(Self { store, readings: Mutex::default(), next: tokio::sync::Mutex::new(Instant::now()) })
    }

    /// By which certificate that incarnation is known, and its addresses where these are wanted; none if it has not said so.
    ///
    /// # Errors
    /// That its name leads nowhere.
    pub(super) async fn find(&self, question: &Question) -> Result<Option<Peer>, String> {
        let Some((certificate, place)) = self.said(question).await else { return Ok(None) };
        let addresses = match question.wants_addresses {
            true => match timeout(ANSWERED_WITHIN, place.addresses(ADDRESSES)).await {
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
        // Another may have read it meanwhile.
        match self.known(question) {
            Known::Said(said) => return said,
            Known::NotYet => return None,
            Known::Nothing => {}
        }
        sleep_until(*next).await;
        *next = Instant::now() + OF_ALL;
        let read = timeout(ANSWERED_WITHIN, self.store.announced(&election, &question.node)).await;
        let said = read.ok().and_then(Result::ok).flatten().and_then(|content| Announcement::decode(&content));
        let said = said.map(|said| (said.incarnation, said.peer.as_ref().and_then(understood)));
        self.keep(question, said);
        match self.known(question) {
            Known::Said(said) => said,
            Known::NotYet | Known::Nothing => None,
        }
    }

    fn known(&self, question: &Question) -> Known {
        let readings = self.readings.lock().unwrap_or_else(PoisonError::into_inner);
        match readings.get(&(question.election.clone(), question.node.clone())) {
            Some(Reading { at, said: Some((incarnation, said)) })
                if *incarnation == question.incarnation && at.elapsed() < COUNTS =>
            {
                Known::Said(said.clone())
            }
            Some(reading) if reading.at.elapsed() < OF_ONE => Known::NotYet,
            _ => Known::Nothing,
        }
    }

    fn keep(&self, question: &Question, said: Option<(String, Option<(Digest, Place)>)>) {
        let mut readings = self.readings.lock().unwrap_or_else(PoisonError::into_inner);
        if readings.len() >= KEPT
            && let Some(oldest) = readings.iter().min_by_key(|(_, reading)| reading.at).map(|(of, _)| of.clone())
        {
            readings.remove(&oldest);
        }
        let of = (question.election.clone(), question.node.clone());
        readings.insert(of, Reading { at: Instant::now(), said });
    }
}

/// None of what no host of this version says.
fn understood(said: &PeerWord) -> Option<(Digest, Place)> {
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
    async fn an_incarnation_is_known_by_what_it_says_and_nobody_has_that_read_again_and_again() {
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
        // Another start of the node, which has announced another certificate: what was read counts for 10 s.
        announce(&store, "job", "web-1", "b1", Some(peer)).await;
        assert_eq!(directory.find(&asks("job", "web-1", "b1")).await, Ok(None));
        assert_eq!(directory.find(&asks("job", "web-1", "a1")).await, Ok(found));
        assert!(began.elapsed() >= 2 * OF_ALL, "three readings in {:?}", began.elapsed());
        // A minute later it is read again.
        for reading in directory.readings.lock().unwrap().values_mut() {
            reading.at -= COUNTS;
        }
        assert_eq!(directory.find(&asks("job", "web-1", "a1")).await, Ok(None));
        // Of another election nothing is said.
        assert_eq!(directory.find(&asks("another", "web-1", "b1")).await, Ok(None));
    }
}
