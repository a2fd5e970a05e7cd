//! A real server on loopback that keeps what it was asked, to the byte.

#![allow(clippy::disallowed_methods, reason = "a guard against hangs need not count suspends")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::patience::{LOOK, Patience};

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct Request {
    /// Which connection it came on, from 1.
    pub connection: usize,
    /// The first line.
    pub line: String,
    /// The headers' lines.
    pub headers: Vec<String>,
    /// The body, with its chunks' sizes and trailers if it has such.
    pub body: String,
    /// The body's bytes, where it has a length.
    pub bytes: Vec<u8>,
}

impl Request {
    /// The values of a header, whatever the case of its name.
    pub fn header(&self, name: &str) -> Vec<&str> {
        let pairs = self.headers.iter().filter_map(|line| line.split_once(':'));
        pairs.filter(|(key, _)| key.trim().eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).collect()
    }

    /// The path with its query.
    pub fn path(&self) -> &str {
        self.line.split(' ').nth(1).unwrap_or_default()
    }

    /// The number of the term that it carries.
    pub fn term(&self) -> u64 {
        match self.header("baton-term")[..] {
            [term] => term.parse().expect("a number"),
            _ => panic!("not one term: {self:?}"),
        }
    }
}

/// What the server does with a request.
pub enum Reply {
    /// Answers with this status line and headers, and this body.
    Answer(String, String),
    /// Does not answer, and keeps the connection.
    Hang,
    /// Answers, and closes the connection without having said so.
    AnswerAndClose,
}

impl Reply {
    /// 200 and a body.
    pub fn ok(body: impl Into<String>) -> Self {
        Self::Answer("200 OK".to_owned(), body.into())
    }
}

#[derive(Default)]
struct Seen {
    requests: Mutex<Vec<Request>>,
    changed: Condvar,
    ended: AtomicBool,
}

/// The server; it ends with this value.
pub struct Server {
    /// Where it is.
    pub port: u16,
    seen: Arc<Seen>,
    acceptor: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts a server that answers as it is told.
    pub fn start(answer: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = listener.local_addr().expect("a bound address").port();
        let seen = Arc::new(Seen::default());
        let (its, answer) = (Arc::clone(&seen), Arc::new(answer));
        let acceptor = std::thread::spawn(move || {
            let mut connections = Vec::new();
            for stream in listener.incoming() {
                if its.ended.load(Ordering::Acquire) {
                    break;
                }
                let stream = stream.expect("a connection");
                stream.set_nodelay(true).expect("a connection");
                let (seen, answer, number) = (Arc::clone(&its), Arc::clone(&answer), connections.len() + 1);
                let own = stream.try_clone().expect("a descriptor");
                let thread = std::thread::spawn(move || serve(stream, number, &seen, &*answer));
                connections.push((own, thread));
            }
            for (stream, thread) in connections {
                let _ = stream.shutdown(std::net::Shutdown::Both);
                thread.join().expect("the server does not panic");
            }
        });
        Self { port, seen, acceptor: Some(acceptor) }
    }

    /// Its URL by address, without a path.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// What it was asked so far.
    pub fn requests(&self) -> Vec<Request> {
        self.seen.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until what it was asked passes the test.
    pub fn wait<T>(&self, what: &str, mut test: impl FnMut(&[Request]) -> Option<T>) -> T {
        let mut requests = self.seen.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let mut patience = Patience::default();
        loop {
            if let Some(found) = test(&requests) {
                return found;
            }
            assert!(patience.lasts(), "waited in vain for {what}: {requests:?}");
            requests = self.seen.changed.wait_timeout(requests, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.seen.ended.store(true, Ordering::Release);
        // Wakes the acceptor.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

fn serve(mut stream: TcpStream, connection: usize, seen: &Seen, answer: &dyn Fn(&Request) -> Reply) {
    let mut reader = BufReader::new(stream.try_clone().expect("a descriptor"));
    while let Some(request) = read(&mut reader, connection) {
        let reply = answer(&request);
        seen.requests.lock().unwrap_or_else(PoisonError::into_inner).push(request);
        seen.changed.notify_all();
        let (head, body, is_last) = match reply {
            Reply::Answer(head, body) => (head, body, false),
            Reply::AnswerAndClose => ("200 OK".to_owned(), String::new(), true),
            Reply::Hang => continue,
        };
        let response = format!("HTTP/1.1 {head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        if stream.write_all(response.as_bytes()).is_err() || is_last {
            let _ = stream.shutdown(std::net::Shutdown::Both);
            return;
        }
    }
}

/// The next request; none if the connection ends before it is whole.
fn read(reader: &mut BufReader<TcpStream>, connection: usize) -> Option<Request> {
    let line = read_line(reader)?;
    let mut headers = Vec::new();
    loop {
        match read_line(reader)? {
            end if end.is_empty() => break,
            header => headers.push(header),
        }
    }
    let mut request = Request { connection, line, headers, body: String::new(), bytes: Vec::new() };
    if let [length] = request.header("content-length")[..] {
        let mut body = vec![0; length.parse().expect("a length")];
        reader.read_exact(&mut body).ok()?;
        request.body = String::from_utf8_lossy(&body).into_owned();
        request.bytes = body;
    } else if !request.header("transfer-encoding").is_empty() {
        let mut is_last = false;
        loop {
            let line = read_line(reader)?;
            is_last |= line == "0";
            let is_end = is_last && line.is_empty();
            request.body.push_str(&line);
            request.body.push('\n');
            if is_end {
                break;
            }
        }
    }
    Some(request)
}

fn read_line(reader: &mut BufReader<TcpStream>) -> Option<String> {
    let mut line = String::new();
    match reader.read_line(&mut line) {
        Ok(1..) => Some(line.trim_end_matches(['\r', '\n']).to_owned()),
        _ => None,
    }
}
