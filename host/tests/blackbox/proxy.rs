//! A TCP proxy on loopback that can cut off the server behind it.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Through,
    /// The proxy closes all connections, including new ones.
    Cut,
    /// Connections stay open and no data passes until the mode changes, as if the server hung.
    Hang,
    Ended,
}

struct Shared {
    target: u16,
    mode: Mutex<Mode>,
    changed: Condvar,
    open: Mutex<Vec<TcpStream>>,
}

/// A proxy that stops when this value is dropped.
pub struct Proxy {
    pub port: u16,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

impl Proxy {
    pub fn new(target: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = listener.local_addr().expect("a bound address").port();
        let shared = Arc::new(Shared {
            target,
            mode: Mutex::new(Mode::Through),
            changed: Condvar::new(),
            open: Mutex::default(),
        });
        let acceptor = std::thread::spawn({
            let shared = shared.clone();
            move || shared.accept(&listener)
        });
        Self { port, shared, acceptor: Some(acceptor) }
    }

    /// Changes the mode of all connections, including open ones.
    pub fn set(&self, mode: Mode) {
        *self.shared.mode.lock().unwrap_or_else(PoisonError::into_inner) = mode;
        self.shared.changed.notify_all();
        if matches!(mode, Mode::Cut | Mode::Ended) {
            for stream in self.shared.open.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.set(Mode::Ended);
        // Wakes the acceptor, which then reads the mode.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

impl Shared {
    fn mode(&self) -> Mode {
        *self.mode.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        let mut pumps = Vec::new();
        while let Ok((client, _)) = listener.accept() {
            match self.mode() {
                Mode::Ended => break,
                Mode::Cut => continue,
                Mode::Through | Mode::Hang => {}
            }
            let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, self.target)) else { continue };
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            let (Ok(client_out), Ok(server_out)) = (client.try_clone(), server.try_clone()) else { continue };
            if let (Ok(a), Ok(b)) = (client.try_clone(), server.try_clone()) {
                self.open.lock().unwrap_or_else(PoisonError::into_inner).extend([a, b]);
            }
            for (from, to) in [(client, server_out), (server, client_out)] {
                let shared = self.clone();
                pumps.push(std::thread::spawn(move || shared.pump(from, to)));
            }
        }
        for pump in pumps {
            let _ = pump.join();
        }
    }

    fn pump(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut buffer = [0; 16 * 1024];
        loop {
            let n = match from.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => n,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => break,
            };
            let mut mode = self.mode.lock().unwrap_or_else(PoisonError::into_inner);
            while *mode == Mode::Hang {
                mode = self.changed.wait(mode).unwrap_or_else(PoisonError::into_inner);
            }
            let pass = *mode == Mode::Through;
            drop(mode);
            if !pass || to.write_all(&buffer[..n]).is_err() {
                break;
            }
        }
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    }
}
