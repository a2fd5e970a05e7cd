//! Builds the guests that hosts run in tests (`host/tests/guests`, `host/tests/http-guest`).

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::modules::numbered;

/// A behavior of the guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Guest {
    /// Prints a line every 20 ms until it receives a stop request.
    Beats,
    /// Prints its variables and its configuration in one line, and returns ok.
    TellsConfig,
    /// Returns ok at once.
    Done,
    /// Computes forever.
    Loops,
    /// Keeps printing after a stop request. The last line is always incomplete.
    IgnoresStop,
    /// Sleeps for days in one call to the host, so the call never returns during a test.
    WaitsForEver,
    /// Prints as fast as it can, forever.
    Floods,
    /// Logs, and prints to stdout and stderr, as fast as it can, forever.
    FloodsItsLog,
    /// Prints 1 GiB, then a line every 20 ms.
    PrintsAGigabyte,
    /// Runs the file operations in the variable `SCRIPT`, prints their results, then prints a line every 20 ms.
    UsesFiles,
    /// Logs a message at each level, then prints a line every 20 ms.
    Logs,
    /// Prints more than a pipe holds, then computes forever.
    FloodsThenLoops,
    /// Panics at once, which is a trap.
    Traps,
    /// Recurses until the stack overflows.
    Recurses,
    /// Fails with a message of 1 MiB.
    FailsAtLength,
    /// Allocates memory until none is left.
    Allocates,
    /// Exits with a status other than 0.
    Exits,
    /// Asks the host to give up leadership.
    StepsDown,
    /// Returns a retryable failure.
    FailsRetryable,
    /// Returns a fatal failure.
    FailsFatally,
    /// Saves a growing count in its state until it receives a stop request, and prints the saved counts.
    KeepsHistory,
    /// Exceeds each limit on its state.
    SavesTooMuch,
}

impl Guest {
    /// The path of the guest's component. The first call builds the components of all guests with these behaviors.
    pub fn module(self) -> PathBuf {
        match self {
            Self::KeepsHistory | Self::SavesTooMuch => components().join("examples/keeper.wasm"),
            _ => components().join("fixtures.wasm"),
        }
    }

    /// The component's bytes, with `n` in an additional section. Each `n` gives a different module with the same code.
    pub fn build(self, n: u8) -> Vec<u8> {
        numbered(std::fs::read(self.module()).expect("the guest"), n)
    }

    /// The environment variables that select the behavior, and the interval between printed lines.
    pub fn env(self) -> [(&'static str, &'static str); 2] {
        let beat = match self {
            // A host keeps only the latest few thousand lines. With this long interval, the host still has the first
            // lines when a slow browser requests them.
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

/// A program that does not use Baton's interfaces (`src/bin/program.rs`), as a component.
pub fn program() -> PathBuf {
    components().join("program.wasm")
}

/// [`program`] as a core module for WASI preview 1.
pub fn program_for_preview1() -> PathBuf {
    core_modules().join("program.wasm")
}

/// The guest as a core module for WASI preview 1 that carries component types, so a host can wrap it as a component.
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

/// The guest that sends HTTP requests.
pub fn asks_over_http() -> PathBuf {
    with_http().join("http_fixture.wasm")
}

/// The guest from which tests make many versions.
pub fn versions() -> PathBuf {
    with_http().join("examples/versions.wasm")
}

/// The guest that causes effects and saves state.
pub fn effects() -> PathBuf {
    with_http().join("examples/effects.wasm")
}

/// The guest that causes effects without state.
pub fn effects_without_state() -> PathBuf {
    with_http().join("examples/stateless.wasm")
}

fn with_http() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build("http-fixture", "wasm32-wasip2"))
}

fn build(package: &str, architecture: &str) -> PathBuf {
    // Use the same target folder as `make`, so that the guests' build dependencies are compiled only once.
    let target = crate::target();
    let built = Command::new(env!("CARGO"))
        .args(["build", "--package", package, "--lib", "--bins", "--examples", "--release", "--target", architecture])
        .env("CARGO_TARGET_DIR", target)
        .current_dir(crate::repository())
        .output()
        .expect("cargo starts");
    let errors = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "the guest does not build; is the target {architecture} installed?\n{errors}");
    target.join(architecture).join("release")
}
