//! Runs a registry of artifacts, Debian's docker-registry, for as long as a test needs it.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::server::{free_port, has_started};

/// Who may do everything in a registry that is not open to all: the user, and the password.
pub const USER: (&str, &str) = ("ali", "open sesame");
/// The same, as the registry has it.
const HTPASSWD: &str = "ali:$2b$04$TLMO4JZJkfJGAsHqEom65OObZAHl0WQpZ.sRm6hMFV12QIFwvAS4O\n";

/// A registry, running or not. It ends when this is dropped, with all that is in it.
pub struct Registry {
    folder: TempDir,
    address: SocketAddr,
    process: Option<Child>,
}

impl Registry {
    /// Starts one that is open to all.
    ///
    /// # Panics
    /// If it cannot be had: a suite that passes without its server shows nothing.
    pub fn start() -> Self {
        Self::with("")
    }

    /// Starts one that is open to [`USER`] only.
    ///
    /// # Panics
    /// As above.
    pub fn start_closed() -> Self {
        Self::with("auth: {htpasswd: {realm: cave, path: htpasswd}}\n")
    }

    fn with(auth: &str) -> Self {
        // Another may take the port before the registry has it: then it ends, and another port is tried.
        for _ in 0..5 {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
            let config = format!(
                "version: 0.1\nlog: {{accesslog: {{disabled: false}}}}\nstorage: {{filesystem: {{rootdirectory: data}}}}\n\
                 http: {{addr: '{address}'}}\n{auth}"
            );
            fs::write(folder.path().join("config.yml"), config).expect("a temporary folder can be written to");
            fs::write(folder.path().join("htpasswd"), HTPASSWD).expect("a temporary folder can be written to");
            let mut registry = Self { folder, address, process: None };
            if registry.run() {
                return registry;
            }
        }
        panic!("the registry does not start on any port");
    }

    /// Where it listens, or did before it was stopped.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many requests it has answered that begin so, behind the name of a repository.
    pub fn requests(&self, method: &str, of: &str) -> usize {
        let request = |line: &str| line.contains(&format!("\"{method} /v2/")) && line.contains(&format!("/{of}"));
        self.log().lines().filter(|line| line.starts_with("127.0.0.1 ") && request(line)).count()
    }

    /// What it says, one line for each request among it.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).expect("the registry's log can be read")
    }

    /// The file with a blob's bytes.
    pub fn blob(&self, sha256: &str) -> PathBuf {
        self.folder.path().join(format!("data/docker/registry/v2/blobs/sha256/{}/{sha256}/data", &sha256[..2]))
    }

    /// Ends it. What is in it stays.
    pub fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            // It may have ended by itself.
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Starts it again where it was.
    ///
    /// # Panics
    /// If that cannot be done.
    pub fn restart(&mut self) {
        self.stop();
        assert!(self.run(), "the registry does not start again: {}", self.log());
    }

    /// Whether it has started.
    fn run(&mut self) -> bool {
        let log = File::options().create(true).append(true).open(self.folder.path().join("log")).expect("a log");
        let process = Command::new(program())
            .args(["serve", "config.yml"])
            .current_dir(self.folder.path())
            .env_clear()
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file can be shared"))
            .stderr(log)
            .spawn()
            .expect("the registry can be run");
        let process = self.process.insert(process);
        let has_started = has_started(process, self.address);
        has_started.unwrap_or_else(|_| panic!("the registry does not answer: {}", self.log()))
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The registry's program, which is unpacked first if it is missing.
fn program() -> PathBuf {
    let root = crate::repository();
    let program = root.join(".cache/registry/docker-registry");
    if !program.exists() {
        let script = root.join("host/tests/registry.sh");
        let installed = Command::new(&script).arg("install").status();
        assert!(
            installed.as_ref().is_ok_and(std::process::ExitStatus::success) && program.exists(),
            "docker-registry is needed and not there: {} install: {installed:?}",
            script.display()
        );
    }
    program.canonicalize().expect("the registry's program has a path")
}
