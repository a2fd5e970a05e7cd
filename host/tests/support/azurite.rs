//! Azurite, Azure's emulator, as a fixture: a server of one's own on a free port, without any files.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

/// A running emulator; its process ends with this value.
pub struct Azurite {
    /// Where on loopback its blob service listens.
    pub port: u16,
    child: Child,
    reader: Option<JoinHandle<()>>,
}

impl Azurite {
    /// Installs the emulator where it is missing, and starts one.
    ///
    /// # Panics
    /// If there is none to be had: a test that needs it must not pass without.
    pub fn start() -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/azurite.sh");
        let installed = Command::new(script).arg("install").stderr(Stdio::inherit()).output().expect("the script runs");
        assert!(installed.status.success(), "Azurite cannot be installed");
        let program = String::from_utf8(installed.stdout).expect("a path");
        let mut child = Command::new(program.trim())
            .args(["--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry"])
            .args(["--blobHost", "127.0.0.1", "--blobPort", "0"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("Azurite starts");
        let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let port = lines.by_ref().map_while(Result::ok).find_map(|line| {
            let (_, address) = line.split_once("successfully listens on http://127.0.0.1:")?;
            address.trim().parse().ok()
        });
        // It logs each request, and must not wait for a reader.
        let reader = std::thread::spawn(move || lines.for_each(drop));
        Self { port: port.expect("Azurite says where it listens"), child, reader: Some(reader) }
    }
}

impl Drop for Azurite {
    fn drop(&mut self) {
        // Both fail only where it has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}
