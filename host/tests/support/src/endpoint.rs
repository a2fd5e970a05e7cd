//! A node's admin endpoint, as its clients see it.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use crate::node::{GUARD, Node, until};
use crate::server::free_port;

/// Where it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Endpoint(pub SocketAddr);

/// An answer, as far as it came.
#[derive(Debug)]
pub struct Answer {
    /// 0 if there is none.
    pub status: u16,
    /// In lower case.
    pub head: String,
    /// What follows the head.
    pub body: String,
}

impl Endpoint {
    /// A free one, for a node whose log is not read.
    pub fn free() -> Self {
        Self((crate::loopback(), free_port()).into())
    }

    /// The one that the node logged at its start.
    pub fn of(node: &Node) -> Self {
        let endpoint = node.event("its endpoint", |event| event.name == "endpoint");
        Self(endpoint.text("address").parse().unwrap_or_else(|_| panic!("no address: {endpoint:?}")))
    }

    /// Sends these bytes on a new connection and reads to the end.
    ///
    /// # Errors
    /// Where the connection is cut.
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

    /// Asks for a path.
    pub fn ask(self, path: &str) -> Answer {
        self.ask_as("node", path)
    }

    /// The same of a host of this name.
    pub fn ask_as(self, host: &str, path: &str) -> Answer {
        let answer = self.send(&get(host, path)).expect("an answer");
        assert!(answer.status > 0, "{self:?} has hung up");
        answer
    }

    /// Asks for a path until the status is this one. Beside many others who ask, one may be hung up on.
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

/// The value of the one sample of a scraped page that has this name and these labels.
pub fn sample(page: &str, name: &str) -> f64 {
    let found: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).collect();
    assert_eq!(found.len(), 1, "{name} in:\n{page}");
    found[0].parse().expect("a number")
}
