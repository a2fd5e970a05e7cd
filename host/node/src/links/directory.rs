//! Addresses and certificates of hosts on other machines, from their announcements in the store. Reads of the store are
//! rate-limited, because a peer can trigger a read before this host has authenticated the peer.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use baton_election::ElectionName;
use baton_store::{AnnouncedPeer, Announcement, Digest, ModuleStore as _, ObjectStore};
use tokio::time::{Instant, sleep_until, timeout};

use super::peer_addr::PeerAddr;
use super::wire::PeerQuery;

const READ_NODE_EVERY: Duration = Duration::from_secs(10);
/// Time for which a cached announcement is valid. Limits how long a false announcement can have an effect.
const VALID_FOR: Duration = Duration::from_secs(60);
/// Minimum interval between any two reads, even of different nodes.
const READ_ANY_EVERY: Duration = Duration::from_secs(1);
const READ_WITHIN: Duration = Duration::from_secs(2);
/// Maximum number of cached readings. Beyond this number, each new reading evicts the oldest one.
const MAX_READINGS: usize = 1024;
const MAX_ADDRESSES: usize = 4;

/// Cache of announcements. This host keeps one for leaders and one for callers (peers that connect to this host), so
/// that strangers cannot delay this host's connection to a leader.
pub(super) struct Directory {
    store: Arc<dyn ObjectStore>,
    readings: Mutex<BTreeMap<(String, String), Reading>>,
    /// Earliest time of the next read. The task that holds the lock does the read.
    next: tokio::sync::Mutex<Instant>,
}

struct Reading {
    at: Instant,
    /// The announced incarnation, with its certificate and address if both are valid. `None` if the host could not read
    /// an announcement of the node.
    announced: Option<(String, Option<(Digest, PeerAddr)>)>,
}

enum CachedAnnouncement {
    /// The certificate and address of the requested incarnation. `None` if it has announced none, or if they are
    /// invalid.
    Announced(Option<(Digest, PeerAddr)>),
    /// The last read did not find the requested incarnation, and is too recent to be repeated.
    NotYet,
    Nothing,
}

impl Directory {
    pub(super) fn new(store: Arc<dyn ObjectStore>) -> Self {
        Self { store, readings: Mutex::default(), next: tokio::sync::Mutex::new(Instant::now()) }
    }

    pub(super) async fn certificate(&self, query: &PeerQuery) -> Option<Digest> {
        self.announced(query).await.map(|(certificate, _)| certificate)
    }

    /// Returns the certificate and the addresses of a peer. Returns `None` if the peer has announced none, and an error
    /// if the announced host name cannot be resolved.
    pub(super) async fn addresses(&self, query: &PeerQuery) -> Result<Option<(Digest, Vec<SocketAddr>)>, String> {
        let Some((certificate, address)) = self.announced(query).await else { return Ok(None) };
        match timeout(READ_WITHIN, address.addresses(MAX_ADDRESSES)).await {
            Ok(Ok(addresses)) => Ok(Some((certificate, addresses))),
            Ok(Err(error)) => Err(format!("{address}: {error}")),
            Err(_) => Err(format!("{address}: this name was not resolved within {READ_WITHIN:?}")),
        }
    }

    async fn announced(&self, query: &PeerQuery) -> Option<(Digest, PeerAddr)> {
        let election = ElectionName::new(&query.election).ok()?;
        if let CachedAnnouncement::Announced(said) = self.known(query) {
            return said;
        }
        let mut next = self.next.lock().await;
        // While this task waited for the lock, another task may have read the announcement.
        match self.known(query) {
            CachedAnnouncement::Announced(said) => return said,
            CachedAnnouncement::NotYet => return None,
            CachedAnnouncement::Nothing => {}
        }
        sleep_until(*next).await;
        *next = Instant::now() + READ_ANY_EVERY;
        let read = timeout(READ_WITHIN, self.store.announced(&election, &query.node)).await;
        let said = read.ok().and_then(Result::ok).flatten().and_then(|content| Announcement::decode(&content));
        let said = said.map(|said| (said.incarnation, said.peer.as_ref().and_then(parse_peer)));
        self.insert(query, said);
        match self.known(query) {
            CachedAnnouncement::Announced(said) => said,
            CachedAnnouncement::NotYet | CachedAnnouncement::Nothing => None,
        }
    }

    fn known(&self, query: &PeerQuery) -> CachedAnnouncement {
        let readings = self.readings.lock().unwrap_or_else(PoisonError::into_inner);
        match readings.get(&(ElectionName::group_in(&query.election).to_owned(), query.node.clone())) {
            Some(Reading { at, announced: Some((incarnation, announced)) })
                if *incarnation == query.incarnation && at.elapsed() < VALID_FOR =>
            {
                CachedAnnouncement::Announced(announced.clone())
            }
            Some(reading) if reading.at.elapsed() < READ_NODE_EVERY => CachedAnnouncement::NotYet,
            _ => CachedAnnouncement::Nothing,
        }
    }

    fn insert(&self, query: &PeerQuery, announced: Option<(String, Option<(Digest, PeerAddr)>)>) {
        let mut readings = self.readings.lock().unwrap_or_else(PoisonError::into_inner);
        if readings.len() >= MAX_READINGS
            && let Some(oldest) = readings.iter().min_by_key(|(_, reading)| reading.at).map(|(key, _)| key.clone())
        {
            readings.remove(&oldest);
        }
        let key = (ElectionName::group_in(&query.election).to_owned(), query.node.clone());
        readings.insert(key, Reading { at: Instant::now(), announced });
    }
}

/// Returns `None` if this version of Baton cannot parse the announcement.
fn parse_peer(said: &AnnouncedPeer) -> Option<(Digest, PeerAddr)> {
    Some((said.certificate.parse().ok()?, said.address.parse().ok()?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]
    use baton_base::clock::Clock;
    use baton_store::MemoryStore;

    use super::*;

    async fn announce(store: &MemoryStore, election: &str, node: &str, incarnation: &str, peer: Option<AnnouncedPeer>) {
        let said = Announcement { peer, ..Announcement::now(node, incarnation, "", Vec::new(), None) };
        store.announce(&ElectionName::new(election).unwrap(), node, said.encode()).await.unwrap();
    }

    fn asks(election: &str, node: &str, incarnation: &str) -> PeerQuery {
        let [election, node, incarnation] = [election, node, incarnation].map(str::to_owned);
        PeerQuery { election, node, incarnation }
    }

    #[tokio::test]
    async fn announcements_are_cached_and_readings_are_rate_limited() {
        let clock = Clock::default();
        let store = Arc::new(MemoryStore::new(Arc::new(move || clock.now().0)));
        let certificate = Digest::of(b"a");
        let peer = AnnouncedPeer { address: "127.0.0.1:7072".to_owned(), certificate: certificate.to_string() };
        announce(&store, "job", "web-1", "a1", Some(peer.clone())).await;
        announce(&store, "job", "web-2", "a2", None).await;
        let odd = AnnouncedPeer { certificate: "md5:1".to_owned(), ..peer.clone() };
        announce(&store, "job", "web-3", "a3", Some(odd)).await;
        let directory = Directory::new(Arc::clone(&store) as _);
        let began = Instant::now();
        let found = Some((certificate, vec!["127.0.0.1:7072".parse().unwrap()]));
        assert_eq!(directory.addresses(&asks("job", "web-1", "a1")).await, Ok(found.clone()));
        for nobody in [asks("job", "web-1", "b1"), asks("job", "web-2", "a2"), asks("job", "web-3", "a3")] {
            assert_eq!(directory.addresses(&nobody).await, Ok(None), "{nobody:?}");
        }
        // The node restarts, and writes a new announcement. The directory has read the previous announcement less than
        // 10 s ago, so it does not read the new one yet.
        announce(&store, "job", "web-1", "b1", Some(peer)).await;
        assert_eq!(directory.addresses(&asks("job", "web-1", "b1")).await, Ok(None));
        assert_eq!(directory.addresses(&asks("job", "web-1", "a1")).await, Ok(found));
        assert!(began.elapsed() >= 2 * READ_ANY_EVERY, "three readings in {:?}", began.elapsed());
        for reading in directory.readings.lock().unwrap().values_mut() {
            reading.at -= VALID_FOR;
        }
        assert_eq!(directory.addresses(&asks("job", "web-1", "a1")).await, Ok(None));
        // The node has no announcement in this other election.
        assert_eq!(directory.addresses(&asks("another", "web-1", "b1")).await, Ok(None));
    }
}
