//! Workers on loopback: they take partitions as `examples/scheduler/README.md` says, and write down each offer.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::node::Journal;
use crate::patience::{LOOK, Patience, QUIET};

/// A request that a worker got.
#[derive(Clone, Debug)]
pub struct Offer {
    /// Which worker.
    pub worker: usize,
    pub partition: u64,
    /// What the host's headers say.
    pub term: u64,
    pub node: String,
    pub election: String,
    /// Its term is lower than one that was seen before.
    pub was_refused: bool,
}

/// Some workers that know of one another, as if they shared a database.
pub struct Workers {
    workers: Vec<(String, SocketAddr, JoinHandle<()>)>,
    shared: Arc<Shared>,
    /// What the nodes that make the offers tell.
    journal: Journal,
}

#[derive(Default)]
struct Shared {
    seen: Mutex<Seen>,
    changed: Condvar,
}

#[derive(Default)]
struct Seen {
    offers: Vec<Offer>,
    highest: u64,
    taken: BTreeMap<(usize, u64), u64>,
    /// Partitions whose next offer is taken, but not answered.
    to_hold: BTreeSet<u64>,
    held: BTreeMap<u64, TcpStream>,
    ended: bool,
}

impl Workers {
    /// Starts so many. The first offer of each partition in `hold` is taken and never answered.
    pub fn start(count: usize, hold: impl IntoIterator<Item = u64>, journal: Journal) -> Self {
        let shared = Arc::new(Shared::default());
        shared.seen().to_hold.extend(hold);
        let workers = (0..count).map(|worker| {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has a free port");
            let address = listener.local_addr().expect("a listener has an address");
            let its = Arc::clone(&shared);
            (format!("http://{address}"), address, std::thread::spawn(move || its.serve(worker, &listener)))
        });
        Self { workers: workers.collect(), shared, journal }
    }

    /// A worker's base URL.
    pub fn url(&self, worker: usize) -> &str {
        &self.workers[worker].0
    }

    /// Waits until the partition was taken without an answer.
    pub fn held(&self, partition: u64) {
        self.wait(&format!("partition {partition} to be offered"), |seen| seen.held.contains_key(&partition));
    }

    /// Waits until a partition is offered in that term, or in a later one.
    pub fn offered_since(&self, term: u64) {
        self.wait(&format!("an offer since term {term}"), |seen| seen.offers.iter().any(|offer| offer.term >= term));
    }

    fn wait(&self, what: &str, is_there: impl Fn(&Seen) -> bool) {
        let (mut seen, mut patience) = (self.shared.seen(), Patience::default());
        while !is_there(&seen) {
            if !patience.lasts() {
                let (count, last) = (seen.offers.len(), seen.offers.last().cloned());
                drop(seen);
                self.journal.fail(&format!("waited in vain for {what}; the last of {count} offers is {last:?}"));
            }
            seen = self.shared.changed.wait_timeout(seen, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// All offers, in the order in which they arrived.
    pub fn offers(&self) -> Vec<Offer> {
        self.shared.seen().offers.clone()
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.shared.seen().ended = true;
        for (_, address, worker) in self.workers.drain(..) {
            // Wakes it; it fails only where the worker has already ended.
            let _ = TcpStream::connect(address);
            let _ = worker.join();
        }
    }
}

impl Shared {
    fn serve(&self, worker: usize, listener: &TcpListener) {
        for stream in listener.incoming() {
            if self.seen().ended {
                return;
            }
            if let Some((stream, head)) = stream.ok().and_then(read_head) {
                self.answer(worker, stream, &head);
            }
        }
    }

    fn answer(&self, worker: usize, mut stream: TcpStream, head: &[String]) {
        let (status, body) = {
            let mut seen = self.seen();
            let Some(mut offer) = offer(worker, head) else {
                let _ = write!(stream, "HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n{head:?}");
                return;
            };
            offer.was_refused = offer.term < seen.highest;
            seen.offers.push(offer.clone());
            self.changed.notify_all();
            if offer.was_refused {
                (409, format!("term {} was seen", seen.highest))
            } else {
                seen.highest = offer.term;
                let taken = *seen.taken.entry((worker, offer.partition)).or_insert(offer.term);
                if seen.to_hold.remove(&offer.partition) {
                    seen.held.insert(offer.partition, stream);
                    return;
                }
                (200, taken.to_string())
            }
        };
        // The node that made the offer may be gone.
        let length = body.len();
        let _ = write!(stream, "HTTP/1.1 {status} -\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The lines of a request's head, the first in front.
fn read_head(stream: TcpStream) -> Option<(TcpStream, Vec<String>)> {
    stream.set_read_timeout(Some(QUIET)).ok()?;
    let lines = BufReader::new(&stream).lines();
    let head: Vec<String> = lines.map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
    Some((stream, head))
}

fn offer(worker: usize, head: &[String]) -> Option<Offer> {
    let path = head.first()?.strip_prefix("POST /partitions/")?;
    let header = |name: &str| {
        let mut values = head.iter().filter_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
        });
        values.next()
    };
    Some(Offer {
        worker,
        partition: path.split(' ').next()?.parse().ok()?,
        term: header("baton-term")?.parse().ok()?,
        node: header("baton-node")?,
        election: header("baton-election")?,
        was_refused: false,
    })
}
