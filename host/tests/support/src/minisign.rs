//! Signs as users do: with minisign.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// A pair of keys, whose files are gone when this is dropped.
pub struct Signer(TempDir);

impl Signer {
    /// A new pair. Installs minisign first if it is missing.
    ///
    /// # Panics
    /// If it cannot be had: a suite that passes without its tool shows nothing.
    pub fn with_new_key() -> Self {
        let signer = Self(tempfile::tempdir().expect("a folder"));
        signer.run(&["-G", "-W", "-p", "minisign.pub", "-s", "minisign.key"]);
        signer
    }

    /// The file of its public key.
    pub fn public(&self) -> PathBuf {
        self.0.path().join("minisign.pub")
    }

    /// The text of a signature of these bytes.
    pub fn sign(&self, bytes: &[u8]) -> String {
        self.sign_with(bytes, &[])
    }

    /// The same as old versions of minisign made it: of the bytes and not of their hash.
    pub fn sign_legacy(&self, bytes: &[u8]) -> String {
        self.sign_with(bytes, &["-l"])
    }

    /// The same with this trusted comment.
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
