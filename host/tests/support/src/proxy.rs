//! A proxy on loopback that simulates network failures.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

use crate::patience::{LOOK, Patience};

/// Determines how the proxy handles requests and answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// The proxy forwards requests and answers unchanged.
    Pass,
    /// The proxy reads and discards requests, so clients get no answers.
    Hang,
    /// Requests pass. The proxy discards the answer and closes the connection.
    CutAfterRequest,
    /// The proxy holds requests until the mode changes, even if the client has closed the connection. The new mode then
    /// applies to these requests.
    HoldRequest,
    /// Requests pass. The proxy holds answers until the mode changes, even if the client has closed the connection.
    HoldAnswer,
    /// The proxy closes all connections, and each new connection as soon as the proxy has accepted it.
    Down,
}

/// A proxy in front of one server. Dropping this value closes the proxy's connections.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts a proxy to `target` in [`Mode::Pass`].
    pub fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has a free port");
        let address = listener.local_addr().expect("a listener has an address");
        let state = State { mode: Mode::Pass, held: 0, answered: 0, ended: false, streams: HashMap::new() };
        let shared = Arc::new(Shared { target, state: Mutex::new(state), changed: Condvar::new() });
        let acceptor = {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || accept(&listener, &shared))
        };
        Self { address, shared, acceptor: Some(acceptor) }
    }

    /// The address to which clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes the mode. The new mode also applies to the requests and answers that the proxy holds.
    pub fn set(&self, mode: Mode) {
        let mut state = self.shared.state();
        state.mode = mode;
        if mode == Mode::Down {
            state.close();
        }
        self.shared.changed.notify_all();
    }

    /// Waits until the proxy holds a request.
    pub fn wait_held(&self) {
        self.shared.wait("no request came to be held", |state| state.held > 0);
    }

    /// Delivers the held requests, lets later requests pass, and waits until the server has answered a request.
    pub fn deliver(&self) {
        let before = self.shared.state().answered;
        self.set(Mode::Pass);
        self.shared.wait("the server answered no held request", |state| state.answered > before);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        {
            let mut state = self.shared.state();
            state.ended = true;
            state.close();
            self.shared.changed.notify_all();
        }
        // The acceptor waits for connections. This connection wakes it, so that it exits.
        let _ = TcpStream::connect(self.address);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

struct Shared {
    target: SocketAddr,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    mode: Mode,
    held: usize,
    answered: u64,
    ended: bool,
    /// Both ends of each connection. The key is the connection's number.
    streams: HashMap<u64, [TcpStream; 2]>,
}

impl State {
    fn close(&mut self) {
        for stream in self.streams.drain().flat_map(|(_, ends)| ends) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn wait(&self, otherwise: &str, until: impl Fn(&State) -> bool) {
        let (mut state, mut patience) = (self.state(), Patience::default());
        while !until(&state) {
            assert!(patience.lasts(), "{otherwise}");
            state = self.changed.wait_timeout(state, LOOK).expect("no holder of the lock panics").0;
        }
    }

    /// Returns the mode for a request that the proxy has just read. In [`Mode::HoldRequest`], blocks until the mode
    /// changes.
    fn mode_for_request(&self) -> Mode {
        let mut state = self.state();
        if state.mode == Mode::HoldRequest {
            state.held += 1;
            self.changed.notify_all();
            let waiting = |state: &mut State| state.mode == Mode::HoldRequest && !state.ended;
            state = self.changed.wait_while(state, waiting).expect("no holder of the lock panics");
            state.held -= 1;
        }
        if state.ended { Mode::Down } else { state.mode }
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    let mut connections: Vec<JoinHandle<()>> = Vec::new();
    for (number, client) in (0_u64..).zip(listener.incoming().map_while(Result::ok)) {
        let server = {
            let mut state = shared.state();
            match (state.ended, state.mode) {
                (true, _) => break,
                (false, Mode::Down) => continue,
                (false, _) => {}
            }
            let Ok(server) = TcpStream::connect(shared.target) else { continue };
            let Ok(ends) = client.try_clone().and_then(|c| Ok([c, server.try_clone()?])) else { continue };
            state.streams.insert(number, ends);
            server
        };
        let Ok((client_too, server_too)) = client.try_clone().and_then(|c| Ok((c, server.try_clone()?))) else {
            continue;
        };
        let (there, back) = (Arc::clone(shared), Arc::clone(shared));
        connections.retain(|connection| !connection.is_finished());
        connections.push(std::thread::spawn(move || requests(&there, client, server)));
        connections.push(std::thread::spawn(move || {
            answers(&back, server_too, client_too);
            back.state().streams.remove(&number);
        }));
    }
    for connection in connections {
        let _ = connection.join();
    }
}

fn requests(shared: &Shared, mut client: TcpStream, mut server: TcpStream) {
    let mut bytes = [0; 16 * 1024];
    while let Ok(length @ 1..) = client.read(&mut bytes) {
        match shared.mode_for_request() {
            Mode::Down => break,
            Mode::Hang => {}
            Mode::Pass | Mode::CutAfterRequest | Mode::HoldRequest | Mode::HoldAnswer => {
                if server.write_all(&bytes[..length]).is_err() {
                    break;
                }
            }
        }
    }
    // Shut down only the sending side, because the server still answers the requests that it has received.
    let _ = server.shutdown(Shutdown::Write);
}

fn answers(shared: &Shared, mut server: TcpStream, mut client: TcpStream) {
    let mut bytes = [0; 16 * 1024];
    while let Ok(length @ 1..) = server.read(&mut bytes) {
        let cut = {
            let mut state = shared.state();
            state.answered += 1;
            shared.changed.notify_all();
            let waiting = |state: &mut State| state.mode == Mode::HoldAnswer && !state.ended;
            state = shared.changed.wait_while(state, waiting).expect("no holder of the lock panics");
            matches!(state.mode, Mode::CutAfterRequest | Mode::Down)
        };
        // The write fails if the client has closed the connection. The answer has already been counted.
        if cut || client.write_all(&bytes[..length]).is_err() {
            break;
        }
    }
    let _ = client.shutdown(Shutdown::Both);
}
