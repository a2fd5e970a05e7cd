//! Measures the example scheduler in each of its languages: its size, the time to compile it, and the time to start it.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};

use crate::hosts::Site;
use crate::node::Event;
use crate::patience::Patience;
use crate::samples::Samples;
use crate::table::{Row, Unit};
use crate::warm::example;

pub struct Effort {
    pub starts: usize,
}

const LANGUAGES: [&str; 5] = ["rust", "js", "python", "c", "go"];

/// Measures two times for each example: the time to compile it, and the time from the write of a new term to the
/// guest's first instruction. The second time includes the claim of the state.
pub fn measure(effort: &Effort) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for language in LANGUAGES {
        let module = example(&format!("scheduler-{language}.wasm"))?;
        let kilobytes = std::fs::metadata(&module)?.len() / 1000;
        let [mut compiled, mut started] = [Samples::default(), Samples::default()];
        for _ in 0..effort.starts {
            let site = Site::new();
            // The first host compiles the module. The second host finds the compiled module in the cache.
            for (name, is_cached) in [("first", false), ("second", true)] {
                let host = site.launch(name, &module, "beat", &site.url());
                let mut host = host.flag("--config-var", "workers=1").start();
                let ready = host.event("the module to be ready", |event| event.name == "module_ready");
                ensure!(ready.fields["cached"] == is_cached, "the cache is not as it should be: {ready:?}");
                let first = host.after(0, "started");
                let took = |event: &Event| event.fields["took_s"].as_f64().context("an event says what it took");
                if is_cached {
                    started.push(1e3 * took(&first)?);
                } else {
                    compiled.push(took(&ready)?);
                    Patience::poll(Duration::from_millis(20), || is_kept(&site.path("cache")).then_some(()))
                        .map_err(|_| anyhow!("the cache has no entry"))?;
                }
                host.terminate();
            }
        }
        let row = |what: &str, unit, samples| {
            Row::new(format!("the scheduler in {language}, {kilobytes} kB, {what}"), unit, samples)
        };
        rows.push(row("compiled", Unit::S, compiled));
        rows.push(row("started", Unit::Ms, started));
    }
    Ok(rows)
}

/// True if the cache has an entry. A host reports that a module is ready before it writes the module's entry.
fn is_kept(cache: &Path) -> bool {
    let entries = std::fs::read_dir(cache).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).any(|path| path.extension().is_some_and(|kind| kind == "code"))
}
