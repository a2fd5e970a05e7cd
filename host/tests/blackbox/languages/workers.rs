//! Workers on loopback. They take partitions as described in `examples/scheduler/README.md`, and record each offer.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::node::Journal;
use crate::patience::{LOOK, Patience, QUIET};

#[derive(Clone, Debug)]
pub struct Offer {
    pub worker: usize,
    pub partition: u64,
    /// `term`, `node` and `election` come from headers that the host adds.
    pub term: u64,
    pub node: String,
    pub election: String,
    /// True if the worker refused the offer, because an earlier offer had a higher term.
    pub was_refused: bool,
}

/// Workers that share their state, as if they shared a database.
pub struct Workers {
    workers: Vec<(String, SocketAddr, JoinHandle<()>)>,
    shared: Arc<Shared>,
    /// Log of the nodes that make the offers, printed if a wait fails.
    journal: Journal,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    offers: Vec<Offer>,
    highest: u64,
    taken: BTreeMap<(usize, u64), u64>,
    /// Partitions whose next offer a worker takes, but does not answer.
    to_hold: BTreeSet<u64>,
    held: BTreeMap<u64, TcpStream>,
    ended: bool,
}

impl Workers {
    /// The workers take the first offer of each partition in `hold`, but never answer that offer.
    pub fn start(count: usize, hold: impl IntoIterator<Item = u64>, journal: Journal) -> Self {
        let shared = Arc::new(Shared::default());
        shared.state().to_hold.extend(hold);
        let workers = (0..count).map(|worker| {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has a free port");
            let address = listener.local_addr().expect("a listener has an address");
            let state = Arc::clone(&shared);
            (format!("http://{address}"), address, std::thread::spawn(move || state.serve(worker, &listener)))
        });
        Self { workers: workers.collect(), shared, journal }
    }

    pub fn url(&self, worker: usize) -> &str {
        &self.workers[worker].0
    }

    pub fn held(&self, partition: u64) {
        self.wait(&format!("partition {partition} to be offered"), |state| state.held.contains_key(&partition));
    }

    pub fn offered_since(&self, term: u64) {
        self.wait(&format!("an offer since term {term}"), |state| state.offers.iter().any(|offer| offer.term >= term));
    }

    fn wait(&self, what: &str, is_there: impl Fn(&State) -> bool) {
        let (mut state, mut patience) = (self.shared.state(), Patience::default());
        while !is_there(&state) {
            if !patience.lasts() {
                let (count, last) = (state.offers.len(), state.offers.last().cloned());
                drop(state);
                self.journal.fail(&format!("waited in vain for {what}; the last of {count} offers is {last:?}"));
            }
            state = self.shared.changed.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub fn offers(&self) -> Vec<Offer> {
        self.shared.state().offers.clone()
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.shared.state().ended = true;
        for (_, address, worker) in self.workers.drain(..) {
            // Wakes the worker. The connection fails only if the worker has already ended.
            let _ = TcpStream::connect(address);
            let _ = worker.join();
        }
    }
}

impl Shared {
    fn serve(&self, worker: usize, listener: &TcpListener) {
        for stream in listener.incoming() {
            if self.state().ended {
                return;
            }
            if let Some((stream, head)) = stream.ok().and_then(read_head) {
                self.answer(worker, stream, &head);
            }
        }
    }

    fn answer(&self, worker: usize, mut stream: TcpStream, head: &[String]) {
        let (status, body) = {
            let mut state = self.state();
            let Some(mut offer) = offer(worker, head) else {
                let _ = write!(stream, "HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n{head:?}");
                return;
            };
            offer.was_refused = offer.term < state.highest;
            state.offers.push(offer.clone());
            self.changed.notify_all();
            if offer.was_refused {
                (409, format!("term {} was seen", state.highest))
            } else {
                state.highest = offer.term;
                let taken = *state.taken.entry((worker, offer.partition)).or_insert(offer.term);
                if state.to_hold.remove(&offer.partition) {
                    state.held.insert(offer.partition, stream);
                    return;
                }
                (200, taken.to_string())
            }
        };
        // Ignores errors, because the node that made the offer may have exited.
        let length = body.len();
        let _ = write!(stream, "HTTP/1.1 {status} -\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

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
