//! A proxy on loopback that counts the HTTP requests that a host sends to its store.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// How each request's first line ends, and nothing else that these clients send.
const END_OF_REQUEST_LINE: &[u8] = b" HTTP/1.1\r\n";

/// A proxy that lives as long as the process: its threads wait for connections that end with it.
pub struct Counter {
    /// The port it listens on.
    pub port: u16,
    requests: Arc<AtomicU64>,
}

impl Counter {
    /// Starts a proxy in front of a port on loopback.
    ///
    /// # Errors
    /// If there is no free port.
    pub fn start(target: u16) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let requests = Arc::new(AtomicU64::new(0));
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

    /// The requests so far.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }
}

fn connect(client: TcpStream, target: u16, requests: &Arc<AtomicU64>) -> io::Result<()> {
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, target))?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (client_back, server_back) = (client.try_clone()?, server.try_clone()?);
    let requests = requests.clone();
    thread::spawn(move || {
        let mut line = Lines::default();
        pump(client, server, |bytes| {
            requests.fetch_add(line.count(bytes), Ordering::Relaxed);
        });
    });
    thread::spawn(move || pump(server_back, client_back, |_| ()));
    Ok(())
}

/// Finds the ends of request lines in a stream, also where one is cut in two.
#[derive(Default)]
struct Lines {
    matched: usize,
}

impl Lines {
    fn count(&mut self, bytes: &[u8]) -> u64 {
        let mut found = 0;
        for byte in bytes {
            // The first byte, a space, does not occur again in what is looked for, so that nothing but a
            // new start is possible where the rest does not follow.
            self.matched = if *byte == END_OF_REQUEST_LINE[self.matched] {
                self.matched + 1
            } else {
                usize::from(*byte == END_OF_REQUEST_LINE[0])
            };
            if self.matched == END_OF_REQUEST_LINE.len() {
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
