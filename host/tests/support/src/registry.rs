//! Runs an artifact registry, Debian's docker-registry, during a test.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::server::{free_port, has_started};

/// User name and password of the only user of a registry that requires authentication. This user may read and write
/// everything.
pub const USER: (&str, &str) = ("ali", "open sesame");
/// The line for [`USER`] in the registry's password file.
const HTPASSWD: &str = "ali:$2b$04$TLMO4JZJkfJGAsHqEom65OObZAHl0WQpZ.sRm6hMFV12QIFwvAS4O\n";

/// A registry, running or stopped. Dropping this value ends the registry's process and deletes its data.
pub struct Registry {
    folder: TempDir,
    address: SocketAddr,
    process: Option<Child>,
}

impl Registry {
    /// Starts a registry that requires no authentication.
    ///
    /// # Panics
    /// If the registry cannot be installed or started. The tests must not pass without their server.
    pub fn start() -> Self {
        Self::start_with("")
    }

    /// Starts a registry that only admits [`USER`].
    pub fn start_closed() -> Self {
        Self::start_with("auth: {htpasswd: {realm: cave, path: htpasswd}}\n")
    }

    fn start_with(auth: &str) -> Self {
        // Another process may take the port before the registry does. The registry then exits, and the next attempt
        // uses another port.
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

    /// The address on which the registry listens while it runs.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns how many requests with this method the registry has answered. Counts only requests whose URL contains
    /// `path` after a slash.
    pub fn requests(&self, method: &str, path: &str) -> usize {
        let matches = |line: &str| line.contains(&format!("\"{method} /v2/")) && line.contains(&format!("/{path}"));
        self.log().lines().filter(|line| line.starts_with("127.0.0.1 ") && matches(line)).count()
    }

    /// The registry's log, with one line per request.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).expect("the registry's log can be read")
    }

    /// The file that holds a blob.
    pub fn blob(&self, sha256: &str) -> PathBuf {
        self.folder.path().join(format!("data/docker/registry/v2/blobs/sha256/{}/{sha256}/data", &sha256[..2]))
    }

    /// Stops the registry. Its data remains.
    pub fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            // The process may have exited by itself.
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Restarts the registry at the same address, with the same data.
    pub fn restart(&mut self) {
        self.stop();
        assert!(self.run(), "the registry does not start again: {}", self.log());
    }

    /// Runs the registry's process. Returns false if the process exits before it answers.
    fn run(&mut self) -> bool {
        let log = File::options().create(true).append(true).open(self.folder.path().join("log"));
        let log = log.expect("the log can be opened");
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

/// Returns the path of the registry's program. Installs the program first if it is missing.
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
