//! A proxy on loopback that counts the HTTP requests that a host sends to its store.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// The end of every request line. The proxy's clients never send these bytes anywhere else.
const REQUEST: &[u8] = b" HTTP/1.1\r\n";
/// The end of the request line in a request for the control object, which lists the versions of an election's module.
const LOOK: &[u8] = b"control HTTP/1.1\r\n";
const STEERING: &[u8] = b"steering HTTP/1.1\r\n";
/// A part of the request line of a request that reads or writes an announcement.
const ANNOUNCEMENT: &[u8] = b"nodes/";

/// A running proxy. It runs until this process exits.
pub struct Counter {
    pub port: u16,
    requests: Arc<Requests>,
}

#[derive(Default)]
struct Requests {
    all: AtomicU64,
    for_modules: AtomicU64,
}

impl Counter {
    pub fn start(target: u16) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let requests = Arc::new(Requests::default());
        let counted = requests.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if let Err(error) = connect(client, target, &counted) {
                    eprintln!("the counting proxy lost a connection: {error}");
                }
            }
        });
        Ok(Self { port, requests })
    }

    pub fn requests(&self) -> u64 {
        self.requests.all.load(Ordering::Relaxed)
    }

    /// Number of requests about modules and steering so far: those for the control object, the steering object and
    /// announcements.
    pub fn for_modules(&self) -> u64 {
        self.requests.for_modules.load(Ordering::Relaxed)
    }
}

fn connect(client: TcpStream, target: u16, requests: &Arc<Requests>) -> io::Result<()> {
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, target))?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (client_back, server_back) = (client.try_clone()?, server.try_clone()?);
    let requests = requests.clone();
    thread::spawn(move || {
        let mut all = Finder::of(REQUEST);
        let mut for_modules = [LOOK, STEERING, ANNOUNCEMENT].map(Finder::of);
        pump(client, server, |bytes| {
            requests.all.fetch_add(all.count(bytes), Ordering::Relaxed);
            let found = for_modules.iter_mut().map(|finder| finder.count(bytes)).sum();
            requests.for_modules.fetch_add(found, Ordering::Relaxed);
        });
    });
    thread::spawn(move || pump(server_back, client_back, |_| ()));
    Ok(())
}

/// Finds a byte string in a stream, even if the string is split between two reads.
struct Finder {
    text: &'static [u8],
    matched: usize,
}

impl Finder {
    /// Creates a finder for `text`. The first byte of `text` must occur only once in `text`.
    fn of(text: &'static [u8]) -> Self {
        Self { text, matched: 0 }
    }

    fn count(&mut self, bytes: &[u8]) -> u64 {
        let mut found = 0;
        for byte in bytes {
            // The first byte occurs only once in the text. Therefore, after a mismatch, a new match can only start at
            // the current byte.
            let follows = *byte == self.text[self.matched];
            self.matched = if follows { self.matched + 1 } else { usize::from(*byte == self.text[0]) };
            if self.matched == self.text.len() {
                self.matched = 0;
                found += 1;
            }
        }
        found
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream, mut see: impl FnMut(&[u8])) {
    let mut buffer = [0; 16 * 1024];
    while let Ok(n) = from.read(&mut buffer) {
        if n == 0 || to.write_all(&buffer[..n]).is_err() {
            break;
        }
        see(&buffer[..n]);
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
