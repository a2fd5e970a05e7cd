//! Servers on the loopback that cannot choose a port by themselves.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Child;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::patience::{InVain, Patience};

/// How long to wait between two looks whether one has started.
const LOOK: Duration = Duration::from_millis(20);

/// How long one that has started may take for an answer before it is asked again.
const ANSWER: Duration = Duration::from_secs(2);

/// Waits until a server answers requests; false where it has ended instead, as it does where another has its port.
///
/// # Errors
/// [`InVain`] where it does neither.
///
/// # Panics
/// If the process is not a child of this one.
pub fn has_started(process: &mut Child, address: SocketAddr) -> Result<bool, InVain> {
    Patience::poll(LOOK, || {
        let has_ended = process.try_wait().expect("a child can be waited for").is_some();
        (has_ended || answers(address)).then_some(!has_ended)
    })
}

/// Whether a server answers a request there. That it takes a connection says less: so does what looked whether the port is
/// free, for as long as a process that another thread was just starting has a copy of that.
fn answers(address: SocketAddr) -> bool {
    let ask = || -> std::io::Result<usize> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(ANSWER))?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
        stream.read(&mut [0])
    };
    matches!(ask(), Ok(1))
}

/// A port for a server that cannot choose one by itself: free at the moment, told nobody else in this process, and below
/// those that the system gives away. Otherwise two tests could meet at one port, and the first of their servers.
pub fn free_port() -> u16 {
    static TOLD: AtomicU32 = AtomicU32::new(0);
    // Other processes that test begin elsewhere.
    let begin = std::process::id().wrapping_mul(97);
    let ports = std::iter::repeat_with(|| begin.wrapping_add(TOLD.fetch_add(1, Ordering::Relaxed)));
    let mut ports = ports.map(|number| 20_000 + (number % 10_000) as u16).take(10_000);
    ports.find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok()).expect("loopback has a free port")
}
