//! Fixtures that integration tests, benchmarks and the demo share:
//!
//! - hosts (`node`) and requests to their admin endpoints (`endpoint`)
//! - the coordinators that hosts run (`guests`, `modules`)
//! - external services (`azurite`, `registry` with `publisher`, `minisign`, `fuse`; `server` finds ports for them)
//! - network faults (`proxy`) and old kernels (`kernel`)
//! - timeouts that adapt to the speed of the machine (`patience`)
//!
//! The crate finds the program `baton` relative to the running program. It therefore only works in integration tests
//! and benchmarks, whose programs cargo puts into `deps` next to `baton`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails if it cannot continue")]
#![allow(clippy::disallowed_methods, reason = "nobody suspends the machine during a test")]

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

/// The root folder of the repository.
pub fn repository() -> &'static Path {
    static ROOT: LazyLock<PathBuf> = LazyLock::new(|| {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").canonicalize().expect("the repository")
    });
    &ROOT
}

/// The host's binary, built with the same profile as the running program.
pub fn baton_binary() -> PathBuf {
    profile().join("baton")
}

/// Cargo's target folder.
pub fn target() -> &'static Path {
    profile().parent().expect("a profile is in the target folder")
}

/// A folder for files that tests share with each other and with later runs. It is cargo's `CARGO_TARGET_TMPDIR`.
pub fn scratch() -> &'static Path {
    static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
        let folder = target().join("tmp");
        std::fs::create_dir_all(&folder).expect("the target folder can be written");
        folder
    });
    &FOLDER
}

/// A loopback address that no other process of a test run uses, because it contains this process's id. If a client
/// retries the port of a killed node, it never reaches a node of another test. Linux keeps process ids below 2^22, so
/// the second octet stays below 128.
pub fn loopback() -> Ipv4Addr {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 64 | high, middle, low)
}

/// The folder of the build profile. Its subfolder `deps` contains the programs of tests and benchmarks.
fn profile() -> &'static Path {
    static FOUND: LazyLock<PathBuf> = LazyLock::new(|| {
        let program = std::env::current_exe().expect("this program's path");
        let deps = program.parent().filter(|folder| folder.ends_with("deps"));
        deps.and_then(Path::parent).expect("a test or a benchmark that cargo has built").to_path_buf()
    });
    &FOUND
}
