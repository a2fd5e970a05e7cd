//! Starts many elections, and kills each leader at a random point in its term: `make deaths COUNT=1000`.
//!
//! The nodes run on one machine, so the standby notices the leader's death and takes over before the lease expires.
//! Even then, the dead leader's last effects must precede its successor's first effects. The test kills the host, the
//! runner, or both, in either order. The receiver accepts all effects, and `judge.rs` compares the kernel's timestamps.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crate::fleet::{Log, NAMES, Node};
use crate::judge::{Effect, Judge};
use crate::kernel::{Clock, Nanos, now};
use crate::patience::Patience;
use crate::plan::{Death, Parts, Rng};
use crate::receiver::Receiver;
use crate::store::Store;
use crate::{baton_binary, guests, say, variable};
use baton_test_support::modules::numbered;

/// The number of leaders to kill, and the seed of the cases, if the variable `DEATHS` is not set.
const FIXED: (u64, u64) = (8, 1);

/// The longest possible lease. A takeover that takes most of this time shows that the successor has not noticed the
/// leader's death.
const LEASE: Duration = Duration::from_secs(60);

/// The number of the successor's effects to wait for. A late effect of the dead leader would arrive among these
/// effects.
const EFFECTS: u64 = 20;

/// The interval between two checks for effects. A death cannot be timed more precisely than this.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

#[test]
fn effects_of_a_term_stop_when_its_leader_dies() {
    let searched = variable("DEATHS");
    let fresh = || if searched.is_some() { now() % 1_000_000_007 } else { FIXED.1 };
    let (count, seed) = (searched.unwrap_or(FIXED.0), variable("DEATHS_SEED").unwrap_or_else(fresh));
    let workers = std::thread::available_parallelism().map_or(2, |all| 2 * all.get() as u64).min(count);
    say(&format!("{count} deaths from DEATHS_SEED={seed}, {workers} at a time, lease {LEASE:?}"));
    let clock = Clock::new();
    let (next, results) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for worker in 0..workers {
            let (next, results) = (&next, &results);
            scope.spawn(move || {
                let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("deaths-{worker}.log"));
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return;
                    }
                    let case = Case::of(&mut Rng::of(seed.wrapping_add(number)));
                    match Fleet::new(&path).run(case) {
                        Ok(leaderless) => {
                            results.lock().expect("no thread panics while it holds the lock").push((case, leaderless));
                        }
                        Err(broken) => {
                            // Make the other workers stop after their current case.
                            next.store(count, Ordering::Relaxed);
                            let again = format!("DEATHS_SEED={} DEATHS=1", seed.wrapping_add(number));
                            panic!("{case}: {broken}\n  again: {again}; its log: {}", path.display());
                        }
                    }
                }
            });
        }
    });
    clock.watch().expect("the stamps can be compared");
    let results = results.into_inner().expect("no thread panics while it holds the lock");
    assert_eq!(results.len() as u64, count);
    for who in Dies::ALL {
        let mut times: Vec<Duration> =
            results.iter().filter(|(case, _)| case.dies == who).map(|(_, time)| *time).collect();
        times.sort_unstable();
        let at = |part: usize| times.get(times.len().saturating_sub(1) * part / 100).copied().unwrap_or_default();
        say(&format!("{who}, {} times: p50 {:.1?}, p99 {:.1?} until the next effect", times.len(), at(50), at(99)));
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Dies {
    Host,
    Runner,
    HostThenRunner,
    RunnerThenHost,
}

impl Dies {
    const ALL: [Self; 4] = [Self::Host, Self::Runner, Self::HostThenRunner, Self::RunnerThenHost];
}

impl fmt::Display for Dies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "the host dies",
            Self::Runner => "the runner dies",
            Self::HostThenRunner => "the host dies, then the runner",
            Self::RunnerThenHost => "the runner dies, then the host",
        })
    }
}

/// The moment in the leader's term at which the time [`Case::after`] starts. The leader dies at the end of this time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Point {
    Elected,
    FirstEffect,
    /// Another version replaces the module's file.
    Swap,
    /// The leader receives SIGTERM.
    Stop,
    /// The leader's first renewal is about to start.
    Renewal,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Elected => "it was elected",
            Self::FirstEffect => "its first effect",
            Self::Swap => "there is another version",
            Self::Stop => "it was told to end",
            Self::Renewal => "all but a renewal's time of its term",
        })
    }
}

#[derive(Clone, Copy, Debug)]
struct Case {
    dies: Dies,
    point: Point,
    /// True if the standby starts before the leader dies. Otherwise, it starts after the death.
    has_standby: bool,
    after: Duration,
    /// The time between the deaths, if two processes die.
    apart: Duration,
}

impl Case {
    fn of(rng: &mut Rng) -> Self {
        let dies = Dies::ALL[rng.below(4) as usize];
        // Most deaths occur close to the first effect, while the record is new and the instance is claiming the state.
        let (point, most) = match rng.below(16) {
            0..3 => (Point::Elected, 0.01),
            3..7 => (Point::FirstEffect, 0.005),
            7..10 => (Point::FirstEffect, 0.3),
            10..13 => (Point::Swap, 0.1),
            13..15 => (Point::Stop, 0.02),
            _ => (Point::Renewal, 0.3),
        };
        let after = rng.upto(most);
        let apart = if rng.below(2) == 0 { 0.0 } else { rng.upto(0.02) };
        let [after, apart] = [after, apart].map(Duration::from_secs_f64);
        Self { dies, point, has_standby: rng.below(4) > 0, after, apart }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dies, point, has_standby, after, apart } = self;
        let standby = if *has_standby { "with a standby" } else { "with a standby that comes after it" };
        write!(f, "{dies} {after:.1?} after {point}, {apart:.1?} apart, {standby}")
    }
}

struct Fleet {
    nodes: [Node; 2],
    judge: Arc<Mutex<Judge>>,
    log: Arc<Mutex<Log>>,
    receiver: Receiver,
    module: PathBuf,
    _store: Store,
    _home: tempfile::TempDir,
}

impl Fleet {
    fn new(log: &Path) -> Self {
        let (home, store) = (tempfile::tempdir().expect("a folder"), Store::sqlite());
        let (judge, log) = (Arc::<Mutex<Judge>>::default(), Arc::new(Mutex::new(Log::new(log.to_owned()))));
        let receiver = Receiver::start(&judge);
        let url = receiver.url();
        let module = home.path().join("effects.wasm");
        std::fs::copy(guests::effects(), &module).expect("a file");
        let flags = [
            ("--election", crate::store::ELECTION.to_owned()),
            ("--store", store.safe_url()),
            ("--lease", format!("{}s", LEASE.as_secs())),
            ("--admin", "none".to_owned()),
            ("--max-output", "100000".to_owned()),
            ("--allow-http", url.clone()),
            ("--env", format!("URL={url}")),
            ("--env", "EVERY_US=200".to_owned()),
        ];
        let flags = flags.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]);
        let arguments: Vec<String> = std::iter::once(module.display().to_string()).chain(flags).collect();
        let nodes = [0, 1].map(|at| Node::new(at, baton_binary(), arguments.clone(), home.path(), &judge, &log));
        Self { nodes, judge, log, receiver, module, _store: store, _home: home }
    }

    /// Kills the leader. Returns the time from the death to the successor's first effect.
    fn run(mut self, case: Case) -> Result<Duration, String> {
        self.nodes[0].start();
        if case.has_standby {
            self.nodes[1].start();
        }
        let leader = if case.point == Point::Elected { self.elected()? } else { self.first_above(0)?.node };
        match case.point {
            Point::Elected | Point::FirstEffect => {}
            Point::Swap => self.swap(),
            Point::Stop => self.nodes[leader].terminate(),
            Point::Renewal => std::thread::sleep(LEASE / 6 - Duration::from_millis(150)),
        }
        std::thread::sleep(case.after);
        // Returns the highest term that ends with the death of `leader`. If `leader` has already handed off, `term` is
        // the successor's term, which continues. In this case, only lower terms end.
        let last_of_leader = |(node, term): (usize, u64)| if node == leader { term } else { term.saturating_sub(1) };
        let latest = self.judge().latest().map_or(0, |effect| last_of_leader((effect.node, effect.term)));
        let elected = self.log().elected.map_or(0, last_of_leader);
        // A leader that has just been elected may have no runner yet. If only the runner should die, nothing dies then,
        // and the elected term continues. Its first effect must end the wait below, so ignore `elected`.
        let before = if case.dies == Dies::Runner { latest } else { latest.max(elected) };
        let died = now();
        self.log().note(&format!("{case}: {}", NAMES[leader]));
        match case.dies {
            Dies::Host => self.nodes[leader].end(Parts::HOST, Death::Killed),
            Dies::Runner => self.nodes[leader].end(Parts::RUNNER, Death::Killed),
            Dies::HostThenRunner => self.nodes[leader].end_both(Parts::HOST, case.apart),
            Dies::RunnerThenHost => self.nodes[leader].end_both(Parts::RUNNER, case.apart),
        }
        if !case.has_standby {
            self.nodes[1 - leader].start();
        }
        let next = self.first_above(before)?;
        self.wait_for_more(next.term)?;
        let Self { nodes, judge, receiver, log, .. } = self;
        // The drop joins the reader threads of the nodes and of the receiver. Afterwards, all effects have been read.
        drop((nodes, receiver));
        if let Some(line) = &log.lock().expect("no thread panics while it holds the lock").panicked {
            return Err(format!("the host survives: {line}"));
        }
        judge.lock().expect("no thread panics while it holds the lock").judge(Nanos::MAX)?;
        let leaderless = Duration::from_nanos(next.at.saturating_sub(died));
        if leaderless > LEASE * 3 / 4 {
            return Err(format!("the lease was waited out: {next} came {leaderless:.1?} later"));
        }
        Ok(leaderless)
    }

    fn elected(&self) -> Result<usize, String> {
        let elected = || self.log().elected;
        let (node, _) = Patience::poll(POLL_INTERVAL, elected).map_err(|_| "nobody is elected".to_owned())?;
        Ok(node)
    }

    fn swap(&self) {
        let next = numbered(std::fs::read(&self.module).expect("the module can be read"), "");
        let new_file = self.module.with_extension("next");
        std::fs::write(&new_file, next).expect("a file");
        std::fs::rename(new_file, &self.module).expect("the file can be replaced");
    }

    fn first_above(&self, term: u64) -> Result<Effect, String> {
        let first = || self.judge().first_above(term).cloned();
        Patience::poll(POLL_INTERVAL, first).map_err(|_| format!("no effect of a term above {term} arrives"))
    }

    fn wait_for_more(&self, term: u64) -> Result<(), String> {
        let effects = || self.judge().count.requests;
        let enough = effects() + EFFECTS;
        Patience::poll(POLL_INTERVAL, || (effects() >= enough).then_some(()))
            .map_err(|_| format!("no more effects arrive after the first of term {term}"))
    }

    fn judge(&self) -> MutexGuard<'_, Judge> {
        self.judge.lock().expect("no thread panics while it holds the lock")
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().expect("no thread panics while it holds the lock")
    }
}
