//! Measures the time until the next instance runs after an election, a crash or a hand-off.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use baton_election::{ElectionName, LeaseState, Op, Reply, Snapshot};
use baton_store::{AzureStore, LeaseStore, SqliteStore};
use rustix::process::Signal;

use crate::azurite::Azurite;
use crate::guest::Guests;
use crate::hosts::{Site, at, follows, now};
use crate::instances::{NATIVE_START, native_start};
use crate::node::{Event, Node};
use crate::samples::Samples;
use crate::state::Writes;
use crate::table::{Bar, Row, Unit};

pub struct Effort {
    /// Number of consecutive terms to measure. The same node leads in all of them, and its coordinator returns at once.
    pub terms: usize,
    /// Number of pairs of hosts. All pairs run at the same time.
    pub pairs: usize,
    /// Number of crashes for each pair of hosts. Each pair also makes the same number of hand-offs.
    pub rounds: usize,
}

/// Lease durations, in seconds: the shortest for the embedded store, and the shortest for Azurite, which is also the
/// default.
const LEASE: u32 = 2;
const LEASE_ON_AZURITE: u32 = 15;
/// Time that the benchmark sleeps after it pauses the holder, as a share of the lease. The holder renewed the lease
/// less than a sixth of the lease earlier, so the store still reports the lease as held after the sleep.
const LEFT: f64 = 0.8;
/// Pause between two terms of a leader. It gives the host time to prepare the next runner and to announce the term that
/// has ended.
const PAUSE: Duration = Duration::from_millis(120);
/// Default interval between a standby's polls, in seconds.
const POLL: f64 = 1.0;
/// Number of writes in a hand-off. The leader marks the lease as released, and releases it. The next leader acquires
/// the lease, writes the term, and claims the state.
const WRITES: usize = 5;
/// Upper bound on the time of a hand-off without its writes, in milliseconds. Applies to a store over the network.
const OWN_PART: f64 = 10.0;
/// Number of measurements in which, for comparison, the next leader waits until the lease has expired.
const WAITED_OUT: usize = 3;
/// Interval at which the benchmark checks whether a lease has expired. The measured time may be too long by up to this
/// interval.
const LOOK: Duration = Duration::from_millis(4);

/// Measures the time from the event `elected`, when the term is written, to the guest's first line. The guest's first
/// instructions print this line. Both times are taken from the host's log. The yardstick is the start of a native
/// program that prints a line.
pub fn elections(module: &Path, effort: &Effort) -> anyhow::Result<Vec<Row>> {
    let site = Site::new();
    let launch = site
        .launch("leader", module, "done", &site.url())
        .flag("--lease", format!("{LEASE}s"))
        .flag("--max-memory", "64MiB");
    let mut node = launch.flag("--restart-delay", format!("{}ms", PAUSE.as_millis())).start();
    // Run one more term than needed: the first one runs with cold caches and is not counted.
    let wanted = effort.terms + 1;
    let samples = site.journal.wait("terms", |events| {
        // Search the events only once all terms have been logged: a search after each line would take CPU time from the
        // guest.
        if events.last().is_none_or(|last| last.term <= wanted as u64) {
            return None;
        }
        let elected = events.iter().filter(|event| event.name == "elected");
        let samples: Samples = elected
            .filter_map(|elected| {
                let mut of_term = events.iter().filter(|event| event.term == elected.term);
                let first = of_term.find(|event| event.name == "output")?;
                Some(1e3 * (at(first) - at(elected)))
            })
            .skip(1)
            .collect();
        (samples.len() + 1 >= wanted).then_some(samples)
    });
    node.terminate();
    let native = (0..effort.terms).map(|_| native_start(PAUSE)).collect::<std::io::Result<_>>()?;
    let row = Row::new("elected → the guest's first instruction, warm", Unit::Ms, samples);
    Ok(vec![row.bar(Bar::Ratio(1.0)).bar(Bar::P99Ratio(1.0)).against(NATIVE_START, &native)])
}

/// Measures the time from the SIGKILL of a leader's host until the next instance runs on the same machine. Each crash
/// is in a new election, because from the second consecutive crash on, the other host would wait before it takes over.
fn deaths(keeper: &Path, times: usize) -> anyhow::Result<Row> {
    let death = |number: usize, witness| {
        let mut pair = Pair::start(keeper, &Setting { witness, ..Setting::default() });
        thread::sleep(Duration::from_secs_f64(0.4 + 0.6 * (number as f64 * 0.618_034).fract()));
        let killed = now();
        pair.leader.signal(Signal::KILL);
        1e3 * (pair.next_instance() - killed)
    };
    let samples: Samples = (0..times).map(|number| death(number, true)).collect();
    let waited_out: Samples = (0..WAITED_OUT).map(|number| death(number, false)).collect();
    let row = Row::new("SIGKILL → next instance, on one machine", Unit::Ms, samples);
    let beside = format!("a lease of {LEASE} s waited out, n={WAITED_OUT}");
    Ok(row.bar(Bar::Median(30.0)).bar(Bar::P99(150.0)).beside(beside, waited_out.median()))
}

/// Measures the time from the start of a host until its instance runs, on Azurite. Before the host starts, the
/// benchmark kills a previous host of the same node while that host leads. Each measurement has a new store, because
/// from the second consecutive crash on, the node would defer to other nodes.
fn restarts(module: &Path, times: usize) -> anyhow::Result<Row> {
    let azurite = Azurite::start();
    let restart = |number: usize, witness: bool| {
        let site = Site::new();
        let store = format!("azurite://{}/bench-{witness}-{number}", azurite.address());
        let launch = || {
            let launch = site.launch("node", module, "beat", &store).arg("--create").flag("--max-memory", "64MiB");
            launch.arg(format!("--reclaim={witness}"))
        };
        let mut killed = launch().start();
        let term = killed.after(0, "started").term;
        killed.signal(Signal::KILL);
        killed.wait();
        let begun = now();
        let node = launch().start();
        at(&node.after(term, "started")) - begun
    };
    let samples: Samples = (0..times).map(|number| restart(number, true)).collect();
    let waited_out: Samples = (0..WAITED_OUT).map(|number| restart(number, false)).collect();
    let row = Row::new("a killed host is started again → its instance, on Azurite", Unit::S, samples);
    let beside = format!("its own lease waited out, n={WAITED_OUT}");
    Ok(row.bar(Bar::Median(0.3)).beside(beside, waited_out.median()))
}

/// Measures the time from the start of `baton suspend` until both hosts of a pair have reported the suspension.
fn suspensions(keeper: &Path, times: usize) -> anyhow::Result<Row> {
    let pair_of = |links| -> anyhow::Result<Samples> {
        let mut pair = Pair::start(keeper, &Setting { links, ..Setting::default() });
        (0..times).map(|_| pair.suspension()).collect()
    };
    let (linked, unlinked) = (pair_of(true)?, pair_of(false)?);
    let row = Row::new("baton suspend → all have stopped for it", Unit::S, linked);
    Ok(row.bar(Bar::Median(0.3)).beside("without links", unlinked.median()))
}

/// Measures the time from the end of a leader's instance after SIGTERM until the next instance runs, on Azurite, where
/// hints are sent over the network. The yardstick is the time that [`WRITES`] writes take on this store.
fn hand_offs_on_azurite(keeper: &Path, azurite: &Azurite, times: usize) -> anyhow::Result<Row> {
    let container = "hand-offs";
    let mut pair = Pair::start(keeper, &Setting::on(azurite, container));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut hand_offs, mut writes) = (Samples::default(), Samples::default());
    let raw = Arc::new(AzureStore::emulator(&azurite.address().to_string(), container)?);
    let told = |error| anyhow::anyhow!("{error:#}");
    let mut raw = runtime.block_on(Writes::begin(raw, "raw")).map_err(told)?;
    for _ in 0..times {
        hand_offs.push(1e3 * pair.hand_off());
        for _ in 0..WRITES {
            writes.push(runtime.block_on(raw.write()).map_err(told)?);
        }
    }
    let least = WRITES as f64 * writes.median();
    let row = Row::new("hand-off on Azurite: gone → next instance", Unit::Ms, hand_offs);
    Ok(row.bar(Bar::Median(least + OWN_PART)).beside("five of its writes", least))
}

/// Measures [`Pair::loss`] on Azurite. Each host runs as if on its own machine.
fn losses_on_azurite(keeper: &Path, azurite: &Azurite, times: usize) -> Row {
    let mut pair = Pair::start(keeper, &Setting::on(azurite, "losses"));
    let losses = (0..times).map(|number| pair.loss(number)).collect();
    let row = Row::new("machine lost, on Azurite: the lease's own end → next instance", Unit::S, losses);
    row.bar(Bar::Median(0.1)).bar(Bar::P99(0.3)).beside("poll", POLL)
}

/// Measures how long pairs of hosts take to replace a lost leader, and to hand off, with and without links. In each
/// pair, one host leads and the other is the only standby. The guest keeps state, as most guests do, so the new leader
/// must claim the state before it starts an instance.
pub fn crashes_and_hand_offs(guests: &Guests, effort: &Effort) -> anyhow::Result<Vec<Row>> {
    let (keeper, azurite) = (&*guests.keeper, Azurite::start());
    let (losses, hand_offs) = pairs(keeper, effort, &Setting::default())?;
    let (unlinked_losses, unlinked_hand_offs) = pairs(keeper, effort, &Setting { links: false, ..Setting::default() })?;
    let judged = |what: &str, samples| {
        Row::new(what, Unit::S, samples).bar(Bar::Median(0.75)).bar(Bar::P99(1.6)).beside("poll", POLL)
    };
    Ok(vec![
        deaths(keeper, effort.pairs * effort.rounds)?,
        restarts(&guests.fixtures, effort.rounds)?,
        suspensions(keeper, effort.rounds)?,
        Row::new("machine lost: the lease's own end → next instance", Unit::S, losses)
            .bar(Bar::Median(0.1))
            .bar(Bar::P99(0.3))
            .beside("without links", unlinked_losses.median()),
        losses_on_azurite(keeper, &azurite, effort.rounds),
        Row::new("hand-off: gone → next instance", Unit::S, hand_offs)
            .bar(Bar::Median(0.02))
            .bar(Bar::P99(0.06))
            .beside("without links", unlinked_hand_offs.median()),
        hand_offs_on_azurite(keeper, &azurite, effort.rounds * effort.pairs)?,
        judged("without links, machine lost: the lease's own end → next instance", unlinked_losses),
        judged("without links, hand-off: gone → next instance", unlinked_hand_offs),
    ])
}

/// Measures [`Pair::loss`] and [`Pair::hand_off`] on several pairs at the same time. Returns the results of both, in
/// seconds.
fn pairs(keeper: &Path, effort: &Effort, setting: &Setting) -> anyhow::Result<(Samples, Samples)> {
    let (mut losses, mut hand_offs) = (Samples::default(), Samples::default());
    thread::scope(|scope| {
        let pairs: Vec<_> = (0..effort.pairs)
            .map(|number| {
                scope.spawn(move || {
                    let mut pair = Pair::start(keeper, setting);
                    let losses: Vec<f64> =
                        (0..effort.rounds).map(|round| pair.loss(number + round * effort.pairs)).collect();
                    let hand_offs: Vec<f64> = (0..effort.rounds).map(|_| pair.hand_off()).collect();
                    (losses, hand_offs)
                })
            })
            .collect();
        for pair in pairs {
            let (lost, handed) = pair.join().map_err(|_| anyhow::anyhow!("a pair of hosts failed; see above"))?;
            losses.extend(lost);
            hand_offs.extend(handed);
        }
        anyhow::Ok(())
    })?;
    Ok((losses, hand_offs))
}

#[derive(Clone)]
struct Setting {
    /// Address of the emulator, and name of the container; `None` for the embedded store.
    azurite: Option<(String, String)>,
    /// True if a host may reclaim a dead holder's lease.
    witness: bool,
    links: bool,
}

impl Default for Setting {
    fn default() -> Self {
        Self { azurite: None, witness: true, links: true }
    }
}

struct Pair<'a> {
    site: Site,
    keeper: &'a Path,
    setting: Setting,
    leader: Node,
    term: u64,
    standby: Node,
    started: usize,
}

impl<'a> Pair<'a> {
    fn start(keeper: &'a Path, setting: &Setting) -> Self {
        let site = Site::new();
        let leader = setting.start(&site, "node-1", keeper);
        let term = leader.after(0, "started").term;
        let standby = setting.start(&site, "node-2", keeper);
        setting.stands_by(&standby);
        Self { site, keeper, setting: setting.clone(), leader, term, standby, started: 2 }
    }

    /// Simulates the loss of the leader's machine by pausing all of its processes at once, so that no lease is renewed,
    /// no process exits and no connection is closed. Returns the time from the end of the leader's lease until the
    /// standby's instance runs, in seconds.
    fn loss(&mut self, number: usize) -> f64 {
        // Lose each leader at a different point between two renewals and between two polls.
        let lease = f64::from(self.setting.lease());
        let spread = POLL.max(lease / 6.0) * (number as f64 * 0.618_034).fract();
        thread::sleep(Duration::from_secs_f64(0.4 + spread));
        self.leader.pause();
        thread::sleep(Duration::from_secs_f64(LEFT * lease));
        let end = self.end_of_lease();
        let took = self.next_instance() - end;
        self.replace();
        took
    }

    /// Measures the time from the end of the leader's instance after SIGTERM until the standby's instance runs, in
    /// seconds.
    fn hand_off(&mut self) -> f64 {
        let term = self.term;
        self.leader.signal(Signal::TERM);
        let gone = self.leader.after(term - 1, "ended");
        let took = self.next_instance() - at(&gone);
        self.leader.wait();
        self.replace();
        took
    }

    /// Measures the time from the start of `baton suspend` until both hosts have reported the suspension, in seconds.
    /// Resumes the election afterwards.
    fn suspension(&mut self) -> anyhow::Result<f64> {
        let begun = now();
        self.site.steer("suspend")?;
        let nodes = [&self.leader, &self.standby];
        let last =
            nodes.map(|node| at(&node.event("to stop", |event| event.name == "ineligible" && at(event) >= begun)));
        self.site.steer("resume")?;
        let started = |event: &Event| event.name == "started" && event.term > self.term;
        self.term = self.site.journal.event("another term", |event| started(event)).term;
        Ok(last[0].max(last[1]) - begun)
    }

    fn next_instance(&mut self) -> f64 {
        let started = self.standby.after(self.term, "started");
        self.term = started.term;
        at(&started)
    }

    /// Makes the standby the leader, and starts another standby.
    fn replace(&mut self) {
        self.started += 1;
        let standby = self.setting.start(&self.site, &format!("node-{}", self.started), self.keeper);
        self.setting.stands_by(&standby);
        self.leader = std::mem::replace(&mut self.standby, standby);
    }

    /// Waits until the leader's lease has ended. Returns the last time at which the store still reported the lease as
    /// held. The lease ended after that, so the measured time may be too long, but never too short.
    fn end_of_lease(&self) -> f64 {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let store: Box<dyn LeaseStore> = match &self.setting.azurite {
            None => Box::new(SqliteStore::new(self.site.store())),
            Some((at, container)) => Box::new(AzureStore::emulator(at, container).expect("a name of a container")),
        };
        runtime.block_on(async {
            let election = ElectionName::new("bench").expect("a legal name");
            let mut held_at = now();
            loop {
                let reading = now();
                match store.request(&election, Op::Read).await {
                    Ok(Reply::Read(Snapshot::Object { lease: LeaseState::Held, record: Some(record), .. }))
                        if record.term == self.term =>
                    {
                        held_at = reading
                    }
                    Ok(_) => return held_at,
                    // Try again: another request may briefly hold the store's lock.
                    Err(_) => {}
                }
                tokio::time::sleep(LOOK).await;
            }
        })
    }
}

impl Setting {
    fn on(azurite: &Azurite, container: &str) -> Self {
        Self { azurite: Some((azurite.address().to_string(), container.to_owned())), ..Self::default() }
    }

    /// Lease duration, in seconds.
    fn lease(&self) -> u32 {
        if self.azurite.is_some() { LEASE_ON_AZURITE } else { LEASE }
    }

    fn start(&self, site: &Site, name: &str, keeper: &Path) -> Node {
        let launch = match &self.azurite {
            None => site.launch(name, keeper, "rest", &site.url()),
            Some((at, container)) => {
                let launch = site.launch_alone(name, keeper, "rest", &format!("azurite://{at}/{container}"));
                launch.arg("--create").flag("--peer", "127.0.0.1:0")
            }
        };
        let launch = launch.flag("--lease", format!("{}s", self.lease()));
        let launch = launch.arg(format!("--reclaim={}", self.witness)).arg(format!("--links={}", self.links));
        launch.flag("--max-memory", "64MiB").start()
    }

    /// Waits until a host is a standby. If links are enabled, also waits until it has a link to the leader.
    fn stands_by(&self, standby: &Node) {
        follows(standby);
        if self.links {
            standby.event("to hear from the leader", |event| event.is_linked());
        }
    }
}
