//! Measures swaps: the time without an instance, and the time from a push until the pushed version runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use baton_store::Digest;
use baton_store::ObjectStore;
use baton_store::{AzureStore, SqliteStore};
use tokio::runtime::Runtime;

use crate::azurite::Azurite;
use crate::guest::Guests;
use crate::hosts::{Site, at, now};
use crate::node::{Event, Node, baton};
use crate::samples::Samples;
use crate::state::Writes;
use crate::table::{Bar, Row, Unit};
use baton_test_support::modules::numbered;

pub struct Effort {
    /// Number of hosts for each guest. All hosts run at the same time.
    pub hosts: usize,
    pub rounds: usize,
}

/// Upper limits on the median and the 99th percentile of the time without an instance, in milliseconds. On Azurite, the
/// time of one round trip is added to each limit.
const USUAL_GAP: f64 = 1.5;
const GAP: f64 = 5.0;
/// Upper bound on the time, in seconds, until the host notices a push for which it gets no hint.
const NOTICED: f64 = 5.0;
/// Upper limit on the time from a push until the pushed version runs, in seconds, without the time that the host takes
/// to prepare the version. The limit applies only if the push sends the host a hint.
const TOLD: f64 = 0.3;
/// Number of conditional writes after each swap. Their median is the yardstick for swaps.
const WRITES: usize = 3;

/// The behaviors of the two guests, and the suffixes for the names of their rows. Both guests stop when the host asks
/// them to. The second guest has state, which the host must claim before the guest starts.
const KINDS: [(&str, &str); 2] = [("beat", ""), ("rest", ", with state")];

/// Measures swaps between versions of each guest. The versions are pushed one after another, to a host that leads.
pub fn measure(guests: &Guests, effort: &Effort) -> anyhow::Result<Vec<Row>> {
    let mut rows = on(None, guests, effort)?;
    rows.extend(on(Some(&Azurite::start()), guests, effort)?);
    Ok(rows)
}

fn on(azurite: Option<&Azurite>, guests: &Guests, effort: &Effort) -> anyhow::Result<Vec<Row>> {
    let mut measured = [Measured::default(), Measured::default()];
    // Allow only one swap at a time: compiling the module of another swap would slow down the measured swap.
    let turn = &Mutex::new(());
    thread::scope(|scope| {
        let hosts: Vec<_> = (0..effort.hosts * KINDS.len())
            .map(|number| {
                let kind = number % KINDS.len();
                let module = if kind == 0 { &guests.fixtures } else { &guests.keeper };
                let run = move || Leader::start(module, KINDS[kind].0, azurite, number)?.swaps(effort.rounds, turn);
                (kind, scope.spawn(run))
            })
            .collect();
        for (kind, host) in hosts {
            let one = host.join().map_err(|_| anyhow::anyhow!("a host failed; see above"))??;
            measured[kind].add(&one);
        }
        anyhow::Ok(())
    })?;
    let store = if azurite.is_some() { "Azurite" } else { "sqlite" };
    let mut rows = Vec::new();
    for ((_, kind), one) in KINDS.iter().zip(&measured) {
        let write = one.writes.median();
        let trip = if azurite.is_some() { write } else { 0.0 };
        let gaps = Row::new(format!("a swap on {store}{kind}: without an instance"), Unit::Ms, one.gaps.clone());
        rows.push(
            gaps.bar(Bar::Median(USUAL_GAP + trip)).bar(Bar::P99(GAP + trip)).beside("one conditional write", write),
        );
        let lines = Row::new("  from its last line to the next one's first", Unit::Ms, one.lines.clone());
        rows.push(lines.beside("without an instance", one.gaps.median()));
    }
    let mut all = Measured::default();
    measured.iter().for_each(|one| all.add(one));
    let row = |what: &str, samples| Row::new(what.replace("STORE", store), Unit::S, samples);
    let waited = row("`baton push` returns → the version runs, STORE, but for preparing it", all.waited);
    rows.extend([
        // On the embedded store, the push sends the host a hint.
        if azurite.is_none() { waited.bar(Bar::Median(TOLD)).bar(Bar::P99(TOLD)) } else { waited }
            .beside("noticed within", NOTICED),
        row("`baton push` returns → the version runs, STORE", all.pushed.clone()).beside("noticed within", NOTICED),
        row("  from its start, with its own check", all.begun).beside("noticed within", NOTICED),
        row("  of it fetching, compiling and linking", all.prepared).beside("all of it", all.pushed.median()),
        row("  and from ready to running", all.ready).beside("all of it", all.pushed.median()),
    ]);
    Ok(rows)
}

#[derive(Default)]
struct Measured {
    /// Time without an instance, as the host reports it, in milliseconds.
    gaps: Samples,
    /// Time from the last line of one instance to the first line of the next, in milliseconds.
    lines: Samples,
    /// Time from the end of the push to the start of the instance, in seconds.
    pushed: Samples,
    /// Like `pushed`, but without the time in which the host prepared the version.
    waited: Samples,
    /// Time from the start of the push to the start of the instance, in seconds.
    begun: Samples,
    /// Time that the host took to prepare the version, in seconds.
    prepared: Samples,
    /// Time from the event `module_ready` to the event `started`, in seconds.
    ready: Samples,
    /// Conditional writes after the swaps, in milliseconds.
    writes: Samples,
}

impl Measured {
    fn add(&mut self, other: &Self) {
        let Self { gaps, lines, pushed, waited, begun, prepared, ready, writes } = self;
        gaps.add(&other.gaps);
        lines.add(&other.lines);
        pushed.add(&other.pushed);
        waited.add(&other.waited);
        begun.add(&other.begun);
        prepared.add(&other.prepared);
        ready.add(&other.ready);
        writes.add(&other.writes);
    }
}

/// A host that leads, and runs each version that is pushed.
struct Leader {
    site: Site,
    node: Node,
    store: String,
    /// The component, without the section that distinguishes its versions.
    component: Vec<u8>,
    number: usize,
    term: u64,
    runtime: Runtime,
    writes: Writes,
}

struct Push {
    digest: String,
    begun: f64,
    returned: f64,
}

impl Leader {
    fn start(module: &Path, behaviour: &str, azurite: Option<&Azurite>, number: usize) -> anyhow::Result<Self> {
        let site = Site::new();
        let store = match azurite {
            None => site.url(),
            Some(azurite) => format!("azurite://{}/swaps-{number}", azurite.address()),
        };
        let component = fs::read(module)?;
        push(&site, &store, &component, 0)?;
        let node = site.launch("leader", Path::new("store://bench"), behaviour, &store).start();
        let term = node.after(0, "started").term;
        let runtime = Runtime::new()?;
        let states: Arc<dyn ObjectStore> = match azurite {
            None => Arc::new(SqliteStore::new(site.store())),
            Some(azurite) => {
                Arc::new(AzureStore::emulator(&azurite.address().to_string(), &format!("swaps-{number}"))?)
            }
        };
        let writes = runtime.block_on(Writes::begin(states, "raw")).map_err(|error| anyhow::anyhow!("{error:#}"))?;
        Ok(Self { site, node, store, component, number, term, runtime, writes })
    }

    fn swaps(mut self, rounds: usize, turn: &Mutex<()>) -> anyhow::Result<Measured> {
        let mut measured = Measured::default();
        for round in 0..rounds {
            let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
            // Spread the pushes over the interval between two polls of the host.
            let spread = ((round * KINDS.len() + self.number) as f64 * 0.618_034).fract();
            thread::sleep(Duration::from_secs_f64(2.0 * spread));
            let version = u32::try_from(round + 1)?;
            let push = push(&self.site, &self.store, &self.component, version)?;
            self.swapped(&push, &mut measured)?;
            for _ in 0..WRITES {
                let took = self.runtime.block_on(self.writes.write());
                measured.writes.push(took.map_err(|error| anyhow::anyhow!("{error:#}"))?);
            }
        }
        self.node.terminate();
        Ok(measured)
    }

    fn swapped(&mut self, push: &Push, measured: &mut Measured) -> anyhow::Result<()> {
        let Push { digest, begun, returned } = push;
        let of = |name: &'static str| move |event: &Event| event.name == name && event.text("module") == digest;
        let swapped = self.node.event("the change-over", |event| event.is_swap() && event.text("module") == digest);
        let first = self.node.after(self.term, "output");
        let (ready, started) =
            (self.node.event("it to be ready", of("module_ready")), self.node.event("it", of("started")));
        ensure!(ready.fields["cached"] == false, "a new version was compiled before: {ready:?}");
        let last = self.site.journal.wait("what ran before", |events| {
            events.iter().rfind(|event| event.name == "output" && event.term == self.term).cloned()
        });
        let seconds = |event: &Event, field: &str| event.fields[field].as_f64().with_context(|| event.raw.clone());
        measured.gaps.push(1e3 * seconds(&swapped, "gap_s")?);
        measured.lines.push(1e3 * (at(&first) - at(&last)));
        measured.pushed.push(at(&started) - returned);
        measured.begun.push(at(&started) - begun);
        let prepared = seconds(&ready, "took_s")?;
        measured.prepared.push(prepared);
        measured.waited.push(at(&started) - returned - prepared);
        measured.ready.push(at(&started) - at(&ready));
        self.term = swapped.term;
        Ok(())
    }
}

/// Pushes a new version of the component. All versions have the same code, but each has its own digest.
fn push(site: &Site, store: &str, component: &[u8], version: u32) -> anyhow::Result<Push> {
    let module = numbered(component.to_vec(), version);
    let path: PathBuf = site.path("version.wasm");
    fs::write(&path, &module)?;
    let mut command: Command = baton(&site.path(""));
    command.arg("push").arg(&path).args(["bench", "--store", store, "--create"]);
    let begun = now();
    let output = command.output().context("the binary does not start")?;
    let returned = now();
    ensure!(output.status.success(), "`baton push` failed: {}", String::from_utf8_lossy(&output.stderr));
    Ok(Push { digest: Digest::of(&module).to_string(), begun, returned })
}
