//! Runs Azurite, the emulator of Azure Storage, during a test.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::server::{free_port, has_started};

/// A running emulator, empty at first. Dropping this value ends the emulator's process.
pub struct Azurite {
    process: Child,
    address: SocketAddr,
}

impl Azurite {
    /// Starts an emulator that keeps its data in memory. Installs Azurite first if it is missing.
    ///
    /// Azurite does not free the memory of a write until its next sweep. It sweeps every 10 minutes, and answers no
    /// requests during a sweep. The duration of a sweep grows with the square of the number of writes: 2 s for 2,000
    /// writes, 10 minutes for 35,000.
    ///
    /// # Panics
    /// If Azurite cannot be installed or started. The tests must not pass without their server.
    pub fn start() -> Self {
        Self::start_with(&["--inMemoryPersistence"])
    }

    /// Starts an emulator that keeps its data in files in `folder`. Many writes share one file, so a sweep takes little
    /// time. Tests that write for more than 10 minutes need such an emulator.
    pub fn start_in(folder: &Path) -> Self {
        Self::start_with(&["--location", folder.to_str().expect("a folder whose path is text")])
    }

    fn start_with(persistence: &[&str]) -> Self {
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
        // Another process may take the port before Azurite does. Azurite then exits, and the next attempt uses another
        // port.
        (0..5)
            .find_map(|_| Self::start_at(&program, persistence, free_port()))
            .expect("Azurite does not start on any port")
    }

    /// The address on which Azurite listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    fn start_at(program: &Path, persistence: &[&str], port: u16) -> Option<Self> {
        let process = Command::new(program)
            .args(persistence)
            .args(["--skipApiVersionCheck", "--disableTelemetry", "--silent"])
            .args(["--blobHost", "127.0.0.1", "--blobPort", &port.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{} cannot be run (it needs Node.js): {error}", program.display()));
        let mut azurite = Self { process, address: SocketAddr::from((Ipv4Addr::LOCALHOST, port)) };
        let has_started = has_started(&mut azurite.process, azurite.address);
        has_started.expect("Azurite answers or exits").then_some(azurite)
    }
}

impl Drop for Azurite {
    fn drop(&mut self) {
        // The process may have exited by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
