//! Builds the coordinators to measure. The tests use the same guests. An environment variable selects a guest's
//! behavior.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

pub struct Guests {
    /// The guest that implements most of the behaviors.
    pub fixtures: PathBuf,
    /// A program that does not use Baton's interfaces.
    pub program: PathBuf,
    pub keeper: PathBuf,
    pub asks: PathBuf,
}

pub fn build() -> anyhow::Result<Guests> {
    let (fixtures, asks) = (build_folder("guests")?, build_folder("http-guest")?);
    Ok(Guests {
        keeper: fixtures.join("examples/keeper.wasm"),
        program: fixtures.join("program.wasm"),
        fixtures: fixtures.join("fixtures.wasm"),
        asks: asks.join("http_fixture.wasm"),
    })
}

/// Builds a package of guests. Returns the folder that contains the built components.
fn build_folder(package: &str) -> anyhow::Result<PathBuf> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guests");
    let built = Command::new(env!("CARGO"))
        .args([
            "build",
            "--quiet",
            "--locked",
            "--release",
            "--lib",
            "--bins",
            "--examples",
            "--target",
            "wasm32-wasip2",
            "--target-dir",
        ])
        .arg(&target)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(package))
        .output()
        .context("cargo does not start")?;
    let said = String::from_utf8_lossy(&built.stderr);
    ensure!(built.status.success(), "the coordinator does not build; is wasm32-wasip2 installed?\n{said}");
    Ok(target.join("wasm32-wasip2/release"))
}
