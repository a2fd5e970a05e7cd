//! What tests, benchmarks and the demo share: hosts that are started and judged by their logs (`node`) and asked at their
//! `endpoint`, what they run (`guests`, `modules`), what they need (`azurite`, `registry` with its `publisher`, `minisign`,
//! `fuse`; a `server` has a port of its own), what is put between them (`proxy`), and between them and the `kernel`, and how
//! a test waits for a state: for as long as something moves (`patience`).
//!
//! It is for integration tests and benchmarks, whose programs cargo puts beside the host's binary.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]
#![allow(clippy::disallowed_methods, reason = "nobody suspends the machine while it is tested")]

pub mod azurite;
pub mod endpoint;
pub mod fuse;
pub mod gone;
pub mod guests;
pub mod kernel;
pub mod minisign;
pub mod modules;
pub mod node;
pub mod patience;
pub mod proxy;
pub mod publisher;
pub mod registry;
pub mod server;
pub mod skipped;

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// The repository.
pub fn repository() -> &'static Path {
    static FOUND: LazyLock<PathBuf> = LazyLock::new(|| {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").canonicalize().expect("the repository")
    });
    &FOUND
}

/// The host's binary, of the same profile as the program that asks.
pub fn baton_binary() -> PathBuf {
    profile().join("baton")
}

/// The target folder.
pub fn target() -> &'static Path {
    profile().parent().expect("a profile is in the target folder")
}

/// A folder for what tests leave for each other and for later runs: the one that cargo names `CARGO_TARGET_TMPDIR`.
pub fn scratch() -> &'static Path {
    static MADE: LazyLock<PathBuf> = LazyLock::new(|| {
        let folder = target().join("tmp");
        std::fs::create_dir_all(&folder).expect("the target folder can be written");
        folder
    });
    &MADE
}

/// A loopback address that no other process of a test run uses. A client that still asks for a killed node's port there
/// never reaches a node of another test. Linux keeps process ids below 2^22, so the second octet stays below 128.
pub fn loopback() -> Ipv4Addr {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 64 | high, middle, low)
}

/// The folder of a profile: tests and benchmarks are in its folder `deps`.
fn profile() -> &'static Path {
    static FOUND: LazyLock<PathBuf> = LazyLock::new(|| {
        let program = std::env::current_exe().expect("this program's path");
        let deps = program.parent().filter(|folder| folder.ends_with("deps"));
        deps.and_then(Path::parent).expect("a test or a benchmark that cargo has built").to_path_buf()
    });
    &FOUND
}
