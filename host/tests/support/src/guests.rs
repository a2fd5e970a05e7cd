//! The guest of the scenarios (`host/tests/guests`), by what it does.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::modules::numbered;

/// What the guest does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Guest {
    /// Prints a line every 20 ms until it is asked to stop.
    Beats,
    /// Prints its variables and its configuration in one line, and returns ok.
    TellsConfig,
    /// Returns ok at once.
    Done,
    /// Computes for ever.
    Loops,
    /// Goes on printing, whatever it is asked, and always has half a line unfinished.
    IgnoresStop,
    /// Waits in a call of the host that does not return.
    WaitsForEver,
    /// Prints as fast as it can, for ever.
    Floods,
    /// Logs and prints, on both of its streams, as fast as it can, for ever.
    FloodsItsLog,
    /// Prints 1 GiB, then a line each 20 ms.
    PrintsAGigabyte,
    /// Does with files what the variable `SCRIPT` says and tells how it went, then prints a line each 20 ms.
    UsesFiles,
    /// Logs something at each level, then prints a line each 20 ms.
    Logs,
    /// Prints more than a pipe holds, then computes for ever.
    FloodsThenLoops,
    /// Panics, which is a trap, at once.
    Traps,
    /// Calls itself until the stack ends.
    Recurses,
    /// Computes deep within, never where it was before, and returns ok after a while.
    Wanders,
    /// Fails with a message of a MiB.
    FailsAtLength,
    /// Takes memory until there is none.
    Allocates,
    /// Exits with a status other than 0.
    Exits,
    /// Asks to give leadership up.
    StepsDown,
    /// Returns a failure that is worth another try.
    FailsRetryable,
    /// Returns a failure that is not.
    FailsFatally,
    /// Saves one state after the other until it is asked to stop, and says which were saved.
    KeepsHistory,
    /// Saves more than it may, in each way.
    SavesTooMuch,
}

impl Guest {
    /// Its component: all are built when it is first asked for.
    pub fn module(self) -> PathBuf {
        match self {
            Self::KeepsHistory | Self::SavesTooMuch => components().join("examples/keeper.wasm"),
            _ => components().join("fixtures.wasm"),
        }
    }

    /// Its bytes, as they are when it is built for the nth time: the same guest, and another module.
    pub fn build(self, n: u8) -> Vec<u8> {
        numbered(std::fs::read(self.module()).expect("the guest"), n)
    }

    /// Its variables: what it does, and how fast.
    pub fn env(self) -> [(&'static str, &'static str); 2] {
        let beat = match self {
            // A host keeps some thousand lines: those that matter are still there when a slow browser asks.
            Self::Logs => "1000",
            _ => "20",
        };
        [("BEHAVIOUR", self.behaviour()), ("BEAT_MS", beat)]
    }

    fn behaviour(self) -> &'static str {
        match self {
            Self::Beats => "beat",
            Self::TellsConfig => "config",
            Self::Done => "done",
            Self::Loops => "busy",
            Self::IgnoresStop => "mutter",
            Self::WaitsForEver => "sleep",
            Self::Floods => "flood",
            Self::FloodsItsLog => "flood-log",
            Self::PrintsAGigabyte => "gigabyte",
            Self::UsesFiles => "files",
            Self::Logs => "log",
            Self::FloodsThenLoops => "flood-then-busy",
            Self::Traps => "panic",
            Self::Recurses => "recurse",
            Self::Wanders => "wander",
            Self::FailsAtLength => "long-failure",
            Self::Allocates => "allocate",
            Self::Exits => "exit",
            Self::StepsDown => "step-down",
            Self::FailsRetryable => "retryable",
            Self::FailsFatally => "fatal",
            Self::KeepsHistory => "history",
            Self::SavesTooMuch => "too-much",
        }
    }
}

/// A program that knows nothing of Baton (`src/bin/program.rs`), as a component.
pub fn program() -> PathBuf {
    components().join("program.wasm")
}

/// The same program as a core module for WASI preview 1.
pub fn program_for_preview1() -> PathBuf {
    core_modules().join("program.wasm")
}

/// The guest of the scenarios as a core module that carries component types.
pub fn coordinator_for_preview1() -> PathBuf {
    core_modules().join("fixtures.wasm")
}

fn components() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build("fixtures", "wasm32-wasip2"))
}

fn core_modules() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build("fixtures", "wasm32-wasip1"))
}

/// The guest that makes requests over HTTP.
pub fn asks_over_http() -> PathBuf {
    with_http().join("http_fixture.wasm")
}

/// The guest of which there are many versions.
pub fn versions() -> PathBuf {
    with_http().join("examples/versions.wasm")
}

/// The guest that causes effects, and saves.
pub fn effects() -> PathBuf {
    with_http().join("examples/effects.wasm")
}

/// The guest that causes effects, and has no state.
pub fn effects_without_state() -> PathBuf {
    with_http().join("examples/stateless.wasm")
}

fn with_http() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build("http-fixture", "wasm32-wasip2"))
}

fn build(package: &str, architecture: &str) -> PathBuf {
    // Where `make` builds guests, too: what compiles them is built once.
    let target = crate::target();
    let built = Command::new(env!("CARGO"))
        .args(["build", "--package", package, "--lib", "--bins", "--examples", "--release", "--target", architecture])
        .env("CARGO_TARGET_DIR", target)
        .current_dir(crate::repository())
        .output()
        .expect("cargo starts");
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "the guest does not build; is the target {architecture} installed?\n{said}");
    target.join(architecture).join("release")
}
