//! Runs the emulator, Azurite, for as long as a test needs it.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::patience::Patience;

/// How long to wait between two looks whether it has started.
const LOOK: Duration = Duration::from_millis(20);

/// How long a server that has started may take for an answer before it is asked again.
const ANSWER: Duration = Duration::from_secs(2);

/// A running emulator with nothing in it. It ends when this is dropped.
pub struct Azurite {
    process: Child,
    address: SocketAddr,
}

impl Azurite {
    /// Starts one on a port of its own, which keeps all in memory. Installs it first if it is missing.
    ///
    /// Each write takes memory until it sweeps, ten minutes after its start and then again: for as long as the square
    /// of what was written takes, two seconds for 2,000 writes and ten minutes for 35,000, it answers nobody.
    ///
    /// # Panics
    /// If it cannot be had: a suite that passes without its server shows nothing.
    pub fn start() -> Self {
        Self::keeping(&["--inMemoryPersistence"])
    }

    /// One that keeps all in files of this folder, many writes in each: for a test that writes for more than ten
    /// minutes.
    ///
    /// # Panics
    /// As above.
    pub fn start_in(folder: &Path) -> Self {
        Self::keeping(&["--location", folder.to_str().expect("a folder whose path is text")])
    }

    fn keeping(keeps: &[&str]) -> Self {
        let root = crate::repository();
        let program = root.join(".cache/azurite/node_modules/.bin/azurite-blob");
        if !program.exists() {
            let script = root.join("host/tests/azurite.sh");
            let installed = Command::new(&script).arg("install").status();
            assert!(
                installed.as_ref().is_ok_and(std::process::ExitStatus::success) && program.exists(),
                "Azurite is needed and not there: {} install: {installed:?}",
                script.display()
            );
        }
        // Another may take the port before Azurite has it: then it ends, and another port is tried.
        (0..5).find_map(|_| Self::start_at(&program, keeps, free_port())).expect("Azurite does not start on any port")
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    fn start_at(program: &Path, keeps: &[&str], port: u16) -> Option<Self> {
        let process = Command::new(program)
            .args(keeps)
            .args(["--skipApiVersionCheck", "--disableTelemetry", "--silent"])
            .args(["--blobHost", "127.0.0.1", "--blobPort", &port.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{} cannot be run (it needs Node.js): {error}", program.display()));
        let mut azurite = Self { process, address: SocketAddr::from((Ipv4Addr::LOCALHOST, port)) };
        let has_started = Patience::poll(LOOK, || {
            let has_ended = azurite.process.try_wait().expect("a child can be waited for").is_some();
            (has_ended || answers(azurite.address)).then_some(!has_ended)
        });
        has_started.expect("Azurite answers or ends").then_some(azurite)
    }
}

impl Drop for Azurite {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
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
