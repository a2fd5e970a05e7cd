//! Builds the coordinator that is measured with: the tests' fixture, which behaves as it is told.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

/// Builds `tests/guests`.
///
/// # Errors
/// If cargo does not start, or does not build it: the target `wasm32-wasip2` may be missing.
pub fn build() -> anyhow::Result<PathBuf> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guests");
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--locked", "--release", "--target", "wasm32-wasip2", "--target-dir"])
        .arg(&target)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guests"))
        .output()
        .context("cargo does not start")?;
    let said = String::from_utf8_lossy(&built.stderr);
    ensure!(built.status.success(), "the coordinator does not build; is wasm32-wasip2 installed?\n{said}");
    Ok(target.join("wasm32-wasip2/release/fixtures.wasm"))
}
