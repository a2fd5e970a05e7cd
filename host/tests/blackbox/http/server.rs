//! An HTTP server on loopback that records its requests byte by byte.

#![allow(clippy::disallowed_methods, reason = "a guard against hangs need not count suspends")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::patience::{LOOK, Patience};

#[derive(Clone, Debug)]
pub struct Request {
    /// The number of the connection on which the request arrived, counted from 1.
    pub connection: usize,
    pub line: String,
    pub headers: Vec<String>,
    /// Includes the chunk sizes and trailers if the body is chunked.
    pub body: String,
    /// Empty if the request has no `Content-Length`.
    pub bytes: Vec<u8>,
}

impl Request {
    /// Returns all values of the header. The case of the name does not matter.
    pub fn header(&self, name: &str) -> Vec<&str> {
        let pairs = self.headers.iter().filter_map(|line| line.split_once(':'));
        pairs.filter(|(key, _)| key.trim().eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).collect()
    }

    pub fn path(&self) -> &str {
        self.line.split(' ').nth(1).unwrap_or_default()
    }

    pub fn term(&self) -> u64 {
        match self.header("baton-term")[..] {
            [term] => term.parse().expect("a number"),
            _ => panic!("not exactly one term: {self:?}"),
        }
    }
}

pub enum Reply {
    /// A status line, to which headers may be appended, and a body.
    Answer(String, String),
    /// Does not answer, and keeps the connection open.
    Hang,
    /// Answers, and closes the connection without a `Connection: close` header.
    AnswerAndClose,
}

impl Reply {
    pub fn ok(body: impl Into<String>) -> Self {
        Self::Answer("200 OK".to_owned(), body.into())
    }
}

#[derive(Default)]
struct Shared {
    requests: Mutex<Vec<Request>>,
    changed: Condvar,
    stopped: AtomicBool,
}

/// A server that stops when this value is dropped.
pub struct Server {
    pub port: u16,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

impl Server {
    pub fn start(answer: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = listener.local_addr().expect("a bound address").port();
        let shared = Arc::new(Shared::default());
        let (for_acceptor, answer) = (Arc::clone(&shared), Arc::new(answer));
        let acceptor = std::thread::spawn(move || {
            let mut connections = Vec::new();
            for stream in listener.incoming() {
                if for_acceptor.stopped.load(Ordering::Acquire) {
                    break;
                }
                let stream = stream.expect("a connection");
                stream.set_nodelay(true).expect("a connection");
                let (shared, answer, number) = (Arc::clone(&for_acceptor), Arc::clone(&answer), connections.len() + 1);
                let own = stream.try_clone().expect("a descriptor");
                let thread = std::thread::spawn(move || serve(stream, number, &shared, &*answer));
                connections.push((own, thread));
            }
            for (stream, thread) in connections {
                let _ = stream.shutdown(std::net::Shutdown::Both);
                thread.join().expect("the server does not panic");
            }
        });
        Self { port, shared, acceptor: Some(acceptor) }
    }

    /// The host in the URL is an IP address, not a name.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub fn requests(&self) -> Vec<Request> {
        self.shared.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn wait<T>(&self, what: &str, mut test: impl FnMut(&[Request]) -> Option<T>) -> T {
        let mut requests = self.shared.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let mut patience = Patience::default();
        loop {
            if let Some(found) = test(&requests) {
                return found;
            }
            assert!(patience.lasts(), "waited in vain for {what}: {requests:?}");
            requests = self.shared.changed.wait_timeout(requests, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Release);
        // This connection wakes the acceptor, which then notices the stop.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

fn serve(mut stream: TcpStream, connection: usize, shared: &Shared, answer: &dyn Fn(&Request) -> Reply) {
    let mut reader = BufReader::new(stream.try_clone().expect("a descriptor"));
    while let Some(request) = read(&mut reader, connection) {
        let reply = answer(&request);
        shared.requests.lock().unwrap_or_else(PoisonError::into_inner).push(request);
        shared.changed.notify_all();
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

/// Returns `None` if the connection ends before the request is complete.
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
