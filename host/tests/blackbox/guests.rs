//! The guest of the scenarios, by what it does.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// What the guest does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Guest {
    /// Prints a line every 20 ms until it is asked to stop.
    Beats,
    /// Returns ok at once.
    Done,
    /// Computes for ever.
    Loops,
    /// Goes on printing, whatever it is asked.
    IgnoresStop,
    /// Waits in a call of the host that does not return.
    WaitsForEver,
    /// Prints as fast as it can, for ever.
    Floods,
    /// Traps at once.
    Traps,
    /// Calls itself until the stack ends.
    Recurses,
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
}

impl Guest {
    /// The component: built when it is first asked for.
    pub fn module(self) -> PathBuf {
        static BUILT: OnceLock<PathBuf> = OnceLock::new();
        BUILT.get_or_init(build).clone()
    }

    /// What its variable `BEHAVIOUR` says.
    pub fn behaviour(self) -> &'static str {
        match self {
            Self::Beats => "beats",
            Self::Done => "done",
            Self::Loops => "loops",
            Self::IgnoresStop => "ignores-stop",
            Self::WaitsForEver => "waits-for-ever",
            Self::Floods => "floods",
            Self::Traps => "traps",
            Self::Recurses => "recurses",
            Self::Allocates => "allocates",
            Self::Exits => "exits",
            Self::StepsDown => "steps-down",
            Self::FailsRetryable => "fails-retryable",
            Self::FailsFatally => "fails-fatally",
        }
    }
}

fn build() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/blackbox/guest");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guests");
    let built = Command::new(env!("CARGO"))
        .args(["build", "--release", "--target", "wasm32-wasip2", "--manifest-path"])
        .arg(package.join("Cargo.toml"))
        .env("CARGO_TARGET_DIR", &target)
        .output()
        .expect("cargo starts");
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "the guest does not build; is the target wasm32-wasip2 installed?\n{said}");
    target.join("wasm32-wasip2/release/baton_blackbox_guest.wasm")
}
