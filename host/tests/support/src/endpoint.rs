//! A client for a node's admin endpoint.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use crate::node::{GUARD, Node, until};
use crate::server::free_port;

/// The address of an admin endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Endpoint(pub SocketAddr);

/// An answer to an HTTP request. It is incomplete if the connection closed too early.
#[derive(Debug)]
pub struct Answer {
    /// The HTTP status, or 0 if the answer has none.
    pub status: u16,
    /// The status line and the header fields, in lower case.
    pub head: String,
    /// The bytes after the head.
    pub body: String,
}

impl Endpoint {
    /// Returns an unused address, for a node whose log the test does not read. For other nodes, use [`Self::of`].
    pub fn free() -> Self {
        Self((crate::loopback(), free_port()).into())
    }

    /// Returns the endpoint whose address `node` logs when it starts.
    pub fn of(node: &Node) -> Self {
        let endpoint =
            node.event("its endpoint", |event| event.name == "listening" && event.text("purpose") == "admin");
        Self(endpoint.text("address").parse().unwrap_or_else(|_| panic!("no address: {endpoint:?}")))
    }

    /// Sends `request` on a new connection and reads until the connection closes.
    ///
    /// # Errors
    /// If the connection fails or is reset.
    pub fn send(self, request: &[u8]) -> io::Result<Answer> {
        let mut stream = TcpStream::connect(self.0)?;
        stream.set_read_timeout(Some(GUARD))?;
        stream.write_all(request)?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        let text = String::from_utf8_lossy(&answer).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        Ok(Answer { status, head: head.to_ascii_lowercase(), body: body.to_owned() })
    }

    /// Sends a GET request for a path.
    pub fn ask(self, path: &str) -> Answer {
        self.ask_as("node", path)
    }

    /// Sends a GET request for a path, with this `Host` header.
    pub fn ask_as(self, host: &str, path: &str) -> Answer {
        let answer = self.send(&get(host, path)).expect("an answer");
        assert!(answer.status > 0, "{self:?} has hung up");
        answer
    }

    /// Repeats a GET request for a path until the answer has this status. Ignores failed connections, because an
    /// endpoint with too many connections closes some of them.
    pub fn ask_until(self, path: &str, status: u16) -> Answer {
        until(&format!("{path} to answer {status}"), || {
            let answer = self.send(&get("node", path)).map_err(|error| error.to_string())?;
            if answer.status == status { Ok(answer) } else { Err(format!("{answer:?}")) }
        })
    }
}

fn get(host: &str, path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").into()
}

/// Returns the value of the sample `name` in a page of metrics. `name` includes the sample's labels. Panics unless the
/// page has exactly one such sample.
pub fn sample(page: &str, name: &str) -> f64 {
    let found: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).collect();
    assert_eq!(found.len(), 1, "{name} in:\n{page}");
    found[0].parse().expect("a number")
}
