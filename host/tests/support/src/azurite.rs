//! Runs the emulator, Azurite, for as long as a test needs it.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::server::{free_port, has_started};

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
        let has_started = has_started(&mut azurite.process, azurite.address);
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
