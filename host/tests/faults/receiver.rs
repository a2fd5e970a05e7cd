//! A server that receives the coordinators' requests.

use std::io::Write;
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use crate::fleet::NAMES;
use crate::judge::{Channel, Effect, Judge};
use crate::kernel::{listener, receive};

pub struct Receiver {
    port: u16,
    ended: Arc<AtomicBool>,
    acceptor: Option<JoinHandle<()>>,
}

impl Receiver {
    pub fn start(judge: &Arc<Mutex<Judge>>) -> Self {
        let listener = listener();
        let port = listener.local_addr().expect("a bound address").port();
        let ended = Arc::new(AtomicBool::new(false));
        let (judge, is_over) = (Arc::clone(judge), Arc::clone(&ended));
        let acceptor = std::thread::spawn(move || {
            let mut connections: Vec<(TcpStream, JoinHandle<()>)> = Vec::new();
            for stream in listener.incoming() {
                if is_over.load(Ordering::Acquire) {
                    break;
                }
                let stream = stream.expect("a connection");
                stream.set_nodelay(true).expect("a connection");
                let own = stream.try_clone().expect("a descriptor");
                for (_, thread) in connections.extract_if(.., |(_, thread)| thread.is_finished()) {
                    if thread.join().is_err() {
                        let mut judge = judge.lock().expect("no thread panics while it holds the lock");
                        judge.found("the receiver panicked".to_owned());
                    }
                }
                let judge = Arc::clone(&judge);
                connections.push((own, std::thread::spawn(move || listen(stream, &judge))));
            }
            for (stream, thread) in connections {
                let _ = stream.shutdown(Shutdown::Both);
                // A panic means that requests on this connection were not judged.
                if thread.join().is_err() {
                    let mut judge = judge.lock().expect("no thread panics while it holds the lock");
                    judge.found("the receiver panicked".to_owned());
                }
            }
        });
        Self { port, ended, acceptor: Some(acceptor) }
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        // The acceptor waits for connections. This connection wakes it, so that it sees `ended`.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

/// Reads requests until the connection closes. A client waits for each answer, so a read never returns the bytes of two
/// requests. Two requests in one read would share one timestamp.
fn listen(mut stream: TcpStream, judge: &Mutex<Judge>) {
    let mut head = Vec::new();
    let mut bytes = [0; 4096];
    loop {
        match receive(&stream, &mut bytes) {
            Ok(Some((length, at))) => {
                head.extend_from_slice(&bytes[..length]);
                if !head.ends_with(b"\r\n\r\n") {
                    continue;
                }
                let parsed = parse(&String::from_utf8_lossy(&head), at);
                head.clear();
                let mut judge = judge.lock().expect("no thread panics while it holds the lock");
                match parsed {
                    Ok(effect) => {
                        judge.written(effect.node, Channel::Request, at);
                        judge.effect(effect);
                    }
                    Err(why) => judge.found(why),
                }
            }
            // The end of the guest closes the connection, and often resets it. Neither is an error.
            Ok(None) => return,
            Err(error) if error.raw_os_error().is_some() => return,
            Err(error) => panic!("{error}"),
        }
        if stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").is_err() {
            return;
        }
    }
}

/// Parses `GET /INSTANCE/N HTTP/1.1` and the headers that the host adds.
fn parse(head: &str, at: u64) -> Result<Effect, String> {
    let header = |name: &str| {
        let pairs = head.lines().filter_map(|line| line.split_once(": "));
        let values: Vec<&str> = pairs.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, v)| v).collect();
        match values[..] {
            [value] => Ok(value),
            _ => Err(format!("each request carries its term and its node: not one {name} in {head:?}")),
        }
    };
    let name = head.split(' ').nth(1).unwrap_or_default().trim_start_matches('/').to_owned();
    let (node, term) = (header("baton-node")?, header("baton-term")?);
    let unknown = || format!("each request carries its term and its node: {head:?}");
    let node = NAMES.iter().position(|name| *name == node).ok_or_else(unknown)?;
    Ok(Effect { at, way: Channel::Request, term: term.parse().map_err(|_| unknown())?, node, name })
}
