//! Measures the memory that a standby needs to keep a large module warm. A warm module has been compiled and linked,
//! and its memory image has been created.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};

use crate::hosts::{Site, follows};
use crate::node::Node;
use crate::samples::Samples;
use crate::table::{Row, Unit};
use crate::usage::{Memory, memory};

pub struct Effort {
    /// Number of standbys of each kind.
    pub rounds: usize,
}

/// The example that contains a whole JavaScript engine.
pub const LARGE: &str = "scheduler-js.wasm";
/// Pause before the benchmark reads a host's memory, so that the host's start no longer affects the value.
const SETTLE: Duration = Duration::from_secs(3);

/// Compares the memory of standbys with a large module to the memory of standbys with the leader's small module.
pub fn measure(small: &Path, effort: &Effort) -> anyhow::Result<Vec<Row>> {
    let large = example(LARGE)?;
    let mebibytes = std::fs::metadata(&large)?.len() as f64 / f64::from(1 << 20);
    let [mut beside, mut cold, mut warm] = [const { Vec::new() }; 3];
    for _ in 0..effort.rounds {
        let site = Site::new();
        let leader = site.launch("leader", small, "beat", &site.url()).start();
        leader.after(0, "started");
        // The leader has already compiled the small module, so the standby finds it in the cache.
        beside.push(standby(&site, "small", small, true)?);
        cold.push(standby(&site, "cold", &large, false)?);
        warm.push(standby(&site, "warm", &large, true)?);
    }
    let all = |measured: &[Memory]| measured.iter().map(|memory| memory.all).collect::<Samples>();
    let own = |measured: &[Memory]| measured.iter().map(|memory| memory.anonymous).collect::<Samples>();
    let row =
        |what: String, measured, beside: f64| Row::new(what, Unit::MiB, measured).beside("with a small one", beside);
    let rows = [(cold, "compiled here"), (warm, "from the cache")].map(|(measured, from)| {
        let what = format!("a standby's memory, {mebibytes:.1} MiB held warm, {from}");
        [
            row(what, all(&measured), all(&beside).median()),
            row("  of it not backed by the binary".to_owned(), own(&measured), own(&beside).median()),
        ]
    });
    Ok(rows.into_iter().flatten().collect())
}

/// Measures the memory use of a standby with this module. Checks that the module's code comes from the cache if and
/// only if `cached` is true.
fn standby(site: &Site, name: &str, module: &Path, cached: bool) -> anyhow::Result<Memory> {
    let node: Node = site.launch(name, module, "beat", &site.url()).start();
    follows(&node);
    let ready = node.event("the module to be ready", |event| event.name == "module_ready");
    ensure!(ready.fields["cached"] == cached, "whether it comes from the cache should be {cached}: {ready:?}");
    thread::sleep(SETTLE);
    memory(node.pid()).context("the standby ended while it was watched")
}

pub fn example(name: &str) -> anyhow::Result<PathBuf> {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("examples").join(name);
    ensure!(path.exists(), "{} is missing: `make examples` builds it", path.display());
    Ok(path)
}
