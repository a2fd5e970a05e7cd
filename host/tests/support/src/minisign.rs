//! Signs modules with minisign, as users do.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// A key pair. Dropping this value deletes the key files.
pub struct Signer(TempDir);

impl Signer {
    /// Generates a key pair. Installs minisign first if it is missing.
    ///
    /// # Panics
    /// If minisign cannot be installed. The tests must not pass without this tool.
    pub fn with_new_key() -> Self {
        let signer = Self(tempfile::tempdir().expect("a folder"));
        signer.run(&["-G", "-W", "-p", "minisign.pub", "-s", "minisign.key"]);
        signer
    }

    /// The file that holds the public key.
    pub fn public(&self) -> PathBuf {
        self.0.path().join("minisign.pub")
    }

    /// Signs these bytes. Returns the text of the signature file.
    pub fn sign(&self, bytes: &[u8]) -> String {
        self.sign_with(bytes, &[])
    }

    /// Signs the bytes themselves, as old versions of minisign did. Current versions sign a hash of the bytes.
    pub fn sign_legacy(&self, bytes: &[u8]) -> String {
        self.sign_with(bytes, &["-l"])
    }

    /// Signs these bytes together with this comment. Minisign calls the comment trusted, because the signature covers
    /// it.
    pub fn sign_saying(&self, bytes: &[u8], comment: &str) -> String {
        self.sign_with(bytes, &["-t", comment])
    }

    fn sign_with(&self, bytes: &[u8], options: &[&str]) -> String {
        std::fs::write(self.0.path().join("module"), bytes).expect("written");
        self.run(&[&["-S", "-s", "minisign.key", "-m", "module"], options].concat());
        std::fs::read_to_string(self.0.path().join("module.minisig")).expect("a signature")
    }

    fn run(&self, arguments: &[&str]) {
        let root = crate::repository();
        let program = root.join(".cache/minisign/minisign");
        if !program.exists() {
            let script = root.join("host/tests/minisign.sh");
            let installed = Command::new(&script).arg("install").status();
            assert!(program.exists(), "minisign is needed and not there: {} install: {installed:?}", script.display());
        }
        let done = Command::new(program)
            .args(arguments)
            .current_dir(self.0.path())
            .stdin(Stdio::null())
            .output()
            .expect("minisign runs");
        assert!(done.status.success(), "minisign {arguments:?}: {done:?}");
    }
}
