//! Ports for loopback servers that cannot choose a free port themselves.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Child;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::patience::{InVain, Patience};

/// The interval at which to check whether a server has started.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The timeout for one request.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Waits until a server answers requests. Returns false if the server's process exits first, for example because its
/// port is taken.
///
/// # Errors
/// [`InVain`] if the server neither answers nor exits.
///
/// # Panics
/// If the process is not a child of this one.
pub fn has_started(process: &mut Child, address: SocketAddr) -> Result<bool, InVain> {
    Patience::poll(POLL_INTERVAL, || {
        let has_exited = process.try_wait().expect("a child can be waited for").is_some();
        (has_exited || answers(address)).then_some(!has_exited)
    })
}

/// Returns true if a server answers a request at `address`. An accepted connection is not enough: [`free_port`] briefly
/// opens a listener on the port. A process that another thread starts at that moment may inherit the listener, which
/// then accepts connections without answering.
fn answers(address: SocketAddr) -> bool {
    let request = || -> std::io::Result<usize> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
        stream.read(&mut [0])
    };
    matches!(request(), Ok(1))
}

/// Returns a free port, for a server that cannot choose one itself. The port is below the system's ephemeral ports, and
/// differs from all ports that this process has returned before. If two tests got the same port, one of them could
/// reach the other's server.
pub fn free_port() -> u16 {
    static RETURNED: AtomicU32 = AtomicU32::new(0);
    // Each test process starts its search at a different port.
    let first = std::process::id().wrapping_mul(97);
    let ports = std::iter::repeat_with(|| first.wrapping_add(RETURNED.fetch_add(1, Ordering::Relaxed)));
    let mut ports = ports.map(|number| 20_000 + (number % 10_000) as u16).take(10_000);
    ports.find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok()).expect("loopback has a free port")
}
