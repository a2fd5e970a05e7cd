//! Builds the coordinators that are measured with: the tests' fixtures, which behave as they are told.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

/// What was built.
pub struct Guests {
    /// The fixture that can do most things.
    pub fixtures: PathBuf,
    /// The one that keeps state.
    pub keeper: PathBuf,
}

/// Builds `tests/guests`.
///
/// # Errors
/// If cargo does not start, or does not build it: the target `wasm32-wasip2` may be missing.
pub fn build() -> anyhow::Result<Guests> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guests");
    let built = Command::new(env!("CARGO"))
        .args([
            "build",
            "--quiet",
            "--locked",
            "--release",
            "--lib",
            "--examples",
            "--target",
            "wasm32-wasip2",
            "--target-dir",
        ])
        .arg(&target)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guests"))
        .output()
        .context("cargo does not start")?;
    let said = String::from_utf8_lossy(&built.stderr);
    ensure!(built.status.success(), "the coordinator does not build; is wasm32-wasip2 installed?\n{said}");
    let built = target.join("wasm32-wasip2/release");
    Ok(Guests { fixtures: built.join("fixtures.wasm"), keeper: built.join("examples/keeper.wasm") })
}
